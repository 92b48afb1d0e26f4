package tracer

import (
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"tt-memtrace/aggregator"
	"tt-memtrace/aggregator/exact"
	"tt-memtrace/bpf"
	"tt-memtrace/internal/proc"
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
			if !s.Buffers.Is(1) || !s.Memory[aggregator.DRAM].Requested.Is(4096) || s.Late || len(s.Chips) != 1 || s.Chips[0].Chip.Number != 2 {
				t.Errorf("parent with a device %v, all processes %v: %d buffers, %d bytes, late %v, chips %+v",
					parentsToo, all, s.Buffers, s.Memory[aggregator.DRAM].Requested, s.Late, s.Chips)
			}
			if all && parentsToo {
				if s := tr.process(p.PID); !s.Buffers.Is(1) || !s.Memory[aggregator.DRAM].Requested.Is(8192) {
					t.Errorf("the parent: %+v", s)
				}
			}
			tr.stop()
			p.Kill()
		}
	}
}

// A forked child has a copy of its parent's mesh also where it opens the same chips itself, and where its parent closed
// that mesh since, of which it knows nothing.
func TestForkedChildOpensItsParentsChips(t *testing.T) {
	t.Parallel()
	for _, closed := range []bool{false, true} {
		p := fixture.User(t, fixture.LayoutB)
		tr := start(t, Options{})
		fixture.Do(t, p, "mesh 0 1 2")
		fixture.Do(t, p, "alloc 100 0 0 0 8192 1024 64")
		child := fork(t, p)
		if closed {
			fixture.Do(t, p, "close 0")
		}
		fixture.Do(t, p, "child 0 mesh 1 1 2")
		check := func(tr *trace, name string, want uint64) {
			t.Helper()
			s := tr.compared(child)
			if !s.Buffers.Is(want) || !s.Memory[aggregator.DRAM].Requested.Is(2*4096*want) || len(s.Reasons) > 0 {
				t.Errorf("%s, closed %t: %d buffers, %d bytes, %+v", name, closed, s.Buffers, s.Memory[aggregator.DRAM].Requested, s.Reasons)
			}
		}
		check(tr, "nothing allocated", 0)
		fixture.Do(t, p, "child 0 alloc 100 1 0 0 4096 1024 64")
		check(tr, "traced", 1)
		if !closed {
			late := start(t, Options{PIDs: []uint32{child}})
			fixture.Do(t, p, "child 0 alloc 100 1 0 0 4096 1024 128")
			check(late, "traced late", 2)
			late.stop()
		}
		tr.stop()
		p.Kill()
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
		return ok && s.Buffers.Is(1) && s.Memory[aggregator.DRAM].Requested.Is(4096) && !s.Late && len(s.Chips) == 1
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
	if s := tr.process(child); !s.Buffers.Is(1) || !s.Memory[aggregator.DRAM].Requested.Is(4096) || len(s.Chips) != 1 || s.Chips[0].Chip.Number != 2 {
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
		return s.Exact() && s.Buffers.Is(2) && s.Memory[aggregator.DRAM].Requested.Is(bytes)
	}
	if s := tr.process(child); s.Exact() && !right(s) {
		t.Errorf("%d buffers, %d bytes, and nothing is marked", s.Buffers, s.Memory[aggregator.DRAM].Requested)
	}
	tr.await("it is right", func() bool { s, ok := tr.lookup(child); return ok && right(s) })
}

// A process that has the PID of one whose end was lost, and the library at the same place, is another one.
func TestPIDOfAProcessWhoseEndWasLost(t *testing.T) {
	tr := start(t, Options{Follow: uint32(os.Getpid()), RingBytes: uint32(os.Getpagesize())})
	loud, library := fixture.User(t, fixture.LayoutB), fixture.LibraryOf(t, fixture.LayoutB)
	tr.awaitProcess(loud.PID)
	fixture.Do(t, loud, "device 0 1")
	pid := uint32(fixture.Number(t, loud, "begin 0"))
	fixture.Do(t, loud, "child 0 open %s", library)
	tr.awaitProcess(pid)
	fixture.Do(t, loud, "child 0 device 0 2")
	fixture.Do(t, loud, "child 0 alloc 100 0 0 0 8192 1024 64")
	before := tr.process(pid)
	tr.mu.Lock() // the reader waits for it
	lost := tr.counters().Lost[bpf.MemtraceTtKindTT_EXIT]
	fixture.Do(t, loud, "storm 0 1 4000 0")
	fixture.Do(t, loud, "end 0")
	again := uint32(fixture.Number(t, loud, "begin %d", pid))
	fixture.Do(t, loud, "child 1 open %s", library)
	fixture.Do(t, loud, "child 1 device 0 3")
	fixture.Do(t, loud, "child 1 alloc 100 0 0 0 4096 1024 64")
	lost = tr.counters().Lost[bpf.MemtraceTtKindTT_EXIT] - lost
	tr.mu.Unlock()
	if lost != 1 || again != pid || !before.Buffers.Is(1) {
		t.Fatalf("%d ends are lost, PID %d and then %d, %d buffers", lost, pid, again, before.Buffers)
	}
	right := func(s aggregator.ProcessSnapshot) bool {
		return s.Exact() && s.Buffers.Is(1) && s.Memory[aggregator.DRAM].Requested.Is(4096) && len(s.Chips) == 1 && s.Chips[0].Chip.Number == 3
	}
	tr.sync()
	if s, found := tr.lookup(pid); found && s.Exact() && !right(s) { // it is looked for beside
		t.Errorf("%d buffers of %d bytes, and nothing is marked", s.Buffers, s.Memory[aggregator.DRAM].Requested)
	}
	tr.await("it is right", func() bool { s, _ := tr.lookup(pid); return right(s) })
}

// A trace that was captured on a device whose opening is found later, as the record of that is lost, is taken to be of
// the device that was there before: what it overwrites is unknown.
func TestTraceOfADeviceWhoseOpeningWasLost(t *testing.T) {
	tr := start(t, Options{Follow: uint32(os.Getpid()), RingBytes: uint32(os.Getpagesize())})
	p := fixture.User(t, fixture.LayoutB)
	tr.awaitProcess(p.PID)
	fixture.Do(t, p, "device 0 1")
	fixture.Do(t, p, "alloc 100 0 0 0 8192 1024 64")
	tr.process(p.PID)
	lost := tr.counters().Lost
	tr.lose(bpf.MemtraceTtKindTT_DEVICE_OPEN, func() { fixture.Do(t, p, "storm 0 1 1000 0") }, func() {
		fixture.Do(t, p, "close 0")
		fixture.Do(t, p, "destroy 0")
		fixture.Do(t, p, "device 0 3")
	})
	queue := fixture.Do(t, p, "queue 0")
	fixture.Do(t, p, "capture %s 1", queue)
	fixture.Do(t, p, "captured %s", queue)
	tr.await("its device is another one", func() bool {
		s, _ := tr.lookup(p.PID)
		return len(s.Chips) == 1 && s.Chips[0].Chip.Number == 3
	})
	fixture.Do(t, p, "alloc 100 0 0 0 1024 1024 64")
	fixture.Do(t, p, "replay %s 1 1", queue)
	if s := tr.process(p.PID); !s.Unsafe.Buffers.Is(1) && !missesTraces(s) || len(s.Chips) != 1 || s.Chips[0].Chip.Number != 3 {
		t.Errorf("%d unsafe buffers, chips %+v, marked with %+v", s.Unsafe.Buffers, s.Chips, s.Reasons)
	}
	if now := tr.counters().Lost[bpf.MemtraceTtKindTT_TRACE]; now != lost[bpf.MemtraceTtKindTT_TRACE] {
		t.Errorf("records of the trace are lost: %d, before %d", now, lost[bpf.MemtraceTtKindTT_TRACE])
	}
}

// What a trace overwrites is unknown where the device of its command queue is.
func TestTraceOfAnUnknownDevice(t *testing.T) {
	tr := start(t, Options{Follow: uint32(os.Getpid())})
	p := fixture.User(t, fixture.LayoutB)
	tr.awaitProcess(p.PID)
	fixture.Do(t, p, "device 0 1")
	queue := fixture.Do(t, p, "queue 0")
	fixture.Do(t, p, "hide %s", queue)
	fixture.Do(t, p, "capture %s 1", queue)
	tr.process(p.PID)
	fixture.Do(t, p, "show %s", queue)
	fixture.Do(t, p, "captured %s", queue)
	fixture.Do(t, p, "alloc 100 0 0 0 1024 1024 64")
	fixture.Do(t, p, "replay %s 1 1", queue)
	if s := tr.process(p.PID); !s.Unsafe.Buffers.Is(1) && !missesTraces(s) {
		t.Errorf("%d unsafe buffers, marked with %+v", s.Unsafe.Buffers, s.Reasons)
	}
}

// A process that nothing is known of stays marked if records of its traces are lost: nothing else shows what a trace
// overwrites. A process that comes later is not.
func TestLostTracesOfAProcessThatIsNotKnownYet(t *testing.T) {
	tr := start(t, Options{Follow: uint32(os.Getpid()), RingBytes: uint32(os.Getpagesize())})
	p := fixture.User(t, fixture.LayoutB)
	tr.awaitProcess(p.PID)
	fixture.Do(t, p, "device 0 1")
	child := fork(t, p)
	fixture.Do(t, p, "child 0 device 4 2")
	marked := func(pid uint32) bool {
		s, _ := tr.lookup(pid)
		return slices.ContainsFunc(s.Reasons, func(r aggregator.Reason) bool { return r.Code == exact.ReasonTracesMissed })
	}
	release := tr.hold(func() { fixture.Do(t, p, "alloc 100 0 0 0 8192 1024 64") })
	fixture.Do(t, p, "storm 0 1 2000 0")
	queue := fixture.Do(t, p, "child 0 queue 4")
	fixture.Do(t, p, "child 0 capture %s 1", queue)
	fixture.Do(t, p, "child 0 alloc 100 4 0 0 4096 1024 64")
	fixture.Do(t, p, "child 0 captured %s", queue)
	release()
	tr.await("the loss is counted", func() bool { return marked(p.PID) })
	fixture.Do(t, p, "child 0 alloc 100 4 0 0 1024 1024 64")
	fixture.Do(t, p, "child 0 replay %s 1 1", queue)
	if s := tr.process(child); !marked(child) {
		t.Errorf("%d unsafe buffers, marked with %+v", s.Unsafe.Buffers, s.Reasons)
	}
	// When a process started is known to a tick.
	for counted := proc.Ticks(); proc.Ticks() <= counted; {
		runtime.Gosched()
	}
	later := fixture.User(t, fixture.LayoutB)
	tr.awaitProcess(later.PID)
	if marked(later.PID) {
		t.Error("a process that came later is marked")
	}
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
		if s := tr.compared(child); !s.Exact() || !s.Buffers.Is(1) || !s.Memory[aggregator.DRAM].Requested.Is(4096) || len(s.Chips) != 1 {
			t.Errorf("opened again %v: %d buffers, %d bytes, %d chips, reasons %+v", reopened, s.Buffers, s.Memory[aggregator.DRAM].Requested, len(s.Chips), s.Reasons)
		}
		tr.stop()
		p.Kill()
	}
}

