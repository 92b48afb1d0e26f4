package tracer

import (
	"time"

	"tt-memtrace/aggregator"
	"tt-memtrace/aggregator/exact"
	"tt-memtrace/bpf"
)

func (r *run) recordsOfBuffers() []recordKind {
	alloc := takes(bpf.MemtraceTtKindTT_ALLOC, r.allocated)
	alloc.missed, alloc.unread = r.missedAllocs, r.unreadAlloc
	ahead := func(kind bpf.MemtraceTtKind, add func(origin, []byte)) recordKind {
		return recordKind{kind: kind, from: noProcess, take: func(r record) { add(r.origin, r.bytes) }}
	}
	return []recordKind{
		alloc,
		takes(bpf.MemtraceTtKindTT_FREE, r.freed),
		takes(bpf.MemtraceTtKindTT_HOOKED, r.hooked),
		takes(bpf.MemtraceTtKindTT_PERSISTENT, r.persistent),
		ahead(bpf.MemtraceTtKindTT_SHARDED, r.sharded.add),
		ahead(bpf.MemtraceTtKindTT_PER_CORE, r.perCore.add),
	}
}

func (r *run) allocated(rec record, e *bpf.MemtraceTtAlloc) {
	from, p := rec.origin, rec.p
	perBank, address := uint64(e.Head.PerBank), uint64(e.Address)
	onCores, placed := r.placesOnCores(from)
	if onCores != "" {
		address = onCores.Lowest()
	}
	if p == nil {
		if perBank == 0 {
			r.processes.of(from.pid).unsized = true
		}
	} else {
		r.know(p, from, e.Device, e.Allocator)
		if p.reconciliation.forkedFrom != 0 {
			p.use(e.Device)
		}
		p.touch(e.Buffer)
		p.unhook(e.Buffer)
		switch {
		case !placed:
			perBank = 0
			r.reservedUnread(p, from)
		case perBank == 0:
			perBank = r.reservedSize(p, from, e)
		}
	}
	r.emit(aggregator.Event{
		Kind: aggregator.Alloc, Memory: aggregator.Memory(e.Head.Memory), MemoryLayout: e.Head.Layout,
		PID: from.pid, TID: from.tid, Time: from.time,
		Device: e.Device, Allocator: e.Allocator, Buffer: e.Buffer,
		Address: address, Size: e.Size, PageSize: uint64(e.PageSize), PerBank: perBank, PerCore: onCores,
		Stack: r.stacks.take(from),
	})
	r.markAllocated(from, e.Buffer)
}

// unreadAlloc handles that an allocation could not be read: see missedAllocs.
func (r *run) unreadAlloc(rec record) {
	if rel := r.processes.get(rec.pid).relations; rel != nil && len(rel.capturing) > 0 {
		r.raise(rec.pid, exact.ReasonTracesMissed)
	}
	r.unreadEvent(rec)
}

func (r *run) freed(rec record, e *bpf.MemtraceTtObject) {
	if p := rec.p; p != nil {
		if p.unhook(e.Object) {
			return // it was never in the accounts
		}
		p.touch(e.Object)
	}
	r.emit(aggregator.Event{Kind: aggregator.Free, PID: rec.pid, TID: rec.tid, Time: rec.time,
		Buffer: e.Object, Stack: r.stacks.take(rec.origin)})
	r.processes.get(rec.pid).marks.forget(e.Object)
}

// hooked handles that graph capture took a buffer, for which the allocator then reserves nothing.
func (r *run) hooked(rec record, e *bpf.MemtraceTtObject) {
	if rec.p != nil {
		rec.p.hook(e.Object)
	}
}

// persistent handles that an allocator may have persistent L1. A comparison says whether it has any.
func (r *run) persistent(rec record, _ *bpf.MemtraceTtObject) {
	if rec.p != nil {
		r.raise(rec.pid, exact.ReasonPersistentL1)
		rec.p.reconciliation.suspect = time.Now()
	}
}
