package ui

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"tt-memtrace/aggregator"
	"tt-memtrace/internal/telemetry"
	"tt-memtrace/ui/text"
)

// data is what the screen shows: one moment of the feed.
type data struct {
	snapshot *aggregator.Snapshot
	rates    rates
	// now is CLOCK_MONOTONIC, ns; clock is the wall time, or zero for none.
	now   uint64
	clock time.Time
	notes []string
	host  string
	// source says in a few words what is shown.
	source string
	// ownOnly means that there may be processes of other users, which are not seen.
	ownOnly bool
	ended   bool
	// looking means that it is unknown yet whether any process uses the runtime. waiting are the traced processes that
	// do not use it yet.
	looking bool
	waiting []uint32
	// recorded means that the source is a replay, whose state is playback.
	recorded bool
	playback Playback
	paused   bool
	// log is the stream of changes; nil if there is none. marks are those of its events that the charts show. frozenLog
	// is its contents when the user paused.
	log   *Log
	marks []mark
	// backlog is what the source has not read yet.
	backlog Backlog
	// failures are the last allocations that failed, the newest first.
	failures []failure
	// gone are processes that have ended although no event said so yet.
	gone map[processID]bool
	// past are the notices about processes that have ended.
	past      map[string]bool
	frozenLog *frozenLog
	// hasSystem means that telemetry and processes of this host can be read; devices are its driver's.
	hasSystem bool
	devices   []telemetry.Device
	// base is the baseline that processes are compared with; nil if there is none.
	base *processBaseline
	// keep reports whether the tables show a process; nil means all.
	keep func(*aggregator.ProcessSnapshot) bool
	// frozen is the data that is shown while the user pauses.
	frozen *data
}

// freeze returns a copy that does not change.
func (d *data) freeze() *data {
	c := *d
	if c.log != nil {
		c.frozenLog = c.log.freeze()
	}
	return &c
}

// same reports whether d looks the same as e. Ages count in whole seconds of the clock.
//
// Most changes of a snapshot are counted in its Counters. Some sources count no events, so sameSnapshot also compares
// the numbers that change most.
func (d *data) same(e *data) bool {
	return d.paused == e.paused && d.ended == e.ended && d.looking == e.looking && slices.Equal(d.waiting, e.waiting) && d.clock.Truncate(time.Second).Equal(e.clock.Truncate(time.Second)) &&
		slices.Equal(d.notes, e.notes) && d.rates.known == e.rates.known && d.rates.events == e.rates.events &&
		maps.Equal(d.rates.calls, e.rates.calls) && slices.Equal(d.devices, e.devices) && len(d.marks) == len(e.marks) &&
		d.playback.Position.Truncate(time.Second) == e.playback.Position.Truncate(time.Second) && d.playback.Speed == e.playback.Speed &&
		sameFailures(d.failures, e.failures) && len(d.gone) == len(e.gone) && len(d.past) == len(e.past) && d.stale() == e.stale() && (!d.stale() || staleness(d) == staleness(e)) &&
		sameSnapshot(d.snapshot, e.snapshot)
}

func sameSnapshot(a, b *aggregator.Snapshot) bool {
	if a == b {
		return true
	}
	return a.Counters == b.Counters && len(a.Ended) == len(b.Ended) &&
		slices.EqualFunc(a.Processes, b.Processes, func(p, q aggregator.ProcessSnapshot) bool {
			return idOf(&p) == idOf(&q) && p.Counters == q.Counters && p.Agreement == q.Agreement && p.Buffers == q.Buffers && p.Memory == q.Memory && len(p.Chips) == len(q.Chips) && slices.EqualFunc(p.Reasons, q.Reasons, sameReason)
		}) && slices.EqualFunc(a.Reasons, b.Reasons, sameReason) &&
		slices.EqualFunc(a.Chips, b.Chips, func(c, d aggregator.ChipSnapshot) bool {
			return c.Chip == d.Chip && c.Memory == d.Memory && c.CB == d.CB && c.Kernel == d.Kernel && c.ConfigRing == d.ConfigRing && slices.Equal(c.PIDs, d.PIDs)
		})
}

func sameReason(a, b aggregator.Reason) bool {
	return a.Code == b.Code && a.PID == b.PID && a.Detail == b.Detail
}

// headerTier is a way to write the header. Later ones are for narrower terminals.
type headerTier struct {
	// compact uses fewer words and spaces.
	compact                               bool
	source, host, clock, events, verified bool
	// date means that a recording's day is shown, too.
	date bool
}

func headerTiers(recorded bool) []headerTier {
	tiers := []headerTier{
		{source: true, host: true, clock: true, date: true, events: true, verified: true},
		{host: true, clock: true, date: true, events: true, verified: true},
		{source: true, host: true, clock: true, date: true, events: true},
		{host: true, clock: true, date: true, events: true},
		{compact: true, host: true, clock: true, date: true, events: true},
		{compact: true, clock: true, date: true, events: true},
	}
	if recorded { // for a recording the time is more useful than the rate of events
		tiers = append(tiers, headerTier{compact: true, clock: true, date: true})
	}
	return append(tiers, []headerTier{
		{compact: true, clock: true, events: true},
		{compact: true, events: true},
		{compact: true},
	}...)
}

