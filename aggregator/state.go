package aggregator

import (
	"cmp"
	"maps"
	"slices"

	"tt-memtrace/aggregator/exact"
)

// kindNames are in recordings and must not change; the kinds' numbers may.
var kindNames = map[Kind]string{
	ProcessStart: "process_start", ProcessExit: "process_exit", DeviceOpen: "device_open", DeviceClose: "device_close",
	AllocatorSeen: "allocator_seen", AllocatorGone: "allocator_gone", Alloc: "alloc", Free: "free",
	CBPlaced: "cb_placed", ProgramGone: "program_gone", ProgramNotOn: "program_not_on_device", KernelAdded: "kernel_added", KernelLoaded: "kernel_loaded",
	KernelsCopied: "kernels_copied", ProgramNamed: "program_named", Launched: "launched",
	Compared: "compared", SizeRead: "size_read", Scanned: "scanned", Replayed: "replayed",
	TraceBegun: "trace_begun", TraceCaptured: "trace_captured", TraceReleased: "trace_released", MarkedCorruptible: "marked_corruptible", HostMemoryRead: "host_memory_read", ConfigRingUsed: "config_ring_used",
	RuntimeTotalsChanged: "runtime_totals_changed", StaleEntriesChanged: "stale_entries_changed", AllocationFailed: "allocation_failed", ReasonRaised: "reason_raised", ReasonLifted: "reason_lifted", StateBegin: "state_begin", StateEnd: "state_end", Lost: "lost",
}

// String is the kind's name, or empty for none.
func (k Kind) String() string { return kindNames[k] }

// State returns the accounts as events. Applied to any Aggregator, they make its accounts equal to these, without
// calling its callbacks. The events share no mutable data with the accounts.
func (a *Aggregator) State() []Event {
	list := []Event{{Kind: StateBegin, Time: a.time}}
	totals := &Snapshot{Time: a.time, Counters: a.counters, Ended: slices.Clone(a.ended), Reasons: a.reasons.snapshot()}
	for _, pid := range slices.Sorted(maps.Keys(a.processes)) {
		p := a.processes[pid]
		list = p.state(list)
		totals.Processes = append(totals.Processes, p.snapshot(true))
	}
	for _, c := range a.chips {
		cs := ChipSnapshot{Chip: c.id, Arch: c.arch, Board: c.board, UniqueID: c.unique, CB: EmptyCBUsage()}
		c.cb.setPeaks(&cs.CB)
		for m := range c.memory {
			cs.Memory[m] = c.memory[m].usage(c.banks[m])
		}
		totals.Chips = append(totals.Chips, cs)
	}
	slices.SortFunc(totals.Chips, func(x, y ChipSnapshot) int { return x.Chip.compare(y.Chip) })
	return append(list, Event{Kind: StateEnd, Time: a.time, Totals: totals})
}

// state appends one process's part of State: what it holds, without totals and peaks.
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
	// Devices with the most chips first: what is placed later on some of the chips replaces it there.
	devices := slices.SortedFunc(maps.Keys(addresses), func(x, y *device) int {
		return cmp.Or(cmp.Compare(len(y.shares), len(x.shares)), cmp.Compare(addresses[x], addresses[y]))
	})
	for _, d := range devices {
		if d.described {
			opened := d.opened
			add(Event{Kind: DeviceOpen, Time: p.since, Device: addresses[d], Opened: &opened})
		}
	}
	if p.host.bytes > 0 {
		add(Event{Kind: HostMemoryRead, Time: p.since, Size: p.host.bytes})
	}
	for _, b := range p.released.list() {
		add(Event{Kind: AllocatorGone, Time: p.since, Allocator: b.Allocator, Buffer: b.Buffer,
			Address: b.Address, Memory: b.Memory})
	}
	list = p.bufferState(list, addresses)
	for _, d := range devices {
		list = p.programState(list, addresses[d])
	}
	list = p.kernelState(list)
	list = p.programNames(list)
	for _, id := range slices.Sorted(maps.Keys(p.rings)) {
		r := p.rings[id]
		now := r.ConfigRing
		add(Event{Kind: ConfigRingUsed, Time: p.since, Device: r.device, ConfigRing: &now})
	}
	for _, d := range devices {
		if d.closed {
			add(Event{Kind: DeviceClose, Time: p.since, Device: addresses[d]})
		}
	}
	return list
}

