// Package aggregator keeps the accounts: which process holds how much of
// which memory of which chip.
//
// It is pure. It has no clock, does no I/O and knows nothing of where events
// come from; the same events in the same order always give the same
// accounts. An Aggregator is not safe for concurrent use.
//
// Two sizes are kept for each buffer. Requested is the buffer's own size on a
// chip. Reserved is what the chip's banks lost to it: bytes in a bank times
// the number of banks, because the allocator works in lockstep over all
// banks. A mesh allocation counts in full on every chip of its mesh.
package aggregator

import (
	"math"
	"slices"
)

// Aggregator is the accounts of all watched processes.
type Aggregator struct {
	// OnChange, where set, is told of each buffer that came or went, with
	// implicit frees among them. The Change is valid during the call only.
	OnChange func(Change)
	// OnCBChange, where set, is told of each circular buffer that came or went
	// on a chip, unless it lies inside an L1 buffer.
	OnCBChange func(CBChange)
	// OnKernelChange, where set, is told of each kernel's binary that came to a
	// chip or went.
	OnKernelChange func(KernelChange)
	// OnRefused, where set, is told of each allocation that failed.
	OnRefused func(*Event)
	// OnDoubt, where set, is told of a process whose accounts cannot be right: a
	// buffer came or went that they did not have so.
	OnDoubt func(pid uint32)

	time      uint64
	chips     map[Chip]*chip
	processes map[uint32]*process
	// ended are the newest processes that exited, as they were, oldest first.
	ended    []ProcessSnapshot
	counters Counters
	// muted, where set: a state is being told, and these wait for its end.
	muted *listeners
}

// maxEnded is how many processes that exited are remembered.
const maxEnded = 32

// Change is a buffer that came or went.
type Change struct {
	Time uint64
	PID  uint32
	TID  uint32
	// Freed is false for an allocation.
	Freed bool
	// Implicit: freed by no call of its own, but with its allocator, its
	// process, or because its place was taken.
	Implicit bool
	// Missed: implicit, as its own free was not seen. A new buffer in its place, or
	// the process's books, tell that there was one.
	Missed bool
	// Unknown: a free of a buffer that is in no account.
	Unknown bool
	Buffer  BufferSnapshot
	Chips   []Chip
}

type chip struct {
	id    Chip
	arch  string
	board string
	// cb has the chip's sums and peaks of circular buffers over all processes.
	cb     CBUsage
	kernel KernelUsage
	memory [NumMemories]account
	// ghosts are what is left of processes that are gone.
	ghosts []Ghost
	// banks is the last capacity that was told, to be shown when nobody has the chip open.
	banks Capacity
}

// account is one memory of one chip, for all processes or for one.
type account struct {
	requested, reserved         uint64
	peakRequested, peakReserved uint64
	buffers                     uint64
	// unreserved counts the buffers whose reserved size is not known.
	unreserved uint64
	// blurred: there was such a buffer once, so that peakReserved may be too low.
	blurred bool
	// sumOnly: of some of requested the sum is all that is known.
	sumOnly bool
}

func (a *account) add(requested, reserved uint64) {
	a.buffers++
	a.requested += requested
	a.reserved += reserved
	if reserved == 0 && requested != 0 {
		a.unreserved++
		a.blurred = true
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
	late       bool
	since      uint64
	last       uint64
	devices    map[uint64]*device
	allocators map[uint64]*allocator
	buffers    buffers
	programs   map[uint64]*program
	// rings by their address, and replays of traces.
	rings   map[uint64]*ring
	replays []replays
	// shares are its parts of chips, by chip.
	shares []*share
	// unplaced holds buffers of devices whose chips are not known.
	unplaced  [NumMemories]account
	counters  ProcessCounters
	agreement Agreement
}

// share is a process's part of a chip. It stays for the process's life, so
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
	// told is false for a device that is known from its buffers only.
	told   bool
	closed bool
	shares []*share
	// live counts its buffers.
	live uint64
}

type allocator struct {
	banks Capacity
}

// buffer is a live buffer. It is kept small, as there can be millions; what is
// looked at first, and when it is freed, stands at the beginning.
type buffer struct {
	id     uint64
	device *device
	size   uint64
	// perBank is what each of banks lost, the number of which is 0 where it is not known.
	perBank uint64
	tid     uint32
	banks   uint16
	memory  Memory
	layout  uint8
	// kernels: it is the copy of a program's kernels.
	kernels   bool
	allocator uint64
	address   uint64
	pageSize  uint64
	time      uint64
	stack     *Stack
}

func (b *buffer) reserved() uint64 { return b.perBank * uint64(b.banks) }

