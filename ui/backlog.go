package ui

import (
	"fmt"
	"slices"
	"time"

	"tt-memtrace/aggregator"
	"tt-memtrace/aggregator/exact"
	"tt-memtrace/ui/text"
)

// Backlog is what a source has received and not read yet.
type Backlog struct {
	// Behind is the age of the newest event that was read, if others wait; 0 if none waits.
	Behind time.Duration
	// Waiting is the bytes that wait, and Size those that there is room for; a Size of 0 is unknown.
	Waiting, Size uint64
}

// staleAfter is the Behind from which on the screen says that its data is old.
const staleAfter = 2 * time.Second

// stale reports whether the data is old.
func (d *data) stale() bool { return d.backlog.Behind >= staleAfter }

// staleness returns how old the data is, and how full the ring buffer is, for the header.
func staleness(d *data) string {
	out := fmt.Sprintf("data %s behind", text.Age(d.backlog.Behind))
	if d.backlog.Size > 0 {
		out += fmt.Sprintf(", ring buffer %d %% full", d.backlog.Waiting*100/d.backlog.Size)
	}
	return out
}

// verification says when the accounts of the processes that of selects were last compared with the runtime's own: the
// oldest such time, or unknown if one was never compared. For sampled processes it says when they were last read. A
// comparison without buffers does not verify buffers that came later, so it does not count.
func verification(d *data, o settings, of func(*aggregator.ProcessSnapshot) bool) text.Span {
	g := text.GlyphSet(o.ASCII)
	unknown := text.Faint.Span("verified " + g.Unknown)
	oldest, suspect, some, did := d.now, false, false, "verified "
	for i := range d.snapshot.Processes {
		p := &d.snapshot.Processes[i]
		switch {
		case !of(p) || len(p.Chips) == 0:
			continue
		case p.Agreement.At > 0 && slices.ContainsFunc(p.Reasons, func(r aggregator.Reason) bool { return r.Code == exact.ReasonSampled }):
			// Sampled numbers are as old as their last reading.
			some, did = true, "read "
			oldest = min(oldest, p.Agreement.At)
			continue
		case p.Agreement.At == 0, p.Agreement.Compared == 0 && p.Buffers.Some():
			return unknown
		case p.Agreement.Compared == 0:
			continue // it had no buffers then, and has none now
		}
		some, suspect = true, suspect || p.Agreement.Suspect
		oldest = min(oldest, p.Agreement.At)
	}
	ago := text.Age(time.Duration(d.now-oldest)) + " ago"
	switch {
	case !some:
		return unknown
	case suspect:
		return text.Notice.Span("in doubt, " + did + ago)
	}
	return text.Plain.Span(did + ago)
}
