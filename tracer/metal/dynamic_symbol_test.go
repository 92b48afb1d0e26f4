package metal

import (
	"os"
	"path/filepath"
	"testing"

	"tt-memtrace/tracer/proc"
)

// A symbol is remembered as long as its file does not change.
func TestDynamicSymbolOfAFileThatChanges(t *testing.T) {
	const name = "environ"
	libraries, err := proc.Files(uint32(os.Getpid()), func(path string, _ proc.FileID) bool { return filepath.Base(path) == "libc.so.6" })
	if err != nil || len(libraries) == 0 {
		t.Skip("this program maps no C library of a known name: ", err)
	}
	b, err := os.ReadFile(libraries[0].Path)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "libc.so.6")
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	first, err := DynamicSymbol(path, path, name)
	if err != nil || first == 0 {
		t.Fatal(first, err)
	}
	again, err := DynamicSymbol(path, path, name)
	if err != nil || again != first {
		t.Errorf("again it is at %#x, not at %#x: %v", again, first, err)
	}
	if other, err := DynamicSymbol(path, path, "environs"); err == nil {
		t.Errorf("what it lacks is at %#x", other)
	}
	if err := os.WriteFile(path, make([]byte, len(b)), 0o600); err != nil {
		t.Fatal(err)
	}
	if at, err := DynamicSymbol(path, path, name); err == nil {
		t.Errorf("in another file it is at %#x", at)
	}
}
