package ui

import (
	"slices"
	"time"

	"tt-memtrace/aggregator"
	"tt-memtrace/internal/telemetry"
)

// reader reads what a snapshot has only totals of, or nothing: the buffers, programs and allocation sites of processes,
// and which processes hold a device. That can be much, so it keeps what it read, reads again only what changed, and
// pauses after each round in proportion to the round's length. Only the pump uses it.
type reader struct {
	feed     Feed
	system   *telemetry.System
	snapshot *aggregator.Snapshot
	now      func() time.Time
	// round increases whenever the contents may have changed.
	round int
	// rereads means that this round reads again what changed.
	rereads  bool
	rested   time.Time
	contents map[processID]*processContents

	holders     []telemetry.Process
	holdersOf   []uint32 // the traced processes then
	holdersAt   time.Time
	holdersErr  error
	holdersSeen bool
}

// processContents are the buffers, programs and sites of a process, each with the process's Last when they were read.
type processContents struct {
	buffers, programs       bool
	bufferList              []aggregator.BufferSnapshot
	programList             []aggregator.ProgramSnapshot
	siteList                []aggregator.Site
	buffersLast, programsAt uint64
	sitesAt                 uint64
	sites                   bool
}

// After a round that rereads, no round rereads for restFactor times its length, but for restTime at least and maxRest
// at most: on a busy machine a round takes longer than its work.
const (
	restTime   = time.Second
	restFactor = 25
	maxRest    = 5 * time.Second
)

// begin begins a round with a snapshot, and drops the contents of processes that it does not have.
func (r *reader) begin(s *aggregator.Snapshot) {
	r.snapshot = s
	r.rereads = !r.now().Before(r.rested)
	live := map[processID]bool{}
	for i := range s.Processes {
		live[idOf(&s.Processes[i])] = true
	}
	for id := range r.contents {
		if !live[id] {
			delete(r.contents, id)
			r.round++
		}
	}
}

// end ends a round that began at this time.
func (r *reader) end(began time.Time) {
	if now := r.now(); r.rereads {
		r.rested = now.Add(min(max(restTime, restFactor*now.Sub(began)), maxRest))
	}
}

func (r *reader) of(p *aggregator.ProcessSnapshot) *processContents {
	h := r.contents[idOf(p)]
	if h == nil {
		h = &processContents{}
		r.contents[idOf(p)] = h
	}
	return h
}

// buffers returns the live buffers of a process, oldest first. Do not change them.
func (r *reader) buffers(p *aggregator.ProcessSnapshot) []aggregator.BufferSnapshot {
	h := r.of(p)
	if !h.buffers || r.rereads && h.buffersLast != p.Last {
		h.bufferList = r.feed.Buffers(p.PID)
		h.buffers, h.buffersLast = true, p.Last
		r.round++
	}
	return h.bufferList
}

// sites returns where a process allocated. Call it after buffers, and do not change the result.
func (r *reader) sites(p *aggregator.ProcessSnapshot) []aggregator.Site {
	h := r.of(p)
	if !h.sites || r.rereads && h.sitesAt != p.Last {
		h.siteList = r.feed.Sites(p.PID)
		h.sites, h.sitesAt = true, p.Last
	}
	return h.siteList
}

// programs returns the programs of a process, oldest first. Do not change them.
func (r *reader) programs(p *aggregator.ProcessSnapshot) []aggregator.ProgramSnapshot {
	h := r.of(p)
	if !h.programs || r.rereads && h.programsAt != p.Last {
		h.programList = r.feed.Programs(p.PID)
		h.programs, h.programsAt = true, p.Last
		r.round++
	}
	return h.programList
}

// holdersEvery is the least time between two readings of who holds a device; newHoldersEvery is that after the traced
// processes have changed.
const (
	holdersEvery    = 2 * time.Second
	newHoldersEvery = 250 * time.Millisecond
)

// processes returns the processes that hold a device, and those that are traced; none without a system.
func (r *reader) processes() ([]telemetry.Process, error) {
	if r.system == nil {
		return nil, nil
	}
	traced := make([]uint32, len(r.snapshot.Processes))
	for i := range r.snapshot.Processes {
		traced[i] = r.snapshot.Processes[i].PID
	}
	now, every := r.now(), holdersEvery
	if !slices.Equal(traced, r.holdersOf) {
		every = newHoldersEvery
	}
	if !r.holdersSeen || now.Sub(r.holdersAt) >= every {
		r.holders, r.holdersErr = r.system.Processes(traced)
		r.holdersOf, r.holdersAt, r.holdersSeen = traced, now, true
		r.round++
	}
	return r.holders, r.holdersErr
}

// frozen is a feed that does not change: the state when the user paused.
type frozen struct {
	snapshot *aggregator.Snapshot
	buffers  map[uint32][]aggregator.BufferSnapshot
	programs map[uint32][]aggregator.ProgramSnapshot
	sites    map[uint32][]aggregator.Site
}

func freeze(f Feed, s *aggregator.Snapshot) *frozen {
	z := &frozen{s, map[uint32][]aggregator.BufferSnapshot{}, map[uint32][]aggregator.ProgramSnapshot{}, map[uint32][]aggregator.Site{}}
	for i := range s.Processes {
		pid := s.Processes[i].PID
		z.buffers[pid], z.programs[pid], z.sites[pid] = f.Buffers(pid), f.Programs(pid), f.Sites(pid)
	}
	return z
}

func (z *frozen) Snapshot() *aggregator.Snapshot                   { return z.snapshot }
func (z *frozen) Buffers(pid uint32) []aggregator.BufferSnapshot   { return z.buffers[pid] }
func (z *frozen) Programs(pid uint32) []aggregator.ProgramSnapshot { return z.programs[pid] }
func (z *frozen) Sites(pid uint32) []aggregator.Site               { return z.sites[pid] }
