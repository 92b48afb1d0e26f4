package aggregator

import "testing"

const allocatorID = 0xa110c

// holding is the accounts of process 1 with buffers 1 and 2 of 100 bytes in DRAM on chip 0.
func holding() *Aggregator {
	return run(New(), opened(1, 1, host(0)), on(alloc(1, 1, 1, DRAM, 100)), on(alloc(1, 1, 2, DRAM, 100)))
}

func on(e Event) Event { e.Allocator = allocatorID; return e }

func bufferHeld(id, size uint64) Held {
	return Held{Buffer: id, Device: 1, Allocator: allocatorID, Address: 0x1000 * id, Size: size}
}

func read(b Books) Event {
	b.Allocators = append(b.Allocators, allocatorID)
	return Event{Kind: BooksRead, PID: 1, Time: 50, Books: &b}
}

func TestComparingWithTheProcessesBooks(t *testing.T) {
	touched := func(ids ...uint64) map[uint64]struct{} {
		m := map[uint64]struct{}{}
		for _, id := range ids {
			m[id] = struct{}{}
		}
		return m
	}
	for _, c := range []struct {
		name            string
		books           Books
		requested       uint64
		found, repaired uint64
	}{
		{"equal", Books{Buffers: []Held{bufferHeld(1, 100), bufferHeld(2, 100)}}, 200, 0, 0},
		{"one missing", Books{Buffers: []Held{bufferHeld(1, 100), bufferHeld(2, 100), bufferHeld(3, 50)}}, 250, 0, 1},
		{"one from before", Books{First: true, Buffers: []Held{bufferHeld(1, 100), bufferHeld(2, 100), bufferHeld(3, 50)}}, 250, 1, 0},
		{"one stale", Books{Buffers: []Held{bufferHeld(2, 100)}}, 100, 0, 1},
		{"none any more", Books{}, 0, 0, 2},
		{"one of another size", Books{Buffers: []Held{bufferHeld(1, 300), bufferHeld(2, 100)}}, 400, 0, 1},
		{"missing, but events know better", Books{Buffers: []Held{bufferHeld(1, 100), bufferHeld(2, 100), bufferHeld(3, 50)}, Touched: touched(3)}, 200, 0, 0},
		{"stale, but events know better", Books{Touched: touched(1, 2)}, 200, 0, 0},
		{"all of it of an allocator that went meanwhile", Books{Buffers: []Held{bufferHeld(3, 50)}, Touched: touched(allocatorID)}, 200, 0, 0},
		{"nonsense", Books{Buffers: []Held{bufferHeld(1, 100), bufferHeld(2, 100), bufferHeld(3, 1<<60), {Buffer: 4, Memory: 77}}}, 200, 0, 0},
	} {
		a := run(holding(), read(c.books))
		p := a.Snapshot().Processes[0]
		if got := p.Memory[DRAM].Requested; got != c.requested {
			t.Errorf("%s: %d bytes, want %d", c.name, got, c.requested)
		}
		if g := p.Agreement; g.Found != c.found || g.Repaired != c.repaired || g.Comparisons != 1 || g.At != 50 {
			t.Errorf("%s: %+v", c.name, g)
		}
		if p.Counters.Allocs != 2 || p.Counters.Frees != 0 {
			t.Errorf("%s: counted as seen: %+v", c.name, p.Counters)
		}
	}
}

func TestBuffersOfAnAllocatorThatWasNotReadStay(t *testing.T) {
	a := run(holding(), Event{Kind: BooksRead, PID: 1, Books: &Books{Allocators: []uint64{7}}})
	if got := a.Snapshot().Processes[0].Buffers; got != 2 {
		t.Errorf("%d buffers", got)
	}
}

func TestProgramsThatAreNotThereAnyMoreGo(t *testing.T) {
	a := run(holding(), Event{Kind: KernelAdded, PID: 1, Program: 8}, Event{Kind: KernelAdded, PID: 1, Program: 9},
		read(Books{Buffers: []Held{bufferHeld(1, 100), bufferHeld(2, 100)}, ProgramsRead: true, Programs: []uint64{9}}))
	if list := a.Programs(1); len(list) != 1 || list[0].ID != 9 {
		t.Errorf("%+v", list)
	}
}

// Doubt comes with what does not fit, and goes with the next comparison.
func TestDoubt(t *testing.T) {
	for name, e := range map[string]Event{
		"an unmatched free": {Kind: Free, PID: 1, Buffer: 77},
		"a replaced buffer": on(alloc(1, 1, 1, DRAM, 10)),
		"a loss":            {Kind: Lost, Count: 1},
	} {
		a := holding()
		var told []uint32
		a.OnDoubt = func(pid uint32) { told = append(told, pid) }
		if run(a, e); a.Snapshot().Exact() || e.Kind != Lost && len(told) != 1 {
			t.Errorf("%s: exact, told %v", name, told)
		}
		if run(a, read(Books{Buffers: []Held{bufferHeld(1, 100), bufferHeld(2, 100)}})); !a.Snapshot().Exact() {
			t.Errorf("%s: not exact after the comparison", name)
		}
	}
}

// Where something that lives could not be read, the accounts stay in doubt.
func TestAPartialComparisonLeavesTheDoubt(t *testing.T) {
	a := run(holding(), opened(1, 2, host(1)), Event{Kind: Lost, Count: 1})
	a.processes[1].late = true
	for _, partial := range []bool{true, false} {
		a = run(a, read(Books{First: true, Partial: partial, Buffers: []Held{bufferHeld(1, 100), bufferHeld(2, 100)}}))
		s := a.Snapshot()
		if p := s.Processes[0]; p.Agreement.Doubted != partial || p.Late != partial || s.Exact() == partial {
			t.Errorf("partial %v: doubted %v, late %v, exact %v", partial, p.Agreement.Doubted, p.Late, s.Exact())
		}
	}
}
