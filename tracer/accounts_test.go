package tracer

import (
	"fmt"
	"maps"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"tt-memtrace/aggregator"
	"tt-memtrace/bpf"
	"tt-memtrace/internal/metal"
	"tt-memtrace/test/fixture"
)

// How large the memories of a device are is known when it is open, before anything is
// allocated in them, and it is that of the device which is at the address now.
func TestCapacitiesBeforeTheFirstBuffer(t *testing.T) {
	p := fixture.Launch(t)
	tr := start(t, Options{PIDs: []uint32{p.PID}})
	fixture.Do(t, p, "open %s", fixture.LibraryOf(t, fixture.LayoutB))
	tr.awaitProcess(p.PID)
	l := keep(t, tr, p)
	for range 2 {
		l.device(0, 3)
		l.device(1, 0, 1)
		chips := l.compare().Chips
		if len(chips) != 3 {
			t.Errorf("chips %+v", chips)
		}
		for _, c := range chips {
			for m, u := range c.Memory {
				if want := (aggregator.Banks{Known: bankCount[m] > 0, Count: uint32(bankCount[m]), Bytes: bankBytes[m]}); u.Banks != want {
					t.Errorf("chip %v: %v has %+v, not %+v", c.Chip, aggregator.Memory(m), u.Banks, want)
				}
			}
		}
		fixture.Do(t, p, "close 0")
		fixture.Do(t, p, "close 1")
		tr.sync()
	}
	tr.noticed()
}

// Everything that a process allocates and frees is in its accounts, exactly, in
// whatever way its library was built; and all those builds at the same time.
func TestAccountsMatchTheProcess(t *testing.T) {
	t.Parallel()
	builds := []struct {
		name  string
		build fixture.Build
	}{
		{"layout A", fixture.LayoutA},
		{"layout B", fixture.LayoutB},
		{"not optimized", fixture.WithFlags("-O0")},
		{"endbr64", fixture.WithFlags("-O2 -fcf-protection=full")},
		{"stripped", fixture.Build{Strip: true}},
		{"moved fields", fixture.WithFlags("-DSHIFT=256")},
		{"code behind data", fixture.WithFlags("-Wl,-Ttext-segment=0x600000")},
		{"in one segment", fixture.WithFlags("-Wl,-z,noseparate-code")},
		// The graph tracker of this one sees no buffer that could be probed.
		{"observers", fixture.Build{Flags: []string{"-DLAYOUT_B", "-DOBSERVER"}, Strip: true, Hide: []string{
			metal.TrackAllocate[0], "_ZN2tt8tt_metal12GraphTracker16track_deallocateEPNS0_6BufferE"}}},
	}
	if _, err := exec.LookPath("clang++"); err == nil {
		builds = append(builds, struct {
			name  string
			build fixture.Build
		}{"clang", fixture.Build{Compiler: "clang++", Flags: []string{"-O2", "-DLAYOUT_B"}}})
	}
	var processes []*fixture.Process
	var pids []uint32
	for _, b := range builds {
		p := fixture.User(t, b.build)
		processes, pids = append(processes, p), append(pids, p.PID)
	}
	tr := start(t, Options{PIDs: pids})
	for i, b := range builds {
		t.Run(b.name, func(t *testing.T) {
			p := processes[i]
			l := keep(t, tr, p)
			l.device(0, 3)
			l.device(1, 0, 1, 2, 7)
			for m := range aggregator.NumMemories {
				l.alloc(0, m, 3)
				l.alloc(1, m, 0, 1, 2, 7)
			}
			snapshot := l.compare()
			for _, c := range snapshot.Chips {
				for m, u := range c.Memory {
					if bankCount[m] > 0 && (!u.Banks.Known || uint64(u.Banks.Count) != bankCount[m] || u.Banks.Bytes != bankBytes[m]) {
						t.Errorf("chip %v: %v has %+v", c.Chip, aggregator.Memory(m), u.Banks)
					}
				}
				if arch := map[bool]string{true: "wormhole_b0", false: "blackhole"}[c.Chip.Number == 3]; c.Arch != arch {
					t.Errorf("chip %v is a %q, want %q", c.Chip, c.Arch, arch)
				}
			}
			if snapshot.Info.Library != fixture.LibraryOf(t, b.build) || !strings.HasPrefix(snapshot.Info.Command, "driver") {
				t.Errorf("process %+v", snapshot.Info)
			}
			for range 100 {
				if len(l.live) > 0 && l.next(2) == 0 {
					l.free()
				} else if l.next(2) == 0 {
					l.alloc(0, aggregator.Memory(l.next(5)), 3)
				} else {
					l.alloc(1, aggregator.Memory(l.next(5)), 0, 1, 2, 7)
				}
			}
			l.compare()
			for len(l.live) > 0 {
				l.free()
			}
			l.compare()
		})
	}
	if c := tr.counters(); c.Unreserved != 0 || c.Hooked != 0 {
		t.Errorf("counters %+v", c)
	}
	tr.noticed()
}

