package main

import (
	"bytes"
	"debug/elf"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"

	"tt-memtrace/internal/proc"
	"tt-memtrace/test/compat"
	"tt-memtrace/tracer"
)

// doctor runs the command and returns what it prints and its exit code.
func doctor(args ...string) (string, int) {
	var out bytes.Buffer
	cmd := newDoctor()
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	cmd.SetOut(&out)
	cmd.SetArgs(args)
	err := cmd.Execute()
	return out.String(), exitCode(err)
}

// library writes a release's library of the compatibility set.
func library(t *testing.T, version string) string {
	t.Helper()
	set, err := compat.Libraries()
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range compat.Releases() {
		if r.Version == version {
			path := filepath.Join(t.TempDir(), r.File)
			if err := set[r.BuildID].WriteFile(path); err != nil {
				t.Fatal(err)
			}
			return path
		}
	}
	t.Fatalf("there is no release %s", version)
	return ""
}

// The text and the JSON say the same of a library: points, offsets with the
// functions that show them, and what is not covered.
func TestDoctorOfALibrary(t *testing.T) {
	for _, version := range []string{"0.59.0rc58", "0.66.0", "0.81.1"} {
		path := library(t, version)
		text, code := doctor("--lib", path)
		if code != exitFine {
			t.Errorf("%s: exit code %d", version, code)
		}
		out, code := doctor("--json", "--lib", path)
		var d diagnosis
		if err := json.Unmarshal([]byte(out), &d); err != nil || code != exitFine {
			t.Fatalf("%s: exit code %d, %v", version, code, err)
		}
		if d.Schema != 1 || d.Host != nil || len(d.Libraries) != 1 {
			t.Fatalf("%s: %+v", version, d)
		}
		l := d.Libraries[0]
		if !l.Supported || l.Problem != nil || l.Path != path || l.BuildID == nil || l.Release != nil {
			t.Errorf("%s: %+v", version, l)
		}
		words := append(l.AlsoBy, "Buffers are seen by "+l.SeenBy)
		if l.SeenBy != "the graph tracker" || !slices.Equal(l.AlsoBy, []string{"the allocator"}) {
			t.Errorf("%s: seen by %s, or by %q", version, l.SeenBy, l.AlsoBy)
		}
		for _, p := range l.Points {
			words = append(words, p.Name, p.Symbol, p.Instruction)
			if !p.Emulated || p.Offset == 0 {
				t.Errorf("%s: %+v", version, p)
			}
		}
		for _, f := range l.Layout.Fields {
			words = append(words, f.Name, f.Proof)
			words = append(words, f.ShownBy...)
			if len(f.ShownBy) < 2 || len(f.Silent) > 0 {
				t.Errorf("%s: %+v", version, f)
			}
		}
		// The first release has no function that throws for failed allocations alone.
		unseen := slices.ContainsFunc(l.NotCovered, func(n notCovered) bool { return n.Without == "allocations that fail are not seen" })
		if unseen != (version == "0.59.0rc58") {
			t.Errorf("%s: not covered: %+v", version, l.NotCovered)
		}
		for _, n := range l.NotCovered {
			words = append(words, n.What, n.Without)
		}
		for _, g := range l.Getters {
			words = append(words, g.Symbol, g.Tells)
			words = append(words, g.At...)
		}
		for _, w := range words {
			if !strings.Contains(text, w) {
				t.Errorf("%s: the text does not say %q", version, w)
			}
		}
	}
}

// What a library is called, a process chose: it does not reach a terminal as it is.
func TestDoctorIsInert(t *testing.T) {
	plain := library(t, "0.81.1")
	path := filepath.Join(filepath.Dir(plain), "lib\x1b[2J\u009b2J\u202e\x7f.so")
	if err := os.Rename(plain, path); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"--lib", path}, {"--json", "--lib", path}} {
		out, code := doctor(args...)
		if code != exitFine {
			t.Errorf("%q: exit code %d", args, code)
		}
		for _, r := range out {
			if !unicode.IsPrint(r) && r != '\n' {
				t.Fatalf("%q: it has %q", args, r)
			}
		}
		var d diagnosis
		if err := json.Unmarshal([]byte(out), &d); args[0] == "--json" && (err != nil || d.Libraries[0].Path != path) {
			t.Errorf("%q came back in %s, %v", path, out, err)
		}
	}
}

