package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// Every command line in the documentation, and in the examples of the help, is one that the
// program accepts.
func TestDocumentedCommandsParse(t *testing.T) {
	files, err := filepath.Glob("../../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range append(files, "../../README.md", "../../SECURITY.md") {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		found := commandLines(codeLines(string(b)))
		for _, args := range found {
			if err := parses(args); err != nil {
				t.Errorf("%s: tt-memtrace %s: %v", filepath.Base(file), strings.Join(args, " "), err)
			}
		}
		if filepath.Base(file) == "guide.md" && len(found) < 15 {
			t.Errorf("%s: only %d command lines", file, len(found))
		}
	}
	var examples func(*cobra.Command)
	examples = func(cmd *cobra.Command) {
		var lines []string
		for line := range strings.SplitSeq(cmd.Example, "\n") {
			line, _, _ = strings.Cut(strings.TrimSpace(line), "  ") // what it does comes behind
			lines = append(lines, line)
		}
		for _, args := range commandLines(lines) {
			if err := parses(args); err != nil {
				t.Errorf("example of %s: tt-memtrace %s: %v", cmd.Name(), strings.Join(args, " "), err)
			}
		}
		for _, c := range cmd.Commands() {
			examples(c)
		}
	}
	examples(newRoot())
}

// Files that CONTRIBUTING.md and docs/architecture.md name exist: recipes do not outlive what they name.
func TestDocumentedFilesExist(t *testing.T) {
	const root = "../../"
	name := regexp.MustCompile("`([a-z0-9]+/[A-Za-z0-9_./-]+[a-z])`|\\]\\(([A-Za-z0-9_./-]+\\.md)\\)|\\b(docs/[a-z]+\\.md)")
	for _, file := range []string{"README.md", "CONTRIBUTING.md", "docs/architecture.md", "docs/probes.md", "docs/processes.md", "docs/guide.md", "docs/decisions/README.md"} {
		b, err := os.ReadFile(root + file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range name.FindAllStringSubmatch(string(b), -1) {
			path, from := m[1]+m[3], root
			if m[2] != "" {
				path, from = m[2], filepath.Join(root, filepath.Dir(file))
			}
			if strings.Contains(path, "NAME") || strings.Contains(path, "UID") {
				continue
			}
			if _, err := os.Stat(filepath.Join(from, path)); err != nil {
				t.Errorf("%s names %s: %v", file, path, err)
			}
		}
	}
}

// documents are the texts for people, from the top folder.
func documents(t *testing.T) []string {
	t.Helper()
	var list []string
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/decisions/*.md", "test/rig/*.md", "internal/x86eval/*.md"} {
		found, err := filepath.Glob("../../" + pattern)
		if err != nil || len(found) == 0 {
			t.Fatalf("%s: %v", pattern, err)
		}
		list = append(list, found...)
	}
	return list
}

// Every link of the documentation leads to a file, and to a heading in it.
func TestDocumentedLinksLead(t *testing.T) {
	link := regexp.MustCompile(`\]\(([A-Za-z0-9_./-]*)(?:#([a-z0-9-]+))?\)`)
	checked := 0
	for _, file := range documents(t) {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range link.FindAllStringSubmatch(string(b), -1) {
			checked++
			to := file
			if m[1] != "" {
				to = filepath.Join(filepath.Dir(file), m[1])
			}
			if _, err := os.Stat(to); err != nil {
				t.Errorf("%s: %v", file, err)
			} else if m[2] != "" && !slices.Contains(anchors(t, to), m[2]) {
				t.Errorf("%s: %s has no heading #%s", file, to, m[2])
			}
		}
	}
	if checked < 50 {
		t.Errorf("only %d links were found", checked)
	}
}

// anchors are the names that links have for the headings of a text.
func anchors(t *testing.T, file string) (list []string) {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	left := regexp.MustCompile(`[^a-z0-9 _-]`)
	for _, m := range regexp.MustCompile(`(?m)^#+ (.*)$`).FindAllStringSubmatch(string(b), -1) {
		list = append(list, strings.ReplaceAll(left.ReplaceAllString(strings.ToLower(m[1]), ""), " ", "-"))
	}
	return list
}

// Tests that the documentation names exist.
func TestDocumentedTestsExist(t *testing.T) {
	const root = "../../"
	declared := regexp.MustCompile(`(?m)^func (Test\w+)\(`)
	tests := map[string]bool{}
	err := filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		code, err := os.ReadFile(path)
		for _, m := range declared.FindAllSubmatch(code, -1) {
			tests[string(m[1])] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range documents(t) {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile("`(Test\\w+)`").FindAllStringSubmatch(string(b), -1) {
			if !tests[m[1]] {
				t.Errorf("%s names %s, which is not there", file, m[1])
			}
		}
	}
}

func TestParses(t *testing.T) {
	for line, right := range map[string]bool{
		"tt-memtrace status --json": true, "sudo tt-memtrace -p 1 # one": true, "tt-memtrace report 'a b.ttm' | less": true,
		"tt-memtrace status --no-such-flag": false, "tt-memtrace no-such-command": false, "tt-memtrace record": false,
		"cat a | tt-memtrace status extra": false,
	} {
		for _, args := range commandLines([]string{line}) {
			if err := parses(args); (err == nil) != right {
				t.Errorf("%s: %q: %v", line, args, err)
			}
		}
		if len(commandLines([]string{line})) != 1 {
			t.Errorf("%s: no command found", line)
		}
	}
}

// parses reports whether the program accepts the arguments. It runs nothing.
func parses(args []string) error {
	cmd, rest, err := newRoot().Find(args)
	if err != nil {
		return err
	}
	if err := cmd.ParseFlags(rest); err != nil {
		return err
	}
	return cmd.ValidateArgs(cmd.Flags().Args())
}

// codeLines are the lines of a text's code blocks.
func codeLines(text string) (list []string) {
	fenced := false
	for line := range strings.SplitSeq(text, "\n") {
		switch {
		case strings.HasPrefix(line, "```"):
			fenced = !fenced
		case fenced && strings.HasPrefix(line, " "): // a picture of the screen, or output
		case fenced:
			list = append(list, line)
		case strings.HasPrefix(line, "    "):
			list = append(list, line[4:])
		}
	}
	return list
}

var (
	// A word of a shell's, a quoted one or an operator.
	shellWord = regexp.MustCompile(`'[^']*'|"(?:\\.|[^"])*"|\|+|&+|;|[<>]|[^\s'"|&;<>]+`)
	comment   = regexp.MustCompile(`(^|\s)#.*`)
)

// commandLines are the arguments of each tt-memtrace that the lines call.
func commandLines(lines []string) (list [][]string) {
	for _, line := range lines {
		var words []string
		end := func() {
			if len(words) > 0 && words[0] == "sudo" {
				words = words[1:]
			}
			if len(words) > 0 && (words[0] == "tt-memtrace" || words[0] == "./tt-memtrace") {
				list = append(list, words[1:])
			}
			words = nil
		}
		for _, w := range shellWord.FindAllString(comment.ReplaceAllString(line, ""), -1) {
			switch {
			case strings.ContainsAny(w[:1], "|&;<>"):
				end()
			case strings.ContainsAny(w[:1], `'"`):
				words = append(words, w[1:len(w)-1])
			default:
				words = append(words, w)
			}
		}
		end()
	}
	return list
}
