package aggregator

import (
	"slices"

	"tt-memtrace/aggregator/exact"
)

// LiveBuffer is a live buffer in the process's own allocator.
type LiveBuffer struct {
	Buffer    uint64 `rec:"Buffer"`
	Device    uint64 `rec:"Device"`
	Allocator uint64 `rec:"Allocator"`
	// Address, Size, PerBank, PageSize and PerCore are as in an Event.
	Address      uint64  `rec:"Address"`
	Size         uint64  `rec:"Size"`
	PerBank      uint64  `rec:"PerBank"`
	PageSize     uint64  `rec:"PageSize"`
	PerCore      PerCore `rec:"PerCore"`
	Memory       Memory  `rec:"Memory"`
	MemoryLayout uint8   `rec:"MemoryLayout"`
}

// AllocatorScan is the result of a scan of a process's own allocators and programs.
type AllocatorScan struct {
	// First: the first scan of a process that was attached late.
	First bool `rec:"First"`
	// Allocators are those that were read, and Buffers all their buffers.
	Allocators []uint64     `rec:"Allocators"`
	Buffers    []LiveBuffer `rec:"Buffers"`
	// Programs are all live programs, if ProgramsRead.
	Programs     []uint64 `rec:"Programs"`
	ProgramsRead bool     `rec:"ProgramsRead"`
	// Partial: some live objects could not be read.
	Partial bool `rec:"Partial"`
	// Touched are the buffers, allocators and programs of events since the scan began. An event supersedes the
	// scanned value.
	Touched map[uint64]struct{} `rec:"Touched"`
	// BuffersOnly: only the buffers of known Allocators were read. Devices,
	// allocators and programs that the accounts lack were not searched for.
	BuffersOnly bool `rec:"BuffersOnly"`
	// BlocksDisagree is what the allocators' buffers and their lists of blocks do not agree on, and TotalsDisagree what
	// the runtime's own account has that no allocator has; or they are empty.
	BlocksDisagree string `rec:"BlocksDisagree"`
	TotalsDisagree string `rec:"TotalsDisagree"`
	// PersistentL1 describes L1 that the process has outside of its allocators' buffers; empty if it has none. It is
	// unknown without PersistentRead.
	PersistentL1   string `rec:"PersistentL1"`
	PersistentRead bool   `rec:"PersistentRead"`
	// Began is when the scan began, CLOCK_MONOTONIC ns; 0 if unknown. Reasons raised since then are not lifted.
	Began uint64 `rec:"Began"`
}

// Agreement says how a process's accounts compare with its own allocators.
type Agreement struct {
	// At is when they were last compared, CLOCK_MONOTONIC ns; 0 is never. Since then they agree unless events were
	// lost.
	At uint64 `rec:"At"`
	// Suspect: another comparison is due, see Reasons of the process.
	Suspect bool `rec:"Suspect"`
	// Comparisons were made, the last one of Compared buffers.
	Comparisons uint64 `rec:"Comparisons"`
	Compared    uint64 `rec:"Compared"`
	// Found buffers are from before tracing began.
	Found uint64 `rec:"Found"`
	// Repaired counts the buffers and programs that comparisons after the first one added or removed.
	Repaired uint64 `rec:"Repaired"`
}