// Two of three layouts that are in no table are proved by the code and traced
// exactly. The third, of which one field shows nowhere, is refused: nothing is
// traced, and that field is named.
func TestLayoutsThatAreInNoTable(t *testing.T) {
	t.Parallel()
	proved := []*fixture.Process{
		fixture.User(t, fixture.WithFlags("-O2 -DIMPL -DGROW=16")),
		fixture.User(t, fixture.WithFlags("-O2 -DIMPL -DLAYOUT_B -DSWAP_FLAGS -DSWAP_SIZES -DGROW=24")),
	}
	unproved := fixture.User(t, fixture.WithFlags("-O2 -DLAYOUT_B -DSWAP_SIZES -DGROW=40"))
	tr := start(t, Options{PIDs: []uint32{proved[0].PID, proved[1].PID, unproved.PID}})
	for _, p := range proved {
		l := keep(t, tr, p)
		l.device(0, 3)
		for m := range aggregator.NumMemories {
			l.alloc(0, m, 3)
			l.alloc(0, m, 3)
		}
		l.compare()
		l.free()
		l.compare()
	}
	fixture.Do(t, unproved, "device 0 1")
	fixture.Do(t, unproved, "alloc 100 0 0 0 4096 1024 64")
	tr.sync()
	if p, ok := tr.lookup(unproved.PID); ok {
		t.Errorf("accounts of %+v", p)
	}
	tr.noticed("nothing shows where a buffer keeps its hooked")
}

// What else can happen to buffers and devices, each in a process of its own.
func TestWhatProcessesDo(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name  string
		build fixture.Build
		env   []string
		test  func(t *testing.T, tr *trace, p *fixture.Process, l *ledger)
	}{
		{"allocations that fail change nothing", fixture.LayoutB, nil, failedAllocations},
		{"a buffer without a reservation", fixture.LayoutA, nil, noReservation},
		{"reservations that cannot be seen", fixture.WithFlags("-O2 -DBARE_BANKS"), nil, reservationsUnknown},
		{"hooked buffers, layout A", fixture.LayoutA, nil, hookedBuffers},
		{"hooked buffers, layout B", fixture.LayoutB, nil, hookedBuffers},
		{"frees of unknown buffers", fixture.LayoutB, nil, unknownFrees},
		{"unreadable buffers, layout A", fixture.LayoutA, nil, unreadableBuffers},
		{"unreadable buffers, layout B", fixture.LayoutB, nil, unreadableBuffers},
		{"a buffer at the address of another", fixture.LayoutB, nil, replacedBuffer},
		{"all buffers freed", fixture.LayoutA, nil, allocatorGone("deallocate")},
		{"allocator destroyed", fixture.LayoutB, nil, allocatorGone("destroy")},
		{"device closed", fixture.LayoutB, nil, closedDevice},
		{"device reopened after a close", fixture.LayoutB, nil, reopenedDevice("close 0", "deallocate 0", "destroy 0")},
		{"device reopened after its allocator's end", fixture.LayoutA, nil, reopenedDevice("destroy 0")},
		{"device reopened after an end that went unseen", fixture.LayoutB, nil, reopenedDevice()},
		{"devices opened after the attach are not late", fixture.LayoutA, nil, notLate},
		{"circular buffers", fixture.LayoutB, nil, circularBuffers},
		{"a program laid out again after it threw", fixture.LayoutB, nil, layoutThrows},
		{"a program destroyed on another thread", fixture.LayoutA, nil, destroyedElsewhere},
		{"dataflow buffers", fixture.LayoutB, nil, dataflowBuffersOf(2, 1)},
		{"dataflow buffers by allocator", byAllocator, nil, dataflowBuffersOf(2, 2)},
		{"dataflow buffers on cores that overlap", byAllocator, nil, ambiguousCores},
		{"scratchpads", fixture.LayoutB, nil, scratchpadsOf},
		{"replays of traces", fixture.LayoutB, nil, replaysOf},
		{"buffers under a trace", fixture.LayoutB, nil, unsafeOf},
		{"kernel-config rings", fixture.LayoutB, nil, ringsOf},
		{"private numbering of chips", fixture.LayoutB, []string{"TT_VISIBLE_DEVICES=2,3"}, privateNumbering},
		{"private numbering that a process sets itself", fixture.LayoutB, nil, ownNumbering},
	}
	var processes []*fixture.Process
	var pids []uint32
	for _, test := range tests {
		p := fixture.User(t, test.build, test.env...)
		processes, pids = append(processes, p), append(pids, p.PID)
	}
	tr := start(t, Options{PIDs: pids})
	for i, test := range tests {
		t.Run(test.name, func(t *testing.T) { test.test(t, tr, processes[i], keep(t, tr, processes[i])) })
	}
	tr.noticed("not known exactly", "it has no address yet")
}

