package tracer

import (
	"os"
	"slices"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"tt-memtrace/aggregator"
	"tt-memtrace/bpf"
	"tt-memtrace/test/fixture"
)

// fork starts a child of a driver that takes commands through it, and outlives it.
func fork(t *testing.T, p *fixture.Process) uint32 {
	t.Helper()
	child := uint32(fixture.Number(t, p, "fork"))
	t.Cleanup(func() { syscall.Kill(int(child), syscall.SIGKILL) })
	return child
}

// A forked worker that opened a device itself holds what is on it, also for a tracer that
// comes later, whether or not its parent has opened one.
func TestForkedWorkersAreReadLate(t *testing.T) {
	t.Parallel()
	for _, parentsToo := range []bool{false, true} {
		for _, all := range []bool{false, true} {
			p := fixture.User(t, fixture.LayoutB)
			if parentsToo {
				fixture.Do(t, p, "device 0 1")
				fixture.Do(t, p, "alloc 100 0 0 0 8192 1024 64")
			}
			child := fork(t, p)
			fixture.Do(t, p, "child 0 device 1 2")
			fixture.Do(t, p, "child 0 alloc 100 1 0 0 4096 1024 64")
			o := Options{PIDs: []uint32{child}}
			if all {
				o.PIDs = nil
			}
			tr := start(t, o)
			s := tr.process(child)
			if s.Buffers != 1 || s.Memory[aggregator.DRAM].Requested != 4096 || s.Late || len(s.Chips) != 1 || s.Chips[0].Chip.Number != 2 {
				t.Errorf("parent with a device %v, all processes %v: %d buffers, %d bytes, late %v, chips %+v",
					parentsToo, all, s.Buffers, s.Memory[aggregator.DRAM].Requested, s.Late, s.Chips)
			}
			if all && parentsToo {
				if s := tr.process(p.PID); s.Buffers != 1 || s.Memory[aggregator.DRAM].Requested != 8192 {
					t.Errorf("the parent: %+v", s)
				}
			}
			tr.stop()
			p.Kill()
		}
	}
}

// What a forked child has copies of is its own when its parent has ended: it is found then,
// without doing anything.
func TestDaemonsAreFoundWhenTheirParentEnds(t *testing.T) {
	p := fixture.User(t, fixture.LayoutB)
	tr := start(t, Options{})
	fixture.Do(t, p, "device 0 1")
	fixture.Do(t, p, "alloc 100 0 0 0 4096 1024 64")
	child := fork(t, p)
	fixture.Do(t, p, "child 0 outlive")
	if _, ok := tr.lookup(child); ok {
		t.Fatal("the child is known before it did anything")
	}
	p.Kill()
	tr.await("the child's copies are its own", func() bool {
		s, ok := tr.lookup(child)
		return ok && s.Buffers == 1 && s.Memory[aggregator.DRAM].Requested == 4096 && !s.Late && len(s.Chips) == 1
	})
	tr.stop()
}

// A fork whose first records are lost, and that does nothing more, is found after the loss.
func TestForksAreFoundAfterALoss(t *testing.T) {
	p := fixture.User(t, fixture.LayoutB)
	tr := start(t, Options{RingBytes: uint32(os.Getpagesize())})
	fixture.Do(t, p, "device 0 1")
	fixture.Do(t, p, "alloc 100 0 0 0 8192 1024 64")
	tr.process(p.PID)
	child := fork(t, p)
	tr.mu.Lock() // the reader waits for it
	fixture.Do(t, p, "storm 0 1 20000 0")
	fixture.Do(t, p, "child 0 device 4 2")
	fixture.Do(t, p, "child 0 alloc 100 4 0 0 4096 1024 64")
	tr.mu.Unlock()
	tr.sync()
	if s := tr.process(child); s.Buffers != 1 || s.Memory[aggregator.DRAM].Requested != 4096 || len(s.Chips) != 1 || s.Chips[0].Chip.Number != 2 {
		t.Errorf("%d buffers, %d bytes, chips %+v", s.Buffers, s.Memory[aggregator.DRAM].Requested, s.Chips)
	}
}

// compared has a process's accounts compared with its memory once more.
func (tr *trace) compared(pid uint32) aggregator.ProcessSnapshot {
	tr.t.Helper()
	before, _ := tr.lookup(pid)
	tr.tracer.Reconcile(pid)
	tr.await("it is compared", func() bool {
		s, _ := tr.lookup(pid)
		return s.Agreement.Comparisons > before.Agreement.Comparisons
	})
	return tr.process(pid)
}

