package ui

import (
	"strconv"

	"tt-memtrace/aggregator"
	"tt-memtrace/aggregator/exact"
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
	used, peak exact.Quantity
	// capacity is in bytes: 0 if there is no such memory.
	capacity exact.Quantity
}

// absent reports whether there is no such memory.
func (a amount) absent() bool { return a.capacity.Is(0) }

// room returns the capacity, 0 if it is unknown or there is no such memory.
func (a amount) room() uint64 { return a.capacity.WithoutBound() }

func memoryNames() []string {
	var names []string
	for _, m := range shownMemories() {
		names = append(names, m.String())
	}
	return names
}

// amountOf returns a memory's use in the sizes that the settings show.
func (o settings) amountOf(u aggregator.Usage) amount {
	a := amount{used: u.Reserved, peak: u.PeakReserved}
	if o.requested {
		a = amount{used: u.Requested, peak: u.PeakRequested}
	}
	if n, known := u.Capacity(); n > 0 || known && u.Absent() {
		a.capacity = exact.Of(n)
	}
	return a
}

// programsOf returns the L1 used by circular and dataflow buffers and scratchpads. They have only one size.
func programsOf(u aggregator.CBUsage) amount {
	return amount{used: u.Physical, peak: u.PeakPhysical}
}

// programsTitle is the title of the column of circular and dataflow buffers.
const programsTitle = "CB+DFB"

// highest returns the peak as an amount.
func (a amount) highest() amount { return amount{used: a.peak, capacity: a.capacity} }

// rank returns a number to sort by. Unknown and absent amounts have a lower rank than 0 bytes.
func (a amount) rank() uint64 {
	if a.absent() || !a.used.Known() {
		return 0
	}
	return a.used.WithoutBound() + 1
}

// number returns the text of an amount.
func (a amount) number(s text.Scale, g text.Glyphs) text.Line {
	if a.absent() {
		return text.Faint.Line("-")
	}
	return quantityLine(a.used, g, s.Bytes)
}

// quantityLine returns a quantity as write writes the number, behind the sign of its bound.
func quantityLine(q exact.Quantity, g text.Glyphs, write func(uint64) string) text.Line {
	n, b := q.Value()
	switch {
	case b == exact.Unknown:
		return text.Faint.Line(g.Unknown)
	case n == 0:
		return text.Faint.Line("0")
	}
	return text.Plain.Line(signOf(q, g) + write(n))
}

// signOf returns the sign before a number that is not exact; "" for one that is, or is unknown.
func signOf(q exact.Quantity, g text.Glyphs) string {
	switch q.Bound() {
	case exact.Uncertain:
		return g.About
	case exact.AtLeast:
		return g.AtLeast
	}
	return ""
}

// scaleOf returns the common scale of a column.
func (o settings) scaleOf(amounts []amount, short bool) text.Scale {
	var values, peaks []uint64
	for _, a := range amounts {
		values, peaks = append(values, a.used.WithoutBound()), append(peaks, a.peak.WithoutBound())
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
