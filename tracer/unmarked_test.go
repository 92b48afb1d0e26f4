package tracer

import (
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"tt-memtrace/aggregator"
	"tt-memtrace/aggregator/exact"
	"tt-memtrace/bpf"
	"tt-memtrace/internal/inspect"
	"tt-memtrace/internal/memory"
	"tt-memtrace/internal/metal"
	"tt-memtrace/internal/proc"
	"tt-memtrace/internal/watch"
	"tt-memtrace/test/fixture"
)

// beingRead is a reader with a process that is being read, and the reading.
func beingRead(t *testing.T, first bool) (*run, *traced, *reading) {
	r := related()
	r.opts.Notice = func(s string) { t.Log(s) }
	p := &traced{mapping: proc.Mapping{PID: 7}, allocators: allocatorTable{}}
	p.devices.describe(0x1000, []aggregator.Chip{{}}, false)
	r.processes.of(7).join(p, true)
	p.reconciliation.made, p.reconciliation.met = map[uint64]bool{}, map[uint64]bool{}
	return r, p, p.nextReading(first)
}

// nextReading has the process be read, for the first time or again.
func (p *traced) nextReading(first bool) *reading {
	rd := &reading{of: p, first: first, result: &inspect.ProcessScan{}}
	p.reconciliation.now, rd.touched = rd, map[uint64]struct{}{}
	return rd
}

// count returns the number of events of a kind, including the events of merged scans.
func (r *run) count(of aggregator.Kind) (n int) {
	accounts := aggregator.New()
	for _, e := range r.batch {
		if e.Kind == aggregator.Scanned && of == e.Kind {
			n++
		}
	}
	aggregator.Expand(accounts, r.batch, func(list []aggregator.Event) {
		for _, e := range list {
			if e.Kind == of {
				n++
			}
			accounts.Apply(&e)
		}
	})
	return n
}

// The kernels of a program that is placed for the first time while its process is read are known
// only from what was read: they were added before. Its placement is only in events.
func TestProgramPlacedWhileItIsRead(t *testing.T) {
	const program, kernel, device = 0x100, 0x200, 0x1000
	r, p, rd := beingRead(t, true)
	rd.result.Programs = []inspect.Program{{ID: program, Devices: []uint64{device}, Kernels: []inspect.Kernel{{ID: kernel}},
		Placed: []inspect.PlacedBuffer{{Device: device}}}}
	p.touch(program) // it is placed
	r.comparisons.merge(rd)
	if r.relations(7).kernels[kernel] != program || r.count(aggregator.KernelAdded) != 1 {
		t.Error("its kernels are not known")
	}
	if r.count(aggregator.CBPlaced) != 0 {
		t.Error("what was read of its placement replaces what events reported")
	}
	// Nothing is added of one that was destroyed during the scan.
	r, p, rd = beingRead(t, true)
	rd.result.Programs = []inspect.Program{{ID: program, Kernels: []inspect.Kernel{{ID: kernel}}}}
	r.programs.programGone(record{origin: origin{pid: 7}, p: p}, &bpf.MemtraceTtGone{Object: bpf.MemtraceTtObject{Object: program}})
	r.comparisons.merge(rd)
	if r.count(aggregator.KernelAdded) != 0 {
		t.Error("a program that is gone has kernels")
	}
}

// If the end of a program was lost and another one is at its address, what the old one had ends.
func TestProgramAtTheAddressOfAnother(t *testing.T) {
	const program, old, now = 0x100, 0x200, 0x300
	r, _, rd := beingRead(t, false)
	r.relations(7).program(program).kernels = []uint64{old}
	r.relations(7).kernels[old] = program
	r.emit(origin{pid: 7}, aggregator.Event{Kind: aggregator.KernelAdded, Program: program})
	r.losses.lost, r.losses.lostParts, r.losses.missed[bpf.MemtraceTtKindTT_PROGRAM_GONE] = 1, 1, 1
	rd.lost, rd.lostParts, rd.lostPrograms = 1, 1, 1
	rd.result.Scan.ProgramsRead = true
	rd.result.Programs = []inspect.Program{{ID: program, Kernels: []inspect.Kernel{{ID: now}}}}
	r.comparisons.merge(rd)
	if rel := r.relations(7); r.count(aggregator.ProgramGone) != 1 || rel.kernels[old] != 0 || rel.kernels[now] != program {
		t.Errorf("%d ends, kernels %v", r.count(aggregator.ProgramGone), rel.kernels)
	}
}

// A program whose end was lost has no part in what its workload's address is used for next.
func TestLostEndOfAProgram(t *testing.T) {
	const program, lives, made, workload = 0x100, 0x200, 0x300, 0x1000
	r, p, rd := beingRead(t, false)
	for _, id := range []uint64{program, lives, made} {
		r.relations(7).program(id).workload = workload
		r.relations(7).workload(workload).programs = append(r.relations(7).workload(workload).programs, id)
		r.emit(origin{pid: 7}, aggregator.Event{Kind: aggregator.KernelAdded, Program: id})
	}
	p.make(made)
	r.losses.lost, r.losses.lostParts, r.losses.missed[bpf.MemtraceTtKindTT_PROGRAM_GONE] = 1, 1, 1
	rd.lost, rd.lostParts, rd.lostPrograms = 1, 1, 1
	rd.result.Scan.Programs, rd.result.Scan.ProgramsRead = []uint64{lives}, true
	r.comparisons.merge(rd)
	if list := r.relations(7).workloads[workload].programs; !slices.Equal(list, []uint64{lives, made}) || r.count(aggregator.ProgramGone) != 1 {
		t.Errorf("its workload has %#x, and %d programs ended", list, r.count(aggregator.ProgramGone))
	}
}