// A device that a child opened where its memory has a copy of its parent's is its own, and
// an allocator of its own that ended has nothing, also where the records of that are lost.
func TestOwnDevicesOfAChildAreKnownAfterALoss(t *testing.T) {
	tr := start(t, Options{Follow: uint32(os.Getpid()), RingBytes: uint32(os.Getpagesize())}) // lost traces of others would mark it for good
	tr.reconciles()
	p := fixture.User(t, fixture.LayoutB)
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
		return s.Exact() && s.Buffers.Is(1) && s.Memory[aggregator.DRAM].Requested.Is(4096) && len(s.Chips) == 1 && s.Chips[0].Chip.Number == 3
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
	if s, _ := tr.lookup(child); s.Exact() && s.Buffers.Some() {
		t.Errorf("after a loss, nothing is marked: %+v", s)
	}
	tr.await("it has nothing", func() bool {
		s, _ := tr.lookup(child)
		return s.Exact() && !s.Buffers.Some()
	})
}

// What a later tracer cannot distinguish from a copy is marked until it is used.
func TestWhatCanBeACopyIsMarked(t *testing.T) {
	t.Parallel()
	p := fixture.User(t, fixture.LayoutB)
	fixture.Do(t, p, "device 0 1")
	child := fork(t, p)
	fixture.Do(t, p, "child 0 device 4 2")
	fixture.Do(t, p, "child 0 alloc 100 4 0 0 4096 1024 64")
	tr := start(t, Options{PIDs: []uint32{child}})
	s := tr.process(child)
	if !s.Buffers.Is(1) || len(s.Reasons) != 1 || s.Reasons[0].Code != exact.ReasonForked || !slices.Equal(s.Reasons[0].Chips, []aggregator.Chip{{Number: 2}}) {
		t.Errorf("%d buffers, reasons %+v", s.Buffers, s.Reasons)
	}
	fixture.Do(t, p, "child 0 alloc 100 4 0 0 512 1024 64")
	tr.await("it is known to be its own", func() bool {
		s, _ := tr.lookup(child)
		return s.Exact() && s.Memory[aggregator.DRAM].Requested.Is(4096+512)
	})
}

