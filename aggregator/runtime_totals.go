package aggregator

import (
	"slices"

	"tt-memtrace/aggregator/exact"
)

// RuntimeTotals are the runtime's own sums for a process on a chip, bytes: no
// buffers, no reserved sizes, no programs.
type RuntimeTotals struct {
	Chip Chip `rec:"Chip"`
	// Requested is the sum of its buffers' own sizes, by memory.
	Requested [NumMemories]uint64 `rec:"Requested"`
	// CB is the L1 used by its circular buffers.
	CB uint64 `rec:"CB"`
	// Closed: it does not use the chip any more; Requested and CB are 0.
	Closed bool `rec:"Closed"`
}

// StaleEntry has the sums that the runtime still counts on a chip for an exited process.
type StaleEntry struct {
	PID uint32 `rec:"PID"`
	// Command is the process's name, untrusted text.
	Command       string `rec:"Command"`
	RuntimeTotals `rec:"RuntimeTotals"`
}

// StaleEntries are all stale entries of a chip.
type StaleEntries struct {
	Chip Chip         `rec:"Chip"`
	List []StaleEntry `rec:"List"`
}

func (s *RuntimeTotals) plausible() bool {
	for _, n := range s.Requested {
		if n > maxBytes {
			return false
		}
	}
	return s.CB <= maxBytes
}

// setRuntimeTotals replaces a process's totals on a chip.
func (a *Aggregator) setRuntimeTotals(p *process, e *Event) {
	if e.RuntimeTotals == nil || !e.RuntimeTotals.plausible() {
		p.odd(e)
		return
	}
	s := a.share(p, e.RuntimeTotals.Chip)
	s.open = !e.RuntimeTotals.Closed
	s.setRuntimeTotals(e.RuntimeTotals)
}

// setRuntimeTotals replaces the totals of a share, which must have no buffers.
func (s *share) setRuntimeTotals(to *RuntimeTotals) {
	for m, n := range to.Requested {
		old := s.memory[m].requested
		s.memory[m].replace(old, n)
		s.chip.memory[m].replace(old, n)
	}
	before := s.cb.cbTotals
	s.cb.physical, s.cb.counted = to.CB, exact.AtLeast
	s.cb.rise()
	s.chip.cb.move(before, s.cb.cbTotals)
	s.chip.cb.counted = exact.AtLeast
}

// replace replaces one total that was reported without buffers by another.
func (a *account) replace(from, to uint64) {
	a.requested += to - from
	a.peakRequested = max(a.peakRequested, a.requested)
	a.counted = exact.AtLeast
	switch {
	case from == 0 && to != 0:
		a.unreserved++
	case from != 0 && to == 0:
		a.unreserved--
	}
}

// clearRuntimeTotals removes a process's totals from its chips.
func (p *process) clearRuntimeTotals() {
	for _, s := range p.shares {
		if s.cb.counted != exact.Exact {
			s.setRuntimeTotals(&RuntimeTotals{Chip: s.chip.id})
		}
	}
}

// setStaleEntries replaces a chip's stale entries, of exited processes.
func (a *Aggregator) setStaleEntries(e *Event) {
	if e.StaleEntries == nil {
		return
	}
	a.chip(e.StaleEntries.Chip).staleEntries = slices.Clone(e.StaleEntries.List)
}
