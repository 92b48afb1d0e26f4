package tracer

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"tt-memtrace/aggregator"
	"tt-memtrace/bpf"
	"tt-memtrace/internal/inspect"
	"tt-memtrace/internal/memory"
	"tt-memtrace/internal/proc"
)

// comparisons read processes and compare them with their accounts.
type comparisons struct {
	*core
	devices  *devices
	forks    *forks
	losses   *losses
	programs *programs
	// finished are the readings that have ended.
	finished mailbox[finishedReading]
	// checked is when check last looked for processes to read.
	checked interval
}

// finishedReading is a reading that has ended, with the ask that the end of the records from before answers.
type finishedReading struct {
	*reading
	asked uint64
}

const (
	// programTries is how often a process is read again because programs could not be read.
	programTries = 4
	// earlyTries is how often it is read again because of events from before the reading began.
	earlyTries = 4
	// maxReadings is how many readings in a row may be repeated because events were lost during them.
	maxReadings = 20
)

// whyHeadless: a process with perf events of its own is traced no longer. They are attached to its main thread.
const whyHeadless = "its main thread has ended, which ended the probes of this process alone"

// whyBare: a process is not traced because it runs code without probes.
const whyBare = "some of its library's code lies on writable pages, or was moved from where the file is mapped: the kernel puts no probes there"

// whyTakenOut: a process that had probes is traced no longer.
const whyTakenOut = "probes were removed from its library's code by a debugger that had a breakpoint there, or by the process itself"

// read starts a scan of a process's allocators, while events still arrive. It does nothing if a scan runs, or if the
// process still waits for all probes: then it is scanned afterwards.
func (cs *comparisons) read(p *traced, first bool) {
	if p.reconciliation.now != nil || cs.processes.get(p.mapping.PID).stage == joining {
		return
	}
	cs.begin(&reading{of: p, first: first, began: time.Now()})
}

func (cs *comparisons) begin(rd *reading) {
	p := rd.of
	rd.lost, rd.lostParts = cs.losses.missing(p)
	rd.lostPrograms = cs.losses.missed[bpf.MemtraceTtKindTT_PROGRAM_GONE]
	p.reconciliation.now, p.reconciliation.suspect = rd, time.Time{}
	rd.touched = map[uint64]struct{}{}
	p.reconciliation.early = false
	p.reconciliation.made, p.reconciliation.met = map[uint64]bool{}, map[uint64]bool{}
	// If no event was lost since the last reading, all its allocators are known.
	var known []uint64
	if !rd.first && !p.reconciliation.disagrees && !cs.relations(p.mapping.PID).readsAnyChips() && rd.lost == p.reconciliation.lost && p.reconciliation.forkedFrom == 0 {
		for a := range p.allocators.known() {
			known = append(known, a)
		}
	}
	rd.buffersOnly = known != nil
	programs := cs.programs.knownPrograms(rd)
	rd.fork, rd.since = cs.forks.forkOf(p), proc.Now()
	rd.others, rd.open = slices.Clone(p.others), nil
	in, layout, of, chips := p.Apart(), p.of.layout, p.of, p.chips
	lossy, isClosed := rd.lost != p.reconciliation.lost, in.SaysClosed
	if lossy {
		isClosed = in.IsClosed
	}
	var devices, meshes []uint64
	for device, d := range p.devices.described() {
		// Records of closing may be among the lost ones. A device that was gone before it was read may have closed with
		// another, and then no probe was hit.
		if lossy || len(d.chips) == 0 {
			devices = append(devices, device)
		}
		if d.mesh {
			meshes = append(meshes, device)
		}
	}
	cs.background.Go(func() {
		if known != nil {
			rd.result = &inspect.ProcessScan{}
			rd.err = in.ScanAllocators(rd.result, layout, known, nil)
		} else {
			rd.result, rd.err = in.Scan(layout, programs, rd.fork, nil)
			if rd.err == nil {
				rd.result.Scan.TotalsDisagree = chips.By(in).TotalsDisagree(rd.result)
			}
			for i, o := range rd.others {
				if holds, err := o.HoldsDevices(); holds {
					rd.open = append(rd.open, i)
				} else if rd.err == nil {
					rd.err = err
				}
			}
		}
		rd.closed = slices.DeleteFunc(devices, func(d uint64) bool { return !isClosed(d) })
		switch {
		case rd.err != nil:
		case rd.first || lossy:
			rd.describe(in.AsOfNow(), chips) // here, so that merging does not wait for the process
		default:
			rd.described = chips.By(in.AsOfNow()).Devices(meshes)
		}
		if in.LacksProbe(of.cover.Probes) {
			cs.attacher.mu.Lock()
			rd.bare = of.probes != nil // false if the tracer has removed them
			cs.attacher.mu.Unlock()
		}
		rd.at = proc.Now()
		cs.finished.put(finishedReading{rd, cs.in.Ask()})
	})
}

