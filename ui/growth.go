package ui

import (
	"cmp"
	"time"

	"tt-memtrace/aggregator"
	"tt-memtrace/aggregator/exact"
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

// gain is how much use has grown, and how far that can be trusted: unknown, exact, or uncertain.
type gain struct {
	bytes int64
	bound exact.Bound
}

// gainOf returns the growth between two quantities. It is uncertain if one of them is not exact: the other may be, too,
// by another number.
func gainOf(was, is exact.Quantity) gain {
	from, a := was.Value()
	to, b := is.Value()
	switch {
	case a == exact.Unknown || b == exact.Unknown:
		return gain{bound: exact.Unknown}
	case a == exact.Exact && b == exact.Exact:
		return gain{bytes: int64(to) - int64(from)}
	}
	return gain{int64(to) - int64(from), exact.Uncertain}
}

// grownSince returns how much more of the baseline's memory a process has than at the baseline.
func (d *data) grownSince(p *aggregator.ProcessSnapshot, o settings) gain {
	was := exact.Of(0) // a process that came later had nothing
	if at, ok := d.base.used[idOf(p)]; ok {
		was = at.of(o).used
	}
	return gainOf(was, o.processAmounts(p)[d.base.memory].used)
}

// perMinute returns the growth in a minute; it is unknown for the first leastGrowth.
func (g gain) perMinute(since time.Duration) gain {
	if since < leastGrowth {
		return gain{bound: exact.Unknown}
	}
	g.bytes = int64(float64(g.bytes) / since.Minutes())
	return g
}

// toSort returns the bytes to sort by; unknown growth counts as 0.
func (g gain) toSort() int64 {
	if g.bound == exact.Unknown {
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
	if g.bound == exact.Uncertain {
		about = glyphs.About
	}
	switch {
	case g.bound == exact.Unknown:
		return text.Faint.Line(glyphs.Unknown)
	case g.bytes > 0:
		return text.Warn.Line(about + "+" + bytesCell(uint64(g.bytes), o).String())
	case g.bytes < 0:
		return text.Plain.Line(about + "-" + bytesCell(uint64(-g.bytes), o).String())
	}
	return text.Faint.Line("0")
}
