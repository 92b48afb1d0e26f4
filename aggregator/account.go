package aggregator

import "slices"

// account is one memory of one chip, for all processes or for one.
type account struct {
	requested, reserved         uint64
	peakRequested, peakReserved uint64
	buffers                     uint64
	// unreserved counts the buffers whose reserved size is unknown.
	unreserved uint64
	// peakUnsure: there was such a buffer once, so peakReserved may be too low.
	peakUnsure bool
	// peaksAtLeast: both peaks may be too low, because some buffers were sampled or on unknown chips.
	peaksAtLeast bool
	// peaksUncertain: events of allocations or frees were lost.
	peaksUncertain bool
	// totalsOnly: part of requested is a total that the runtime reported, without buffers.
	totalsOnly bool
}

func (a *account) add(requested, reserved uint64) {
	a.buffers++
	a.requested += requested
	a.reserved += reserved
	if reserved == 0 && requested != 0 {
		a.unreserved++
		a.peakUnsure = true
	}
	a.peakRequested = max(a.peakRequested, a.requested)
	a.peakReserved = max(a.peakReserved, a.reserved)
}

func (a *account) sub(requested, reserved uint64) {
	a.buffers--
	a.requested -= requested
	a.reserved -= reserved
	if reserved == 0 && requested != 0 {
		a.unreserved--
	}
}

// doubtPeaks marks a process's peaks after a loss of its events: more may have been live than they say, or they may
// include buffers that were already freed.
func (p *process) doubtPeaks() {
	for _, s := range p.shares {
		for m := range s.memory {
			s.memory[m].peaksUncertain = true
		}
		s.cb.usage.PeaksUncertain = true
		s.chip.doubtPeaks()
	}
	for m := range p.unplaced {
		p.unplaced[m].peaksUncertain = true
	}
}

func (c *chip) doubtPeaks() {
	for m := range c.memory {
		c.memory[m].peaksUncertain = true
	}
	c.cb.PeaksUncertain = true
}

// doubtPeaksOfEnded does the same for an ended process. Snapshots share its Chips, so it copies them first.
func (a *Aggregator) doubtPeaksOfEnded(p *ProcessSnapshot) {
	doubt := func(memory *[NumMemories]Usage) {
		for m := range memory {
			memory[m].PeaksUncertain = true
		}
	}
	p.Chips = slices.Clone(p.Chips)
	for i := range p.Chips {
		c := &p.Chips[i]
		doubt(&c.Memory)
		c.CB.PeaksUncertain = true
		if known := a.chips[c.Chip]; known != nil {
			known.doubtPeaks()
		}
	}
	doubt(&p.Memory)
	doubt(&p.Unplaced)
	p.CB.PeaksUncertain = true
}

// peaksLack marks peaks of a memory that lack a buffer whose chips were never known: on the process's chips, or on
// all chips if none of its chips is known.
func (a *Aggregator) peaksLack(p *process, m Memory) {
	for _, s := range p.shares {
		s.memory[m].peaksAtLeast, s.chip.memory[m].peaksAtLeast = true, true
	}
	if len(p.shares) == 0 {
		for _, c := range a.chips {
			c.memory[m].peaksAtLeast = true
		}
	}
}