func failedAllocations(t *testing.T, tr *trace, p *fixture.Process, l *ledger) {
	l.device(0, 1)
	l.alloc(0, aggregator.DRAM, 1)
	// Inside the probed function, and after it.
	for _, perBank := range []int{0, 4096} {
		if _, err := p.Do("throw %d", perBank); err == nil {
			t.Error("nothing was thrown")
		}
	}
	l.compare()
	l.alloc(0, aggregator.L1, 1)
	l.compare()
	l.free()
	l.compare()
}

func noReservation(t *testing.T, tr *trace, p *fixture.Process, l *ledger) {
	before := tr.counters()
	fixture.Do(t, p, "device 0 1")
	fixture.Do(t, p, "alloc 0 0 0 0 4096 1024 64")
	s := tr.process(p.PID)
	if u := s.Chips[0].Memory[aggregator.DRAM]; !u.Requested.Is(4096) || u.Reserved.Known() || !u.Unreserved.Is(1) {
		t.Errorf("%+v", u)
	}
	if c := tr.counters(); c.Unreserved != before.Unreserved+1 {
		t.Errorf("counters %+v, before %+v", c, before)
	}
}

// Without the point that shows reservations everything else is right.
func reservationsUnknown(t *testing.T, tr *trace, p *fixture.Process, l *ledger) {
	fixture.Do(t, p, "device 0 1")
	fixture.Do(t, p, "alloc 100 0 0 0 4096 1024 64")
	if u := tr.process(p.PID).Chips[0].Memory[aggregator.DRAM]; !u.Requested.Is(4096) || u.Reserved.Known() || !u.Unreserved.Is(1) {
		t.Errorf("%+v", u)
	}
}

func hookedBuffers(t *testing.T, tr *trace, p *fixture.Process, l *ledger) {
	before := tr.counters()
	l.device(0, 1)
	l.alloc(0, aggregator.L1, 1)
	hooked := fixture.Do(t, p, "hooked 0 0 0 4096 1024 64")
	l.compare()
	fixture.Do(t, p, "free %s", hooked)
	l.compare()
	if c := tr.counters(); c.Hooked != before.Hooked+1 {
		t.Errorf("counters %+v, before %+v", c, before)
	}
}

func unknownFrees(t *testing.T, tr *trace, p *fixture.Process, l *ledger) {
	l.device(0, 1)
	l.alloc(0, aggregator.L1, 1)
	for range 3 {
		fixture.Do(t, p, "orphan 0 1 0 4096 1024 64")
	}
	if c := l.compare().Counters; c.UnmatchedFrees != 3 {
		t.Errorf("counters %+v", c)
	}
}

func unreadableBuffers(t *testing.T, tr *trace, p *fixture.Process, l *ledger) {
	before := tr.counters()
	l.device(0, 1)
	l.alloc(0, aggregator.L1, 1)
	fixture.Do(t, p, "unreadable")
	l.compare()
	after := tr.counters()
	if k := bpf.MemtraceTtKindTT_ALLOC; after.Unread[k] != before.Unread[k]+1 {
		t.Errorf("counters %+v, before %+v", after, before)
	}
}

func replacedBuffer(t *testing.T, tr *trace, p *fixture.Process, l *ledger) {
	fixture.Do(t, p, "device 0 1")
	b := fixture.Do(t, p, "alloc 100 0 0 0 4096 1024 64")
	fixture.Do(t, p, "again %s 0 1 0 8192 1024 64", b)
	s := tr.process(p.PID)
	if !s.Buffers.Is(1) || s.Counters.Replaced != 1 || !s.Counters.Allocs.Is(2) || !s.Counters.ImplicitFrees.Is(1) {
		t.Errorf("%d buffers, counters %+v", s.Buffers, s.Counters)
	}
	if d, l1 := s.Memory[aggregator.DRAM], s.Memory[aggregator.L1]; !d.Requested.Is(0) || !d.Reserved.Is(0) || !l1.Requested.Is(8192) {
		t.Errorf("DRAM %+v, L1 %+v", d, l1)
	}
}

