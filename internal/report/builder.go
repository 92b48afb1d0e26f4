package report

import (
	"cmp"
	"maps"
	"slices"

	"tt-memtrace/aggregator"
	"tt-memtrace/aggregator/exact"
)

// Builder collects the data of a report. It receives the changes that each event makes to the accounts,
// and then the event. It is not safe for concurrent use.
type Builder struct {
	// SitesOverTime has the report's page show which sites held each memory at any
	// time. Set it before the first event.
	SitesOverTime bool
	// Began, if set, is the time from which the report's times count, on the clock of the events. Set it before the
	// first event; without it, times count from that event.
	Began uint64

	accounts *aggregator.Aggregator
	sites    sites
	live     map[bufferKey]*liveBuffer
	spaces   map[spaceKey]*space
	found    []*space // of spacesOf
	programs map[aggregator.Chip]*programSpace
	names    map[programKey]string
	// launched are programs that were launched before they had a name.
	launched map[programKey]struct{}
	devices  map[programKey][]aggregator.Chip
	archs    map[aggregator.Chip]string
	started  map[uint32]*process
	// untraced are the processes that use the runtime and were not traced, also once they have ended.
	untraced  map[uint32]aggregator.Reason
	ended     []*process
	failures  []Failure
	omitted   OmittedFailures
	unsafe    map[unsafeKey]*unsafeSite
	lives     []life
	leastLife uint64
	// Allocations with a stack, with an incomplete one, and without any.
	stacks, cut, bare uint64
	first, last       uint64
	// lost counts all lost events: the accounts' own counter restarts with a state.
	lost uint64
	// lacking: something was lost, perhaps an unknown number of events.
	lacking bool
	// begun: there was a process. midway: the first process came with a state, so it ran before.
	midway, begun bool
	// inState: the current events belong to a state, which began at stateAt.
	inState bool
	stateAt uint64
}

type bufferKey struct {
	pid uint32
	id  uint64
}

// programKey names a program or a device of a process.
type programKey struct {
	pid uint32
	at  uint64
}

type spaceKey struct {
	chip   aggregator.Chip
	memory aggregator.Memory
}

// liveBuffer is a live buffer.
type liveBuffer struct {
	site  *site
	since uint64
	old   bool // it is older than since, by an unknown time
	// counted: it was allocated since the report began.
	counted bool
	bytes   uint64 // on each chip
	// blocks are its ranges of addresses, ascending; none if its reserved size is unknown.
	blocks []block
	chips  []aggregator.Chip
	// unsafe, if set, is the key under which it was found unsafe.
	unsafe *unsafeKey
}

// life is a buffer's lifetime, up to its free or the end.
type life struct {
	pid      uint32
	site     *site
	from, to uint64
	bytes    uint64 // on all chips
}

// process is a traced process.
type process struct {
	pid      uint32
	info     aggregator.Process
	from, to uint64
	exit     *aggregator.Exit
	held     tally
	host     aggregator.HostMemory
	launched uint64
	// late: it may have used chips before tracing began; before: it did.
	late, before bool
}

// ranBefore reports whether the process may have allocated, and freed, before tracing began.
func (p *process) ranBefore() bool { return p.before || p.late && p.info.RanBefore }

// NewBuilder makes a Builder for accounts that it does not change.
func NewBuilder(accounts *aggregator.Aggregator) *Builder {
	return &Builder{
		accounts: accounts, unsafe: map[unsafeKey]*unsafeSite{}, sites: sites{map[siteKey]*site{}, map[*aggregator.Stack]string{}},
		live: map[bufferKey]*liveBuffer{}, spaces: map[spaceKey]*space{}, programs: map[aggregator.Chip]*programSpace{},
		names: map[programKey]string{}, launched: map[programKey]struct{}{}, devices: map[programKey][]aggregator.Chip{}, archs: map[aggregator.Chip]string{}, started: map[uint32]*process{}, untraced: map[uint32]aggregator.Reason{},
	}
}

