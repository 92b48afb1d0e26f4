package inspect

import (
	"slices"
	"strings"
	"testing"

	"tt-memtrace/internal/memory"
	"tt-memtrace/internal/metal"
	"tt-memtrace/internal/proc"
	"tt-memtrace/test/fixture"
)

// The driver library is found by any of its names, also with a hash that packaging
// put into it, and so is its function, in whichever of them it is.
func TestDriverLibraryOfAnyName(t *testing.T) {
	p := fixture.Launch(t)
	for _, name := range []string{"libdevice-967d0d2f.so", "libtt-umd.so.0.9.14"} {
		other := "_ZNK2tt8tt_metal6Buffer4sizeEv"
		if name == "libdevice-967d0d2f.so" {
			other = metal.TrackAllocate[0]
		}
		fixture.Do(t, p, "open %s", fixture.LibraryOf(t, fixture.Build{Name: name, Hide: []string{other}}))
	}
	for _, symbol := range []string{"_ZNK2tt8tt_metal6Buffer4sizeEv", metal.TrackAllocate[0]} {
		f, err := driverFunction(memory.FilesOf(p.PID), symbol)
		if err != nil || f == 0 {
			t.Errorf("%s at %#x: %v", symbol, f, err)
		}
		files, err := proc.Loaded(p.PID, func(path string, _ proc.FileID) bool { return path != "" })
		if err != nil {
			t.Fatal(err)
		}
		code := slices.IndexFunc(files, func(m proc.Mapping) bool { return m.Region.Start <= f && f < m.Region.End })
		if code < 0 {
			t.Fatalf("%s at %#x is in no code", symbol, f)
		}
		fixture.Do(t, p, "read %s", files[code].Path) // that is not where its functions are
		if again, err := driverFunction(memory.FilesOf(p.PID), symbol); again != f {
			t.Errorf("%s at %#x, and at %#x: %v", symbol, f, again, err)
		}
	}
	if _, err := driverFunction(memory.FilesOf(p.PID), "none"); err == nil || !strings.Contains(err.Error(), "libtt-umd") {
		t.Errorf("a function that is nowhere: %v", err)
	}
	if _, err := driverFunction(memory.FilesOf(fixture.Launch(t).PID), metal.TrackAllocate[0]); err == nil || !strings.Contains(err.Error(), "none is mapped") {
		t.Errorf("a process without the library: %v", err)
	}
}
