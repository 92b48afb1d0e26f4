package ui

import (
	"fmt"
	"strings"

	"tt-memtrace/aggregator"
	"tt-memtrace/aggregator/exact"
	"tt-memtrace/ui/text"
	"tt-memtrace/ui/widget"
)

// chipMode is how the overview shows the chips.
type chipMode int

const (
	// chipsAuto shows a row for each chip; if there is no room for that, the first of chipsFolded and chipsGrid that
	// fits; if neither fits, a row for each chip.
	chipsAuto chipMode = iota
	chipsRows
	// chipsFolded shows one row for alike chips, chipsGrid a cell for each chip.
	chipsFolded
	chipsGrid
	numChipModes
)

var chipModeNames = [numChipModes]string{"chips: what fits", "chips: a row each", "chips: equal ones share a row", "chips: a grid of percentages"}

// nextChipMode chooses the next way to show the chips.
func (v *overview) nextChipMode() {
	v.mode = (v.mode + 1) % numChipModes
	v.notify(chipModeNames[v.mode])
}

// folded returns data with one chip for all chips whose rows would be equal, and the names of these rows. Telemetry and
// small histories belong to single chips, so they are left out.
func folded(d data, o settings) (data, map[aggregator.Chip]string) {
	groups := map[string]int{}
	var members [][]aggregator.ChipSnapshot
	var all []aggregator.ChipSnapshot
	for i := range d.snapshot.Chips {
		c := &d.snapshot.Chips[i]
		key := fmt.Sprint(c.Chip.Space, c.Board, c.Arch, c.Hidden, marksOf(c.Reasons), o.bytesOf(c.Kernel.Bytes))
		for _, a := range append(o.memoryAmounts(c), programsOf(c.CB)) {
			for _, n := range []amount{a, a.highest()} {
				key += fmt.Sprint(" ", n.number(o.scaleOf([]amount{n}, false), text.GlyphSet(true)))
			}
			key += fmt.Sprint(signCell(a), a.room())
		}
		n, ok := groups[key]
		if !ok {
			n = len(all)
			groups[key] = n
			all, members = append(all, *c), append(members, nil)
		}
		members[n] = append(members[n], *c)
	}
	names := map[aggregator.Chip]string{}
	for i := range all {
		names[all[i].Chip] = chipRanges(members[i])
	}
	s := *d.snapshot
	s.Chips = all
	d.snapshot, d.devices = &s, nil
	return d, names
}

func (o settings) memoryAmounts(c *aggregator.ChipSnapshot) []amount {
	var out []amount
	for _, m := range shownMemories() {
		out = append(out, o.amountOf(c.Memory[m]))
	}
	return out
}

// amountIn returns a chip's use of a memory; for metricCB, the L1 used by programs, with the capacity of L1.
func (o settings) amountIn(c *aggregator.ChipSnapshot, m metric) amount {
	if m == metricCB {
		a := programsOf(c.CB)
		if n, known := ceilingOf(c, m); known && n > 0 {
			a.capacity = exact.Of(n)
		}
		return a
	}
	return o.memoryAmounts(c)[m]
}

// gridCell is the width of a chip in the grid: its name, its first mark, a bar two cells wide, a percentage, and the
// sign of a nearly full memory.
const gridCell = 12