// A library that cannot be traced is exit code 4, whatever is printed; what is
// known of it is printed all the same.
func TestDoctorOfAnUnsupportedLibrary(t *testing.T) {
	path := library(t, "0.81.1")
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	// All of the code is zeros: the points would be single-stepped.
	e, err := elf.NewFile(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	section := e.Section(".text")
	blank := bytes.Clone(data)
	clear(blank[section.Offset:][:section.Size])
	if err := os.WriteFile(path, blank, 0o644); err != nil {
		t.Fatal(err)
	}
	text, code := doctor("--lib", path)
	if code != exitUnsupported || !strings.Contains(text, "This library is not traced: ") || !strings.Contains(text, "lacks the required") {
		t.Errorf("exit code %d:\n%s", code, text)
	}
	out, code := doctor("--json", "--lib", path)
	var d diagnosis
	if err := json.Unmarshal([]byte(out), &d); err != nil || code != exitUnsupported {
		t.Fatalf("exit code %d, %v", code, err)
	}
	if l := d.Libraries[0]; l.Supported || l.Problem == nil || l.Layout != nil || len(l.NotCovered) == 0 {
		t.Errorf("%+v", l)
	}
	if err := os.WriteFile(path, data[:len(data)/2], 0o644); err != nil {
		t.Fatal(err)
	}
	if out, code := doctor("--json", "--lib", path); code != exitUnsupported || out != "" {
		t.Errorf("exit code %d:\n%s", code, out)
	}
}

// The verdict comes last; colours change nothing but the looks.
func TestDoctorEndsWithAVerdict(t *testing.T) {
	out, _ := doctor("--lib", library(t, "0.81.1"))
	if !strings.HasSuffix(out, "\n\n✓ this library can be traced\n") {
		t.Errorf("%s", out)
	}
	coloured := string(markColours([]byte(out)))
	if !strings.HasSuffix(coloured, "\x1b[32m✓ this library can be traced\x1b[m\n") || !strings.Contains(coloured, "    \x1b[32m✓\x1b[m  ") || !strings.Contains(coloured, "\x1b[1mLibrary ") {
		t.Errorf("%q", coloured)
	}
	if plain := regexp.MustCompile("\x1b\\[[0-9;]*m").ReplaceAllString(coloured, ""); plain != out {
		t.Errorf("%q is not %q", plain, out)
	}
	var b strings.Builder
	d := &diagnosis{Host: []hostCheck{{Name: "BTF"}}}
	d.printVerdict(&b, fmt.Errorf("rights are missing\nsee below"))
	d.printVerdict(&b, nil)
	rights := fmt.Errorf("%w: missing cap_bpf, cap_perfmon\nrun it as root", proc.ErrPermission)
	a := newAbilities("me", rights, false, 0)
	d.Abilities = &a
	d.printVerdict(&b, rights)
	if want := "\n✗ not ready: rights are missing\n\n✓ ready: a process that uses the runtime can be traced here; none does now; what is marked above with ✗ is missing\n" +
		"\n✗ not ready for probes: not permitted: missing cap_bpf, cap_perfmon; the lines above say what works without them\n"; b.String() != want {
		t.Errorf("%q", &b)
	}
}

// What may not be found out is neither there nor missing.
func TestDoctorMarksTheUnknown(t *testing.T) {
	var b strings.Builder
	d := &diagnosis{Abilities: &abilities{}, Host: []hostCheck{{Name: "BTF", OK: true, Detail: "yes"}, {Name: "ring", Unknown: true, Detail: "unknown"}}}
	d.print(&b, false)
	d.printVerdict(&b, nil)
	if got := b.String(); !strings.Contains(got, "  ✓  BTF ") || !strings.Contains(got, "  ·  ring ") || strings.Contains(got, "is missing") {
		t.Errorf("%s", got)
	}
}

// What works comes first, with probes and without, and then the one command for the rest.
func TestDoctorBeginsWithWhatWorks(t *testing.T) {
	rights := fmt.Errorf("%w: missing cap_bpf\nrun it as root", proc.ErrPermission)
	namespace := fmt.Errorf("%w: %w\nstart it otherwise", proc.ErrPermission, tracer.ErrPIDNamespace)
	user := fmt.Errorf("%w: %w\nrun it on the host", proc.ErrPermission, tracer.ErrUserNamespace)
	kernel := fmt.Errorf("%w: it lacks task storage", tracer.ErrKernel)
	for _, c := range []struct {
		probes   error
		readsAll bool
		scope    int
		want     []string // with, without, remedy: in parts
	}{
		{nil, true, 1, []string{"✓ with probes all processes of this host", "✓ without probes all processes of this host", ""}},
		{rights, false, 0, []string{"✗ with probes not permitted: missing cap_bpf", "✓ without probes the user's own processes", "for the rest: sudo setcap "}},
		{rights, false, 1, []string{"✗ with probes not permitted", "✓ without probes commands that it starts", "for the rest: sudo setcap "}},
		{rights, false, 2, []string{"✗ with probes", "✗ without probes no process may be read: kernel.yama.ptrace_scope is 2", "for the rest: sudo setcap "}},
		{namespace, true, 0, []string{"✗ with probes not permitted: this PID namespace", "✓ without probes all processes of this PID namespace", ""}},
		{user, true, 0, []string{"✗ with probes not permitted: this user namespace", "✓ without probes all processes of this user namespace", ""}},
		{user, false, 0, []string{"✗ with probes not permitted: this user namespace", "✓ without probes the user's own processes in this user namespace", ""}},
		{kernel, false, 1, []string{"✗ with probes this kernel", "✓ without probes commands", "for the rest: sudo tt-memtrace --sample"}},
		{kernel, true, 2, []string{"✗ with probes", "✓ without probes all", ""}},
		{nil, true, 3, []string{"✓ with probes", "✗ without probes no process may be read: kernel.yama.ptrace_scope is 3", ""}},
	} {
		var b strings.Builder
		a := newAbilities("me", c.probes, c.readsAll, c.scope)
		a.print(&b)
		lines := strings.Split(b.String(), "\n")
		if lines[0] != "What works now, for user me" || len(lines) < 5 {
			t.Fatalf("%q", lines)
		}
		for i, want := range c.want {
			if got := strings.Join(strings.Fields(lines[1+i]), " "); !strings.HasPrefix(got, want) || want == "" && got != "" {
				t.Errorf("%v, %t, %d: %q, want %q", c.probes, c.readsAll, c.scope, got, want)
			}
		}
	}
}