// What a child allocates on a copy of what its parent has open is its own, and what the copy has of its parent's is
// not, also once it was compared. What is lost of it stays marked.
func TestChildAllocatesOnACopy(t *testing.T) {
	t.Parallel()
	tr := start(t, Options{Follow: uint32(os.Getpid())})
	p := fixture.User(t, fixture.LayoutB)
	tr.awaitProcess(p.PID)
	fixture.Do(t, p, "device 0 1")
	fixture.Do(t, p, "alloc 100 0 0 0 8192 1024 64")
	copied := fixture.Do(t, p, "alloc 100 0 0 0 512 1024 64")
	child := fork(t, p)
	grandchild := uint32(fixture.Number(t, p, "child 0 fork"))
	t.Cleanup(func() { syscall.Kill(int(grandchild), syscall.SIGKILL) })
	fixture.Do(t, p, "child 0 child 0 alloc 100 0 0 0 2048 1024 64")
	fixture.Do(t, p, "child 0 alloc 100 0 0 0 4096 1024 64")
	fixture.Do(t, p, "child 0 free %s", copied)
	for pid, want := range map[uint32]uint64{child: 4096, grandchild: 2048} {
		tr.process(pid)
		if s := tr.compared(pid); !s.Exact() || !s.Buffers.Is(1) || !s.Memory[aggregator.DRAM].Requested.Is(want) {
			t.Errorf("%d buffers, %d bytes of %d, reasons %+v", s.Buffers, s.Memory[aggregator.DRAM].Requested, want, s.Reasons)
		}
	}
	if s := tr.process(p.PID); !s.Exact() || !s.Buffers.Is(2) {
		t.Errorf("the parent: %+v", s)
	}
	late := start(t, Options{PIDs: []uint32{child}})
	late.process(child)
	fixture.Do(t, p, "child 0 alloc 100 0 0 0 256 1024 64")
	if s := late.compared(child); !s.Buffers.Is(1) || !s.Memory[aggregator.DRAM].Requested.Is(256) || len(s.Reasons) != 1 || s.Reasons[0].Code != exact.ReasonForked {
		t.Errorf("late: %d buffers, %d bytes, reasons %+v", s.Buffers, s.Memory[aggregator.DRAM].Requested, s.Reasons)
	}
}

