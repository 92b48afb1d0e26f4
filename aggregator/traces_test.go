package aggregator

import (
	"testing"

	"tt-memtrace/aggregator/exact"
)

// A buffer is unsafe once a trace is replayed that was captured before it, and it says
// whether another one lay in its place during the capture.
func TestUnsafeUnderATrace(t *testing.T) {
	const near, far = 0x100, 0x200
	a := New()
	var found []Change
	a.OnUnsafe = func(c Change) { found = append(found, c) }
	now := uint64(100)
	apply := func(events ...Event) {
		for i := range events {
			now++
			e := &events[i]
			e.PID, e.Time = 1, now
			a.Apply(e)
		}
	}
	alloc := func(id, device, address uint64, m Memory) Event {
		return Event{Kind: Alloc, Buffer: id, Device: device, Memory: m, Address: address, Size: 4096, PerBank: 1024}
	}
	replay := func(device uint64, number uint32) Event {
		return Event{Kind: Replayed, Device: device, Trace: number, Count: 1}
	}
	open := opened(1, near, host(0, 1))
	other := opened(1, far, host(5))
	apply(open, other,
		alloc(1, near, 0, DRAM), // before: its contents are what the trace works on
		Event{Kind: TraceBegun, Device: near, Trace: 3},
		alloc(2, near, 4096, DRAM), alloc(3, near, 8192, L1),
		Event{Kind: Free, Buffer: 2},
		Event{Kind: TraceCaptured, Device: near, Trace: 3},
		alloc(4, near, 1<<20, Trace),
		alloc(5, near, 4096+512, DRAM), // reaches into the place of 2
		alloc(6, near, 8192, DRAM),     // the place of 3, in another memory
		alloc(7, far, 4096, DRAM),      // on another chip
		alloc(8, near, 4096-1024, DRAM),
		Event{Kind: Free, Buffer: 8}) // before any replay
	if len(found) > 0 || a.Snapshot().Processes[0].unsafe != (UnsafeTally{}) {
		t.Errorf("before a replay: %+v", found)
	}
	apply(replay(near, 3))
	if len(found) != 2 || found[0].Buffer.ID != 5 || found[0].Buffer.Unsafe != (Unsafe{true, 3, true}) ||
		found[1].Buffer.ID != 6 || found[1].Buffer.Unsafe != (Unsafe{true, 3, false}) || len(found[1].Chips) != 2 {
		t.Fatalf("%+v", found)
	}
	if u := a.Snapshot().Processes[0].unsafe; u != (UnsafeTally{2, 8192, 1, 4096}) {
		t.Errorf("%+v", u)
	}
	// Each is found once, and again where another trace shows that it is worse.
	apply(replay(near, 3), Event{Kind: TraceBegun, Device: near, Trace: 4}, alloc(9, near, 1<<16, DRAM), Event{Kind: TraceCaptured, Device: near, Trace: 4})
	apply(replay(near, 4))
	if len(found) != 2 {
		t.Errorf("found again: %+v", found[2:])
	}
	apply(replay(near, 3))
	if len(found) != 3 || found[2].Buffer.ID != 9 {
		t.Errorf("what a later capture leaves is younger than the first: %+v", found[2:])
	}
	// What was overwritten stays so; what is freed is not counted any more.
	apply(Event{Kind: TraceReleased, Trace: 3}, Event{Kind: Free, Buffer: 5})
	if u := a.Snapshot().Processes[0].unsafe; u != (UnsafeTally{2, 8192, 0, 0}) {
		t.Errorf("%+v", u)
	}
	// What the program marks is none, before a replay and after; its place can be another buffer's then.
	mark := func(id uint64) Event { return Event{Kind: MarkedCorruptible, Buffer: id} }
	apply(alloc(11, near, 1<<17, DRAM), mark(11), mark(12), replay(near, 4), Event{Kind: Free, Buffer: 11}, alloc(11, near, 1<<17, DRAM))
	if len(found) != 3 {
		t.Errorf("marked: %+v", found[3:])
	}
	apply(replay(near, 4))
	if u := a.Snapshot().Processes[0].unsafe; len(found) != 4 || u != (UnsafeTally{3, 12288, 0, 0}) {
		t.Errorf("%+v, %+v", found[3:], u)
	}
	apply(mark(11))
	if u := a.Snapshot().Processes[0].unsafe; u != (UnsafeTally{2, 8192, 0, 0}) {
		t.Errorf("marked after it was found: %+v", u)
	}
	found = found[:3]
	apply(alloc(10, near, 4096, DRAM), replay(near, 3))
	if len(found) != 3 {
		t.Errorf("by a trace that was released: %+v", found[3:])
	}
	if list := a.Traces(1); len(list) != 2 || list[0].Captured != 0 || list[1].Trace != 4 || list[1].Captured == 0 || list[1].Count != 3 {
		t.Errorf("%+v", list)
	}
	if n := a.Snapshot().Processes[0].counters.Unsafe; n != 4 {
		t.Errorf("%d were unsafe", n)
	}
	apply(Event{Kind: DeviceClose, Device: near})
	if list := a.Traces(1); len(list) != 0 {
		t.Errorf("%+v", list)
	}
}