// What an allocator frees as a whole is free, and only that.
func allocatorGone(how string) func(*testing.T, *trace, *fixture.Process, *ledger) {
	return func(t *testing.T, tr *trace, p *fixture.Process, l *ledger) {
		other := keep(t, tr, p)
		l.device(0, 1)
		l.device(1, 1)
		for range 20 {
			l.alloc(0, aggregator.Memory(l.next(5)), 1)
		}
		other.alloc(1, aggregator.Trace, 1)
		fixture.Do(t, p, "%s 0", how)
		l.implicit()
		l.live, l.allocs = other.live, l.allocs+1
		l.compare()
	}
}

// A closed device is shown until its last buffer is gone.
func closedDevice(t *testing.T, tr *trace, p *fixture.Process, l *ledger) {
	l.device(0, 1)
	l.device(1, 4, 5)
	l.alloc(0, aggregator.DRAM, 1)
	l.alloc(1, aggregator.DRAM, 4, 5)
	fixture.Do(t, p, "close 0")
	if s := l.compare(); len(s.Chips) != 3 {
		t.Errorf("chips %+v", s.Chips)
	}
	fixture.Do(t, p, "deallocate 0")
	fixture.Do(t, p, "destroy 0")
	s := tr.process(p.PID)
	if len(s.Chips) != 2 || s.Chips[0].Chip.Number != 4 || !s.Buffers.Is(1) || !s.Counters.ImplicitFrees.Is(1) {
		t.Errorf("chips %+v, counters %+v", s.Chips, s.Counters)
	}
}

// Objects are known by their addresses, which are used again: by a device with
// other chips.
func reopenedDevice(end ...string) func(*testing.T, *trace, *fixture.Process, *ledger) {
	return func(t *testing.T, tr *trace, p *fixture.Process, l *ledger) {
		l.device(0, 1)
		l.alloc(0, aggregator.DRAM, 1)
		l.compare()
		for _, c := range end {
			fixture.Do(t, p, "%s", c)
		}
		l.implicit()
		l.device(0, 2, 3)
		l.alloc(0, aggregator.L1, 2, 3)
		l.compare()
		l.implicit()
		l.device(0, 4)
		l.alloc(0, aggregator.L1Small, 4)
		l.compare()
	}
}

// Late are devices, not processes: one that opens after the attach hides nothing.
func notLate(t *testing.T, tr *trace, p *fixture.Process, l *ledger) {
	l.device(0, 6)
	l.alloc(0, aggregator.DRAM, 6)
	if s := l.compare(); s.Late {
		t.Error("it counts as late")
	}
}

// A circular buffer arrives whole, however many core ranges it has, up to more
// than any chip could need.
func circularBuffers(t *testing.T, tr *trace, p *fixture.Process, l *ledger) {
	before := tr.counters()
	device := fixture.Number(t, p, "device 0 1")
	program := fixture.Number(t, p, "program")
	fixture.Do(t, p, "layout %#x 0", program)
	sizes := []int{0, 1, 2, 16, 17, 40, 64, 500, 1024, 1025}
	for i, n := range sizes {
		var ranges strings.Builder
		for k := range n {
			fmt.Fprintf(&ranges, " %d %d %d %d", k%200, k/200, k%200+1, k/200+2)
		}
		fixture.Do(t, p, "cb 0 %d %d %d%s", 4096*(i+1), 100+i, i%2, ranges.String())
	}
	tr.sync()
	tr.mu.Lock()
	placed := slices.DeleteFunc(slices.Clone(tr.placed), func(e aggregator.Event) bool { return e.PID != p.PID })
	tr.mu.Unlock()
	if len(placed) != len(sizes) {
		t.Fatalf("%d were placed, want %d", len(placed), len(sizes))
	}
	for i, e := range placed {
		cb := e.CB
		if e.Device != device || e.Program != program || cb.Address != uint64(4096*(i+1)) || cb.Size != uint64(100+i) {
			t.Errorf("%d: %+v, %+v", i, e, cb)
		}
		if want := min(sizes[i], 1024); len(cb.Ranges) != want {
			t.Errorf("%d: %d ranges, want %d", i, len(cb.Ranges), want)
		}
		for k, r := range cb.Ranges {
			x, y := uint16(k%200), uint16(k/200)
			if r != (aggregator.CoreRange{X0: x, Y0: y, X1: x + 1, Y1: y + 2}) {
				t.Errorf("%d: range %d is %+v", i, k, r)
			}
		}
	}
	if c := tr.counters(); c.Truncated != before.Truncated+1 || c.Unread != before.Unread {
		t.Errorf("counters %+v, before %+v", c, before)
	}
	fixture.Do(t, p, "unload %#x", program)
	tr.process(p.PID)
}