// New returns empty accounts.
func New() *Aggregator {
	return &Aggregator{chips: map[Chip]*chip{}, processes: map[uint32]*process{}}
}

// Apply books one event. Events of one process have to arrive in the order in
// which they happened.
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
		return
	case Haunted:
		a.haunt(e)
		return
	case Lost:
		a.counters.Lost += e.Count
		for _, p := range a.processes {
			// What clients report does not come through the tracer's buffer.
			if p.info.Source == Traced || e.Anyone {
				p.agreement.Doubted = true
			}
		}
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
			a.removeProgramsOn(p, e, e.Device)
			p.dropRings(e.Device)
			p.dropReplays(e.Device)
		}
	case AllocatorSeen:
		a.capacity(p, e)
	case AllocatorGone:
		a.dropAll(p, e.Kind, e.Time, func(b *buffer) bool { return b.allocator == e.Allocator })
		delete(p.allocators, e.Allocator)
		a.dropClosed(p)
	case Alloc:
		a.alloc(p, e)
	case Free:
		a.free(p, e)
	case CBPlaced:
		a.placeCB(p, e)
	case ProgramGone:
		a.removeProgram(p, e, e.Program)
	case KernelAdded:
		p.program(e).added++
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
	case BooksRead:
		a.compare(p, e)
	case Replayed:
		a.replay(p, e)
	case RingUsed:
		a.useRing(p, e)
	case Counted:
		a.count(p, e)
	default:
		p.counters.Odd++
	}
}

// process finds or makes the accounts of the process that an event is of.
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
		// One that is not described yet gets its description now. Otherwise
		// only another start time makes it another process.
		if p.info != (Process{}) && p.info.Started != e.Process.Started {
			a.exit(p, e.Time)
		}
	}
	p := a.process(e)
	if e.Process != nil {
		p.info = *e.Process
	}
}

func (a *Aggregator) exit(p *process, t uint64) {
	p.last = max(p.last, t)
	if len(a.ended) == maxEnded {
		a.ended = slices.Delete(a.ended, 0, 1)
	}
	a.ended = append(a.ended, p.snapshot(true))
	a.dropAll(p, ProcessExit, t, func(*buffer) bool { return true })
	for id := range p.programs {
		a.removeProgram(p, &Event{Time: t, PID: p.pid}, id)
	}
	p.clearSums()
	delete(a.processes, p.pid)
	a.counters.Exited++
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
	case old.closed || old.told && !slices.Equal(old.opened.Chips, opened.Chips):
		// The address of a device that is gone was used again.
		a.dropAll(p, e.Kind, e.Time, func(b *buffer) bool { return b.device == old })
		a.removeProgramsOn(p, e, e.Device)
		p.dropRings(e.Device)
		p.dropReplays(e.Device)
	case old.told:
		return // told again
	default:
		a.place(p, old, opened)
		return
	}
	delete(p.devices, e.Device)
	a.dropClosed(p)
	a.tell(p, a.device(p, e.Device), opened)
}

// distinct copies the chips without repetitions, so that none counts twice.
func distinct(chips []Chip) []Chip {
	var out []Chip
	for _, c := range chips {
		if !slices.Contains(out, c) {
			out = append(out, c)
		}
	}
	return out
}

// tell books what is known of a device that was not told of before.
func (a *Aggregator) tell(p *process, d *device, o Opened) {
	d.opened, d.told = o, true
	p.late = p.late || o.Late
	for i, id := range o.Chips {
		s := a.share(p, id)
		if o.Arch != "" {
			s.chip.arch = o.Arch
		}
		if i < len(o.Boards) && o.Boards[i] != "" {
			s.chip.board = o.Boards[i]
		}
		if !s.open {
			// What an earlier device had to hand out says nothing of this one.
			s.open, s.banks = true, Capacity{}
		}
		d.shares = append(d.shares, s)
	}
}

// share finds or makes a process's part of a chip.
func (a *Aggregator) share(p *process, id Chip) *share {
	i, found := p.find(id)
	if !found {
		p.shares = slices.Insert(p.shares, i, &share{chip: a.chip(id)})
	}
	return p.shares[i]
}

func (p *process) find(id Chip) (at int, found bool) {
	return slices.BinarySearchFunc(p.shares, id, func(s *share, id Chip) int { return s.chip.id.compare(id) })
}

// chip finds or makes the accounts of a chip.
func (a *Aggregator) chip(id Chip) *chip {
	c := a.chips[id]
	if c == nil {
		c = &chip{id: id}
		a.chips[id] = c
	}
	return c
}