// A device that opens where another one was, with other chips, and of which the record is lost, is on its own chips.
func TestLostOpeningOfAnotherDevice(t *testing.T) {
	t.Parallel()
	p := fixture.User(t, fixture.LayoutB)
	tr := start(t, Options{PIDs: []uint32{p.PID}, RingBytes: uint32(os.Getpagesize())})
	fixture.Do(t, p, "device 0 1")
	fixture.Do(t, p, "device 1 2")
	fixture.Do(t, p, "alloc 100 0 0 0 4096 1024 64")
	tr.process(p.PID)
	chip := uint32(2)
	tr.lose(bpf.MemtraceTtKindTT_DEVICE_OPEN, func() { fixture.Do(t, p, "storm 1 1 1000 0") }, func() {
		chip += 2
		fixture.Do(t, p, "close 0")
		fixture.Do(t, p, "destroy 0")
		fixture.Do(t, p, "mesh 0 %d %d", chip, chip+1)
		fixture.Do(t, p, "alloc 100 0 0 0 4096 1024 64")
	})
	right := func(s aggregator.ProcessSnapshot) bool {
		holds := map[uint32]uint64{}
		for _, c := range s.Chips {
			holds[c.Chip.Number] = sizeOf(c.Memory[aggregator.DRAM].Requested)
		}
		return s.Buffers.Is(1) && holds[1] == 0 && holds[chip] == 4096 && holds[chip+1] == 4096
	}
	if s := tr.process(p.PID); s.Exact() && !right(s) {
		t.Errorf("nothing is marked: %+v", s.Chips)
	}
	tr.await("it is right", func() bool { s, _ := tr.lookup(p.PID); return s.Exact() && right(s) })
}

// A device whose closing is known, and that opens again at its address unseen, is on its chips.
func TestLostOpeningAfterAClose(t *testing.T) {
	t.Parallel()
	p := fixture.User(t, fixture.LayoutB)
	tr := start(t, Options{PIDs: []uint32{p.PID}, RingBytes: uint32(os.Getpagesize())})
	fixture.Do(t, p, "device 0 1")
	fixture.Do(t, p, "device 1 2")
	fixture.Do(t, p, "alloc 100 0 0 0 4096 1024 64")
	end := func() {
		fixture.Do(t, p, "close 0")
		fixture.Do(t, p, "destroy 0")
	}
	end()
	if s := tr.process(p.PID); s.Buffers.Some() || !s.Exact() {
		t.Fatalf("%d buffers after it closed, %+v", s.Buffers, s.Reasons)
	}
	tr.lose(bpf.MemtraceTtKindTT_DEVICE_OPEN, func() { fixture.Do(t, p, "storm 1 1 1000 0") }, func() {
		fixture.Do(t, p, "device 0 1")
		fixture.Do(t, p, "alloc 100 0 0 0 4096 1024 64")
		if tr.counters().Lost[bpf.MemtraceTtKindTT_DEVICE_OPEN] == 0 {
			end()
		}
	})
	right := func(s aggregator.ProcessSnapshot) bool {
		return s.Buffers.Is(1) && slices.ContainsFunc(s.Chips, func(c aggregator.ChipSnapshot) bool {
			return c.Chip.Number == 1 && c.Memory[aggregator.DRAM].Requested.Is(4096)
		})
	}
	if s := tr.process(p.PID); s.Exact() && !right(s) {
		t.Errorf("nothing is marked: %+v", s.Chips)
	}
	tr.await("it is right", func() bool { s, _ := tr.lookup(p.PID); return s.Exact() && right(s) })
}

// An allocator whose end was lost, with the last device, is known to have ended when all of the
// process's memory was searched and it is nowhere.
func TestLostEndOfAnAllocator(t *testing.T) {
	t.Parallel()
	loud, p := fixture.User(t, fixture.LayoutB), fixture.User(t, fixture.LayoutB)
	tr := start(t, Options{PIDs: []uint32{loud.PID, p.PID}, RingBytes: uint32(os.Getpagesize())})
	for _, q := range []*fixture.Process{loud, p} {
		fixture.Do(t, q, "device 0 5")
		fixture.Do(t, q, "alloc 100 0 0 0 4096 1024 64")
		tr.process(q.PID)
	}
	tr.mu.Lock() // the reader waits for it
	fixture.Do(t, loud, "storm 0 1 20000 0")
	fixture.Do(t, p, "close 0")
	fixture.Do(t, p, "destroy 0")
	tr.losesOne(bpf.MemtraceTtKindTT_ALLOCATOR_GONE, bpf.MemtraceTtKindTT_DEVICE_CLOSE)
	tr.mu.Unlock()
	tr.await("nothing is held", func() bool { s, _ := tr.lookup(p.PID); return !s.Buffers.Some() && s.Exact() })
}