// A buffer of which only a comparison knows can be from before the capture of a trace or from after it: that it is not
// unsafe is not said.
func TestMissedAllocationUnderATrace(t *testing.T) {
	both := Scan{Buffers: []LiveBuffer{liveBuffer(1, 100), liveBuffer(2, 100), liveBuffer(3, 100)}}
	first := both
	first.First = true
	begun, captured := Event{Kind: TraceBegun, PID: 1, Device: 1, Trace: 1, Time: 10}, Event{Kind: TraceCaptured, PID: 1, Device: 1, Trace: 1, Time: 20}
	for _, c := range []struct {
		what   string
		events []Event
		want   bool
	}{
		{"after a capture", []Event{begun, captured, scanned(both)}, true},
		{"during a capture", []Event{begun, scanned(both)}, true},
		{"before a capture", []Event{scanned(both), begun, captured}, false},
		{"of a trace that was released", []Event{begun, captured, {Kind: TraceReleased, PID: 1, Trace: 1}, scanned(both)}, false},
		{"from before tracing", []Event{begun, captured, scanned(first)}, false},
	} {
		a := run(twoBuffers(), c.events...)
		if got := a.processes[1].has(exact.ReasonTracesMissed); got != c.want {
			t.Errorf("%s: marked %v", c.what, got)
		}
	}
}

// If there are more traces than are kept, none is reported to overwrite nothing.
func TestMoreTracesThanAreKept(t *testing.T) {
	a := twoBuffers()
	for number := range uint32(maxTraces) {
		a.Apply(&Event{Kind: TraceBegun, PID: 1, Device: 1, Trace: number, Time: 10})
	}
	if a.processes[1].has(exact.ReasonTracesMissed) {
		t.Error("marked before there are too many")
	}
	if a.Apply(&Event{Kind: TraceBegun, PID: 1, Device: 1, Trace: maxTraces, Time: 10}); !a.processes[1].has(exact.ReasonTracesMissed) {
		t.Error("not marked")
	}
}

// The host's memory of a process: first, highest and last.
func TestHostMemory(t *testing.T) {
	a := New()
	for _, bytes := range []uint64{100, 300, 200} {
		a.Apply(&Event{Kind: HostMemoryRead, PID: 1, Size: bytes})
	}
	if h := a.Snapshot().Processes[0].HostMemory; h != (HostMemory{100, 300, 200}) {
		t.Errorf("%+v", h)
	}
}

// If a process had traces before tracing began, what was seen to be allocated is younger than these. In another process
// a trace whose capture was not seen proves nothing.
func TestReplayOfATraceFromBefore(t *testing.T) {
	for _, late := range []bool{false, true} {
		a := New()
		events := []Event{
			{Kind: ProcessStart, Process: &Process{Started: 1, Late: late}},
			opened(1, 0x100, host(0)),
			{Kind: Alloc, Buffer: 1, Device: 0x100, Size: 1, Time: 10},
			{Kind: Replayed, Device: 0x100, Trace: 0, Count: 1, Time: 20},
			{Kind: Alloc, Buffer: 2, Device: 0x100, Size: 1, Time: 30},
			{Kind: Replayed, Device: 0x100, Trace: 0, Count: 1, Time: 40},
		}
		for i := range events {
			events[i].PID = 1
			a.Apply(&events[i])
		}
		want := uint64(0)
		if late {
			want = 2
		}
		if u := a.Snapshot().Processes[0].unsafe; u.Buffers != want || u.Overlapping != 0 {
			t.Errorf("late %v: %+v", late, u)
		}
	}
}

// A replay of a trace from before makes what was allocated since the late attach unsafe, also once the process was
// read. What memory its capture used is unknown, and marked. Without a younger buffer nothing is marked.
func TestReplayOfATraceFromBeforeOnceRead(t *testing.T) {
	for _, younger := range []bool{false, true} {
		late := started(1, 1)
		late.Process.Late = true
		a := run(New(), late, opened(1, 1, host(0)), scanned(Scan{First: true, Buffers: []LiveBuffer{liveBuffer(1, 100)}, Allocators: []uint64{2}}), started(1, 1))
		want := uint64(0)
		if younger {
			run(a, alloc(1, 1, 2, DRAM, 100))
			want = 1
		}
		run(a, Event{Kind: Replayed, PID: 1, Device: 1, Trace: 7, Count: 1})
		for _, a := range []*Aggregator{a, loaded(a)} {
			p := a.Snapshot().Processes[0]
			if p.unsafe.Buffers != want || a.processes[1].has(exact.ReasonTracesBeforeAttach) != younger || p.HidesUnsafe() != younger {
				t.Errorf("younger %v: %+v, reasons %v", younger, p.unsafe, p.Reasons)
			}
		}
	}
}

// What a process allocates and frees beside a trace that is never replayed costs no memory.
func TestYoungerBuffersAreForgotten(t *testing.T) {
	a := New()
	apply := func(e Event) {
		e.PID = 1
		a.Apply(&e)
	}
	apply(opened(1, 0x100, host(0)))
	apply(Event{Kind: TraceBegun, Device: 0x100, Trace: 1, Time: 1})
	apply(Event{Kind: TraceCaptured, Device: 0x100, Trace: 1, Time: 2})
	for i := range uint64(100_000) {
		apply(Event{Kind: Alloc, Buffer: i%7 + 1, Device: 0x100, Size: 1, Time: 10 + i})
		if i%7 != 3 {
			apply(Event{Kind: Free, Buffer: i%7 + 1, Time: 10 + i})
		}
	}
	if n := cap(a.processes[1].younger); n > 1<<13 {
		t.Errorf("room for %d", n)
	}
	apply(Event{Kind: Replayed, Device: 0x100, Trace: 1, Count: 1, Time: 1 << 20})
	if u := a.Snapshot().Processes[0].unsafe; u.Buffers != 1 {
		t.Errorf("%+v", u)
	}
}
