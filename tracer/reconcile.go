package tracer

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"tt-memtrace/aggregator"
	"tt-memtrace/bpf"
	"tt-memtrace/tracer/inspect"
	"tt-memtrace/tracer/memory"
	"tt-memtrace/tracer/proc"
)

// reconciliation is what the reader knows about comparing a process with its accounts.
type reconciliation struct {
	// forkedFrom, where not 0: its memory began as a copy of that process's, and what is a copy
	// still is that one's.
	forkedFrom uint32
	// read: its own allocators were scanned once.
	read bool
	// now is the reading that is under way.
	now *reading
	// early: there were events after it was asked for, of before it began.
	early bool
	// met are the allocators that are known since it began.
	met map[uint64]bool
	// made are the programs that were made or destroyed since: all of them is in events.
	made map[uint64]bool
	// suspect: its accounts are doubtful since then, and its allocators must be scanned again.
	suspect time.Time
	// lost is how many events were missing when they were read last, and lostParts
	// how many of those that make up programs.
	lost, lostParts uint64
	// lostPrograms is how many ends of programs had been lost then.
	lostPrograms uint64
	// unreserved: how much of their banks some of its buffers take could not be read.
	unreserved bool
	// unread are the programs that were not read, or not whole, the last time, and unfinished says that there was
	// no time for some: they are read next.
	unread     map[uint64]bool
	unfinished bool
	// failureNoticed: a notice said that they cannot be read, unreadNoticed that some
	// programs cannot.
	failureNoticed, unreadNoticed bool
	// next is when they are compared again without any reason, or because the last failures
	// readings in a row failed or left something out.
	next     time.Time
	failures int
}

// reading is one scan of a process's own allocators and programs.
type reading struct {
	of *traced
	// first: it was not watched from the start.
	first bool
	// lost and lostParts are how many events were missing when it began, lostPrograms how many
	// ends of programs.
	lost, lostParts, lostPrograms uint64
	// bare: it runs code without probes.
	bare bool
	// fork, where not nil, is whose copies it leaves out.
	fork *inspect.Fork
	// buffersOnly: only the buffers of known allocators are read. since is when its last try began.
	buffersOnly bool
	since       uint64
	// touched are the objects of events since then: these supersede the scanned values.
	touched map[uint64]struct{}
	// others are the builds of the runtime that the process is not read by, and open those of them that have
	// devices open.
	others []another
	open   []int
	// closed are devices that were known when it began, and are not open, where events were lost.
	closed []uint64
	tries  int
	began  time.Time
	// result and err are set when it ended, at a time of CLOCK_MONOTONIC in ns.
	result *inspect.ProcessScan
	err    error
	at     uint64
}

const (
	// A process is read again settle after the last event that made its accounts suspect.
	settle = 200 * time.Millisecond
	// checkEvery is how often a process is compared without reason, at the most:
	// and so rarely that reading takes one part in checkShare of the time.
	checkEvery = 10 * time.Second
	checkShare = 1000
	// retryShare: where reading failed it is tried sooner, for one part of it of the time.
	retryShare = 10
	// programTries is how often a process is read again for programs that could not be.
	programTries = 4
	// earlyTries is how often it is for events of before it began.
	earlyTries = 4
	// maxReadings of a process in a row that lost events spoil.
	maxReadings = 20
)

// whyHeadless is why a process with perf events of its own is not traced any more. To the host kernel these are its main thread's.
const whyHeadless = "its main thread has ended, and with it the host kernel ended the probes of this process alone"

// whyBare is why a process is not traced that runs code without probes.
const whyBare = "its library's code, or some of it, lies on pages that can be written to, or was moved from where the file is mapped: the host kernel puts no probes there"

// whyTakenOut is why a process is not traced any more that had its probes.
const whyTakenOut = "probes were taken out of its library's code by another than the host kernel: a debugger whose breakpoint had been there, or the process itself"

// touch notes an event of a buffer, an allocator or a program while the process is read.
func (p *traced) touch(id uint64) {
	if b := &p.reconciliation; b.now != nil {
		b.now.touched[id] = struct{}{}
		b.early = b.early || p.last < b.now.since
	}
}

// make notes that a program is made, or is destroyed, while the process may be read.
func (p *traced) make(program uint64) {
	p.touch(program)
	if p.reconciliation.now != nil {
		p.reconciliation.made[program] = true
	}
}

// read begins to scan a process's own allocators, beside the events that still come, unless that is done already, or will
// be once all probes are in.
func (r *run) read(p *traced, first bool) {
	if p.reconciliation.now != nil || p.unseen {
		return
	}
	r.begin(&reading{of: p, first: first, began: time.Now()})
}

