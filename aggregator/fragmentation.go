package aggregator

import (
	"cmp"
	"slices"

	"tt-memtrace/aggregator/exact"
)

// FreeSpace is the free space of one allocator in one memory: how much, and how
// fragmented.
type FreeSpace struct {
	PID    uint32
	Memory Memory
	// Chips of the allocator's device, the same on each; not to be changed.
	Chips []Chip
	// Free bytes of a chip, in all banks together. Largest is the largest free
	// block: the longest run of addresses that are free in all banks, times the number
	// of banks. If the start of the bank is unknown, it is an upper bound: the space
	// below the first and above the last buffer counts as one run.
	Free, Largest uint64
	// Lowest address of a live buffer, in each bank.
	Lowest uint64
}

// FreeSpaces lists the allocators' free space in each memory that holds buffers. It leaves out unknown ones:
// processes whose buffers are not all known, and allocators with unknown banks or reserved sizes. It sorts all
// buffers, so if there are more than limit it does nothing and returns known as false.
func (a *Aggregator) FreeSpaces(limit int) (spaces []FreeSpace, known bool) {
	for _, p := range a.processes {
		if limit -= p.buffers.live; limit < 0 {
			return nil, false
		}
	}
	for _, p := range a.processes {
		if !Affected(p.reasons.list, exact.AffectsBuffers|exact.AffectsFrees) {
			spaces = append(spaces, p.freeSpaces()...)
		}
	}
	slices.SortFunc(spaces, func(x, y FreeSpace) int {
		return cmp.Or(cmp.Compare(x.PID, y.PID), cmp.Compare(x.Memory, y.Memory), cmp.Compare(x.Largest, y.Largest))
	})
	return spaces, true
}

// allocatorMemory is a memory of an allocator.
type allocatorMemory struct {
	allocator uint64
	memory    Memory
}

// heldBuffers are the buffers that an allocator has in one memory.
type heldBuffers struct {
	chips []Chip
	// extents of buffers with one address in every bank, and perCore of those with an address on each of their cores,
	// which take onCores bytes of a chip together.
	extents, perCore []Extent
	onCores          uint64
	// unsure: where one of them lies is unknown.
	unsure bool
}

func (p *process) heldBuffers() map[allocatorMemory]*heldBuffers {
	held := map[allocatorMemory]*heldBuffers{}
	for b := range p.buffers.all() {
		m := allocatorMemory{b.allocator, b.memory}
		h := held[m]
		if h == nil {
			h = &heldBuffers{}
			held[m] = h
		}
		if b.perBank == 0 && b.size != 0 || b.address > maxBytes || len(b.device.opened.Chips) == 0 {
			h.unsure = true
			continue
		}
		h.chips = b.device.opened.Chips
		extents := extentsOf(b.memory, b.address, b.perBank, b.onCores())
		if b.perCore {
			h.perCore, h.onCores = append(h.perCore, extents...), h.onCores+b.reserved()
		} else {
			h.extents = append(h.extents, extents...)
		}
	}
	return held
}

// shared adds to the buffers of a memory those with an address on each core that other allocators have on the same
// chips: a chip's own allocator has these, and a mesh's allocator takes from the same banks. An address is free for it
// if it is free on all cores.
func (h *heldBuffers) shared(m allocatorMemory, all map[allocatorMemory]*heldBuffers) (extents []Extent, onCores uint64, unsure bool) {
	extents, onCores = append(slices.Clone(h.extents), h.perCore...), h.onCores
	for of, o := range all {
		if of == m || of.memory != m.memory || !slices.ContainsFunc(o.chips, func(c Chip) bool { return slices.Contains(h.chips, c) }) {
			continue
		}
		if len(o.perCore) > 0 {
			extents, onCores = append(extents, o.perCore...), max(onCores, h.onCores+o.onCores)
		}
		unsure = unsure || o.unsure && len(o.extents) == 0
	}
	return extents, onCores, unsure
}

func (p *process) freeSpaces() []FreeSpace {
	held := p.heldBuffers()
	var spaces []FreeSpace
	for m, h := range held {
		al := p.allocators[m.allocator]
		if h.unsure || al == nil || !al.banks[m.memory].Known {
			continue
		}
		if len(h.extents) == 0 && h.sharesBanks(m, held) {
			continue // its free space has these
		}
		extents, onCores, unsure := h.shared(m, held)
		if unsure {
			continue
		}
		slices.SortFunc(extents, func(x, y Extent) int { return cmp.Compare(x.First, y.First) })
		var used, hole uint64
		first, end, lockstep := extents[0].First, extents[0].First, uint64(0)
		for _, e := range h.extents {
			lockstep += e.End - e.First
		}
		for _, e := range extents {
			if e.First > end {
				hole = max(hole, e.First-end)
			}
			if e.End > end {
				used += e.End - max(e.First, end)
				end = e.End
			}
		}
		bank := al.banks[m.memory]
		if end-first > bank.Bytes || bank.Based && (first < bank.Base || end-bank.Base > bank.Bytes) {
			continue // more than the bank has: the process reported nonsense
		}
		ends := bank.Bytes - (end - first)
		if bank.Based {
			ends = max(first-bank.Base, bank.Base+bank.Bytes-end)
		}
		count := uint64(bank.Count)
		free := (bank.Bytes - used) * count
		if onCores > 0 {
			free = bank.size() - min(bank.size(), lockstep*count+onCores)
		}
		spaces = append(spaces, FreeSpace{
			PID: p.pid, Memory: m.memory, Chips: h.chips,
			Free: free, Largest: max(hole, ends) * count, Lowest: first,
		})
	}
	return spaces
}

// sharesBanks reports whether another allocator, with buffers that have one address in every bank, takes from the same
// banks.
func (h *heldBuffers) sharesBanks(m allocatorMemory, all map[allocatorMemory]*heldBuffers) bool {
	for of, o := range all {
		if of != m && of.memory == m.memory && len(o.extents) > 0 && slices.ContainsFunc(o.chips, func(c Chip) bool { return slices.Contains(h.chips, c) }) {
			return true
		}
	}
	return false
}
