package report

import (
	"slices"

	"tt-memtrace/aggregator"
	"tt-memtrace/export"
)

// maxRefusals bounds the failed allocations in a report: a program may retry for ever.
const maxRefusals = 200

// Refused explains a failed allocation by the live buffers at that moment.
func (b *Builder) Refused(e *aggregator.Event) {
	f := e.Refusal
	if f == nil {
		return
	}
	if len(b.refusals) >= maxRefusals {
		if f.Clash {
			b.omitted.Clashes++
		} else {
			b.omitted.OutOfMemory++
		}
		return
	}
	b.begin(e.Time)
	r := Refusal{
		At: b.seconds(e.Time), PID: e.PID, Kind: "out_of_memory", Memory: e.Memory.String(), Message: export.Text(f.Message),
		Asked: orNull(f.PerBank), Chips: []RefusedChip{}, Holders: []Site{},
	}
	if f.BankBytes > 0 {
		r.Free, r.Largest = &f.Free, &f.Largest
	}
	if f.Clash {
		r.Kind, r.End, r.Lowest = "clash", orNull(f.End), orNull(f.Lowest)
	}
	if e.Stack != nil {
		r.Where = known(where(e.Stack.Frames))
		for i := range e.Stack.Frames {
			r.Stack = append(r.Stack, export.Text(line(&e.Stack.Frames[i])))
		}
	}
	holders := map[*site]tally{}
	chips := b.chipsOf(e.PID)
	for k, h := range b.live {
		if h.site.memory != e.Memory || f.Clash && !(k.pid == e.PID && h.block.start < f.End) {
			continue
		}
		// Buffers of every process on the same chips count.
		if !slices.ContainsFunc(h.chips, func(c aggregator.Chip) bool { return slices.Contains(chips, c) }) {
			continue
		}
		t := holders[h.site]
		t.add(h.bytes)
		holders[h.site] = t
	}
	r.Holders = most(holders, manyHolders)
	slices.SortFunc(chips, compareChips)
	for _, c := range chips {
		rc := RefusedChip{Chip: c.Number}
		s := b.spaces[spaceKey{c, e.Memory}]
		if s == nil {
			s = &space{} // nothing is known of it
		}
		if n := uint64(s.banks.Count); n > 0 {
			rc.Allocated = s.used.bytes / n
		}
		if p, ok := s.free(); ok {
			rc.Free, rc.Largest = &p.free, &p.largest
		}
		r.Chips = append(r.Chips, rc)
	}
	b.refusals = append(b.refusals, r)
}

// chipsOf lists the chips that a process has open.
func (b *Builder) chipsOf(pid uint32) []aggregator.Chip {
	var list []aggregator.Chip
	for k, chips := range b.devices {
		for _, c := range chips {
			if k.pid == pid && !slices.Contains(list, c) {
				list = append(list, c)
			}
		}
	}
	return list
}

func orNull(n uint64) *uint64 {
	if n == 0 {
		return nil
	}
	return &n
}
