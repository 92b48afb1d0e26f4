package aggregator

import (
	"cmp"
	"slices"
)

// FreeSpace is the free space of one allocator in one memory: how much, and how
// fragmented.
type FreeSpace struct {
	PID    uint32
	Memory Memory
	// Chips of the allocator's device, the same on each; not to be changed.
	Chips []Chip
	// Free bytes of a chip, in all banks together. Largest is an upper bound of
	// the largest free block: the longest run of free addresses, times the
	// number of banks. The space below the first and above the last buffer
	// counts as one run, as the start of the bank is unknown.
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
		if p.knowsBuffers() {
			spaces = append(spaces, p.freeSpaces()...)
		}
	}
	slices.SortFunc(spaces, func(x, y FreeSpace) int {
		return cmp.Or(cmp.Compare(x.PID, y.PID), cmp.Compare(x.Memory, y.Memory), cmp.Compare(x.Largest, y.Largest))
	})
	return spaces, true
}

func (p *process) freeSpaces() []FreeSpace {
	type memory struct {
		allocator uint64
		memory    Memory
	}
	type span struct{ from, to uint64 }
	held := map[memory][]span{}
	chips := map[memory][]Chip{}
	unsure := map[memory]bool{}
	for b := range p.buffers.all() {
		m := memory{b.allocator, b.memory}
		if b.perBank == 0 && b.size != 0 || b.address > maxBytes || len(b.device.opened.Chips) == 0 {
			unsure[m] = true
			continue
		}
		held[m] = append(held[m], span{b.address, b.address + b.perBank})
		chips[m] = b.device.opened.Chips
	}
	var spaces []FreeSpace
	for m, spans := range held {
		al := p.allocators[m.allocator]
		if unsure[m] || al == nil || !al.banks[m.memory].Known {
			continue
		}
		slices.SortFunc(spans, func(x, y span) int { return cmp.Compare(x.from, y.from) })
		var used, hole uint64
		first, end := spans[0].from, spans[0].from
		for _, s := range spans {
			if s.from > end {
				hole = max(hole, s.from-end)
			}
			if s.to > end {
				used += s.to - max(s.from, end)
				end = s.to
			}
		}
		bank := al.banks[m.memory]
		if end-first > bank.Bytes {
			continue // more than the bank has: the process reported nonsense
		}
		count := uint64(bank.Count)
		spaces = append(spaces, FreeSpace{
			PID: p.pid, Memory: m.memory, Chips: chips[m],
			Free: (bank.Bytes - used) * count, Largest: max(hole, bank.Bytes-(end-first)) * count, Lowest: first,
		})
	}
	return spaces
}
