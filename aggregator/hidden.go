package aggregator

import (
	"slices"

	"tt-memtrace/aggregator/exact"
)

// Hidden says what may be held without being counted: then a count of 0 is unknown, and not 0.
type Hidden struct {
	Buffers, Programs bool
	// Late: what was held before tracing began has not been read.
	Late bool
}

// And returns what two of them together may hold uncounted.
func (h Hidden) And(o Hidden) Hidden {
	return Hidden{h.Buffers || o.Buffers, h.Programs || o.Programs, h.Late || o.Late}
}

// HidesOnChip is what a reason affects if a chip may hold buffers that do not count there.
const HidesOnChip = exact.AffectsBuffers | exact.AffectsPlaces

// hidden returns what the process may hold uncounted, for some of its reasons. buffers is what hides buffers.
func (p *ProcessSnapshot) hidden(list []Reason, buffers exact.Affects) Hidden {
	unread := p.unread()
	return Hidden{unread || Affected(list, buffers), unread || Affected(list, exact.AffectsPrograms), p.Late}
}

// unread reports whether what the process held before was not read yet.
func (p *ProcessSnapshot) unread() bool {
	return p.Late || p.Info.Source == Sampled && p.Agreement.At == 0
}

// HidesUnsafe reports whether buffers of the process may be unsafe under traces that do not count as unsafe.
func (p *ProcessSnapshot) HidesUnsafe() bool {
	return p.Info.Source != Traced || p.unread() || Affected(p.Reasons, exact.AffectsUnsafe)
}

// HidesAnywhere reports whether one of the processes may hold something uncounted on all of its chips.
func (s *Snapshot) HidesAnywhere() bool {
	return slices.ContainsFunc(s.Processes, func(p ProcessSnapshot) bool { return p.hiddenEverywhere() != (Hidden{}) })
}

// hiddenEverywhere returns what the process may hold uncounted on all chips that it has.
func (p *ProcessSnapshot) hiddenEverywhere() Hidden {
	everywhere := p.Reasons
	if slices.ContainsFunc(everywhere, func(r Reason) bool { return len(r.Chips) > 0 }) {
		everywhere = slices.DeleteFunc(slices.Clone(everywhere), func(r Reason) bool { return len(r.Chips) > 0 })
	}
	return p.hidden(everywhere, HidesOnChip)
}

// show sets what outputs show from what the accounts count.
func (s *Snapshot) show() {
	for i := range s.Processes {
		s.Processes[i].show()
	}
	for i := range s.Chips {
		s.Chips[i].show()
	}
	s.hide()
}

// show sets what outputs show of a chip.
func (c *ChipSnapshot) show() {
	c.TotalsOnly = c.CB.Logical.Bound() != exact.Exact
	c.ConfigRing, c.Kernel = c.ring.Usage(), c.kernel.shown()
	for m := range c.Memory {
		c.Memory[m].Unreserved = exact.Of(c.Memory[m].unreserved)
	}
	c.CB.Reported = exact.Of(c.CB.reported)
}

// show sets what outputs show of a process. Its Chips are not shared yet.
func (p *ProcessSnapshot) show() {
	for i := range p.Chips {
		p.Chips[i].show()
	}
	for m := range p.Memory {
		sum, unplaced := &p.Memory[m], &p.Unplaced[m]
		sum.Unreserved, unplaced.Unreserved = exact.Of(sum.unreserved), exact.Of(unplaced.unreserved)
		sum.Add(unplaced)
	}
	p.CB.Reported = exact.Of(p.CB.reported)
	p.Buffers, p.Kernel = exact.Of(p.buffers), p.kernel.shown()
	u, c := &p.unsafe, &p.counters
	p.Unsafe = UnsafeUsage{
		exact.Of(u.Buffers), exact.Of(u.Bytes), exact.Of(u.Overlapping), exact.Of(u.OverlappingBytes), exact.Of(c.Unsafe),
	}
	p.Counters = ProcessCounters{UnmatchedFrees: c.UnmatchedFrees, Replaced: c.Replaced, Odd: c.Odd}
	for _, row := range counterRows {
		q := exact.Sum(row.tally(c), !c.AtLeast)
		if row.missed(c) {
			q = q.Doubted(row.afterMiss)
		}
		*row.shown(&p.Counters) = q
	}
}

// counterRow is a counter of a process: show makes what outputs have of what the accounts count, and hide doubts it.
type counterRow struct {
	tally func(*ProcessTally) uint64
	shown func(*ProcessCounters) *exact.Quantity
	// missed reports whether some of what it counts was missed, and afterMiss is its bound then.
	missed    func(*ProcessTally) bool
	afterMiss exact.Bound
	// affects is what a reason must affect to make the counter a lower bound.
	affects exact.Affects
}