// A device whose close was lost has closed, also if its memory was unmapped then and cannot be read any more.
func TestLostCloseOfADeviceOnAPageThatIsUnmapped(t *testing.T) {
	t.Parallel()
	p := fixture.User(t, fixture.LayoutB)
	tr := start(t, Options{PIDs: []uint32{p.PID}, RingBytes: uint32(os.Getpagesize())})
	fixture.Do(t, p, "paged_device 0 1")
	fixture.Do(t, p, "device 1 2")
	fixture.Do(t, p, "alloc 100 0 0 0 4096 1024 64")
	if s := tr.process(p.PID); !s.Exact() || !s.Buffers.Is(1) || len(s.Chips) != 2 {
		t.Fatalf("%d buffers on %+v, %+v", s.Buffers, s.Chips, s.Reasons)
	}
	open := true
	tr.lose(bpf.MemtraceTtKindTT_DEVICE_CLOSE, func() { fixture.Do(t, p, "storm 1 1 1000 0") }, func() {
		if !open {
			fixture.Do(t, p, "paged_device 0 1")
		}
		fixture.Do(t, p, "close 0")
		fixture.Do(t, p, "destroy 0")
		fixture.Do(t, p, "unmap 0")
		open = false
	})
	closed := func(s aggregator.ProcessSnapshot) bool {
		return !s.Buffers.Some() && len(s.Chips) == 1 && s.Chips[0].Chip.Number == 2
	}
	if s := tr.process(p.PID); s.Exact() && !closed(s) {
		t.Errorf("nothing is marked: %d buffers on %+v", s.Buffers, s.Chips)
	}
	tr.await("it is closed", func() bool { s, _ := tr.lookup(p.PID); return s.Exact() && closed(s) })
}

// An allocator that is made while its process is searched does not count as one that ended.
func TestAllocatorMadeWhileItIsRead(t *testing.T) {
	const old, made = 0x2000, 0x3000
	r, p, rd := beingRead(t, false)
	p.allocators.of(old).known, p.allocators.of(made).known = true, true
	p.reconciliation.met[made] = true
	for _, allocator := range []uint64{old, made} {
		r.emit(origin{pid: 7}, aggregator.Event{Kind: aggregator.AllocatorSeen, Allocator: allocator, Capacity: &aggregator.Capacity{}})
	}
	r.comparisons.merge(rd)
	if p.allocators.knows(old) || !p.allocators.knows(made) || r.count(aggregator.AllocatorGone) != 1 {
		t.Errorf("allocators %v, %d ends", p.allocators, r.count(aggregator.AllocatorGone))
	}
}

// The launches of what is destroyed before they are read are reported with its end.
func TestLaunchesBeforeTheEnd(t *testing.T) {
	t.Parallel()
	p := fixture.User(t, fixture.LayoutB)
	tr := start(t, Options{PIDs: []uint32{p.PID}})
	fixture.Do(t, p, "device 0 1")
	const workloads, times = 50, 3
	for range workloads {
		workload, program := fixture.Do(t, p, "workload"), fixture.Do(t, p, "program")
		fixture.Do(t, p, "join %s %s", workload, program)
		fixture.Do(t, p, "launch %s %d", workload, times)
		fixture.Do(t, p, "disband %s", workload)
		fixture.Do(t, p, "unload %s", program)
	}
	tr.sync()
	if n := tr.snapshot().Counters.Launches; n != workloads*times {
		t.Errorf("%d launches, not %d", n, workloads*times)
	}
}

// So are those of what a process had when it ended, also if it ended by itself without destroying anything.
func TestLaunchesBeforeTheEndOfTheirProcess(t *testing.T) {
	t.Parallel()
	p, other := fixture.User(t, fixture.LayoutB), fixture.User(t, fixture.LayoutB)
	tr := start(t, Options{PIDs: []uint32{p.PID, other.PID}})
	fixture.Do(t, p, "device 0 1")
	workload, program := fixture.Do(t, p, "workload"), fixture.Do(t, p, "program")
	fixture.Do(t, p, "join %s %s", workload, program)
	const before, times = 2, 5
	fixture.Do(t, p, "launch %s %d", workload, before)
	tr.sync()
	fixture.Do(t, p, "launch %s %d", workload, times)
	p.Kill()
	tr.await("it ended", func() bool { _, lives := tr.lookup(p.PID); return !lives })
	s := tr.snapshot()
	if n := s.Counters.Launches; n != before+times || len(s.Ended) != 1 || !s.Ended[0].Counters.Launches.Is(n) || s.Ended[0].Counters.UnknownLaunches.Some() {
		t.Errorf("%d launches, not %d: %+v", n, before+times, s.Ended)
	}
}

