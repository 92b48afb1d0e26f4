// Package aggregator keeps the accounts: which process holds how much of
// which memory of which chip.
//
// It is pure. It has no clock, does no I/O and knows nothing of where events
// come from; the same events in the same order always give the same
// accounts. An Aggregator is not safe for concurrent use.
//
// Two sizes are kept for each buffer. Requested is the buffer's own size on a
// chip. Reserved counts the bytes that it takes from the chip's free pool: bytes in a bank times
// the number of banks, because the allocator works in lockstep over all
// banks. A mesh allocation counts in full on every chip of its mesh.
package aggregator

import (
	"fmt"
	"maps"
	"math"
	"slices"
)

// Aggregator is the accounts of all watched processes.
type Aggregator struct {
	// OnChange, where set, receives each allocated or freed buffer, implicit
	// frees included. The Change is valid during the call only.
	OnChange func(Change)
	// OnLearned, where set, receives each live buffer whose chips or reserved size become
	// known after OnChange received it, as an allocation.
	OnLearned func(Change)
	// OnCBChange, where set, receives each circular buffer that was placed on a
	// chip or removed from it, unless it lies inside an L1 buffer.
	OnCBChange func(CBChange)
	// OnKernelChange, where set, receives each kernel binary that was loaded for
	// a chip or unloaded.
	OnKernelChange func(KernelChange)
	// OnUnsafe, where set, receives each live buffer that a replay of a trace found
	// younger than the trace, as an allocation: once, and again when it turns out to overlap.
	OnUnsafe func(Change)
	// OnRefused, where set, receives each failed allocation.
	OnRefused func(*Event)
	// OnSuspect, where set, receives the PID of a process whose accounts
	// contradict an event, such as a free of an unknown buffer: its own
	// allocators should be read, and compared by an AllocatorsScanned event.
	OnSuspect func(pid uint32)

	time uint64
	// live buffers of all processes, and how many there can be.
	live      int
	limits    limits
	chips     map[Chip]*chip
	processes map[uint32]*process
	// ended are the newest exited processes, as they were at their exit, oldest first.
	ended    []ProcessSnapshot
	counters Counters
	// reasons of the host, and of processes that are not in the accounts.
	reasons reasons
	// callSite names call sites; nil where sites are not followed.
	callSite func([]Frame) string
	// muted, where set, are the callbacks to restore at StateEnd: none is called
	// while a state is loaded.
	muted *listeners
}

// maxEnded is how many exited processes are kept.
const maxEnded = 32

// Change is a buffer that was allocated or freed.
type Change struct {
	Time uint64
	PID  uint32
	TID  uint32
	// Freed is false for an allocation.
	Freed bool
	// Implicit: no free of this buffer was seen; its allocator or process went,
	// or another buffer took its place.
	Implicit bool
	// Missed: its own free was missed, which a new buffer in its place or a
	// comparison with the process's allocators shows. Implicit is set too.
	Missed bool
	// Exit: it was freed as its process ended. Implicit is set too.
	Exit bool
	// Unknown: the freed buffer's allocation was not seen.
	Unknown bool
	Buffer  BufferSnapshot
	Chips   []Chip
}

type chip struct {
	id    Chip
	arch  string
	board string
	// unique is its unique ID; 0 where unknown.
	unique uint64
	// cb sums the circular buffers of all processes, with peaks.
	cb     CBUsage
	kernel KernelUsage
	memory [NumMemories]account
	// staleEntries are the runtime's, of exited processes.
	staleEntries []StaleEntry
	// banks is the last known capacity, shown while no process has the chip open.
	banks Capacity
}

