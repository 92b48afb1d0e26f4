package ui

import (
	"strings"
	"testing"
	"time"

	"tt-memtrace/aggregator"
)

// After b the processes have columns of what they gained: the one that grows comes first when
// sorted by it, and a replay that goes back has no baseline any more.
func TestProcessesThatGrowSinceABaseline(t *testing.T) {
	w := newWorld(1)
	w.view(settings{}).SetRect(0, 0, 120, 30)
	big := w.begins(1001, "python steady.py", w.chips, false)
	small := w.begins(1002, "python leak.py", w.chips, false)
	for i := range uint64(8) {
		w.alloc(1001, big, aggregator.DRAM, i*mib, mib)
	}
	w.pass(time.Second)
	w.press("b")
	for i := range uint64(6) {
		w.alloc(1002, small, aggregator.DRAM, (8+i)*mib, mib)
		w.pass(10 * time.Second)
	}
	got := w.text(t, 120, 30)
	row := func(command string) string {
		for l := range strings.Lines(got) {
			if strings.Contains(l, command) {
				return l
			}
		}
		t.Fatalf("no %s in:\n%s", command, got)
		return ""
	}
	if l := row("leak.py"); strings.Count(l, "+72.0 MiB") != 2 {
		t.Errorf("12 MiB six times in a minute: %q", l)
	}
	if l := row("steady.py"); strings.Contains(l, "+") {
		t.Errorf("it did not grow: %q", l)
	}
	if strings.Index(got, "steady.py") > strings.Index(got, "leak.py") {
		t.Errorf("not sorted by DRAM:\n%s", got)
	}
	for range 20 {
		if w.frame.settings.sort == byGrowth {
			break
		}
		w.press("s")
	}
	if got = w.text(t, 120, 30); strings.Index(got, "leak.py") > strings.Index(got, "steady.py") {
		t.Errorf("not sorted by growth:\n%s", got)
	}
	w.frame.data.now -= 70 * oneSecond
	if got = plainText(w.frame.compose(120, 30)); strings.Contains(got, "+DRAM") {
		t.Errorf("a baseline that is yet to come:\n%s", got)
	}
}