// If the end of a workload is lost, with its last launches, and another one is at its address, how often is unknown,
// and it has its own name.
func TestLostEndOfAWorkload(t *testing.T) {
	t.Parallel()
	loud, p := fixture.User(t, fixture.LayoutB), fixture.User(t, fixture.LayoutB)
	tr := start(t, Options{PIDs: []uint32{loud.PID, p.PID}, RingBytes: uint32(os.Getpagesize())})
	fixture.Do(t, loud, "device 0 1")
	fixture.Do(t, p, "device 0 2")
	workload, program := fixture.Do(t, p, "workload"), fixture.Do(t, p, "program")
	fixture.Do(t, p, "kernel %s 0", program)
	fixture.Do(t, p, "join %s %s", workload, program)
	fixture.Do(t, p, "name %s First", workload)
	fixture.Do(t, p, "launch %s 100", workload)
	tr.process(p.PID)
	tr.lose(bpf.MemtraceTtKindTT_WORKLOAD_GONE, func() { fixture.Do(t, loud, "storm 0 1 1000 0") }, func() {
		fixture.Do(t, p, "launch %s 100", workload)
		fixture.Do(t, p, "disband %s", workload)
		workload = fixture.Do(t, p, "workload")
		fixture.Do(t, p, "join %s %s", workload, program)
	})
	if s := tr.process(p.PID); !slices.ContainsFunc(s.Reasons, func(r aggregator.Reason) bool { return r.Code == exact.ReasonLaunchesUncounted }) {
		t.Errorf("launches are lost, of which %d were counted, and nothing says so: %+v", s.Counters.Launches, s.Reasons)
	}
}

// A buffer that is allocated and freed while a trace is captured, and of which all records are lost, shows in no
// comparison: who captured then is marked, others are not.
func TestLossDuringACapture(t *testing.T) {
	t.Parallel()
	p, other := fixture.User(t, fixture.LayoutB), fixture.User(t, fixture.LayoutB)
	tr := start(t, Options{PIDs: []uint32{p.PID, other.PID}, RingBytes: uint32(os.Getpagesize())})
	begin := func(p *fixture.Process) (queue string) {
		fixture.Do(t, p, "device 0 1")
		queue = fixture.Do(t, p, "queue 0")
		fixture.Do(t, p, "capture %s 1", queue)
		tr.process(p.PID)
		return queue
	}
	fixture.Do(t, other, "captured %s", begin(other))
	queue := begin(p)
	tr.lose(bpf.MemtraceTtKindTT_ALLOC, func() {}, func() { fixture.Do(t, p, "storm 0 1 1000 0") })
	fixture.Do(t, p, "captured %s", queue)
	for q, want := range map[*fixture.Process]bool{p: true, other: false} {
		s := tr.process(q.PID)
		if got := slices.ContainsFunc(s.Reasons, func(r aggregator.Reason) bool { return r.Code == exact.ReasonTracesMissed }); got != want {
			t.Errorf("marked %v, not %v: %+v", got, want, s.Reasons)
		}
	}
}

// A process is late if it mapped the library before the probes were attached, whenever it is examined.
func TestLateIsWhoMappedBefore(t *testing.T) {
	const linked = 1000
	for seen, want := range map[uint64]bool{
		0:             true, // unknown
		linked - 1:    true,
		linked:        true,
		linked + 1:    false,
		watch.NotSeen: true,
	} {
		if got := mayPrecede(seen, linked); got != want {
			t.Errorf("mapped at %d: %v", seen, got)
		}
	}
}

// So it is where its mappings were busy when it was to be looked at: what it held before the probes were there has to
// be read.
func TestLateIsWhoseMappingsWereBusy(t *testing.T) {
	t.Parallel()
	r := newAttacher(&env{found: watch.NewPIDQueue()})
	r.lookLater(7, 0, proc.ErrMapsBusy)
	pids, _, err := r.found.Wait(t.Context())
	if seen, again := pids[7]; err != nil || !again || !mayPrecede(seen, 1) {
		t.Errorf("it is looked at again as seen %d: %v", pids, err)
	}
}

// A device whose close failed holds what it held, buffers and programs, also where nothing is
// allocated any more, and also where a stripped library does not name what says whether it is open.
func TestCloseThatFails(t *testing.T) {
	t.Parallel()
	for _, b := range []fixture.Build{fixture.LayoutB, {Flags: fixture.LayoutB.Flags, Hide: []string{metal.DeviceIsOpen}, Strip: true}} {
		closeThatFails(t, b)
	}
}

func closeThatFails(t *testing.T, b fixture.Build) {
	p := fixture.User(t, b)
	tr := start(t, Options{PIDs: []uint32{p.PID}})
	fixture.Do(t, p, "device 0 1")
	fixture.Do(t, p, "alloc 100 0 0 0 4096 1024 64")
	program := fixture.Do(t, p, "program")
	fixture.Do(t, p, "place %s 0 0 4096", program)
	fixture.Do(t, p, "close_fails 0")
	holds := func(what string, buffers uint64) {
		t.Helper()
		s := tr.process(p.PID)
		if !s.Exact() || s.Buffers.WithoutBound() != buffers || len(s.Chips) != 1 || !s.Chips[0].CB.Programs.Is(1) || s.Chips[0].CB.Physical.Is(0) {
			t.Errorf("%s: %d buffers, %+v, marked with %+v", what, s.Buffers, s.Chips, s.Reasons)
		}
	}
	holds("after the close", 1)
	fixture.Do(t, p, "alloc 100 0 0 0 512 1024 8192")
	holds("after an allocation", 2)
	// Closed at last, it has nothing.
	fixture.Do(t, p, "close 0")
	fixture.Do(t, p, "destroy 0")
	if s := tr.process(p.PID); !s.Exact() || s.Buffers.Some() || len(s.Chips) != 0 {
		t.Errorf("closed: %d buffers, %+v, marked with %+v", s.Buffers, s.Chips, s.Reasons)
	}
}

