package tracer

import (
	"os"
	"testing"
	"time"

	"tt-memtrace/aggregator"
	"tt-memtrace/bpf"
	"tt-memtrace/test/fixture"
)

// Bursts of several threads, each as large as the ring holds, are counted to the
// last event, however slow the reader is.
func TestManyThreadsLoseNothing(t *testing.T) {
	p := fixture.User(t, fixture.LayoutB)
	tr := start(t, Options{PIDs: []uint32{p.PID}})
	fixture.Do(t, p, "device 0 5")
	for range 5 {
		fixture.Do(t, p, "storm 0 4 10000 0")
		tr.sync()
	}
	s := tr.process(p.PID)
	seen, lost := buffersSeen(tr.counters())
	if seen != 400000 || lost != 0 {
		t.Errorf("the kernel saw %d and lost %d", seen, lost)
	}
	if !s.Counters.Allocs.Is(200000) || !s.Counters.Frees.Is(200000) || s.Buffers.Some() || s.Counters.UnmatchedFrees+s.Counters.Replaced != 0 {
		t.Errorf("counters %+v, %d buffers left", s.Counters, s.Buffers)
	}
	for _, c := range s.Chips {
		for m, u := range c.Memory {
			if !u.Requested.Is(0) || !u.Reserved.Is(0) || sizeOf(u.PeakRequested) > 4*8*4096 || sizeOf(u.PeakReserved) > 4*8*1024*bankCount[m] {
				t.Errorf("%v holds %+v", aggregator.Memory(m), u)
			}
		}
	}
	tr.noticed()
}

// A ring that is too small loses events, and says how many.
func TestLossesAreCounted(t *testing.T) {
	t.Parallel()
	p := fixture.User(t, fixture.LayoutA)
	tr := start(t, Options{PIDs: []uint32{p.PID}, RingBytes: uint32(os.Getpagesize())})
	fixture.Do(t, p, "device 0 5")
	fixture.Do(t, p, "storm 0 4 20000 0")
	tr.sync()
	c := tr.counters()
	seen, lost := buffersSeen(c)
	if seen != 160000 || lost == 0 {
		t.Errorf("the kernel saw %d and lost %d", seen, lost)
	}
	tr.mu.Lock()
	delivered := tr.delivered[aggregator.Alloc] + tr.delivered[aggregator.Free]
	tr.mu.Unlock()
	if delivered != seen-lost {
		t.Errorf("%d were delivered of %d seen and %d lost", delivered, seen, lost)
	}
	var all uint64
	for _, n := range c.Lost {
		all += n
	}
	if got := tr.snapshot().Counters.Lost; got != all {
		t.Errorf("the accounts know of %d lost events, the kernel of %d", got, all)
	}
	// It goes on, and what comes after is exact again.
	before, _ := tr.lookup(p.PID)
	l := keep(t, tr, p)
	l.alloc(0, aggregator.L1, 5)
	l.alloc(0, aggregator.DRAM, 5)
	after := tr.process(p.PID)
	if after.Counters.Allocs.WithoutBound() != before.Counters.Allocs.WithoutBound()+2 {
		t.Errorf("counters %+v, before %+v", after.Counters, before.Counters)
	}
}

// Whoever waits for what has happened is served however fast more happens: the
// reader ends a round when it has read as much as the ring holds.
func TestRoundsEndUnderAnyLoad(t *testing.T) {
	t.Parallel()
	p := fixture.User(t, fixture.LayoutB)
	tr := start(t, Options{PIDs: []uint32{p.PID}, RingBytes: uint32(os.Getpagesize())})
	fixture.Do(t, p, "device 0 5")
	tr.sync()
	tr.mu.Lock()
	tr.accounts.OnChange = func(aggregator.Change) { // slower than they come
		for since := time.Now(); time.Since(since) < 50*time.Microsecond; {
		}
	}
	tr.mu.Unlock()
	storm := make(chan error, 1)
	go func() {
		_, err := p.Do("storm 0 1 2000000000 0") // until it is killed
		storm <- err
	}()
	for begun := false; !begun; {
		tr.sync()
		begun = tr.snapshot().Counters.Events > 1000
	}
	for range 3 {
		tr.sync()
	}
	p.Kill()
	if err := <-storm; err == nil {
		t.Error("the load has ended by itself")
	}
}

