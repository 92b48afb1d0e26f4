package sampler

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"tt-memtrace/aggregator"
	"tt-memtrace/aggregator/exact"
	"tt-memtrace/internal/inspect"
	"tt-memtrace/internal/metal"
	"tt-memtrace/internal/proc"
)

func raised(pid uint32, code exact.ReasonCode, detail string) aggregator.Event {
	return aggregator.Event{Kind: aggregator.ReasonRaised, PID: pid, Time: proc.Now(), Reason: &aggregator.Reason{Code: code, Detail: detail}}
}

func lifted(pid uint32, code exact.ReasonCode) aggregator.Event {
	return aggregator.Event{Kind: aggregator.ReasonLifted, PID: pid, Time: proc.Now(), Reason: &aggregator.Reason{Code: code}}
}

func (p *process) raised(code exact.ReasonCode, detail string) aggregator.Event {
	return raised(p.pid, code, detail)
}

// markUnread marks a process whose memory could not be read, and says why.
func (r *run) markUnread(p *process, why string) {
	p.unread = true
	r.deliver([]aggregator.Event{p.raised(exact.ReasonScanFailed, why)})
}

// maxFailed is how many looks in a row must fail before the process is marked. One look can fail because the process changes
// its objects meanwhile.
const maxFailed = 3

// events returns what changed between this look and those before, as events in the order in which they apply.
func (p *process) events(l *look, names inspect.ChipNames, uses func(uint64) bool) (list []aggregator.Event) {
	add := func(e aggregator.Event) {
		e.PID, e.Time = p.pid, max(l.ended, l.at)
		list = append(list, e)
	}
	reason := func(raise bool, code exact.ReasonCode, detail string, chips ...aggregator.Chip) {
		kind := aggregator.ReasonLifted
		if raise {
			kind = aggregator.ReasonRaised
		}
		add(aggregator.Event{Kind: kind, Reason: &aggregator.Reason{Code: code, Detail: detail, Chips: chips}})
	}
	if l.gone {
		if p.shown {
			add(aggregator.Event{Kind: aggregator.ProcessExit})
		}
		return list
	}
	if !p.shown {
		info := p.info
		add(aggregator.Event{Kind: aggregator.ProcessStart, Process: &info})
	}
	first := !p.shown
	p.shown = true
	if l.idle {
		add(aggregator.Event{Kind: aggregator.AllocatorsScanned, Scan: &aggregator.AllocatorScan{BuffersOnly: p.did != p.searched, Began: l.at}})
		return list
	}
	p.did, p.rested = l.did, l.still
	if l.err != nil {
		p.whole = false
		if p.failed++; p.failed == maxFailed || first {
			p.unread = true
			reason(true, exact.ReasonScanFailed, l.err.Error())
		}
		return list
	}
	if l.host > 0 {
		add(aggregator.Event{Kind: aggregator.HostMemoryRead, Size: l.host})
	}
	if p.failed = 0; p.unread {
		p.unread = false
		reason(false, exact.ReasonScanFailed, "")
	}
	if l.search {
		if !first {
			p.searchCost = l.searchCost
		}
		p.devicesFound(l, names, uses, add)
	}
	scan := aggregator.AllocatorScan{First: first, BuffersOnly: !l.search, Began: l.at,
		BlocksDisagree: l.scan.Scan.BlocksDisagree, TotalsDisagree: l.scan.Scan.TotalsDisagree, PersistentL1: l.scan.Scan.PersistentL1, PersistentRead: l.scan.Scan.PersistentRead}
	if first {
		scan.Allocators, scan.Buffers = l.scan.Scan.Allocators, l.scan.Scan.Buffers
		for _, h := range scan.Buffers {
			p.buffers[h.Buffer] = &held{LiveBuffer: h, round: p.round}
		}
	} else {
		p.buffersFound(l, add)
	}
	var copies []aggregator.Event
	if l.search {
		copies = p.programsFound(l, add)
		if unsure := l.forkDetail != ""; unsure || p.unsure {
			p.unsure = unsure
			reason(unsure, exact.ReasonForked, l.forkDetail, p.chipsLeft(l, names, uses)...)
		}
	}
	p.ringsFound(l, add)
	scan.Partial = len(l.scan.UnreadAllocators) > 0 || len(l.scan.UnreadPrograms) > 0 || l.scan.Unsearched != nil
	p.whole = !scan.Partial && !scan.Contradicted() && !p.awaitsChips() && !p.awaitsPlaces()
	if l.search && p.whole && l.still {
		p.searched = l.did
	}
	add(aggregator.Event{Kind: aggregator.AllocatorsScanned, Scan: &scan})
	for _, e := range copies {
		add(e)
	}
	why := ""
	switch {
	case l.search && l.scan.Unsearched != nil:
		why = l.scan.Unsearched.Error()
	case !l.search && p.did != p.searched:
		why = "new devices and programs wait to be searched for"
	}
	if why != p.unsearched {
		p.unsearched = why
		if why != "" {
			reason(true, exact.ReasonScanTimeout, why)
		}
	}
	if first {
		reason(true, exact.ReasonSampled, "")
	}
	return list
}

