package tracer

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"tt-memtrace/aggregator"
	"tt-memtrace/aggregator/exact"
	"tt-memtrace/internal/inspect"
	"tt-memtrace/internal/plural"
	"tt-memtrace/internal/proc"
)

// apply puts what was read into the accounts, except for objects whose events superseded it.
func (r *run) apply(rd *reading, superseded bool) {
	p := rd.of
	b, rel := &p.reconciliation, r.relations(p.mapping.PID)
	rel.ringsAgain = true
	whole, replaced := rd.lostParts != b.lostParts, rd.lostPrograms != b.lostPrograms
	// A program that events reported since, with its kernels, was just being created.
	told := maps.Clone(b.made)
	for id := range rd.touched {
		if c := rel.programs[id]; c != nil && len(c.kernels) > 0 {
			told[id] = true
		}
	}
	scan := rd.result.Scan
	scan.First, scan.Touched = rd.first, rd.touched
	scan.BlocksDisagree = rd.result.BlocksDisagree(rd.touched)
	scan.BuffersOnly, scan.Began = rd.buffersOnly, rd.since
	scan.Partial = superseded || rd.lacks(whole, told)
	if why := rd.result.Unsearched; why != nil && !b.failureNoticed && proc.Alive(p.mapping.PID) {
		b.failureNoticed = true
		r.t.opts.Notice(fmt.Sprintf("process %d: it may hold more than is shown: %v", p.mapping.PID, why))
	}
	b.disagrees = scan.TotalsDisagree != ""
	if !scan.Partial {
		b.read = true
		if !rd.buffersOnly {
			b.lost, b.lostParts, b.lostPrograms = rd.lost, rd.lostParts, rd.lostPrograms
		}
	}
	from := origin{pid: p.mapping.PID, time: rd.at}
	r.dropEndedAllocators(from, rd, &scan)
	// Choose all of them before making one known, which changes p.closed.
	open := maps.Clone(rd.result.Devices)
	maps.DeleteFunc(open, rd.gone)
	if len(open) > 0 {
		defer p.Together()()
	}
	r.knowDevices(from, rd, open, &scan)
	if replaced && scan.ProgramsRead {
		// The records of their ends were lost. A new workload at a program's address must not add its launches to the old
		// one.
		live := map[uint64]bool{}
		for _, id := range scan.Programs {
			live[id] = true
		}
		for id := range rel.programs {
			if _, since := rd.touched[id]; !since && !live[id] {
				r.dropProgram(from, id)
			}
		}
	}
	r.addPrograms(from, rd, &scan, told, whole, replaced)
	scan.Settles = append(scan.Settles, exact.ReasonForked)
	if why := r.forkDoubt(p, rd); why != nil {
		scan.Reasons = append(scan.Reasons, *why)
	}
	rd.unreserved(&scan)
	rd.tracesBefore(&scan)
	r.emit(aggregator.Event{Kind: aggregator.Scanned, PID: from.pid, Time: rd.at, Scan: &scan})
	for device := range open { // they are described now
		if len(p.devices[device]) > 0 {
			p.chipsRead(device)
		}
	}
	r.schedule(rd, scan.Partial || scan.Contradicted())
	if !rd.buffersOnly {
		b.unread = map[uint64]bool{}
		for _, id := range rd.result.UnreadPrograms {
			b.unread[id] = true
		}
	}
	if rd.first && !scan.Partial {
		p.start.Late = false
		r.describe(p, rd.at)
	}
}

// lacks reports whether the scan misses something that matters. whole: records that make up programs were lost. told:
// programs that events reported completely.
func (rd *reading) lacks(whole bool, told map[uint64]bool) bool {
	scan := rd.result
	// If programs cannot be found, what was lost about them stays lost.
	unfound := whole && !rd.buffersOnly && !scan.Scan.ProgramsRead && len(scan.Devices) > 0
	unread := len(scan.Shared) > 0 && rd.lost != rd.of.reconciliation.lost // the scan does not have what was lost
	return scan.Unsearched != nil || unfound || unread || (whole || rd.first) && scan.UnreadBut(told) > 0 ||
		slices.ContainsFunc(scan.UnreadAllocators, func(a uint64) bool { return rd.of.allocators[a] || scan.Holds(a) })
}

