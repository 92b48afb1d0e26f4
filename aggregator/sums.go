package aggregator

import "slices"

// Sums are what the runtime itself counts for a process on a chip, bytes: no
// buffers, no reserved sizes, no programs.
type Sums struct {
	Chip Chip
	// Requested is the sum of its buffers' own sizes, by memory.
	Requested [NumMemories]uint64
	// CB is what its circular buffers take of L1.
	CB uint64
	// Closed: it does not use the chip any more. Requested and CB are 0.
	Closed bool
}

// Ghost is what the runtime still counts on a chip for a process that is gone.
type Ghost struct {
	PID uint32
	// Command is the process's name, untrusted text.
	Command string
	Sums
}

// Ghosts are all that there are on a chip.
type Ghosts struct {
	Chip Chip
	List []Ghost
}

func (s *Sums) plausible() bool {
	for _, n := range s.Requested {
		if n > maxBytes {
			return false
		}
	}
	return s.CB <= maxBytes
}

// count books sums in place of those of before.
func (a *Aggregator) count(p *process, e *Event) {
	if e.Sums == nil || !e.Sums.plausible() {
		p.counters.Odd++
		return
	}
	s := a.share(p, e.Sums.Chip)
	s.open = !e.Sums.Closed
	s.set(e.Sums)
}

// set replaces the sums of a share. Of other accounts it must not be used.
func (s *share) set(to *Sums) {
	for m, n := range to.Requested {
		old := s.memory[m].requested
		s.memory[m].sum(old, n)
		s.chip.memory[m].sum(old, n)
	}
	before := s.cb.usage
	s.cb.usage.Physical, s.cb.usage.SumOnly = to.CB, true
	s.cb.usage.PeakPhysical = max(s.cb.usage.PeakPhysical, to.CB)
	s.chip.cb.move(before, s.cb.usage)
	s.chip.cb.SumOnly = true
}

// sum changes what a process requested, of which no more is known.
func (a *account) sum(from, to uint64) {
	a.requested += to - from
	a.peakRequested = max(a.peakRequested, a.requested)
	a.sumOnly, a.blurred = true, true
	switch {
	case from == 0 && to != 0:
		a.unreserved++
	case from != 0 && to == 0:
		a.unreserved--
	}
}

// clearSums takes a process's sums out of the accounts of its chips.
func (p *process) clearSums() {
	for _, s := range p.shares {
		if s.cb.usage.SumOnly {
			s.set(&Sums{Chip: s.chip.id})
		}
	}
}

// haunt books what is left on a chip of processes that are gone, in place of what was.
func (a *Aggregator) haunt(e *Event) {
	if e.Ghosts == nil {
		return
	}
	a.chip(e.Ghosts.Chip).ghosts = slices.Clone(e.Ghosts.List)
}