// If even the record of a process's end finds the ring full, its accounts end
// all the same, and those of what it was before an exec.
func TestLostEndsAreFound(t *testing.T) {
	t.Parallel()
	loud, ends, execs := fixture.User(t, fixture.LayoutB), fixture.User(t, fixture.LayoutB), fixture.User(t, fixture.LayoutB)
	tr := start(t, Options{PIDs: []uint32{loud.PID, ends.PID, execs.PID}, RingBytes: uint32(os.Getpagesize())})
	for _, p := range []*fixture.Process{loud, ends, execs} {
		fixture.Do(t, p, "device 0 5")
		fixture.Do(t, p, "alloc 100 0 0 0 4096 1024 64")
		tr.process(p.PID)
	}
	tr.mu.Lock() // the reader waits for it
	fixture.Do(t, loud, "storm 0 1 20000 0")
	fixture.Do(t, execs, "exec")
	ends.Kill()
	tr.losesOne(bpf.MemtraceTtKindTT_EXIT, bpf.MemtraceTtKindTT_EXEC)
	tr.mu.Unlock()
	for _, p := range []*fixture.Process{ends, execs} {
		tr.await("its accounts end", func() bool { _, ok := tr.lookup(p.PID); return !ok })
	}
	if s := tr.process(loud.PID); len(s.Chips) == 0 {
		t.Errorf("the one that lives: %+v", s)
	}
}

// If the record of an exec is lost, and the new program is found before that is known, it has
// nothing of the old one.
func TestLostExecOfWhatIsFoundAgain(t *testing.T) {
	library := fixture.LibraryOf(t, fixture.LayoutB)
	tr := start(t, Options{Follow: uint32(os.Getpid()), RingBytes: uint32(os.Getpagesize())})
	loud, execs := fixture.User(t, fixture.LayoutB), fixture.Launch(t)
	fixture.Do(t, execs, "open %s", library)
	for _, p := range []*fixture.Process{loud, execs} {
		tr.awaitProcess(p.PID)
		fixture.Do(t, p, "device 0 5")
		fixture.Do(t, p, "alloc 100 0 0 0 4096 1024 64")
		tr.process(p.PID)
	}
	release := tr.hold(func() { fixture.Do(t, loud, "alloc 100 0 0 0 4096 1024 8192") })
	defer release()
	fixture.Do(t, loud, "storm 0 1 20000 0")
	fixture.Do(t, execs, "exec")
	fixture.Do(t, execs, "open %s", library)
	for late := time.Now().Add(patience); !tr.announces(execs.PID); {
		if time.Now().After(late) {
			t.Fatal("it is not found")
		}
	}
	c, err := tr.tracer.Counters()
	release()
	if err != nil {
		t.Fatal(err)
	}
	if c.Lost[bpf.MemtraceTtKindTT_EXEC] == 0 {
		t.Fatalf("the ring was not full: %+v", c.Lost)
	}
	tr.await("it holds nothing", func() bool { s, ok := tr.lookup(execs.PID); return ok && s.Exact() && !s.Buffers.Some() })
}

// Events from before a reading are distinguished from later ones: not all probes were in then.
func TestEventsOfBeforeAReading(t *testing.T) {
	p := &traced{}
	p.reconciliation.now = &reading{first: true, since: 10, touched: map[uint64]struct{}{}}
	for _, c := range []struct {
		at    uint64
		early bool
	}{{12, false}, {9, true}, {12, true}} {
		p.last = c.at
		if p.touch(c.at); p.reconciliation.early != c.early {
			t.Errorf("after an event at %d there were early ones: %t", c.at, p.reconciliation.early)
		}
	}
}
