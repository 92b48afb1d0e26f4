package ui

import (
	"strings"
	"testing"
)

// A replay that has ended shows what it was like, and not zeros alone.
func TestAReplayEndsWithASummary(t *testing.T) {
	w := exhausted()
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
		"─ summary ─", "DRAM     12.0 GiB of 12 GiB  100 %!  on chip 0", "TRACE    48.0 MiB", "41822 python3 serve.py", "2 allocations failed; ! explains", "none lost",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
	w.press("<Esc>")
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