// applied is what the accounts say of the process after a reader's events.
func (r *run) applied(a *aggregator.Aggregator) aggregator.ProcessSnapshot {
	for _, e := range r.batch {
		a.Apply(&e)
	}
	r.batch = nil
	return a.Snapshot().Processes[0]
}

// While programs from before tracing cannot be read, or reading them takes too long, the process is marked, and it is
// read again.
func TestProgramsFromBeforeThatCannotBeRead(t *testing.T) {
	const program = 0x100
	r, p, rd := beingRead(t, true)
	p.start.Late = true
	r.describe(p, 1)
	accounts := aggregator.New()
	for _, unread := range []bool{true, false} {
		rd.tries = programTries
		rd.result.Scan.ProgramsRead = true
		if unread {
			rd.result.UnreadPrograms, rd.result.Why = []uint64{program}, errors.New("it takes too long")
		}
		r.comparisons.merge(rd)
		if b := &p.reconciliation; p.start.Late != unread || b.read == unread || (b.failures > 0) != unread {
			t.Errorf("unread %t: late %t, read %t, %d failures", unread, p.start.Late, b.read, b.failures)
		}
		if s := r.applied(accounts); s.Exact() == unread {
			t.Errorf("unread %t: marked with %+v", unread, s.Reasons)
		}
		rd = p.nextReading(true)
	}
}

// A program that could not be read whole is read again, though its kernels are known, and then has what it lacked:
// until then the process is marked.
func TestProgramsThatWereNotReadWholeAreReadAgain(t *testing.T) {
	const program, kernel, device = 0x100, 0x200, 0x1000
	r, p, rd := beingRead(t, true)
	p.start.Late = true
	r.describe(p, 1)
	r.emit(origin{pid: 7, time: 1}, aggregator.Event{Kind: aggregator.DeviceOpen, Device: device, Opened: &aggregator.Opened{Chips: p.devices.chips(device)}})
	accounts := aggregator.New()
	whole := inspect.Program{ID: program, Devices: []uint64{device}, Kernels: []inspect.Kernel{{ID: kernel}},
		Placed: []inspect.PlacedBuffer{{Device: device, CB: aggregator.CircularBuffer{Address: 64, Size: 32, Ranges: []aggregator.CoreRange{{}}}}}}
	part := whole
	part.Placed = nil
	for i, step := range []struct {
		read   inspect.Program
		unread []uint64
		placed int
	}{
		{part, []uint64{program}, 0},
		{part, []uint64{program}, 0},
		{whole, nil, 1},
		{inspect.Program{}, nil, 0},
	} {
		if known := r.programs.knownPrograms(rd)[program]; known != (i == 3) {
			t.Errorf("reading %d: known %t", i, known)
		}
		rd.tries = programTries
		rd.result.Scan.ProgramsRead, rd.result.Scan.Programs = true, []uint64{program}
		if step.read.ID != 0 {
			rd.result.Programs = []inspect.Program{step.read}
		}
		if rd.result.UnreadPrograms = step.unread; step.unread != nil {
			rd.result.Why = errors.New("it changes")
		}
		r.comparisons.merge(rd)
		if placed := r.count(aggregator.CBPlaced); placed != step.placed {
			t.Errorf("reading %d: %d circular buffers were placed, want %d", i, placed, step.placed)
		}
		s := r.applied(accounts)
		if s.Exact() != (step.unread == nil) || p.start.Late != (step.unread != nil) {
			t.Errorf("reading %d: late %t, marked with %+v", i, p.start.Late, s.Reasons)
		}
		rd = p.nextReading(p.start.Late)
	}
}

