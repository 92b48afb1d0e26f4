package aggregator

import (
	"cmp"
	"maps"
	"slices"
)

// kindNames are the kinds' names for good: files hold them, so that the numbers may change.
var kindNames = map[Kind]string{
	ProcessStart: "process_start", ProcessExit: "process_exit", DeviceOpen: "device_open", DeviceClose: "device_close",
	AllocatorSeen: "allocator_seen", AllocatorGone: "allocator_gone", Alloc: "alloc", Free: "free",
	CBPlaced: "cb_placed", ProgramGone: "program_gone", KernelAdded: "kernel_added", KernelLoaded: "kernel_loaded",
	KernelsCopied: "kernels_copied", ProgramNamed: "program_named", Launched: "launched", BooksRead: "books_read", Replayed: "replayed", RingUsed: "ring_used",
	Counted: "counted", Haunted: "haunted", Refused: "refused", StateBegin: "state_begin", StateEnd: "state_end", Lost: "lost",
}

// String is the kind's name, or empty for none.
func (k Kind) String() string { return kindNames[k] }

// State is the accounts as events: applied to any accounts they make them the
// same as these, which then go on in the same way. No listener is told of them.
// They share nothing with the accounts that changes.
func (a *Aggregator) State() []Event {
	list := []Event{{Kind: StateBegin, Time: a.time}}
	totals := &Snapshot{Time: a.time, Counters: a.counters, Ended: slices.Clone(a.ended)}
	for _, pid := range slices.Sorted(maps.Keys(a.processes)) {
		p := a.processes[pid]
		list = p.state(list)
		ps := p.snapshot(true)
		ps.Late = p.late
		totals.Processes = append(totals.Processes, ps)
	}
	for _, c := range a.chips {
		cs := ChipSnapshot{Chip: c.id, Arch: c.arch, Board: c.board, CB: c.cb}
		for m := range c.memory {
			cs.Memory[m] = c.memory[m].usage(c.banks[m])
		}
		totals.Chips = append(totals.Chips, cs)
	}
	slices.SortFunc(totals.Chips, func(x, y ChipSnapshot) int { return x.Chip.compare(y.Chip) })
	return append(list, Event{Kind: StateEnd, Time: a.time, Totals: totals})
}

// state is one process's part of State: what it holds, but not what it once held.
func (p *process) state(list []Event) []Event {
	add := func(e Event) {
		e.PID = p.pid
		list = append(list, e)
	}
	info := p.info
	add(Event{Kind: ProcessStart, Time: p.since, Process: &info})
	addresses := map[*device]uint64{}
	for at, d := range p.devices {
		addresses[d] = at
	}
	// Wide ones first: what is placed on a part of them later replaces what was placed on all.
	devices := slices.SortedFunc(maps.Keys(addresses), func(x, y *device) int {
		return cmp.Or(cmp.Compare(len(y.shares), len(x.shares)), cmp.Compare(addresses[x], addresses[y]))
	})
	for _, d := range devices {
		if d.told {
			opened := d.opened
			add(Event{Kind: DeviceOpen, Time: p.since, Device: addresses[d], Opened: &opened})
		}
	}
	list = p.bufferState(list, addresses)
	for _, d := range devices {
		list = p.programState(list, addresses[d])
	}
	list = p.programNames(list)
	for _, id := range slices.Sorted(maps.Keys(p.rings)) {
		r := p.rings[id]
		now := r.Ring
		add(Event{Kind: RingUsed, Time: p.since, Device: r.device, Ring: &now})
	}
	for _, d := range devices {
		if d.closed {
			add(Event{Kind: DeviceClose, Time: p.since, Device: addresses[d]})
		}
	}
	for _, r := range p.replays {
		add(Event{Kind: Replayed, Time: r.last, Device: r.device, Trace: r.trace, Count: r.count})
	}
	return list
}

// bufferState lists the live buffers, each behind the capacity that it was allocated with.
func (p *process) bufferState(list []Event, addresses map[*device]uint64) []Event {
	held := slices.SortedFunc(p.buffers.all(), func(x, y *buffer) int {
		return cmp.Or(cmp.Compare(x.time, y.time), cmp.Compare(x.id, y.id))
	})
	told := map[uint64]Capacity{}
	seen := func(at, device uint64, c Capacity) {
		told[at] = c
		list = append(list, Event{Kind: AllocatorSeen, PID: p.pid, Time: p.since, Allocator: at, Device: device, Capacity: &c})
	}
	for d, at := range addresses {
		if !d.told && d.live == 0 {
			seen(0, at, Capacity{}) // known by its address only
		}
	}
	for _, b := range held {
		device := addresses[b.device]
		if c := told[b.allocator]; c[b.memory].Count != uint32(b.banks) {
			if al := p.allocators[b.allocator]; al != nil && al.banks[b.memory].Count == uint32(b.banks) {
				c = al.banks
			} else {
				c[b.memory] = Banks{Known: true, Count: uint32(b.banks)}
			}
			seen(b.allocator, device, c)
		}
		list = append(list, Event{
			Kind: Alloc, PID: p.pid, TID: b.tid, Time: b.time, Memory: b.memory, Layout: b.layout, Buffer: b.id,
			Device: device, Allocator: b.allocator, Address: b.address, Size: b.size, PerBank: b.perBank,
			PageSize: b.pageSize, Stack: b.stack,
		})
		if b.kernels {
			list = append(list, Event{Kind: KernelsCopied, PID: p.pid, Time: b.time, Buffer: b.id, Address: b.address})
		}
	}
	for _, at := range slices.Sorted(maps.Keys(p.allocators)) {
		if now := p.allocators[at].banks; now != told[at] {
			seen(at, 0, now)
		}
		delete(told, at)
	}
	for _, at := range slices.Sorted(maps.Keys(told)) {
		seen(at, 0, Capacity{}) // gone, or never heard of
	}
	return list
}

