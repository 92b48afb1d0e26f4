package aggregator

import (
	"slices"
	"strconv"

	"tt-memtrace/aggregator/exact"
)

type chip struct {
	id    Chip
	arch  string
	board string
	// unique is its unique ID; 0 where unknown.
	unique uint64
	// cb sums the circular buffers of all processes, with peaks.
	cb     cbTotals
	kernel KernelTally
	memory [NumMemories]account
	// staleEntries are the runtime's, of exited processes.
	staleEntries []StaleEntry
	// banks is the last known capacity, shown while no process has the chip open.
	banks Capacity
}

// share is a process's part of a chip. It stays until the process exits, so
// that peaks outlast the device; open is false while no device spans the chip.
type share struct {
	chip   *chip
	open   bool
	memory [NumMemories]account
	banks  Capacity
	cb     cbAccount
	kernel KernelTally
}

type device struct {
	opened Opened
	// described is false for a device that is known only from its buffers.
	described bool
	closed    bool
	shares    []*share
	// live counts its buffers.
	live uint64
	// perCore is where those buffers lie that have an address on each core, by their addresses in the process.
	perCore map[uint64]PerCore
}

type allocator struct {
	banks Capacity
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
		// It was known only from its buffers, or could not be read.
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
	p.counters.AtLeast = p.counters.AtLeast || o.Late || p.info.Late
	if o.Late {
		p.sites.bound = exact.AtLeast
		p.raise(exact.ReasonLate, at)
	}
	p.checkPlaced(at)
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
		for _, s := range d.shares { // the peaks may have been higher while this buffer did not count
			s.memory[b.memory].doubtPeaks(exact.AtLeast)
			s.chip.memory[b.memory].doubtPeaks(exact.AtLeast)
		}
		a.learned(p, b, at)
	}
}

// share returns a process's part of a chip, a new one if need be.
func (a *Aggregator) share(p *process, id Chip) *share {
	i, found := p.find(id)
	if !found {
		s := &share{chip: a.chip(id)}
		p.shares = slices.Insert(p.shares, i, s)
		if p.info.Source == Sampled {
			// Between two samples it may hold more.
			doubtPeaks(&s.memory, exact.AtLeast)
			doubtPeaks(&s.chip.memory, exact.AtLeast)
			s.cb.doubtPeaks(exact.AtLeast)
			s.chip.cb.doubtPeaks(exact.AtLeast)
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
	al, old := &allocator{banks: e.Capacity.plausible()}, p.allocators[e.Allocator]
	p.allocators[e.Allocator] = al
	if a.muted == nil && (old == nil || old.banks != al.banks) { // a state has each buffer's size itself
		a.learnBanks(p, e, al)
	}
	d := a.device(p, e.Device)
	for _, s := range d.shares {
		shared := p.hasMesh(s, d)
		for m, b := range al.banks {
			if !b.Known {
				continue
			}
			s.chip.banks[m] = b
			is := &s.banks[m]
			switch {
			case d.opened.Mesh && !shared, old != nil && *is == old.banks[m], !is.Known:
				*is = b
			case !d.opened.Mesh && shared:
				// The mesh allocates in the chip's memory, and can have less of it than the chip's own allocator.
			case b.size() >= is.size():
				*is = b
			}
		}
	}
}

// hasMesh reports whether an open mesh, other than a device, spans a chip.
func (p *process) hasMesh(s *share, than *device) bool {
	for _, d := range p.devices {
		if d != than && d.opened.Mesh && !d.closed && slices.Contains(d.shares, s) {
			return true
		}
	}
	return false
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

// dropChips removes the chips of a private numbering once no process uses it. The host's own chips stay, even if
// empty.
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

// Ranges formats ascending numbers, such as chip numbers, as ranges: 0-7,12.
func Ranges(numbers []uint32) string {
	numbers = slices.Compact(slices.Clone(numbers))
	out := ""
	for i := 0; i < len(numbers); {
		j := i
		for j+1 < len(numbers) && numbers[j+1] == numbers[j]+1 {
			j++
		}
		if out != "" {
			out += ","
		}
		out += strconv.FormatUint(uint64(numbers[i]), 10)
		if j > i {
			out += "-" + strconv.FormatUint(uint64(numbers[j]), 10)
		}
		i = j + 1
	}
	return out
}
