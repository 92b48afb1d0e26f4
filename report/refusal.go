package report

import (
	"fmt"
	"slices"

	"tt-memtrace/aggregator"
	"tt-memtrace/export"
)

// maxRefusals bounds the failed allocations in a report: a program may retry for ever.
const maxRefusals = 200

// AllocationFailed explains a failed allocation by the buffers that were live at that moment.
func (b *Builder) AllocationFailed(e *aggregator.Event) {
	f := e.Failure
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
		r.Where, r.Stack = known(where(e.Stack)), lines(e.Stack)
	}
	holders := map[*site]tally{}
	chips := b.chipsOf(e.PID)
	for k, h := range b.live {
		if h.site.memory != e.Memory || f.Clash && !(k.pid == e.PID && h.lowest() < f.End) {
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
	var banks uint64
	for _, c := range chips {
		rc := RefusedChip{Chip: c.Number, Private: privateTo(c)}
		s := b.spaces[spaceKey{c, e.Memory}]
		if s == nil {
			s = &space{} // nothing is known of it
		}
		if n := uint64(s.banks.Count); n > 0 {
			rc.Allocated, banks = s.used.bytes/n, max(banks, n)
		}
		if p, ok := s.free(); f.BankBytes > 0 && rc.Allocated == f.Allocated {
			// No other allocator holds this memory, so the runtime's own numbers are those of the chip. It
			// knows where a bank begins; the accounts only guess that from the buffers.
			rc.Free, rc.Largest = &f.Free, &f.Largest
		} else if ok {
			rc.Free, rc.Largest = &p.free, &p.largest
		}
		r.Chips = append(r.Chips, rc)
	}
	r.Next = remedy(f, e.Memory, banks, true)
	b.refusals = append(b.refusals, r)
}

// Next returns what helps against a failed allocation, in a report's words but without a list of holders; "" if
// unknown. s is a snapshot of that moment.
func Next(s *aggregator.Snapshot, e *aggregator.Event) string {
	if e.Memory >= aggregator.NumMemories {
		return ""
	}
	var banks uint64
	for i := range s.Processes {
		for _, c := range s.Processes[i].Chips {
			if b := c.Memory[e.Memory].Banks; s.Processes[i].PID == e.PID && b.Known {
				banks = max(banks, uint64(b.Count))
			}
		}
	}
	return remedy(e.Failure, e.Memory, banks, false)
}

// remedy returns what helps against a failed allocation in a memory of so many banks (0: unknown), by the runtime's
// own numbers; "" if they do not tell. listed: the buffers in the way are listed below.
func remedy(f *aggregator.FailedAllocation, m aggregator.Memory, banks uint64, listed bool) string {
	these, some := "L1 buffers", "buffers"
	if listed {
		these, some = "these L1 buffers", "some of the buffers below"
	}
	if f.Clash {
		if f.End <= f.Lowest || f.Lowest == 0 {
			return ""
		}
		return fmt.Sprintf("free %s first, put them into DRAM, or make the circular buffers of a core %s smaller", these, Size(f.End-f.Lowest))
	}
	helps := "make it smaller"
	switch m {
	case aggregator.L1:
		helps += " or put it into DRAM"
	case aggregator.L1Small:
		helps = "raise l1_small_size"
	case aggregator.Trace:
		helps = "raise trace_region_size"
	}
	if f.Banks > 0 && f.Banks < banks {
		helps += fmt.Sprintf(", or spread it over more than %d of the %d banks", f.Banks, banks)
	}
	switch {
	case f.PerBank == 0 || f.BankBytes == 0:
		return ""
	case f.PerBank > f.BankBytes:
		return fmt.Sprintf("it is larger than a whole bank (%s), so freeing does not help: %s", Size(f.BankBytes), helps)
	case f.PerBank > f.Free:
		return "too little is free: free " + some + " first, or " + helps
	case f.PerBank > f.Largest:
		return "enough is free, but not in one piece: free what lies in between (view map), allocate this one earlier, or " + helps
	}
	return ""
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

func (c *RefusedChip) place() (uint32, *uint32) { return c.Chip, c.Private }

func (p *printer) refusals(r *Report) {
	if len(r.Refusals) == 0 {
		return
	}
	p.heading("Out of memory and L1 clashes")
	for i := range r.Refusals[:min(shown, len(r.Refusals))] {
		f := &r.Refusals[i]
		p.line("  %s", p.style.paint(red, fmt.Sprintf("at %s, process %d: %s", seconds(f.At), f.PID, f.What())))
		p.refusal(f, shown)
	}
	n := uint64(max(0, len(r.Refusals)-shown))
	if omitted := r.RefusalsOmitted.Number(); omitted > 0 {
		p.line("  … %d more, %d of them with --json", n+omitted, n)
	} else if n > 0 {
		p.line("  … %d more with --json", n)
	}
}

// refusal explains a failed allocation, by so many of its holders.
func (p *printer) refusal(f *Refusal, holders int) {
	if f.Where != nil {
		p.line("    in %s", printable(*f.Where))
	}
	p.line("    runtime message: %s", printable(f.Message))
	if f.Asked != nil {
		p.line("    requested %s per bank", Size(*f.Asked))
	}
	for _, group := range sameRoom(f.Chips) {
		p.line("    %s, per bank: %s", chipNames(group), group[0].room())
	}
	if f.Next != "" {
		p.line("    next: %s", f.Next)
	}
	p.line("    %s", f.Holding())
	p.sites(f.Holders, holders, holderColumns(p.many))
}

// What describes what happened.
func (f *Refusal) What() string {
	if f.Kind == "clash" {
		return "circular buffers clash with L1 buffers"
	}
	return "out of memory in " + f.Memory
}

// Holding introduces the list of holders.
func (f *Refusal) Holding() string {
	if f.End != nil && f.Lowest != nil {
		return fmt.Sprintf("the circular buffers end at %#x; L1 buffers below that, from %#x on, per chip:", *f.End, *f.Lowest)
	}
	return "allocated at that moment, per chip:"
}

// room says how full the chip's banks were.
func (c *RefusedChip) room() string {
	text := Size(c.Allocated) + " allocated"
	if c.Free != nil {
		text += fmt.Sprintf(", %s free, largest free block %s", Size(*c.Free), Size(*c.Largest))
	}
	return text
}

// sameRoom groups the chips that were equally full.
func sameRoom(list []RefusedChip) [][]*RefusedChip { return grouped(list, (*RefusedChip).room) }