// reconciles has processes compared whose accounts contradict an event, as a session does.
func (tr *trace) reconciles() {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	tr.accounts.OnSuspect = tr.tracer.Reconcile
}

// lose repeats what a driver does, beside more than the ring holds, until a record of a kind is
// lost of it.
func (tr *trace) lose(kind bpf.MemtraceTtKind, storm, do func()) {
	tr.t.Helper()
	tr.mu.Lock() // the reader waits for it
	defer tr.sync()
	defer tr.mu.Unlock()
	for before := tr.counters().Lost[kind]; tr.counters().Lost[kind] == before; {
		storm()
		do()
	}
}

// A loss can be of a process that nothing is known of when it is counted: when that shows, it is marked, and read.
func TestLossOfAProcessThatIsNotKnownYet(t *testing.T) {
	tr := start(t, Options{Follow: uint32(os.Getpid()), RingBytes: uint32(os.Getpagesize())})
	p := fixture.User(t, fixture.LayoutB)
	tr.awaitProcess(p.PID)
	fixture.Do(t, p, "device 0 1")
	counted := func() (n uint64) {
		tr.mu.Lock()
		defer tr.mu.Unlock()
		return tr.delivered[aggregator.Lost]
	}
	child, bytes := uint32(0), uint64(0)
	lose := func(do func()) {
		before := counted()
		release := tr.hold(func() { fixture.Do(t, p, "alloc 100 0 0 0 8192 1024 64") })
		fixture.Do(t, p, "storm 0 1 2000 0")
		do()
		release()
		tr.await("the loss is counted", func() bool { return counted() > before })
	}
	lose(func() {}) // forks are looked for now, and not again within a second
	child = fork(t, p)
	lose(func() {
		fixture.Do(t, p, "child 0 device 4 2")
		fixture.Do(t, p, "child 0 alloc 100 4 0 0 4096 1024 64")
		bytes += 4096
	})
	fixture.Do(t, p, "child 0 alloc 100 4 0 0 1024 1024 128")
	bytes += 1024
	right := func(s aggregator.ProcessSnapshot) bool {
		return s.Exact() && s.Buffers == 2 && s.Memory[aggregator.DRAM].Requested == bytes
	}
	if s := tr.process(child); s.Exact() && !right(s) {
		t.Errorf("%d buffers, %d bytes, and nothing is marked", s.Buffers, s.Memory[aggregator.DRAM].Requested)
	}
	tr.await("it is right", func() bool { s, ok := tr.lookup(child); return ok && right(s) })
}

// What a child has copies of is not its own, also when its parent has closed it since, or has
// something else there.
func TestCopiesOfWhatTheParentClosed(t *testing.T) {
	t.Parallel()
	for _, reopened := range []bool{false, true} {
		tr := start(t, Options{Follow: uint32(os.Getpid())})
		p := fixture.User(t, fixture.LayoutB)
		tr.awaitProcess(p.PID)
		fixture.Do(t, p, "device 0 1")
		fixture.Do(t, p, "alloc 100 0 0 0 8192 1024 64")
		child := fork(t, p)
		fixture.Do(t, p, "child 0 device 4 2")
		fixture.Do(t, p, "child 0 alloc 100 4 0 0 4096 1024 64")
		fixture.Do(t, p, "close 0")
		fixture.Do(t, p, "destroy 0")
		if reopened {
			fixture.Do(t, p, "device 0 3")
		}
		if s := tr.compared(child); !s.Exact() || s.Buffers != 1 || s.Memory[aggregator.DRAM].Requested != 4096 || len(s.Chips) != 1 {
			t.Errorf("opened again %v: %d buffers, %d bytes, %d chips, reasons %+v", reopened, s.Buffers, s.Memory[aggregator.DRAM].Requested, len(s.Chips), s.Reasons)
		}
		tr.stop()
		p.Kill()
	}
}

