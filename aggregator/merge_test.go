package aggregator

import (
	"reflect"
	"slices"
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

func scanned(b Scan) Event {
	b.Allocators = append(b.Allocators, allocatorID)
	return Event{Kind: Scanned, PID: 1, Time: 50, Scan: &b}
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
		scan            Scan
		requested       uint64
		found, repaired uint64
	}{
		{"equal", Scan{Buffers: []LiveBuffer{liveBuffer(1, 100), liveBuffer(2, 100)}}, 200, 0, 0},
		{"one missing", Scan{Buffers: []LiveBuffer{liveBuffer(1, 100), liveBuffer(2, 100), liveBuffer(3, 50)}}, 250, 0, 1},
		{"one from before", Scan{First: true, Buffers: []LiveBuffer{liveBuffer(1, 100), liveBuffer(2, 100), liveBuffer(3, 50)}}, 250, 1, 0},
		{"one stale", Scan{Buffers: []LiveBuffer{liveBuffer(2, 100)}}, 100, 0, 1},
		{"none any more", Scan{}, 0, 0, 2},
		{"one of another size", Scan{Buffers: []LiveBuffer{liveBuffer(1, 300), liveBuffer(2, 100)}}, 400, 0, 1},
		{"missing, but events supersede it", Scan{Buffers: []LiveBuffer{liveBuffer(1, 100), liveBuffer(2, 100), liveBuffer(3, 50)}, Touched: touched(3)}, 200, 0, 0},
		{"stale, but events supersede it", Scan{Touched: touched(1, 2)}, 200, 0, 0},
		{"all buffers are of an allocator that ended during the scan", Scan{Buffers: []LiveBuffer{liveBuffer(3, 50)}, Touched: touched(allocatorID)}, 200, 0, 0},
		{"nonsense", Scan{Buffers: []LiveBuffer{liveBuffer(1, 100), liveBuffer(2, 100), liveBuffer(3, 1<<60), {Buffer: 4, Memory: 77}}}, 200, 0, 0},
	} {
		a := run(twoBuffers(), scanned(c.scan))
		p := a.Snapshot().Processes[0]
		if got := p.Memory[DRAM].Requested; !got.Is(c.requested) {
			t.Errorf("%s: %d bytes, want %d", c.name, got, c.requested)
		}
		if g := p.Agreement; g.Found != c.found || g.Repaired != c.repaired || g.Comparisons != 1 || g.At != 50 {
			t.Errorf("%s: %+v", c.name, g)
		}
		if p.counters.Allocs != 2 || p.counters.Frees != 0 {
			t.Errorf("%s: counted as seen: %+v", c.name, p.counters)
		}
	}
}

func TestAScanKeepsBuffersOfUnreadAllocators(t *testing.T) {
	a := run(twoBuffers(), Event{Kind: Scanned, PID: 1, Scan: &Scan{Allocators: []uint64{7}}})
	if got := a.Snapshot().Processes[0].buffers; got != 2 {
		t.Errorf("%d buffers", got)
	}
}

func TestAScanRemovesDestroyedPrograms(t *testing.T) {
	a := run(twoBuffers(), Event{Kind: KernelAdded, PID: 1, Program: 8}, Event{Kind: KernelAdded, PID: 1, Program: 9},
		scanned(Scan{Buffers: []LiveBuffer{liveBuffer(1, 100), liveBuffer(2, 100)}, ProgramsRead: true, Programs: []uint64{9}}))
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
		if run(a, scanned(Scan{Buffers: []LiveBuffer{liveBuffer(1, 100), liveBuffer(2, 100)}})); !a.Snapshot().Exact() {
			t.Errorf("%s: not exact after the comparison", name)
		}
	}
}

// The accounts stay suspect if something that lives could not be read.
func TestAfterAPartialComparisonTheProcessStaysSuspect(t *testing.T) {
	a := run(twoBuffers(), opened(1, 2, host(1)), Event{Kind: Lost, Count: 1})
	a.processes[1].raise(exact.ReasonLate, 1)
	for _, partial := range []bool{true, false} {
		a = run(a, scanned(Scan{First: true, Partial: partial, Buffers: []LiveBuffer{liveBuffer(1, 100), liveBuffer(2, 100)}}))
		s := a.Snapshot()
		if p := s.Processes[0]; p.Agreement.Suspect != partial || p.Late != partial || s.Exact() == partial {
			t.Errorf("partial %v: suspect %v, late %v, exact %v", partial, p.Agreement.Suspect, p.Late, s.Exact())
		}
	}
}

