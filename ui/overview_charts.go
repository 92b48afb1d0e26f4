package ui

import (
	"cmp"
	"fmt"
	"slices"

	"tt-memtrace/aggregator"
	"tt-memtrace/aggregator/exact"
	"tt-memtrace/ui/text"
	"tt-memtrace/ui/widget"
)

// Stacked charts fill the rows that the tables of the overview leave. They show which processes held a memory.
const (
	// leastChart is the fewest lines of a readable chart, with its title. If each row of charts would be twice
	// tallChart high, there is one more row of charts.
	leastChart = 5
	tallChart  = 12
	// leastOfTwo is the fewest rows of each of two charts, one above the other.
	leastOfTwo = 6
	// wideCharts is the width from which on two charts are side by side.
	wideCharts = 150
	// stackedProcesses is how many processes have their own layer.
	stackedProcesses = 4
)

// cycled are the memories that the key v chooses from.
var cycled = []metric{metricDRAM, metricL1, metricL1Small, metricTrace, metricCB}

// nextMemory chooses the next memory.
func (v *overview) nextMemory() { v.memory = after(v.memory) }

func after(m metric) metric { return cycled[(slices.Index(cycled, m)+1)%len(cycled)] }

// chartKey identifies the data of the charts. They are drawn again once a second.
type chartKey struct {
	second           uint64
	w, h             int
	memory           metric
	ascii, requested bool
	exact            bool
	chips, processes int
}

// charted returns the charts in w times h cells; the memory that the user chose with v comes first.
func (v *overview) charted(w, h int) []text.Line {
	if h < leastChart || len(v.chips()) == 0 {
		return nil
	}
	o := v.settings
	k := chartKey{v.data.now / 1e9, w, h, v.memory, o.ASCII, o.requested, o.Exact, len(v.chips()), len(v.data.snapshot.Processes)}
	if k == v.drawnOf && v.drawn != nil {
		return v.drawn
	}
	columns, rows := 1, max(min(h/leastOfTwo, 2), 1)
	if w >= wideCharts {
		columns, rows = 2, 1
	}
	if h >= 2*tallChart*rows {
		rows++
	}
	var out []text.Line
	m := v.memory
	for r := range rows {
		high, left := (r+1)*h/rows-r*h/rows, w/columns
		line := v.stacked(m, left-columns+1, high)
		m = after(m)
		if columns == 2 {
			beside := v.stacked(m, w-left, high)
			m = after(m)
			for i := range line {
				line[i] = append(line[i].Padded(left, false), beside[i]...)
			}
		}
		out = append(out, line...)
	}
	v.drawnOf, v.drawn = k, out
	return out
}

