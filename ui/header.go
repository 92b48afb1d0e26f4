package ui

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"tt-memtrace/aggregator"
	"tt-memtrace/telemetry"
)

// data is what is shown, apart from how: one moment of the feed.
type data struct {
	snapshot *aggregator.Snapshot
	rates    rates
	// now is CLOCK_MONOTONIC, ns; clock is the wall time, or zero for none.
	now   uint64
	clock time.Time
	notes []string
	host  string
	// source is what is traced, in a word.
	source string
	ended  bool
	paused bool
	// log is the stream of changes, nil where there is none; marks are what of it the charts
	// show, and held its end when the user paused.
	log   *Log
	marks []mark
	held  *heldLog
	// hasSystem: there is a host to ask for processes and telemetry; devices are its driver's.
	hasSystem bool
	devices   []telemetry.Device
	// keep says which processes the tables show, nil for all.
	keep func(*aggregator.ProcessSnapshot) bool
	// frozen is what is shown while the user pauses.
	frozen *data
}

// hold is a copy that stands still.
func (d *data) hold() *data {
	c := *d
	if c.log != nil {
		c.held = c.log.hold()
	}
	return &c
}

// same says that d looks no different from e; ages count in whole seconds of the clock.
//
// Nothing changes in a snapshot without an event that is counted. Sources that count
// none are compared by what changes most.
func (d *data) same(e *data) bool {
	return d.paused == e.paused && d.ended == e.ended && d.clock.Truncate(time.Second).Equal(e.clock.Truncate(time.Second)) &&
		slices.Equal(d.notes, e.notes) && d.rates.known == e.rates.known && d.rates.events == e.rates.events &&
		maps.Equal(d.rates.calls, e.rates.calls) && slices.Equal(d.devices, e.devices) && len(d.marks) == len(e.marks) &&
		sameSnapshot(d.snapshot, e.snapshot)
}

func sameSnapshot(a, b *aggregator.Snapshot) bool {
	if a == b {
		return true
	}
	return a.Counters == b.Counters && len(a.Ended) == len(b.Ended) &&
		slices.EqualFunc(a.Processes, b.Processes, func(p, q aggregator.ProcessSnapshot) bool {
			return idOf(&p) == idOf(&q) && p.Counters == q.Counters && p.Agreement == q.Agreement && p.Buffers == q.Buffers && p.Memory == q.Memory && len(p.Chips) == len(q.Chips)
		}) &&
		slices.EqualFunc(a.Chips, b.Chips, func(c, d aggregator.ChipSnapshot) bool {
			return c.Chip == d.Chip && c.Memory == d.Memory && c.CB == d.CB && c.Kernel == d.Kernel && c.Ring == d.Ring && slices.Equal(c.PIDs, d.PIDs)
		})
}

// headerTier is how the header is written; the narrower the terminal, the later the tier.
type headerTier struct {
	// compact saves on words and spaces.
	compact                             bool
	source, host, clock, events, agrees bool
}

func headerTiers() []headerTier {
	return []headerTier{
		{source: true, host: true, clock: true, events: true, agrees: true},
		{host: true, clock: true, events: true, agrees: true},
		{source: true, host: true, clock: true, events: true},
		{host: true, clock: true, events: true},
		{compact: true, host: true, clock: true, events: true},
		{compact: true, clock: true, events: true},
		{compact: true, events: true},
		{compact: true},
	}
}

// header is the first line of the screen: what is shown to the left, how it goes to the right.
func header(d *data, o settings, w int) line {
	var left, right line
	for _, t := range headerTiers() {
		left, right = headerLeft(d, o, t), headerRight(d, o, t)
		if left.width()+right.width()+1 <= w {
			break
		}
	}
	left = left.clipped(max(w-right.width()-1, 0))
	return append(left, right.padded(w-left.width(), true)...)
}

// joined puts parts next to each other, with something in between.
func joined(parts line, between span) line {
	var out line
	for i, p := range parts {
		if i > 0 {
			out = append(out, between)
		}
		out = append(out, p)
	}
	return out
}

// maxHost cells for a name that might be a domain name.
const maxHost = 24