// everything is a scan of process 1 with an object of each kind, and what the earlier accounts differ in.
func everything() (before []Event, scan Scan) {
	const stays, closes, opens = 1, 2, 3
	before = []Event{
		opened(1, stays, host(0)), opened(1, closes, host(1)), seen(1, allocatorID, stays), seen(1, 0xdead, closes),
		on(alloc(1, stays, 1, DRAM, 100)), on(alloc(1, stays, 2, DRAM, 100)), on(alloc(1, stays, 3, DRAM, 100)),
		{Kind: KernelAdded, PID: 1, Program: 8}, {Kind: KernelAdded, PID: 1, Program: 9},
		{Kind: CBPlaced, PID: 1, Device: closes, Program: 7, CB: &CircularBuffer{Size: 1, Ranges: []CoreRange{{}}}},
		{Kind: CBPlaced, PID: 1, Device: stays, Program: 7, CB: &CircularBuffer{Size: 1, Ranges: []CoreRange{{}}}},
		{Kind: ReasonRaised, PID: 1, Reason: &Reason{Code: exact.ReasonForked}},
	}
	before[5].PerBank = 0 // unknown
	sized := liveBuffer(2, 100)
	sized.PerBank = 64
	return before, Scan{
		Closed: []uint64{closes}, Devices: []ScannedDevice{{opens, Opened{Chips: host(2)}}, {stays, Opened{Chips: host(0)}}},
		Live: []uint64{allocatorID}, LiveRead: true,
		Sizes:      []ScannedCapacity{{allocatorID, stays, Capacity{L1: {Known: true, Count: 7, Bytes: 1}}}},
		Allocators: []uint64{allocatorID}, Buffers: []LiveBuffer{liveBuffer(1, 300), sized, liveBuffer(4, 50)},
		Programs: []uint64{7, 9, 10}, ProgramsRead: true,
		Read: []ScannedProgram{
			{ID: 7, Devices: []uint64{opens}, Only: true},
			{ID: 9, Devices: []uint64{stays}, Replaces: true, Kernels: 1},
			{ID: 10, Devices: []uint64{stays}, Kernels: 2, Binaries: []Kernel{{ID: 5, Name: "k", Bytes: 8, Sized: true}},
				Copies: []ScannedCopy{{4, 0x4000}},
				Placed: []ScannedPlacement{{stays, CircularBuffer{Call: 1, Size: 4, Ranges: []CoreRange{{}}}}}},
		},
		Settles: []exact.ReasonCode{exact.ReasonForked, exact.ReasonReservedUnknown},
		Reasons: []Reason{{Code: exact.ReasonReservedUnknown, Detail: "why"}},
	}
}

// mergeScan merges a scan of process 1 and returns the events that this took.
func mergeScan(a *Aggregator, scan Scan) (list []Event) {
	a.Merge(&Event{Kind: Scanned, PID: 1, Time: 50, Scan: &scan}, func(events []Event) {
		list = append(list, events...)
		for i := range events {
			a.Apply(&events[i])
		}
	})
	return list
}

// A merge of the same scan gives the same events, in the same order, whether probes or samples report the process. Only
// how what changed became known differs: a sample shows what happened, a comparison what was missed.
func TestAMergeGivesTheSameEventsForEachSource(t *testing.T) {
	kinds := []Kind{DeviceClose, AllocatorGone, DeviceOpen, AllocatorSeen, Free, Alloc, SizeRead, Alloc, ProgramGone,
		ProgramNotOn, ProgramGone, KernelAdded, KernelAdded, KernelAdded, KernelLoaded, KernelsCopied, CBPlaced,
		ReasonLifted, ReasonRaised, Compared}
	for _, c := range []struct {
		source Source
		first  bool
		found  Found
		frees  int
	}{
		{Traced, false, FoundLater, 1}, {Traced, true, FoundFirst, 1},
		{Sampled, true, FoundFirst, 1}, {Sampled, false, NotFound, 2},
	} {
		before, scan := everything()
		scan.First = c.first
		a := run(New(), append([]Event{{Kind: ProcessStart, PID: 1, Process: &Process{Source: c.source}}}, before...)...)
		var got []Kind
		frees := 0
		for _, e := range mergeScan(a, scan) {
			if e.PID != 1 || e.Time != 50 {
				t.Errorf("%v: %v of process %d at %d", c.source, e.Kind, e.PID, e.Time)
			}
			if (e.Kind == Alloc || e.Kind == Free) && e.Found != c.found {
				t.Errorf("%v, first %t: %v of %d is found as %d, want %d", c.source, c.first, e.Kind, e.Buffer, e.Found, c.found)
			}
			if e.Kind == Free {
				if frees++; frees < c.frees { // a buffer that changed was freed before, if it was not missed
					continue
				}
			}
			got = append(got, e.Kind)
		}
		if !slices.Equal(got, kinds) || frees != c.frees {
			t.Errorf("%v, first %t: %d frees, %v, want %d, %v", c.source, c.first, frees, got, c.frees, kinds)
		}
		p := a.Snapshot().Processes[0]
		if !p.Memory[DRAM].Requested.Is(450) || p.buffers != 3 || p.Agreement.Compared != 3 {
			t.Errorf("%v, first %t: %+v, %d buffers, %+v", c.source, c.first, p.Memory[DRAM], p.buffers, p.Agreement)
		}
		list := a.Programs(1)
		if len(list) != 3 || len(list[0].Placed) != 0 || list[2].KernelCount != 2 || len(list[2].Placed) != 1 {
			t.Errorf("%v, first %t: programs %+v", c.source, c.first, list)
		}
		// What was merged is there: the next merge of it changes nothing. A program that replaces another is read once.
		for i := range scan.Read {
			scan.Read[i].Replaces, scan.Read[i].Placed, scan.Read[i].Copies = false, nil, nil
		}
		scan.Closed = nil
		got = nil
		for _, e := range mergeScan(a, scan) {
			if e.Kind != KernelLoaded { // a repeat is ignored
				got = append(got, e.Kind)
			}
		}
		if !slices.Equal(got, []Kind{Compared}) {
			t.Errorf("%v, first %t: once more: %v", c.source, c.first, got)
		}
	}
}

// A recording has the events of a merge, not the scan: applied alone they give the same accounts.
func TestEventsOfAMergeStandForTheScan(t *testing.T) {
	before, scan := everything()
	a, replay := run(New(), before...), run(New(), before...)
	events := mergeScan(a, scan)
	if run(replay, events...); !reflect.DeepEqual(a.Snapshot(), replay.Snapshot()) ||
		!reflect.DeepEqual(a.Buffers(1), replay.Buffers(1)) || !reflect.DeepEqual(a.Programs(1), replay.Programs(1)) {
		t.Errorf("%+v\nnot\n%+v", replay.Snapshot(), a.Snapshot())
	}
}
