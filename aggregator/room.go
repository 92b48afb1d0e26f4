package aggregator

import (
	"cmp"
	"slices"
)

// Room is how broken up the free space of one memory is that one allocator
// hands out.
type Room struct {
	PID    uint32
	Memory Memory
	// Chips that it is the same on; not to be changed.
	Chips []Chip
	// Free bytes of a chip, in all banks together, and Largest, the longest run
	// of addresses among them that could be free, times the banks. Where the
	// buffers end at neither end of the bank, that run is shorter: which of both
	// sides is free is not known.
	Free, Largest uint64
}

// Rooms lists the memories that hold buffers. Left out is what is not known: of
// late and doubted processes, which hold other than the accounts have, and of allocators
// whose banks, or whose buffers' reserved sizes, are unknown. With more than
// limit buffers in all it is not worked out, and known is false: it sorts them.
func (a *Aggregator) Rooms(limit int) (rooms []Room, known bool) {
	for _, p := range a.processes {
		if limit -= p.buffers.live; limit < 0 {
			return nil, false
		}
	}
	for _, p := range a.processes {
		if !p.late && !p.info.Late && !p.agreement.Doubted {
			rooms = append(rooms, p.rooms()...)
		}
	}
	slices.SortFunc(rooms, func(x, y Room) int {
		return cmp.Or(cmp.Compare(x.PID, y.PID), cmp.Compare(x.Memory, y.Memory), cmp.Compare(x.Largest, y.Largest))
	})
	return rooms, true
}

func (p *process) rooms() []Room {
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
	var rooms []Room
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
			continue // more than there is: what the process tells is not true
		}
		count := uint64(bank.Count)
		rooms = append(rooms, Room{
			PID: p.pid, Memory: m.memory, Chips: chips[m],
			Free: (bank.Bytes - used) * count, Largest: max(hole, bank.Bytes-(end-first)) * count,
		})
	}
	return rooms
}
