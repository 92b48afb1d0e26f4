package report

import (
	"strings"
	"testing"

	"tt-memtrace/aggregator"
)

// What failed is explained by the accounts of that moment: the call site, what helps, and
// the holders with their sites.
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
	refused := aggregator.Event{Kind: aggregator.AllocationFailed, PID: 7, Time: 5, Memory: aggregator.L1, Stack: stack("round"),
		Failure: &aggregator.FailedAllocation{Asked: 1 << 26, PerBank: 1 << 20, Banks: 64, BankBytes: 1 << 20, Allocated: 1 << 19, Free: 1 << 19, Largest: 1 << 19, Message: "Out of Memory"}}
	if err := Explain(&b, a.State(), &refused); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"round", "next: too little is free", "requested 1.00 MiB per bank", "chip 0, per bank: 512.00 KiB allocated", "cache"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q in\n%s", want, b.String())
		}
	}
}

// The largest free block is the runtime's, where nobody else holds the memory, and unknown otherwise: where a bank
// begins cannot be seen once the buffers at its top are free.
func TestExplainHasTheRuntimesLargestBlock(t *testing.T) {
	const base = 0x19d60
	for allocated, want := range map[uint64]string{
		64 << 10: "chip 0, per bank: 64.00 KiB allocated, 960.00 KiB free, largest free block 800.00 KiB",
		32 << 10: "chip 0, per bank: 64.00 KiB allocated\n", // another allocator holds the rest
	} {
		a := aggregator.New()
		for _, e := range []aggregator.Event{
			{Kind: aggregator.ProcessStart, PID: 7, Time: 1, Process: &aggregator.Process{Started: 1, Command: "python loop.py"}},
			{Kind: aggregator.DeviceOpen, PID: 7, Time: 2, Device: 1, Opened: &aggregator.Opened{Chips: []aggregator.Chip{{Number: 0}}}},
			{Kind: aggregator.AllocatorSeen, PID: 7, Time: 3, Device: 1, Allocator: 2, Capacity: &aggregator.Capacity{aggregator.L1: {Known: true, Count: 64, Bytes: 1 << 20}}},
			{Kind: aggregator.Alloc, PID: 7, Time: 4, Device: 1, Allocator: 2, Buffer: 9, Memory: aggregator.L1, Address: base + 800<<10, PerBank: 64 << 10, Size: 4 << 20},
		} {
			a.Apply(&e)
		}
		var b strings.Builder
		refused := aggregator.Event{Kind: aggregator.AllocationFailed, PID: 7, Time: 5, Memory: aggregator.L1, Failure: &aggregator.FailedAllocation{
			PerBank: 900 << 10, BankBytes: 1 << 20, Allocated: allocated, Free: 1<<20 - allocated, Largest: 800 << 10, Message: "Out of Memory"}}
		if err := Explain(&b, a.State(), &refused); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q in\n%s", want, b.String())
		}
	}
}

// On the screen all holders are listed: there is no other output to look at.
func TestExplainListsAllHolders(t *testing.T) {
	a := aggregator.New()
	apply := func(e aggregator.Event) { a.Apply(&e) }
	apply(aggregator.Event{Kind: aggregator.ProcessStart, PID: 7, Time: 1, Process: &aggregator.Process{Started: 1, Command: "python loop.py"}})
	apply(aggregator.Event{Kind: aggregator.DeviceOpen, PID: 7, Time: 2, Device: 1, Opened: &aggregator.Opened{Chips: []aggregator.Chip{{Number: 0}}}})
	apply(aggregator.Event{Kind: aggregator.AllocatorSeen, PID: 7, Time: 3, Device: 1, Allocator: 2, Capacity: &aggregator.Capacity{aggregator.L1: {Known: true, Count: 64, Bytes: 1 << 20}}})
	for i := range uint64(manyHolders + 5) {
		apply(aggregator.Event{Kind: aggregator.Alloc, PID: 7, Time: 4 + i, Device: 1, Allocator: 2, Buffer: 9 + i, Memory: aggregator.L1, Address: i << 10, PerBank: 64, Size: 64 * (i + 1)})
	}
	var b strings.Builder
	refused := aggregator.Event{Kind: aggregator.AllocationFailed, PID: 7, Time: 99, Memory: aggregator.L1, Failure: &aggregator.FailedAllocation{PerBank: 1 << 20, Message: "Out of Memory"}}
	if err := Explain(&b, a.State(), &refused); err != nil {
		t.Fatal(err)
	}
	if s := b.String(); strings.Count(s, "buffers of") != manyHolders || strings.Contains(s, "--json") || !strings.Contains(s, "5 other") || !strings.Contains(s, "x in the view sites") {
		t.Error(s)
	}
}

