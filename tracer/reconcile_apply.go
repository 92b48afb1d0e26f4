package tracer

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"tt-memtrace/aggregator"
	"tt-memtrace/aggregator/exact"
	"tt-memtrace/bpf"
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
	r.endAllocators(from, rd)
	// Choose all of them before making one known, which changes p.closed.
	open := maps.Clone(rd.result.Devices)
	maps.DeleteFunc(open, rd.gone)
	if len(open) > 0 {
		defer p.Together()()
	}
	r.knowDevices(from, rd, open)
	r.emit(aggregator.Event{Kind: aggregator.AllocatorsScanned, PID: from.pid, Time: rd.at, Scan: &scan})
	if replaced && scan.ProgramsRead {
		r.endPrograms(from, rd)
	}
	r.unsure(p, from, rd)
	r.unreserved(p, from, rd)
	r.tracesBefore(from, rd)
	r.addPrograms(from, rd, told, whole, replaced)
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

// endAllocators ends known allocators that the scan did not find: the records of their ends were lost.
func (r *run) endAllocators(from origin, rd *reading) {
	p := rd.of
	if rd.buffersOnly || rd.result.Unsearched != nil || p.marked == whyTwice {
		return
	}
	for a := range p.allocators {
		if _, ok := rd.touched[a]; !ok && !p.reconciliation.met[a] && !slices.Contains(rd.result.Found, a) {
			r.object(from, bpf.MemtraceTtKindTT_ALLOCATOR_GONE, 0, a)
		}
	}
}

// gone reports whether a device closed, or its allocator ended, during the reading.
func (rd *reading) gone(device, allocator uint64) bool {
	_, ended := rd.touched[allocator]
	at, closed := rd.of.closed[device]
	return closed && at >= rd.since || ended
}

// knowDevices makes open devices and their allocators known. A device that had closed has opened again, and that
// record was lost.
func (r *run) knowDevices(from origin, rd *reading, open map[uint64]uint64) {
	p := rd.of
	for device, allocator := range open {
		d, read := rd.described[device]
		if _, since := rd.touched[device]; read && !since && len(p.devices[device]) == 0 {
			r.opened(p, from, device, d)
		}
		r.device(p, from, device) // if it could not be read then
		c, read := rd.capacities[allocator]
		if _, since := rd.touched[allocator]; read && !since && !p.allocators[allocator] {
			r.sized(p, from, device, allocator, &c)
		} else if read && !since { // it may have another size now
			p.forgetBanks(allocator)
			r.emit(aggregator.Event{Kind: aggregator.AllocatorSeen, PID: from.pid, Time: from.time, Device: device, Allocator: allocator, Capacity: &c})
		}
		if allocator != 0 {
			r.know(p, from, device, allocator)
		}
	}
	for _, h := range rd.result.Scan.Buffers {
		if _, ok := rd.touched[h.Buffer]; !ok && !rd.gone(h.Device, h.Allocator) {
			r.know(p, from, h.Device, h.Allocator)
		}
	}
}

// reopened removes devices that closed without a record, and describes anew those that have other chips than known:
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

// unreserved raises a reason if the reserved size of buffers from before tracing could not be read. It lifts the
// reason once all could, unless new doubts arose since the reading began. Most buffers that were seen to be allocated
// have a known reserved size.
func (r *run) unreserved(p *traced, from origin, rd *reading) {
	e := aggregator.Event{PID: from.pid, Time: from.time, Reason: &aggregator.Reason{Code: exact.ReasonReservedUnknown}}
	switch b := &p.reconciliation; {
	case rd.result.Unreserved != nil && (rd.first || b.unreserved):
		if !b.unreserved { // if it failed before, wait for the regular next comparison
			b.next = time.Now().Add(max(settle, retryShare*time.Since(rd.began)))
		}
		b.unreserved = true
		e.Kind, e.Reason.Detail = aggregator.ReasonRaised, rd.result.Unreserved.Error()
	case rd.result.Unreserved == nil && b.unreserved && b.suspect.IsZero():
		b.unreserved = false
		e.Kind = aggregator.ReasonLifted
	default:
		return
	}
	r.emit(e)
}