// byAllocator is a build in which the cores of dataflow buffers are not known beforehand.
var byAllocator = fixture.WithFlags("-DLAYOUT_B -DMARKED")

// placedBy are the buffers that a program has, each with its first core range.
func (tr *trace) placedBy(pid uint32, program uint64) (list []string) {
	tr.sync()
	tr.mu.Lock()
	defer tr.mu.Unlock()
	for _, p := range tr.accounts.Programs(pid) {
		if p.ID != program {
			continue
		}
		for _, cb := range p.Placed {
			list = append(list, fmt.Sprintf("%d on %d: %d+%d %d", cb.Kind, cb.Chip.Number, cb.Address, cb.Size, cb.Ranges))
		}
	}
	return list
}

func (tr *trace) expectPlaced(p *fixture.Process, program uint64, want ...string) {
	tr.t.Helper()
	if got := tr.placedBy(p.PID, program); !slices.Equal(got, want) {
		tr.t.Errorf("placed are %q, not %q", got, want)
	}
}

// What a layout placed before it threw stays, as in the runtime, until the next
// one, which replaces it.
func layoutThrows(t *testing.T, tr *trace, p *fixture.Process, l *ledger) {
	fixture.Do(t, p, "mesh 0 1 2")
	program := fixture.Number(t, p, "program")
	for range 3 {
		if _, err := p.Do("place %#x 0 1 4096 8192", program); err == nil {
			t.Fatal("nothing was thrown")
		}
		tr.expectPlaced(p, program,
			"0 on 1: 4096+1024 [{0 0 1 1}]", "0 on 1: 8192+1024 [{0 0 1 1}]", "0 on 2: 4096+1024 [{0 0 1 1}]", "0 on 2: 8192+1024 [{0 0 1 1}]")
	}
	fixture.Do(t, p, "place %#x 0 0 16384", program)
	tr.expectPlaced(p, program, "0 on 1: 16384+1024 [{0 0 1 1}]", "0 on 2: 16384+1024 [{0 0 1 1}]")
	for _, c := range tr.process(p.PID).Chips {
		if !c.CB.Physical.Is(4096) || !c.CB.Logical.Is(4096) || !c.CB.Programs.Is(1) {
			t.Errorf("chip %d: %+v", c.Chip.Number, c.CB)
		}
	}
	fixture.Do(t, p, "unload %#x", program)
	tr.expectPlaced(p, program)
}

func destroyedElsewhere(t *testing.T, tr *trace, p *fixture.Process, l *ledger) {
	fixture.Do(t, p, "device 0 1")
	for range 20 {
		program := fixture.Number(t, p, "program")
		fixture.Do(t, p, "place %#x 0 0 4096", program)
		tr.expectPlaced(p, program, "0 on 1: 4096+1024 [{0 0 1 1}]")
		fixture.Do(t, p, "unload_elsewhere %#x", program)
		tr.expectPlaced(p, program)
		if u := tr.process(p.PID).CB; !u.Physical.Is(0) || !u.Logical.Is(0) || !u.Programs.Is(0) {
			t.Errorf("%+v", u)
		}
	}
}

// dataflowBuffersOf places a buffer on two core ranges, which counts as so many.
func dataflowBuffersOf(ranges, count uint64) func(*testing.T, *trace, *fixture.Process, *ledger) {
	return func(t *testing.T, tr *trace, p *fixture.Process, l *ledger) {
		fixture.Do(t, p, "mesh 0 1 2")
		program := fixture.Number(t, p, "program")
		for _, address := range []int{4096, 8192} { // laid out again
			fixture.Do(t, p, "dfb %#x 0 %d 100 0 0 1 1 4 4 4 4", program, address)
			want := fmt.Sprintf("2 on 1: %d+100 [{0 0 1 1} {4 4 4 4}]", address)
			if count == ranges {
				want = fmt.Sprintf("2 on 1: %d+100 [{0 0 1 1}]", address)
			}
			if got := tr.placedBy(p.PID, program); uint64(len(got)) != 2*count || got[0] != want {
				t.Errorf("placed are %q", got)
			}
		}
		for _, c := range tr.process(p.PID).Chips {
			if !c.CB.Physical.Is(500) || !c.CB.Logical.Is(500) || !c.CB.Dataflow.Is(count) {
				t.Errorf("chip %d: %+v", c.Chip.Number, c.CB)
			}
		}
		fixture.Do(t, p, "unload %#x", program)
		tr.expectPlaced(p, program)
	}
}