// account is one memory of one chip, for all processes or for one.
type account struct {
	requested, reserved         uint64
	peakRequested, peakReserved uint64
	buffers                     uint64
	// unreserved counts the buffers whose reserved size is not known.
	unreserved uint64
	// peakUnsure: there was such a buffer once, so peakReserved may be too low.
	peakUnsure bool
	// peaksAtLeast: both peaks may be too low, as part of it was sampled or on unknown chips.
	peaksAtLeast bool
	// peaksUncertain: events were lost, of buffers that came or of ones that went.
	peaksUncertain bool
	// totalsOnly: part of requested is a total that the runtime reported, without buffers.
	totalsOnly bool
}

func (a *account) add(requested, reserved uint64) {
	a.buffers++
	a.requested += requested
	a.reserved += reserved
	if reserved == 0 && requested != 0 {
		a.unreserved++
		a.peakUnsure = true
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

type process struct {
	pid        uint32
	info       Process
	since      uint64
	last       uint64
	devices    map[uint64]*device
	allocators map[uint64]*allocator
	buffers    buffers
	sites      sites
	programs   map[uint64]*program
	// rings by their address.
	rings map[uint64]*ring
	// traces, those of them that are being captured, and the buffers that were allocated
	// while there were any, in their order.
	traces, capturing []*trace
	younger           []younger
	unsafe            UnsafeUsage
	host              HostMemory
	// launched is when a program or a trace was launched last.
	launched uint64
	// shares are its parts of chips, ordered by chip.
	shares []*share
	// unplaced counts the buffers of devices whose chips are unknown.
	unplaced  [NumMemories]account
	counters  ProcessCounters
	agreement Agreement
	// emptied: a device is closed and has no buffers any more.
	emptied bool
	// reasons why its numbers are not exact.
	reasons reasons
}

// share is a process's part of a chip. It stays until the process exits, so
// that peaks outlast the device; open is false while no device spans the chip.
type share struct {
	chip   *chip
	open   bool
	memory [NumMemories]account
	banks  Capacity
	cb     cbAccount
	kernel KernelUsage
}

type device struct {
	opened Opened
	// described is false for a device that is known from its buffers only.
	described bool
	closed    bool
	shares    []*share
	// live counts its buffers.
	live uint64
}

type allocator struct {
	banks Capacity
}

// buffer is a live buffer. There can be millions, so it is small, and the
// fields that a lookup or a free reads come first.
type buffer struct {
	id     uint64
	device *device
	size   uint64
	// perBank is what each bank lost, bytes; banks is their number, 0 where unknown.
	perBank uint64
	tid     uint32
	banks   uint16
	memory  Memory
	layout  uint8
	// kernels: it holds a copy of a program's kernels.
	kernels bool
	// unsafe, if not 0, since a replay of trace; or markedCorruptible.
	unsafe    uint8
	trace     uint32
	allocator uint64
	address   uint64
	pageSize  uint64
	time      uint64
	stack     *Stack
	// site is where it counts too, nil where sites are not followed.
	site *Site
}

func (b *buffer) reserved() uint64 { return b.perBank * uint64(b.banks) }

// New returns empty accounts.
func New() *Aggregator {
	return &Aggregator{chips: map[Chip]*chip{}, processes: map[uint32]*process{}, limits: limits{MaxProcessBuffers, maxBuffers}}
}

// Apply updates the accounts by one event. The events of one process must
// arrive in the order in which they happened.
func (a *Aggregator) Apply(e *Event) {
	a.counters.Events++
	a.time = max(a.time, e.Time)
	switch e.Kind {
	case ProcessStart:
		a.start(e)
		return
	case ProcessExit:
		if p := a.processes[e.PID]; p != nil {
			a.exit(p, e.Time)
		}
		a.reasons.lift(func(r *Reason) bool { return r.PID == e.PID && e.PID != 0 })
		return
	case StaleEntriesChanged:
		a.setStaleEntries(e)
		return
	case Lost:
		a.lose(e)
		return
	case ReasonRaised, ReasonLifted:
		a.raiseOrLift(e)
		return
	case Refused:
		if a.OnRefused != nil && e.Refusal != nil {
			a.OnRefused(e)
		}
		return // nothing changed
	case StateBegin:
		a.begin()
		return
	case StateEnd:
		a.end(e.Totals)
		return
	}
	p := a.process(e)
	switch e.Kind {
	case DeviceOpen:
		a.open(p, e)
	case DeviceClose:
		if d := p.devices[e.Device]; d != nil {
			d.closed = true
			p.checkPlaced(e.Time)
			a.endProgramsOn(p, e, e.Device)
			p.dropRings(e.Device)
			p.dropTracesOf(e.Device)
			p.emptied = p.emptied || d.live == 0 // its allocator may have ended before
		}
	case AllocatorSeen:
		a.capacity(p, e)
	case AllocatorGone:
		a.dropAll(p, e.Kind, e.Time, func(b *buffer) bool { return b.allocator == e.Allocator })
		delete(p.allocators, e.Allocator)
	case Alloc:
		a.alloc(p, e)
	case Free:
		a.free(p, e)
	case CBPlaced:
		a.placeCB(p, e)
	case ProgramGone:
		a.removeProgram(p, e, e.Program)
	case ProgramNotOn:
		a.removeProgramOn(p, e, e.Program, e.Device)
	case KernelAdded:
		a.program(p, e).added++
	case KernelLoaded:
		a.loadKernel(p, e)
	case KernelsCopied:
		a.copyKernels(p, e)
	case ProgramNamed:
		if pr := p.programs[e.Program]; pr != nil {
			pr.operation = e.Operation
		}
	case Launched:
		a.counters.Launches += e.Count
		p.launch(e)
	case AllocatorsScanned:
		a.compare(p, e)
	case TraceBegun:
		p.beginTrace(e)
	case TraceCaptured:
		p.endTrace(e)
	case Replayed:
		a.replay(p, e)
	case TraceReleased:
		p.releaseTrace(e.Trace)
	case MarkedCorruptible:
		p.markCorruptible(e.Buffer)
	case HostMemoryRead:
		p.host.Read(e.Size)
	case ConfigRingUsed:
		a.useRing(p, e)
	case RuntimeTotalsChanged:
		a.setRuntimeTotals(p, e)
	default:
		p.odd(e)
	}
	if p.emptied {
		a.dropClosed(p)
	}
}

// process returns the accounts of an event's process, new ones if need be.
func (a *Aggregator) process(e *Event) *process {
	p := a.processes[e.PID]
	if p == nil {
		p = &process{
			pid: e.PID, since: e.Time,
			devices: map[uint64]*device{}, allocators: map[uint64]*allocator{},
			buffers: newBuffers(), programs: map[uint64]*program{}, rings: map[uint64]*ring{},
		}
		a.processes[e.PID] = p
	}
	p.last = max(p.last, e.Time)
	return p
}

func (a *Aggregator) start(e *Event) {
	if p := a.processes[e.PID]; p != nil && e.Process != nil {
		// A process without a description gets it now. Otherwise only another
		// start time makes it another process.
		if p.info != (Process{}) && p.info.Started != e.Process.Started {
			a.exit(p, e.Time)
		}
	}
	p := a.process(e)
	if e.Process == nil {
		return
	}
	if e.Process.Late || p.info.Late {
		p.raiseIf(e.Process.Late, ReasonLate, e.Time)
	}
	p.info = *e.Process
	p.raiseIf(p.info.Source == FromSharedMemory, ReasonTotalsOnly, e.Time)
}

func (a *Aggregator) exit(p *process, t uint64) {
	p.last = max(p.last, t)
	if len(a.ended) == maxEnded {
		a.ended = slices.Delete(a.ended, 0, 1)
	}
	// Nobody has read what its rings held last.
	clear(p.rings)
	p.lift(ReasonRingUnread)
	a.ended = append(a.ended, p.snapshot(true))
	a.dropAll(p, ProcessExit, t, func(*buffer) bool { return true })
	for _, id := range slices.Sorted(maps.Keys(p.programs)) {
		a.removeProgram(p, &Event{Kind: ProcessExit, Time: t, PID: p.pid}, id)
	}
	p.clearRuntimeTotals()
	delete(a.processes, p.pid)
	a.counters.Exited++
	if missed(p.reasons.list) {
		a.counters.ExitedInexact++
	}
	a.dropChips()
}

func (a *Aggregator) open(p *process, e *Event) {
	opened := Opened{}
	if e.Opened != nil {
		opened = *e.Opened
		opened.Chips = distinct(opened.Chips)
	}
	old := p.devices[e.Device]
	switch {
	case old == nil:
	case old.closed || len(old.shares) > 0 && !slices.Equal(old.opened.Chips, opened.Chips):
		// The address of a closed device was reused.
		a.dropAll(p, e.Kind, e.Time, func(b *buffer) bool { return b.device == old })
		a.endProgramsOn(p, e, e.Device)
		p.dropRings(e.Device)
		p.dropTracesOf(e.Device)
	case len(old.shares) > 0:
		return // repeated
	default:
		// It was known from its buffers only, or could not be read.
		a.place(p, old, opened, e.Time)
		return
	}
	delete(p.devices, e.Device)
	a.dropClosed(p)
	a.describe(p, a.device(p, e.Device), opened, e.Time)
}

// distinct copies the chips without duplicates, so that none counts twice.
func distinct(chips []Chip) []Chip {
	var out []Chip
	for _, c := range chips {
		if !slices.Contains(out, c) {
			out = append(out, c)
		}
	}
	return out
}

// describe sets what is known of a device, and opens its chips for the process.
func (a *Aggregator) describe(p *process, d *device, o Opened, at uint64) {
	d.opened, d.described = o, true
	for i, id := range o.Chips {
		s := a.share(p, id)
		if o.Arch != "" {
			s.chip.arch = o.Arch
		}
		if i < len(o.Boards) && o.Boards[i] != "" {
			s.chip.board = o.Boards[i]
		}
		if i < len(o.UniqueIDs) && o.UniqueIDs[i] != 0 {
			s.chip.unique = o.UniqueIDs[i]
		}
		if !s.open {
			// An earlier device's capacity need not be this one's.
			s.open, s.banks = true, Capacity{}
		}
		d.shares = append(d.shares, s)
	}
	if o.Late {
		p.sites.atLeast = true
		p.raise(ReasonLate, at)
	}
	p.checkPlaced(at)
}

// share returns a process's part of a chip, a new one if need be.
func (a *Aggregator) share(p *process, id Chip) *share {
	i, found := p.find(id)
	if !found {
		s := &share{chip: a.chip(id)}
		p.shares = slices.Insert(p.shares, i, s)
		if p.info.Source == Sampled {
			// Between two looks it may hold more.
			for m := range s.memory {
				s.memory[m].peaksAtLeast, s.chip.memory[m].peaksAtLeast = true, true
			}
			s.cb.usage.PeaksAtLeast, s.chip.cb.PeaksAtLeast = true, true
		}
	}
	return p.shares[i]
}

func (p *process) find(id Chip) (at int, found bool) {
	return slices.BinarySearchFunc(p.shares, id, func(s *share, id Chip) int { return s.chip.id.compare(id) })
}

// chip returns the accounts of a chip, new ones if need be.
func (a *Aggregator) chip(id Chip) *chip {
	c := a.chips[id]
	if c == nil {
		c = &chip{id: id}
		a.chips[id] = c
	}
	return c
}

// place moves a device whose chips were unknown, and its buffers, to its chips.
func (a *Aggregator) place(p *process, d *device, o Opened, at uint64) {
	var list []*buffer
	if d.live > 0 && len(o.Chips) > 0 {
		for b := range p.buffers.all() {
			if b.device == d {
				p.uncount(b)
				list = append(list, b)
			}
		}
	}
	a.describe(p, d, o, at)
	for _, b := range list {
		p.count(b)
		b.countCopy(true)
		for _, s := range d.shares { // they may have been higher while it did not count
			s.memory[b.memory].peaksAtLeast, s.chip.memory[b.memory].peaksAtLeast = true, true
		}
		a.learned(p, b, at)
	}
}

// device returns the device at an address, an undescribed one if need be.
func (a *Aggregator) device(p *process, address uint64) *device {
	d := p.devices[address]
	if d == nil {
		d = &device{}
		p.devices[address] = d
	}
	return d
}

func (a *Aggregator) capacity(p *process, e *Event) {
	if e.Capacity == nil {
		p.odd(e)
		return
	}
	al, old := &allocator{banks: *e.Capacity}, p.allocators[e.Allocator]
	p.allocators[e.Allocator] = al
	for m := range al.banks {
		al.banks[m] = al.banks[m].plausible()
	}
	if a.muted == nil && (old == nil || old.banks != al.banks) { // a state says itself what each buffer takes
		a.learnBanks(p, e, al)
	}
	for _, s := range a.device(p, e.Device).shares {
		for m, b := range al.banks {
			if b.Known && b.size() >= s.banks[m].size() {
				s.banks[m] = b
			}
			if b.Known {
				s.chip.banks[m] = b
			}
		}
	}
}

// Upper bounds that no chip comes near. Values beyond them are wrong, and
// their sums would overflow.
const (
	maxBytes = 1 << 47
	maxBanks = math.MaxUint16
)

func (a *Aggregator) alloc(p *process, e *Event) {
	if e.Memory >= NumMemories || e.Size > maxBytes || e.PerBank > maxBytes {
		p.odd(e)
		return
	}
	if old := p.buffers.get(e.Buffer); old != nil {
		p.counters.Replaced++
		a.suspect(p, ReasonMissedFree, e.Time)
		a.drop(p, old, e, true)
	}
	p.counters.Allocs++
	if a.room(p, e.Time) {
		a.addBuffer(p, e, e.Time)
	}
}

// MaxProcessBuffers is how many live buffers of a process are in the accounts at the most:
// some fifty times as many as large models have. maxBuffers is how many of all processes are.
const (
	MaxProcessBuffers = 512 << 10
	maxBuffers        = 2 << 20
)

// limits are these, for tests lower.
type limits struct{ process, all int }

// room reports whether a process can have another buffer. If not, it is marked.
func (a *Aggregator) room(p *process, at uint64) bool {
	if p.buffers.live < a.limits.process && a.live < a.limits.all {
		return true
	}
	detail := fmt.Sprintf("%d buffers of one process", a.limits.process)
	if a.live >= a.limits.all {
		detail = fmt.Sprintf("%d buffers of all processes", a.limits.all)
	}
	p.reasons.raise(Reason{Code: ReasonLimitReached, Detail: detail, PID: p.pid, Since: at}, maxProcessReasons)
	p.sites.atLeast = true
	return false
}

// addBuffer adds a buffer that was allocated at the time since, 0 where unknown.
func (a *Aggregator) addBuffer(p *process, e *Event, since uint64) {
	b := p.buffers.add(&buffer{
		id: e.Buffer, device: a.device(p, e.Device), allocator: e.Allocator,
		address: e.Address, size: e.Size, perBank: e.PerBank, pageSize: e.PageSize,
		time: since, stack: e.Stack, tid: e.TID, memory: e.Memory, layout: e.MemoryLayout,
	})
	if al := p.allocators[e.Allocator]; al != nil {
		b.banks = uint16(al.banks[e.Memory].Count)
	}
	b.device.live++
	a.live++
	b.site = a.site(p, b)
	p.count(b)
	if len(p.traces) > 0 {
		p.meetsTraces(b)
	}
	if e.Unsafe != nil {
		p.inherit(b, e.Unsafe)
	}
	if len(b.device.shares) == 0 {
		p.checkPlaced(e.Time)
	}
	if a.OnChange != nil {
		a.OnChange(Change{Time: e.Time, PID: p.pid, TID: e.TID, Buffer: b.snapshot(), Chips: b.device.opened.Chips})
	}
}

func (a *Aggregator) free(p *process, e *Event) {
	b := p.buffers.get(e.Buffer)
	if b == nil && p.info.Late {
		return // it is from before, which is still being read
	}
	if b == nil {
		p.counters.UnmatchedFrees++
		if !p.has(ReasonLimitReached) { // it may be of one that found no room
			a.suspect(p, ReasonUnmatchedFree, e.Time)
		}
		if a.OnChange != nil {
			var chips []Chip
			if d := p.devices[e.Device]; d != nil {
				chips = d.opened.Chips
			}
			a.OnChange(Change{Time: e.Time, PID: p.pid, TID: e.TID, Freed: true, Unknown: true, Chips: chips,
				Buffer: BufferSnapshot{ID: e.Buffer, Chips: chips}})
		}
		return
	}
	p.counters.Frees++
	a.drop(p, b, e, false)
}

// suspect marks a process whose accounts contradict an event.
func (a *Aggregator) suspect(p *process, why ReasonCode, at uint64) {
	p.raise(why, at)
	if a.OnSuspect != nil {
		a.OnSuspect(p.pid)
	}
}

// count counts a buffer on the chips of its device, or as unplaced where these are not known.
func (p *process) count(b *buffer) {
	m, requested, reserved := b.memory, b.size, b.reserved()
	for _, s := range b.device.shares {
		s.memory[m].add(requested, reserved)
		s.chip.memory[m].add(requested, reserved)
	}
	if len(b.device.shares) == 0 {
		p.unplaced[m].add(requested, reserved)
	}
	b.site.add(b)
}

// uncount undoes count, before anything changes that the buffer was counted with.
func (p *process) uncount(b *buffer) {
	m, requested, reserved := b.memory, b.size, b.reserved()
	for _, s := range b.device.shares {
		s.memory[m].sub(requested, reserved)
		s.chip.memory[m].sub(requested, reserved)
	}
	if len(b.device.shares) == 0 {
		p.unplaced[m].sub(requested, reserved)
	}
	b.site.sub(b)
}

// doubtPeaks says that events of a process were lost: more may have been live than its peaks say, and what had gone may
// be in them.
func (p *process) doubtPeaks() {
	for _, s := range p.shares {
		for m := range s.memory {
			s.memory[m].peaksUncertain = true
		}
		s.cb.usage.PeaksUncertain = true
		s.chip.doubtPeaks()
	}
	for m := range p.unplaced {
		p.unplaced[m].peaksUncertain = true
	}
}

func (c *chip) doubtPeaks() {
	for m := range c.memory {
		c.memory[m].peaksUncertain = true
	}
	c.cb.PeaksUncertain = true
}

// doubtPeaksOfEnded is doubtPeaks of a process that has ended. Snapshots have its chips too.
func (a *Aggregator) doubtPeaksOfEnded(p *ProcessSnapshot) {
	doubt := func(memory *[NumMemories]Usage) {
		for m := range memory {
			memory[m].PeaksUncertain = true
		}
	}
	p.Chips = slices.Clone(p.Chips)
	for i := range p.Chips {
		c := &p.Chips[i]
		doubt(&c.Memory)
		c.CB.PeaksUncertain = true
		if known := a.chips[c.Chip]; known != nil {
			known.doubtPeaks()
		}
	}
	doubt(&p.Memory)
	doubt(&p.Unplaced)
	p.CB.PeaksUncertain = true
}

// peaksLack says that a memory's peaks lack a buffer whose chips were never known: those
// of the process's chips, or of any where it has none that is known.
func (a *Aggregator) peaksLack(p *process, m Memory) {
	for _, s := range p.shares {
		s.memory[m].peaksAtLeast, s.chip.memory[m].peaksAtLeast = true, true
	}
	if len(p.shares) == 0 {
		for _, c := range a.chips {
			c.memory[m].peaksAtLeast = true
		}
	}
}

// learnBanks takes in how many banks the buffers of an allocator take some of, of which that was unknown.
func (a *Aggregator) learnBanks(p *process, e *Event, al *allocator) {
	for b := range p.buffers.all() {
		if n := uint16(al.banks[b.memory].Count); b.allocator == e.Allocator && b.banks == 0 && n != 0 {
			a.learnReserved(p, b, b.perBank, n, e.Time)
		}
	}
}

// learnReserved takes in what a buffer takes of each bank, and how many these are, which was unknown.
func (a *Aggregator) learnReserved(p *process, b *buffer, perBank uint64, banks uint16, at uint64) {
	p.uncount(b)
	b.perBank, b.banks = perBank, banks
	p.count(b)
	a.learned(p, b, at)
}

// learned says that more is known of a live buffer.
func (a *Aggregator) learned(p *process, b *buffer, at uint64) {
	if a.OnLearned != nil {
		a.OnLearned(Change{Time: at, PID: p.pid, TID: b.tid, Buffer: b.snapshot(), Chips: b.device.opened.Chips})
	}
}

// drop removes a buffer from the accounts.
func (a *Aggregator) drop(p *process, b *buffer, e *Event, implicit bool) {
	b.device.live--
	p.emptied = p.emptied || b.device.closed && b.device.live == 0
	a.live--
	b.countCopy(false)
	p.unsafe.sub(b)
	p.uncount(b)
	if len(b.device.shares) == 0 {
		a.peaksLack(p, b.memory)
		if b.site != nil {
			b.site.PeakAtLeast = true // it counted on one chip only
		}
		p.checkPlaced(e.Time)
	}
	if implicit {
		p.counters.ImplicitFrees++
	}
	if a.OnChange != nil {
		a.OnChange(Change{Time: e.Time, PID: p.pid, TID: e.TID, Freed: true, Implicit: implicit,
			Missed: implicit && (e.Kind == Alloc || e.Kind == AllocatorsScanned), Exit: e.Kind == ProcessExit,
			Buffer: b.snapshot(), Chips: b.device.opened.Chips})
	}
	p.buffers.remove(b.id)
}

// dropAll removes the buffers that match picks, as freed implicitly by an event
// of the kind by, and returns their number.
func (a *Aggregator) dropAll(p *process, by Kind, t uint64, match func(*buffer) bool) int {
	e := Event{Kind: by, Time: t, PID: p.pid}
	var ids []uint64
	for b := range p.buffers.all() {
		if match(b) {
			ids = append(ids, b.id)
		}
	}
	// The order must not depend on the index, so that callbacks are reproducible.
	slices.Sort(ids)
	for _, id := range ids {
		a.drop(p, p.buffers.get(id), &e, true)
	}
	return len(ids)
}

// dropClosed removes closed devices without buffers. Chips that no device of the
// process spans are then closed for it.
func (a *Aggregator) dropClosed(p *process) {
	p.emptied = false
	for _, s := range p.shares {
		s.open = false
	}
	for address, d := range p.devices {
		if d.closed && d.live == 0 {
			delete(p.devices, address)
			continue
		}
		for _, s := range d.shares {
			s.open = true
		}
	}
	p.checkPlaced(a.time)
}

// dropChips removes the chips of a private numbering when no process uses it
// any more. The host's own chips stay, empty or not.
func (a *Aggregator) dropChips() {
	for id := range a.chips {
		if id.Space != 0 && !a.used(id) {
			delete(a.chips, id)
		}
	}
}

func (a *Aggregator) used(id Chip) bool {
	for _, p := range a.processes {
		if _, found := p.find(id); found {
			return true
		}
	}
	return false
}
