package aggregator

import (
	"testing"

	"tt-memtrace/aggregator/exact"
)

const allocatorID = 0xa110c

// twoBuffers is the accounts of process 1 with buffers 1 and 2 of 100 bytes in DRAM on chip 0.
func twoBuffers() *Aggregator {
	return run(New(), opened(1, 1, host(0)), on(alloc(1, 1, 1, DRAM, 100)), on(alloc(1, 1, 2, DRAM, 100)))
}

func on(e Event) Event { e.Allocator = allocatorID; return e }

func liveBuffer(id, size uint64) LiveBuffer {
	return LiveBuffer{Buffer: id, Device: 1, Allocator: allocatorID, Address: 0x1000 * id, Size: size}
}

func scanned(b AllocatorScan) Event {
	b.Allocators = append(b.Allocators, allocatorID)
	return Event{Kind: AllocatorsScanned, PID: 1, Time: 50, Scan: &b}
}

func TestComparingWithAScan(t *testing.T) {
	touched := func(ids ...uint64) map[uint64]struct{} {
		m := map[uint64]struct{}{}
		for _, id := range ids {
			m[id] = struct{}{}
		}
		return m
	}
	for _, c := range []struct {
		name            string
		scan            AllocatorScan
		requested       uint64
		found, repaired uint64
	}{
		{"equal", AllocatorScan{Buffers: []LiveBuffer{liveBuffer(1, 100), liveBuffer(2, 100)}}, 200, 0, 0},
		{"one missing", AllocatorScan{Buffers: []LiveBuffer{liveBuffer(1, 100), liveBuffer(2, 100), liveBuffer(3, 50)}}, 250, 0, 1},
		{"one from before", AllocatorScan{First: true, Buffers: []LiveBuffer{liveBuffer(1, 100), liveBuffer(2, 100), liveBuffer(3, 50)}}, 250, 1, 0},
		{"one stale", AllocatorScan{Buffers: []LiveBuffer{liveBuffer(2, 100)}}, 100, 0, 1},
		{"none any more", AllocatorScan{}, 0, 0, 2},
		{"one of another size", AllocatorScan{Buffers: []LiveBuffer{liveBuffer(1, 300), liveBuffer(2, 100)}}, 400, 0, 1},
		{"missing, but events supersede it", AllocatorScan{Buffers: []LiveBuffer{liveBuffer(1, 100), liveBuffer(2, 100), liveBuffer(3, 50)}, Touched: touched(3)}, 200, 0, 0},
		{"stale, but events supersede it", AllocatorScan{Touched: touched(1, 2)}, 200, 0, 0},
		{"all of it of an allocator that went meanwhile", AllocatorScan{Buffers: []LiveBuffer{liveBuffer(3, 50)}, Touched: touched(allocatorID)}, 200, 0, 0},
		{"nonsense", AllocatorScan{Buffers: []LiveBuffer{liveBuffer(1, 100), liveBuffer(2, 100), liveBuffer(3, 1<<60), {Buffer: 4, Memory: 77}}}, 200, 0, 0},
	} {
		a := run(twoBuffers(), scanned(c.scan))
		p := a.Snapshot().Processes[0]
		if got := p.Memory[DRAM].Requested; !got.Is(c.requested) {
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

func TestAScanKeepsBuffersOfUnreadAllocators(t *testing.T) {
	a := run(twoBuffers(), Event{Kind: AllocatorsScanned, PID: 1, Scan: &AllocatorScan{Allocators: []uint64{7}}})
	if got := a.Snapshot().Processes[0].Buffers; got != 2 {
		t.Errorf("%d buffers", got)
	}
}

func TestAScanRemovesDestroyedPrograms(t *testing.T) {
	a := run(twoBuffers(), Event{Kind: KernelAdded, PID: 1, Program: 8}, Event{Kind: KernelAdded, PID: 1, Program: 9},
		scanned(AllocatorScan{Buffers: []LiveBuffer{liveBuffer(1, 100), liveBuffer(2, 100)}, ProgramsRead: true, Programs: []uint64{9}}))
	if list := a.Programs(1); len(list) != 1 || list[0].ID != 9 {
		t.Errorf("%+v", list)
	}
}

// An event that does not fit makes the accounts suspect, until the next comparison.
func TestSuspect(t *testing.T) {
	for name, e := range map[string]Event{
		"an unmatched free": {Kind: Free, PID: 1, Buffer: 77},
		"a replaced buffer": on(alloc(1, 1, 1, DRAM, 10)),
		"a loss":            {Kind: Lost, Count: 1},
	} {
		a := twoBuffers()
		var told []uint32
		a.OnSuspect = func(pid uint32) { told = append(told, pid) }
		if run(a, e); a.Snapshot().Exact() || e.Kind != Lost && len(told) != 1 {
			t.Errorf("%s: exact, told %v", name, told)
		}
		if run(a, scanned(AllocatorScan{Buffers: []LiveBuffer{liveBuffer(1, 100), liveBuffer(2, 100)}})); !a.Snapshot().Exact() {
			t.Errorf("%s: not exact after the comparison", name)
		}
	}
}

// Where something that lives could not be read, the accounts stay suspect.
func TestAfterAPartialComparisonTheProcessStaysSuspect(t *testing.T) {
	a := run(twoBuffers(), opened(1, 2, host(1)), Event{Kind: Lost, Count: 1})
	a.processes[1].raise(exact.ReasonLate, 1)
	for _, partial := range []bool{true, false} {
		a = run(a, scanned(AllocatorScan{First: true, Partial: partial, Buffers: []LiveBuffer{liveBuffer(1, 100), liveBuffer(2, 100)}}))
		s := a.Snapshot()
		if p := s.Processes[0]; p.Agreement.Suspect != partial || p.Late != partial || s.Exact() == partial {
			t.Errorf("partial %v: suspect %v, late %v, exact %v", partial, p.Agreement.Suspect, p.Late, s.Exact())
		}
	}
}
