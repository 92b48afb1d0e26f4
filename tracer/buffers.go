package tracer

import (
	"time"

	"tt-memtrace/aggregator"
	"tt-memtrace/aggregator/exact"
	"tt-memtrace/bpf"
)

// buffers are the records of buffers that are allocated and freed.
type buffers struct {
	*core
	devices  *devices
	markings *markings
	stacks   *stacks
	traces   *traces

	// sharded holds the records from which the sizes of sharded buffers are computed.
	sharded sentAhead[bpf.MemtraceTtSharded]
	// perCore are where buffers lie that have an address on each core, until their allocation is read.
	perCore sentAhead[bpf.MemtraceTtPerCore]
}

func (bs *buffers) records() []recordKind {
	alloc := takes(bpf.MemtraceTtKindTT_ALLOC, bs.allocated)
	alloc.missed, alloc.unread = bs.traces.missedAllocs, bs.unreadAlloc
	ahead := func(kind bpf.MemtraceTtKind, add func(origin, []byte)) recordKind {
		return recordKind{kind: kind, from: noProcess, take: func(r record) { add(r.origin, r.bytes) }}
	}
	return []recordKind{
		alloc,
		takes(bpf.MemtraceTtKindTT_FREE, bs.freed),
		takes(bpf.MemtraceTtKindTT_HOOKED, bs.hooked),
		takes(bpf.MemtraceTtKindTT_PERSISTENT, bs.persistent),
		ahead(bpf.MemtraceTtKindTT_SHARDED, bs.sharded.add),
		ahead(bpf.MemtraceTtKindTT_PER_CORE, bs.perCore.add),
	}
}

func (bs *buffers) allocated(rec record, e *bpf.MemtraceTtAlloc) {
	from, p := rec.origin, rec.p
	perBank, address := uint64(e.Head.PerBank), uint64(e.Address)
	onCores, placed := bs.placesOnCores(from)
	if onCores != "" {
		address = onCores.Lowest()
	}
	if p == nil {
		if perBank == 0 {
			bs.processes.of(from.pid).unsized = true
		}
	} else {
		bs.devices.know(p, from, e.Device, e.Allocator)
		if p.reconciliation.forkedFrom != 0 {
			p.use(e.Device)
		}
		p.touch(e.Buffer)
		p.unhook(e.Buffer)
		switch {
		case !placed:
			perBank = 0
			bs.reservedUnread(p, from)
		case perBank == 0:
			perBank = bs.reservedSize(p, from, e)
		}
	}
	bs.emit(from, aggregator.Event{
		Kind: aggregator.Alloc, Memory: aggregator.Memory(e.Head.Memory), MemoryLayout: e.Head.Layout,
		Device: e.Device, Allocator: e.Allocator, Buffer: e.Buffer,
		Address: address, Size: e.Size, PageSize: uint64(e.PageSize), PerBank: perBank, PerCore: onCores,
		Stack: bs.stacks.take(from),
	})
	bs.markings.markAllocated(from, e.Buffer)
}

// unreadAlloc handles that an allocation could not be read: see missedAllocs.
func (bs *buffers) unreadAlloc(rec record) {
	if rel := bs.processes.get(rec.pid).relations; rel != nil && len(rel.capturing) > 0 {
		bs.raise(rec.origin, exact.ReasonTracesMissed)
	}
	bs.unreadEvent(rec)
}

func (bs *buffers) freed(rec record, e *bpf.MemtraceTtObject) {
	if p := rec.p; p != nil {
		if p.unhook(e.Object) {
			return // it was never in the accounts
		}
		p.touch(e.Object)
	}
	bs.emit(rec.origin, aggregator.Event{Kind: aggregator.Free, Buffer: e.Object, Stack: bs.stacks.take(rec.origin)})
	bs.processes.get(rec.pid).marks.forget(e.Object)
}

// hooked handles that graph capture took a buffer, for which the allocator then reserves nothing.
func (bs *buffers) hooked(rec record, e *bpf.MemtraceTtObject) {
	if rec.p != nil {
		rec.p.hook(e.Object)
	}
}

// persistent handles that an allocator may have persistent L1. A comparison says whether it has any.
func (bs *buffers) persistent(rec record, _ *bpf.MemtraceTtObject) {
	if rec.p != nil {
		bs.raise(rec.origin, exact.ReasonPersistentL1)
		rec.p.doubt()
	}
}

// scanned adds whether the reserved size of buffers from before tracing could be read. It settles nothing if new doubts
// arose since the reading began. Most buffers that were seen to be allocated have a known reserved size.
func (bs *buffers) scanned(rd *reading, _ origin, scan *aggregator.Scan) {
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
