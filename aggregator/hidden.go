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

// HiddenOf returns what a process may hold uncounted, on one of its chips or, if c is nil, on all.
func HiddenOf(p *ProcessSnapshot, c *ChipSnapshot) Hidden {
	if c != nil {
		return p.hidden(c.Reasons, HidesOnChip)
	}
	return p.hidden(p.Reasons, exact.AffectsBuffers)
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

// Hiders are the processes that may hold what is not counted, on all chips that they have.
type Hiders map[uint32]Hidden

// HidersOf returns the Hiders of a snapshot.
func HidersOf(s *Snapshot) Hiders {
	var out Hiders
	for i := range s.Processes {
		p := &s.Processes[i]
		everywhere := p.Reasons
		if slices.ContainsFunc(everywhere, func(r Reason) bool { return len(r.Chips) > 0 }) {
			everywhere = slices.DeleteFunc(slices.Clone(everywhere), func(r Reason) bool { return len(r.Chips) > 0 })
		}
		if h := p.hidden(everywhere, HidesOnChip); h != (Hidden{}) {
			if out == nil {
				out = Hiders{}
			}
			out[p.PID] = h
		}
	}
	return out
}

// On returns what may be on a chip uncounted. A chip has only the first of many reasons, so this looks at its processes, too.
func (hs Hiders) On(c *ChipSnapshot) Hidden {
	h := Hidden{Buffers: Affected(c.Reasons, HidesOnChip), Programs: Affected(c.Reasons, exact.AffectsPrograms)}
	for _, p := range c.PIDs {
		h = h.And(hs[p])
	}
	return h
}

// NobodySeen reports whether processes are sampled and none was seen: one may have come and gone between two samples.
func (s *Snapshot) NobodySeen() bool {
	return len(s.Processes)+len(s.Ended) == 0 && slices.ContainsFunc(s.Reasons, func(r Reason) bool { return r.Code == exact.ReasonSampled })
}