func missedCalls(c *ProcessTally) bool    { return c.MissedCalls }
func missedLaunches(c *ProcessTally) bool { return c.MissedLaunches }

var counterRows = []counterRow{
	{
		func(c *ProcessTally) uint64 { return c.Allocs }, func(c *ProcessCounters) *exact.Quantity { return &c.Allocs },
		missedCalls, exact.AtLeast, exact.AffectsCalls,
	},
	{
		func(c *ProcessTally) uint64 { return c.Frees }, func(c *ProcessCounters) *exact.Quantity { return &c.Frees },
		missedCalls, exact.Uncertain, exact.AffectsCalls,
	},
	{
		func(c *ProcessTally) uint64 { return c.ImplicitFrees },
		func(c *ProcessCounters) *exact.Quantity { return &c.ImplicitFrees },
		missedCalls, exact.Uncertain, exact.AffectsCalls,
	},
	{
		func(c *ProcessTally) uint64 { return c.Launches },
		func(c *ProcessCounters) *exact.Quantity { return &c.Launches },
		missedLaunches, exact.AtLeast, exact.AffectsLaunches,
	},
	{
		func(c *ProcessTally) uint64 { return c.UnknownLaunches },
		func(c *ProcessCounters) *exact.Quantity { return &c.UnknownLaunches },
		missedLaunches, exact.AtLeast, exact.AffectsLaunches,
	},
	{
		func(c *ProcessTally) uint64 { return c.Replays },
		func(c *ProcessCounters) *exact.Quantity { return &c.Replays },
		missedLaunches, exact.AtLeast, exact.AffectsLaunches,
	},
}

// Hide makes unknown or a lower bound what the reasons leave uncertain. It is for snapshots that are made by hand.
func (s *Snapshot) Hide() {
	s.hide()
	for i := range s.Ended {
		s.Ended[i].hide()
	}
}

// hide does the same for all but exited processes, which snapshots share. A second time changes nothing.
func (s *Snapshot) hide() {
	hidden := map[uint32]Hidden{}
	for i := range s.Processes {
		p := &s.Processes[i]
		p.hide()
		if h := p.hiddenEverywhere(); h != (Hidden{}) {
			hidden[p.PID] = h
		}
	}
	for i := range s.Chips {
		c := &s.Chips[i]
		// A chip has only the first of many reasons, so look at its processes, too.
		h := Hidden{Buffers: Affected(c.Reasons, HidesOnChip), Programs: Affected(c.Reasons, exact.AffectsPrograms)}
		for _, p := range c.PIDs {
			h = h.And(hidden[p])
		}
		c.hide(h)
	}
}

// hide makes each 0 unknown that h may hide on the chip.
func (c *ChipSnapshot) hide(h Hidden) {
	c.Hidden = h
	for m := range c.Memory {
		c.Memory[m].hide(h)
	}
	c.CB.hide(h)
	c.Kernel.hide(h)
	if c.TotalsOnly {
		c.Kernel = KernelUsage{}
	}
}

func (p *ProcessSnapshot) hide() {
	for i := range p.Chips {
		c := &p.Chips[i]
		c.hide(p.hidden(c.Reasons, HidesOnChip))
	}
	p.Hidden = p.hidden(p.Reasons, exact.AffectsBuffers)
	for m := range p.Memory {
		p.Memory[m].hide(p.Hidden)
		p.Unplaced[m].hide(p.Hidden)
	}
	p.CB.hide(p.Hidden)
	p.Kernel.hide(p.Hidden)
	p.Buffers = p.Buffers.Unseen(p.Hidden.Buffers)
	c, u := &p.Counters, &p.Unsafe
	unseen(p.HidesUnsafe(), &u.Buffers, &u.Bytes, &u.Overlapping, &u.OverlappingBytes, &u.Found)
	for _, row := range counterRows {
		if p.Info.Source == Sampled || p.Info.Source == Traced && (p.Info.Late || Affected(p.Reasons, row.affects)) {
			q := row.shown(c)
			*q = q.Doubted(exact.AtLeast)
		}
	}
	if p.Info.Source == FromSharedMemory {
		p.Buffers, p.Kernel, *c = exact.Quantity{}, KernelUsage{}, ProcessCounters{Odd: c.Odd} // it has no other events
	}
}

// unseen makes each 0 unknown if something is hidden from it.
func unseen(hidden bool, list ...*exact.Quantity) {
	for _, q := range list {
		*q = q.Unseen(hidden)
	}
}

// NobodySeen reports whether processes are sampled and none was seen: one may have come and gone between two samples.
func (s *Snapshot) NobodySeen() bool {
	return len(s.Processes)+len(s.Ended) == 0 && slices.ContainsFunc(s.Reasons, func(r Reason) bool { return r.Code == exact.ReasonSampled })
}
