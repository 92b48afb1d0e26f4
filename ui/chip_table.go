package ui

import (
	"cmp"
	"strconv"

	"tt-memtrace/aggregator"
	"tt-memtrace/internal/telemetry"
	"tt-memtrace/ui/text"
	"tt-memtrace/ui/widget"
)

// chipTier is a way to lay out the chip table. On a narrower terminal the peaks go and bars shrink first; then units
// get short; then the small memories' bars go, the card, the circular buffers, and all bars.
type chipTier struct {
	card, cb, peaks, short bool
	// telemetry shows temperature, power and clock; kernel shows the bytes of kernels.
	telemetry, kernel bool
	// spark is the width of the small history; 0 for none.
	spark   int
	history *history
	// memory is the memory of the small history. names are the names of rows for several chips.
	memory metric
	names  map[aggregator.Chip]string
	// bar is the least width of the bars of DRAM and L1, small that of L1_SMALL and TRACE; 0 is no bar.
	bar, small int
}

func chipTiers() []chipTier {
	return []chipTier{
		{card: true, cb: true, peaks: true, bar: 16, small: 8},
		{card: true, cb: true, bar: 10, small: 5},
		{card: true, cb: true, short: true, bar: 8, small: 5},
		{card: true, cb: true, short: true, bar: 8},
		{card: true, cb: true, short: true, bar: 5},
		{cb: true, short: true, bar: 5},
		{short: true, bar: 5},
		{short: true},
	}
}

// screenTiers returns the tiers for the screen, which can have telemetry, the bytes of kernels and small histories.
func screenTiers(d *data, h *history, memory metric, names map[aggregator.Chip]string) []chipTier {
	some := false
	for i := range d.snapshot.Chips {
		some = some || telemetryOf(d, &d.snapshot.Chips[i]) != nil
	}
	var out []chipTier
	for i, t := range chipTiers() {
		t.history, t.memory, t.names = h, memory, names
		t.telemetry = some && i < 6
		if i == 0 {
			t.kernel = true
			if names == nil { // with names, a row is for several chips, which have no common history
				t.spark = 12
			}
			out = append(out, t)
			t.kernel, t.spark = false, min(t.spark, 8)
		}
		out = append(out, t)
		if i <= 3 && t.telemetry {
			// Prefer the driver's values to wide bars.
			t.bar, t.small = max(t.bar-3, 5), 0
			out = append(out, t)
		}
		if t.telemetry {
			t.telemetry = false
			if i >= 4 {
				out = append(out, t)
			}
		}
	}
	return out
}

// peaksFrom is the width from which on text tries the tiers of peakTiers first.
const peaksFrom = 110

// peakTiers returns the tiers that wide text tries first. Text is not updated, so peaks are more important than wide
// bars and long units.
func peakTiers() []chipTier {
	return []chipTier{
		{card: true, cb: true, peaks: true, bar: 10, small: 5},
		{card: true, cb: true, peaks: true, bar: 5, small: 5},
		{card: true, cb: true, peaks: true, short: true, bar: 10, small: 5},
		{card: true, cb: true, peaks: true, short: true, bar: 5, small: 5},
		{card: true, cb: true, peaks: true, short: true, bar: 5},
	}
}

// maxBar is the most cells of a bar.
const maxBar = 40

// chipTable returns the chip table in w cells, with a row for each chip, in the first tier that fits, or the last.
func chipTable(d *data, o settings, w int, tiers []chipTier) widget.Columns {
	s := d.snapshot
	memories := make([]memoryColumn, 0, aggregator.NumMemories)
	for _, m := range shownMemories() {
		c := memoryColumn{name: m.String(), o: o}
		for i := range s.Chips {
			c.amounts = append(c.amounts, o.amountOf(s.Chips[i].Memory[m]))
		}
		memories = append(memories, c)
	}
	programs := memoryColumn{name: programsTitle, o: o}
	for i := range s.Chips {
		programs.amounts = append(programs.amounts, programsOf(s.Chips[i].CB))
	}
	var columns []widget.Column
	for _, t := range tiers {
		columns = chipColumns(d, o, memories, programs, t)
		if rest := w - widget.TableWidth(columns); rest >= 0 {
			t = t.grown(rest)
			columns = chipColumns(d, o, memories, programs, t)
			if rest := w - widget.TableWidth(columns); t.spark > 0 && rest > 0 {
				t.spark += min(rest, maxSpark)
				columns[len(columns)-1] = sparkColumn(d, o, t)
			}
			break
		}
	}
	return widget.Columns{Columns: columns, N: len(s.Chips)}
}

