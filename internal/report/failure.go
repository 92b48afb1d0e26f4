package report

import (
	"cmp"
	"fmt"
	"slices"

	"tt-memtrace/aggregator"
	"tt-memtrace/internal/export"
)

// maxFailures bounds the failed allocations in a report: a program may retry for ever.
const maxFailures = 200

// AllocationFailed explains a failed allocation, or a program that could not be placed, by what was live at that
// moment.
func (b *Builder) AllocationFailed(e *aggregator.Event) {
	f := e.Failure
	if f == nil {
		return
	}
	if len(b.failures) >= maxFailures {
		b.omitted.add(f.Kind, 1)
		return
	}
	b.begin(e.Time)
	r := Failure{
		At: b.seconds(e.Time), PID: e.PID, Kind: f.Kind.String(), kind: f.Kind, Memory: MemoryName(e.Memory.String()), memory: e.Memory, Message: export.Text(f.Message),
		Asked: orNull(f.PerBank), End: orNull(f.End), Lowest: orNull(f.Lowest), Limit: orNull(f.Limit), Chips: []FailureChip{}, Holders: []Site{},
	}
	if f.BankKnown() {
		r.Allocated, r.Free, r.Largest = &f.Allocated, &f.Free, &f.Largest
	}
	if f.Kind == aggregator.ProgramTooLarge {
		r.Program = orNull(f.Asked)
	}
	if e.Stack != nil {
		r.Where, r.Stack = known(where(e.Stack)), lines(e.Stack)
	}
	if f.Kind.OfProgram() {
		r.CircularBuffers = b.placedBy(e.PID, e.Program)
	}
	var banks uint64
	if r.Held() {
		chips := b.chipsOf(e.PID)
		slices.SortFunc(chips, compareChips)
		r.Chips, banks = b.rooms(chips, e)
		r.Holders, r.Complete = b.holders(chips, e)
		r.Complete = r.Complete && (!f.BankKnown() || slices.ContainsFunc(r.Chips, func(c FailureChip) bool { return c.Allocated != nil && *c.Allocated >= f.Allocated }))
		for i := range r.Chips {
			if c := &r.Chips[i]; !r.Complete && (c.Allocated == nil || *c.Allocated == 0 || f.BankKnown() && *c.Allocated < f.Allocated) {
				*c = FailureChip{Chip: c.Chip, Private: c.Private} // not all that is allocated is known
			}
		}
	}
	r.Next = remedy(f, e.Memory, banks, len(r.Holders) > 0)
	b.failures = append(b.failures, r)
}

// rooms returns how full a memory of the chips is, and in how many banks.
func (b *Builder) rooms(chips []aggregator.Chip, e *aggregator.Event) (list []FailureChip, banks uint64) {
	f := e.Failure
	list = []FailureChip{}
	for _, c := range chips {
		rc := FailureChip{Chip: c.Number, Private: privateTo(c)}
		if s := b.spaces[spaceKey{c, e.Memory}]; s != nil && s.banks.Count > 0 {
			n := uint64(s.banks.Count)
			allocated := s.used.bytes / n
			rc.Allocated, banks = &allocated, max(banks, n)
			if p, ok := s.free(); f.BankKnown() && allocated == f.Allocated {
				// No other allocator holds this memory, so the runtime's own numbers are those of the chip. It
				// knows where a bank begins; the accounts only guess that from the buffers.
				rc.Free, rc.Largest = &f.Free, &f.Largest
			} else if ok {
				rc.Free, rc.Largest = &p.free, &p.largest
			}
		}
		list = append(list, rc)
	}
	return list, banks
}