// A program that is counted on all chips of a mesh, as it was not known on which it is, is read again a few times. Once
// that is known, it is taken off the others, and the mark with it; but not where it was placed on all since.
func TestProgramsAreReadForTheirChips(t *testing.T) {
	const program, kernel, mesh, size = 0x100, 0x200, 0x1000, 4096
	devices := []uint64{0x2000, 0x3000}
	r, p, rd := beingRead(t, false)
	p.devices.describe(mesh, []aggregator.Chip{{Number: 0}, {Number: 1}}, true)
	p.devices.describe(devices[0], []aggregator.Chip{{Number: 0}}, false)
	p.devices.describe(devices[1], []aggregator.Chip{{Number: 1}}, false)
	p.allocators.of(0x4000).known = true
	r.describe(p, 1)
	for device, d := range p.devices.described() {
		r.emit(origin{pid: 7, time: 1}, aggregator.Event{Kind: aggregator.DeviceOpen, Device: device, Opened: &aggregator.Opened{Mesh: device == mesh, Chips: d.chips}})
	}
	cb := aggregator.CircularBuffer{Address: 64, Size: size, Ranges: []aggregator.CoreRange{{}}}
	r.emit(origin{pid: 7, time: 1}, aggregator.Event{Kind: aggregator.KernelAdded, Program: program})
	r.emit(origin{pid: 7, time: 1}, aggregator.Event{Kind: aggregator.CBPlaced, Device: mesh, Program: program, CB: &cb})
	r.emit(origin{pid: 7, time: 1}, aggregator.Event{Kind: aggregator.Launched, Program: program, Count: 3})
	r.relations(7).program(program).kernels = []uint64{kernel}
	r.programs.chipsUnknown(p, 1, program, errPlacedBefore)
	accounts := aggregator.New()
	if s := r.applied(accounts); !s.CB.Logical.Is(2*size) || s.Exact() {
		t.Fatalf("%d bytes, exact %t", s.CB.Logical, s.Exact())
	}
	unknown := inspect.Program{ID: program, Devices: []uint64{mesh}, ChipsUnknown: errors.New("its node is half made"),
		Kernels: []inspect.Kernel{{ID: kernel}}, Placed: []inspect.PlacedBuffer{{Device: mesh, CB: cb}}}
	known := unknown
	known.ChipsUnknown, known.Devices, known.Placed = nil, devices[1:], []inspect.PlacedBuffer{{Device: devices[1], CB: cb}}
	for i, step := range []struct {
		read  inspect.Program
		since bool
		total uint64
	}{
		{unknown, false, 2 * size},
		{known, true, 2 * size},
		{known, false, size},
	} {
		if r.programs.knownPrograms(rd)[program] || !r.relations(7).readsAnyChips() {
			t.Errorf("reading %d: it is not read", i)
		}
		if step.since {
			p.touch(program)
		}
		rd.result.Scan.ProgramsRead, rd.result.Scan.Programs, rd.result.Programs = true, []uint64{program}, []inspect.Program{step.read}
		r.comparisons.merge(rd)
		s := r.applied(accounts)
		if !s.CB.Logical.Is(step.total) || s.Exact() != (step.total == size) {
			t.Errorf("reading %d: %d bytes, marked with %+v", i, s.CB.Logical, s.Reasons)
		}
		if list := accounts.Programs(7); len(list) != 1 || list[0].Launches.WithoutBound() != 3 {
			t.Errorf("reading %d: programs %+v", i, list)
		}
		rd = p.nextReading(false)
	}
	if !r.programs.knownPrograms(rd)[program] || r.relations(7).readsAnyChips() {
		t.Error("it is read again")
	}
	r.programs.chipsUnknown(p, 1, program, errPlacedBefore)
	for range inspect.ChipTries {
		if !r.relations(7).readsAnyChips() {
			t.Error("it is not read again")
		}
		rd.result.Programs = []inspect.Program{unknown}
		r.comparisons.merge(rd)
		rd = p.nextReading(false)
	}
	if r.relations(7).readsAnyChips() {
		t.Error("it is read for ever")
	}
	// It can outlive its mesh, and stays on all chips until these close.
	for i, device := range []uint64{mesh, devices[0], devices[1]} {
		r.devices.notOpen(p, origin{pid: 7, time: uint64(2 + i)}, device, 0)
		if s := r.applied(accounts); s.Exact() != (i == 2) {
			t.Errorf("%d devices are closed: marked with %+v", i+1, s.Reasons)
		}
	}
	if s := r.applied(accounts); !s.CB.Logical.Is(0) || len(r.relations(7).chipsUnknown) > 0 {
		t.Errorf("%d bytes, %v", s.CB.Logical, r.relations(7).chipsUnknown)
	}
}

// If there is no time for all programs, what was read is shown, marked, and the others are read immediately.
func TestProgramsThatThereIsNoTimeForAreReadNext(t *testing.T) {
	const first, second, device = 0x100, 0x300, 0x1000
	r, p, rd := beingRead(t, true)
	p.start.Late = true
	r.describe(p, 1)
	accounts := aggregator.New()
	r.opts.Notice = func(s string) { t.Errorf("noticed: %s", s) }
	program := func(id uint64) inspect.Program {
		return inspect.Program{ID: id, Devices: []uint64{device}, Kernels: []inspect.Kernel{{ID: id + 8}}}
	}
	rd.result.Scan.ProgramsRead, rd.result.Scan.Programs = true, []uint64{first, second}
	rd.result.Programs, rd.result.UnreadPrograms = []inspect.Program{program(first)}, []uint64{second}
	rd.result.Unfinished, rd.result.Why = true, errors.New("it takes too long")
	r.comparisons.merge(rd)
	if s := r.applied(accounts); s.Exact() || !p.start.Late || !r.reading() || p.reconciliation.next.After(time.Now()) {
		t.Errorf("late %t, being read %t, next in %v, marked with %+v", p.start.Late, r.reading(), time.Until(p.reconciliation.next), s.Reasons)
	}
	rd = p.nextReading(true)
	if known := r.programs.knownPrograms(rd); !known[first] || known[second] {
		t.Errorf("known are %v", known)
	}
	rd.result.Scan.ProgramsRead, rd.result.Scan.Programs = true, []uint64{first, second}
	rd.result.Programs = []inspect.Program{program(second)}
	r.comparisons.merge(rd)
	if s := r.applied(accounts); !s.Exact() || p.start.Late || r.reading() {
		t.Errorf("late %t, being read %t, marked with %+v", p.start.Late, r.reading(), s.Reasons)
	}
}