// chipsLeft returns the chips of copied devices on which some objects may be the process's own. It returns nil, for all
// chips, if it is unknown which devices are copies.
func (p *process) chipsLeft(l *look, names inspect.ChipNames, uses func(uint64) bool) (chips []aggregator.Chip) {
	if len(l.scan.Unsure) > 0 {
		return nil
	}
	for _, device := range l.scan.Leftover.Devices() {
		chips = append(chips, l.opened[device].Chips(l.forkedFrom, names, uses)...)
	}
	return chips
}

// devicesFound emits events of new devices and allocators, and of those that were closed.
func (p *process) devicesFound(l *look, names inspect.ChipNames, uses func(uint64) bool, add func(aggregator.Event)) {
	for _, device := range p.openDevices() {
		if p.hasClosed(device, l.scan) {
			add(aggregator.Event{Kind: aggregator.DeviceClose, Device: device})
			p.rings.Drop(device)
			delete(p.devices, device)
		}
	}
	// The number of a mesh that was just opening or closing could not be read. Keep the one before, to compare it with the
	// next.
	maps.DeleteFunc(p.managers, func(device, _ uint64) bool { return !openIn(l.scan, device) })
	maps.Copy(p.managers, l.scan.Managers)
	read := map[uint64]bool{}
	for _, a := range l.scan.Scan.Allocators {
		read[a] = true
	}
	for _, a := range l.scan.UnreadAllocators {
		read[a] = true
	}
	for _, a := range p.allocators {
		if !read[a] {
			add(aggregator.Event{Kind: aggregator.AllocatorGone, Allocator: a})
			maps.DeleteFunc(p.buffers, func(_ uint64, h *held) bool { return h.Allocator == a })
		}
	}
	deviceOf := map[uint64]uint64{}
	for _, device := range slices.Sorted(maps.Keys(l.scan.Devices)) {
		allocator := l.scan.Devices[device]
		deviceOf[allocator] = device
		add(aggregator.Event{Kind: aggregator.DeviceOpen, Device: device, Opened: p.chips.Opened(l.opened[device], names, uses)})
		p.devices[device] = allocator
	}
	for device, allocator := range p.devices {
		if _, ok := deviceOf[allocator]; !ok {
			deviceOf[allocator] = device
		}
	}
	for _, h := range l.scan.Scan.Buffers {
		if _, ok := deviceOf[h.Allocator]; !ok {
			deviceOf[h.Allocator] = h.Device
		}
	}
	// An allocator whose device is unknown stays new until a search finds its device, because AllocatorSeen, with the
	// capacity, must precede its first buffer.
	p.allocators = slices.DeleteFunc(slices.Clone(p.allocators), func(a uint64) bool { return !read[a] })
	maps.DeleteFunc(p.sizes, func(a, _ uint64) bool { return !read[a] })
	for _, a := range l.scan.Scan.Allocators {
		c, isRead := l.capacities[a]
		device, ok := deviceOf[a]
		if known := slices.Contains(p.allocators, a); isRead && ok {
			add(aggregator.Event{Kind: aggregator.AllocatorSeen, Device: device, Allocator: a, Capacity: &c})
			if !known {
				p.allocators = append(p.allocators, a)
			}
			if c[aggregator.L1].Known {
				p.sizes[a] = c[aggregator.L1].Bytes
			}
		}
	}
	slices.Sort(p.allocators)
}