// maxSpark is the most cells by which a small history is widened: the number of seconds in five minutes, the longest
// time that it shows.
const maxSpark = 300

// grown returns the tier with bars widened by the cells that are left: two thirds of them for the large memories, or
// all if the small memories have no bars.
func (t chipTier) grown(rest int) chipTier {
	if t.bar == 0 {
		return t
	}
	if t.small == 0 {
		t.bar = min(t.bar+rest/2, maxBar)
		return t
	}
	small := min(rest/6, maxBar/2-t.small)
	t.bar = min(t.bar+(rest-2*small)/2, maxBar)
	t.small += small
	return t
}

func chipColumns(d *data, o settings, memories []memoryColumn, programs memoryColumn, t chipTier) []widget.Column {
	g, s := text.GlyphSet(o.ASCII), d.snapshot
	chip := widget.Column{Title: text.Title.Line("CHIP"), Right: true}
	mark := widget.Column{}
	card := widget.Column{Title: text.Title.Line("CARD"), Gap: 2}
	for i := range s.Chips {
		c := &s.Chips[i]
		chip.Cells = append(chip.Cells, text.Strong.Line(cmp.Or(t.names[c.Chip], chipName(c.Chip))))
		mark.Cells = append(mark.Cells, text.Notice.Line(marksOf(c.Reasons)))
		card.Cells = append(card.Cells, cardCell(c, o.ASCII, g))
	}
	columns := []widget.Column{chip, mark}
	if t.card {
		columns = append(columns, card)
	}
	if t.telemetry {
		columns = append(columns, sensorColumns(d, o)...)
	}
	for i, m := range memories {
		width := t.bar
		if i >= 2 {
			width = t.small
		}
		columns = append(columns, m.column(width, t, g))
	}
	if t.cb {
		t.peaks = false
		columns = append(columns, programs.column(0, t, g))
	}
	if t.kernel {
		kernels := widget.Column{Title: text.Title.Line("KERNELS"), Right: true, Gap: 2, Least: 9}
		for i := range s.Chips {
			kernels.Cells = append(kernels.Cells, o.bytesOf(s.Chips[i].Kernel.Bytes))
		}
		columns = append(columns, kernels)
	}
	if t.spark > 0 {
		columns = append(columns, sparkColumn(d, o, t))
	}
	return columns
}

// sparkColumn returns the small history of each chip.
func sparkColumn(d *data, o settings, t chipTier) widget.Column {
	span, age := t.history.recent(d.now)
	g, name := text.GlyphSet(o.ASCII), metricNames[t.memory]+" "+age
	c := widget.Column{Title: text.Title.Line(name), Gap: 2, Least: t.spark}
	if t.spark < text.Width(name) {
		c.Title = text.Title.Line(age)
	}
	for i := range d.snapshot.Chips {
		c.Cells = append(c.Cells, t.history.spark(subject{chip: d.snapshot.Chips[i].Chip, metric: t.memory}, d.now, span, t.spark, o.requested, g))
	}
	return c
}

// sensorColumns returns temperature, power and clock.
func sensorColumns(d *data, o settings) []widget.Column {
	g := text.GlyphSet(o.ASCII)
	degrees := "°C"
	if o.ASCII {
		degrees = "C"
	}
	columns := []widget.Column{
		{Title: text.Title.Line(degrees), Right: true, Gap: 2, Least: 3}, {Title: text.Title.Line("W"), Right: true, Gap: 1, Least: 3}, {Title: text.Title.Line("MHz"), Right: true, Gap: 1, Least: 4},
	}
	for i := range d.snapshot.Chips {
		values := make([]telemetry.Value, 3)
		var most telemetry.Value
		if t := telemetryOf(d, &d.snapshot.Chips[i]); t != nil {
			values, most = []telemetry.Value{t.Temperature, t.Power, t.AI}, t.TemperatureMax
		}
		for j, scale := range []int64{1000, 1e6, 1} {
			switch v := values[j]; {
			case !v.Known:
				columns[j].Cells = append(columns[j].Cells, text.Faint.Line(g.Unknown))
			case j == 0 && most.Known && most.N > 0 && v.N >= most.N:
				columns[j].Cells = append(columns[j].Cells, text.Alert.Line(strconv.FormatInt(v.N/scale, 10)))
			default:
				columns[j].Cells = append(columns[j].Cells, text.Plain.Line(strconv.FormatInt((v.N+scale/2)/scale, 10)))
			}
		}
	}
	return columns
}

