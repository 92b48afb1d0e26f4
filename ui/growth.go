package ui

import (
	"cmp"
	"time"

	"tt-memtrace/aggregator"
	"tt-memtrace/ui/text"
	"tt-memtrace/ui/widget"
)

// processBaseline is what each process had of a memory at one time. A process that only grows since then may leak. It
// does not change.
type processBaseline struct {
	at     uint64
	memory metric
	used   map[processID]bothAmounts
}

// bothAmounts are the same buffers in both sizes, because the user may switch between these later.
type bothAmounts struct{ reserved, requested amount }

// of returns the amount in the sizes that are shown.
func (b bothAmounts) of(o settings) amount {
	if o.requested {
		return b.requested
	}
	return b.reserved
}

// rebase sets the baseline of the processes to now.
func (v *overview) rebase() {
	base := &processBaseline{at: v.data.now, memory: v.memory, used: map[processID]bothAmounts{}}
	for i := range v.data.snapshot.Processes {
		p := &v.data.snapshot.Processes[i]
		base.used[idOf(p)] = bothAmounts{settings{}.processAmounts(p)[base.memory], settings{requested: true}.processAmounts(p)[base.memory]}
	}
	v.base = base
	v.notify("baseline set: +" + metricNames[base.memory] + " and +/MIN count from now on; b sets it again")
}

// gain is how much use has grown. known means that this is known; about, that it may be too low or too high.
type gain struct {
	bytes        int64
	known, about bool
}

// grownSince returns how much more of the baseline's memory a process has than at the baseline.
func (d *data) grownSince(p *aggregator.ProcessSnapshot, o settings) gain {
	was, is := d.base.used[idOf(p)].of(o), o.processAmounts(p)[d.base.memory]
	if was.unknown || is.unknown {
		return gain{}
	}
	return gain{int64(is.used) - int64(was.used), true, was.atLeast || is.atLeast}
}

// perMinute returns the growth in a minute; it is unknown for the first leastGrowth.
func (g gain) perMinute(since time.Duration) gain {
	if since < leastGrowth {
		return gain{}
	}
	g.bytes = int64(float64(g.bytes) / since.Minutes())
	return g
}

// toSort returns the bytes to sort by; unknown growth counts as 0.
func (g gain) toSort() int64 {
	if !g.known {
		return 0
	}
	return g.bytes
}

// growthOrder returns an order with the processes first that have grown most.
func (d *data) growthOrder(o settings) func(a, b *aggregator.ProcessSnapshot) int {
	return func(a, b *aggregator.ProcessSnapshot) int {
		return cmp.Compare(d.grownSince(b, o).toSort(), d.grownSince(a, o).toSort())
	}
}

// growthColumns returns the columns with the growth since the baseline; none without a baseline.
func growthColumns(d *data, o settings, whole func(columnID, string, int, func(*aggregator.ProcessSnapshot) text.Line) widget.Column) []widget.Column {
	if d.base == nil {
		return nil
	}
	since := time.Duration(d.now - min(d.base.at, d.now))
	return []widget.Column{
		whole(byGrowth, "+"+metricNames[d.base.memory], 9, func(p *aggregator.ProcessSnapshot) text.Line { return d.grownSince(p, o).cell(o) }),
		whole(byGrowthRate, "+/MIN", 9, func(p *aggregator.ProcessSnapshot) text.Line { return d.grownSince(p, o).perMinute(since).cell(o) }),
	}
}

// cell returns the growth as text.
func (g gain) cell(o settings) text.Line {
	glyphs := text.GlyphSet(o.ASCII)
	about := ""
	if g.about {
		about = glyphs.About
	}
	switch {
	case !g.known:
		return text.Faint.Line(glyphs.Unknown)
	case g.bytes > 0:
		return text.Warn.Line(about + "+" + bytesCell(uint64(g.bytes), o).String())
	case g.bytes < 0:
		return text.Plain.Line(about + "-" + bytesCell(uint64(-g.bytes), o).String())
	}
	return text.Faint.Line("0")
}
