package ui

import (
	"cmp"
	"io"
	"strings"
	"time"

	"tt-memtrace/aggregator"
	"tt-memtrace/ui/text"
	"tt-memtrace/ui/widget"
)

// TextOptions for Text. The zero value is usable.
type TextOptions struct {
	// Width in cells; 0 is 100.
	Width int
	// Host and Source are named in the first line, unless empty.
	Host, Source string
	// Time is the time of day in the first line; none if zero.
	Time time.Time
	// Recorded means that the snapshot is from a recording.
	Recorded bool
	// Notes are one-line warnings, shown at the end.
	Notes []string
	// OwnOnly means that there may be processes of other users, which are not seen.
	OwnOnly bool
	// Requested shows requested sizes, not reserved ones.
	Requested bool
	// Exact writes all digits.
	Exact bool
	// ASCII uses 7-bit characters only.
	ASCII bool
	// Colour styles the text with SGR sequences, in the terminal's own colours.
	Colour bool
	// Chips adds a row for each chip of each process.
	Chips bool

	// Log has the failed allocations; nil if they are unknown. Now is the same moment as Time, in CLOCK_MONOTONIC ns;
	// 0 is the time of the snapshot.
	Log *Log
	Now uint64

	// waiting are the traced processes that do not use the runtime yet.
	waiting []uint32
}

// Text writes the overview as plain text: the chips with their bars, the processes, in the same layout as on the
// screen, then exited processes, failed allocations and notes. One snapshot shows no rates. The ages of processes count
// up to the newest event.
func Text(w io.Writer, s *aggregator.Snapshot, o TextOptions) error {
	if s == nil {
		s = &aggregator.Snapshot{}
	}
	if o.Width <= 0 {
		o.Width = 100
	}
	set := settings{requested: o.Requested, Settings: widget.Settings{Exact: o.Exact, ASCII: o.ASCII}}
	d := data{snapshot: s, now: s.Time, clock: o.Time, host: o.Host, source: o.Source, recorded: o.Recorded, notes: o.Notes, waiting: o.waiting, ownOnly: o.OwnOnly}
	list := entries(&d, set, func(processID) bool { return o.Chips })
	tiers := chipTiers()
	if o.Width >= peaksFrom {
		tiers = append(peakTiers(), tiers...)
	}
	chips, processes := chipTable(&d, set, o.Width-2, tiers), processTable(&d, set, list, o.Width-2)

	lines := []text.Line{header(&d, set, o.Width), nil}
	add := func(t widget.Columns, empty string) {
		lines = append(lines, append(text.Plain.Line(" "), t.Head()...))
		for _, l := range t.Rows(0, t.N) {
			lines = append(lines, append(text.Plain.Line(" "), l...))
		}
		if t.N == 0 {
			lines = append(lines, text.Plain.Line(" "+empty))
		}
		lines = append(lines, nil)
	}
	add(chips, noChip(&d))
	add(processes, noProcess(&d))
	ended := newest(atPeak(s.Ended), maxEnded)
	for _, l := range endedSection(&d, set, ended, o.Width-2) {
		lines = append(lines, append(text.Plain.Line(" "), l...))
	}
	if len(ended) > 0 {
		lines = append(lines, nil)
	}
	if o.Log != nil {
		failed := state{settings: set, data: d}
		failed.data.failures, failed.data.now = o.Log.lastFailures(), cmp.Or(o.Now, s.Time)
		lines = append(lines, failureLines(&failed, o.Width)...)
	}
	lines = append(lines, noteLines(&d, append(d.processes(), ended...), set, o.Width, maxNotes, "")...)

	var b strings.Builder
	for _, l := range lines {
		b.WriteString(l.Shortened(o.Width, text.GlyphSet(set.ASCII).Dots).Clipped(o.Width).Trimmed().Terminal(o.Colour))
		b.WriteByte('\n')
	}
	_, err := io.WriteString(w, strings.TrimRight(b.String(), "\n")+"\n")
	return err
}
