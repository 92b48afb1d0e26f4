package aggregator

import (
	"fmt"
	"math"
	"slices"

	"tt-memtrace/aggregator/exact"
)

// buffer is a live buffer. There can be millions, so it is small, and the
// fields that a lookup or a free reads come first.
type buffer struct {
	id     uint64
	device *device
	size   uint64
	// perBank is the bytes taken from each bank; banks is the number of banks that it takes them from, 0 if unknown.
	perBank uint64
	tid     uint32
	banks   uint16
	memory  Memory
	layout  uint8
	// kernels: it holds a copy of a program's kernels.
	kernels bool
	// perCore: it has an address on each of its cores, of which there are banks; device.perCore has these.
	perCore bool
	// unsafe, if not 0, since a replay of trace; or markedCorruptible.
	unsafe    uint8
	trace     uint32
	allocator uint64
	address   uint64
	pageSize  uint64
	time      uint64
	stack     *Stack
	// site is the call site that it counts for, nil without FollowSites.
	site *siteAccount
}

func (b *buffer) reserved() uint64 { return b.perBank * uint64(b.banks) }

// Upper bounds that no chip comes near. Values beyond them are wrong, and
// their sums would overflow.
const (
	maxBytes = 1 << 47
	maxBanks = math.MaxUint16
)

// plausibleBuffer reports whether a buffer of this size can be.
func plausibleBuffer(m Memory, size, perBank uint64, on PerCore) bool {
	return m < NumMemories && size <= maxBytes && perBank <= maxBytes && on.plausible()
}

func (a *Aggregator) alloc(p *process, e *Event) {
	if !plausibleBuffer(e.Memory, e.Size, e.PerBank, e.PerCore) {
		p.odd(e)
		return
	}
	old := p.buffers.get(e.Buffer)
	if old != nil {
		if e.Found == NotFound {
			p.counters.Replaced++
			a.suspect(p, exact.ReasonMissedFree, e.Time)
		}
		a.drop(p, old, e, true)
	}
	since := e.Time
	if e.Found == NotFound {
		p.counters.Allocs++
	} else {
		since = 0 // its time of allocation and its thread are unknown
	}
	if !a.room(p, e.Time) {
		return
	}
	a.addBuffer(p, e, since)
	if e.Found != NotFound {
		countFound(p, e)
	}
}

// MaxProcessBuffers bounds the live buffers of a process, at some fifty times what large models have. maxBuffers
// bounds those of all processes.
const (
	MaxProcessBuffers = 512 << 10
	maxBuffers        = 2 << 20
)

// room reports whether a process can have another buffer. If not, it is marked.
func (a *Aggregator) room(p *process, at uint64) bool {
	reached := a.limits.reached(p.buffers.live, a.live)
	if reached != "" {
		p.raiseFor(exact.ReasonLimitReached, reached, at)
	}
	return reached == ""
}

// limits are these bounds; tests set lower ones.
type limits struct{ process, all int }

// reached says which limit forbids another buffer, if a process and all have that many; empty if none does.
func (l limits) reached(process, all int) string {
	switch {
	case all >= l.all:
		return fmt.Sprintf("%d buffers of all processes", l.all)
	case process >= l.process:
		return fmt.Sprintf("%d buffers of one process", l.process)
	}
	return ""
}

// addBuffer adds a buffer that was allocated at the time since, 0 where unknown.
func (a *Aggregator) addBuffer(p *process, e *Event, since uint64) {
	b := p.buffers.add(&buffer{
		id: e.Buffer, device: a.device(p, e.Device), allocator: e.Allocator,
		address: e.Address, size: e.Size, perBank: e.PerBank, pageSize: e.PageSize,
		time: since, stack: e.Stack, tid: e.TID, memory: e.Memory, layout: e.MemoryLayout,
	})
	if e.PerCore != "" {
		b.liesOn(e.PerCore)
	} else if al := p.allocators[e.Allocator]; al != nil {
		b.banks = uint16(al.banks[e.Memory].Count)
	}
	p.released.allocated(b)
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
		a.OnChange(Change{Time: e.Time, PID: p.pid, TID: e.TID, Stack: e.Stack, Buffer: b.snapshot(), Chips: b.device.opened.Chips})
	}
}