func (r *run) begin(rd *reading) {
	p := rd.of
	rd.lost, rd.lostParts = r.missing(p)
	rd.lostPrograms = r.lostPrograms
	p.reconciliation.now, p.reconciliation.suspect = rd, time.Time{}
	rd.touched = map[uint64]struct{}{}
	p.reconciliation.early = false
	p.reconciliation.made, p.reconciliation.met = map[uint64]bool{}, map[uint64]bool{}
	// Where no event was lost since, its allocators are known.
	var known []uint64
	if !rd.first && !r.relations(p.mapping.PID).readsAnyChips() && rd.lost == p.reconciliation.lost && p.reconciliation.forkedFrom == 0 {
		for a := range p.allocators {
			known = append(known, a)
		}
	}
	rd.buffersOnly = known != nil
	programs := r.knownPrograms(rd)
	rd.fork, rd.since = r.forkOf(p), proc.Now()
	rd.others, rd.open = slices.Clone(p.others), nil
	in, layout, of, chips := p.patient, p.of.layout, p.of, p.chips.By(p.patient)
	var devices []uint64 // the record of their closing may be lost
	if rd.lost != p.reconciliation.lost {
		devices = slices.Collect(maps.Keys(p.devices))
	}
	r.background.Go(func() {
		if known != nil {
			rd.result = &inspect.ProcessScan{}
			rd.err = in.ScanAllocators(rd.result, layout, known, nil)
		} else {
			rd.result, rd.err = in.Scan(layout, programs, rd.fork, nil)
			if rd.first && rd.err == nil {
				for d := range rd.result.Devices {
					chips.Device(d) // so that who merges this need not wait for what it says
				}
			}
			rd.closed = slices.DeleteFunc(devices, func(d uint64) bool { return !in.IsClosed(d) })
			for i, o := range rd.others {
				if holds, err := o.patient.HoldsDevices(); holds {
					rd.open = append(rd.open, i)
				} else if rd.err == nil {
					rd.err = err
				}
			}
		}
		if in.LacksProbe(of.cover.Probes) {
			r.t.mu.Lock()
			rd.bare = of.probes != nil // they were not taken out since
			r.t.mu.Unlock()
		}
		rd.at = uint64(proc.Monotonic())
		r.t.inboxMu.Lock()
		r.t.readings = append(r.t.readings, rd)
		r.t.inboxMu.Unlock()
		r.t.reader.Flush()
	})
}

// knownPrograms are those that need not be read, where it says true.
func (r *run) knownPrograms(rd *reading) map[uint64]bool {
	known, b := map[uint64]bool{}, &rd.of.reconciliation
	if rel := r.relations(rd.of.mapping.PID); rd.lostParts == b.lostParts {
		for id, c := range rel.programs {
			known[id] = len(c.kernels) > 0 && !b.unread[id] && !rel.readsChips(id)
		}
	}
	return known
}

// finished are the readings that have ended.
func (t *Tracer) finished() []*reading {
	t.inboxMu.Lock()
	defer t.inboxMu.Unlock()
	list := t.readings
	t.readings = nil
	return list
}

// reading says whether a process is being read that was not watched from the start,
// or may have to be.
func (r *run) reading() bool {
	if len(r.later) > 0 {
		return true
	}
	for _, p := range r.processes {
		if b := &p.reconciliation; b.unfinished || b.now != nil && b.now.first {
			return true
		}
	}
	return false
}

// again reads a process once more where what was read of it is not to be applied.
func (r *run) again(rd *reading) bool {
	p := rd.of
	lost, _ := r.missing(p)
	switch b := &p.reconciliation; {
	case rd.fork != nil && rd.fork.From != b.forkedFrom: // that one has ended
	case len(rd.others) != len(p.others): // it mapped another build of the runtime
	case len(rd.open) > 0 && rd.err == nil && len(rd.result.Devices) == 0:
		r.readBy(p, rd.open[0])
		rd.first = true
	case rd.tries < maxReadings && rd.lost != lost, // what was lost may have been about what was read
		rd.tries < earlyTries && b.superseded(),
		rd.tries < programTries && rd.first && rd.err == nil && !rd.result.Unfinished && rd.result.UnreadBut(b.made) > 0: // one that was just being placed makes no sense for a moment
		rd.tries++
	default:
		return false
	}
	r.begin(rd)
	return true
}

// superseded says whether events of before the reading began came after it was asked for, and leave something in doubt. They
// supersede what was read: what they are of may have been in motion. But what came after them can be unseen: lost, or from
// when not all probes were in, which are put in one after the other.
func (b *reconciliation) superseded() bool {
	return b.early && (b.now.first && b.now.tries == 0 || b.now.lost != b.lost)
}