// What a child allocated on a copy of what its parent has open, before a tracer came, is marked, with how much it can
// be, on the chip of its parent, also where that numbers them in its own way. What is a copy for certain is not.
func TestLateChildThatAllocatedOnACopy(t *testing.T) {
	t.Parallel()
	for _, own := range []bool{false, true} {
		lateChildThatAllocatedOnACopy(t, own)
	}
}

func lateChildThatAllocatedOnACopy(t *testing.T, ownNumbers bool) {
	var env []string
	if ownNumbers {
		env = []string{"TT_VISIBLE_DEVICES=1,2"}
	}
	p := fixture.User(t, fixture.LayoutB, env...)
	chip := aggregator.Chip{Number: 1}
	if ownNumbers {
		chip.Space = p.PID
	}
	fixture.Do(t, p, "device 0 1")
	fixture.Do(t, p, "alloc 100 0 0 0 8192 1024 64")
	copied := fixture.Do(t, p, "alloc 100 0 0 0 512 1024 128")
	child := fork(t, p)
	marked := func(tr *trace, name string, detail string) {
		t.Helper()
		s := tr.process(child)
		said := slices.ContainsFunc(s.Reasons, func(r aggregator.Reason) bool {
			return r.Code == exact.ReasonForked && strings.HasPrefix(r.Detail, detail) && slices.Equal(r.Chips, []aggregator.Chip{chip})
		})
		if s.Buffers.Some() || len(s.Reasons) > 1 || said != (detail != "") || !said && !s.Exact() {
			t.Errorf("%s: %d buffers, reasons %+v", name, s.Buffers, s.Reasons)
		}
	}
	copies := start(t, Options{PIDs: []uint32{child}})
	marked(copies, "copies alone", "")
	fixture.Do(t, p, "child 0 alloc 100 0 0 0 256 1024 192")
	if s := copies.compared(child); !s.Exact() || !s.Buffers.Is(1) {
		t.Errorf("traced since it had copies alone: %d buffers, reasons %+v", s.Buffers, s.Reasons)
	}
	own := fixture.Do(t, p, "child 0 alloc 100 0 0 0 4096 1024 256")
	fixture.Do(t, p, "free %s", copied)
	if s := copies.compared(child); !s.Exact() || !s.Buffers.Is(2) {
		t.Errorf("its parent freed: %d buffers, reasons %+v", s.Buffers, s.Reasons)
	}
	late := start(t, Options{PIDs: []uint32{child}})
	marked(late, "late", "3 buffers (4864 bytes on each chip)")
	fixture.Do(t, p, "child 0 free %s", own)
	late.compared(child)
	marked(late, "freed", "2 buffers (768 bytes on each chip)")
}