// dropEndedAllocators adds the live allocators to a scan, and forgets known ones that it did not find: the records of
// their ends were lost.
func (r *run) dropEndedAllocators(from origin, rd *reading, scan *aggregator.Scan) {
	p := rd.of
	if rd.buffersOnly || rd.result.Unsearched != nil || p.marked == whyTwice {
		return
	}
	scan.Live, scan.LiveRead = slices.Clone(rd.result.Found), true
	for a := range p.allocators {
		_, since := rd.touched[a]
		switch {
		case since || slices.Contains(rd.result.Found, a):
		case p.reconciliation.met[a]:
			scan.Live = append(scan.Live, a)
		default:
			r.dropAllocator(p, from, a)
		}
	}
}

// gone reports whether a device closed, or its allocator ended, during the reading.
func (rd *reading) gone(device, allocator uint64) bool {
	_, ended := rd.touched[allocator]
	at, closed := rd.of.closed[device]
	return closed && at >= rd.since || ended
}

// knowDevices adds open devices and the capacities of their allocators to a scan, and makes known those that could not
// be read then. A device that had closed has opened again, and that record was lost.
func (r *run) knowDevices(from origin, rd *reading, open map[uint64]uint64, scan *aggregator.Scan) {
	p := rd.of
	for _, device := range slices.Sorted(maps.Keys(open)) {
		allocator := open[device]
		d, read := rd.described[device]
		if _, since := rd.touched[device]; read && !since && len(p.devices[device]) == 0 {
			scan.Devices = append(scan.Devices, aggregator.ScannedDevice{Device: device, Opened: *r.noteOpened(p, device, d)})
		}
		r.device(p, from, device) // if it could not be read then
		c, read := rd.capacities[allocator]
		if _, since := rd.touched[allocator]; read && !since {
			if p.allocators[allocator] {
				p.forgetBanks(allocator) // it may have another size now
			} else {
				p.noteSized(device, allocator)
			}
			scan.Sizes = append(scan.Sizes, aggregator.ScannedCapacity{Allocator: allocator, Device: device, Capacity: c})
		}
		if allocator != 0 {
			r.know(p, from, device, allocator)
		}
	}
	for i := range scan.Buffers {
		h := &scan.Buffers[i]
		if _, ok := rd.touched[h.Buffer]; !ok && !rd.gone(h.Device, h.Allocator) {
			r.know(p, from, h.Device, h.Allocator)
		}
	}
}

// reopened removes devices that closed without a record, and describes again those that have other chips than known:
// another device opened at the same address. It reports whether there are such; then the process must be read again,
// because the accounts drop what the earlier device had.
func (r *run) reopened(p *traced, rd *reading) (any bool) {
	from := origin{pid: p.mapping.PID, time: rd.at}
	for _, device := range rd.closed {
		if _, known := p.devices[device]; known && p.closing[device] == nil && p.IsClosed(device) {
			r.notOpen(p, from, device, 0)
		}
	}
	for device, allocator := range rd.result.Devices {
		known := p.devices[device]
		d, err := r.chipsOf(p, device)
		if len(known) == 0 || err != nil || slices.Equal(known, p.chips.Opened(d, r.names, r.uses).Chips) {
			continue
		}
		r.notOpen(p, from, device, 0)
		delete(p.allocators, allocator)
		r.opened(p, from, device, d)
		any = true
	}
	return any
}

// unreserved adds to a scan whether the reserved size of buffers from before tracing could be read. It settles nothing
// if new doubts arose since the reading began. Most buffers that were seen to be allocated have a known reserved size.
func (rd *reading) unreserved(scan *aggregator.Scan) {
	why := rd.result.Unreserved
	switch b := &rd.of.reconciliation; {
	case why != nil && (rd.first || b.unreserved):
		if !b.unreserved { // if it failed before, wait for the regular next comparison
			b.next = time.Now().Add(max(settle, retryShare*time.Since(rd.began)))
		}
		b.unreserved = true
		scan.Reasons = append(scan.Reasons, aggregator.Reason{Code: exact.ReasonReservedUnknown, Detail: why.Error()})
	case why == nil && b.unreserved && b.suspect.IsZero():
		b.unreserved = false
	default:
		return
	}
	scan.Settles = append(scan.Settles, exact.ReasonReservedUnknown)
}

// tracesBefore adds to the first scan of a process whether buffers may be younger than traces from before. It settles
// nothing if no scan raised that: the accounts raise it too, for a replay of such a trace.
func (rd *reading) tracesBefore(scan *aggregator.Scan) {
	b := &rd.of.reconciliation
	if !rd.first || rd.traces == nil && !b.tracesBefore {
		return
	}
	b.tracesBefore = rd.traces != nil
	scan.Settles = append(scan.Settles, exact.ReasonTracesBeforeAttach)
	if rd.traces != nil {
		why := aggregator.Reason{Code: exact.ReasonTracesBeforeAttach, Detail: rd.traces.Error()}
		scan.Reasons = append(scan.Reasons, why)
	}
}