// schedule sets when a process is read next without a reason: sooner after a reading that failed or left something out.
func (r *run) schedule(rd *reading, partial bool) {
	b, took := &rd.of.reconciliation, time.Since(rd.began)
	if b.failures++; !partial {
		b.failures = 0
	}
	var pause time.Duration
	switch {
	case rd.err == nil && rd.result.Unfinished:
	case rd.err == nil && errors.Is(rd.result.Unsearched, memory.ErrSearchTime), !partial && !rd.first:
		pause = max(checkEvery, checkShare*took)
	case !partial: // one that changed meanwhile is compared once more
		pause = max(settle, retryShare*took)
	default:
		pause = max(min(checkEvery, settle<<min(b.failures, 10)), retryShare*took)
	}
	if r.relations(rd.of.mapping.PID).readsAnyChips() {
		pause = min(pause, max(checkEvery, retryShare*took))
	}
	b.next = time.Now().Add(pause)
}

// merge applies what was read of a process. All events from before its end
// have gone out.
func (r *run) merge(rd *reading) {
	p := rd.of
	pid := p.mapping.PID
	if r.processes[pid] != p || p.reconciliation.now != rd {
		return // gone meanwhile
	}
	if r.again(rd) {
		return
	}
	if len(rd.open) > 0 {
		r.markForGood(p, whyTwice)
	}
	switch {
	case rd.bare && rd.first:
		r.markForGood(p, whyBare)
	case rd.bare:
		r.markForGood(p, whyTakenOut)
	}
	superseded := p.reconciliation.superseded()
	p.reconciliation.now = nil
	p.reconciliation.unfinished = rd.err == nil && rd.result.Unfinished
	if !rd.first && p.marked == whyTwice { // what events told of the other build's would be taken out
		r.schedule(rd, true)
		return
	}
	if rd.err != nil {
		r.schedule(rd, true)
		if rd.first && !p.reconciliation.failureNoticed && proc.Alive(pid) {
			p.reconciliation.failureNoticed = true
			r.t.opts.Notice(fmt.Sprintf("process %d: its buffers from before tracing are unknown: %v", pid, rd.err))
		}
		return
	}
	if rd.lost != p.reconciliation.lost && rd.tries < maxReadings && r.reopened(p, rd) {
		rd.tries++
		r.begin(rd)
		return
	}
	r.apply(rd, superseded)
}

