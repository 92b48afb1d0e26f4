package ui

import (
	"cmp"
	"time"

	"tt-memtrace/aggregator"
	"tt-memtrace/ui/text"
	"tt-memtrace/ui/widget"
)

// processBaseline is what every process had of a memory at a time: what only grows since is a leak.
// It does not change.
type processBaseline struct {
	at     uint64
	memory metric
	used   map[processID]bothAmounts
}

// bothAmounts are the same buffers in both sizes: the user may switch between these after the baseline.
type bothAmounts struct{ reserved, requested amount }

// of is the amount in the size that is shown.
func (b bothAmounts) of(o settings) amount {
	if o.requested {
		return b.requested
	}
	return b.reserved
}

// rebase makes now the baseline of the processes.
func (v *overview) rebase() {
	base := &processBaseline{at: v.data.now, memory: v.memory, used: map[processID]bothAmounts{}}
	for i := range v.data.snapshot.Processes {
		p := &v.data.snapshot.Processes[i]
		base.used[idOf(p)] = bothAmounts{settings{}.processAmounts(p)[base.memory], settings{requested: true}.processAmounts(p)[base.memory]}
	}
	v.base = base
	v.notify("baseline set: +" + metricNames[base.memory] + " and +/MIN count from now on; b sets it again")
}

// gain is how much more there is than before, and whether that is known, or only about.
type gain struct {
	bytes        int64
	known, about bool
}

// grownSince is how much more of the baseline's memory a process has than at the baseline.
func (d *data) grownSince(p *aggregator.ProcessSnapshot, o settings) gain {
	was, is := d.base.used[idOf(p)].of(o), o.processAmounts(p)[d.base.memory]
	if was.unknown || is.unknown {
		return gain{}
	}
	return gain{int64(is.used) - int64(was.used), true, was.atLeast || is.atLeast}
}

// perMinute is the same in a minute; unknown before that means anything.
func (g gain) perMinute(since time.Duration) gain {
	if since < leastGrowth {
		return gain{}
	}
	g.bytes = int64(float64(g.bytes) / since.Minutes())
	return g
}

// toSort is the gain to sort by: what is not known is as none.
func (g gain) toSort() int64 {
	if !g.known {
		return 0
	}
	return g.bytes
}

// growthOrder sorts what has grown most to the top.
func (d *data) growthOrder(o settings) func(a, b *aggregator.ProcessSnapshot) int {
	return func(a, b *aggregator.ProcessSnapshot) int {
		return cmp.Compare(d.grownSince(b, o).toSort(), d.grownSince(a, o).toSort())
	}
}

// growthColumns are the columns of the process table since the baseline; none without one.
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

// cell writes a difference of bytes.
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
