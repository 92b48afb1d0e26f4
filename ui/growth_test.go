package ui

import (
	"regexp"
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
	if l := row(t, got, "leak.py"); strings.Count(l, "+72.0 MiB") != 2 {
		t.Errorf("12 MiB six times in a minute: %q", l)
	}
	if l := row(t, got, "steady.py"); strings.Contains(l, "+") {
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

// row is the line of a text that has a word in it.
func row(t *testing.T, got, word string) string {
	t.Helper()
	for l := range strings.Lines(got) {
		if strings.Contains(l, word) {
			return l
		}
	}
	t.Fatalf("no %s in:\n%s", word, got)
	return ""
}

// Requested and reserved sizes differ, and that is no growth: the user may switch between them.
func TestSwitchingSizesIsNoGrowth(t *testing.T) {
	w := newWorld(1)
	w.view(settings{requested: true}).SetRect(0, 0, 140, 30)
	device := w.begins(1001, "python steady.py", w.chips, false)
	for i := range uint64(8) {
		w.alloc(1001, device, aggregator.DRAM, i*mib, mib)
	}
	w.pass(time.Second)
	for _, view := range []string{"1", "8"} {
		w.press(view)
		w.pass(time.Second)
		for range 2 {
			w.text(t, 140, 30)
			w.press("b")
			w.pass(10 * time.Second)
			w.press("r")
			if l := row(t, w.text(t, 140, 30), " 1001 "); regexp.MustCompile(`[+-]\d`).MatchString(l) {
				t.Errorf("view %s: it did not grow: %q", view, l)
			}
		}
	}
}

// What a process gains in a minute is unknown right after the baseline, and so is what one gained
// that was not read yet.
func TestGrowthThatIsNotKnownIsNotZero(t *testing.T) {
	w := newWorld(1)
	w.view(settings{}).SetRect(0, 0, 140, 30)
	device := w.begins(1001, "python leak.py", w.chips, false)
	w.alloc(1001, device, aggregator.DRAM, mib, mib)
	late := w.begins(1002, "python late.py", w.chips, false)
	w.starts(1002, "python late.py", true)
	w.pass(time.Second)
	w.press("8")
	w.pass(time.Second)
	w.press("b1b")
	w.alloc(1001, device, aggregator.DRAM, 2*mib, mib)
	w.alloc(1002, late, aggregator.DRAM, 3*mib, mib)
	w.pass(time.Second)
	for _, view := range []string{"1", "8"} {
		w.press(view)
		w.pass(time.Second)
		if f := strings.Fields(row(t, w.text(t, 140, 30), " 1001 ")); !strings.Contains(strings.Join(f, " "), "+12.0 MiB ·") {
			t.Errorf("view %s: a rate after two seconds: %q", view, f)
		}
	}
	w.press("1")
	w.pass(10 * time.Second)
	if l := strings.Join(strings.Fields(row(t, w.text(t, 140, 30), " 1002 ")), " "); strings.Contains(l, "+12.0 MiB") {
		t.Errorf("what it had when the baseline was set is not known: %q", l)
	}
}

// The sites are in the size that the header names; of peaks only the reserved ones are kept.
func TestSitesFollowTheSize(t *testing.T) {
	w := newWorld(1)
	w.view(settings{})
	device := w.begins(7, "python loop.py", w.chips, false)
	for i := range uint64(4) {
		w.alloc(7, device, aggregator.DRAM, i*mib, mib) // each requests 11.75 MiB
	}
	w.pass(time.Second)
	w.press("8")
	w.pass(time.Second)
	for _, want := range []string{"DRAM 48.0 MiB 48.0 MiB 4", "DRAM 47.0 MiB · 4"} {
		got := w.text(t, 140, 30)
		if l := strings.Join(strings.Fields(row(t, got, "buffers of")), " "); !strings.Contains(l, want) {
			t.Errorf("%q in %q", want, l)
		}
		if strings.Contains(got, "peaks of requested bytes are unknown") != strings.Contains(want, "·") {
			t.Error(got)
		}
		w.press("r")
	}
}
