package aggregator

import (
	"testing"

	"tt-memtrace/aggregator/exact"
)

// accountsOf returns a function that checks the live buffers and the frees of process 1, and whether it is exact.
func accountsOf(t *testing.T, a *Aggregator) func(what string, live, implicit, unmatched uint64, exact bool) {
	return func(what string, live, implicit, unmatched uint64, exact bool) {
		t.Helper()
		p := a.Snapshot().Processes[0]
		if c := p.counters; p.buffers != live || c.ImplicitFrees != implicit || c.UnmatchedFrees != unmatched || (len(p.Reasons) == 0) != exact {
			t.Errorf("%s: %d buffers, %+v, reasons %v", what, p.buffers, c, p.Reasons)
		}
	}
}

func loaded(a *Aggregator) *Aggregator {
	b := New()
	for _, e := range a.State() {
		b.Apply(&e)
	}
	return b
}

// An allocator frees all its buffers, and their destructors free them once more. Only a free too many is unmatched. The
// same is true of accounts that are loaded from a state in between.
func TestBuffersFreedWithTheirAllocatorAreFreedOnceMore(t *testing.T) {
	const device = 0x100
	a := run(New(), started(1, 1), opened(1, device, host(0)), seen(1, device+1, device),
		alloc(1, device, 1, Trace, 100), alloc(1, device, 2, Trace, 100), alloc(1, device, 3, DRAM, 100), gone(1, device+1))
	for _, a := range []*Aggregator{loaded(a), a} {
		check := accountsOf(t, a)
		check("all are freed", 0, 3, 0, true)
		run(a, freed(1, device, 1), freed(1, device, 2), freed(1, device, 3))
		check("they are freed once more", 0, 3, 0, true)
		run(a, freed(1, device, 2))
		check("one is freed too often", 0, 3, 1, false)
	}
}

// The allocator knows addresses, not buffers: the second free of a buffer releases the block of one that got it since.
func TestSecondFreeReleasesTheBlockOfAnotherBuffer(t *testing.T) {
	const device = 0x100
	at := func(e Event, address uint64) Event { e.Address = address; return e }
	a := run(New(), started(1, 1), opened(1, device, host(0)), seen(1, device+1, device),
		at(alloc(1, device, 1, DRAM, 100), 0), at(alloc(1, device, 2, DRAM, 100), 64), gone(1, device+1),
		at(alloc(1, device, 11, DRAM, 100), 0), at(alloc(1, device, 12, DRAM, 100), 64), at(alloc(1, device, 13, L1, 100), 64))
	for _, a := range []*Aggregator{loaded(a), a} {
		check := accountsOf(t, a)
		check("three took the place of two", 3, 2, 0, true)
		run(a, freed(1, device, 1))
		check("the first is freed once more", 2, 3, 0, true)
		run(a, at(alloc(1, device, 14, DRAM, 100), 0), freed(1, device, 11))
		check("so is the one in its place, where another one is by now", 2, 4, 0, true)
		run(a, freed(1, device, 12), freed(1, device, 2))
		check("nothing is in the place of the second", 1, 4, 0, true)
		run(a, alloc(1, device, 14, DRAM, 100))
		check("the object of one that was released is gone, another is there", 2, 4, 0, true)
		run(a, freed(1, device, 14), freed(1, device, 13))
		check("all are freed", 0, 4, 0, true)
	}
}

// After a loss another buffer may be at the address of a released one, so its free is not explained any more.
func TestLossMakesReleasedBuffersUnknown(t *testing.T) {
	const device = 0x100
	a := run(New(), started(1, 1), opened(1, device, host(0)), alloc(1, device, 1, DRAM, 100), gone(1, device+1), Event{Kind: Lost, Count: 1}, freed(1, device, 1))
	accountsOf(t, a)("after a loss", 0, 1, 1, false)
}

func TestReleasedBuffersAreBounded(t *testing.T) {
	var r released
	for id := range uint64(3 * maxReleased) {
		r.add(id, block{address: id % 1000})
		if len(r.blocks) > maxReleased || len(r.claims) > len(r.blocks) {
			t.Fatalf("%d buffers, %d blocks", len(r.blocks), len(r.claims))
		}
	}
	for id := range uint64(3 * maxReleased) {
		r.remove(id)
	}
	if len(r.blocks) != 0 || len(r.claims) != 0 {
		t.Errorf("%d buffers and %d blocks are left", len(r.blocks), len(r.claims))
	}
}

// If the end of an allocator is missed, the destructors of its buffers free what went with it: then freed and freed
// with the allocator are each too high or too low, also once a comparison has found that nothing is missing, in a state
// and when the process has ended.
func TestCountsAfterALossAreMarkedForGood(t *testing.T) {
	const device = 0x100
	before := []Event{started(1, 1), opened(1, device, host(0)), seen(1, device+1, device),
		alloc(1, device, 1, DRAM, 100), alloc(1, device, 2, DRAM, 100), freed(1, device, 2)}
	ends := []Event{closed(1, device), gone(1, device+1)}
	early := run(New(), before...)
	run(early, ends...)
	run(early, freed(1, device, 1))
	lossy := run(New(), before...)
	run(lossy, Event{Kind: Lost, Count: uint64(len(ends))}, freed(1, device, 1),
		Event{Kind: Scanned, PID: 1, Scan: &Scan{
			Closed: []uint64{device}, LiveRead: true, ProgramsRead: true, Began: 100,
		}})
	truth := early.Snapshot().Processes[0].Counters
	if !truth.Allocs.Is(2) || !truth.Frees.Is(1) || !truth.ImplicitFrees.Is(1) {
		t.Fatalf("without a loss: %+v", truth)
	}
	exited := loaded(lossy)
	run(exited, Event{Kind: ProcessExit, PID: 1, Time: 200})
	for what, p := range map[string]ProcessSnapshot{
		"compared": lossy.Snapshot().Processes[0], "in a state": loaded(lossy).Snapshot().Processes[0],
		"ended": exited.Snapshot().Ended[0],
	} {
		if len(p.Reasons) > 0 || p.buffers != 0 {
			t.Errorf("%s: %d buffers, reasons %v", what, p.buffers, p.Reasons)
		}
		c := p.Counters
		for name, q := range map[string][2]exact.Quantity{
			"allocations": {c.Allocs, truth.Allocs}, "frees": {c.Frees, truth.Frees},
			"implicit frees": {c.ImplicitFrees, truth.ImplicitFrees},
		} {
			if n, ok := q[0].Exact(); ok && !q[1].Is(n) {
				t.Errorf("%s: %s are %d, not %v, and not marked", what, name, n, q[1])
			}
		}
		if c.Allocs.Bound() != exact.AtLeast || c.Frees.Bound() != exact.Uncertain {
			t.Errorf("%s: %v allocations, %v frees", what, c.Allocs, c.Frees)
		}
	}
}
