package inspect

import (
	"errors"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"

	"tt-memtrace/internal/memory"
	"tt-memtrace/internal/metal"
	"tt-memtrace/internal/proc"
	"tt-memtrace/test/fixture"
)

// If the memory of found objects cannot be read, because the reader ended or hangs, the scan does not report that
// nothing is open.
func TestObjectsThatCannotBeRead(t *testing.T) {
	p := fixture.User(t, fixture.LayoutB)
	fixture.Do(t, p, "device 0 1")
	in := New(mappedBy(t, p))
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

// mappedBy returns the library that a process of the fixture maps, and where.
func mappedBy(t *testing.T, p *fixture.Process) (*metal.Library, proc.Mapping) {
	t.Helper()
	path := fixture.LibraryOf(t, fixture.LayoutB)
	lib, err := metal.OpenLibrary(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { lib.Close() })
	mapped, err := proc.Loaded(p.PID, func(name string, _ proc.FileID) bool { return name == path })
	if err != nil || len(mapped) != 1 {
		t.Fatal(mapped, err)
	}
	return lib, mapped[0]
}

// failing is a process of which reads fail.
type failing struct {
	memory.Source
	err error
}

func (f failing) ReadAt([]byte, uint64) error { return f.err }

// A device counts as closed only if its memory says so, or is unmapped, and not if it cannot be read now.
func TestClosedDevices(t *testing.T) {
	p := fixture.User(t, fixture.LayoutB)
	lib, mapping := mappedBy(t, p)
	in := New(lib, mapping)
	device := func(command string) (address uint64) {
		t.Helper()
		address, err := strconv.ParseUint(fixture.Do(t, p, "%s", command), 0, 64)
		if err != nil {
			t.Fatal(err)
		}
		return address
	}
	static, paged := device("device 0 1"), device("paged_device 1 2")
	check := func(what string, address uint64, open, closed bool) {
		t.Helper()
		if in.IsOpen(address) != open || in.IsClosed(address) != closed {
			t.Errorf("%s: it is open: %v, closed: %v", what, in.IsOpen(address), in.IsClosed(address))
		}
	}
	check("open", static, true, false)
	check("open on a page of its own", paged, true, false)
	fixture.Do(t, p, "close 0")
	check("closed", static, false, true)
	fixture.Do(t, p, "unmap 1")
	check("unmapped", paged, false, true)
	for _, err := range []error{memory.ErrLater, memory.ErrHung, memory.ErrInterrupted, unix.ESRCH, unix.EPERM} {
		in := NewOver(memory.From(p.PID, failing{err: err}), lib, mapping)
		if in.IsClosed(static) {
			t.Errorf("its memory cannot be read now (%v), and it counts as closed", err)
		}
	}
}