// holders returns the sites that hold the memory or, in a clash, the colliding addresses. Buffers of every process on
// these chips count. complete: none is known to be missing.
func (b *Builder) holders(chips []aggregator.Chip, e *aggregator.Event) (list []Site, complete bool) {
	f := e.Failure
	clash := f.Kind == aggregator.Clash
	found := !clash || f.Lowest == 0 // the lowest buffer of a clash
	holders := map[*site]tally{}
	for k, h := range b.live {
		if h.site.memory != e.Memory || clash && !(k.pid == e.PID && h.lowest() < f.End) {
			continue
		}
		if !slices.ContainsFunc(h.chips, func(c aggregator.Chip) bool { return slices.Contains(chips, c) }) {
			continue
		}
		found = found || h.lowest() == f.Lowest
		t := holders[h.site]
		t.add(h.bytes)
		holders[h.site] = t
	}
	return most(holders, manyHolders), found && len(chips) > 0 && b.countsBuffers(e.PID)
}

// countsBuffers reports whether all buffers of a process are known to be counted, on the chips that they are on.
func (b *Builder) countsBuffers(pid uint32) bool {
	s := b.accounts.Snapshot()
	for i := range s.Processes {
		if p := &s.Processes[i]; p.PID == pid {
			return !p.Hidden.Buffers && !p.Hidden.Late && !slices.ContainsFunc(p.Unplaced[:], func(u aggregator.Usage) bool { return u.Buffers.Some() })
		}
	}
	return false
}

// placedBy returns the circular and dataflow buffers and scratchpads that a program has, the largest first. Those that
// several chips have alike are one.
func (b *Builder) placedBy(pid uint32, program uint64) (list []PlacedBuffer) {
	for _, pr := range b.accounts.Programs(pid) {
		if pr.ID != program {
			continue
		}
		for _, cb := range pr.Placed {
			one := PlacedBuffer{Kind: cb.Kind.String(), Address: cb.Address, Bytes: cb.Size, Cores: cb.Cores()}
			if !slices.Contains(list, one) {
				list = append(list, one)
			}
		}
	}
	slices.SortFunc(list, func(x, y PlacedBuffer) int {
		return cmp.Or(cmp.Compare(y.Bytes, x.Bytes), cmp.Compare(x.Address, y.Address), cmp.Compare(x.Kind, y.Kind))
	})
	return list[:min(len(list), maxPlaced)]
}