// apply has the accounts take what was read, but for what events superseded.
func (r *run) apply(rd *reading, superseded bool) {
	p := rd.of
	b, rel := &p.reconciliation, r.relations(p.mapping.PID)
	rel.ringsAgain = true
	whole, replaced := rd.lostParts != b.lostParts, rd.lostPrograms != b.lostPrograms
	// A program that events reported since, with its kernels, was just being made.
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
	if !scan.Partial {
		b.read = true
		if !rd.buffersOnly {
			b.lost, b.lostParts, b.lostPrograms = rd.lost, rd.lostParts, rd.lostPrograms
		}
	}
	from := origin{pid: p.mapping.PID, time: rd.at}
	r.endAllocators(from, rd)
	// All are looked at before one is made known, which changes what is closed.
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
	r.addPrograms(from, rd, told, whole, replaced)
	r.schedule(rd, scan.Partial)
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

// lacks says whether something that matters was not read: whole is that records which make up programs were lost, and
// told are the programs of which events said everything.
func (rd *reading) lacks(whole bool, told map[uint64]bool) bool {
	scan := rd.result
	// Where programs are not found, what was lost of them stays lost.
	unfound := whole && !rd.buffersOnly && !scan.Scan.ProgramsRead && len(scan.Devices) > 0
	unread := len(scan.Shared) > 0 && rd.lost != rd.of.reconciliation.lost // what was lost is not in what was read
	return scan.Unsearched != nil || unfound || unread || (whole || rd.first) && scan.UnreadBut(told) > 0 ||
		slices.ContainsFunc(scan.UnreadAllocators, func(a uint64) bool { return rd.of.allocators[a] || scan.Holds(a) })
}

// endAllocators ends those that are nowhere: the records of their ends were lost.
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

// gone says whether a device closed, or its allocator ended, while they were read.
func (rd *reading) gone(device, allocator uint64) bool {
	_, ended := rd.touched[allocator]
	at, closed := rd.of.closed[device]
	return closed && at >= rd.since || ended
}

// knowDevices makes the devices and allocators known that are open. One that closed before has opened again, and the record of
// that was lost.
func (r *run) knowDevices(from origin, rd *reading, open map[uint64]uint64) {
	p := rd.of
	for device, allocator := range open {
		r.device(p, from, device)
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

// reopened takes out devices whose record of closing was lost, and describes those again that have other chips than is known:
// another one opened at the address. What it has is read once more, as the accounts drop what the one before had.
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

// unreserved raises that how much of their banks buffers from before take could not be read, and lifts it once all of
// it could, unless there are new doubts since the reading began. Of most buffers that were seen to be allocated it is
// known already.
func (r *run) unreserved(p *traced, from origin, rd *reading) {
	e := aggregator.Event{PID: from.pid, Time: from.time, Reason: &aggregator.Reason{Code: aggregator.ReasonReservedUnread}}
	switch b := &p.reconciliation; {
	case rd.result.Unreserved != nil && (rd.first || b.unreserved):
		if !b.unreserved { // else with the next comparison
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

// endPrograms ends those that are not among the ones that live: their ends were lost, and the launches of another workload at the
// address of theirs would count as theirs too.
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

// addPrograms adds the programs that a process had before, as if they were made now.
// Whole: those that are known were read too, as they may lack what was lost. Replaced: the end of
// one may have been lost, and another be at its address. Of a program that was placed or launched
// since, the kernels are taken in: they may have been added before.
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
		rel.calls++ // replaces what it had
		if c := rel.program(h.ID); h.Range.At != 0 && c.part == nil {
			c.part = &part{MeshRange: h.Range}
		}
		r.programRead(p, from, &h, since)
		for _, k := range h.Kernels {
			if !slices.Contains(known, k.ID) {
				r.kernelAdded(from, rel, h.ID, k.ID)
				rel.cores[k.ID] = k.Cores
			}
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
			continue // placed since, too
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
		r.t.opts.Notice(fmt.Sprintf("process %d: %d programs from before tracing could not be read whole, so some of their circular buffers or kernels are not counted: %v", from.pid, unread, b.Why))
	}
}

// nowhere takes a program off all devices: its chips closed, and opened again at the same addresses.
func (r *run) nowhere(p *traced, from origin, program uint64) {
	for device := range p.devices {
		r.emit(aggregator.Event{Kind: aggregator.ProgramNotOn, PID: from.pid, Time: from.time, Program: program, Device: device})
	}
}

// Reconcile has a process's accounts compared with its own allocators soon, because an
// event did not fit them.
func (t *Tracer) Reconcile(pid uint32) {
	t.inboxMu.Lock()
	t.suspects = append(t.suspects, pid)
	t.inboxMu.Unlock()
}

// suspectAll: events were lost, of unknown processes.
func (r *run) suspectAll() {
	for _, p := range r.processes {
		p.reconciliation.suspect = time.Now()
	}
}

// anySuspect says whether a process must be read again soon.
func (r *run) anySuspect() bool {
	for _, p := range r.processes {
		if !p.reconciliation.suspect.IsZero() {
			return true
		}
	}
	return false
}

// check reads the processes again whose accounts are suspect or were not
// compared for long.
func (r *run) check() {
	r.t.inboxMu.Lock()
	suspects := r.t.suspects
	r.t.suspects = nil
	r.t.inboxMu.Unlock()
	now := time.Now()
	for _, pid := range suspects {
		if p, known := r.processes[pid]; known && p.reconciliation.suspect.IsZero() {
			p.reconciliation.suspect = now
		}
	}
	if now.Sub(r.checkedAt) < settle/2 {
		return
	}
	r.checkedAt = now
	headless := r.t.perPID() && r.t.lacks.MultiUprobes
	for pid, p := range r.processes {
		if headless && p.marked == "" && proc.Heir(pid) != 0 {
			r.markForGood(p, whyHeadless)
		}
		b := &p.reconciliation
		// A comparison ends an allocator that is gone, the record of whose end was lost.
		compares := b.now != nil || !b.suspect.IsZero()
		for allocator, s := range p.unknownCapacities {
			patience := settle
			if errors.Is(s.why, memory.ErrLater) {
				patience = longestOpening // it is asked for again until then
			}
			if now.Sub(s.since) >= patience && !compares {
				delete(p.unknownCapacities, allocator)
				p.noticeOnce(r, fmt.Errorf("the capacity of its memories is unknown: %w", s.why))
			}
		}
		if b.now != nil || len(p.allocators) == 0 && b.suspect.IsZero() && b.failures == 0 {
			continue // or it has nothing that could be compared
		}
		if b.next.IsZero() {
			b.next = now.Add(checkEvery)
		}
		if !b.suspect.IsZero() && now.Sub(b.suspect) >= settle || now.After(b.next) {
			r.read(p, p.start.Late || b.unfinished)
		}
	}
}
