package ui

import (
	"fmt"
	"slices"

	"tt-memtrace/aggregator"
	"tt-memtrace/internal/plural"
	"tt-memtrace/ui/text"
	"tt-memtrace/ui/widget"
)

// summarized is how many processes a summary names.
const summarized = 5

// summary shows a pager about the whole run: the peaks of memories and their chips, the processes with the highest DRAM
// peaks, failures, and events.
func (f *frame) summary() {
	s, o := f.data.snapshot, f.settings
	g := text.GlyphSet(o.ASCII)
	p := &widget.Pager{Title: "summary"}
	add := func(name string, l text.Line) { p.Lines = append(p.Lines, widget.Pair(name, l)) }
	name := "peaks"
	for i, m := range shownMemories() {
		var most amount
		var chip aggregator.Chip
		for k := range s.Chips {
			u := s.Chips[k].Memory[m]
			a := o.amountOf(u)
			if _, known := a.peak.Exact(); !known { // a buffer's reserved size is at least its requested size
				a.peak = a.peak.Max(u.PeakRequested)
			}
			if a.peak.WithoutBound() > most.peak.WithoutBound() {
				most, chip = a, s.Chips[k].Chip
			}
		}
		peak, room := most.peak.WithoutBound(), most.room()
		if peak == 0 {
			continue
		}
		look, mark := widget.Fullness(peak, room)
		l := text.Line{text.Strong.Span(fmt.Sprintf("%-9s", metricNames[i])), text.Plain.Span(signOf(most.peak, g) + bytesCell(peak, o).String())}
		if peak > room && room > 0 {
			l = append(l, text.Faint.Span("  of devices with another size than now"))
		} else if room > 0 {
			l = append(l, text.Faint.Span(" of "+text.Capacity(room, o.Exact, false)),
				look.Span("  "+text.Percent(float64(peak)/float64(room))+" %"+mark))
		}
		add(name, append(l, text.Faint.Span("  on chip "+chipName(chip))))
		name = ""
	}
	processes := append(atPeak(s.Ended), atPeak(s.Processes)...)
	slices.SortStableFunc(processes, func(a, b *aggregator.ProcessSnapshot) int {
		return b.Memory[aggregator.DRAM].PeakReserved.Compare(a.Memory[aggregator.DRAM].PeakReserved)
	})
	name = "processes"
	for _, x := range processes[:min(len(processes), summarized)] {
		amounts := o.processAmounts(x)
		allocs := x.Counters.Allocs
		add(name, text.Line{text.Strong.Span(fmt.Sprintf("%d ", x.PID)), text.Plain.Span(text.Clip(text.Command(x.Info.Command, o.ASCII), 40, g.Dots)),
			text.Faint.Span(fmt.Sprintf("  DRAM %s, L1 %s, %s %s",
				f.amountCell(amounts[metricDRAM]), f.amountCell(amounts[metricL1]), digitsOf(allocs, g),
				plural.Word(allocs.WithoutBound(), "allocation", "allocations")))})
		name = ""
	}
	if n := len(processes) - summarized; n > 0 {
		add("", text.Faint.Line(fmt.Sprintf("and %d more", n)))
	}
	failures := text.Good.Line("none was seen")
	if last := f.data.failure(); last != nil {
		failures = text.Bad.Line(fmt.Sprintf("%s failed; ! explains them", text.Plural(int(last.total), "allocation", "allocations")))
	} else if !s.SeesFailures() {
		failures = text.Notice.Line(failuresUnseen)
	}
	add("failures", failures)
	c := &s.Counters
	lost := text.Plain.Line(text.Digits(c.Events) + " " + plural.Word(c.Events, "event") + ", none lost")
	if c.Lost > 0 {
		lost = text.Line{text.Plain.Span(text.Digits(c.Events) + " " + plural.Word(c.Events, "event") + ", "), text.Bad.Span(text.Digits(c.Lost) + " lost")}
	}
	add("events", lost)
	if f.data.recorded {
		add("next", text.Plain.Line("3 has the charts, 6 the events"))
		if f.further != nil {
			add("", text.Plain.Line(f.further()))
		}
	}
	f.pager = p
}
