package ui

import (
	"slices"
	"time"

	"tt-memtrace/aggregator"
	"tt-memtrace/telemetry"
)

// reader reads what is in the snapshot in sums only: the buffers and programs of
// processes, and who holds a device. That can be a lot, so it keeps what it read, looks at
// what changed alone, and takes a rest after each round that is long against the round.
// It belongs to the pump.
type reader struct {
	feed     Feed
	system   *telemetry.System
	snapshot *aggregator.Snapshot
	now      func() time.Time
	// round grows by one whenever what it has may have changed.
	round int
	// rereads: this round reads again what changed.
	rereads  bool
	rested   time.Time
	contents map[processID]*processContents

	holders     []telemetry.Process
	holdersOf   []uint32 // the traced processes then
	holdersAt   time.Time
	holdersErr  error
	holdersSeen bool
}

// processContents has the buffers and programs of a process, and the process as it was then.
type processContents struct {
	buffers, programs       bool
	bufferList              []aggregator.BufferSnapshot
	programList             []aggregator.ProgramSnapshot
	siteList                []aggregator.Site
	buffersLast, programsAt uint64
	sitesAt                 uint64
	sites                   bool
}

// At least restTime passes between two rounds, and restFactor times what the last one took,
// up to maxRest: a machine that is busy otherwise makes it seem long.
const (
	restTime   = time.Second
	restFactor = 25
	maxRest    = 5 * time.Second
)

// begin starts a look at the feed with a new snapshot.
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

// end ends it: what was done since began took its time.
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

// buffers are the live buffers of a process, oldest first, not to be changed.
func (r *reader) buffers(p *aggregator.ProcessSnapshot) []aggregator.BufferSnapshot {
	h := r.of(p)
	if !h.buffers || r.rereads && h.buffersLast != p.Last {
		h.bufferList = r.feed.Buffers(p.PID)
		h.buffers, h.buffersLast = true, p.Last
		r.round++
	}
	return h.bufferList
}

// sites are where a process allocated, read after its buffers, not to be changed.
func (r *reader) sites(p *aggregator.ProcessSnapshot) []aggregator.Site {
	h := r.of(p)
	if !h.sites || r.rereads && h.sitesAt != p.Last {
		h.siteList = r.feed.Sites(p.PID)
		h.sites, h.sitesAt = true, p.Last
	}
	return h.siteList
}

// programs are the programs of a process, oldest first, not to be changed.
func (r *reader) programs(p *aggregator.ProcessSnapshot) []aggregator.ProgramSnapshot {
	h := r.of(p)
	if !h.programs || r.rereads && h.programsAt != p.Last {
		h.programList = r.feed.Programs(p.PID)
		h.programs, h.programsAt = true, p.Last
		r.round++
	}
	return h.programList
}

// holdersEvery is the time between two looks at who holds a device, newHoldersEvery where other processes are traced than
// at the last.
const (
	holdersEvery    = 2 * time.Second
	newHoldersEvery = 250 * time.Millisecond
)

// processes are those that hold a device, and those that are traced.
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

// frozen is a feed that does not change: what there was when the user paused.
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