// Event receives an event that the accounts have applied.
func (b *Builder) Event(e *aggregator.Event) {
	if e.Kind == aggregator.Lost {
		b.lost, b.lacking = b.lost+e.Count, true
	} else {
		b.last = max(b.last, e.Time)
	}
	b.begin(e.Time) // of a state that of its begin event: the others are older
	switch e.Kind {
	case aggregator.ProcessStart:
		b.midway, b.begun = b.midway || b.inState && !b.begun, true
		b.start(e)
	case aggregator.ProcessExit:
		b.end(e.PID, e.Time, e.Exit)
	case aggregator.ReasonRaised:
		if e.Reason != nil && e.Reason.Code == exact.ReasonNotTraced {
			why := *e.Reason
			why.PID = e.PID
			b.untraced[e.PID] = why
		}
	case aggregator.ReasonLifted:
		// It is lifted at the process's end, too. Then what the process held stays unseen.
		if e.Reason != nil && e.Reason.Code == exact.ReasonNotTraced && (b.started[e.PID] != nil || b.untraced[e.PID].Unsure) {
			delete(b.untraced, e.PID)
		}
	case aggregator.Launched, aggregator.Replayed:
		if p := b.started[e.PID]; p != nil && e.Count > 0 {
			p.launched = max(p.launched, e.Time)
			if k := (programKey{e.PID, e.Program}); e.Kind == aggregator.Launched && b.names[k] == "" {
				b.launched[k] = struct{}{}
			}
		}
	case aggregator.HostMemoryRead:
		if p := b.started[e.PID]; p != nil {
			p.host.Read(e.Size)
		}
	case aggregator.DeviceOpen:
		if e.Opened != nil {
			b.devices[programKey{e.PID, e.Device}] = e.Opened.Chips
			for _, c := range e.Opened.Chips {
				b.archs[c] = e.Opened.Arch
			}
			if p := b.started[e.PID]; p != nil {
				p.before = p.before || p.info.Late
			}
		}
	case aggregator.DeviceClose:
		delete(b.devices, programKey{e.PID, e.Device})
	case aggregator.AllocatorSeen:
		b.capacity(e)
	case aggregator.ProgramNamed:
		b.names[programKey{e.PID, e.Program}] = e.Operation
	case aggregator.ProgramGone:
		k := programKey{e.PID, e.Program}
		b.conclude(func(of programKey) bool { return of == k })
		delete(b.names, k)
		delete(b.launched, k)
	case aggregator.Alloc:
		switch {
		case b.inState, e.Found != aggregator.NotFound: // counted before, or older than the beginning, or not seen
		case e.Stack == nil:
			b.bare++
		default:
			b.stacks++
			if !e.Stack.Complete() {
				b.cut++
			}
		}
	case aggregator.StateBegin:
		b.inState = true
		b.stateAt = e.Time
	case aggregator.StateEnd:
		b.inState = false
		b.restore()
	}
}

// begin sets the time from which times count, unless it is set.
func (b *Builder) begin(at uint64) {
	if b.first == 0 {
		b.first = cmp.Or(b.Began, at)
	}
}

// end takes a process out.
func (b *Builder) end(pid uint32, at uint64, how *aggregator.Exit) {
	p := b.started[pid]
	if p != nil {
		p.to, p.exit = at, how
	}
	b.conclude(func(of programKey) bool { return of.pid == pid })
	if p != nil {
		delete(b.started, pid)
		b.ended = append(b.ended, p)
	}
	maps.DeleteFunc(b.launched, func(k programKey, _ struct{}) bool { return k.pid == pid })
	maps.DeleteFunc(b.names, func(k programKey, _ string) bool { return k.pid == pid })
	maps.DeleteFunc(b.devices, func(k programKey, _ []aggregator.Chip) bool { return k.pid == pid })
}

func (b *Builder) start(e *aggregator.Event) {
	p := b.started[e.PID]
	if p != nil && e.Process != nil && p.info != (aggregator.Process{}) && p.info.Started != e.Process.Started {
		b.end(e.PID, e.Time, nil) // another process has its PID
		p = nil
	}
	if p == nil {
		p = &process{pid: e.PID, from: e.Time}
		b.started[e.PID] = p
	}
	if e.Process != nil {
		p.info = *e.Process
		p.late = p.late || p.info.Late
	}
}

func (b *Builder) capacity(e *aggregator.Event) {
	if e.Capacity == nil {
		return
	}
	for m, banks := range e.Capacity {
		for _, s := range b.spacesOf(b.devices[programKey{e.PID, e.Device}], aggregator.Memory(m)) {
			if banks.Known && banks.Count < 1<<16 && banks.Bytes < 1<<47 {
				s.sized(e.Time, banks)
			}
		}
	}
}

// spacesOf are the spaces of a memory of these chips, and of no others. The list is good
// until the next call.
func (b *Builder) spacesOf(chips []aggregator.Chip, m aggregator.Memory) []*space {
	list := b.found[:0]
	if len(chips) > 0 {
		if s := b.spaces[spaceKey{chips[0], m}]; s != nil && slices.Equal(s.chips, chips) {
			b.found = append(list, s)
			return b.found
		}
	}
	var fresh []aggregator.Chip
	parts := map[*space][]aggregator.Chip{}
	for i, c := range chips {
		s := b.spaces[spaceKey{c, m}]
		switch {
		case slices.Contains(chips[:i], c):
		case s == nil:
			fresh = append(fresh, c)
		default:
			if parts[s] == nil {
				list = append(list, s)
			}
			parts[s] = append(parts[s], c)
		}
	}
	for i, s := range list {
		if part := parts[s]; len(part) < len(s.chips) {
			list[i] = b.keep(s.split(part))
		}
	}
	if len(fresh) > 0 {
		s := &space{chips: fresh, memory: m, bySite: map[*site]tally{}}
		if b.SitesOverTime {
			s.line.since = map[*site]uint64{}
		}
		list = append(list, b.keep(s))
	}
	b.found = list
	return list
}

