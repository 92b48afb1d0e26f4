package tracer

import (
	"maps"
	"slices"
	"time"

	"tt-memtrace/aggregator"
	"tt-memtrace/internal/inspect"
)

// reconciliation is the run's state of comparing one process with its accounts.
type reconciliation struct {
	// forkedFrom, if not 0, is the process that this one forked from: its memory began as a copy of the parent's, and
	// inherited objects are attributed to the parent.
	forkedFrom uint32
	// read is set once its allocators were scanned completely.
	read bool
	// now is the reading under way, or nil.
	now *reading
	// early is set when events arrived, after the reading was requested, that happened before it began.
	early bool
	// met are the allocators first seen since the reading began.
	met map[uint64]bool
	// made are the programs created or destroyed since then: events have all of them.
	made map[uint64]bool
	// suspect is since when its accounts are in doubt, so that its allocators must be scanned again; zero if they are
	// not.
	suspect time.Time
	// lost is how many events were missing at the last reading, and lostParts how many of those that make up
	// programs.
	lost, lostParts uint64
	// lostPrograms is how many ends of programs had been lost before.
	lostPrograms uint64
	// disagrees is set while the runtime's own account contradicts the last complete scan, and if a device has other
	// chips than known: the next scan is a complete one.
	disagrees bool
	// tracesBefore is set while a scan found that buffers may be younger than traces from before.
	tracesBefore bool
	// unreserved is set while the reserved size of some buffers could not be read.
	unreserved bool
	// unread are the programs that the last reading could not read completely. unfinished is set if it ran out of
	// time for some, which are read next.
	unread     map[uint64]bool
	unfinished bool
	// failureNoticed: a notice said that its buffers cannot be read. unreadNoticed: one said so of some programs.
	failureNoticed, unreadNoticed bool
	// next is when the accounts are compared again without a reason. failures is how many readings in a row failed or
	// left something out; they make next come sooner.
	next     time.Time
	failures int
}

// reading is one scan of a process's allocators and programs.
type reading struct {
	of *traced
	// first: the process was not watched from its start, and this is its first scan.
	first bool
	// lost, lostParts and lostPrograms are copied from the reconciliation when the reading began.
	lost, lostParts, lostPrograms uint64
	// bare: the process runs library code that has no probes.
	bare bool
	// fork, if not nil, describes the process's parent, whose copies the scan leaves out.
	fork *inspect.Fork
	// buffersOnly: the scan reads only the buffers of known allocators. since is when its last try began.
	buffersOnly bool
	since       uint64
	// touched are the objects of events since then. These events supersede the scanned values.
	touched map[uint64]struct{}
	// others are the builds of the runtime that this scan does not read. open are the indexes of those that have
	// devices open.
	others []another
	open   []int
	// described are the properties of the open devices, and capacities those of their allocators, if they
	// could be read; of known meshes alone, except at the first scan and after events were lost.
	described  map[uint64]inspect.Device
	capacities map[uint64]aggregator.Capacity
	// traces says why buffers may be younger than traces from before, or is nil. Filled only at the first scan.
	traces error
	// closed are devices that were known when it began and are not open: of those without known chips, and of all after
	// events were lost.
	closed []uint64
	tries  int
	began  time.Time
	// These are set before features take in the result. whole: records that make up programs were lost, so known
	// programs may lack something. replaced: the end of a program may have been lost, so another one may be at its
	// address. told are programs that events reported completely, and devices the open devices.
	whole, replaced bool
	told            map[uint64]bool
	devices         map[uint64]uint64
	// result and err are set when the reading ends, at (CLOCK_MONOTONIC, ns).
	result *inspect.ProcessScan
	err    error
	at     uint64
}

// touch notes, during a reading, that an event named a buffer, an allocator or a program, or opened a device.
func (p *traced) touch(id uint64) {
	if b := &p.reconciliation; b.now != nil {
		b.now.touched[id] = struct{}{}
		b.early = b.early || p.last < b.now.since
	}
}

// doubt has the process compared soon.
func (p *traced) doubt() { p.reconciliation.suspect = time.Now() }

// doubtOnce does the same, unless the process is to be compared already.
func (p *traced) doubtOnce() {
	if p.reconciliation.suspect.IsZero() {
		p.doubt()
	}
}

// make notes that a program is created or destroyed, in case the process is being read.
func (p *traced) make(program uint64) {
	p.touch(program)
	if p.reconciliation.now != nil {
		p.reconciliation.made[program] = true
	}
}

// describe reads the open devices and their allocators' capacities.
func (rd *reading) describe(in *inspect.Inspector, chips *inspect.Chips) {
	rd.described = chips.By(in).Devices(slices.Collect(maps.Keys(rd.result.Devices)))
	rd.capacities = map[uint64]aggregator.Capacity{}
	rd.traces = in.OlderThanTraces(rd.result)
	for _, allocator := range rd.result.Devices {
		if allocator == 0 {
			continue
		}
		if c, err := in.Capacity(allocator); err == nil {
			rd.capacities[allocator] = c
		}
	}
}

// lacks reports whether the scan misses something that matters.
func (rd *reading) lacks() bool {
	scan := rd.result
	// If programs cannot be found, what was lost about them stays lost.
	unfound := rd.whole && !rd.buffersOnly && !scan.Scan.ProgramsRead && len(scan.Devices) > 0
	unread := len(scan.Shared) > 0 && rd.lost != rd.of.reconciliation.lost // the scan does not have what was lost
	return scan.Unsearched != nil || unfound || unread || (rd.whole || rd.first) && scan.UnreadBut(rd.told) > 0 ||
		slices.ContainsFunc(scan.UnreadAllocators, func(a uint64) bool { return rd.of.allocators.knows(a) || scan.Holds(a) })
}

// gone reports whether a device closed, or its allocator ended, during the reading.
func (rd *reading) gone(device, allocator uint64) bool {
	_, ended := rd.touched[allocator]
	at, closed := rd.of.devices.closed[device]
	return closed && at >= rd.since || ended
}

// superseded reports whether events arrived after the reading was requested that happened before it began, and that
// leave something in doubt. They supersede what was read, because their objects may have been changing. But later
// events about the same objects may be missing: lost, or from a time when not all probes were attached (they are
// attached one by one).
func (b *reconciliation) superseded() bool {
	return b.early && (b.now.first && b.now.tries == 0 || b.now.lost != b.lost)
}
