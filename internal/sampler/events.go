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
	"tt-memtrace/internal/plural"
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
// its objects during it.
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
		add(aggregator.Event{Kind: aggregator.Compared, Comparison: &aggregator.Comparison{
			BuffersOnly: p.did != p.searched, Began: l.at, Buffers: uint64(len(p.buffers))}})
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
	scan := l.scan.Scan
	scan.First, scan.BuffersOnly, scan.Began = first, !l.search, l.at
	if l.search {
		if !first {
			p.searchCost = l.searchCost
		}
		p.devicesFound(l, names, uses, &scan)
	}
	p.keepBuffers(&scan)
	if l.search {
		p.programsFound(l, &scan)
		scan.Settles = append(scan.Settles, exact.ReasonForked)
		if l.forkDetail != "" {
			why := aggregator.Reason{Code: exact.ReasonForked, Detail: l.forkDetail, Chips: p.chipsLeft(l, names, uses)}
			scan.Reasons = append(scan.Reasons, why)
		}
	}
	scan.Partial = len(l.scan.UnreadAllocators) > 0 || len(l.scan.UnreadPrograms) > 0 || l.scan.Unsearched != nil
	p.whole = !scan.Partial && !scan.Contradicted() && !p.awaitsChips() && !p.awaitsPlaces()
	if l.search && p.whole && l.still {
		p.searched = l.did
	}
	add(aggregator.Event{Kind: aggregator.Scanned, Scan: &scan})
	p.ringsFound(l, add)
	why := ""
	switch {
	case l.search && l.scan.Unsearched != nil:
		why = l.scan.Unsearched.Error()
	case !l.search && p.did != p.searched:
		why = "it is not yet searched for new devices and programs"
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

// devicesFound adds to a search's scan which devices have closed, and which devices and allocators are there now.
func (p *process) devicesFound(l *look, names inspect.ChipNames, uses func(uint64) bool, scan *aggregator.Scan) {
	for _, device := range p.openDevices() {
		if p.hasClosed(device, l.scan) {
			scan.Closed = append(scan.Closed, device)
			p.rings.Drop(device)
			delete(p.devices, device)
		}
	}
	// The number of a mesh that was just opening or closing could not be read. Keep the previous number, to compare it with the
	// next.
	maps.DeleteFunc(p.managers, func(device, _ uint64) bool { return !openIn(l.scan, device) })
	maps.Copy(p.managers, l.scan.Managers)
	scan.LiveRead, scan.Live = true, slices.Concat(scan.Allocators, l.scan.UnreadAllocators)
	deviceOf := map[uint64]uint64{}
	for _, device := range slices.Sorted(maps.Keys(l.scan.Devices)) {
		allocator := l.scan.Devices[device]
		deviceOf[allocator] = device
		opened := p.chips.Opened(l.opened[device], names, uses)
		scan.Devices = append(scan.Devices, aggregator.ScannedDevice{Device: device, Opened: *opened})
		p.devices[device] = allocator
	}
	for device, allocator := range p.devices {
		if _, ok := deviceOf[allocator]; !ok {
			deviceOf[allocator] = device
		}
	}
	for i := range scan.Buffers {
		h := &scan.Buffers[i]
		if _, ok := deviceOf[h.Allocator]; !ok {
			deviceOf[h.Allocator] = h.Device
		}
	}
	// An allocator whose device is unknown stays new until a search finds its device, because its capacity must
	// precede its first buffer.
	ended := func(a uint64) bool { return !slices.Contains(scan.Live, a) }
	p.allocators = slices.DeleteFunc(slices.Clone(p.allocators), ended)
	maps.DeleteFunc(p.sizes, func(a, _ uint64) bool { return ended(a) })
	for _, a := range scan.Allocators {
		c, isRead := l.capacities[a]
		device, ok := deviceOf[a]
		if !isRead || !ok {
			continue
		}
		scan.Sizes = append(scan.Sizes, aggregator.ScannedCapacity{Allocator: a, Device: device, Capacity: c})
		if !slices.Contains(p.allocators, a) {
			p.allocators = append(p.allocators, a)
		}
		if c[aggregator.L1].Known {
			p.sizes[a] = c[aggregator.L1].Bytes
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

// keepBuffers keeps the buffers that were read, to read their reserved sizes only until two looks have found the same.
func (p *process) keepBuffers(scan *aggregator.Scan) {
	if !scan.First {
		p.round++
	}
	same := 0
	for i := range scan.Buffers {
		h := &scan.Buffers[i]
		old := p.buffers[h.Buffer]
		if old != nil && old.LiveBuffer == *h {
			old.round, old.confirmed = p.round, true
			same++
			continue
		}
		p.buffers[h.Buffer] = &held{LiveBuffer: *h, round: p.round}
		if !scan.First {
			p.used[h.Device] = true
		}
	}
	if same < len(p.buffers) {
		maps.DeleteFunc(p.buffers, func(_ uint64, old *held) bool {
			gone := scan.LiveRead && !slices.Contains(scan.Live, old.Allocator)
			return old.round != p.round && (gone || slices.Contains(scan.Allocators, old.Allocator))
		})
	}
}

// programsFound adds to a search's scan the programs that are new or could not be read before.
func (p *process) programsFound(l *look, scan *aggregator.Scan) {
	if !scan.ProgramsRead {
		return
	}
	if len(l.scan.Devices) == 0 { // then programs are on none; they are read again once one opens
		scan.Programs = nil
	}
	live := map[uint64]bool{}
	for _, id := range scan.Programs {
		live[id] = true
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
	placed := map[uint64]bool{}
	for _, program := range l.scan.Programs {
		placed[program.ID] = p.programs[program.ID].placed
	}
	maps.DeleteFunc(p.programs, func(id uint64, _ program) bool { return !live[id] || placed[id] })
	were, devices := p.unplaced, p.openDevices()
	p.unplaced = map[uint64]unplaced{}
	for _, id := range l.unplaced {
		if live[id] {
			p.unplaced[id] = were[id]
		}
	}
	for _, program := range l.scan.Programs {
		s := aggregator.ScannedProgram{ID: program.ID, Replaces: placed[program.ID]}
		switch {
		case slices.Contains(l.scan.UnreadPrograms, program.ID):
			// The process was changing it; the next search reads it again.
		case len(program.Devices) == 0:
			p.unplaced[program.ID] = unplaced{l.numbers[program.ID], program.State, devices}
		default:
			p.programs[program.ID] = programOf(l, program, before[program.ID])
			p.describeProgram(&s, l, &program)
		}
		scan.Read = append(scan.Read, s)
	}
	why := "" // that of the first program with unknown chips
	for _, id := range slices.Sorted(maps.Keys(p.programs)) {
		if err := p.programs[id].chipsUnknown; err != nil {
			why = err.Error()
			break
		}
	}
	scan.Settles = append(scan.Settles, exact.ReasonProgramChipsUnknown)
	if why != "" {
		scan.Reasons = append(scan.Reasons, aggregator.Reason{Code: exact.ReasonProgramChipsUnknown, Detail: why})
	}
	n := len(l.scan.UnreadPrograms)
	if p.unreadLooks++; n == 0 {
		p.unreadLooks = 0
	}
	// A program that is being placed, or whose device is closing, cannot be read for a moment.
	if n > 0 && !p.noticed && (p.round == 0 || p.unreadLooks >= maxFailed) {
		l.notice = fmt.Sprintf("%s could not be read: %v", plural.Of(n, "program"), l.scan.Why)
	}
}

// describeProgram fills in what a program has on its devices.
func (p *process) describeProgram(s *aggregator.ScannedProgram, l *look, of *inspect.Program) {
	p.calls++
	s.Devices, s.Kernels = of.Devices, uint64(len(of.Kernels))
	for _, k := range of.Kernels {
		s.Binaries = append(s.Binaries, l.kernels[k.ID]...)
	}
	for _, c := range of.Placed {
		c.CB.Call = p.calls
		s.Placed = append(s.Placed, aggregator.ScannedPlacement{Device: c.Device, CB: c.CB})
	}
	for _, c := range of.Copies {
		s.Copies = append(s.Copies, aggregator.ScannedCopy{Buffer: c.Buffer, Address: c.Address})
	}
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