// A device that a child opened where its memory has a copy of its parent's is its own, and
// an allocator of its own that ended has nothing, also where the records of that are lost.
func TestOwnDevicesOfAChildAreKnownAfterALoss(t *testing.T) {
	p := fixture.User(t, fixture.LayoutB)
	tr := start(t, Options{RingBytes: uint32(os.Getpagesize())})
	tr.reconciles()
	tr.awaitProcess(p.PID)
	fixture.Do(t, p, "device 0 1")
	fixture.Do(t, p, "alloc 100 0 0 0 8192 1024 64")
	fixture.Do(t, p, "device 1 2")
	tr.process(p.PID)
	child := fork(t, p)
	storm := func() { fixture.Do(t, p, "storm 0 1 1000 0") }
	tr.lose(bpf.MemtraceTtKindTT_DEVICE_OPEN, storm, func() {
		fixture.Do(t, p, "child 0 device 0 3")
		fixture.Do(t, p, "child 0 alloc 100 0 0 0 4096 1024 64")
	})
	own := func() bool {
		s, _ := tr.lookup(child)
		return s.Exact() && s.Buffers == 1 && s.Memory[aggregator.DRAM].Requested == 4096 && len(s.Chips) == 1 && s.Chips[0].Chip.Number == 3
	}
	if s, _ := tr.lookup(child); s.Exact() && !own() {
		t.Errorf("after a loss, nothing is marked: %+v", s)
	}
	tr.await("what it opened is its own", own)
	tr.lose(bpf.MemtraceTtKindTT_ALLOCATOR_GONE, storm, func() {
		fixture.Do(t, p, "child 0 device 0 3")
		fixture.Do(t, p, "child 0 alloc 100 0 0 0 4096 1024 64")
		fixture.Do(t, p, "child 0 close 0")
		fixture.Do(t, p, "child 0 destroy 0")
	})
	if s, _ := tr.lookup(child); s.Exact() && s.Buffers > 0 {
		t.Errorf("after a loss, nothing is marked: %+v", s)
	}
	tr.await("it has nothing", func() bool {
		s, _ := tr.lookup(child)
		return s.Exact() && s.Buffers == 0
	})
}

// What a tracer that comes later cannot tell from a copy is marked, until it is used.
func TestWhatCanBeACopyIsMarked(t *testing.T) {
	t.Parallel()
	p := fixture.User(t, fixture.LayoutB)
	fixture.Do(t, p, "device 0 1")
	child := fork(t, p)
	fixture.Do(t, p, "child 0 device 4 2")
	fixture.Do(t, p, "child 0 alloc 100 4 0 0 4096 1024 64")
	tr := start(t, Options{PIDs: []uint32{child}})
	s := tr.process(child)
	if s.Buffers != 1 || len(s.Reasons) != 1 || s.Reasons[0].Code != aggregator.ReasonForked || !slices.Equal(s.Reasons[0].Chips, []aggregator.Chip{{Number: 2}}) {
		t.Errorf("%d buffers, reasons %+v", s.Buffers, s.Reasons)
	}
	fixture.Do(t, p, "child 0 alloc 100 4 0 0 512 1024 64")
	tr.await("it is known to be its own", func() bool {
		s, _ := tr.lookup(child)
		return s.Exact() && s.Memory[aggregator.DRAM].Requested == 4096+512
	})
}

// Of a fork's fork too, copies are not its own when the one between has ended.
func TestForkOfAForkThatEnded(t *testing.T) {
	t.Parallel()
	p := fixture.User(t, fixture.LayoutB)
	tr := start(t, Options{})
	tr.awaitProcess(p.PID)
	fixture.Do(t, p, "device 0 1")
	fixture.Do(t, p, "alloc 100 0 0 0 8192 1024 64")
	child := fork(t, p)
	grandchild := uint32(fixture.Number(t, p, "child 0 fork"))
	t.Cleanup(func() { syscall.Kill(int(grandchild), syscall.SIGKILL) })
	fixture.Do(t, p, "child 0 child 0 device 4 2")
	fixture.Do(t, p, "child 0 child 0 alloc 100 4 0 0 4096 1024 64")
	fixture.Do(t, p, "child 0 child 0 outlive")
	handle, err := unix.PidfdOpen(int(child), 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(handle)
	if err := unix.Kill(int(child), unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	ended := []unix.PollFd{{Fd: int32(handle), Events: unix.POLLIN}}
	if n, err := unix.Poll(ended, int(patience.Milliseconds())); n != 1 {
		t.Fatalf("the one between goes on: %v", err)
	}
	if s := tr.compared(grandchild); !s.Exact() || s.Buffers != 1 || s.Memory[aggregator.DRAM].Requested != 4096 {
		t.Errorf("%d buffers, %d bytes, reasons %+v", s.Buffers, s.Memory[aggregator.DRAM].Requested, s.Reasons)
	}
	late := start(t, Options{PIDs: []uint32{grandchild}})
	if s := late.process(grandchild); s.Buffers != 1 || s.Memory[aggregator.DRAM].Requested != 4096 {
		t.Errorf("late: %d buffers, %d bytes", s.Buffers, s.Memory[aggregator.DRAM].Requested)
	}
}