// A notice says when a buffer's cores are unknown.
func ambiguousCores(t *testing.T, tr *trace, p *fixture.Process, l *ledger) {
	fixture.Do(t, p, "device 0 1")
	program := fixture.Number(t, p, "program")
	fixture.Do(t, p, "dfb %#x 0 4096 100 0 0 3 3 1 1 1 1", program)
	if u := tr.process(p.PID).CB; !u.Physical.Is(1600) {
		t.Errorf("%+v", u)
	}
	tr.await("a notice", func() bool { return tr.says("not known exactly") })
}

func scratchpadsOf(t *testing.T, tr *trace, p *fixture.Process, l *ledger) {
	fixture.Do(t, p, "mesh 0 1 2")
	program := fixture.Number(t, p, "program")
	kernel := fixture.Number(t, p, "kernel %#x 0", program)
	fixture.Do(t, p, "scratchpad %#x 0 %#x 4096 64 2 3 4 5", program, kernel)
	tr.expectPlaced(p, program, "3 on 1: 4096+64 [{2 3 4 5}]", "3 on 2: 4096+64 [{2 3 4 5}]")
	fixture.Do(t, p, "scratchpad %#x 0 %#x 8192 128 2 3 4 5", program, kernel)
	for _, c := range tr.process(p.PID).Chips {
		if !c.CB.Scratchpads.Is(2) || !c.CB.Physical.Is(9*192) || !c.CB.Programs.Is(1) {
			t.Errorf("chip %d: %+v", c.Chip.Number, c.CB)
		}
	}
	// One of a program that is gone by the time that it is looked at.
	other := fixture.Number(t, p, "program")
	fixture.Do(t, p, "scratchpad %#x 0 %#x 8192 128 2 3 4 5", other, fixture.Number(t, p, "kernel %#x 0", other))
	fixture.Do(t, p, "unload %#x", other)
	fixture.Do(t, p, "unload %#x", program)
	tr.expectPlaced(p, program)
	if u := tr.process(p.PID).CB; !u.Physical.Is(0) || !u.Scratchpads.Is(0) {
		t.Errorf("%+v", u)
	}
	// One that takes its time is asked for again.
	slow := fixture.Number(t, p, "program")
	kernel = fixture.Number(t, p, "kernel %#x 0", slow)
	fixture.Do(t, p, "scratchpad %#x 0 %#x 0 128 2 3 4 5", slow, kernel)
	tr.expectPlaced(p, slow)
	fixture.Do(t, p, "argument %#x 0 4096", kernel)
	tr.expectPlaced(p, slow, "3 on 1: 4096+128 [{2 3 4 5}]", "3 on 2: 4096+128 [{2 3 4 5}]")
	fixture.Do(t, p, "unload %#x", slow)
	// One that has no address is not guessed at.
	bad := fixture.Number(t, p, "program")
	fixture.Do(t, p, "scratchpad %#x 0 %#x 0 128 0 0 0 0", bad, fixture.Number(t, p, "kernel %#x 0", bad))
	tr.expectPlaced(p, bad)
	tr.await("a notice", func() bool { return tr.says("it has no address yet") })
}

func replaysOf(t *testing.T, tr *trace, p *fixture.Process, l *ledger) {
	fixture.Do(t, p, "mesh 0 1 2")
	queue := fixture.Number(t, p, "queue 0")
	fixture.Do(t, p, "replay %#x 0 3", queue)
	fixture.Do(t, p, "replay %#x 7 1000", queue)
	replays := func() []aggregator.TraceSnapshot {
		tr.sync()
		tr.mu.Lock()
		defer tr.mu.Unlock()
		return tr.accounts.Traces(p.PID)
	}
	list := replays()
	if len(list) != 2 || list[0].Trace != 0 || list[0].Count != 3 || list[1].Trace != 7 || list[1].Count != 1000 ||
		len(list[1].Chips) != 2 || list[1].Last <= list[0].Last {
		t.Errorf("%+v", list)
	}
	fixture.Do(t, p, "replay %#x 0 1", queue)
	if list := replays(); list[0].Count != 4 {
		t.Errorf("%+v", list)
	}
	if n := tr.process(p.PID).Counters; !n.Replays.Is(1004) || n.UnknownLaunches.Some() {
		t.Errorf("%+v", n)
	}
	fixture.Do(t, p, "close 0")
	if list := replays(); len(list) != 0 {
		t.Errorf("%+v", list)
	}
}

