package aggregator

import "testing"

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