// place puts a device, known so far from its buffers only, onto its chips, and
// the buffers with it.
func (a *Aggregator) place(p *process, d *device, o Opened) {
	a.tell(p, d, o)
	if d.live == 0 || len(d.shares) == 0 {
		return
	}
	for b := range p.buffers.all() {
		if b.device == d {
			p.unplaced[b.memory].sub(b.size, b.reserved())
			b.add()
			b.countCopy(true)
		}
	}
}

// device finds the device at an address, or makes one of which nothing is known.
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
		p.counters.Odd++
		return
	}
	al := &allocator{banks: *e.Capacity}
	p.allocators[e.Allocator] = al
	for m := range al.banks {
		al.banks[m] = al.banks[m].plausible()
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

// No chip comes near these. What a process tells beyond them is not true, and
// sums of it would overflow.
const (
	maxBytes = 1 << 47
	maxBanks = math.MaxUint16
)

func (a *Aggregator) alloc(p *process, e *Event) {
	if e.Memory >= NumMemories || e.Size > maxBytes || e.PerBank > maxBytes {
		p.counters.Odd++
		return
	}
	if old := p.buffers.get(e.Buffer); old != nil {
		p.counters.Replaced++
		a.doubt(p)
		a.drop(p, old, e, true)
	}
	p.counters.Allocs++
	a.hold(p, e, e.Time)
}

// hold books a buffer that was allocated at a time, 0 where that is not known.
func (a *Aggregator) hold(p *process, e *Event, since uint64) {
	b := p.buffers.add(&buffer{
		id: e.Buffer, device: a.device(p, e.Device), allocator: e.Allocator,
		address: e.Address, size: e.Size, perBank: e.PerBank, pageSize: e.PageSize,
		time: since, stack: e.Stack, tid: e.TID, memory: e.Memory, layout: e.Layout,
	})
	if al := p.allocators[e.Allocator]; al != nil {
		b.banks = uint16(al.banks[e.Memory].Count)
	}
	b.device.live++
	b.add()
	if len(b.device.shares) == 0 {
		p.unplaced[b.memory].add(b.size, b.reserved())
	}
	if a.OnChange != nil {
		a.OnChange(Change{Time: e.Time, PID: p.pid, TID: e.TID, Buffer: b.snapshot(), Chips: b.device.opened.Chips})
	}
}

func (a *Aggregator) free(p *process, e *Event) {
	b := p.buffers.get(e.Buffer)
	if b == nil {
		p.counters.UnmatchedFrees++
		a.doubt(p)
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

func (a *Aggregator) doubt(p *process) {
	p.agreement.Doubted = true
	if a.OnDoubt != nil {
		a.OnDoubt(p.pid)
	}
}

// add counts a buffer on the chips of its device.
func (b *buffer) add() {
	m, requested, reserved := b.memory, b.size, b.reserved()
	for _, s := range b.device.shares {
		s.memory[m].add(requested, reserved)
		s.chip.memory[m].add(requested, reserved)
	}
}

// drop takes a buffer out of the accounts.
func (a *Aggregator) drop(p *process, b *buffer, e *Event, implicit bool) {
	b.device.live--
	b.countCopy(false)
	m, requested, reserved := b.memory, b.size, b.reserved()
	for _, s := range b.device.shares {
		s.memory[m].sub(requested, reserved)
		s.chip.memory[m].sub(requested, reserved)
	}
	if len(b.device.shares) == 0 {
		p.unplaced[b.memory].sub(b.size, b.reserved())
	}
	if implicit {
		p.counters.ImplicitFrees++
	}
	if a.OnChange != nil {
		a.OnChange(Change{Time: e.Time, PID: p.pid, TID: e.TID, Freed: true, Implicit: implicit,
			Missed: implicit && (e.Kind == Alloc || e.Kind == BooksRead),
			Buffer: b.snapshot(), Chips: b.device.opened.Chips})
	}
	p.buffers.remove(b.id)
}

// dropAll takes out every buffer that match picks, implicitly freed by what is of
// that kind, and counts them.
func (a *Aggregator) dropAll(p *process, by Kind, t uint64, match func(*buffer) bool) int {
	e := Event{Kind: by, Time: t, PID: p.pid}
	var ids []uint64
	for b := range p.buffers.all() {
		if match(b) {
			ids = append(ids, b.id)
		}
	}
	// In an order that is the same each time: who is told of them may compare.
	slices.Sort(ids)
	for _, id := range ids {
		a.drop(p, p.buffers.get(id), &e, true)
	}
	return len(ids)
}

// dropClosed forgets closed devices that hold nothing any more. Chips that no
// device spans then are not open to the process any more.
func (a *Aggregator) dropClosed(p *process) {
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
}

// dropChips forgets the chips of a private numbering with the last process
// that used it: the numbers mean nothing without it. The host's own chips
// stay, empty or not.
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