// stacked returns the chart of one memory over all chips, by process.
func (v *overview) stacked(m metric, w, h int) []text.Line {
	g, o := text.GlyphSet(v.settings.ASCII), v.settings
	columns := max(w-axisWidth-1, 1)
	now := v.data.now
	span, age := v.history.recent(now)
	from := now - min(now, uint64(span))
	known, total := make([]bool, columns), make([]uint64, columns)
	var ceiling, highest uint64
	for i := range v.chips() {
		c := &v.chips()[i]
		for x, n := range v.history.read(subject{chip: c.Chip, metric: m}, from, now, columns, o.requested) {
			if n != widget.Unknown {
				known[x] = true
				total[x] += n
			}
		}
		if n, ok := ceilingOf(c, m); ok {
			ceiling += n
		}
	}
	for _, n := range total {
		highest = max(highest, n)
	}

	holders := v.largestHolders(m)
	styles := widget.LayerStyles(g)
	rest := slices.Clone(total)
	var layers []widget.Layer
	title := text.Line{text.Strong.Span(" " + metricNames[m]), text.Plain.Span(" by process, " + age)}
	if ceiling > 0 {
		title = append(title, text.Faint.Span(", of "+text.Capacity(ceiling, o.Exact, false)))
	}
	more := len(holders) > stackedProcesses
	holders = holders[:min(len(holders), stackedProcesses)]
	var ids []processID
	for _, p := range holders {
		ids = append(ids, idOf(p))
	}
	looks := v.looksOf(ids)
	named := make([]text.Line, 0, len(holders))
	for i, p := range holders {
		l := styles[looks[i]]
		l.Values = make([]uint64, columns)
		for c, n := range v.history.read(subject{process: ids[i], metric: m}, from, now, columns, o.requested) {
			if n != widget.Unknown {
				l.Values[c] = min(n, rest[c])
				rest[c] -= l.Values[c]
			}
		}
		layers = append(layers, l)
		name := text.Clip(text.Command(p.Info.Command, o.ASCII), 20, g.Dots)
		named = append(named, text.Line{l.Role.Span("  " + l.Fill), text.Plain.Span(fmt.Sprintf(" %d %s", p.PID, name))})
	}
	l := styles[len(styles)-1]
	l.Values = rest
	layers = append(layers, l)
	var others text.Line
	if slices.ContainsFunc(rest, func(n uint64) bool { return n > 0 }) {
		name := " peak between samples" // then the chip's peak is known, but not which process had it
		if more {
			name = " others"
		}
		others = text.Line{l.Role.Span("  " + l.Fill), text.Plain.Span(name)}
	}
	for _, legend := range named {
		if title.Width()+legend.Width()+others.Width() <= w {
			title = append(title, legend...)
		}
	}
	title = append(title, others...)
	// Scale to the capacity, unless less than a quarter of it was used.
	top := max(highest, 1)
	if ceiling > 0 && highest >= ceiling/4 {
		top = ceiling
	}
	out := []text.Line{title.Shortened(w, g.Dots)}
	for i, line := range widget.Stack(layers, known, top, h-1, g) {
		label := ""
		switch {
		case i == 0 && highest > 0:
			label = text.FitScale([]uint64{top}, nil, false, false).Bytes(top)
		case i == h-2 && i > 0:
			label = "0"
		}
		out = append(out, append(text.Line{text.Faint.Span(text.Spaces(axisWidth-1-text.Width(label)) + label + g.Wall)}, line...))
	}
	return out
}

// largestHolders returns the processes with a history of a memory: first those that hold the most now, then those that
// held the most, exited ones included.
func (v *overview) largestHolders(m metric) []*aggregator.ProcessSnapshot {
	type holder struct {
		p          *aggregator.ProcessSnapshot
		used, peak uint64
	}
	var list []holder
	add := func(processes []aggregator.ProcessSnapshot, live bool) {
		for i := range processes {
			p := &processes[i]
			if !v.history.has(subject{process: idOf(p), metric: m}) {
				continue
			}
			a := v.settings.processAmounts(p)[m]
			if !live {
				a.used = exact.Of(0)
			}
			list = append(list, holder{p, a.used.WithoutBound(), a.peak.WithoutBound()})
		}
	}
	add(v.data.snapshot.Processes, true)
	add(v.data.snapshot.Ended, false)
	slices.SortStableFunc(list, func(a, b holder) int { return cmp.Or(cmp.Compare(b.used, a.used), cmp.Compare(b.peak, a.peak)) })
	out := make([]*aggregator.ProcessSnapshot, len(list))
	for i := range list {
		out[i] = list[i].p
	}
	return out
}

// looksOf returns different looks for the processes in a chart. A process keeps its look from chart to chart, unless
// another process in this chart has it.
func (v *overview) looksOf(ids []processID) []int {
	var taken [stackedProcesses]bool
	out := make([]int, len(ids))
	for i, id := range ids {
		look, known := v.looks[id]
		if !known {
			if len(v.looks) == maxLooks {
				clear(v.looks)
			}
			look = len(v.looks) % stackedProcesses
			v.looks[id] = look
		}
		for taken[look] {
			look = (look + 1) % stackedProcesses
		}
		out[i], taken[look] = look, true
	}
	return out
}

// maxLooks is how many processes' looks are kept.
const maxLooks = 256

// ceilingOf returns the capacity of a chip's memory; for the L1 used by programs, that of L1. It is false if that is
// unknown.
func ceilingOf(c *aggregator.ChipSnapshot, m metric) (uint64, bool) {
	memory := aggregator.L1
	if m < metricCB {
		memory = shownMemories()[m]
	}
	return c.Memory[memory].Capacity()
}