// What was lost of programs stays lost, and the process marked, until a reading has them all: one that fails or leaves
// out a program is not followed by one of buffers alone.
func TestLostPartsOfProgramsStayLost(t *testing.T) {
	const program = 0x100
	r, p, rd := beingRead(t, false)
	r.describe(p, 1)
	accounts := aggregator.New()
	r.applied(accounts)
	accounts.Apply(&aggregator.Event{Kind: aggregator.Lost, Count: 1, Time: 2})
	r.losses.lost, r.losses.lostParts = 1, 1
	for _, test := range []struct {
		what string
		mend bool
		of   inspect.ProcessScan
		err  error
	}{
		{"a program is left out", false, inspect.ProcessScan{UnreadPrograms: []uint64{program}, Why: errors.New("it changes")}, nil},
		{"reading fails", false, inspect.ProcessScan{}, errors.New("it cannot be read")},
		{"all are read", true, inspect.ProcessScan{}, nil},
	} {
		test.of.Scan.ProgramsRead = true
		rd.lost, rd.lostParts, rd.result, rd.err, rd.since = 1, 1, &test.of, test.err, 3
		r.comparisons.merge(rd)
		// If they are equal, the next reading is of buffers alone.
		if lost, parts := r.losses.missing(p); (p.reconciliation.lost == lost) != test.mend || (p.reconciliation.lostParts == parts) != test.mend {
			t.Errorf("%s: %d and %d parts count as read", test.what, p.reconciliation.lost, p.reconciliation.lostParts)
		}
		if s := r.applied(accounts); s.Exact() != test.mend {
			t.Errorf("%s: marked with %+v", test.what, s.Reasons)
		}
		rd = &reading{of: p}
		p.reconciliation.now, rd.touched = rd, map[uint64]struct{}{}
	}
}

// That the reserved sizes of buffers from before tracing could not be read is marked, until they can be.
func TestReservedSizesThatCannotBeRead(t *testing.T) {
	r, p, rd := beingRead(t, true)
	rd.result.Unreserved = errors.New("its lists of blocks change")
	r.comparisons.merge(rd)
	if r.count(aggregator.ReasonRaised) != 1 || p.reconciliation.next.After(time.Now().Add(checkEvery)) {
		t.Errorf("%d reasons, and it is read again after %v", r.count(aggregator.ReasonRaised), time.Until(p.reconciliation.next))
	}
	again := &reading{of: p, result: &inspect.ProcessScan{}, buffersOnly: true}
	p.reconciliation.now = again
	r.comparisons.merge(again)
	if r.count(aggregator.ReasonLifted) != 1 || p.reconciliation.unreserved {
		t.Errorf("%d reasons are lifted", r.count(aggregator.ReasonLifted))
	}
}

// So is that it is not known of buffers when they are allocated, until a reading that began later knows it.
func TestReservedSizesThatAreNotKnown(t *testing.T) {
	r, p, rd := beingRead(t, true)
	p.of = &attachment{}
	for range 2 {
		if size := r.buffers.reservedSize(p, origin{pid: p.mapping.PID}, &bpf.MemtraceTtAlloc{}); size != 0 {
			t.Fatalf("%d bytes are reserved", size)
		}
	}
	if r.count(aggregator.ReasonRaised) != 1 || p.reconciliation.suspect.IsZero() {
		t.Errorf("%d reasons, doubtful since %v", r.count(aggregator.ReasonRaised), p.reconciliation.suspect)
	}
	r.comparisons.merge(rd)
	if r.count(aggregator.ReasonLifted) != 0 {
		t.Error("a reading that began before lifts it")
	}
	p.reconciliation.suspect = time.Time{} // as when another begins
	again := &reading{of: p, result: &inspect.ProcessScan{}, buffersOnly: true}
	p.reconciliation.now = again
	r.comparisons.merge(again)
	if r.count(aggregator.ReasonLifted) != 1 || p.reconciliation.unreserved {
		t.Errorf("%d reasons are lifted", r.count(aggregator.ReasonLifted))
	}
}

