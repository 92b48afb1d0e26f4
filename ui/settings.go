package ui

import (
	"strconv"

	"tt-memtrace/aggregator"
	"tt-memtrace/ui/text"
	"tt-memtrace/ui/widget"
)

// settings are the user's choices.
type settings struct {
	// requested shows requested sizes, not reserved ones.
	requested bool
	widget.Settings
	// sort is the column that the overview's processes are sorted by.
	sort columnID
	// palette is the name of the colours, "" for the first.
	palette string
	// view is the last view on the screen.
	view pageID
}

// shownMemories returns the memories that views show. SystemMemory is not one of them, because it is the host's.
func shownMemories() []aggregator.Memory {
	return []aggregator.Memory{aggregator.DRAM, aggregator.L1, aggregator.L1Small, aggregator.Trace}
}

// amount is the use of a memory, or of the L1 that programs use.
type amount struct {
	used, peak uint64
	// atLeast means that used is a lower bound, because the sizes or the cores of some buffers are unknown.
	atLeast bool
	// peakAtLeast means the same for the peak.
	peakAtLeast bool
	// peakUncertain means that the peak may be too low or too high; about means the same for used.
	peakUncertain, about bool
	// unknown means that used has no meaning.
	unknown bool
	// absent means that there is no such memory.
	absent bool
	// capacity is in bytes; 0 if it is unknown or the memory is absent.
	capacity uint64
}

func memoryNames() []string {
	var names []string
	for _, m := range shownMemories() {
		names = append(names, m.String())
	}
	return names
}

// amountOf returns a memory's use in the sizes that the settings show.
func (o settings) amountOf(u aggregator.Usage, h aggregator.Hidden) amount {
	a := amount{used: u.Reserved, peak: u.PeakReserved, atLeast: u.Unreserved > 0, peakAtLeast: u.PeakUnsure || u.PeaksAtLeast}
	if o.requested {
		a = amount{used: u.Requested, peak: u.PeakRequested, peakAtLeast: u.TotalsOnly || u.PeaksAtLeast}
	}
	a.peakUncertain = u.PeaksUncertain
	a.capacity, _ = u.Capacity()
	a.absent = u.Absent()
	a.unknown = !a.absent && a.used == 0 && (a.atLeast || h.Buffers)
	return a
}

// programsOf returns the L1 used by circular and dataflow buffers and scratchpads. They have only one size.
func programsOf(u aggregator.CBUsage, h aggregator.Hidden) amount {
	// The cores of buffers that clients report are unknown.
	reported := u.Reported > 0
	return amount{used: u.Physical, peak: u.PeakPhysical, unknown: u.Physical == 0 && (h.Programs || reported), atLeast: reported, peakAtLeast: u.PeaksAtLeast, peakUncertain: u.PeaksUncertain}
}

// programsTitle is the title of the column of circular and dataflow buffers.
const programsTitle = "CB+DFB"

// highest returns the peak as an amount.
func (a amount) highest() amount {
	return amount{used: a.peak, unknown: a.peak == 0 && (a.unknown || a.peakAtLeast || a.peakUncertain), absent: a.absent, atLeast: a.peakAtLeast || a.atLeast, about: a.peakUncertain}
}

// rank returns a number to sort by. Unknown and absent amounts have a lower rank than 0 bytes.
func (a amount) rank() uint64 {
	if a.unknown || a.absent {
		return 0
	}
	return a.used + 1
}

// number returns the text of an amount.
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

// sign returns the sign before an amount that is not certain; "" for one that is.
func (a amount) sign(g text.Glyphs) string {
	switch {
	case a.about:
		return g.About
	case a.atLeast:
		return g.AtLeast
	}
	return ""
}

// scaleOf returns the common scale of a column.
func (o settings) scaleOf(amounts []amount, short bool) text.Scale {
	var values, peaks []uint64
	for _, a := range amounts {
		values, peaks = append(values, a.used), append(peaks, a.peak)
	}
	return text.FitScale(values, peaks, o.Exact, short)
}

// leastNumber returns the least width of numbers in a column, so that the column's width does not change with every
// digit.
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

// chipRanges returns the chips of a process in short form, such as 0-7, by numbering.
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
