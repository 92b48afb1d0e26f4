package ui

import (
	"strings"
	"testing"

	"tt-memtrace/aggregator"
)

// What the runtime's own sums do not tell is not shown as 0.
func TestSumsShowNothingThatTheyDoNotKnow(t *testing.T) {
	a := aggregator.New()
	s := aggregator.Sums{}
	s.Requested[aggregator.DRAM] = 3 << 20
	for _, e := range []aggregator.Event{
		{Kind: aggregator.ProcessStart, PID: 7, Process: &aggregator.Process{Started: 1, Command: "p", Source: aggregator.Summed}},
		{Kind: aggregator.Counted, PID: 7, Sums: &s},
	} {
		a.Apply(&e)
	}
	var b strings.Builder
	if err := Text(&b, a.Snapshot(), TextOptions{Width: 160, Requested: true, ASCII: true}); err != nil {
		t.Fatal(err)
	}
	g := glyphSet(true)
	for l := range strings.Lines(b.String()) {
		if f := strings.Fields(l); len(f) > 11 && f[0] == "7" && strings.Join(f[9:12], "") != strings.Repeat(g.unknown, 3) {
			t.Errorf("buffers, allocations and frees are %q in %q", f[9:12], l)
		}
	}
	if !strings.Contains(b.String(), g.atLeast+"3.00") {
		t.Errorf("the peak is taken for known:\n%s", b.String())
	}
}
