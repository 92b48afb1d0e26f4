package aggregator

// Held is a live buffer, as the process's own allocator has it.
type Held struct {
	Buffer, Device, Allocator uint64
	// Address, Size, PerBank and PageSize are as in an Event.
	Address, Size, PerBank, PageSize uint64
	Memory                           Memory
	Layout                           uint8
}

// Books are what a process's own allocators say that it holds.
type Books struct {
	// First: the process held something before tracing began, and it was not
	// known until now.
	First bool
	// Allocators that were read, and all Buffers that they have.
	Allocators []uint64
	Buffers    []Held
	// Programs are all that live, where ProgramsRead.
	Programs     []uint64
	ProgramsRead bool
	// Partial: something that lives could not be read, and stays in doubt.
	Partial bool
	// Touched are the buffers, allocators and programs that events told of
	// since the reading began: events know better.
	Touched map[uint64]struct{}
}

// Agreement is how a process's accounts compare with its own allocators'.
type Agreement struct {
	// At is when they were last compared, CLOCK_MONOTONIC ns; 0 is never. Since
	// then they agree, as far as events were not lost.
	At uint64
	// Doubted: since then, events were lost or told of buffers that the accounts
	// did not have so.
	Doubted bool
	// Comparisons were made, the last one of Compared buffers.
	Comparisons, Compared uint64
	// Found buffers are from before tracing began.
	Found uint64
	// Repaired is how many buffers and programs the accounts lacked, or had too
	// many, in all comparisons but the first.
	Repaired uint64
}

// compare makes the accounts equal to the process's own books.
func (a *Aggregator) compare(p *process, e *Event) {
	books := e.Books
	if books == nil {
		p.counters.Odd++
		return
	}
	touched := func(id uint64) bool { _, ok := books.Touched[id]; return ok }
	var wrong uint64
	held := make(map[uint64]struct{}, len(books.Buffers))
	for i := range books.Buffers {
		h := &books.Buffers[i]
		held[h.Buffer] = struct{}{}
		if touched(h.Buffer) || touched(h.Allocator) || h.Memory >= NumMemories || h.Size > maxBytes || h.PerBank > maxBytes {
			continue
		}
		old := p.buffers.get(h.Buffer)
		if old != nil && old.address == h.Address && old.size == h.Size && old.memory == h.Memory && old.allocator == h.Allocator {
			continue
		}
		if old != nil {
			a.drop(p, old, e, true)
		}
		wrong++
		// When it was allocated, and by whom, nobody knows any more.
		a.hold(p, &Event{PID: e.PID, Time: e.Time, Device: h.Device, Allocator: h.Allocator, Buffer: h.Buffer, Memory: h.Memory,
			Layout: h.Layout, Address: h.Address, Size: h.Size, PerBank: h.PerBank, PageSize: h.PageSize}, 0)
	}
	read := map[uint64]bool{}
	for _, id := range books.Allocators {
		read[id] = !touched(id)
	}
	wrong += uint64(a.dropAll(p, e.Kind, e.Time, func(b *buffer) bool {
		_, ok := held[b.id]
		return !ok && read[b.allocator] && !touched(b.id)
	}))
	if books.ProgramsRead {
		live := make(map[uint64]bool, len(books.Programs))
		for _, id := range books.Programs {
			live[id] = true
		}
		for id := range p.programs {
			if !live[id] && !touched(id) {
				a.removeProgram(p, e, id)
				wrong++
			}
		}
	}
	g := &p.agreement
	g.Doubted = books.Partial
	g.At, g.Compared = e.Time, uint64(len(books.Buffers))
	g.Comparisons++
	if books.First {
		g.Found += wrong
		p.late = p.late && books.Partial
	} else {
		g.Repaired += wrong
	}
}

// Exact says whether all numbers are right, as far as can be known: nothing is
// missing from before tracing began, and where events were lost or made no
// sense, the accounts were compared with the process's own since.
func (s *Snapshot) Exact() bool {
	for i := range s.Processes {
		p := &s.Processes[i]
		if p.Late || p.Agreement.Doubted || p.Counters.Odd > 0 || p.Info.Source == Summed {
			return false
		}
	}
	return len(s.Processes) > 0 || s.Counters.Lost == 0
}
