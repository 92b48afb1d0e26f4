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
	used   map[processID]uint64
}

// rebase makes now the baseline of the processes.
func (v *overview) rebase() {
	base := &processBaseline{at: v.data.now, memory: v.memory, used: map[processID]uint64{}}
	for i := range v.data.snapshot.Processes {
		p := &v.data.snapshot.Processes[i]
		base.used[idOf(p)] = v.settings.processAmounts(p)[base.memory].used
	}
	v.base = base
	v.notify("baseline set: +" + metricNames[base.memory] + " and +/MIN count from now on; b sets it again")
}

// grownSince is how much more of the baseline's memory a process has than at the baseline.
func (d *data) grownSince(p *aggregator.ProcessSnapshot, o settings) int64 {
	return int64(o.processAmounts(p)[d.base.memory].used) - int64(d.base.used[idOf(p)])
}

// grownPerMinute is the same in a minute; 0 before that means anything.
func (d *data) grownPerMinute(p *aggregator.ProcessSnapshot, o settings) int64 {
	since := time.Duration(d.now - min(d.base.at, d.now))
	if since < leastGrowth {
		return 0
	}
	return int64(float64(d.grownSince(p, o)) / since.Minutes())
}

// growthOrder sorts what has grown most to the top.
func (d *data) growthOrder(o settings) func(a, b *aggregator.ProcessSnapshot) int {
	return func(a, b *aggregator.ProcessSnapshot) int { return cmp.Compare(d.grownSince(b, o), d.grownSince(a, o)) }
}

// growthColumns are the columns of the process table since the baseline; none without one.
func growthColumns(d *data, o settings, whole func(columnID, string, int, func(*aggregator.ProcessSnapshot) text.Line) widget.Column) []widget.Column {
	if d.base == nil {
		return nil
	}
	return []widget.Column{
		whole(byGrowth, "+"+metricNames[d.base.memory], 9, func(p *aggregator.ProcessSnapshot) text.Line { return growth(d.grownSince(p, o), o) }),
		whole(byGrowthRate, "+/MIN", 9, func(p *aggregator.ProcessSnapshot) text.Line { return growth(d.grownPerMinute(p, o), o) }),
	}
}
