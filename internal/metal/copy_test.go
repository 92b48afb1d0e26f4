package metal

import (
	"os"
	"path/filepath"
	"testing"

	"tt-memtrace/test/fixture"
)

// A copy shows the same as what it is a copy of, also when that is gone; a file that differs by a byte is none.
func TestCopy(t *testing.T) {
	path := fixture.LibraryOf(t, fixture.LayoutB)
	build := fixture.Read(t, path)
	l, err := OpenLibrary(path)
	if err != nil {
		t.Fatal(err)
	}
	layout, err := l.Layout()
	if err != nil {
		t.Fatal(err)
	}
	write := func(b []byte) string {
		name := filepath.Join(t.TempDir(), "libtt_metal.so")
		if err := os.WriteFile(name, b, 0o755); err != nil {
			t.Fatal(err)
		}
		return name
	}
	at := write(build)
	c, err := l.Copy(at, at)
	if err != nil || c == nil {
		t.Fatalf("%v, %v", c, err)
	}
	defer c.Close()
	build[len(build)/2] ^= 1
	for _, other := range [][]byte{build, build[:len(build)-1], append(build, 0)} {
		name := write(other)
		if c, err := l.Copy(name, name); c != nil || err != nil {
			t.Errorf("a file that differs is a copy: %v", err)
		}
	}
	if l.ID == c.ID || c.Path != at || c.BuildID != l.BuildID {
		t.Errorf("%+v %q %q", c.ID, c.Path, c.BuildID)
	}
	set, err := l.AllocatorSet()
	if err != nil {
		t.Fatal(err)
	}
	var code, want [8]byte
	address := c.symbols[TrackAllocate[0]].Value
	if !c.ReadCode(code[:], address) || !l.ReadCode(want[:], address) || code != want {
		t.Errorf("the copy's code is %x, not %x", code, want)
	}
	l.Close()
	if again, err := c.AllocatorSet(); err != nil || again != set {
		t.Errorf("%d, %v, want %d", again, err, set)
	}
	again, err := c.Layout()
	if err != nil || again.Span() != layout.Span() || again.Offset("address") != layout.Offset("address") {
		t.Errorf("%+v, %v", again, err)
	}
}
