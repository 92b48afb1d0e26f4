package tracer

import (
	"errors"
	"slices"
	"unsafe"

	"tt-memtrace/aggregator"
	"tt-memtrace/bpf"
	"tt-memtrace/tracer/eval"
)

// knowsCores says why the cores of dataflow buffers would not be known, or nil.
// Either they are told before a buffer is placed, or each allocator that the
// buffer is marked in begins with its CoreRange, and then has the places that
// are taken: which is what mark_address reads.
func (l *Library) knowsCores() error {
	if l.Defines(reserveLocal) {
		return nil
	}
	image, err := l.Image()
	if err != nil {
		return err
	}
	const steps = 1000
	const rangeSize = int64(unsafe.Sizeof(bpf.MemtraceTtRange{}))
	probe := eval.NewProbe(image)
	m := eval.New(probe, eval.WithSlots(image.SlotFunc(eval.Libc)), eval.WithStepLimit(steps))
	// Whether it gets to its end does not matter.
	_, _ = m.Call(l.symbols[markAddress].Value, probe.Root(), 0x1000, 0x100, 0x1000)
	for _, at := range []int64{rangeSize, rangeSize + 8} {
		if !slices.ContainsFunc(probe.Loads(), func(load eval.Load) bool {
			return len(load.Path.Offsets) == 0 && load.Path.Tail == at && load.Size == 8
		}) {
			return errors.New("its allocators have no list of places behind a range of cores")
		}
	}
	return nil
}

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
	if cb.Kind == aggregator.Dataflow && p != nil && !p.lib.Defines(reserveLocal) {
		if r.relations(head.Pid).marks(head.Tid, cb) {
			p.complain(r, errors.New("the cores of a dataflow buffer are not known exactly: it is counted on all that can have it"))
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

// marks notes what a thread marked in one allocator after the other, each with
// its own cores, and says whether these lie over each other. A buffer's own core
// ranges are all among those of the allocators that it is marked in, and each of
// these touches one of them: where no two lie over each other, they are the same.
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
