package ui

import (
	"fmt"
	"slices"

	"tt-memtrace/aggregator"
)

// maxEnded processes that exited are listed in text: a long list would hide
// what is live.
const maxEnded = 10

// endedNote says what the numbers of processes that exited are.
const endedNote = "memory is the sum of each chip's peak"

// over is true when there is nothing left but processes that exited.
func (d *data) over() bool {
	return d.ended && len(d.snapshot.Processes) == 0 && len(d.snapshot.Ended) > 0
}

// processes are those of the process table: the live ones or, once all is
// over, those that exited.
func (d *data) processes() []*aggregator.ProcessSnapshot {
	if d.over() {
		return slices.DeleteFunc(atPeak(d.snapshot.Ended), d.dropped)
	}
	out := make([]*aggregator.ProcessSnapshot, 0, len(d.snapshot.Processes))
	for i := range d.snapshot.Processes {
		if p := &d.snapshot.Processes[i]; !d.dropped(p) {
			out = append(out, p)
		}
	}
	return out
}

func (d *data) dropped(p *aggregator.ProcessSnapshot) bool { return d.keep != nil && !d.keep(p) }

// atPeak are copies of processes that hold their peaks: at its end a process
// holds nothing, or what it forgot, which tells little of its life.
func atPeak(list []aggregator.ProcessSnapshot) []*aggregator.ProcessSnapshot {
	out := make([]*aggregator.ProcessSnapshot, 0, len(list))
	for _, p := range list {
		p.Chips = slices.Clone(p.Chips)
		for i := range p.Chips {
			raise(&p.Chips[i].Memory)
			p.Chips[i].CB.Physical = p.Chips[i].CB.PeakPhysical
		}
		raise(&p.Memory)
		p.CB.Physical = p.CB.PeakPhysical
		raise(&p.Unplaced)
		out = append(out, &p)
	}
	return out
}

func raise(memory *[aggregator.NumMemories]aggregator.Usage) {
	for m := range memory {
		u := &memory[m]
		u.Requested, u.Reserved, u.Unreserved = u.PeakRequested, u.PeakReserved, 0
		if u.PeakUnsure {
			u.Unreserved = 1
		}
	}
}

// endedSection lists processes that exited in their order, the newest last.
func endedSection(d *data, o settings, shown []*aggregator.ProcessSnapshot, w int) []line {
	if len(shown) == 0 {
		return nil
	}
	o.sort = unsorted
	var list []entry
	for _, p := range shown {
		list = append(list, o.processEntry(p, true))
	}
	t := processTable(d, o, list, w)
	out := append([]line{text(strong, clip("Ended: "+endedNote, w, glyphSet(o.ascii).dots)), t.head()}, t.rows(0, t.n)...)
	all := max(d.snapshot.Counters.Exited, uint64(len(d.snapshot.Ended)))
	if n := all - uint64(len(shown)); n > 0 {
		out = append(out, text(faint, fmt.Sprintf("and %s more before", digits(n))))
	}
	return out
}

// newest are the last n of a list.
func newest[T any](list []T, n int) []T { return list[max(len(list)-n, 0):] }

// dimmed is a line of little weight.
func (l line) dimmed() line {
	out := make(line, len(l))
	for i, s := range l {
		out[i] = span{s.text, faint}
	}
	return out
}
