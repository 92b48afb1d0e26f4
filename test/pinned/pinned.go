// Package pinned compares what a format has now with files: its public names with those that it has had
// (docs/versions.md is the policy), and tables of documents with what they are generated from.
package pinned

import (
	"os"
	"slices"
	"strings"
	"testing"
)

// Names fails if names, one a line, are not those in a file. removal says what the removal of one demands, addition what a new one
// does. With update it adds new names to the file. It never removes one: that is a change by hand, once the rule has been followed.
func Names(t *testing.T, update bool, file string, names []string, removal, addition string) {
	t.Helper()
	text := strings.Join(names, "\n") + "\n"
	b, err := os.ReadFile(file)
	if err != nil && !update {
		t.Fatal(err)
	}
	removed, added := compare(names, strings.Split(strings.TrimSpace(string(b)), "\n"))
	switch {
	case string(b) == text:
	case update && (err != nil || len(removed) == 0):
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	case len(removed) == 0 && len(added) == 0:
		t.Errorf("the order differs from %s: the flag -update writes it", file)
	}
	for _, name := range removed {
		if err == nil {
			t.Errorf("%q is gone: restore it. %s (docs/versions.md). Then remove its line from %s", name, removal, file)
		}
	}
	for _, name := range added {
		if !update {
			t.Errorf("%q is new: the flag -update adds it to %s. %s (docs/versions.md)", name, file, addition)
		}
	}
}

// compare returns what is in want alone, and what is in got alone.
func compare(got, want []string) (removed, added []string) {
	without := func(list, other []string) []string {
		return slices.DeleteFunc(slices.Clone(list), func(s string) bool { return slices.Contains(other, s) })
	}
	return without(want, got), without(got, want)
}

// Table fails if the table in a document, below a head of two lines and above an empty line, does not have these rows,
// one a line. With update it writes them.
func Table(t *testing.T, update bool, file, head, rows, generate string) {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, found := strings.Cut(string(b), head)
	got, after, end := strings.Cut(rest, "\n\n")
	switch {
	case !found || !end:
		t.Fatalf("%s has no table with the head %q", file, head)
	case got+"\n" == rows:
	case !update:
		t.Fatalf("the table of %s is out of date: %s", file, generate)
	default:
		if err := os.WriteFile(file, []byte(before+head+rows+"\n"+after), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}