// addPrograms adds to a scan the programs that were read, except for those that events reported. told: programs that
// events reported completely. whole: records that make up programs were lost, so known programs may lack something.
// replaced: the end of a program may have been lost, so another one may be at its address.
func (r *run) addPrograms(from origin, rd *reading, scan *aggregator.Scan, told map[uint64]bool, whole, replaced bool) {
	p, b := rd.of, rd.result
	rel := r.relations(from.pid)
	for i := range b.Programs {
		h := &b.Programs[i]
		_, since := rd.touched[h.ID]
		known := len(rel.program(h.ID).kernels) > 0
		unread := slices.Contains(b.UnreadPrograms, h.ID)
		mended := (p.reconciliation.unread[h.ID] || rel.readsChips(h.ID)) && !unread
		if p.reconciliation.made[h.ID] || known && !mended && (!whole && (!since || !rd.first) || unread) {
			continue
		}
		replaces := replaced && !since && known
		if replaces {
			r.dropProgram(from, h.ID)
		}
		s := r.scannedProgram(p, from, h, since)
		s.Replaces = replaces
		scan.Read = append(scan.Read, s)
	}
	if unread := b.UnreadBut(told); unread > 0 && !b.Unfinished && !p.reconciliation.unreadNoticed {
		p.reconciliation.unreadNoticed = true
		r.t.opts.Notice(fmt.Sprintf("process %d: %s that existed before tracing could not be read; "+
			"%s circular buffers and kernels are not all counted: %v",
			from.pid, plural.Of(unread, "program"), plural.Word(unread, "its", "their"), b.Why))
	}
}

// scannedProgram relates what was read of a program, and returns it for the accounts. since: events placed or launched
// it since, and have its placement; its kernels may have been added earlier. What is on a device with unknown chips
// waits until these are known.
func (r *run) scannedProgram(p *traced, from origin, h *inspect.Program, since bool) aggregator.ScannedProgram {
	rel := r.relations(from.pid)
	rel.calls++ // so that the program's new buffers replace the old ones
	c := rel.program(h.ID)
	if h.Range.At != 0 && c.part == nil {
		c.part = &part{MeshRange: h.Range}
	}
	s := aggregator.ScannedProgram{ID: h.ID, Only: r.chipsScanned(p, from, h, since) || len(h.Devices) == 0 && !since}
	for _, k := range h.Kernels {
		if !slices.Contains(c.kernels, k.ID) {
			rel.addKernel(h.ID, k.ID)
		}
		rel.cores[k.ID] = k.Cores
		for _, file := range k.Files {
			if binary, ok := rel.files.Kernel(k.ID, file, true); ok {
				binary.Cores = k.Cores
				s.Binaries = append(s.Binaries, binary)
			}
		}
	}
	if len(h.Devices) > 0 || since { // otherwise no account has it
		s.Kernels = uint64(len(c.kernels))
	}
	for _, d := range h.Devices {
		r.device(p, from, d)
		if len(p.devices[d]) > 0 {
			s.Devices = append(s.Devices, r.spread(p, from, h.ID, d, 0)...)
			continue
		}
		r.onChips(p, from, d, h.ID, func() {
			for _, d := range r.spread(p, from, h.ID, d, 0) {
				for i := range s.Binaries {
					r.emit(aggregator.Event{Kind: aggregator.KernelLoaded, PID: from.pid, Time: from.time,
						Program: h.ID, Device: d, Kernel: &s.Binaries[i]})
				}
			}
		})
	}
	for _, c := range h.Copies {
		s.Copies = append(s.Copies, aggregator.ScannedCopy{Buffer: c.Buffer, Address: c.Address})
	}
	if since {
		return s // events have its placement
	}
	for _, c := range h.Placed {
		r.device(p, from, c.Device)
		c.CB.Call = rel.calls
		if len(p.devices[c.Device]) > 0 {
			s.Placed = append(s.Placed, aggregator.ScannedPlacement{Device: c.Device, CB: c.CB})
			continue
		}
		r.onChips(p, from, c.Device, h.ID, func() {
			r.emit(aggregator.Event{Kind: aggregator.CBPlaced, PID: from.pid, Time: from.time,
				Device: c.Device, Program: h.ID, CB: &c.CB})
		})
	}
	return s
}
