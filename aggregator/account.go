package aggregator

import (
	"slices"

	"tt-memtrace/aggregator/exact"
)

// account is one memory of one chip, for all processes or for one.
type account struct {
	requested, reserved         uint64
	peakRequested, peakReserved uint64
	buffers                     uint64
	// unreserved counts the buffers whose reserved size is unknown.
	unreserved uint64
	// peaks is how far both peaks can be trusted: some buffers were sampled, or on unknown chips, or events were lost.
	// reservedPeak is the further doubt of peakReserved: the reserved size of a buffer was unknown at some time.
	peaks, reservedPeak exact.Bound
	// counted is the doubt of buffers and of the peaks: part of requested is a total that the runtime reported.
	counted exact.Bound
}

func (a *account) add(requested, reserved uint64) {
	a.buffers++
	a.requested += requested
	a.reserved += reserved
	if reserved == 0 && requested != 0 {
		a.unreserved++
		a.reservedPeak = exact.AtLeast
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
		doubtPeaks(&s.memory, exact.Uncertain)
		s.cb.doubtPeaks(exact.Uncertain)
		s.chip.doubtPeaks()
	}
	doubtPeaks(&p.unplaced, exact.Uncertain)
}

func (c *chip) doubtPeaks() {
	doubtPeaks(&c.memory, exact.Uncertain)
	c.cb.doubtPeaks(exact.Uncertain)
}

func doubtPeaks(memory *[NumMemories]account, b exact.Bound) {
	for m := range memory {
		memory[m].doubtPeaks(b)
	}
}

func (a *account) doubtPeaks(b exact.Bound) { a.peaks = a.peaks.And(b) }

// doubtPeaksOfEnded does the same for an ended process. Snapshots share its Chips, so it copies them first.
func (a *Aggregator) doubtPeaksOfEnded(p *ProcessSnapshot) {
	doubt := func(memory *[NumMemories]Usage) {
		for m := range memory {
			u := &memory[m]
			u.PeakRequested, u.PeakReserved = u.PeakRequested.Doubted(exact.Uncertain), u.PeakReserved.Doubted(exact.Uncertain)
		}
	}
	p.Chips = slices.Clone(p.Chips)
	for i := range p.Chips {
		c := &p.Chips[i]
		doubt(&c.Memory)
		c.CB.doubtPeaks(exact.Uncertain)
		if known := a.chips[c.Chip]; known != nil {
			known.doubtPeaks()
		}
	}
	doubt(&p.Memory)
	doubt(&p.Unplaced)
	p.CB.doubtPeaks(exact.Uncertain)
}

// peaksLack marks peaks of a memory that lack a buffer whose chips were never known: on the process's chips, or on
// all chips if none of its chips is known.
func (a *Aggregator) peaksLack(p *process, m Memory) {
	for _, s := range p.shares {
		s.memory[m].doubtPeaks(exact.AtLeast)
		s.chip.memory[m].doubtPeaks(exact.AtLeast)
	}
	if len(p.shares) == 0 {
		for _, c := range a.chips {
			c.memory[m].doubtPeaks(exact.AtLeast)
		}
	}
}

// Usage is what one memory of one chip holds. The zero value is unknown; EmptyUsage holds nothing.
type Usage struct {
	// Requested and Reserved are bytes of live buffers. Reserved is a lower bound if the reserved size of one is unknown.
	Requested exact.Quantity `rec:"Requested"`
	Reserved  exact.Quantity `rec:"Reserved"`
	// PeakRequested and PeakReserved are their highest values. They are lower bounds if a part was sampled, and may have
	// been more between two samples, or was on unknown chips for a while; uncertain if events were lost.
	PeakRequested exact.Quantity `rec:"PeakRequested"`
	PeakReserved  exact.Quantity `rec:"PeakReserved"`
	// Buffers is the number of live buffers: a lower bound, as are the peaks, if Requested or a part of it is a total
	// that the runtime reported.
	Buffers exact.Quantity `rec:"Buffers"`
	// Unreserved counts the buffers whose reserved size is unknown.
	Unreserved exact.Quantity `rec:"-"`
	unreserved uint64         `rec:"Unreserved"`
	// Banks is the capacity, if Known.
	Banks Banks `rec:"Banks"`
}

// EmptyUsage returns the use of a memory that never held anything.
func EmptyUsage() Usage {
	none := exact.Of(0)
	return Usage{
		Requested: none, Reserved: none, PeakRequested: none, PeakReserved: none, Buffers: none, Unreserved: none,
	}
}

// EmptyUsages returns EmptyUsage for each memory.
func EmptyUsages() (all [NumMemories]Usage) {
	for m := range all {
		all[m] = EmptyUsage()
	}
	return all
}

func (a *account) usage(b Banks) Usage {
	peaks := a.peaks.And(a.counted)
	return Usage{
		Requested: exact.Of(a.requested), Reserved: exact.Sum(a.reserved, a.unreserved == 0),
		PeakRequested: exact.Peak(a.peakRequested, peaks), PeakReserved: exact.Peak(a.peakReserved, peaks.And(a.reservedPeak)),
		Buffers: exact.Bounded(a.buffers, a.counted), unreserved: a.unreserved, Banks: b,
	}
}

// peaked sets the peaks, at least to the current value.
func (a *account) peaked(u Usage) {
	a.peakRequested = max(u.PeakRequested.WithoutBound(), a.requested)
	a.peakReserved = max(u.PeakReserved.WithoutBound(), a.reserved)
	a.peaks, a.reservedPeak = a.peaks.And(u.PeakRequested.Doubt()), a.reservedPeak.And(u.PeakReserved.Doubt())
}

// Capacity is the memory's size in bytes, and whether it is known.
func (u Usage) Capacity() (bytes uint64, known bool) {
	return u.Banks.size(), u.Banks.Known
}

// Absent reports whether the memory is known not to be there: then 0 is all that it holds.
func (u *Usage) Absent() bool {
	capacity, known := u.Capacity()
	return known && capacity == 0 && !u.Buffers.Some()
}

// hide makes each 0 unknown if h says that buffers may be hidden. In a memory that is not there, everything unknown is
// 0.
func (u *Usage) hide(h Hidden) {
	absent := u.Absent()
	for _, q := range []*exact.Quantity{&u.Requested, &u.Reserved, &u.PeakRequested, &u.PeakReserved, &u.Buffers} {
		if absent && !q.Known() {
			*q = exact.Of(0)
		}
		*q = q.Unseen(h.Buffers && !absent)
	}
	u.Unreserved = u.Unreserved.Unseen(!u.Buffers.Known())
}

// Add sums the use of two chips, except their banks. The sum of the peaks is an upper bound of the sum's peak.
func (u *Usage) Add(o *Usage) {
	u.Requested = u.Requested.Add(o.Requested)
	u.Reserved = u.Reserved.Add(o.Reserved)
	u.PeakRequested = u.PeakRequested.Add(o.PeakRequested)
	u.PeakReserved = u.PeakReserved.Add(o.PeakReserved)
	u.Buffers = u.Buffers.Add(o.Buffers)
	u.Unreserved = u.Unreserved.Add(o.Unreserved)
	u.unreserved += o.unreserved
}
