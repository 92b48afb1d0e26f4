package tracer

import (
	"unsafe"

	"tt-memtrace/aggregator"
	"tt-memtrace/bpf"
)

// circularBuffer takes in a record of a circular buffer. One with many core
// ranges comes in several, of the same thread and in order; whichever is lost is
// counted as lost, and what is left of the buffer is dropped.
func (r *run) circularBuffer(head *bpf.MemtraceTtHead, b []byte) {
	const fixed = int(unsafe.Sizeof(bpf.MemtraceTtCb{}))
	if len(b) < fixed {
		return
	}
	e := (*bpf.MemtraceTtCb)(unsafe.Pointer(&b[0]))
	p := r.process(head)
	p.touch(e.Program)
	cb := r.partial[head.Tid]
	if e.First == 0 {
		cb = &aggregator.CircularBuffer{
			Call: e.Call, Address: e.Address, Size: e.Size, Kind: aggregator.CBKind(e.Kind),
			Ranges: make([]aggregator.CoreRange, 0, e.Count),
		}
	} else if cb == nil || uint32(len(cb.Ranges)) != e.First {
		delete(r.partial, head.Tid)
		return
	}
	const each = int(unsafe.Sizeof(bpf.MemtraceTtRange{}))
	for at := fixed; at+each <= len(b) && uint32(len(cb.Ranges)) < e.Count; at += each {
		c := (*bpf.MemtraceTtRange)(unsafe.Pointer(&b[at]))
		cb.Ranges = append(cb.Ranges, aggregator.CoreRange{
			X0: clampCore(c.X0), Y0: clampCore(c.Y0), X1: clampCore(c.X1), Y1: clampCore(c.Y1),
		})
	}
	if uint32(len(cb.Ranges)) < e.Count {
		r.partial[head.Tid] = cb
		return
	}
	delete(r.partial, head.Tid)
	if p != nil {
		if _, ok := p.devices[e.Device]; !ok {
			r.device(p, head, e.Device)
		}
	}
	r.emit(aggregator.Event{
		Kind: aggregator.CBPlaced, PID: head.Pid, TID: head.Tid, Time: head.Time,
		Device: e.Device, Program: e.Program, CB: cb,
	})
}

// clampCore keeps a coordinate that a process claims within what a chip could have.
func clampCore(v uint64) uint16 {
	const most = 255
	return uint16(min(v, most))
}
