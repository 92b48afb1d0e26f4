package tracer

import (
	"slices"
	"testing"

	"tt-memtrace/aggregator"
	"tt-memtrace/test/fixture"
)

// If the list of a mesh's chips was read while a reshape wrote it, the next comparison corrects it. Another order of
// the same chips, as after a reshape, changes nothing.
func TestChipsOfAMeshThatWereReadWrong(t *testing.T) {
	t.Parallel()
	p := fixture.Launch(t)
	tr := start(t, Options{PIDs: []uint32{p.PID}})
	fixture.Do(t, p, "open %s", fixture.LibraryOf(t, fixture.LayoutB))
	tr.awaitProcess(p.PID)
	fixture.Do(t, p, "mesh 0 1 2 3")
	fixture.Do(t, p, "alloc 100 0 0 0 8192 1024 64")
	on := func() (chips []uint32) {
		for _, c := range tr.process(p.PID).Chips {
			if c.Memory[aggregator.DRAM].Requested.Is(8192) {
				chips = append(chips, c.Chip.Number)
			}
		}
		slices.Sort(chips)
		return chips
	}
	compare := func() {
		before := tr.process(p.PID).Agreement.Comparisons
		tr.tracer.Reconcile(p.PID)
		tr.await("it is compared", func() bool { return tr.process(p.PID).Agreement.Comparisons > before })
	}
	tr.await("it is on three chips", func() bool { return len(on()) == 3 })
	fixture.Do(t, p, "list 0 3 2 1")
	compare()
	if s := tr.process(p.PID); s.Agreement.Repaired > 0 || !slices.Equal(on(), []uint32{1, 2, 3}) {
		t.Errorf("in another order: on the chips %d, compared with %+v", on(), s.Agreement)
	}
	fixture.Do(t, p, "list 0 3 4 2 1")
	compare()
	if s := tr.process(p.PID); !slices.Equal(on(), []uint32{1, 2, 3, 4}) || len(s.Reasons) > 0 {
		t.Errorf("with one more: on the chips %d, marked with %+v", on(), s.Reasons)
	}
}

// A process that renumbers chips after it opened them, by its environment, still has the same ones.
func TestChipsThatAreRenumberedLater(t *testing.T) {
	t.Parallel()
	p := fixture.User(t, fixture.LayoutB)
	tr := start(t, Options{PIDs: []uint32{p.PID}})
	fixture.Do(t, p, "mesh 0 1 2")
	fixture.Do(t, p, "alloc 100 0 0 0 8192 1024 64")
	tr.process(p.PID)
	fixture.Do(t, p, "setenv TT_VISIBLE_DEVICES 2,3")
	before := tr.process(p.PID).Agreement.Comparisons
	tr.tracer.Reconcile(p.PID)
	tr.await("it is compared", func() bool { return tr.process(p.PID).Agreement.Comparisons > before })
	s := tr.process(p.PID)
	if s.Agreement.Repaired > 0 || !s.Counters.ImplicitFrees.Is(0) || !s.Buffers.Is(1) {
		t.Errorf("%v buffers, %v went with a device, %+v", s.Buffers, s.Counters.ImplicitFrees, s.Agreement)
	}
}