// On a busy host, an allocator can be destroyed before the tracer handles its first buffer. Other allocators of the
// chip have the same DRAM banks; their L1 banks can differ.
func TestBanksOfAnAllocatorThatIsGone(t *testing.T) {
	_, p, _ := beingRead(t, false)
	lib, err := metal.OpenLibrary(fixture.LibraryOf(t, fixture.LayoutB))
	if err != nil {
		t.Fatal(err)
	}
	defer lib.Close()
	p.Inspector = inspect.New(lib, proc.Mapping{PID: math.MaxInt32})
	p.of = &attachment{sizes: &reservedSizes{ReservedSizes: &metal.ReservedSizes{}}}
	const mesh, submesh, elsewhere = 0x1000, 0x2000, 0x3000
	p.devices.describe(mesh, []aggregator.Chip{{Number: 0}, {Number: 1}}, true)
	p.devices.describe(submesh, []aggregator.Chip{{Number: 1}}, true)
	p.devices.describe(elsewhere, []aggregator.Chip{{Number: 2}}, false)
	dram := metal.Bank{Banks: 12, PageAlignment: 32, MinBlock: 32, BlockAlignment: 32}
	for _, device := range []uint64{mesh, submesh, elsewhere} {
		p.allocators.of(device + 1).device = device
	}
	if bank, err := p.bank(submesh+1, aggregator.DRAM); err != nil || bank.Valid() {
		t.Errorf("before the mesh's are known: %+v, %v", bank, err)
	}
	p.allocators[mesh+1].banks = map[aggregator.Memory]metal.Bank{aggregator.DRAM: dram, aggregator.L1: dram}
	for _, test := range []struct {
		allocator uint64
		memory    aggregator.Memory
		want      metal.Bank
	}{
		{submesh + 1, aggregator.DRAM, dram}, {submesh + 1, aggregator.L1, metal.Bank{}},
		{elsewhere + 1, aggregator.DRAM, metal.Bank{}},
	} {
		if bank, err := p.bank(test.allocator, test.memory); err != nil || bank != test.want {
			t.Errorf("%v of the allocator %#x: %+v, %v", test.memory, test.allocator, bank, err)
		}
	}
}

// A capacity that could not be read is noticed where it stays so: neither where it became known, nor while it is asked
// for, nor where a comparison may show that its allocator is gone.
func TestUnknownCapacitiesAreNoticed(t *testing.T) {
	const known, later, unknown = 1, 2, 3
	r, p, _ := beingRead(t, false)
	var notices []string
	r.opts.Notice = func(s string) { notices = append(notices, s) }
	since := time.Now().Add(-time.Second)
	for id, why := range map[uint64]error{
		known: errors.New("of one that is known"), later: fmt.Errorf("asking: %w", memory.ErrLater),
		unknown: errors.New("of one that is unknown"),
	} {
		*p.allocators.of(id) = allocator{known: true, unread: why, unreadSince: since}
	}
	r.devices.sized(p, origin{pid: p.mapping.PID}, 0x1000, known, &aggregator.Capacity{})
	r.comparisons.check()
	if len(notices) != 0 {
		t.Errorf("while it is compared: notices %q", notices)
	}
	p.reconciliation.now, p.reconciliation.next, r.comparisons.checked = nil, time.Now().Add(time.Hour), interval{}
	r.comparisons.check()
	if len(notices) != 1 || !strings.Contains(notices[0], "of one that is unknown") {
		t.Errorf("notices %q", notices)
	}
	for id, a := range p.allocators {
		if (a.unread != nil) != (id == later) {
			t.Errorf("allocator %d is asked again: %t", id, a.unread != nil)
		}
	}
}

// If events were lost, an event from before a reading can be followed by a lost one, so its object stays doubtful.
func TestReadingAfterALoss(t *testing.T) {
	for at, doubtful := range map[uint64]bool{9: true, 10: false} {
		r, p, rd := beingRead(t, false)
		r.losses.lost, rd.lost, rd.since, rd.tries = 1, 1, 10, earlyTries
		p.last = at
		p.touch(0x100)
		r.comparisons.merge(rd)
		if i := slices.IndexFunc(r.batch, func(e aggregator.Event) bool { return e.Kind == aggregator.Scanned }); i < 0 || r.batch[i].Scan.Partial != doubtful {
			t.Errorf("after an event at %d of a reading that began at 10: %+v", at, r.batch)
		}
	}
}

// Buffers that are allocated before their process is known have no reserved size: the process is marked until a
// comparison reads the sizes.
func TestBuffersFromBeforeTheirProcessIsKnown(t *testing.T) {
	const pid = 7
	for _, early := range []bool{false, true} {
		r := related()
		accounts := aggregator.New()
		marked := func() bool {
			aggregator.Expand(accounts, r.batch, func(list []aggregator.Event) {
				for i := range list {
					accounts.Apply(&list[i])
				}
			})
			r.batch = nil
			s := accounts.Snapshot()
			return slices.ContainsFunc(slices.Collect(s.Why()), func(r aggregator.Reason) bool {
				return r.Code == exact.ReasonReservedUnknown && r.PID == pid
			})
		}
		from := origin{pid: pid, time: 1}
		if early {
			r.buffers.allocated(record{origin: from},
				&bpf.MemtraceTtAlloc{Device: 0x1000, Allocator: 0x2000, Buffer: 0x3000, Size: 4096})
		}
		one := r.processes.of(pid)
		unsized := one.unsized
		p := &traced{mapping: proc.Mapping{PID: pid}, allocators: allocatorTable{}}
		one.join(p, true)
		r.lives.begin(p, unsized, 2)
		if marked() != early {
			t.Errorf("early %v: it is marked: %v", early, !early)
		}
		if p.reconciliation.suspect.IsZero() == early {
			t.Errorf("early %v: it is compared soon: %v", early, !early)
		}
		p.reconciliation.made, p.reconciliation.met = map[uint64]bool{}, map[uint64]bool{}
		p.reconciliation.suspect = time.Time{}
		r.comparisons.merge(p.nextReading(false))
		if marked() {
			t.Errorf("early %v: it stays marked after a comparison", early)
		}
	}
}