// header returns the first line of the screen: what is shown, at the left, and its state, at the right.
func header(d *data, o settings, w int) text.Line {
	var left, right text.Line
	for _, t := range headerTiers(d.recorded) {
		left, right = headerLeft(d, o, t), headerRight(d, o, t)
		if left.Width()+right.Width()+1 <= w {
			break
		}
	}
	room := max(w-right.Width()-1, 0)
	left = left.Shortened(room, text.GlyphSet(o.ASCII).Dots).Clipped(room)
	return append(left, right.Padded(w-left.Width(), true)...)
}

// maxHost is the most cells for the host's name, which may be a long domain name, and for the source. The compact
// header allows half of that.
const maxHost = 24

func headerLeft(d *data, o settings, t headerTier) text.Line {
	g := text.GlyphSet(o.ASCII)
	out := text.Line{text.Strong.Span(" tt-memtrace  ")}
	between, process, processes, limit := text.Faint.Span(" "+g.Between+" "), "process", "processes", maxHost
	if t.compact {
		out[0].Text = " tt-memtrace "
		between, process, processes, limit = text.Plain.Span(", "), "proc", "procs", maxHost/2
	}
	var parts text.Line
	if d.host != "" && t.host {
		parts = append(parts, text.Plain.Span(text.Clip(text.Sanitize(d.host, o.ASCII), limit, g.Dots)))
	}
	source := d.source
	if !t.source {
		// Only say that it is sampled. Once there are numbers, the right side says how old they are.
		_, sampled := exactness(d)
		if source, _, _ = strings.Cut(source, ", "); sampled || !strings.HasPrefix(source, "sampled ") {
			source = ""
		}
	}
	if source != "" {
		parts = append(parts, text.Plain.Span(text.Clip(text.Sanitize(source, o.ASCII), limit, g.Dots)))
	}
	parts = append(parts,
		text.Plain.Span(text.Plural(len(d.snapshot.Chips), "chip", "chips")),
		text.Plain.Span(text.Plural(d.living(), process, processes)))
	return append(out, text.Join(parts, between)...)
}

func headerRight(d *data, o settings, t headerTier) text.Line {
	var parts text.Line
	if d.paused {
		parts = append(parts, text.Alert.Span(" PAUSED "))
	}
	if d.recorded && (!t.source || d.source == "") {
		// Distinguish a recording from a live source.
		parts = append(parts, text.Notice.Span("replay"))
	}
	if d.ended {
		parts = append(parts, text.Notice.Span("ended"))
	}
	parts = append(parts, text.Plain.Span(o.sizes()))
	if t.events && d.rates.calls != nil {
		rate := text.GlyphSet(o.ASCII).Unknown
		if d.rates.known {
			rate = text.PerSecond(d.rates.events)
		}
		// Use a fixed width, so that the header does not move with every digit.
		parts = append(parts, text.Plain.Span(text.Spaces(6-text.Width(rate))+rate+" ev/s"))
	}
	if lost := d.snapshot.Counters.Lost; lost > 0 {
		parts = append(parts, text.Alert.Span(fmt.Sprintf(" LOST %s ", text.Count(lost, o.Exact))))
	} else if !t.compact && len(d.snapshot.Lacks) == 0 {
		parts = append(parts, text.Plain.Span("lost 0"))
	}
	said, sampled := exactness(d)
	parts = append(parts, said)
	switch {
	case d.stale():
		parts = append(parts, text.Alert.Span(" "+staleness(d)+" "))
	case d.nothingRead():
	case t.verified && d.rates.calls != nil && len(d.snapshot.Lacks) == 0 && !sampled:
		parts = append(parts, verification(d, o, anyProcess))
	}
	if t.clock && !d.clock.IsZero() {
		format := "15:04:05"
		switch {
		case d.recorded && t.date && t.compact:
			format = "Jan 2 15:04:05"
		case d.recorded && t.date:
			format = "2006-01-02 15:04:05"
		}
		parts = append(parts, text.Plain.Span(d.clock.Format(format)))
	}
	between := "  "
	if t.compact {
		between = " "
	}
	return append(text.Join(parts, text.Plain.Span(between)), text.Plain.Span(" "))
}

func anyProcess(*aggregator.ProcessSnapshot) bool { return true }

// sizes returns the name of the sizes that are shown: reserved or requested.
func (o settings) sizes() string {
	if o.requested {
		return "requested"
	}
	return "reserved"
}

// living returns the number of processes in the snapshot, without those that have ended and hold nothing.
func (d *data) living() int {
	n := len(d.snapshot.Processes)
	if d.gone != nil {
		for i := range d.snapshot.Processes {
			if p := &d.snapshot.Processes[i]; d.gone[idOf(p)] && !holdsAnything(p) {
				n--
			}
		}
	}
	return n
}