// Copies are not a fork's own either if it is a fork's fork and the one between has ended.
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
	if s := tr.compared(grandchild); !s.Exact() || !s.Buffers.Is(1) || !s.Memory[aggregator.DRAM].Requested.Is(4096) {
		t.Errorf("%d buffers, %d bytes, reasons %+v", s.Buffers, s.Memory[aggregator.DRAM].Requested, s.Reasons)
	}
	late := start(t, Options{PIDs: []uint32{grandchild}})
	if s := late.process(grandchild); !s.Buffers.Is(1) || !s.Memory[aggregator.DRAM].Requested.Is(4096) {
		t.Errorf("late: %d buffers, %d bytes", s.Buffers, s.Memory[aggregator.DRAM].Requested)
	}
}

// What a child may have allocated on a copy is known also while its parent allocates without a pause.
func TestLateChildOfABusyParent(t *testing.T) {
	const live = 50000
	file := filepath.Join(t.TempDir(), "lives")
	if err := os.WriteFile(file, make([]byte, 16<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	p := fixture.User(t, fixture.LayoutB)
	fixture.Do(t, p, "device 0 1")
	fixture.Do(t, p, "alloc 100 0 0 0 8192 1024 64")
	child := fork(t, p)
	fixture.Do(t, p, "child 0 alloc 100 0 0 0 4096 1024 256")
	fixture.Do(t, p, "slide 0 %d 0 %s", live, file)
	late := start(t, Options{PIDs: []uint32{child}})
	if s := late.process(child); len(s.Reasons) != 1 || !strings.HasPrefix(s.Reasons[0].Detail, "1 buffer (4096 bytes on each chip)") {
		t.Errorf("%d buffers, reasons %+v", s.Buffers, s.Reasons)
	}
	fixture.Do(t, p, "end_slide")
}

// What a parent freed since is marked on its child also where its memory is gone.
func TestLateChildWhoseParentReturnedMemory(t *testing.T) {
	t.Parallel()
	const many = 3000
	p := fixture.User(t, fixture.LayoutB)
	fixture.Do(t, p, "device 0 1")
	var made []string
	for i := range many {
		made = append(made, fixture.Do(t, p, "alloc 100 0 0 0 1 1024 %d", 64*i))
	}
	child := fork(t, p)
	for _, b := range slices.Backward(made) {
		fixture.Do(t, p, "free %s", b)
	}
	late := start(t, Options{PIDs: []uint32{child}})
	if s := late.process(child); len(s.Reasons) != 1 || !strings.HasPrefix(s.Reasons[0].Detail, "3000 buffers (3000 bytes on each chip)") {
		t.Errorf("%d buffers, reasons %+v", s.Buffers, s.Reasons)
	}
}