// What is allocated after a capture and alive at the replay is unsafe, and known to lie where
// the capture had buffers; what is freed before is not.
func unsafeOf(t *testing.T, tr *trace, p *fixture.Process, l *ledger) {
	fixture.Do(t, p, "mesh 0 1 2")
	queue := fixture.Number(t, p, "queue 0")
	alloc := func(address int) uint64 {
		return fixture.Number(t, p, "alloc 1024 0 0 0 4096 1024 %d", address)
	}
	unsafe := func() map[uint64]aggregator.Unsafe {
		tr.sync()
		tr.mu.Lock()
		defer tr.mu.Unlock()
		found := map[uint64]aggregator.Unsafe{}
		for _, b := range tr.accounts.Buffers(p.PID) {
			if b.Unsafe.Found {
				found[b.ID] = b.Unsafe
			}
		}
		return found
	}
	alloc(0) // from before
	fixture.Do(t, p, "capture %#x 5", queue)
	fixture.Do(t, p, "free %#x", alloc(4096))
	fixture.Do(t, p, "captured %#x", queue)
	overlapping, apart, freed := alloc(4096), alloc(8192), alloc(16384)
	fixture.Do(t, p, "free %#x", freed)
	if found := unsafe(); len(found) != 0 {
		t.Errorf("before a replay: %+v", found)
	}
	fixture.Do(t, p, "replay %#x 5 2", queue)
	if found := unsafe(); len(found) != 2 || found[overlapping] != (aggregator.Unsafe{Found: true, Trace: 5, Overlaps: true}) ||
		found[apart] != (aggregator.Unsafe{Found: true, Trace: 5}) {
		t.Errorf("%+v", found)
	}
	// What the program marks as corruptible is none: allocated in a scope of its allocator, or acknowledged
	// afterwards. A scope of another allocator marks nothing, nor does one that ended.
	fixture.Do(t, p, "device 1 3")
	fixture.Do(t, p, "track")
	fixture.Do(t, p, "scope 0")
	fixture.Do(t, p, "scope 1")
	alloc(4096)
	fixture.Do(t, p, "end_scope")
	alloc(4096)
	fixture.Do(t, p, "end_scope")
	fixture.Do(t, p, "scope 1")
	other := alloc(4096)
	fixture.Do(t, p, "end_scope")
	fixture.Do(t, p, "acknowledge %#x", alloc(4096))
	fixture.Do(t, p, "acknowledge %#x", apart) // allocated before it was tracked: not known
	after := alloc(1 << 20)
	fixture.Do(t, p, "replay %#x 5 1", queue)
	if found := unsafe(); len(found) != 4 || !found[other].Found || !found[after].Found {
		t.Errorf("with marks: %+v, of which %#x and %#x are marked by nothing", found, other, after)
	}
	// One that is unsafe already is not any more when it is acknowledged.
	fixture.Do(t, p, "acknowledge %#x", other)
	fixture.Do(t, p, "acknowledge %#x", after)
	if found := unsafe(); len(found) != 2 {
		t.Errorf("with all acknowledged: %+v", found)
	}
	fixture.Do(t, p, "release 5")
	safe := alloc(32768)
	fixture.Do(t, p, "replay %#x 5 1", queue)
	if found := unsafe(); len(found) != 2 || found[safe].Found {
		t.Errorf("after the release: %+v", found)
	}
	s := tr.process(p.PID)
	if !s.Unsafe.Buffers.Is(2) || !s.Unsafe.Overlapping.Is(1) || !s.Unsafe.Bytes.Is(8192) || !s.Counters.Replays.Is(4) {
		t.Errorf("%+v", s)
	}
	if !s.Exact() {
		t.Errorf("%+v", s.Reasons)
	}
}