// reading reports whether a process is being read, or may have to be, that was not watched from its start.
func (r *run) reading() bool {
	if len(r.lives.later) > 0 {
		return true
	}
	for _, p := range r.processes {
		if p.state() == stateScanning || p.traced != nil && p.traced.reconciliation.unfinished {
			return true
		}
	}
	return false
}

// again restarts a reading whose result must not be applied, and reports whether it did.
func (cs *comparisons) again(rd *reading) bool {
	p := rd.of
	lost, _ := cs.losses.missing(p)
	switch b := &p.reconciliation; {
	case rd.fork != nil && rd.fork.From != b.forkedFrom: // the parent has ended
	case len(rd.others) != len(p.others): // the process mapped another build of the runtime
	case len(rd.open) > 0 && rd.err == nil && len(rd.result.Devices) == 0:
		cs.devices.readBy(p, rd.open[0])
		rd.first = true
	case rd.tries < maxReadings && rd.lost != lost, // the lost events may concern what was read
		rd.tries < earlyTries && b.superseded(),
		rd.tries < programTries && rd.first && rd.err == nil && !rd.result.Unfinished && rd.result.UnreadBut(b.made) > 0: // a program is briefly inconsistent while it is being placed
		rd.tries++
	default:
		return false
	}
	cs.begin(rd)
	return true
}

// schedule sets when a process is read next without a reason: sooner after a reading that failed or left something
// out.
func (cs *comparisons) schedule(rd *reading, partial bool) {
	b, took := &rd.of.reconciliation, time.Since(rd.began)
	if b.failures++; !partial {
		b.failures = 0
	}
	var pause time.Duration
	switch {
	case rd.err == nil && rd.result.Unfinished:
	case rd.err == nil && errors.Is(rd.result.Unsearched, memory.ErrSearchTime), !partial && !rd.first:
		pause = max(checkEvery, checkShare*took)
	case !partial: // it may have changed during the first reading: compare it once more soon
		pause = max(settle, retryShare*took)
	default:
		pause = max(min(checkEvery, settle<<min(b.failures, 10)), retryShare*took)
	}
	if cs.relations(rd.of.mapping.PID).readsAnyChips() {
		pause = min(pause, max(checkEvery, retryShare*took))
	}
	b.next = time.Now().Add(pause)
}

// merge applies a finished reading. All events from before its end have been emitted.
func (cs *comparisons) merge(rd *reading) {
	p := rd.of
	pid := p.mapping.PID
	if now, _ := cs.processes.traced(pid); now != p || p.reconciliation.now != rd {
		return // the process has ended
	}
	if cs.again(rd) {
		return
	}
	if len(rd.open) > 0 {
		cs.markForGood(p, whyTwice)
	}
	switch {
	case rd.bare && rd.first:
		cs.markForGood(p, whyBare)
	case rd.bare:
		cs.markForGood(p, whyTakenOut)
	}
	superseded := p.reconciliation.superseded()
	p.reconciliation.now = nil
	p.reconciliation.unfinished = rd.err == nil && rd.result.Unfinished
	if !rd.first && p.marked == whyTwice { // applying it would remove what events reported of the other build
		cs.schedule(rd, true)
		return
	}
	if rd.err != nil {
		cs.schedule(rd, true)
		if rd.first && !p.reconciliation.failureNoticed && proc.Alive(pid) {
			p.reconciliation.failureNoticed = true
			cs.opts.Notice(fmt.Sprintf("process %d: its buffers from before tracing are unknown: %v", pid, rd.err))
		}
		return
	}
	if rd.tries < maxReadings && cs.devices.reopened(p, rd) {
		rd.tries++
		cs.begin(rd)
		return
	}
	cs.apply(rd, superseded)
}

