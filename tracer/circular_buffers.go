package tracer

import (
	"errors"
	"unsafe"

	"tt-memtrace/aggregator"
	"tt-memtrace/bpf"
	"tt-memtrace/internal/inspect"
	"tt-memtrace/internal/metal"
)

// circularBuffer handles a record of a circular buffer. A buffer with many core ranges takes several records, of one
// thread and in order. A missing one is counted as lost, and the rest of the buffer is dropped.
func (ps *programs) circularBuffer(rec record) {
	const fixed = int(unsafe.Sizeof(bpf.MemtraceTtCb{}))
	from, p, b := rec.origin, rec.p, rec.bytes
	known := p != nil
	e := (*bpf.MemtraceTtCb)(unsafe.Pointer(&b[0]))
	if known {
		p.touch(e.Program)
	}
	cb := ps.partial[from.tid]
	if e.First == 0 {
		cb = &aggregator.CircularBuffer{
			Call: e.Call, Address: e.Address, Size: e.Size, Kind: aggregator.CBKind(e.Kind),
			Ranges: make([]aggregator.CoreRange, 0, e.Count),
		}
	} else if cb == nil || uint32(len(cb.Ranges)) != e.First {
		delete(ps.partial, from.tid)
		return
	}
	const each = int(unsafe.Sizeof(bpf.MemtraceTtRange{}))
	for at := fixed; at+each <= len(b) && uint32(len(cb.Ranges)) < e.Count; at += each {
		c := (*bpf.MemtraceTtRange)(unsafe.Pointer(&b[at]))
		cb.Ranges = append(cb.Ranges, aggregator.CoreRange{
			X0: inspect.ClampCore(c.X0), Y0: inspect.ClampCore(c.Y0), X1: inspect.ClampCore(c.X1), Y1: inspect.ClampCore(c.Y1),
		})
	}
	if uint32(len(cb.Ranges)) < e.Count {
		ps.partial[from.tid] = cb
		return
	}
	delete(ps.partial, from.tid)
	device, program, on := e.Device, e.Program, e.On // b is overwritten after this call, but the closures below run later
	if known {
		ps.devices.device(p, from, device)
	}
	if cb.Kind == aggregator.Dataflow && known && !p.of.lib.Defines(metal.ReserveLocal) {
		if ps.relations(from.pid).marks(from.tid, cb) {
			p.noticeOnce(ps.core, errors.New("the cores of a dataflow buffer are not known exactly: it is counted on all cores that may have it"))
		}
	}
	place := func(device uint64) {
		ps.emit(from, aggregator.Event{
			Kind:   aggregator.CBPlaced,
			Device: device, Program: program, CB: cb,
		})
	}
	if !known {
		place(device)
		return
	}
	ps.onChips(p, from, device, program, func() {
		for _, d := range ps.spread(p, from, program, device, on) {
			place(d)
		}
	})
}

// marks collects the calls of mark_address with which a thread places one dataflow buffer: one for each allocator,
// with that allocator's cores. It reports whether cores of two allocators overlap. The buffer's own core ranges are
// all among the allocators', and each allocator touches one of them. So if no two overlap, the allocators' ranges are
// exactly the buffer's.
func (rel *relations) marks(tid uint32, cb *aggregator.CircularBuffer) (over bool) {
	list := rel.marked[tid]
	if len(list) > 0 && (list[0].Call != cb.Call || list[0].Address != cb.Address || list[0].Size != cb.Size) {
		list = nil
	}
	for _, old := range list {
		if len(old.Ranges) > 0 && len(cb.Ranges) > 0 && old.Ranges[0].Overlaps(cb.Ranges[0]) {
			over = true
		}
	}
	rel.marked[tid] = append(list, cb)
	return over
}
