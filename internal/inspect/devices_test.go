package inspect

import (
	"errors"
	"testing"

	"tt-memtrace/internal/metal"
	"tt-memtrace/internal/proc"
	"tt-memtrace/test/fixture"
)

// If the memory of found objects cannot be read, because the reader ended or hangs, the scan does not report that
// nothing is open.
func TestObjectsThatCannotBeRead(t *testing.T) {
	path := fixture.LibraryOf(t, fixture.LayoutB)
	p := fixture.User(t, fixture.LayoutB)
	fixture.Do(t, p, "device 0 1")
	lib, err := metal.OpenLibrary(path)
	if err != nil {
		t.Fatal(err)
	}
	defer lib.Close()
	mapped, err := proc.Loaded(p.PID, func(name string, _ proc.FileID) bool { return name == path })
	if err != nil || len(mapped) != 1 {
		t.Fatal(mapped, err)
	}
	in := New(lib, mapped[0])
	found, err := in.Mem.Find(openVptrs(in.Process)...)
	if err != nil {
		t.Fatal(err)
	}
	devices, allocators, _, err := findOpen(in.View(), found)
	if err != nil || len(devices) != 1 || len(allocators) != 1 {
		t.Fatal(devices, allocators, err)
	}
	if _, err := livePrograms(in.Process, []uint64{allocators[0], 1 << 40}); err != nil {
		t.Errorf("where nothing is there is no program: %v", err)
	}
	in.Interrupt()
	if devices, allocators, _, err := findOpen(in.View(), found); !errors.Is(err, errUnread) {
		t.Errorf("it has the devices %v and the allocators %v: %v", devices, allocators, err)
	}
	if list, err := livePrograms(in.Process, allocators); !errors.Is(err, errUnread) {
		t.Errorf("it has the programs %v: %v", list, err)
	}
}