// hasClosed reports whether a device that was open has closed since, even if another one has opened at the same address.
func (p *process) hasClosed(device uint64, now *inspect.ProcessScan) bool {
	manager, read := now.Managers[device]
	before, known := p.managers[device]
	return !openIn(now, device) || read && known && manager != before
}

// meshesChanged reports whether a device has closed since, or a mesh has opened.
func (p *process) meshesChanged(now *inspect.ProcessScan) bool {
	for mesh := range now.Managers {
		if _, known := p.managers[mesh]; !known {
			return true
		}
	}
	return slices.ContainsFunc(p.openDevices(), func(d uint64) bool { return p.hasClosed(d, now) })
}

func openIn(scan *inspect.ProcessScan, device uint64) bool {
	_, open := scan.Devices[device]
	return open
}

// buffersFound emits events of freed buffers, then of new ones.
func (p *process) buffersFound(l *look, add func(aggregator.Event)) {
	read := map[uint64]bool{}
	for _, a := range l.scan.Scan.Allocators {
		read[a] = true
	}
	p.round++
	same := 0
	var changed []*aggregator.LiveBuffer
	for i := range l.scan.Scan.Buffers {
		h := &l.scan.Scan.Buffers[i]
		if old := p.buffers[h.Buffer]; old != nil && old.LiveBuffer == *h {
			old.round, old.confirmed = p.round, true
			same++
		} else {
			changed = append(changed, h)
		}
	}
	freed := func(id uint64) {
		add(aggregator.Event{Kind: aggregator.Free, Buffer: id})
		delete(p.buffers, id)
	}
	for _, h := range changed {
		if p.buffers[h.Buffer] != nil {
			freed(h.Buffer)
		}
	}
	if same < len(p.buffers) {
		for id, old := range p.buffers {
			if old.round != p.round && read[old.Allocator] {
				freed(id)
			}
		}
	}
	for _, h := range changed {
		p.buffers[h.Buffer] = &held{LiveBuffer: *h, round: p.round}
		p.used[h.Device] = true
		add(aggregator.Event{Kind: aggregator.Alloc, Memory: h.Memory, MemoryLayout: h.MemoryLayout, Device: h.Device, Allocator: h.Allocator, Buffer: h.Buffer,
			Address: h.Address, Size: h.Size, PageSize: h.PageSize, PerBank: h.PerBank, PerCore: h.PerCore})
	}
}

