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

// SeenBuffers is the number of live buffers as outputs show it: unknown instead of 0 if some may be hidden, and unknown
// if only the runtime's own totals are known.
func (p *ProcessSnapshot) SeenBuffers() exact.Quantity {
	if p.Info.Source == FromSharedMemory {
		return exact.Quantity{}
	}
	return exact.Of(p.Buffers).Unseen(HiddenOf(p, nil).Buffers)
}

// SeenCalls are the numbers of allocations and of frees as outputs show them: lower bounds if the process is sampled,
// had devices open before tracing began, or some were missed.
func (p *ProcessSnapshot) SeenCalls() (allocs, frees exact.Quantity) {
	all := true
	switch p.Info.Source {
	case FromSharedMemory:
		return exact.Quantity{}, exact.Quantity{}
	case Sampled:
		all = false
	case Traced:
		all = !p.Info.Late && !p.Counters.AtLeast && !Affected(p.Reasons, exact.AffectsCalls)
	}
	return exact.Sum(p.Counters.Allocs, all), exact.Sum(p.Counters.Frees, all)
}

// UnsafeCounts is an UnsafeUsage as outputs show it, and how many unsafe buffers were Found since tracing began.
type UnsafeCounts struct {
	Buffers, Bytes, Overlapping, OverlappingBytes, Found exact.Quantity
}

// SeenUnsafe returns the counts as outputs show them: if buffers may be unsafe without being counted, a 0 is unknown.
func (p *ProcessSnapshot) SeenUnsafe() UnsafeCounts {
	hidden := p.HidesUnsafe()
	seen := func(n uint64) exact.Quantity { return exact.Of(n).Unseen(hidden) }
	u := &p.Unsafe
	return UnsafeCounts{
		Buffers: seen(u.Buffers), Bytes: seen(u.Bytes), Overlapping: seen(u.Overlapping),
		OverlappingBytes: seen(u.OverlappingBytes), Found: seen(p.Counters.Unsafe),
	}
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
