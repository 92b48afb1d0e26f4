package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"tt-memtrace/aggregator"
	"tt-memtrace/internal/export"
	"tt-memtrace/internal/session"
)

// A snapshot has the allocations that failed before it, as text and in JSON, each with when it was, also if nothing happened since.
func TestStatusHasFailures(t *testing.T) {
	const process, second = 7, 1_000_000_000
	start := aggregator.Event{Kind: aggregator.ProcessStart, PID: process, Time: origin, Process: &aggregator.Process{Command: "python m.py", Started: 1}}
	failed := func(at, asked uint64) aggregator.Event {
		return aggregator.Event{Kind: aggregator.AllocationFailed, PID: process, TID: process, Time: origin + at*second, Memory: aggregator.L1,
			Failure: &aggregator.FailedAllocation{Asked: 64 * asked, PerBank: asked, Banks: 64, BankBytes: 1 << 20, Free: 1 << 20, Largest: 1 << 20, Message: "Out of\x1b Memory"}}
	}
	exit := aggregator.Event{Kind: aggregator.ProcessExit, PID: process, Time: origin + 100*second}
	many := []aggregator.Event{start}
	for i := range uint64(maxFailures + 8) {
		many = append(many, failed(2*i, 2<<20+i))
	}
	by := func(source aggregator.Source) aggregator.Event {
		e := start
		e.Process = &aggregator.Process{Command: "python m.py", Started: 1, Source: source}
		return e
	}
	for name, c := range map[string]struct {
		events         []aggregator.Event
		known          bool
		failures, left int
		others         string
	}{
		"none":     {[]aggregator.Event{start, exit}, true, 0, 0, ""},
		"sampled":  {[]aggregator.Event{by(aggregator.Sampled), exit}, false, 0, 0, ""},
		"reported": {[]aggregator.Event{by(aggregator.Reported)}, false, 0, 0, ""},
		"one":      {[]aggregator.Event{start, failed(3, 2<<20), exit}, true, 1, 0, ""},
		"many":     {append(many, exit), true, maxFailures, 8, " 35 other allocations failed before\n"},
	} {
		from := recorded{from: []string{"r"}, files: []io.ReadCloser{recordingOf(t, c.events...)}, skips: true}
		l, err := from.start(true)
		if err != nil {
			t.Fatal(err)
		}
		log := l.logFailures()
		if err := l.run(t.Context()); err != nil {
			t.Fatal(err)
		}
		var asText, asJSON strings.Builder
		var st export.Status
		if err := printStatus(&asText, l, log, &uiFlags{}, false); err != nil {
			t.Error(err)
		}
		if err := printStatus(&asJSON, l, log, &uiFlags{}, true); err != nil {
			t.Error(err)
		}
		if err := json.Unmarshal([]byte(asJSON.String()), &st); err != nil {
			t.Fatal(err)
		}
		if (st.Failures != nil) != c.known || len(st.Failures) != c.failures || st.FailuresBefore != uint64(c.left) {
			t.Errorf("%s: %d failures, %d before, known %v", name, len(st.Failures), st.FailuresBefore, st.Failures != nil)
		}
		for i, f := range st.Failures {
			want := c.events[1+c.left+i]
			if !f.Time.Equal(l.Wall(want.Time)) || *f.Asked != want.Failure.PerBank || f.PID != process || f.Event != "out_of_memory" {
				t.Errorf("%s: failure %d is %+v", name, i, f)
			}
		}
		text := asText.String()
		if lines := strings.Count(text, "OUT OF MEMORY"); lines != min(c.failures, 5) || lines != strings.Count(text, "   next: it is larger than a whole bank (1.00 MiB)") || !strings.Contains(text, c.others) {
			t.Errorf("%s:\n%s", name, text)
		}
		if strings.Contains(text, " failures  unknown: only probes see failed allocations\n") == c.known {
			t.Errorf("%s: known %v\n%s", name, c.known, text)
		}
		if c.failures > 0 {
			last := c.events[len(c.events)-2]
			want := fmt.Sprintf(" %s OUT OF MEMORY L1 · pid 7 python m.py · requested 2.00 MiB/bank, largest free 1.00 MiB\n", l.Wall(last.Time).Format("15:04:05"))
			if !strings.Contains(text, want) {
				t.Errorf("%s: no %q in\n%s", name, want, text)
			}
		}
	}
}

// Moments in JSON are when they were, also where the snapshot is of a session that ended a while ago.
func TestMomentsOfStatus(t *testing.T) {
	const second = 1_000_000_000
	wall := func(m uint64) time.Time { return time.Unix(0, int64(m)).UTC() }
	l := &live{Session: session.New(session.Clock{Now: func() uint64 { return 100 * second }, Wall: wall})}
	s := &aggregator.Snapshot{Time: 40 * second, Processes: []aggregator.ProcessSnapshot{{PID: 7, LastLaunch: 30 * second}}}
	st := l.status(s)
	if last := st.Processes[0].LastLaunch; !st.Time.Equal(wall(40*second)) || last == nil || !last.Equal(wall(30*second)) {
		t.Errorf("at %v, launched %v", st.Time, last)
	}
	if st := l.status(&aggregator.Snapshot{}); !st.Time.Equal(wall(100 * second)) {
		t.Errorf("of nothing, at %v", st.Time)
	}
}