// What helps depends on what was lacking: space, one piece of it, or a bank that is large enough.
func TestRemedy(t *testing.T) {
	full := func(asked, free, largest uint64) *aggregator.FailedAllocation {
		return &aggregator.FailedAllocation{PerBank: asked, Banks: 64, BankBytes: 1 << 20, Allocated: 1<<20 - free, Free: free, Largest: largest}
	}
	for _, x := range []struct {
		name    string
		failure *aggregator.FailedAllocation
		memory  aggregator.Memory
		banks   uint64
		want    []string
	}{
		{"larger than a bank", full(2<<20, 1<<20, 1<<20), aggregator.L1, 64, []string{"freeing does not help", "make it smaller or put it into DRAM"}},
		{"on few banks", full(2<<20, 1<<20, 1<<20), aggregator.L1, 120, []string{"more than 64 of the 120 banks"}},
		{"full", full(1<<19, 1<<18, 1<<18), aggregator.DRAM, 64, []string{"too little is free", "make it smaller"}},
		{"fragmented", full(1<<18, 1<<19, 1<<17), aggregator.L1, 64, []string{"not in one piece", "view map"}},
		{"trace region", full(2<<20, 1<<20, 1<<20), aggregator.Trace, 64, []string{"trace_region_size"}},
		{"small L1", full(1<<19, 1<<18, 1<<18), aggregator.L1Small, 64, []string{"l1_small_size"}},
		{"clash", &aggregator.FailedAllocation{Kind: aggregator.Clash, End: 0x1cd60, Lowest: 0x1c000}, aggregator.L1, 64, []string{"3.34 KiB smaller", "DRAM"}},
		{"a message without the bank's numbers", &aggregator.FailedAllocation{PerBank: 1 << 20}, aggregator.L1, 64, nil},
		{"room enough", full(1<<10, 1<<19, 1<<19), aggregator.L1, 64, nil},
	} {
		got := remedy(x.failure, x.memory, x.banks, true)
		if (got == "") != (x.want == nil) {
			t.Errorf("%s: %q", x.name, got)
		}
		for _, want := range x.want {
			if !strings.Contains(got, want) {
				t.Errorf("%s: no %q in %q", x.name, want, got)
			}
		}
	}
}

// Without a list of the holders, what helps does not name one, and knows the banks of the process's chips.
func TestNextStandsAlone(t *testing.T) {
	a := aggregator.New()
	for _, e := range opened() {
		a.Apply(&e)
	}
	clash := &aggregator.FailedAllocation{Kind: aggregator.Clash, End: 0x1cd60, Lowest: 0x1c000}
	full := &aggregator.FailedAllocation{PerBank: 800, Banks: 3, BankBytes: 1000, Allocated: 600, Free: 400, Largest: 400}
	for _, c := range []struct {
		pid     uint32
		failure *aggregator.FailedAllocation
		want    string
	}{
		{1, clash, "free L1 buffers first, put them into DRAM, or make the circular buffers of a core 3.34 KiB smaller"},
		{1, full, "too little is free: free buffers first, or make it smaller or put it into DRAM, or spread it over more than 3 of the 4 banks"},
		{2, full, "too little is free: free buffers first, or make it smaller or put it into DRAM"},
	} {
		if got := Next(a.Snapshot(), &aggregator.Event{PID: c.pid, Memory: aggregator.L1, Failure: c.failure}); got != c.want {
			t.Errorf("process %d: %q, not %q", c.pid, got, c.want)
		}
	}
	if got := Next(a.Snapshot(), &aggregator.Event{PID: 1, Memory: aggregator.NumMemories, Failure: full}); got != "" {
		t.Errorf("in no memory: %q", got)
	}
}