// programsFound emits events of destroyed programs, and of those that are new or could not be read before. It returns
// the events of copies of kernels: the buffers that hold these come first, at the first look with the scan.
func (p *process) programsFound(l *look, add func(aggregator.Event)) (copies []aggregator.Event) {
	if !l.scan.Scan.ProgramsRead {
		return nil
	}
	live := map[uint64]bool{}
	if len(l.scan.Devices) > 0 { // without devices, programs are on none; they are read again once one opens
		for _, id := range l.scan.Scan.Programs {
			live[id] = true
		}
	}
	before := map[uint64]program{}
	for id, was := range p.programs {
		if was.number == l.numbers[id] {
			before[id] = was
		}
	}
	// The chips of a program can no longer be read once its mesh has closed. Keep those that were read before.
	l.scan.Programs = slices.DeleteFunc(l.scan.Programs, func(now inspect.Program) bool {
		was := before[now.ID]
		return now.ChipsUnknown != nil && was.placed && was.chipsUnknown == nil
	})
	again := map[uint64]bool{}
	for _, program := range l.scan.Programs {
		again[program.ID] = true
	}
	for _, id := range slices.Sorted(maps.Keys(p.programs)) {
		if !live[id] || again[id] && p.programs[id].placed {
			add(aggregator.Event{Kind: aggregator.ProgramGone, Program: id})
			delete(p.programs, id)
		}
	}
	were, devices := p.unplaced, p.openDevices()
	p.unplaced = map[uint64]unplaced{}
	for _, id := range l.unplaced {
		if live[id] {
			p.unplaced[id] = were[id]
		}
	}
	for _, program := range l.scan.Programs {
		if slices.Contains(l.scan.UnreadPrograms, program.ID) {
			continue // the process was changing it; the next search reads it again
		}
		if len(program.Devices) == 0 {
			p.unplaced[program.ID] = unplaced{l.numbers[program.ID], program.State, devices}
			continue
		}
		p.calls++
		p.programs[program.ID] = programOf(l, program, before[program.ID])
		for _, k := range program.Kernels {
			add(aggregator.Event{Kind: aggregator.KernelAdded, Program: program.ID})
			for i := range l.kernels[k.ID] {
				for _, d := range program.Devices {
					add(aggregator.Event{Kind: aggregator.KernelLoaded, Program: program.ID, Device: d, Kernel: &l.kernels[k.ID][i]})
				}
			}
		}
		for _, c := range program.Copies {
			if p.buffers[c.Buffer] != nil {
				copies = append(copies, aggregator.Event{Kind: aggregator.KernelsCopied, Program: program.ID, Buffer: c.Buffer, Address: c.Address})
			}
		}
		for i := range program.Placed {
			c := &program.Placed[i]
			c.CB.Call = p.calls
			add(aggregator.Event{Kind: aggregator.CBPlaced, Device: c.Device, Program: program.ID, CB: &c.CB})
		}
	}
	why := "" // that of the first program with unknown chips
	for _, id := range slices.Sorted(maps.Keys(p.programs)) {
		if err := p.programs[id].chipsUnknown; err != nil {
			why = err.Error()
			break
		}
	}
	if why != p.chipsUnknown {
		p.chipsUnknown = why
		kind := aggregator.ReasonLifted
		if why != "" {
			kind = aggregator.ReasonRaised
		}
		add(aggregator.Event{Kind: kind, Reason: &aggregator.Reason{Code: exact.ReasonProgramChipsUnknown, Detail: why}})
	}
	n := len(l.scan.UnreadPrograms)
	if p.unreadLooks++; n == 0 {
		p.unreadLooks = 0
	}
	// A program that is being placed, or whose device is closing, cannot be read for a moment.
	if n > 0 && !p.noticed && (p.round == 0 || p.unreadLooks >= maxFailed) {
		l.notice = fmt.Sprintf("%d programs could not be read: %v", n, l.scan.Why)
	}
	return copies
}

// ringsFound emits events of kernel-config rings whose contents changed, and of those that can no longer be read.
func (p *process) ringsFound(l *look, add func(aggregator.Event)) {
	for _, device := range slices.Sorted(maps.Keys(l.rings)) {
		for _, shown := range p.rings.Changed(device, l.rings[device]) {
			add(aggregator.Event{Kind: aggregator.ConfigRingUsed, Device: device, ConfigRing: shown})
		}
	}
	why := aggregator.Reason{Code: exact.ReasonConfigRingUnread}
	for _, device := range slices.Sorted(maps.Keys(l.ringErrors)) {
		for _, shown := range p.rings.Unread(device) {
			add(aggregator.Event{Kind: aggregator.ConfigRingUsed, Device: device, ConfigRing: shown})
		}
		if err := l.ringErrors[device]; !errors.Is(err, metal.ErrUnsupported) {
			why.Detail = err.Error()
		}
	}
	unread := why.Detail != ""
	switch {
	case unread:
		add(aggregator.Event{Kind: aggregator.ReasonRaised, Reason: &why})
	case p.ringUnread:
		add(aggregator.Event{Kind: aggregator.ReasonLifted, Reason: &why})
	}
	p.ringUnread = unread
}

// awaitsChips reports whether a program must be read again to find its chips.
func (p *process) awaitsChips() bool {
	for _, one := range p.programs {
		if one.placed && one.again(p.did) {
			return true
		}
	}
	return false
}

// awaitsPlaces reports whether an unplaced program must be read again because other devices are open now.
func (p *process) awaitsPlaces() bool {
	devices := p.openDevices()
	for _, one := range p.unplaced {
		if !slices.Equal(one.devices, devices) {
			return true
		}
	}
	return false
}

func programOf(l *look, from inspect.Program, was program) program {
	tries := 0
	if was.did == l.did {
		tries = was.tries
	}
	if l.still {
		tries++
	}
	return program{number: l.numbers[from.ID], placed: true, chipsUnknown: from.ChipsUnknown, tries: tries, did: l.did}
}
