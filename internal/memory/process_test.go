package memory

import (
	"errors"
	"math"
	"os"
	"path/filepath"
	"testing"

	"tt-memtrace/internal/proc"
	"tt-memtrace/test/fixture"
)

func TestProcessMemory(t *testing.T) {
	p := fixture.User(t, fixture.LayoutA)
	list, err := proc.Loaded(p.PID, func(path string, _ proc.FileID) bool { return filepath.Base(path) == "libtt_metal.so" })
	if err != nil {
		t.Fatal(err)
	}
	m := Of(p.PID)
	b := make([]byte, 4)
	if err := m.ReadAt(b, list[0].Base); err != nil || string(b) != "\x7fELF" {
		t.Errorf("% x, %v", b, err)
	}
	if err := m.ReadAt(nil, 0); err != nil {
		t.Error(err)
	}
	for _, bad := range []uint64{0, 4096, 1 << 47, math.MaxUint64} {
		if err := m.ReadAt(b, bad); err == nil {
			t.Errorf("it read % x at %#x", b, bad)
		}
	}
	p.Kill()
	if err := m.ReadAt(b, list[0].Base); err == nil {
		t.Error("it read memory of a process that is gone")
	}
}

// The release of a package is found in the process's root, by a reader too.
func TestReleaseOfAMappedFile(t *testing.T) {
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "site-packages", "ttnn-1.2.3.dist-info"), 0o755); err != nil {
		t.Fatal(err)
	}
	self := uint32(os.Getpid())
	for name, p := range map[string]*Process{"a reader": Of(self), "directly": Direct(self)} {
		if got := p.Release(filepath.Join(dir, "site-packages", "ttnn", "lib.so")); got != "1.2.3" {
			t.Errorf("%s: release %q", name, got)
		}
		if got := p.Release(filepath.Join(dir, "lib.so")); got != "" {
			t.Errorf("%s: release %q of a file beside no package", name, got)
		}
	}
}

// The release of a library that was replaced after it was loaded, by an upgrade for example, is unknown.
func TestReleaseOfAReplacedFile(t *testing.T) {
	dir := t.TempDir()
	info := filepath.Join(dir, "site-packages", "ttnn-1.2.3.dist-info")
	if err := os.MkdirAll(info, 0o755); err != nil {
		t.Fatal(err)
	}
	library := filepath.Join(dir, "site-packages", "libtt_metal.so")
	write := func(path string) {
		if err := os.WriteFile(path, fixture.Read(t, fixture.LibraryOf(t, fixture.LayoutB)), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	write(library)
	p := fixture.Launch(t)
	fixture.Do(t, p, "open %s", library)
	check := func(want string) {
		t.Helper()
		for name, m := range map[string]*Process{"a reader": Of(p.PID), "directly": Direct(p.PID)} {
			if got := m.Release(library); got != want {
				t.Errorf("%s: release %q, want %q", name, got, want)
			}
		}
	}
	check("1.2.3")
	write(library + ".new")
	if err := errors.Join(os.Rename(info, filepath.Join(dir, "site-packages", "ttnn-1.3.0.dist-info")), os.Rename(library+".new", library)); err != nil {
		t.Fatal(err)
	}
	check("")
	if err := os.Remove(library); err != nil {
		t.Fatal(err)
	}
	check("")
}

func TestMain(m *testing.M) { os.Exit(fixture.Main(m)) }