// What the tracer could not read is unknown, and not 0: the runtime's own numbers are shown in its place.
func TestAFailureOfUnreadBuffersIsNotExplainedWithZeros(t *testing.T) {
	const message = "Out of Memory"
	open := aggregator.Event{Kind: aggregator.DeviceOpen, PID: 7, Time: 2, Device: 1, Opened: &aggregator.Opened{Chips: []aggregator.Chip{{Number: 0}}}}
	capacity := aggregator.Event{Kind: aggregator.AllocatorSeen, PID: 7, Time: 3, Device: 1, Allocator: 2, Capacity: &aggregator.Capacity{aggregator.L1: {Known: true, Count: 64, Bytes: 1 << 20}}}
	unplaced := aggregator.Event{Kind: aggregator.Alloc, PID: 7, Time: 4, Device: 1, Allocator: 2, Buffer: 9, Memory: aggregator.L1, Address: 1 << 19, Size: 1 << 25}
	for name, events := range map[string][]aggregator.Event{
		"it ended before its devices were read":     {unplaced},
		"its buffers were missed":                   {open, capacity},
		"its capacity was not read":                 {open, unplaced},
		"only a part of its buffers was read":       {open, capacity, {Kind: aggregator.Alloc, PID: 7, Time: 4, Device: 1, Allocator: 2, Buffer: 9, Memory: aggregator.L1, Address: 1 << 19, PerBank: 4096, Size: 64 * 4096}},
		"it was attached to late, and not read yet": {open, capacity},
	} {
		a := aggregator.New()
		start := aggregator.Event{Kind: aggregator.ProcessStart, PID: 7, Time: 1, Process: &aggregator.Process{Started: 1, Command: "python loop.py"}}
		a.Apply(&start)
		for i := range events {
			a.Apply(&events[i])
		}
		refused := aggregator.Event{Kind: aggregator.AllocationFailed, PID: 7, Time: 5, Memory: aggregator.L1, Failure: &aggregator.FailedAllocation{
			PerBank: 1 << 20, BankBytes: 1 << 20, Allocated: 852992, Free: 1<<20 - 852992, Largest: 1 << 16, Message: message}}
		var b strings.Builder
		if err := Explain(&b, a.State(), &refused); err != nil {
			t.Fatal(err)
		}
		if text := b.String(); !strings.Contains(text, "per bank, by the message: 833.00 KiB allocated") || !strings.Contains(text, "unknown") ||
			strings.Contains(text, " 0 B allocated") || strings.Contains(text, "    nothing\n") {
			t.Errorf("%s:\n%s", name, text)
		}
	}
}

// A clash whose lowest L1 buffer is in no account, such as one outside of the allocator, has holders that are unknown.
func TestAClashWithWhatIsNotCounted(t *testing.T) {
	a := aggregator.New()
	cb := aggregator.CircularBuffer{Call: 1, Address: 0x19000, Size: 0x3000, Ranges: []aggregator.CoreRange{{X1: 1, Y1: 1}}}
	for _, e := range []aggregator.Event{
		{Kind: aggregator.ProcessStart, PID: 7, Time: 1, Process: &aggregator.Process{Started: 1, Command: "python loop.py"}},
		{Kind: aggregator.DeviceOpen, PID: 7, Time: 2, Device: 1, Opened: &aggregator.Opened{Chips: []aggregator.Chip{{Number: 0}}}},
		{Kind: aggregator.AllocatorSeen, PID: 7, Time: 3, Device: 1, Allocator: 2, Capacity: &aggregator.Capacity{aggregator.L1: {Known: true, Count: 64, Bytes: 1 << 20}}},
		{Kind: aggregator.CBPlaced, PID: 7, Time: 4, Device: 1, Program: 5, CB: &cb},
	} {
		a.Apply(&e)
	}
	refused := aggregator.Event{Kind: aggregator.AllocationFailed, PID: 7, Time: 5, Memory: aggregator.L1, Program: 5,
		Failure: &aggregator.FailedAllocation{Kind: aggregator.Clash, End: 0x1c000, Lowest: 0x1b000, Message: "they clash"}}
	var b strings.Builder
	if err := Explain(&b, a.State(), &refused); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"what was allocated at that moment is unknown", "the program's circular buffers, by size:", "12.00 KiB", "0x19000"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q in\n%s", want, b.String())
		}
	}
}