// bufferState appends the live buffers, each after the capacity that it was allocated with,
// and what happened to traces in between.
func (p *process) bufferState(list []Event, addresses map[*device]uint64) []Event {
	held := slices.SortedFunc(p.buffers.all(), func(x, y *buffer) int {
		return cmp.Or(cmp.Compare(x.time, y.time), cmp.Compare(x.id, y.id))
	})
	sent := map[uint64]Capacity{}
	seen := func(at, device uint64, c Capacity) {
		sent[at] = c
		list = append(list, Event{Kind: AllocatorSeen, PID: p.pid, Time: p.since, Allocator: at, Device: device, Capacity: &c})
	}
	for d, at := range addresses {
		if !d.described && d.live == 0 {
			seen(0, at, Capacity{}) // known only by its address
		}
	}
	traces := p.traceState()
	for _, b := range held {
		for len(traces) > 0 && traces[0].Time < b.time {
			list, traces = append(list, traces[0]), traces[1:]
		}
		device := addresses[b.device]
		if c := sent[b.allocator]; !b.perCore && c[b.memory].Count != uint32(b.banks) {
			if al := p.allocators[b.allocator]; al != nil && al.banks[b.memory].Count == uint32(b.banks) {
				c = al.banks
			} else {
				c[b.memory] = Banks{Known: true, Count: uint32(b.banks)}
			}
			seen(b.allocator, device, c)
		}
		var unsafe *Unsafe
		if u := b.unsafety(); u.Found {
			unsafe = &u
		}
		list = append(list, Event{
			Kind: Alloc, PID: p.pid, TID: b.tid, Time: b.time, Memory: b.memory, MemoryLayout: b.layout, Buffer: b.id,
			Device: device, Allocator: b.allocator, Address: b.address, Size: b.size, PerBank: b.perBank,
			PageSize: b.pageSize, Stack: b.stack, Unsafe: unsafe, PerCore: b.onCores(),
		})
		if b.unsafe == markedCorruptible {
			list = append(list, Event{Kind: MarkedCorruptible, PID: p.pid, Time: b.time, Buffer: b.id})
		}
		if b.kernels {
			list = append(list, Event{Kind: KernelsCopied, PID: p.pid, Time: b.time, Buffer: b.id, Address: b.address})
		}
	}
	list = append(list, traces...)
	for _, at := range slices.Sorted(maps.Keys(p.allocators)) {
		if now := p.allocators[at].banks; now != sent[at] {
			seen(at, 0, now)
		}
		delete(sent, at)
	}
	for _, at := range slices.Sorted(maps.Keys(sent)) {
		seen(at, 0, Capacity{}) // destroyed, or never described
	}
	return list
}

// programState appends what programs placed through a device.
func (p *process) programState(list []Event, device uint64) []Event {
	for _, id := range slices.Sorted(maps.Keys(p.programs)) {
		pr := p.programs[id]
		placed := map[CBKind]bool{}
		for _, at := range pr.placements() {
			l := pr.on[at]
			if l.device != device || placed[at.kind] {
				continue
			}
			placed[at.kind] = true // the same on every chip of the device
			for _, cb := range l.cbs {
				list = append(list, Event{Kind: CBPlaced, PID: p.pid, TID: l.tid, Time: pr.since, Program: id, Device: device, CB: cb})
			}
		}
	}
	return list
}

// kernelState appends the loaded kernels. A kernel's chips belong to the first device through which it is loaded, so
// the devices' order must leave each its own chips.
func (p *process) kernelState(list []Event) []Event {
	for _, id := range slices.Sorted(maps.Keys(p.programs)) {
		pr := p.programs[id]
		left := slices.Compact(slices.Sorted(maps.Values(pr.loaded)))
		for len(left) > 0 {
			next := max(0, slices.IndexFunc(left, func(device uint64) bool {
				return !slices.ContainsFunc(p.devices[device].shares, func(s *share) bool {
					has, loaded := pr.loaded[s]
					return loaded && has != device && slices.Contains(left, has)
				})
			}))
			for _, k := range pr.kernels {
				list = append(list, Event{Kind: KernelLoaded, PID: p.pid, Time: pr.since, Program: id, Device: left[next], Kernel: k})
			}
			left = slices.Delete(left, next, next+1)
		}
	}
	return list
}

// programNames appends what is known of programs beside what they placed and loaded.
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

// begin makes the accounts empty, and mutes the callbacks until the state is complete.
func (a *Aggregator) begin() {
	fresh := New()
	fresh.callSite = a.callSite
	fresh.muted = &listeners{a.OnChange, a.OnLearned, a.OnCBChange, a.OnKernelChange, a.OnUnsafe, a.OnAllocationFailed, a.OnSuspect}
	if a.muted != nil {
		fresh.muted = a.muted
	}
	*a = *fresh
}

// listeners are the callbacks that are restored at StateEnd.
type listeners struct {
	change  func(Change)
	learned func(Change)
	cb      func(CBChange)
	kernel  func(KernelChange)
	unsafe  func(Change)
	failed  func(*Event)
	suspect func(uint32)
}

// end sets what a state's events do not carry: peaks, counters, ended processes.
func (a *Aggregator) end(t *Snapshot) {
	if a.muted == nil {
		return // without a StateBegin
	}
	a.OnChange, a.OnLearned = a.muted.change, a.muted.learned
	a.OnCBChange, a.OnKernelChange = a.muted.cb, a.muted.kernel
	a.OnUnsafe, a.OnAllocationFailed, a.OnSuspect = a.muted.unsafe, a.muted.failed, a.muted.suspect
	a.muted = nil
	if t == nil {
		return
	}
	a.time, a.counters = t.Time, t.Counters
	a.reasons.set(t.Reasons, maxHostReasons)
	a.ended, a.shown = slices.Clone(t.Ended[max(0, len(t.Ended)-maxEnded):]), nil
	for i := range t.Chips {
		cs := &t.Chips[i]
		c := a.chip(cs.Chip)
		c.arch, c.board, c.unique = cs.Arch, cs.Board, cs.UniqueID
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
		p.since, p.last = ps.Since, ps.Last
		p.sites.bound = exact.AtLeast // a state has no peaks of sites
		p.counters, p.agreement, p.host, p.launched = ps.counters, ps.Agreement, ps.HostMemory, ps.LastLaunch
		p.reasons.set(ps.Reasons, maxProcessReasons)
		for j := range ps.Chips {
			cs := &ps.Chips[j]
			s := a.share(p, cs.Chip)
			s.cb.peaked(cs.CB)
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

func (b Banks) plausible() Banks {
	if b.Count > maxBanks || b.Bytes > maxBytes || b.Base > maxBytes {
		return Banks{}
	}
	return b
}

// plausible returns the capacity without the memories that no chip has.
func (c Capacity) plausible() Capacity {
	for m := range c {
		c[m] = c[m].plausible()
	}
	return c
}
