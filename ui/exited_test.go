package ui

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"tt-memtrace/aggregator"
	"tt-memtrace/aggregator/exact"
	"tt-memtrace/ui/text"
)

// overData is the fixture after all its processes exited.
func overData(chips, ended int) data {
	d := fixtureData(chips)
	d.ended, d.snapshot.Processes = true, nil
	withEnded(d.snapshot, ended)
	return d
}

func textOf(t *testing.T, s *aggregator.Snapshot, o TextOptions) string {
	t.Helper()
	var b bytes.Buffer
	if err := Text(&b, s, o); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestTextListsTheNewestProcessesThatEnded(t *testing.T) {
	if got := textOf(t, fixture(1), TextOptions{Width: 120}); strings.Contains(got, "Ended") {
		t.Errorf("none has:\n%s", got)
	}
	for n, want := range map[int]string{1: "", 10: "", 11: "and 1 more before", 32: "and 22 more before"} {
		got := textOf(t, withEnded(fixture(1), n), TextOptions{Width: 120})
		if rows := strings.Count(got, "\n   600"); rows != min(n, 10) {
			t.Errorf("%d rows of %d:\n%s", rows, n, got)
		}
		if !strings.Contains(got, want) || want == "" && strings.Contains(got, "more before") {
			t.Errorf("of %d, no %q:\n%s", n, want, got)
		}
		last := fmt.Sprint(60000 + n - 1)
		if n > 1 && strings.Index(got, last) < strings.Index(got, fmt.Sprint(60000+n-2)) {
			t.Errorf("%s is not the last:\n%s", last, got)
		}
	}
	s := withEnded(fixture(1), 32)
	s.Counters.Exited = 1040 // a snapshot keeps the newest only
	if got := textOf(t, s, TextOptions{}); !strings.Contains(got, "and 1,030 more before") {
		t.Errorf("it forgot some:\n%s", got)
	}
}

func TestTextOfEndedProcessesKeepsItsWidth(t *testing.T) {
	s := withEnded(fixture(8), 12)
	for w := 20; w <= 220; w += 7 {
		for _, ascii := range []bool{false, true} {
			for l := range strings.Lines(textOf(t, s, TextOptions{Width: w, ASCII: ascii, Exact: w%2 == 0, Chips: true})) {
				l = strings.TrimSuffix(l, "\n")
				if n := text.Width(l); n > w || ascii && !text.IsPlain(l) || strings.ContainsAny(l, "\x1b\u202e") {
					t.Errorf("width %d: %d cells: %q", w, n, l)
				}
			}
		}
	}
}

func TestTextHasPeaksOfChipsFrom110Columns(t *testing.T) {
	for w, want := range map[int]int{80: 0, 109: 0, 110: 4, 120: 4, 160: 4, 220: 4} {
		got := textOf(t, fixture(8), TextOptions{Width: w})
		if n := strings.Count(got, "peak"); n != want {
			t.Errorf("width %d: %d peaks\n%s", w, n, got)
		}
		if !strings.Contains(got, "█") {
			t.Errorf("width %d: no bars\n%s", w, got)
		}
	}
	// If numbers need all the room, the peaks go first.
	if got := textOf(t, fixture(8), TextOptions{Width: 110, Exact: true}); strings.Contains(got, "peak") || !strings.Contains(got, "11,744,051,200") {
		t.Errorf("all digits:\n%s", got)
	}
}

func TestEndedProcessesAreShownWhenAllIsOver(t *testing.T) {
	d := overData(1, 3)
	if !d.over() {
		t.Fatal("it is not over")
	}
	live := fixtureData(1)
	live.ended = true
	withEnded(live.snapshot, 3)
	running := overData(1, 3)
	running.ended = false
	for name, d := range map[string]data{"one lives": live, "tracing goes on": running, "none was there": overData(1, 0)} {
		if d.over() {
			t.Errorf("%s: it is over", name)
		}
		if got := plainText(newFrame(settings{}, d, 0).compose(120, 30)); strings.Contains(got, "60000") {
			t.Errorf("%s:\n%s", name, got)
		}
	}
	if got := plainText(newFrame(settings{}, running, 0).compose(120, 30)); !strings.Contains(got, "no process uses the runtime now") {
		t.Errorf("tracing goes on:\n%s", got)
	}
}

func TestEndedProcessesAreDimmed(t *testing.T) {
	v := newFrame(settings{}, overData(1, 3), 0)
	p := v.compose(120, 30)
	found := 0
	for i, l := range p.Lines {
		shown := l.String()
		if i == p.Selected || !strings.Contains(shown, "pytest") {
			continue
		}
		found++
		if exit := []string{" 0  1m15s", " SIGKILL  1m15s"}[2-found]; !strings.Contains(shown, exit) {
			t.Errorf("no %s in %q", exit, shown)
		}
		for _, s := range l[1:] {
			if strings.TrimSpace(s.Text) != "" && s.Role != text.Faint {
				t.Errorf("%q has role %d", s.Text, s.Role)
			}
		}
	}
	if found != 2 {
		t.Errorf("%d rows:\n%s", found, plainText(p))
	}
}

func TestEndedProcessesShowTheirPeaks(t *testing.T) {
	d := overData(2, 1)
	d.snapshot.Ended[0].Info.Command = "pytest"
	before := fmt.Sprintf("%+v", d.snapshot)
	v := newFrame(settings{}, d, 0)
	v.overview().expanded[idOf(&d.snapshot.Ended[0])] = true
	got := plainText(v.compose(140, 30))
	// 3 GiB at most of DRAM, and a MiB at the end; some of L1_SMALL is not known.
	for _, want := range []string{"3.00 GiB", "≥20.0 MiB", "└ chip not known", "+?"} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
	if fmt.Sprintf("%+v", d.snapshot) != before {
		t.Error("the snapshot was changed")
	}
}

// A process that called exec ended twice, by the same PID and start time.
func TestEveryEndedProcessCanBeSelected(t *testing.T) {
	d := overData(1, 2)
	again := d.snapshot.Ended[0]
	again.Since += 5
	d.snapshot.Ended = append(d.snapshot.Ended, again)
	v := newFrame(settings{}, d, 0)
	seen := map[int]bool{}
	for range 3 {
		seen[v.compose(120, 30).Selected] = true
		o := v.overview()
		o.lists[processPanel].Move(1, len(o.entries), o.keyOf(processPanel))
	}
	if len(seen) != 3 {
		t.Errorf("selected the lines %v", seen)
	}
}

func TestMarksAndLegendNameWhatIsOdd(t *testing.T) {
	d := fixtureData(1)
	for i, c := range []exact.ReasonCode{exact.ReasonUnmatchedFree, exact.ReasonMissedFree, exact.ReasonInconsistentEvents} {
		p := &d.snapshot.Processes[i]
		p.Reasons, p.Late = reasons(p.PID, c), false
	}
	got := plainText(newFrame(settings{}, d, 0).compose(120, 30))
	for _, want := range []string{"41822 U", "50231 R", "50990 O", "U 41822: a buffer was freed", "R 50231: a free was missed", "O 50990: inconsistent buffer events", "not exact"} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
	d.snapshot.Processes = d.snapshot.Processes[:1]
	if got := plainText(newFrame(settings{}, d, 0).compose(120, 30)); strings.Contains(got, "free was not seen") || strings.Contains(got, "odd") {
		t.Errorf("it explains what is not there:\n%s", got)
	}
}

func TestAPeakThatIsNotKnownIsNotZero(t *testing.T) {
	peak := func(q exact.Quantity) aggregator.Usage {
		u := aggregator.EmptyUsage()
		u.PeakReserved = q
		return u
	}
	for name, c := range map[string]struct {
		usage aggregator.Usage
		late  bool
		want  string
	}{
		"not looked at":         {aggregator.Usage{}, false, "·"},
		"nothing ever":          {aggregator.EmptyUsage(), false, "0"},
		"nothing since late":    {aggregator.EmptyUsage(), true, "·"},
		"something since late":  {peak(exact.Of(gib)), true, "1.00 GiB"},
		"sizes that were known": {peak(exact.Of(gib)), false, "1.00 GiB"},
		"some that were not":    {peak(exact.Bounded(gib, exact.AtLeast)), false, "≥1.00 GiB"},
		"none that was":         {peak(exact.Bounded(0, exact.AtLeast)), false, "·"},
		"no such memory":        {aggregator.Usage{Banks: aggregator.Banks{Known: true}}, false, "-"},
	} {
		a := settings{}.amountOf(shownAs(c.usage, c.late)).highest()
		if got := a.number(settings{}.scaleOf([]amount{a}, false), text.GlyphSet(false)).String(); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

func TestEndedProcessesFillTheScreenExactly(t *testing.T) {
	v := newFrame(settings{}, overData(8, 32), 0)
	v.overview().expanded[processID{60005, 15}] = true
	for w := 1; w <= 210; w += 1 + w/12 {
		for _, h := range []int{1, 5, 24, 60} {
			p := v.compose(w, h)
			if len(p.Lines) != h {
				t.Errorf("%dx%d: %d lines", w, h, len(p.Lines))
			}
			for _, l := range p.Lines {
				if n := l.Width(); n != w {
					t.Errorf("%dx%d: %d cells: %q", w, h, n, l.String())
				}
			}
		}
	}
}