// tracesBefore marks a process that was attached late if buffers may be younger than traces from before.
func (r *run) tracesBefore(from origin, rd *reading) {
	b := &rd.of.reconciliation
	if !rd.first || rd.traces == nil && !b.tracesBefore {
		return
	}
	b.tracesBefore = rd.traces != nil
	e := aggregator.Event{Kind: aggregator.ReasonLifted, PID: from.pid, Time: from.time, Reason: &aggregator.Reason{Code: exact.ReasonTracesBeforeAttach}}
	if rd.traces != nil {
		e.Kind, e.Reason.Detail = aggregator.ReasonRaised, rd.traces.Error()
	}
	r.emit(e)
}

// endPrograms ends known programs that the scan did not find: the records of their ends were lost. Otherwise a new
// workload at a program's address would add its launches to the old one.
func (r *run) endPrograms(from origin, rd *reading) {
	known := map[uint64]bool{}
	for _, id := range rd.result.Scan.Programs {
		known[id] = true
	}
	for id := range r.relations(from.pid).programs {
		if _, since := rd.touched[id]; !since && !known[id] {
			r.object(from, bpf.MemtraceTtKindTT_PROGRAM_GONE, 0, id)
		}
	}
}

// addPrograms adds the programs that a process had before, as if they were created now. whole: it reads known ones
// too, because they may lack what was lost. replaced: the end of a program may have been lost, so another one may be
// at its address. Of a program that was placed or launched since, it takes the kernels, which may have been added
// earlier.
func (r *run) addPrograms(from origin, rd *reading, told map[uint64]bool, whole, replaced bool) {
	p, b := rd.of, rd.result
	rel := r.relations(from.pid)
	for _, h := range b.Programs {
		_, since := rd.touched[h.ID]
		known := rel.program(h.ID).kernels
		mended := (p.reconciliation.unread[h.ID] || rel.readsChips(h.ID)) && !slices.Contains(b.UnreadPrograms, h.ID)
		if p.reconciliation.made[h.ID] || len(known) > 0 && !mended && (!whole && (!since || !rd.first) || slices.Contains(b.UnreadPrograms, h.ID)) {
			continue
		}
		if replaced && !since && len(known) > 0 {
			r.object(from, bpf.MemtraceTtKindTT_PROGRAM_GONE, 0, h.ID)
			known = nil
		}
		rel.calls++ // so that the program's new buffers replace the old ones
		if c := rel.program(h.ID); h.Range.At != 0 && c.part == nil {
			c.part = &part{MeshRange: h.Range}
		}
		r.programRead(p, from, &h, since)
		for _, k := range h.Kernels {
			if !slices.Contains(known, k.ID) {
				if len(h.Devices) == 0 && !since { // no account has it, as when its chips are seen to close
					rel.addKernel(h.ID, k.ID)
				} else {
					r.kernelAdded(from, rel, h.ID, k.ID)
				}
			}
			rel.cores[k.ID] = k.Cores
			for _, file := range k.Files {
				for _, d := range h.Devices {
					r.kernelFile(from, k.ID, d, file, true)
				}
			}
		}
		for _, c := range h.Copies {
			if _, since := rd.touched[c.Buffer]; !since {
				r.emit(aggregator.Event{Kind: aggregator.KernelsCopied, PID: from.pid, Time: from.time, Program: h.ID, Buffer: c.Buffer, Address: c.Address})
			}
		}
		if since {
			continue // events have its placement
		}
		if len(h.Devices) == 0 {
			r.nowhere(p, from, h.ID)
		}
		for _, c := range h.Placed {
			r.device(p, from, c.Device)
			c.CB.Call = rel.calls
			r.onChips(p, from, c.Device, h.ID, func() {
				r.emit(aggregator.Event{Kind: aggregator.CBPlaced, PID: from.pid, Time: from.time, Device: c.Device, Program: h.ID, CB: &c.CB})
			})
		}
	}
	if unread := b.UnreadBut(told); unread > 0 && !b.Unfinished && !p.reconciliation.unreadNoticed {
		p.reconciliation.unreadNoticed = true
		what := "1 program that existed before tracing could not be read; its circular buffers and kernels are not all counted"
		if unread > 1 {
			what = fmt.Sprintf("%d programs that existed before tracing could not be read; their circular buffers and kernels are not all counted", unread)
		}
		r.t.opts.Notice(fmt.Sprintf("process %d: %s: %v", from.pid, what, b.Why))
	}
}

// nowhere removes a program from all devices: its chips closed, and opened again at the same addresses.
func (r *run) nowhere(p *traced, from origin, program uint64) {
	for device := range p.devices {
		r.emit(aggregator.Event{Kind: aggregator.ProgramNotOn, PID: from.pid, Time: from.time, Program: program, Device: device})
	}
}
