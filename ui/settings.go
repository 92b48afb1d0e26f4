package ui

import (
	"strconv"

	"tt-memtrace/aggregator"
	"tt-memtrace/ui/text"
	"tt-memtrace/ui/widget"
)

// settings are the user's choices.
type settings struct {
	// requested shows what was asked for instead of what the banks lost.
	requested bool
	widget.Settings
	// sort is the column that the overview's processes are sorted by.
	sort columnID
	// palette is the name of the colours, "" for the first.
	palette string
	// view is the one that was on the screen last.
	view pageID
}

// shownMemories are the columns of both tables; SystemMemory is the host's, not a chip's.
func shownMemories() []aggregator.Memory {
	return []aggregator.Memory{aggregator.DRAM, aggregator.L1, aggregator.L1Small, aggregator.Trace}
}

// amount is how much of a memory is in use.
type amount struct {
	used, peak uint64
	// atLeast: some buffers' sizes are not known, so it is more than used.
	atLeast bool
	// peakAtLeast is the same of the peak.
	peakAtLeast bool
	// peakUncertain: the peak may be too low or too high; about is the same of used.
	peakUncertain, about bool
	// unknown: used says nothing.
	unknown bool
	// absent: there is no such memory.
	absent bool
	// capacity is 0 where it is not known.
	capacity uint64
}

func memoryNames() []string {
	var names []string
	for _, m := range shownMemories() {
		names = append(names, m.String())
	}
	return names
}

// hidden says what may be held without being counted: then nothing counted is not the same as nothing there.
type hidden struct {
	buffers, programs bool
	// late: what was held before tracing began has not been read.
	late bool
}

// hiddenOf is what a process may hold uncounted, or has on one of its chips.
func hiddenOf(p *aggregator.ProcessSnapshot, c *aggregator.ChipSnapshot) hidden {
	return shownHidden(aggregator.HiddenOf(p, c))
}

func shownHidden(h aggregator.Hidden) hidden { return hidden{h.Buffers, h.Programs, h.Late} }

// hiders are the processes that may hold what is not counted, on all chips that they have.
type hiders struct{ aggregator.Hiders }

func hidersOf(s *aggregator.Snapshot) hiders { return hiders{aggregator.HidersOf(s)} }

// on is what may lie on a chip uncounted.
func (hs hiders) on(c *aggregator.ChipSnapshot) hidden { return shownHidden(hs.On(c)) }

// amountOf reads the numbers that the settings ask for.
func (o settings) amountOf(u aggregator.Usage, h hidden) amount {
	a := amount{used: u.Reserved, peak: u.PeakReserved, atLeast: u.Unreserved > 0, peakAtLeast: u.PeakUnsure || u.PeaksAtLeast}
	if o.requested {
		a = amount{used: u.Requested, peak: u.PeakRequested, peakAtLeast: u.TotalsOnly || u.PeaksAtLeast}
	}
	a.peakUncertain = u.PeaksUncertain
	a.capacity, _ = u.Capacity()
	a.absent = u.Absent()
	a.unknown = !a.absent && a.used == 0 && (a.atLeast || h.buffers)
	return a
}

// programsOf is what circular and dataflow buffers take: they have one size,
// whatever is asked for.
func programsOf(u aggregator.CBUsage, h hidden) amount {
	// Of what clients report, it is not known on which cores it lies.
	reported := u.Reported > 0
	return amount{used: u.Physical, peak: u.PeakPhysical, unknown: u.Physical == 0 && (h.programs || reported), atLeast: reported, peakAtLeast: u.PeaksAtLeast, peakUncertain: u.PeaksUncertain}
}

// programsTitle heads the column of circular and dataflow buffers.
const programsTitle = "CB+DFB"

// highest is the peak as an amount of its own.
func (a amount) highest() amount {
	return amount{used: a.peak, unknown: a.peak == 0 && (a.unknown || a.peakAtLeast || a.peakUncertain), absent: a.absent, atLeast: a.peakAtLeast || a.atLeast, about: a.peakUncertain}
}

// rank orders amounts by what number writes: what is unknown or absent is below 0 bytes.
func (a amount) rank() uint64 {
	if a.unknown || a.absent {
		return 0
	}
	return a.used + 1
}

// number writes an amount.
func (a amount) number(s text.Scale, g text.Glyphs) text.Line {
	switch {
	case a.absent:
		return text.Faint.Line("-")
	case a.unknown:
		return text.Faint.Line(g.Unknown)
	case a.used == 0:
		return text.Faint.Line("0")
	}
	return text.Plain.Line(a.sign(g) + s.Bytes(a.used))
}

// sign stands before an amount that is not known for sure.
func (a amount) sign(g text.Glyphs) string {
	switch {
	case a.about:
		return g.About
	case a.atLeast:
		return g.AtLeast
	}
	return ""
}

// scaleOf is the common scale of a column.
func (o settings) scaleOf(amounts []amount, short bool) text.Scale {
	var values, peaks []uint64
	for _, a := range amounts {
		values, peaks = append(values, a.used), append(peaks, a.peak)
	}
	return text.FitScale(values, peaks, o.Exact, short)
}

// leastNumber is the width that numbers of the scale get anyway, so that a
// column does not change its width with every digit.
func (o settings) leastNumber(short bool) int {
	if short || o.Exact {
		return 6
	}
	return 9
}

func chipName(c aggregator.Chip) string {
	n := strconv.FormatUint(uint64(c.Number), 10)
	if c.Space != 0 {
		return strconv.FormatUint(uint64(c.Space), 10) + ":" + n
	}
	return n
}

// chipRanges writes the chips of a process the short way, one run a numbering.
func chipRanges(chips []aggregator.ChipSnapshot) string {
	out := ""
	for i := 0; i < len(chips); {
		space := chips[i].Chip.Space
		var numbers []uint32
		for ; i < len(chips) && chips[i].Chip.Space == space; i++ {
			numbers = append(numbers, chips[i].Chip.Number)
		}
		if out != "" {
			out += " "
		}
		if space != 0 {
			out += strconv.FormatUint(uint64(space), 10) + ":"
		}
		out += aggregator.Ranges(numbers)
	}
	return out
}
