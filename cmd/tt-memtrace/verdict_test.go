package main

import (
	"io"
	"slices"
	"strings"
	"testing"

	"tt-memtrace/aggregator"
	"tt-memtrace/aggregator/exact"
)

// The last words and the exit code say whether the numbers at the end lack something,
// or did and were corrected.
func TestVerdict(t *testing.T) {
	at := func(n uint64, e aggregator.Event) aggregator.Event {
		e.Time = origin + n
		if e.PID == 0 && e.Kind != aggregator.Lost {
			e.PID = 7
		}
		return e
	}
	alloc := at(1, aggregator.Event{Kind: aggregator.Alloc, Device: 1, Allocator: 2, Buffer: 3, Size: 4})
	opened := at(0, aggregator.Event{Kind: aggregator.DeviceOpen, Device: 1, Opened: &aggregator.Opened{Chips: []aggregator.Chip{{}}}})
	lost := at(2, aggregator.Event{Kind: aggregator.Lost, Count: 5})
	read := at(3, aggregator.Event{Kind: aggregator.Compared, Comparison: &aggregator.Comparison{Buffers: 1}})
	exit := at(4, aggregator.Event{Kind: aggregator.ProcessExit})
	late := at(2, aggregator.Event{Kind: aggregator.ReasonRaised, Reason: &aggregator.Reason{Code: exact.ReasonLate}})
	for name, c := range map[string]struct {
		events []aggregator.Event
		code   int
		says   string
		// lines is the exit code where each event matters.
		lines int
	}{
		"exact":                 {[]aggregator.Event{opened, alloc}, exitFine, "", exitFine},
		"late":                  {[]aggregator.Event{opened, alloc, late}, exitFine, "", exitFine},
		"lost":                  {[]aggregator.Event{opened, alloc, lost}, exitLost, "not exact: process 7: events were lost", exitLost},
		"lost and corrected":    {[]aggregator.Event{opened, alloc, lost, read}, exitFine, "5 events were lost; the numbers were read from the processes again, and are exact now", exitLost},
		"lost, and exited":      {[]aggregator.Event{opened, alloc, lost, exit}, exitLost, "1 process lacked events when it exited", exitLost},
		"corrected, and exited": {[]aggregator.Event{opened, alloc, lost, read, exit}, exitFine, "exact now", exitLost},
	} {
		t.Run(name, func(t *testing.T) {
			for _, needsAll := range []bool{false, true} {
				from := recorded{from: []string{"r"}, files: []io.ReadCloser{recordingOf(t, c.events...)}, skips: true}
				l, err := from.start(true)
				if err != nil {
					t.Fatal(err)
				}
				l.needsAll = needsAll
				err = l.run(t.Context())
				want := c.code
				if needsAll {
					want = c.lines
				}
				if got := exitCode(err); got != want {
					t.Errorf("needs all %v: exit code %d: %v", needsAll, got, err)
				}
				said := strings.Join(l.Notices(), "\n")
				if err != nil {
					said += err.Error()
				}
				if !needsAll && (!strings.Contains(said, c.says) || c.says == "" && said != "") {
					t.Errorf("it says %q", said)
				}
			}
		})
	}
}

// A reason that is a miss ends a run with exit code 5, and one that is a contradiction fails doctor --verify; no other does.
func TestVerdictOfEachReason(t *testing.T) {
	for _, code := range exact.ReasonCodes() {
		l := newLive(nil, true)
		l.View(func(a *aggregator.Aggregator) {
			a.Apply(&aggregator.Event{Kind: aggregator.Alloc, PID: 1, Time: origin, Buffer: 1})
			a.Apply(&aggregator.Event{Kind: aggregator.ReasonRaised, PID: 1, Time: origin, Reason: &aggregator.Reason{Code: code}})
		})
		want := exitFine
		if code.Row().Missed {
			want = exitLost
		}
		if err := l.verdict(); exitCode(err) != want {
			t.Errorf("%s: exit code %d, not %d: %v", code, exitCode(err), want, err)
		}
		if got := disagreements(&l.Snapshot().Processes[0]); (len(got) > 0) != code.Row().Contradiction {
			t.Errorf("%s: doctor --verify finds %q", code, got)
		}
	}
}

// Many reasons are not all listed.
func TestVerdictOfManyIsShort(t *testing.T) {
	var events []aggregator.Event
	for pid := range uint32(50) {
		events = append(events, aggregator.Event{Kind: aggregator.Alloc, PID: pid + 1, Time: origin, Buffer: 1})
	}
	events = append(events, aggregator.Event{Kind: aggregator.Lost, Time: origin, Count: 1})
	l := newLive(nil, true)
	l.View(func(a *aggregator.Aggregator) {
		for e := range slices.Values(events) {
			a.Apply(&e)
		}
	})
	var text strings.Builder
	if err := printStatus(&text, l, nil, &uiFlags{}, false); err != nil || !strings.Contains(text.String(), " X all 50 processes: events were lost\n") || strings.Count(text.String(), "events were lost") != 1 {
		t.Errorf("%s\n%v", &text, err)
	}
	if err := l.verdict(); err == nil || !strings.HasSuffix(err.Error(), "; 47 more") {
		t.Error(err)
	}
}

// If each event matters, a notice names a process of a command that did something before its library had probes.
func TestVerdictOfWhatWasBeforeTracing(t *testing.T) {
	begins := func(ranBefore, late bool) aggregator.Event {
		p := &aggregator.Process{Started: 1, RanBefore: ranBefore, Late: late}
		return aggregator.Event{Kind: aggregator.ProcessStart, Process: p}
	}
	scanned := func(buffers ...aggregator.LiveBuffer) aggregator.Event {
		scan := &aggregator.Scan{First: true, Allocators: []uint64{2}, Buffers: buffers}
		return aggregator.Event{Kind: aggregator.Scanned, Scan: scan}
	}
	late, read := begins(false, true), begins(false, false)
	had := scanned(aggregator.LiveBuffer{Buffer: 3, Device: 1, Allocator: 2, Size: 4})
	exit := aggregator.Event{Kind: aggregator.ProcessExit}
	for name, c := range map[string]struct {
		events []aggregator.Event
		unseen string
	}{
		"never read":          {[]aggregator.Event{late, exit}, ""},
		"is still being read": {[]aggregator.Event{late}, ""},
		"read, had nothing":   {[]aggregator.Event{late, scanned(), read, exit}, ""},
		"read, had a buffer":  {[]aggregator.Event{late, had, read, exit}, "allocated 1 buffer before"},
		"read, and lives":     {[]aggregator.Event{late, had, read}, "allocated 1 buffer before"},
		"ran before":          {[]aggregator.Event{begins(true, true), had, begins(true, false), exit}, ""},
	} {
		a := aggregator.New()
		for i, e := range c.events {
			e.PID, e.Time = 7, origin+uint64(i)
			a.Apply(&e)
		}
		got := strings.Join(beforeTraced(a.Snapshot()), "; ")
		if !strings.Contains(got, c.unseen) || (c.unseen == "") != (got == "") {
			t.Errorf("%s: %q", name, got)
		}
	}
}
