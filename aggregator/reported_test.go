package aggregator

import (
	"testing"

	"tt-memtrace/aggregator/exact"
)

// Circular buffers that a client reports have a size and no cores: they are in the
// plain sum, and what lies where stays what is known of the others.
func TestReportedCircularBuffers(t *testing.T) {
	a := New()
	var totals []uint64
	a.OnCBChange = func(c CBChange) { totals = append(totals, c.Total) }
	cores := []CoreRange{{X1: 1, Y1: 1}}
	for _, e := range []Event{
		opened(1, 0x100, host(3)),
		{Kind: CBPlaced, PID: 1, Device: 0x100, Program: 1, CB: &CircularBuffer{Address: 100, Size: 10, Ranges: cores}},
		opened(2, 0x100, host(3)),
		{Kind: CBPlaced, PID: 2, Device: 0x100, Program: 1, CB: &CircularBuffer{Kind: ReportedCircular, Size: 1 << 31}},
		{Kind: CBPlaced, PID: 2, Device: 0x100, Program: 2, CB: &CircularBuffer{Kind: ReportedCircular, Size: 7}},
		{Kind: CBPlaced, PID: 2, Device: 0x100, Program: 3, CB: &CircularBuffer{Kind: ReportedCircular, Size: 7, Ranges: cores}}, // odd
	} {
		a.Apply(&e)
	}
	want := EmptyCBUsage()
	want.Circular, want.Programs, want.Reported, want.reported = exact.Of(1), exact.Of(1), exact.Of(2), 2
	var unknown exact.Quantity // an event was ignored
	want.Dataflow, want.Scratchpads, want.Global = unknown, unknown, unknown
	want.Logical, want.PeakLogical = exact.Of(40+1<<31+7), exact.Of(40+1<<31+7)
	least := func(n uint64) exact.Quantity { return exact.Bounded(n, exact.AtLeast) }
	want.Physical, want.PeakPhysical, want.BusiestBytes, want.Top = least(40), least(40), least(10), least(110)
	s := a.Snapshot()
	if got := s.Chips[0].CB; got != want {
		t.Errorf("%+v, not %+v", got, want)
	}
	if s.Processes[1].counters.Odd != 1 {
		t.Errorf("%+v", s.Processes[1].counters)
	}
	a.Apply(&Event{Kind: ProgramGone, PID: 2, Program: 1})
	a.Apply(&Event{Kind: ProcessExit, PID: 2})
	want.Logical, want.Reported, want.reported = exact.Of(40), exact.Of(0), 0
	want.Dataflow, want.Scratchpads, want.Global = exact.Of(0), exact.Of(0), exact.Of(0)
	want.Physical, want.PeakPhysical, want.BusiestBytes, want.Top = exact.Of(40), exact.Of(40), exact.Of(10), exact.Of(110)
	if got := a.Snapshot().Chips[0].CB; got != want {
		t.Errorf("%+v, not %+v", got, want)
	}
	for i, w := range []uint64{40, 40 + 1<<31, 40 + 1<<31 + 7, 47, 40} {
		if i >= len(totals) || totals[i] != w {
			t.Fatalf("the totals were %v", totals)
		}
	}
}

// What the tracer loses says nothing of what clients report, and nothing of the
// process's own would ever lift the suspicion. A recorder loses of both.
func TestLossesAndReportedProcesses(t *testing.T) {
	reported := started(2, 7)
	reported.Process.Source = Reported
	for anyone, want := range map[bool]bool{false: true, true: false} {
		a := run(twoBuffers(), reported, opened(2, 1, host(0)), alloc(2, 1, 1, DRAM, 100), Event{Kind: Lost, Count: 1, Anyone: anyone})
		if a.Snapshot().Exact() {
			t.Error("exact with a loss")
		}
		run(a, scanned(Scan{Buffers: []LiveBuffer{liveBuffer(1, 100), liveBuffer(2, 100)}}))
		if got := a.Snapshot().Exact(); got != want {
			t.Errorf("of anyone %t: exact %t after the comparison", anyone, got)
		}
	}
}
