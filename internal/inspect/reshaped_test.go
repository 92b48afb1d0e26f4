package inspect

import (
	"errors"
	"strconv"
	"testing"

	"tt-memtrace/internal/memory"
	"tt-memtrace/internal/metal"
	"tt-memtrace/internal/proc"
	"tt-memtrace/test/fixture"
)

// A mesh whose list of chips changes while it is read is read again: parts of two lists are neither of them.
func TestMeshWhoseChipsChangeWhileTheyAreRead(t *testing.T) {
	path := fixture.LibraryOf(t, fixture.LayoutB)
	p := fixture.User(t, fixture.LayoutB)
	mesh, err := strconv.ParseUint(fixture.Do(t, p, "mesh 0 1 2"), 0, 64)
	if err != nil {
		t.Fatal(err)
	}
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
	chips := NewChips(in, p.PID)
	read := func(chips *Chips, want int) {
		t.Helper()
		if d, err := chips.Device(mesh); err != nil || len(d.numbers) != want {
			t.Errorf("it has the chips %d: %v", d.numbers, err)
		}
	}
	before := chips.By(in.AsOfNow())
	read(before, 2)
	// What was read stays as it was: this is a list of which some was read before.
	fixture.Do(t, p, "close 0")
	fixture.Do(t, p, "destroy 0")
	fixture.Do(t, p, "mesh 0 1 2 3") // it has the same place
	if d, err := before.Device(mesh); !errors.Is(err, memory.ErrLater) {
		t.Errorf("while it changes it has the chips %d: %v", d.numbers, err)
	}
	read(chips, 3)
}