// compare makes the accounts equal to the process's own allocators.
func (a *Aggregator) compare(p *process, e *Event) {
	scan := e.Scan
	if scan == nil {
		p.odd(e)
		return
	}
	implausible, full := false, false
	var wrong uint64
	live := make(map[uint64]struct{}, len(scan.Buffers))
	for i := range scan.Buffers {
		h := &scan.Buffers[i]
		live[h.Buffer] = struct{}{}
		if scan.touched(h.Buffer) || scan.touched(h.Allocator) {
			continue
		}
		if h.Memory >= NumMemories || h.Size > maxBytes || h.PerBank > maxBytes || !h.PerCore.plausible() {
			implausible = true
			continue
		}
		old := p.buffers.get(h.Buffer)
		if old != nil && old.is(h) {
			switch {
			case old.perBank != 0 || h.PerBank == 0:
			case h.PerCore != "":
				a.learnPerCore(p, old, h.PerBank, h.PerCore, e.Time)
			default:
				a.learnReserved(p, old, h.PerBank, old.banks, e.Time)
			}
			continue
		}
		if old != nil {
			a.drop(p, old, e, true)
		}
		if !a.room(p, e.Time) {
			full = true
			continue
		}
		wrong++
		// Its time of allocation and thread are unknown.
		a.addBuffer(p, &Event{PID: e.PID, Time: e.Time, Device: h.Device, Allocator: h.Allocator, Buffer: h.Buffer, Memory: h.Memory,
			MemoryLayout: h.MemoryLayout, Address: h.Address, Size: h.Size, PerBank: h.PerBank, PageSize: h.PageSize, PerCore: h.PerCore}, 0)
	}
	if wrong > 0 && !scan.First && (len(p.capturing) > 0 || slices.ContainsFunc(p.traces, func(t *trace) bool { return t.seen })) {
		// Whether a replay overwrites them depends on whether they were allocated after the capture.
		p.raise(exact.ReasonTracesMissed, e.Time)
	}
	read := map[uint64]bool{}
	for _, id := range scan.Allocators {
		read[id] = !scan.touched(id)
	}
	wrong += uint64(a.dropAll(p, e.Kind, e.Time, func(b *buffer) bool {
		_, ok := live[b.id]
		return !ok && read[b.allocator] && !scan.touched(b.id)
	}))
	if scan.ProgramsRead {
		wrong += a.removeEnded(p, e)
	}
	if wrong > 0 {
		p.sites.bound = exact.AtLeast
	}
	g := &p.agreement
	g.At, g.Compared = e.Time, uint64(len(scan.Buffers))
	g.Comparisons++
	if scan.First {
		g.Found += wrong
	} else if wrong > 0 {
		g.Repaired += wrong
		p.doubtPeaks()
	}
	contradictions := p.raiseContradictions(scan, e.Time)
	p.compared(scan, contradictions, implausible, e.Time)
	p.persists(scan, e.Time)
	if !full && !scan.Partial && !implausible {
		p.lift(exact.ReasonLimitReached) // all its buffers are in the accounts
	}
}

// persists raises or lifts exact.ReasonPersistentL1, unless it was raised again since the scan began.
func (p *process) persists(s *AllocatorScan, at uint64) {
	switch {
	case !s.PersistentRead:
	case s.PersistentL1 != "":
		p.lift(exact.ReasonPersistentL1) // it may have another detail now
		p.raiseFor(exact.ReasonPersistentL1, s.PersistentL1, at)
	case s.Began > 0:
		p.reasons.lift(func(r *Reason) bool { return r.Code == exact.ReasonPersistentL1 && r.Last < s.Began })
	default:
		p.lift(exact.ReasonPersistentL1)
	}
}

// Contradicted reports whether another record of the runtime's contradicts the scan.
func (s *AllocatorScan) Contradicted() bool { return s.BlocksDisagree != "" || s.TotalsDisagree != "" }

// raiseContradictions raises a reason for each contradiction of a scan, and returns their codes.
func (p *process) raiseContradictions(s *AllocatorScan, at uint64) (raised []exact.ReasonCode) {
	raise := func(code exact.ReasonCode, why string) {
		if why != "" {
			p.raiseFor(code, why, at)
			raised = append(raised, code)
		}
	}
	raise(exact.ReasonBlocksDisagree, s.BlocksDisagree)
	raise(exact.ReasonTotalsDisagree, s.TotalsDisagree)
	return raised
}

// is reports whether a buffer is the one that was scanned. Its block in each bank, if known, is the allocator's.
func (b *buffer) is(h *LiveBuffer) bool {
	return b.isAt(h) && b.size == h.Size && b.memory == h.Memory && b.allocator == h.Allocator &&
		(b.perBank == 0 || h.PerBank == 0 || b.perBank == h.PerBank)
}

// removeEnded removes the programs that a scan does not have, and returns their number.
func (a *Aggregator) removeEnded(p *process, e *Event) uint64 {
	live := make(map[uint64]bool, len(e.Scan.Programs))
	for _, id := range e.Scan.Programs {
		live[id] = true
	}
	var ended []uint64
	for id := range p.programs {
		if !live[id] && !e.Scan.touched(id) {
			ended = append(ended, id)
		}
	}
	slices.Sort(ended)
	for _, id := range ended {
		a.removeProgram(p, e, id)
	}
	return uint64(len(ended))
}

// touched reports whether an event of the object, which supersedes the scanned value, came during the scan.
func (s *AllocatorScan) touched(id uint64) bool {
	_, ok := s.Touched[id]
	return ok
}
