package budget

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// avoided lists words and phrases that readers stumble over or that contradict docs/glossary.md, each with a
// replacement.
var avoided = []struct{ name, pattern, instead string }{
	{"the books", `(?i)\b(the|their|own) books\b`, "accounts"},
	{"ghost", `(?i)\bghosts?\b`, "stale entry"},
	{"haunted", `(?i)\bhaunted\b`, "of exited processes"},
	{"panels", `(?i)\blive panels\b|\bthe panels\b`, "screen, views"},
	{"bank lost", `(?i)\bbanks? lost\b`, "bytes taken from the free pool"},
	{"made no sense", `(?i)\bmade no sense\b`, "inconsistent"},
	{"host kernel", `(?i)\bhost kernel`, "the kernel; the other one is a TT kernel"},
	{"he, his, him", `(?i)\b(he|his|him)\b`, "they, or that user"},
	{"as far as is known", `\bas far as ((it|this|that) is|is|(they|these|both) are|can be|(it|they) could)\b`,
		"if known"},
	{"anew", `\banew\b`, "again"},
	{"of before", `\bof before\b`, "earlier"},
	{"the one before", `\bthe one (of )?before\b`, "the previous one"},
	{"that one's", `\bthat one's\b`, "the parent's, or whose it is"},
	{"in all", `\bin all([.;:)]|, |$)`, "in total"},
	{"by then", `\bby then\b`, "until that time"},
	{"meanwhile", `(?i)\bmeanwhile\b`, "during the scan, or during what it is"},
	{"taken for", `\b(take|takes|taken|took) \w+ for (a|an|the|one|another)\b|\btaken for\b`, "treat X as Y"},
	{"told from", `\btold (apart|from)\b|\btell \w+ (apart|from)\b`, "distinguish X from Y"},
	{"apart", `\b(process|processes|goroutine|reader|thread) apart\b`, "separate"},
	{"is said", `\b(is|are|was|were) said\b`, "who says it: an error, a reason, a report"},
	{"at once", `\bat once\b`, "immediately, or at the same time"},
	{"fronted Of", `(?:^|[.] )Of [^.,]{1,60}, `, "the subject first"},
	{"fronted Where", `(?:^|[.] )Where [^.,]{1,80}, `, "If …, or the subject first"},
}

// Texts for people have one word for one thing, and sentences that are read once: documentation, comments, and strings
// in code. What is in code marks, such as the name of a field, is what it is.
func TestWordsOfTheGlossary(t *testing.T) {
	patterns := make([]*regexp.Regexp, len(avoided))
	for i, a := range avoided {
		patterns[i] = regexp.MustCompile(a.pattern)
	}
	list, err := exec.Command("git", "-C", "../..", "ls-files").Output()
	if err != nil {
		t.Fatal(err)
	}
	read := 0
	for file := range strings.Lines(string(list)) {
		file = strings.TrimSpace(file)
		if strings.Contains(file, "testdata/") || file == "test/budget/words_test.go" {
			continue
		}
		texts := textsOf(t, file)
		read += len(texts)
		for _, text := range texts {
			text = strings.Join(strings.Fields(text), " ")
			for i, p := range patterns {
				if found := p.FindString(text); found != "" {
					t.Errorf("%s: %q: write %s", file, found, avoided[i].instead)
				}
			}
		}
	}
	if read < 10000 {
		t.Errorf("only %d texts were read", read)
	}
}

var (
	codeMarks = regexp.MustCompile("(?s)```.*?```|`[^`\n]*`")
	blocks    = regexp.MustCompile(`(?s)/\*.*?\*/`)
	stars     = regexp.MustCompile(`(?m)^\s*(\*|#|//) ?`)
	hashes    = regexp.MustCompile(`(?m)(^[ \t]*# .*\n?)+`)
)

// textsOf returns the texts of a file: paragraphs, comments, strings.
func textsOf(t *testing.T, file string) []string {
	t.Helper()
	path := filepath.Join("../..", file)
	read := func() string {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	switch filepath.Ext(file) {
	case ".md":
		return strings.Split(codeMarks.ReplaceAllString(read(), ""), "\n\n")
	case ".go":
		return goTexts(t, path)
	case ".c", ".h", ".cpp":
		return comments(blocks, read())
	case ".py", ".sh", ".yaml", ".yml", ".service":
		return comments(hashes, read())
	}
	return nil
}

func comments(p *regexp.Regexp, text string) []string {
	list := p.FindAllString(text, -1)
	for i := range list {
		list[i] = stars.ReplaceAllString(strings.Trim(list[i], "/*"), "")
	}
	return list
}

// goTexts returns the comments and the strings of a Go file.
func goTexts(t *testing.T, path string) (list []string) {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	for _, group := range f.Comments {
		list = append(list, group.Text())
	}
	ast.Inspect(f, func(n ast.Node) bool {
		if l, ok := n.(*ast.BasicLit); ok && l.Kind == token.STRING {
			if text, err := strconv.Unquote(l.Value); err == nil {
				list = append(list, text)
			}
		}
		return true
	})
	return list
}

// The patterns find what they are for, and not the words beside it.
func TestAvoidedWords(t *testing.T) {
	for text, want := range map[string]string{
		"the host kernel's": "host kernel", "the kernel": "", "made by him": "he, his, him", "the shim": "",
		"what is there, in all": "in all", "in all of them": "", "in all chips": "", "it starts anew": "anew",
		"Of two chips, one is full": "fronted Of", "a copy. Where it is not, nothing is": "fronted Where",
		"Where it is": "", "it hangs, which is said": "is said",
		"they are taken for others": "taken for", "takes it for a fork": "taken for", "taken forever": "",
		"the totals of before": "of before", "than the one before": "the one before",
		"the one before it":     "the one before",
		"a process apart reads": "apart", "four bytes apart": "", "tell them apart": "told from", "tell the user": "",
	} {
		var found []string
		for _, a := range avoided {
			if regexp.MustCompile(a.pattern).MatchString(text) {
				found = append(found, a.name)
			}
		}
		if got := strings.Join(found, " "); got != want {
			t.Errorf("%q: %q, not %q", text, got, want)
		}
	}
}