// A kernel-config ring as the runtime tracks it: places are given out in turn, and given
// up when a newer one needs the room or all that ran before is waited for.
func ringsOf(t *testing.T, tr *trace, p *fixture.Process, l *ledger) {
	fixture.Do(t, p, "mesh 0 1 2")
	queue := fixture.Number(t, p, "queue 0")
	ring := fixture.Number(t, p, "ring %#x 1000 100", queue)
	workloads := map[string]uint64{}
	enqueue := func(workload string, status, size int) {
		if workloads[workload] == 0 {
			w, program := fixture.Number(t, p, "workload"), fixture.Number(t, p, "program")
			fixture.Do(t, p, "kernel %#x 0", program)
			fixture.Do(t, p, "join %#x %#x", w, program)
			fixture.Do(t, p, "config %#x %d", program, size)
			workloads[workload] = w
		}
		fixture.Do(t, p, "enqueue %#x %#x %d %d", queue, workloads[workload], status, size)
	}
	expect := func(want aggregator.ConfigRing) {
		t.Helper()
		if want.Places > 0 {
			want.ID, want.Base, want.Capacity = ring, 1000, 100
		}
		for _, c := range tr.process(p.PID).Chips {
			if c.ConfigRing != want.Usage() {
				t.Errorf("chip %d: %+v, not %+v", c.Chip.Number, c.ConfigRing, want)
			}
		}
	}
	const inFlight, committed = 1, 2
	expect(aggregator.ConfigRing{})
	enqueue("a", inFlight, 40)
	expect(aggregator.ConfigRing{Used: 40, Places: 1})
	enqueue("a", committed, 40)
	expect(aggregator.ConfigRing{Used: 80, Places: 2})
	enqueue("b", committed, 30) // behind these is too little: the first gives way
	expect(aggregator.ConfigRing{Used: 70, Places: 2})
	enqueue("c", inFlight, 10) // all before it is done
	expect(aggregator.ConfigRing{Used: 10, Places: 1})
	for range 20 { // no more than 7 places
		enqueue("d", committed, 1)
	}
	expect(aggregator.ConfigRing{Used: 7, Places: 7})
	fixture.Do(t, p, "replay %#x 1 1", queue)
	expect(aggregator.ConfigRing{Used: 100, Places: 1, Replayed: true})
	enqueue("e", committed, 90)
	expect(aggregator.ConfigRing{Used: 90, Places: 1})
	tr.mu.Lock()
	sizes := map[uint64]bool{}
	for _, program := range tr.accounts.Programs(p.PID) {
		sizes[program.Config.WithoutBound()] = true
	}
	tr.mu.Unlock()
	if want := map[uint64]bool{40: true, 30: true, 10: true, 1: true, 90: true}; !maps.Equal(sizes, want) {
		t.Errorf("programs take %v of the ring, not %v", sizes, want)
	}
	// One that was used before is known to a tracer that starts later.
	late := start(t, Options{PIDs: []uint32{p.PID}})
	late.await("the process's ring", func() bool {
		s, ok := late.lookup(p.PID)
		return ok && slices.ContainsFunc(s.Chips, func(c aggregator.ChipSnapshot) bool { return c.ConfigRing.ID == ring })
	})
	for _, c := range late.process(p.PID).Chips {
		if want := (aggregator.ConfigRing{ID: ring, Base: 1000, Capacity: 100, Used: 90, Places: 1}); c.ConfigRing != want.Usage() {
			t.Errorf("attached late, chip %d: %+v, not %+v", c.Chip.Number, c.ConfigRing, want)
		}
	}
	fixture.Do(t, p, "close 0")
	tr.sync()
	for _, c := range tr.snapshot().Chips {
		if c.ConfigRing.ID == ring {
			t.Errorf("chip %d still has %+v", c.Chip.Number, c.ConfigRing)
		}
	}
}

// The ring is unknown, and a reason says so, if a library does not show how to read it.
func TestRingsThatAreNotUnderstood(t *testing.T) {
	build := fixture.Build{Flags: []string{"-O2"}, Strip: true, Hide: []string{"_ZN2tt8tt_metal21WorkerConfigBufferMgr5allocEj"}}
	p := fixture.User(t, build)
	tr := start(t, Options{PIDs: []uint32{p.PID}})
	fixture.Do(t, p, "mesh 0 1 2")
	queue := fixture.Number(t, p, "queue 0")
	fixture.Do(t, p, "ring %#x 1000 100", queue)
	w, program := fixture.Number(t, p, "workload"), fixture.Number(t, p, "program")
	fixture.Do(t, p, "join %#x %#x", w, program)
	fixture.Do(t, p, "enqueue %#x %#x 1 40", queue, w)
	for _, c := range tr.process(p.PID).Chips {
		if c.ConfigRing.ID == 0 || c.ConfigRing.Capacity.Known() || c.ConfigRing.Used.Known() {
			t.Errorf("chip %d: %+v", c.Chip.Number, c.ConfigRing)
		}
	}
	if got := tr.reasons(p.PID); len(got) > 0 {
		t.Errorf("its other numbers are marked: %v", got)
	}
	tr.noticed("kernel-config rings are not shown")
}

func privateNumbering(t *testing.T, tr *trace, p *fixture.Process, l *ledger) {
	l.private = true
	l.device(0, 0, 1)
	l.alloc(0, aggregator.DRAM, 0, 1)
	l.compare()
}

// What a process puts into its environment is not where the kernel shows what it began with.
func ownNumbering(t *testing.T, tr *trace, p *fixture.Process, l *ledger) {
	fixture.Do(t, p, "setenv TT_VISIBLE_DEVICES 2,3")
	privateNumbering(t, tr, p, l)
}
