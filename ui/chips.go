package ui

import (
	"cmp"
	"strconv"
	"time"

	"tt-memtrace/aggregator"
	"tt-memtrace/telemetry"
)

// Bars shrink first when the terminal gets narrow; then units and the small
// memories' bars go, then the card, then all bars.
type chipTier struct {
	card, cb, peaks, short bool
	// telemetry has temperature, power and clock; kernel the bytes of kernels.
	telemetry, kernel bool
	// spark is the width of the history of DRAM, 0 for none.
	spark   int
	history *history
	// bar and small are the least widths of the bars of DRAM and L1, and of
	// L1_SMALL and TRACE; 0 is no bar.
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

// screenTiers are those of the screen, where there can be telemetry and a history.
func screenTiers(d *data, h *history) []chipTier {
	some := false
	for i := range d.snapshot.Chips {
		some = some || telemetryOf(d, &d.snapshot.Chips[i]) != nil
	}
	var out []chipTier
	for i, t := range chipTiers() {
		t.history = h
		t.telemetry = some && i < 6
		if i == 0 {
			t.kernel, t.spark = true, 12
			out = append(out, t)
			t.kernel, t.spark = false, 8
		}
		out = append(out, t)
		if i <= 3 && t.telemetry {
			// Rather narrower bars than none of what the driver tells.
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

// peaksFrom is the width from which text has room for peaks beside bars.
const peaksFrom = 110

// peakTiers are for text, which cannot be looked at again: there the peaks
// come before wide bars and long units.
func peakTiers() []chipTier {
	return []chipTier{
		{card: true, cb: true, peaks: true, bar: 10, small: 5},
		{card: true, cb: true, peaks: true, bar: 5, small: 5},
		{card: true, cb: true, peaks: true, short: true, bar: 10, small: 5},
		{card: true, cb: true, peaks: true, short: true, bar: 5, small: 5},
		{card: true, cb: true, peaks: true, short: true, bar: 5},
	}
}

// maxBar is the width beyond which a bar tells nothing more.
const maxBar = 40

// chipTable lays the device table out in w cells, one row a chip, by the first
// of the tiers that fits.
func chipTable(d *data, o settings, w int, tiers []chipTier) table {
	s := d.snapshot
	late := lateProcesses(s)
	memories := make([]memoryColumn, 0, aggregator.NumMemories)
	for _, m := range shownMemories() {
		c := memoryColumn{name: m.String(), o: o}
		for i := range s.Chips {
			c.amounts = append(c.amounts, o.amountOf(s.Chips[i].Memory[m], anyOf(s.Chips[i].PIDs, late)))
		}
		memories = append(memories, c)
	}
	programs := memoryColumn{name: programsTitle, o: o}
	for i := range s.Chips {
		programs.amounts = append(programs.amounts, programsOf(s.Chips[i].CB, anyOf(s.Chips[i].PIDs, late)))
	}
	var columns []column
	for _, t := range tiers {
		columns = chipColumns(d, o, late, memories, programs, t)
		if rest := w - tableWidth(columns); rest >= 0 {
			columns = chipColumns(d, o, late, memories, programs, t.grown(rest))
			break
		}
	}
	return table{columns: columns, n: len(s.Chips)}
}

// grown gives the bars what is left over, two thirds of it to the large memories.
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

func chipColumns(d *data, o settings, late map[uint32]bool, memories []memoryColumn, programs memoryColumn, t chipTier) []column {
	g, s := glyphSet(o.ascii), d.snapshot
	chip := column{title: text(title, "CHIP"), right: true}
	mark := column{}
	card := column{title: text(title, "CARD"), gap: 2}
	for i := range s.Chips {
		c := &s.Chips[i]
		chip.cells = append(chip.cells, text(strong, chipName(c.Chip)))
		if anyOf(c.PIDs, late) {
			mark.cells = append(mark.cells, text(notice, lateMark))
		} else {
			mark.cells = append(mark.cells, nil)
		}
		card.cells = append(card.cells, cardCell(c, o.ascii, g))
	}
	columns := []column{chip, mark}
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
		kernels := column{title: text(title, "KERNELS"), right: true, gap: 2, least: 9}
		for i := range s.Chips {
			k := &s.Chips[i].Kernel
			cell := bytesCell(kernelBytes(k), o)
			if kernelBytes(k) == 0 && anyOf(s.Chips[i].PIDs, late) {
				cell = text(faint, g.unknown)
			}
			kernels.cells = append(kernels.cells, cell)
		}
		columns = append(columns, kernels)
	}
	if t.spark > 0 {
		c := column{title: text(title, "DRAM 5 min"), gap: 2, least: t.spark}
		if t.spark < width("DRAM 5 min") {
			c.title = text(title, "5 min")
		}
		for i := range s.Chips {
			c.cells = append(c.cells, t.history.spark(subject{chip: s.Chips[i].Chip, metric: metricDRAM}, d.now, sparkTime, t.spark, o.requested, g))
		}
		columns = append(columns, c)
	}
	return columns
}

// sparkTime is what the small histories of the overview span.
const sparkTime = 5 * time.Minute

// sensorColumns are temperature, power and clock.
func sensorColumns(d *data, o settings) []column {
	g := glyphSet(o.ascii)
	degrees := "°C"
	if o.ascii {
		degrees = "C"
	}
	columns := []column{
		{title: text(title, degrees), right: true, gap: 2, least: 3}, {title: text(title, "W"), right: true, gap: 1, least: 3}, {title: text(title, "MHz"), right: true, gap: 1, least: 4},
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
				columns[j].cells = append(columns[j].cells, text(faint, g.unknown))
			case j == 0 && most.Known && most.N > 0 && v.N >= most.N:
				columns[j].cells = append(columns[j].cells, text(alert, strconv.FormatInt(v.N/scale, 10)))
			default:
				columns[j].cells = append(columns[j].cells, text(plain, strconv.FormatInt((v.N+scale/2)/scale, 10)))
			}
		}
	}
	return columns
}

// maxCard cells are enough for every card and architecture that the runtime names.
const maxCard = 12

// cardCell is the card that a chip is on or, where that is not known, its architecture.
func cardCell(c *aggregator.ChipSnapshot, ascii bool, g glyphs) line {
	name := cmp.Or(c.Board, c.Arch)
	if name == "" {
		return text(faint, g.unknown)
	}
	return text(plain, clip(clean(name, ascii), maxCard, g.dots))
}

// memoryColumn is one memory of all chips: bar, number, sign of fullness, and
// the capacity unless the title can hold it.
type memoryColumn struct {
	name    string
	o       settings
	amounts []amount
}

func (m memoryColumn) column(width int, t chipTier, g glyphs) column {
	s := m.o.scaleOf(m.amounts, t.short)
	common, same := m.capacity()
	used := column{right: true, least: m.o.leastNumber(t.short)}
	signs, capacities, peaks := column{}, column{}, column{right: true, gap: 1, least: m.o.leastNumber(t.short), title: text(title, "peak")}
	bars := column{}
	for _, a := range m.amounts {
		used.cells = append(used.cells, a.number(s, g))
		signs.cells = append(signs.cells, signCell(a))
		bars.cells = append(bars.cells, barCell(a, width, g))
		peaks.cells = append(peaks.cells, a.highest().number(s, g))
		if a.capacity == 0 || same {
			capacities.cells = append(capacities.cells, nil)
		} else {
			capacities.cells = append(capacities.cells, text(faint, "/"+capacity(a.capacity, m.o.exact, true)))
		}
	}
	signs.least = 1
	parts := []column{used, signs, capacities}
	if width > 0 {
		used.gap = 1
		bars.least = width
		parts = []column{bars, used, signs, capacities}
	} else {
		parts[0].least = max(used.least, len(m.name))
	}
	if t.peaks {
		parts = append(parts, peaks)
	}
	cells := (&table{columns: parts, n: len(m.amounts)}).rows(0, len(m.amounts))
	return column{title: m.title(parts, width, common, same, t), cells: cells, gap: 1 + min(width, 1)}
}

// title names the memory, and its capacity right above the numbers if it is
// the same for all chips and there is room.
func (m memoryColumn) title(parts []column, width int, common uint64, same bool, t chipTier) line {
	left := 0
	for _, p := range parts {
		if len(p.title) == 0 {
			left += p.gap + p.width()
		}
	}
	left-- // the sign of fullness
	name := text(title, m.name)
	if width == 0 {
		name = name.padded(left, true)
	}
	if same && common > 0 {
		for _, c := range []string{"of " + capacity(common, m.o.exact, t.short), "/" + capacity(common, m.o.exact, true)} {
			if n := left - name.width() - len(c); n >= 1 {
				name = append(append(name, span{spaces(n), plain}), span{c, title})
				break
			}
		}
	}
	if t.peaks {
		p := parts[len(parts)-1]
		name = append(name.padded(left+1, false), p.title.padded(p.gap+p.width(), true)...)
	}
	return name
}

// capacity is the one that all chips have in common, as far as they have one.
func (m memoryColumn) capacity() (common uint64, same bool) {
	for _, a := range m.amounts {
		switch {
		case a.capacity == 0:
		case common == 0:
			common = a.capacity
		case common != a.capacity:
			return 0, false
		}
	}
	return common, true
}

// signCell says how full a memory is where colours say nothing.
func signCell(a amount) line {
	if a.absent || a.unknown {
		return nil
	}
	_, sign := fullness(a.used, a.capacity)
	return text(notice, sign)
}

// barCell is a bar where the capacity is known, else a dot; nothing where there is no memory.
func barCell(a amount, w int, g glyphs) line {
	switch {
	case a.absent, w == 0:
		return nil
	case a.capacity == 0 || a.unknown:
		return text(faint, g.unknown)
	}
	return bar(w, a.used, a.peak, a.capacity, g)
}

func lateProcesses(s *aggregator.Snapshot) map[uint32]bool {
	late := map[uint32]bool{}
	for i := range s.Processes {
		if s.Processes[i].Late {
			late[s.Processes[i].PID] = true
		}
	}
	return late
}

func anyOf(pids []uint32, set map[uint32]bool) bool {
	for _, p := range pids {
		if set[p] {
			return true
		}
	}
	return false
}