func (a *Aggregator) free(p *process, e *Event) {
	b := p.buffers.get(e.Buffer)
	if e.Found != NotFound {
		if b != nil {
			a.drop(p, b, e, true)
			countFound(p, e)
		}
		return
	}
	if b == nil && p.info.Late {
		return // the buffer is from before tracing, and that is still being read
	}
	if b == nil && a.freeReleased(p, e) {
		return
	}
	if b == nil {
		p.counters.UnmatchedFrees++
		if !p.has(exact.ReasonLimitReached) { // the free may be of a buffer that found no room
			a.suspect(p, exact.ReasonUnmatchedFree, e.Time)
		}
		if a.OnChange != nil {
			var chips []Chip
			if d := p.devices[e.Device]; d != nil {
				chips = d.opened.Chips
			}
			a.OnChange(Change{Time: e.Time, PID: p.pid, TID: e.TID, Stack: e.Stack, Freed: true, Unknown: true, Chips: chips,
				Buffer: BufferSnapshot{ID: e.Buffer, Chips: chips}})
		}
		return
	}
	p.counters.Frees++
	a.drop(p, b, e, false)
}

// count counts a buffer on the chips of its device, or as unplaced if these are unknown.
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

// uncount undoes count. Call it before anything changes on which count depends.
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

// learnBanks sets the number of banks of an allocator's buffers for which it was unknown.
func (a *Aggregator) learnBanks(p *process, e *Event, al *allocator) {
	for b := range p.buffers.all() {
		if n := uint16(al.banks[b.memory].Count); b.allocator == e.Allocator && b.banks == 0 && n != 0 {
			a.learnReserved(p, b, b.perBank, n, e.Time)
		}
	}
}

// sizeRead sets a live buffer's reserved size, which was unknown.
func (a *Aggregator) sizeRead(p *process, e *Event) {
	b := p.buffers.get(e.Buffer)
	switch {
	case b == nil || e.PerBank == 0 || e.PerBank > maxBytes || !e.PerCore.plausible():
		p.odd(e)
	case e.PerCore != "":
		a.learnPerCore(p, b, e.PerBank, e.PerCore, e.Time)
	default:
		a.learnReserved(p, b, e.PerBank, b.banks, e.Time)
	}
}

// learnReserved sets the bytes in each bank, and the number of banks, of a buffer for which they were unknown.
func (a *Aggregator) learnReserved(p *process, b *buffer, perBank uint64, banks uint16, at uint64) {
	p.uncount(b)
	b.perBank, b.banks = perBank, banks
	p.count(b)
	a.learned(p, b, at)
}

// learnPerCore does the same for a buffer of which it was not known that it has an address on each of its cores.
func (a *Aggregator) learnPerCore(p *process, b *buffer, perBank uint64, on PerCore, at uint64) {
	p.uncount(b)
	b.perBank = perBank
	b.liesOn(on)
	p.count(b)
	a.learned(p, b, at)
}

// liesOn sets the cores on which the buffer has an address each.
func (b *buffer) liesOn(cores PerCore) {
	if b.device.perCore == nil {
		b.device.perCore = map[uint64]PerCore{}
	}
	b.device.perCore[b.id] = cores
	b.perCore, b.banks, b.address = true, uint16(cores.Cores()), cores.Lowest()
}

// onCores is where the buffer lies if it has an address on each of its cores.
func (b *buffer) onCores() PerCore {
	if !b.perCore {
		return ""
	}
	return b.device.perCore[b.id]
}

// isAt reports whether the buffer lies where a scan found it, if both places are known.
func (b *buffer) isAt(h *LiveBuffer) bool {
	if b.perBank == 0 || h.PerBank == 0 { // where it lies on its cores may be unknown
		return b.address == h.Address || h.PerCore != "" || b.perCore
	}
	return b.address == h.Address && b.onCores() == h.PerCore
}

// learned reports that more is known about a live buffer.
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
			b.site.bound = exact.AtLeast // it counted on only one chip
		}
		p.checkPlaced(e.Time)
	}
	if implicit {
		p.counters.ImplicitFrees++
	}
	if a.OnChange != nil {
		stack := e.Stack
		if implicit {
			stack = nil // of another buffer's allocation
		}
		a.OnChange(Change{Time: e.Time, PID: p.pid, TID: e.TID, Stack: stack, Freed: true, Implicit: implicit,
			Missed: implicit && (e.Kind == Alloc || e.Found != NotFound), Exit: e.Kind == ProcessExit,
			Buffer: b.snapshot(), Chips: b.device.opened.Chips})
	}
	if b.perCore {
		delete(b.device.perCore, b.id)
	}
	p.buffers.remove(b.id)
}

// dropAll removes the buffers that match, as freed implicitly by an event of the kind by, and returns their number.
func (a *Aggregator) dropAll(p *process, by Kind, t uint64, match func(*buffer) bool) int {
	e := Event{Kind: by, Time: t, PID: p.pid}
	var ids []uint64
	for b := range p.buffers.all() {
		if match(b) {
			ids = append(ids, b.id)
		}
	}
	// Sort: the order must not depend on the hash index, so that callbacks are reproducible.
	slices.Sort(ids)
	for _, id := range ids {
		a.drop(p, p.buffers.get(id), &e, true)
	}
	return len(ids)
}
