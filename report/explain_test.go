package report

import (
	"strings"
	"testing"
	"time"

	"tt-memtrace/aggregator"
)

// What failed is explained by the accounts of that moment: the one who asked, the call
// site, and the holders with their sites.
func TestExplainNamesTheHolders(t *testing.T) {
	a := aggregator.New()
	stack := func(function string) *aggregator.Stack {
		return &aggregator.Stack{Frames: []aggregator.Frame{{Function: function, File: "loop.py", Line: 67, Python: true}}}
	}
	chips := []aggregator.Chip{{Number: 0}}
	for _, e := range []aggregator.Event{
		{Kind: aggregator.ProcessStart, PID: 7, Time: 1, Process: &aggregator.Process{Started: 1, Command: "python loop.py"}},
		{Kind: aggregator.DeviceOpen, PID: 7, Time: 2, Device: 1, Opened: &aggregator.Opened{Chips: chips}},
		{Kind: aggregator.AllocatorSeen, PID: 7, Time: 3, Device: 1, Allocator: 2, Capacity: &aggregator.Capacity{aggregator.L1: {Known: true, Count: 64, Bytes: 1 << 20}}},
		{Kind: aggregator.Alloc, PID: 7, Time: 4, Device: 1, Allocator: 2, Buffer: 9, Memory: aggregator.L1, Address: 1 << 19, PerBank: 1 << 19, Size: 1 << 25, Stack: stack("cache")},
	} {
		a.Apply(&e)
	}
	var b strings.Builder
	wall := func(t uint64) time.Time { return time.Date(2025, 1, 2, 11, 3, int(t), 0, time.UTC) }
	refused := aggregator.Event{Kind: aggregator.Refused, PID: 7, Time: 5, Memory: aggregator.L1, Stack: stack("round"),
		Refusal: &aggregator.Refusal{Asked: 1 << 26, PerBank: 1 << 20, Banks: 64, Message: "Out of Memory"}}
	if err := Explain(&b, a.State(), &refused, wall); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"at 11:03:05, process 7: out of memory in L1", "round", "requested 1.00 MiB per bank", "chip 0, per bank: 512.00 KiB allocated", "cache"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q in\n%s", want, b.String())
		}
	}
}
