package main

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// helpOf is what a command prints as its help, without the text above.
func helpOf(t *testing.T, cmd *cobra.Command) string {
	t.Helper()
	cmd.InitDefaultHelpFlag()
	return cmd.UsageString()
}

// Help calls each value by what it is, and has the flags that many commands share in groups behind a command's own.
func TestHelpGroupsFlags(t *testing.T) {
	root := newRoot()
	goType := regexp.MustCompile(`(?m)^ +(-\w, )?--[\w-]+ (string|strings|uint|uints|uint32|int|ints|float|duration)\b`)
	for _, cmd := range append(root.Commands(), root) {
		help := helpOf(t, cmd)
		if found := goType.FindString(help); found != "" || strings.Contains(help, "`") || strings.Contains(help, "(default [])") || strings.Contains(help, "(default 0s)") {
			t.Errorf("%s: %q in\n%s", cmd.Name(), found, help)
		}
		titles := []string{"Flags:"}
		for _, g := range groups {
			titles = append(titles, g+":")
		}
		last := -1
		for line := range strings.Lines(help) {
			if at := slices.Index(titles, strings.TrimSuffix(line, "\n")); at >= 0 {
				if at <= last {
					t.Errorf("%s: %s at the wrong place in\n%s", cmd.Name(), titles[at], help)
				}
				last = at
			}
		}
		cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
			if !f.Hidden && !strings.Contains(help, "--"+f.Name+" ") && !strings.Contains(help, "--"+f.Name+"[") {
				t.Errorf("%s: no --%s in\n%s", cmd.Name(), f.Name, help)
			}
			if group := annotation(f, groupAnnotation); group != "" && !slices.Contains(groups, group) {
				t.Errorf("%s: --%s is in no group of help, but %q", cmd.Name(), f.Name, group)
			}
		})
	}
	status, _, err := root.Find([]string{"status"})
	if err != nil {
		t.Fatal(err)
	}
	// What a command has another way to say, or has no use for, its help does not offer.
	for name, flag := range map[string]string{"record": "--record FILE", "export": "--speed FACTOR", "exporter": "--metrics ADDRESS"} {
		cmd, _, err := root.Find([]string{name})
		if err != nil || strings.Contains(helpOf(t, cmd), "      "+flag) {
			t.Errorf("%s offers %s, %v", name, flag, err)
		}
	}
	own, rest, _ := strings.Cut(helpOf(t, status), "\nTargets:\n")
	for _, flag := range []string{"--after TIME ", "--every TIME ", "--json "} {
		if !strings.Contains(own, flag) {
			t.Errorf("%s is not among the command's own:\n%s", flag, own)
		}
	}
	for _, flag := range []string{"-p, --pid PID ", "--lib FILE ", "--ring-buffer-bytes BYTES ", "--sample[=1s] ", "--forward SOCKET ", "--config FILE ", "(default 8388608)"} {
		if !strings.Contains(rest, flag) {
			t.Errorf("no %q in\n%s", flag, rest)
		}
	}
	if doctor, _, err := root.Find([]string{"doctor"}); err != nil || strings.Count(helpOf(t, doctor), "lags:\n") != 1 {
		t.Errorf("a command with few flags has them in groups: %v\n%s", err, helpOf(t, doctor))
	}
}

// The manual and completion show usages without the quotes that name values in help.
func TestManualHasNoQuotes(t *testing.T) {
	dir := t.TempDir()
	root := newRoot()
	root.SetArgs([]string{"man", dir})
	if err := root.Execute(); err != nil {
		t.Fatal(err)
	}
	pages, err := filepath.Glob(filepath.Join(dir, "*.1"))
	if err != nil || len(pages) < 15 {
		t.Fatalf("%d pages, %v", len(pages), err)
	}
	b, err := os.ReadFile(filepath.Join(dir, "tt-memtrace-status.1"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"trace only process PID", "size of the BPF ring buffer in BYTES", "--after", "also record to FILE"} {
		if !strings.Contains(strings.ReplaceAll(string(b), "\\-", "-"), want) {
			t.Errorf("no %q in\n%s", want, b)
		}
	}
	var out strings.Builder
	root = newRoot()
	root.SetOut(&out)
	root.SetArgs([]string{"__complete", "status", "--pi"})
	if err := root.Execute(); err != nil || !strings.HasPrefix(out.String(), "--pid\ttrace only process PID (repeatable)\n") {
		t.Errorf("%v, %s", err, &out)
	}
}