// keep has the chips of a space find it.
func (b *Builder) keep(s *space) *space {
	for _, c := range s.chips {
		b.spaces[spaceKey{c, s.memory}] = s
	}
	return s
}

// forget drops all live buffers: a state lists them again.
func (b *Builder) forget(at uint64) {
	clear(b.live)
	for _, s := range b.spaces {
		if s.line.step > 0 {
			s.line.advance(at, s)
		}
		s.capture()
		for st, t := range s.bySite {
			s.line.changes(st, t.bytes)
		}
		s.used, s.blocks = tally{}, blocks{}
		clear(s.bySite)
	}
	for _, s := range b.sites.all {
		s.tally = tally{}
	}
	for _, p := range b.programs {
		b.capture(p)
		p.used, p.highest = 0, end{}
		clear(p.by)
		clear(p.ends)
	}
}

// restore takes over the live buffers of a state.
func (b *Builder) restore() {
	b.forget(b.stateAt)
	s := b.accounts.Snapshot()
	b.share(s)
	for pid := range b.started {
		if !slices.ContainsFunc(s.Processes, func(x aggregator.ProcessSnapshot) bool { return x.PID == pid }) {
			b.end(pid, b.stateAt, nil) // the events of its end are missing
		}
	}
	for _, c := range s.Chips {
		for m, u := range c.Memory {
			if u.Banks.Known {
				k := spaceKey{c.Chip, aggregator.Memory(m)}
				if s := b.spaces[k]; s != nil && s.banks == u.Banks {
					continue
				}
				for _, s := range b.spacesOf([]aggregator.Chip{c.Chip}, k.memory) {
					s.sized(b.stateAt, u.Banks)
				}
			}
		}
	}
	for _, p := range s.Processes {
		for _, buffer := range b.accounts.Buffers(p.PID) {
			b.add(p.PID, s.Time, &buffer, false)
			if buffer.Unsafe.Found {
				b.unsafeFound(p.PID, s.Time, &buffer)
			}
		}
		for _, pr := range b.accounts.Programs(p.PID) {
			for _, cb := range pr.Placed {
				if cb.Kind != aggregator.GlobalCircular {
					b.place(cb.Chip, programKey{p.PID, pr.ID}, s.Time, &cb.CircularBuffer)
				}
			}
		}
	}
}

// share makes one space for the chips of each device that have none yet, if they are of one size.
func (b *Builder) share(of *aggregator.Snapshot) {
	banks := map[spaceKey]aggregator.Banks{}
	for i := range of.Chips {
		for m := range of.Chips[i].Memory {
			banks[spaceKey{of.Chips[i].Chip, aggregator.Memory(m)}] = of.Chips[i].Memory[m].Banks
		}
	}
	meshes := slices.Collect(maps.Values(b.devices))
	slices.SortFunc(meshes, func(x, y []aggregator.Chip) int {
		return cmp.Or(cmp.Compare(len(y), len(x)), slices.CompareFunc(x, y, compareChips))
	})
	for _, chips := range meshes {
		for m := range aggregator.NumMemories {
			differs := func(c aggregator.Chip) bool {
				k := spaceKey{c, m}
				return b.spaces[k] != nil || banks[k] != banks[spaceKey{chips[0], m}]
			}
			if len(chips) > 1 && !slices.ContainsFunc(chips, differs) {
				b.spacesOf(chips, m)[0].sized(b.stateAt, banks[spaceKey{chips[0], m}])
			}
		}
	}
}

// lowest is its lowest address; 0 if unknown.
func (h *liveBuffer) lowest() uint64 {
	if len(h.blocks) == 0 {
		return 0
	}
	return h.blocks[0].start
}

// cost returns the bytes of a buffer on each chip: reserved or, if unknown, requested.
func cost(b *aggregator.BufferSnapshot) uint64 {
	if n, known := b.Reserved.Exact(); known {
		return n
	}
	return b.Size
}

// Change receives an allocation or a free.
func (b *Builder) Change(c aggregator.Change) {
	switch {
	case c.Unknown:
	case c.Freed:
		b.free(&c)
	default:
		b.add(c.PID, c.Time, &c.Buffer, c.Buffer.Since > 0) // one that was found was allocated before
	}
}

