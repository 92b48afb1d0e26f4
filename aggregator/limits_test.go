package aggregator

import (
	"testing"

	"tt-memtrace/aggregator/exact"
)

// What a process, and all, can have in the accounts is limited. A process that reached a limit
// is marked, its frees of what found no room raise no doubt, and a comparison that finds
// room for all that it has lifts the mark.
func TestLimits(t *testing.T) {
	a := New()
	a.limits = limits{process: 3, all: 5}
	suspected := 0
	a.OnSuspect = func(uint32) { suspected++ }
	at := uint64(0)
	alloc := func(pid uint32, id uint64) {
		at++
		a.Apply(&Event{Kind: Alloc, PID: pid, Time: at, Device: 1, Allocator: 2, Buffer: id, Size: 10})
	}
	free := func(pid uint32, id uint64) {
		at++
		a.Apply(&Event{Kind: Free, PID: pid, Time: at, Buffer: id})
	}
	check := func(when string, pid uint32, live, allocs uint64, limited bool) {
		t.Helper()
		p := a.processes[pid]
		if s := p.snapshot(false); s.buffers != live || s.counters.Allocs != allocs || p.has(exact.ReasonLimitReached) != limited {
			t.Errorf("%s process %d has %d of %d buffers, limited: %t, not %d of %d, %t",
				when, pid, s.buffers, s.counters.Allocs, p.has(exact.ReasonLimitReached), live, allocs, limited)
		}
	}
	for id := range uint64(4) {
		alloc(1, id)
	}
	check("with one too many,", 1, 3, 4, true)
	alloc(2, 0)
	alloc(2, 1)
	check("with all room taken,", 2, 2, 2, false)
	alloc(2, 2)
	check("with all room taken,", 2, 2, 3, true)
	free(1, 3)
	if suspected > 0 {
		t.Error("a free of what found no room raises doubt")
	}
	scan := func(ids ...uint64) {
		at++
		s := &Scan{Allocators: []uint64{2}}
		for _, id := range ids {
			s.Buffers = append(s.Buffers, LiveBuffer{Buffer: id, Device: 1, Allocator: 2, Size: 10})
		}
		a.Apply(&Event{Kind: Scanned, PID: 1, Time: at, Scan: s})
	}
	scan(0, 1, 2, 4)
	check("compared with too many,", 1, 3, 4, true)
	// A sample shows what was allocated since the last one, so what found no room is not counted at each sample.
	a.processes[1].info.Source = Sampled
	for range 2 {
		scan(0, 1, 2, 4, 5)
		check("sampled with too many,", 1, 3, 4, true)
	}
	a.processes[1].info.Source = Traced
	scan(0, 1)
	check("compared with what fits,", 1, 2, 4, false)
	alloc(2, 3)
	check("with room for one,", 2, 3, 4, true)
	a.Apply(&Event{Kind: ProcessExit, PID: 2, Time: at})
	if a.live != 2 {
		t.Errorf("%d buffers are counted when a process has ended, not 2", a.live)
	}
}
