package ui

import (
	"strings"
	"testing"

	"tt-memtrace/aggregator"
	"tt-memtrace/aggregator/exact"
	"tt-memtrace/ui/text"
)

// What the runtime's own sums do not have is not shown as 0.
func TestRuntimeTotalsShowNothingThatTheyLack(t *testing.T) {
	a := aggregator.New()
	s := aggregator.RuntimeTotals{}
	s.Requested[aggregator.DRAM] = 3 << 20
	for _, e := range []aggregator.Event{
		{Kind: aggregator.ProcessStart, PID: 7, Process: &aggregator.Process{Started: 1, Command: "p", Source: aggregator.FromSharedMemory}},
		{Kind: aggregator.RuntimeTotalsChanged, PID: 7, RuntimeTotals: &s},
	} {
		a.Apply(&e)
	}
	var b strings.Builder
	if err := Text(&b, a.Snapshot(), TextOptions{Width: 160, Requested: true, ASCII: true}); err != nil {
		t.Fatal(err)
	}
	g := text.GlyphSet(true)
	for l := range strings.Lines(b.String()) {
		if f := strings.Fields(l); len(f) > 12 && f[0] == "7" && strings.Join(f[10:13], "") != strings.Repeat(g.Unknown, 3) {
			t.Errorf("buffers, allocations and frees are %q in %q", f[10:13], l)
		}
	}
	if !strings.Contains(b.String(), g.AtLeast+"3.00") {
		t.Errorf("the peak counts as known:\n%s", b.String())
	}
}

// What sampling does not see is marked: counts and peaks are lower bounds, launches unknown.
func TestSampledIsMarked(t *testing.T) {
	a := aggregator.New()
	for _, e := range []aggregator.Event{
		{Kind: aggregator.ProcessStart, PID: 7, Process: &aggregator.Process{Started: 1, Command: "p", Source: aggregator.Sampled}},
		{Kind: aggregator.DeviceOpen, PID: 7, Device: 1, Opened: &aggregator.Opened{Chips: []aggregator.Chip{{Number: 0}}}},
		{Kind: aggregator.Alloc, PID: 7, Device: 1, Allocator: 2, Buffer: 3, Size: 4096, PerBank: 4096, Memory: aggregator.DRAM},
	} {
		a.Apply(&e)
	}
	s := a.Snapshot()
	p, o, g := &s.Processes[0], settings{}, text.GlyphSet(false)
	allocs, frees := p.Counters.Allocs, p.Counters.Frees
	if got := counted(allocs, o, g).String(); got != "≥1" {
		t.Errorf("an allocation is %q", got)
	}
	if got := counted(frees, o, g).String(); got != "·" {
		t.Errorf("no frees are %q", got)
	}
	for _, requested := range []bool{false, true} {
		o.requested = requested
		dram, l1 := o.amountOf(s.Chips[0].Memory[aggregator.DRAM]), o.amountOf(s.Chips[0].Memory[aggregator.L1])
		if (dram.used.Bound() == exact.Exact) != requested || dram.peak.Known() != requested || l1.peak.Known() {
			t.Errorf("requested %t: %+v, %+v", requested, dram, l1)
		}
	}
	if cb := programsOf(s.Chips[0].CB); cb.used.Known() || cb.peak.Known() { // it is not read yet
		t.Errorf("%+v", cb)
	}
	var b strings.Builder
	if err := Text(&b, s, TextOptions{Width: 200}); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(b.String(), "≥1 ") {
		t.Errorf("its allocations are not marked in\n%s", b.String())
	}
	if allocs := exact.Of(0); counted(allocs, o, g).String() != "0" {
		t.Errorf("no allocations of a traced process are %v", allocs)
	}
}

// How often is sampled stays in the header of a narrow terminal, and a command does not.
func TestHeaderSaysHowOftenIsSampled(t *testing.T) {
	for source, want := range map[string]string{"sampled 7.6s, python /srv/models/a-very-long-name.py --batch 32": "sampled 7.6s", "live": ""} {
		for _, w := range []int{80, 100, 120, 200} {
			d := data{snapshot: &aggregator.Snapshot{}, host: "a-host-with-a-long-name", source: source}
			got := header(&d, settings{}, w).String()
			if want != "" && !strings.Contains(got, want) || want == "" && strings.Contains(got, "sampled") {
				t.Errorf("%d cells of %q: %q", w, source, got)
			}
		}
	}
}
