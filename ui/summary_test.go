package ui

import (
	"strings"
	"testing"
	"time"

	"tt-memtrace/aggregator"
)

// A buffer whose reserved size was never learned is in the summary with what it asked for, as a lower bound.
func TestASummaryHasPeaksOfUnknownReservedSize(t *testing.T) {
	w := newWorld(1)
	w.view(settings{})
	device := w.begins(7, "python fill.py", w.chips, false)
	id := w.id()
	w.publish(aggregator.Event{Kind: aggregator.Alloc, PID: 7, TID: 8, Device: device, Allocator: device + 1, Buffer: id, Memory: aggregator.L1,
		Address: mib, Size: 80 * mib, PageSize: 2048})
	w.press("8")
	w.pass(time.Second)
	if got := w.text(t, 120, 40); !strings.Contains(got, "L1        ≥80.0 MiB   ≥80.0 MiB") {
		t.Errorf("its site has not at least what it asked for:\n%s", got)
	}
	w.press("1")
	w.publish(aggregator.Event{Kind: aggregator.Free, PID: 7, TID: 8, Device: device, Buffer: id})
	w.pass(time.Second)
	w.text(t, 120, 40)
	w.press(":summary<Enter>")
	got := w.text(t, 120, 40)
	if !strings.Contains(got, "L1       ≥80.0 MiB of ") || strings.Contains(got, "L1 0,") || !strings.Contains(got, "L1 ·, ") {
		t.Error(got)
	}
}

// A replay that has ended shows what it was like, and not zeros alone.
func TestAReplayEndsWithASummary(t *testing.T) {
	w := exhausted()
	w.frame.further = func() string { return "a report has more" }
	d := w.data()
	d.recorded = true
	w.frame.update(d, w.wall)
	if got := w.text(t, 120, 40); strings.Contains(got, "─ summary ─") {
		t.Error("it has not ended yet")
	}
	d.ended = true
	w.frame.update(d, w.wall)
	got := w.text(t, 120, 40)
	for _, want := range []string{
		"─ summary ─", "DRAM     12.0 GiB of 12 GiB  100 %!  on chip 0", "TRACE    48.0 MiB", "41822 python3 serve.py", "4 allocations failed; ! explains", "none lost",
		"next        3 has the charts, 6 the events", "            a report has more",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
	w.press("!")
	if got := w.text(t, 120, 40); strings.Contains(got, "─ summary ─") || !strings.Contains(got, "allocations failed ─") {
		t.Errorf("! explains nothing:\n%s", got)
	}
	w.press("!")
	if got := w.text(t, 120, 40); strings.Contains(got, "allocations failed ─") {
		t.Error("! does not close what it opened")
	}
	w.frame.update(d, w.wall)
	if got := w.text(t, 120, 40); strings.Contains(got, "─ summary ─") {
		t.Error("it comes back")
	}
	w.press(":summary<Enter>")
	if got := w.text(t, 120, 40); !strings.Contains(got, "─ summary ─") {
		t.Error(got)
	}
	w.press("3")
	if got := w.text(t, 120, 40); strings.Contains(got, "─ summary ─") || w.frame.current != chartsPage {
		t.Errorf("a view's key does not go there: %s", got)
	}
	// What is live has no summary of its own accord.
	live := exhausted()
	d = live.data()
	d.ended = true
	live.frame.update(d, live.wall)
	if got := live.text(t, 120, 40); strings.Contains(got, "─ summary ─") {
		t.Error(got)
	}
}