func (b *Builder) add(pid uint32, at uint64, buffer *aggregator.BufferSnapshot, counted bool) {
	h := &liveBuffer{site: b.sites.of(pid, buffer), since: buffer.Since, counted: counted}
	if h.since == 0 {
		b.begin(at)
		h.since, h.old = b.first, true
		if p := b.started[pid]; p != nil {
			p.before = p.before || p.late
		}
	}
	b.live[bufferKey{pid, buffer.ID}] = h
	if counted {
		h.site.allocs++
	}
	b.count(h, at, buffer)
}

// count counts a buffer on its chips.
func (b *Builder) count(h *liveBuffer, at uint64, buffer *aggregator.BufferSnapshot) {
	h.bytes, h.chips = cost(buffer), buffer.Chips
	h.blocks = nil
	if buffer.PerBank > 0 {
		for _, e := range buffer.Extents() {
			h.blocks = append(h.blocks, block{e.First, e.End})
		}
	}
	h.site.add(h.total())
	h.site.most = max(h.site.most, h.site.buffers)
	if h.counted {
		h.site.bytes += h.total()
	}
	for _, s := range b.spacesOf(h.chips, buffer.Memory) {
		s.add(at, h.site, h.bytes, h.blocks, !h.counted)
	}
	if buffer.Memory == aggregator.L1 {
		for _, c := range h.chips {
			b.closest(c, at)
		}
	}
}

// discount takes it off again.
func (b *Builder) discount(h *liveBuffer, at uint64, m aggregator.Memory) {
	h.site.sub(h.total())
	for _, s := range b.spacesOf(h.chips, m) {
		s.sub(at, h.site, h.bytes, h.blocks)
	}
}

// Learned receives a live buffer whose chips or reserved size became known.
func (b *Builder) Learned(c aggregator.Change) {
	h := b.live[bufferKey{c.PID, c.Buffer.ID}]
	if h == nil {
		return
	}
	b.discount(h, c.Time, c.Buffer.Memory)
	if h.counted {
		h.site.bytes -= h.total()
	}
	b.count(h, c.Time, &c.Buffer)
}

// total is its bytes on all chips; on one if its chips are unknown.
func (h *liveBuffer) total() uint64 { return h.bytes * uint64(max(1, len(h.chips))) }

func (b *Builder) free(c *aggregator.Change) {
	k := bufferKey{c.PID, c.Buffer.ID}
	h := b.live[k]
	if h == nil {
		return
	}
	delete(b.live, k)
	s := h.site
	b.discount(h, c.Time, c.Buffer.Memory)
	if c.Implicit && !c.Missed {
		s.ages.add(h, c.Time)
		s.left.add(h.total())
		if c.Exit {
			s.atExit++
		} else {
			s.atClose++
		}
		if p := b.started[c.PID]; p != nil && c.Exit {
			p.held.add(h.total())
		}
	} else {
		s.freed++
		if !h.old {
			s.timed++
			s.lived += h.age(c.Time)
		}
	}
	b.lived(life{c.PID, s, h.since, c.Time, h.total()})
}

// age at a time; more than that where it is old.
func (h *liveBuffer) age(at uint64) uint64 { return max(at, h.since) - h.since }

// ages are those of buffers, ns.
type ages struct {
	oldest, youngest uint64
	known, unknown   uint64 // buffers
}

func (a *ages) add(h *liveBuffer, at uint64) {
	if h.old {
		a.unknown++
		return
	}
	age := h.age(at)
	if a.known == 0 || age < a.youngest {
		a.youngest = age
	}
	a.oldest = max(a.oldest, age)
	a.known++
}

// public returns the ages in seconds, nil if unknown.
func (a *ages) public() (oldest, youngest *float64) {
	seconds := func(age uint64) *float64 { s := float64(age) / 1e9; return &s }
	if a.known > 0 {
		youngest = seconds(a.youngest)
		if a.unknown == 0 {
			oldest = seconds(a.oldest)
		}
	}
	return oldest, youngest
}

// maxLives is the number of lifetimes kept: those of the largest buffers.
const maxLives = 20_000

func (b *Builder) lived(l life) {
	if l.bytes < b.leastLife {
		return
	}
	b.lives = append(b.lives, l)
	if len(b.lives) >= 2*maxLives {
		slices.SortStableFunc(b.lives, func(x, y life) int { return cmp.Compare(y.bytes, x.bytes) })
		b.lives = b.lives[:maxLives]
		b.leastLife = b.lives[maxLives-1].bytes
	}
}

// Free is the free bytes of each bank of a memory now, and its largest free block;
// not ok where unknown.
func (b *Builder) Free(c aggregator.Chip, m aggregator.Memory) (free, largest uint64, ok bool) {
	s := b.spaces[spaceKey{c, m}]
	if s == nil {
		return 0, 0, false
	}
	p, ok := s.free()
	return p.free, p.largest, ok
}
