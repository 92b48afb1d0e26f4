package report

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"tt-memtrace/aggregator"
	"tt-memtrace/export"
)

// Builder collects what a report needs. It is told of events before they are
// booked, and of changes as they are, in their order; it is not safe for concurrent use.
type Builder struct {
	accounts  *aggregator.Aggregator
	sites     sites
	live      map[bufferKey]*held
	spaces    map[spaceKey]*space
	programs  map[aggregator.Chip]*programSpace
	names     map[programKey]string
	devices   map[programKey][]aggregator.Chip
	started   map[uint32]*process
	ended     []*process
	refusals  []Refusal
	lives     []life
	leastLife uint64
	// bare allocations have no stack.
	stacks, cut, bare uint64
	first, last       uint64
	// lost events, also those that the accounts forget with a state.
	lost uint64
	// exits are the processes that end in the events at hand, and when.
	exits map[uint32]uint64
	// telling: a state is being told. restored: it was, and what it holds is still to be looked at.
	telling, restored bool
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

// held is a live buffer.
type held struct {
	site  *site
	since uint64
	bytes uint64 // on each chip
	block block
	chips []aggregator.Chip
}

// life is a buffer that was freed, or is there at the end.
type life struct {
	pid      uint32
	site     *site
	from, to uint64
	bytes    uint64 // on all chips
}

// process is one that was seen.
type process struct {
	pid      uint32
	info     aggregator.Process
	from, to uint64
	held     tally
}

// programSpace is what programs take of a chip.
type programSpace struct {
	used, peak uint64
	peakAt     uint64
	fresh      bool
	by         map[programKey]uint64
	holders    map[string]tally
}

// NewBuilder makes a Builder for accounts that it does not change.
func NewBuilder(accounts *aggregator.Aggregator) *Builder {
	return &Builder{
		accounts: accounts, sites: sites{map[siteKey]*site{}, map[*aggregator.Stack]string{}},
		live: map[bufferKey]*held{}, spaces: map[spaceKey]*space{}, programs: map[aggregator.Chip]*programSpace{},
		names: map[programKey]string{}, devices: map[programKey][]aggregator.Chip{}, started: map[uint32]*process{}, exits: map[uint32]uint64{},
	}
}

// Events takes in events that are about to be booked.
func (b *Builder) Events(events []aggregator.Event) {
	clear(b.exits)
	for i := range events {
		e := &events[i]
		if e.Kind == aggregator.Lost {
			b.lost += e.Count
		} else {
			b.last = max(b.last, e.Time)
		}
		if b.first == 0 { // of a state the beginning, not what it tells, which is older
			b.first = e.Time
		}
		switch e.Kind {
		case aggregator.ProcessStart:
			b.start(e)
		case aggregator.ProcessExit:
			b.exits[e.PID] = e.Time
			if p := b.started[e.PID]; p != nil {
				p.to = e.Time
				b.ended = append(b.ended, p)
			}
		case aggregator.DeviceOpen:
			if e.Opened != nil {
				b.devices[programKey{e.PID, e.Device}] = e.Opened.Chips
			}
		case aggregator.AllocatorSeen:
			b.capacity(e)
		case aggregator.ProgramNamed:
			b.names[programKey{e.PID, e.Program}] = e.Operation
		case aggregator.ProgramGone:
			// What it placed goes with it, and is told of next.
		case aggregator.Alloc:
			switch {
			case b.telling: // it was counted, or is from before the beginning
			case e.Stack == nil:
				b.bare++
			default:
				b.stacks++
				if e.Stack.Cut {
					b.cut++
				}
			}
		case aggregator.StateBegin:
			b.telling = true
			b.forget(e.Time)
		case aggregator.StateEnd:
			b.telling, b.restored = false, true
		}
	}
}

// Batch is told when the events are booked.
func (b *Builder) Batch() {
	for pid := range b.exits {
		delete(b.started, pid)
		maps.DeleteFunc(b.names, func(k programKey, _ string) bool { return k.pid == pid })
		maps.DeleteFunc(b.devices, func(k programKey, _ []aggregator.Chip) bool { return k.pid == pid })
	}
	clear(b.exits)
	if b.restored {
		b.restore()
	}
}

func (b *Builder) start(e *aggregator.Event) {
	p := b.started[e.PID]
	if p == nil {
		p = &process{pid: e.PID, from: e.Time}
		b.started[e.PID] = p
	}
	if e.Process != nil {
		p.info = *e.Process
	}
}

func (b *Builder) capacity(e *aggregator.Event) {
	if e.Capacity == nil {
		return
	}
	for _, c := range b.devices[programKey{e.PID, e.Device}] {
		for m, banks := range e.Capacity {
			if s := b.space(c, aggregator.Memory(m)); banks.Known && banks.Count < 1<<16 && banks.Bytes < 1<<47 {
				s.banks = banks
			}
		}
	}
}

func (b *Builder) space(c aggregator.Chip, m aggregator.Memory) *space {
	k := spaceKey{c, m}
	s := b.spaces[k]
	if s == nil {
		s = &space{chip: c, memory: m, bySite: map[*site]tally{}}
		b.spaces[k] = s
	}
	return s
}

// forget drops what was live up to here: a state tells it anew.
func (b *Builder) forget(at uint64) {
	clear(b.live)
	for _, s := range b.spaces {
		if s.line.step > 0 {
			s.line.before(at, s)
		}
		s.capture()
		s.used, s.blocks = tally{}, nil
		clear(s.bySite)
	}
	for _, s := range b.sites.all {
		s.tally = tally{}
	}
	for _, p := range b.programs {
		b.capture(p)
		p.used = 0
		clear(p.by)
	}
}

// restore takes in what a state told.
func (b *Builder) restore() {
	b.restored = false
	s := b.accounts.Snapshot()
	for _, c := range s.Chips {
		for m, u := range c.Memory {
			if u.Banks.Known {
				b.space(c.Chip, aggregator.Memory(m)).banks = u.Banks
			}
		}
	}
	for _, p := range s.Processes {
		for _, buffer := range b.accounts.Buffers(p.PID) {
			b.add(p.PID, s.Time, &buffer, false)
		}
		for _, pr := range b.accounts.Programs(p.PID) {
			for _, cb := range pr.Placed {
				if cb.Kind != aggregator.GlobalCircular {
					b.place(cb.Chip, programKey{p.PID, pr.ID}, s.Time, cb.Bytes())
				}
			}
		}
	}
}

// cost is what a buffer takes of each chip, bytes.
func cost(b *aggregator.BufferSnapshot) uint64 {
	if b.Reserved > 0 {
		return b.Reserved
	}
	return b.Size
}

// Change takes in a buffer that came or went.
func (b *Builder) Change(c aggregator.Change) {
	switch {
	case c.Unknown:
	case c.Freed:
		b.free(&c)
	default:
		b.add(c.PID, c.Time, &c.Buffer, true)
	}
}

func (b *Builder) add(pid uint32, at uint64, buffer *aggregator.BufferSnapshot, counted bool) {
	h := &held{site: b.sites.of(pid, buffer), since: buffer.Since, bytes: cost(buffer), chips: buffer.Chips}
	if h.since == 0 {
		h.since = b.first // it is older, nobody knows how much
	}
	if buffer.PerBank > 0 {
		h.block = block{buffer.Address, buffer.Address + buffer.PerBank}
	}
	b.live[bufferKey{pid, buffer.ID}] = h
	h.site.add(h.total())
	h.site.most = max(h.site.most, h.site.buffers)
	if counted {
		h.site.allocs++
		h.site.bytes += h.total()
	}
	for _, c := range h.chips {
		b.space(c, buffer.Memory).add(at, h.site, h.bytes, h.block)
	}
}

// total is its bytes on all chips; of one whose chips are not known, on one.
func (h *held) total() uint64 { return h.bytes * uint64(max(1, len(h.chips))) }

func (b *Builder) free(c *aggregator.Change) {
	k := bufferKey{c.PID, c.Buffer.ID}
	h := b.live[k]
	if h == nil {
		return
	}
	delete(b.live, k)
	age := max(c.Time, h.since) - h.since
	s := h.site
	s.sub(h.total())
	if c.Implicit && !c.Missed {
		b.left(s, h, age)
		if at, ok := b.exits[c.PID]; ok && at == c.Time {
			s.atExit++
			if p := b.started[c.PID]; p != nil {
				p.held.add(h.total())
			}
		} else {
			s.atClose++
		}
	} else {
		s.freed++
		s.lived += age
	}
	b.lived(life{c.PID, s, h.since, c.Time, h.total()})
	for _, chip := range h.chips {
		b.space(chip, c.Buffer.Memory).sub(c.Time, s, h.bytes, h.block)
	}
}

// left books a buffer that nothing freed.
func (b *Builder) left(s *site, h *held, age uint64) {
	if s.left.buffers == 0 || age < s.youngest {
		s.youngest = age
	}
	s.oldest = max(s.oldest, age)
	s.left.add(h.total())
}

// maxLives is how many buffers' lives are kept, the largest ones.
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

// CBChange takes in a circular or dataflow buffer that came or went.
func (b *Builder) CBChange(c aggregator.CBChange) {
	k := programKey{c.PID, c.Program}
	bytes := c.CB.Bytes()
	if !c.Freed {
		b.place(c.Chip, k, c.Time, bytes)
		return
	}
	p := b.programs[c.Chip]
	if p == nil || p.by[k] < bytes {
		return
	}
	b.capture(p)
	p.used -= bytes
	if p.by[k] -= bytes; p.by[k] == 0 {
		delete(p.by, k)
	}
}

func (b *Builder) place(chip aggregator.Chip, k programKey, at, bytes uint64) {
	p := b.programs[chip]
	if p == nil {
		p = &programSpace{by: map[programKey]uint64{}}
		b.programs[chip] = p
	}
	p.used += bytes
	p.by[k] += bytes
	if p.used > p.peak {
		p.peak, p.peakAt, p.fresh = p.used, at, true
	}
}

func (b *Builder) capture(p *programSpace) {
	if !p.fresh {
		return
	}
	p.fresh = false
	p.holders = map[string]tally{}
	for k, bytes := range p.by {
		t := p.holders[b.names[k]]
		t.add(bytes)
		p.holders[b.names[k]] = t
	}
}

// Facts are what a report says of its source.
type Facts struct {
	Host, Source string
	// Wall turns the clock of the events into the time of day.
	Wall func(uint64) time.Time
}

// How many entries a list of a report has at the most.
const (
	manyHolders = 20
	manySites   = 100
)

// Report is the report of all that was told so far.
func (b *Builder) Report(f Facts) *Report {
	s := b.accounts.Snapshot()
	lost := max(b.lost, s.Counters.Lost)
	r := &Report{
		Schema: Schema, Host: f.Host, Source: export.Text(f.Source), Began: f.Wall(b.first), Seconds: b.seconds(b.last),
		// What was lost stays missing of peaks and lifetimes, also where the accounts were made right since.
		Events: s.Counters.Events, Lost: lost, Exact: s.Exact() && lost == 0, Stacks: b.stacks, StacksCut: b.cut,
		Processes: []Process{}, Memories: []Memory{}, Programs: []Programs{}, Left: []Site{}, Churn: []Site{}, Refusals: b.refusals,
	}
	r.first = b.first
	if b.stacks > 0 {
		r.StacksLost = b.bare
	}
	if r.Refusals == nil {
		r.Refusals = []Refusal{}
	}
	for _, p := range s.Ended {
		r.Exact = r.Exact && !p.Late && !p.Agreement.Doubted && p.Counters.Odd == 0
	}
	b.reportProcesses(r)
	for _, k := range slices.SortedFunc(maps.Keys(b.spaces), compareSpaces) {
		if sp := b.spaces[k]; sp.peak.buffers > 0 {
			r.Memories = append(r.Memories, b.memory(sp))
		}
	}
	for _, c := range slices.SortedFunc(maps.Keys(b.programs), compareChips) {
		r.Programs = append(r.Programs, b.programsOf(c))
	}
	b.reportSites(r)
	return r
}

func compareChips(x, y aggregator.Chip) int {
	return cmp.Or(cmp.Compare(x.Space, y.Space), cmp.Compare(x.Number, y.Number))
}

func compareSpaces(x, y spaceKey) int {
	return cmp.Or(compareChips(x.chip, y.chip), cmp.Compare(x.memory, y.memory))
}

func (b *Builder) seconds(at uint64) float64 { return float64(max(at, b.first)-b.first) / 1e9 }

func (b *Builder) reportProcesses(r *Report) {
	all := slices.AppendSeq(slices.Clone(b.ended), maps.Values(b.started))
	slices.SortStableFunc(all, func(x, y *process) int { return cmp.Or(cmp.Compare(x.from, y.from), cmp.Compare(x.pid, y.pid)) })
	for _, p := range all {
		rp := Process{PID: p.pid, Command: known(p.info.Command), Release: known(p.info.Release), From: b.seconds(p.from),
			HeldAtExit: p.held.buffers, HeldBytesAtExit: p.held.bytes}
		if p.to > 0 {
			to := b.seconds(p.to)
			rp.To = &to
		}
		r.Processes = append(r.Processes, rp)
	}
}

func (b *Builder) memory(s *space) Memory {
	s.capture()
	m := Memory{
		Chip: s.chip.Number, Private: privateTo(s.chip), Memory: s.memory.String(), Peak: s.peak.bytes, PeakAt: b.seconds(s.peakAt),
		PeakBuffers: s.peak.buffers, Holders: most(s.holders, manyHolders), End: s.used.bytes, Timeline: []Point{},
	}
	if s.banks.Known {
		n := uint64(s.banks.Count) * s.banks.Bytes
		m.Capacity = &n
	}
	line := s.line
	line.list = slices.Clone(line.list)
	line.before(b.last+line.step, s)
	if f := s.fragmented; f != nil {
		m.Fragmented = &Fragmentation{b.seconds(f.at), f.free, f.largest}
	}
	for _, p := range line.list {
		pt := Point{At: b.seconds(p.at), Used: p.used}
		if p.known {
			pt.Free, pt.Largest = &p.free, &p.largest
		}
		m.Timeline = append(m.Timeline, pt)
	}
	return m
}

func (b *Builder) programsOf(c aggregator.Chip) Programs {
	p := b.programs[c]
	b.capture(p)
	out := Programs{Chip: c.Number, Private: privateTo(c), Peak: p.peak, PeakAt: b.seconds(p.peakAt), Holders: []ProgramOperation{}}
	for name, t := range p.holders {
		out.Holders = append(out.Holders, ProgramOperation{known(name), t.buffers, t.bytes})
	}
	slices.SortFunc(out.Holders, func(x, y ProgramOperation) int {
		return cmp.Or(cmp.Compare(y.Bytes, x.Bytes), cmp.Compare(deref(x.Operation), deref(y.Operation)))
	})
	return out
}

func deref(t *export.Text) export.Text {
	if t == nil {
		return ""
	}
	return *t
}

// reportSites adds what is left and what came and went.
func (b *Builder) reportSites(r *Report) {
	type sum struct {
		tally
		oldest, youngest uint64
	}
	left := map[*site]*sum{}
	for _, s := range b.sites.all {
		if s.left.buffers > 0 {
			left[s] = &sum{s.left, s.oldest, s.youngest}
		}
		r.sites = append(r.sites, s)
	}
	for _, h := range b.live {
		age := max(b.last, h.since) - h.since
		l := left[h.site]
		if l == nil {
			l = &sum{youngest: age}
			left[h.site] = l
		}
		l.add(h.total())
		l.oldest, l.youngest = max(l.oldest, age), min(l.youngest, age)
		b.lived(life{h.site.pid, h.site, h.since, b.last, h.total()})
	}
	r.lives = b.lives
	slices.SortFunc(r.sites, compareSites)
	byLeft := slices.SortedFunc(maps.Keys(left), func(x, y *site) int {
		return cmp.Or(cmp.Compare(left[y].bytes, left[x].bytes), compareSites(x, y))
	})
	for _, s := range byLeft[:min(manySites, len(byLeft))] {
		l := left[s]
		p := s.public(l.tally)
		oldest, youngest := float64(l.oldest)/1e9, float64(l.youngest)/1e9
		p.Oldest, p.Youngest, p.AtExit, p.AtClose = &oldest, &youngest, s.atExit, s.atClose
		r.Left = append(r.Left, p)
	}
	churn := slices.DeleteFunc(slices.Clone(r.sites), func(s *site) bool { return s.allocs == 0 })
	slices.SortStableFunc(churn, func(x, y *site) int { return cmp.Compare(y.bytes, x.bytes) })
	for _, s := range churn[:min(manySites, len(churn))] {
		p := s.public(tally{s.allocs, s.bytes})
		p.Freed, p.Most = s.freed, s.most
		if s.freed > 0 {
			life := float64(s.lived) / float64(s.freed) / 1e9
			p.MeanLife = &life
		}
		r.Churn = append(r.Churn, p)
	}
}

// Free is how much of each bank of a memory is free now, and its largest block,
// bytes; not ok where that is not known.
func (b *Builder) Free(c aggregator.Chip, m aggregator.Memory) (free, largest uint64, ok bool) {
	s := b.spaces[spaceKey{c, m}]
	if s == nil {
		return 0, 0, false
	}
	p, ok := s.free()
	return p.free, p.largest, ok
}