// maxCard is wide enough for every card and architecture that the runtime has.
const maxCard = 12

// cardCell returns a chip's card; if that is unknown, its architecture.
func cardCell(c *aggregator.ChipSnapshot, ascii bool, g text.Glyphs) text.Line {
	name := cmp.Or(c.Board, c.Arch)
	if name == "" {
		return text.Faint.Line(g.Unknown)
	}
	return text.Plain.Line(text.Clip(text.Sanitize(name, ascii), maxCard, g.Dots))
}

// memoryColumn is one memory of all chips: bar, number, a sign of how full it is, the capacity unless all chips have
// the same, and the peak if the tier has peaks.
type memoryColumn struct {
	name    string
	o       settings
	amounts []amount
}

func (m memoryColumn) column(width int, t chipTier, g text.Glyphs) widget.Column {
	s := m.o.scaleOf(m.amounts, t.short)
	common, same := m.capacity()
	used := widget.Column{Right: true, Least: m.o.leastNumber(t.short)}
	signs, capacities, peaks := widget.Column{}, widget.Column{}, widget.Column{Right: true, Gap: 1, Least: m.o.leastNumber(t.short), Title: text.Title.Line("peak")}
	bars := widget.Column{}
	for _, a := range m.amounts {
		used.Cells = append(used.Cells, a.number(s, g))
		signs.Cells = append(signs.Cells, signCell(a))
		bars.Cells = append(bars.Cells, barCell(a, width, g))
		peaks.Cells = append(peaks.Cells, a.highest().number(s, g))
		if a.room() == 0 || same {
			capacities.Cells = append(capacities.Cells, nil)
		} else {
			capacities.Cells = append(capacities.Cells, text.Faint.Line("/"+text.Capacity(a.room(), m.o.Exact, true)))
		}
	}
	signs.Least = 1
	parts := []widget.Column{used, signs, capacities}
	if width > 0 {
		used.Gap = 1
		bars.Least = width
		parts = []widget.Column{bars, used, signs, capacities}
	} else {
		parts[0].Least = max(used.Least, len(m.name))
	}
	if t.peaks {
		parts = append(parts, peaks)
	}
	cells := (&widget.Columns{Columns: parts, N: len(m.amounts)}).Rows(0, len(m.amounts))
	return widget.Column{Title: m.title(parts, width, common, same, t), Cells: cells, Gap: 1 + min(width, 1)}
}

// title returns the title: the memory's name and, if it is the same for all chips and there is room, the capacity above
// the numbers.
func (m memoryColumn) title(parts []widget.Column, width int, common uint64, same bool, t chipTier) text.Line {
	left := 0
	for _, p := range parts {
		if len(p.Title) == 0 {
			left += p.Gap + p.Width()
		}
	}
	left-- // one cell for the sign
	name := text.Title.Line(m.name)
	if width == 0 {
		name = name.Padded(left, true)
	}
	if same && common > 0 {
		for _, c := range []string{"of " + text.Capacity(common, m.o.Exact, t.short), "/" + text.Capacity(common, m.o.Exact, true)} {
			if n := left - name.Width() - len(c); n >= 1 {
				name = append(append(name, text.Plain.Span(text.Spaces(n))), text.Title.Span(c))
				break
			}
		}
	}
	if t.peaks {
		p := parts[len(parts)-1]
		name = append(name.Padded(left+1, false), p.Title.Padded(p.Gap+p.Width(), true)...)
	}
	return name
}

// capacity returns the capacity that all chips with a known one have in common, 0 if none has; same is false if they
// differ.
func (m memoryColumn) capacity() (common uint64, same bool) {
	for _, a := range m.amounts {
		switch room := a.room(); {
		case room == 0:
		case common == 0:
			common = room
		case common != room:
			return 0, false
		}
	}
	return common, true
}

// signCell returns the sign for how full a memory is, for terminals without colours.
func signCell(a amount) text.Line {
	_, sign := widget.Fullness(a.used.WithoutBound(), a.room())
	return text.Notice.Line(sign)
}

// barCell returns a bar if use and capacity are known, otherwise the sign for unknown; nothing if there is no such
// memory or no cell.
func barCell(a amount, w int, g text.Glyphs) text.Line {
	switch {
	case a.absent(), w == 0:
		return nil
	case a.room() == 0 || !a.used.Known():
		return text.Faint.Line(g.Unknown)
	}
	return widget.Bar(w, a.used.WithoutBound(), a.peak.WithoutBound(), a.room(), g)
}