// programState lists what programs placed and loaded through a device.
func (p *process) programState(list []Event, device uint64) []Event {
	for _, id := range slices.Sorted(maps.Keys(p.programs)) {
		pr := p.programs[id]
		placed := map[CBKind]bool{}
		for at, l := range pr.on {
			if l.device != device || placed[at.kind] {
				continue
			}
			placed[at.kind] = true // the same on every chip of the device
			for _, cb := range l.cbs {
				list = append(list, Event{Kind: CBPlaced, PID: p.pid, TID: l.tid, Time: pr.since, Program: id, Device: device, CB: cb})
			}
		}
		for _, d := range pr.loaded {
			if d != device {
				continue
			}
			for _, k := range pr.kernels {
				list = append(list, Event{Kind: KernelLoaded, PID: p.pid, Time: pr.since, Program: id, Device: device, Kernel: k})
			}
			break
		}
	}
	return list
}

// programNames lists what is known of programs beside what they placed and loaded.
func (p *process) programNames(list []Event) []Event {
	for _, id := range slices.Sorted(maps.Keys(p.programs)) {
		pr := p.programs[id]
		if len(pr.loaded) == 0 {
			for _, k := range pr.kernels {
				list = append(list, Event{Kind: KernelLoaded, PID: p.pid, Time: pr.since, Program: id, Kernel: k})
			}
		}
		for range pr.added {
			list = append(list, Event{Kind: KernelAdded, PID: p.pid, Time: pr.since, Program: id})
		}
		if pr.operation != "" {
			list = append(list, Event{Kind: ProgramNamed, PID: p.pid, Time: pr.since, Program: id, Operation: pr.operation})
		}
		if pr.launches > 0 || pr.config > 0 {
			list = append(list, Event{Kind: Launched, PID: p.pid, Time: pr.launched, Program: id, Count: pr.launches, Size: pr.config})
		}
	}
	return list
}

// begin makes the accounts empty, and mute until the state is told.
func (a *Aggregator) begin() {
	fresh := New()
	fresh.muted = &listeners{a.OnChange, a.OnCBChange, a.OnKernelChange, a.OnRefused, a.OnDoubt}
	if a.muted != nil {
		fresh.muted = a.muted
	}
	*a = *fresh
}

// listeners wait for the end of a state.
type listeners struct {
	change func(Change)
	cb     func(CBChange)
	kernel func(KernelChange)
	refuse func(*Event)
	doubt  func(uint32)
}

// end books what no event of the state told: peaks, counters, what is gone.
func (a *Aggregator) end(t *Snapshot) {
	if a.muted == nil {
		return // there was no beginning
	}
	a.OnChange, a.OnCBChange, a.OnKernelChange = a.muted.change, a.muted.cb, a.muted.kernel
	a.OnRefused, a.OnDoubt = a.muted.refuse, a.muted.doubt
	a.muted = nil
	if t == nil {
		return
	}
	a.time, a.counters = t.Time, t.Counters
	a.ended = slices.Clone(t.Ended[max(0, len(t.Ended)-maxEnded):])
	for i := range t.Chips {
		cs := &t.Chips[i]
		c := a.chip(cs.Chip)
		c.arch, c.board = cs.Arch, cs.Board
		c.cb.peaked(cs.CB)
		for m, u := range cs.Memory {
			c.memory[m].peaked(u)
			c.banks[m] = u.Banks.plausible()
		}
	}
	for i := range t.Processes {
		ps := &t.Processes[i]
		p := a.processes[ps.PID]
		if p == nil {
			continue
		}
		p.since, p.last, p.late = ps.Since, ps.Last, ps.Late
		p.counters, p.agreement = ps.Counters, ps.Agreement
		for j := range ps.Chips {
			cs := &ps.Chips[j]
			s := a.share(p, cs.Chip)
			s.cb.usage.peaked(cs.CB)
			for m, u := range cs.Memory {
				s.memory[m].peaked(u)
				s.banks[m] = u.Banks.plausible()
			}
		}
		for m, u := range ps.Unplaced {
			p.unplaced[m].peaked(u)
		}
	}
}

// peaked takes the peaks over, which are at least what there is now.
func (a *account) peaked(u Usage) {
	a.peakRequested, a.peakReserved = max(u.PeakRequested, a.requested), max(u.PeakReserved, a.reserved)
	a.blurred = u.PeakUnsure || a.unreserved > 0
}

func (u *CBUsage) peaked(o CBUsage) {
	u.PeakPhysical, u.PeakLogical = max(o.PeakPhysical, u.Physical), max(o.PeakLogical, u.Logical)
}

func (b Banks) plausible() Banks {
	if b.Count > maxBanks || b.Bytes > maxBytes {
		return Banks{}
	}
	return b
}
