package metal

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"tt-memtrace/internal/proc"
	"tt-memtrace/test/fixture"
)

// A symbol is remembered as long as its file does not change.
func TestDynamicSymbolOfAFileThatChanges(t *testing.T) {
	const name = "fixture_run"
	b := fixture.Read(t, fixture.LibraryOf(t, fixture.LayoutB))
	path := filepath.Join(t.TempDir(), "lib.so")
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	loaded := proc.Mapping{Path: path}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	first, err := DynamicSymbol(f, loaded, name)
	if err != nil || first == 0 {
		t.Fatal(first, err)
	}
	again, err := DynamicSymbol(f, loaded, name)
	if err != nil || again != first {
		t.Errorf("again it is at %#x, not at %#x: %v", again, first, err)
	}
	if other, err := DynamicSymbol(f, loaded, "fixture_runs"); err == nil {
		t.Errorf("what it lacks is at %#x", other)
	}
	changed := func() (st unix.Stat_t) {
		if err := unix.Stat(path, &st); err != nil {
			t.Fatal(err)
		}
		return st
	}
	// Older kernels note changes by their ticks.
	for before := changed().Ctim; changed().Ctim == before; {
		if err := os.WriteFile(path, make([]byte, len(b)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if at, err := DynamicSymbol(f, loaded, name); err == nil {
		t.Errorf("in another file it is at %#x", at)
	}
}