// check starts readings of processes whose accounts are in doubt or were not compared for long.
func (cs *comparisons) check() {
	for _, pid := range cs.in.Mail.suspects.take() {
		if p, known := cs.processes.traced(pid); known {
			p.doubtOnce()
		}
	}
	if !cs.checked.due(settle/2, false) {
		return
	}
	now := time.Now()
	headless := cs.perPID() && cs.lacks.MultiUprobes
	for pid, p := range cs.processes.each() {
		if headless && p.marked == "" && proc.Heir(pid) != 0 {
			cs.markForGood(p, whyHeadless)
		}
		b := &p.reconciliation
		// A comparison ends an allocator that is gone and whose end was lost.
		compares := b.now != nil || !b.suspect.IsZero()
		for _, a := range p.allocators {
			patience := settle
			if errors.Is(a.unread, memory.ErrLater) {
				patience = opening.until // it is read again until then
			}
			if a.unread != nil && now.Sub(a.unreadSince) >= patience && !compares {
				p.noticeOnce(cs.core, fmt.Errorf("the capacity of its memories is unknown: %w", a.unread))
				a.unread = nil
			}
		}
		if b.now != nil || len(p.allocators) == 0 && b.suspect.IsZero() && b.failures == 0 {
			continue // it is being read, or has nothing to compare
		}
		if b.next.IsZero() {
			b.next = now.Add(checkEvery)
		}
		if !b.suspect.IsZero() && now.Sub(b.suspect) >= settle || now.After(b.next) {
			cs.read(p, p.start.Late || b.unfinished)
		}
	}
}

// apply puts what was read into the accounts, except for objects whose events superseded it.
func (cs *comparisons) apply(rd *reading, superseded bool) {
	p := rd.of
	b, rel := &p.reconciliation, cs.relations(p.mapping.PID)
	rel.ringsAgain = true
	rd.whole, rd.replaced = rd.lostParts != b.lostParts, rd.lostPrograms != b.lostPrograms
	// A program that events reported since, with its kernels, was just being created.
	rd.told = maps.Clone(b.made)
	for id := range rd.touched {
		if c := rel.programs[id]; c != nil && len(c.kernels) > 0 {
			rd.told[id] = true
		}
	}
	scan := rd.result.Scan
	scan.First, scan.Touched = rd.first, rd.touched
	scan.BlocksDisagree = rd.result.BlocksDisagree(rd.touched)
	scan.BuffersOnly, scan.Began = rd.buffersOnly, rd.since
	scan.Partial = superseded || rd.lacks()
	if why := rd.result.Unsearched; why != nil && !b.failureNoticed && proc.Alive(p.mapping.PID) {
		b.failureNoticed = true
		cs.opts.Notice(fmt.Sprintf("process %d: it may hold more than is shown: %v", p.mapping.PID, why))
	}
	b.disagrees = scan.TotalsDisagree != ""
	if !scan.Partial {
		b.read = true
		if !rd.buffersOnly {
			b.lost, b.lostParts, b.lostPrograms = rd.lost, rd.lostParts, rd.lostPrograms
		}
	}
	from := origin{pid: p.mapping.PID, time: rd.at}
	cs.devices.dropEndedAllocators(from, rd, &scan) // a closing device closes with its allocator
	// Choose all of them before making one known, which changes what has closed.
	rd.devices = maps.Clone(rd.result.Devices)
	maps.DeleteFunc(rd.devices, rd.gone)
	if len(rd.devices) > 0 {
		defer p.Together()()
	}
	for f := range featuresThat[scanner](cs.core) {
		f.scanned(rd, from, &scan)
	}
	cs.emit(from, aggregator.Event{Kind: aggregator.Scanned, Scan: &scan})
	for device := range rd.devices { // they are described now
		if len(p.devices.chips(device)) > 0 {
			p.chipsRead(device)
		}
	}
	cs.schedule(rd, scan.Partial || scan.Contradicted())
	if !rd.buffersOnly {
		b.unread = map[uint64]bool{}
		for _, id := range rd.result.UnreadPrograms {
			b.unread[id] = true
		}
	}
	if rd.first && !scan.Partial {
		p.start.Late = false
		cs.describe(p, rd.at)
	}
}