// grid returns a cell for each chip that says how full the chosen memory is.
func (v *overview) grid(w int) []text.Line {
	g, o := text.GlyphSet(v.settings.ASCII), v.settings
	perLine := v.gridColumns(w)
	var out []text.Line
	for i := range v.chips() {
		c := &v.chips()[i]
		a := o.amountIn(c, v.memory)
		name := text.Line{text.Strong.Span(fmt.Sprintf("%4s", text.Clip(chipName(c.Chip), 4, g.Dots))), text.Notice.Span(fmt.Sprintf("%.1s", marksOf(c.Reasons)+" "))}
		var cell text.Line
		switch {
		case a.absent():
			cell = append(name, text.Faint.Span("-"))
		case !a.used.Known(), a.room() == 0:
			cell = append(name, text.Faint.Span(g.Unknown))
		default:
			used, room := a.used.WithoutBound(), a.room()
			look, sign := widget.Fullness(used, room)
			share := float64(min(used, room)) / float64(room)
			height := g.Sparks[min(int(share*float64(len(g.Sparks))), len(g.Sparks)-1)]
			percent := text.Percent(share)
			if share < 1 { // a lower bound cannot be more than full
				percent = percentFrom(signOf(a.used, g), share)
			}
			cell = append(append(name, look.Span(height+height)), append(text.Plain.Line(percent).Padded(max(text.Width(percent), 4), true), text.Plain.Span(sign))...)
		}
		if i%perLine == 0 {
			out = append(out, nil)
		}
		n := len(out) - 1
		cursor := text.Plain.Span(" ")
		if v.focus == chipPanel && i == v.lists[chipPanel].Index {
			cursor = text.Notice.Span(g.Cursor)
		}
		out[n] = append(append(out[n], cursor), cell.Padded(gridCell, false)...)
	}
	return out
}

// percentFrom returns a share in percent, after this sign. After a sign, a share that rounds to 0 is written as 0.
func percentFrom(sign string, share float64) string {
	if percent := text.Percent(share); sign == "" || percent != "<1" {
		return sign + percent
	}
	return sign + "0"
}

func (v *overview) gridColumns(w int) int { return max(w/(gridCell+1), 1) }

// summary returns a line with the use of all chips, and one with the fullest chip of each memory.
func (v *overview) summary(w int) []text.Line {
	g, o := text.GlyphSet(v.settings.ASCII), v.settings
	type sum struct {
		used     exact.Quantity
		capacity uint64
		some     bool
		worst    float64
		chip     aggregator.Chip
		known    bool
	}
	var all, worst []text.Line
	unknown := false
	for _, m := range cycled {
		s := sum{used: exact.Of(0)}
		for i := range v.chips() {
			c := &v.chips()[i]
			a := o.amountIn(c, m)
			if a.absent() {
				continue
			}
			s.some = true
			s.used = s.used.Add(a.used)
			s.capacity += a.room()
			if a.room() == 0 {
				s.used = s.used.Doubted(exact.AtLeast)
			} else if a.used.Known() {
				if share := float64(a.used.WithoutBound()) / float64(a.room()); !s.known || share > s.worst {
					s.worst, s.chip, s.known = share, c.Chip, true
				}
			}
		}
		if !s.some {
			continue
		}
		least := signOf(s.used, g)
		part := text.Line{text.Title.Span(metricNames[m] + " "), text.Plain.Span(least + bytesCell(s.used.WithoutBound(), o).String())}
		if !s.used.Known() {
			part[1] = text.Faint.Span(g.Unknown)
		}
		if s.capacity > 0 && m != metricCB {
			part = append(part, text.Faint.Span(" of "+text.Capacity(s.capacity, o.Exact, false)))
		}
		all = append(all, part)
		unknown = unknown || !s.known && s.used.Bound() != exact.Exact
		if s.known && s.worst > 0 {
			look, sign := widget.Fullness(uint64(s.worst*1000), 1000)
			if sign == "" {
				look = text.Plain
			}
			worst = append(worst, text.Line{text.Title.Span(metricNames[m] + " "), look.Span(percentFrom(least, s.worst) + " %" + sign), text.Faint.Span(" chip " + chipName(s.chip))})
		}
	}
	switch {
	case len(worst) > 0:
	case unknown:
		worst = append(worst, text.Faint.Line("how full chips are is not known"))
	default:
		worst = append(worst, text.Faint.Line("nothing is in use"))
	}
	join := func(name string, parts []text.Line) text.Line {
		out := text.Strong.Line(name)
		for _, p := range parts {
			if out.Width()+2+p.Width() <= w {
				out = append(append(out, text.Plain.Span("  ")), p...)
			}
		}
		return out
	}
	return []text.Line{
		join(" all "+strings.TrimSpace(text.Plural(len(v.chips()), "chip", "chips")), all),
		join(" fullest", worst),
	}
}