func headerLeft(d *data, o settings, t headerTier) line {
	g := glyphSet(o.ascii)
	out := line{{" tt-memtrace  ", strong}}
	between, process, processes, limit := span{" " + g.between + " ", faint}, "process", "processes", maxHost
	if t.compact {
		out[0].text = " tt-memtrace "
		between, process, processes, limit = span{", ", plain}, "proc", "procs", maxHost/2
	}
	var parts line
	if d.host != "" && t.host {
		parts = append(parts, span{clip(clean(d.host, o.ascii), limit, g.dots), plain})
	}
	if d.source != "" && t.source {
		parts = append(parts, span{clip(clean(d.source, o.ascii), limit, g.dots), plain})
	}
	parts = append(parts,
		span{plural(len(d.snapshot.Chips), "chip", "chips"), plain},
		span{plural(len(d.snapshot.Processes), process, processes), plain})
	return append(out, joined(parts, between)...)
}

func headerRight(d *data, o settings, t headerTier) line {
	var parts line
	if d.paused {
		parts = append(parts, span{" PAUSED ", alert})
	}
	if d.ended {
		parts = append(parts, span{"ended", notice})
	}
	parts = append(parts, span{o.sizes(), plain})
	if t.events && d.rates.calls != nil {
		rate := glyphSet(o.ascii).unknown
		if d.rates.known {
			rate = perSecond(d.rates.events)
		}
		// Of one width: the header should not move with every digit.
		parts = append(parts, span{spaces(6-width(rate)) + rate + " ev/s", plain})
	}
	if lost := d.snapshot.Counters.Lost; lost > 0 {
		parts = append(parts, span{fmt.Sprintf(" LOST %s ", count(lost, o.exact)), alert})
	} else {
		parts = append(parts, span{"lost 0", plain})
	}
	if t.agrees && d.rates.calls != nil {
		parts = append(parts, agreement(d, o, anyProcess))
	}
	if t.clock && !d.clock.IsZero() {
		parts = append(parts, span{d.clock.Format("15:04:05"), plain})
	}
	between := "  "
	if t.compact {
		between = " "
	}
	return append(joined(parts, span{between, plain}), span{" ", plain})
}

// agreement says when the accounts of processes were last compared with the runtime's own,
// by the one whose comparison is the oldest; a dot where one never was.
func agreement(d *data, o settings, of func(*aggregator.ProcessSnapshot) bool) span {
	g := glyphSet(o.ascii)
	oldest, doubted, any := d.now, false, false
	for i := range d.snapshot.Processes {
		p := &d.snapshot.Processes[i]
		if !of(p) || len(p.Chips) == 0 {
			continue
		}
		if p.Agreement.At == 0 {
			return span{"agrees " + g.unknown, faint}
		}
		any, doubted = true, doubted || p.Agreement.Doubted
		oldest = min(oldest, p.Agreement.At)
	}
	ago := age(time.Duration(d.now-oldest)) + " ago"
	switch {
	case !any:
		return span{"agrees " + g.unknown, faint}
	case doubted:
		return span{"in doubt, compared " + ago, notice}
	}
	return span{"agrees " + g.agrees + " " + ago, plain}
}

func anyProcess(*aggregator.ProcessSnapshot) bool { return true }

// sizes says which of the two sizes of buffers is shown.
func (o settings) sizes() string {
	if o.requested {
		return "requested"
	}
	return "reserved"
}

func plural(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return digits(uint64(n)) + " " + many
}

// rule is the line between two tables, with what is to be said about them near its ends.
func rule(w int, left, right string, g glyphs) line {
	out := line{}
	dashes := func(n int) { out = append(out, span{strings.Repeat(g.rule, max(n, 0)), faint}) }
	label := func(s string) {
		if s != "" {
			out = append(out, span{" " + s + " ", plain})
		}
	}
	dashes(2)
	label(left)
	tail := 2
	if right != "" {
		tail += width(right) + 2
	}
	dashes(max(w-out.width()-tail, 0))
	label(right)
	dashes(2)
	return out.clipped(w)
}

// footer lists the keys, as many as there is room for.
func footer(list []binding, o settings, w int) line {
	out := line{{" ", plain}}
	for _, b := range list {
		if b.brief == "" {
			continue
		}
		name := b.key
		if name == "enter" {
			name = glyphSet(o.ascii).enter
		}
		l := line{{name, key}, {" " + b.brief + "  ", plain}}
		if out.width()+l.width()-2 > w {
			continue
		}
		out = append(out, l...)
	}
	return out
}