// maxPlaced bounds the buffers of a program in a report.
const maxPlaced = 64

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
// own numbers; "" if they do not say. listed: the buffers in the way are listed below.
func remedy(f *aggregator.FailedAllocation, m aggregator.Memory, banks uint64, listed bool) string {
	these, some := "L1 buffers", "buffers"
	if listed {
		these, some = "these L1 buffers", "some of the buffers below"
	}
	switch {
	case f.Kind == aggregator.Clash && f.Lowest > 0 && f.End > f.Lowest:
		return fmt.Sprintf("free %s first, put them into DRAM, or make the circular buffers of a core %s smaller", these, Size(f.End-f.Lowest))
	case f.Kind == aggregator.BeyondL1 && f.Limit > 0 && f.End > f.Limit:
		return fmt.Sprintf("make the circular buffers of a core %s smaller, or spread the work over more cores: freeing L1 buffers does not help", Size(f.End-f.Limit))
	case f.Kind == aggregator.ProgramTooLarge && f.Limit > 0 && f.Asked > f.Limit:
		return fmt.Sprintf("make its kernels and arguments %s smaller, or open the device with a smaller worker_l1_size, which leaves more to the ring", Size(f.Asked-f.Limit))
	case f.Kind != aggregator.OutOfMemory:
		return ""
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

func (c *FailureChip) place() (uint32, *uint32) { return c.Chip, c.Private }

func (p *printer) failures(r *Report) {
	if len(r.Failures) == 0 {
		return
	}
	p.heading("Failed allocations and programs")
	for i := range r.Failures[:min(shown, len(r.Failures))] {
		f := &r.Failures[i]
		p.line("  %s", p.style.paint(red, fmt.Sprintf("at %s, process %d: %s", seconds(f.At), f.PID, f.What())))
		p.failure(f, shown)
	}
	n := uint64(max(0, len(r.Failures)-shown))
	if omitted := r.FailuresOmitted.Number(); omitted > 0 {
		p.line("  … %d more, %d of them with --json", n+omitted, n)
	} else if n > 0 {
		p.line("  … %d more with --json", n)
	}
}

// failure explains a failed allocation, by so many of its holders.
func (p *printer) failure(f *Failure, holders int) {
	if f.Where != nil {
		p.line("    in %s", printable(*f.Where))
	}
	p.line("    runtime message: %s", printable(f.Message))
	if f.Asked != nil {
		p.line("    requested %s per bank", Size(*f.Asked))
	}
	if f.MessageOnly() {
		p.line("    per bank, by the message: %s", f.MessageRoom())
	}
	for _, group := range sameRoom(f.Chips) {
		p.line("    %s, per bank: %s", chipNames(group), group[0].room())
	}
	if f.Next != "" {
		p.line("    next: %s", f.Next)
	}
	if f.Held() {
		p.line("    %s", f.Holding())
		if f.Complete || len(f.Holders) > 0 {
			p.sites(f.Holders, holders, holderColumns(p.many))
		}
	}
	p.placed(f.CircularBuffers, holders)
}

// placed lists the buffers of a program.
func (p *printer) placed(list []PlacedBuffer, n int) {
	if len(list) == 0 {
		return
	}
	p.line("    the program's circular buffers, by size:")
	rows := [][]string{{"PER CORE", "CORES", "ADDRESS", "KIND"}}
	for _, c := range list[:min(n, len(list))] {
		rows = append(rows, []string{Size(c.Bytes), fmt.Sprint(c.Cores), fmt.Sprintf("%#x", c.Address), c.Kind})
	}
	p.table(rows)
	if more := len(list) - n; more > 0 {
		p.line("    … %d more with --json", more)
	}
}

// What describes what happened.
func (f *Failure) What() string { return f.kind.Describe(f.memory) }

// Held reports whether it is a failure because of what others held.
func (f *Failure) Held() bool { return f.kind == aggregator.OutOfMemory || f.kind == aggregator.Clash }

// MessageOnly reports whether the message says how full a bank was, and no chip is known to have been as full.
func (f *Failure) MessageOnly() bool {
	return f.Allocated != nil && !slices.ContainsFunc(f.Chips, func(c FailureChip) bool { return c.Allocated != nil && *c.Allocated == *f.Allocated })
}

// MessageRoom says how full a bank was, in the message's numbers.
func (f *Failure) MessageRoom() string {
	return (&FailureChip{Allocated: f.Allocated, Free: f.Free, Largest: f.Largest}).room()
}

// Holding introduces the list of holders, or says that it is unknown.
func (f *Failure) Holding() string {
	clash := f.End != nil && f.Lowest != nil
	switch {
	case !f.Complete && len(f.Holders) == 0:
		return "what was allocated at that moment is unknown: the process's buffers could not all be read"
	case !f.Complete && clash:
		return fmt.Sprintf("the circular buffers end at %#x; some of the L1 buffers below that, from %#x on, per chip (the others are unknown):", *f.End, *f.Lowest)
	case !f.Complete:
		return "a part of what was allocated at that moment, per chip (the rest is unknown):"
	case clash:
		return fmt.Sprintf("the circular buffers end at %#x; L1 buffers below that, from %#x on, per chip:", *f.End, *f.Lowest)
	}
	return "allocated at that moment, per chip:"
}

// room says how full the chip's banks were.
func (c *FailureChip) room() string {
	if c.Allocated == nil {
		return "unknown"
	}
	text := Size(*c.Allocated) + " allocated"
	if c.Free != nil {
		text += fmt.Sprintf(", %s free, largest free block %s", Size(*c.Free), Size(*c.Largest))
	}
	return text
}

// sameRoom groups the chips that were equally full.
func sameRoom(list []FailureChip) [][]*FailureChip { return grouped(list, (*FailureChip).room) }
