package tracer

import (
	"time"
	"unsafe"

	"tt-memtrace/aggregator"
	"tt-memtrace/aggregator/exact"
	"tt-memtrace/bpf"
)

// origin is the source of a record or an event: process, thread (0 if unknown), and time (CLOCK_MONOTONIC, ns).
type origin struct {
	pid, tid uint32
	time     uint64
}

// decode turns one record into events. The BPF programs wrote it, so it is whole and aligned.
func (r *run) decode(b []byte) {
	if len(b) < int(unsafe.Sizeof(bpf.MemtraceTtHead{})) {
		return
	}
	head := (*bpf.MemtraceTtHead)(unsafe.Pointer(&b[0]))
	r.t.newest.Store(head.Time)
	from := origin{pid: head.Pid, tid: head.Tid, time: head.Time}
	switch kind := bpf.MemtraceTtKind(head.Kind); kind {
	case bpf.MemtraceTtKindTT_ALLOC:
		e := (*bpf.MemtraceTtAlloc)(unsafe.Pointer(&b[0]))
		perBank, address := uint64(head.PerBank), uint64(e.Address)
		onCores, placed := r.placesOnCores(from)
		if onCores != "" {
			address = onCores.Lowest()
		}
		if p, known := r.process(from, head.Library); !known {
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
			Kind: aggregator.Alloc, Memory: aggregator.Memory(head.Memory), MemoryLayout: head.Layout,
			PID: from.pid, TID: from.tid, Time: from.time,
			Device: e.Device, Allocator: e.Allocator, Buffer: e.Buffer,
			Address: address, Size: e.Size, PageSize: uint64(e.PageSize), PerBank: perBank, PerCore: onCores,
			Stack: r.stacks.take(from),
		})
		r.markAllocated(from, e.Buffer)
	case bpf.MemtraceTtKindTT_CB:
		r.circularBuffer(from, head.Library, b)
	case bpf.MemtraceTtKindTT_KERNEL_ADDED, bpf.MemtraceTtKindTT_KERNEL_FILE, bpf.MemtraceTtKindTT_KERNEL_COPY,
		bpf.MemtraceTtKindTT_PROGRAM_ADDED, bpf.MemtraceTtKindTT_WORKLOAD_NAMED, bpf.MemtraceTtKindTT_SCRATCHPADS:
		r.process(from, head.Library)
		r.programRecord(from, kind, b)
	case bpf.MemtraceTtKindTT_REFUSED:
		r.process(from, head.Library)
		r.allocationFailed(from, b)
	case bpf.MemtraceTtKindTT_TRACE:
		r.process(from, head.Library)
		r.trace(from, b)
	case bpf.MemtraceTtKindTT_MARK:
		r.process(from, head.Library)
		r.handleMark(from, (*bpf.MemtraceTtMark)(unsafe.Pointer(&b[0])))
	case bpf.MemtraceTtKindTT_SHARDED:
		r.sharded.add(from, b)
	case bpf.MemtraceTtKindTT_PER_CORE:
		r.perCore.add(from, b)
	case bpf.MemtraceTtKindTT_STACK:
		r.process(from, head.Library)
		r.stacks.sentAhead.add(from, b)
	case bpf.MemtraceTtKindTT_CODE:
		r.process(from, head.Library)
		r.stacks.learn(from.pid, b)
	case bpf.MemtraceTtKindTT_PROGRAM_GONE, bpf.MemtraceTtKindTT_WORKLOAD_GONE:
		if len(b) < int(unsafe.Sizeof(bpf.MemtraceTtGone{})) {
			return
		}
		e := (*bpf.MemtraceTtGone)(unsafe.Pointer(&b[0]))
		if _, known := r.process(from, head.Library); known && e.Launches.Count > 0 {
			r.lastLaunches(from.pid, e.Object.Object, &e.Launches)
		}
		r.object(from, kind, head.Library, e.Object.Object)
	default:
		r.object(from, kind, head.Library, (*bpf.MemtraceTtObject)(unsafe.Pointer(&b[0])).Object)
	}
}

// object turns records that carry only an object's address into events.
func (r *run) object(from origin, kind bpf.MemtraceTtKind, library uint8, object uint64) {
	e := aggregator.Event{PID: from.pid, TID: from.tid, Time: from.time}
	switch kind {
	case bpf.MemtraceTtKindTT_FREE:
		if p, known := r.process(from, library); known {
			if p.unhook(object) {
				return // it was never in the accounts
			}
			p.touch(object)
		}
		e.Kind, e.Buffer, e.Stack = aggregator.Free, object, r.stacks.take(from)
		r.emit(e)
		r.processes.get(from.pid).marks.forget(object)
	case bpf.MemtraceTtKindTT_HOOKED:
		if p, known := r.process(from, library); known {
			p.hook(object)
		}
	case bpf.MemtraceTtKindTT_DEVICE_OPEN:
		p, known := r.process(from, library)
		if !known {
			return
		}
		r.endsAt(p, object, from.time) // whatever was at this address before is gone
		p.touch(object)
		p.notAbove(object)
		delete(p.devices, object)
		delete(p.meshes, object)
		delete(p.waiting, object)
		delete(p.closed, object)
		// If the device is not complete yet, its first buffer asks again.
		if d, err := r.chipsOf(p, object); err == nil {
			r.opened(p, from, object, d)
		}
		p.awaitCapacity(object)
	case bpf.MemtraceTtKindTT_DEVICE_CLOSE:
		if p, known := r.processOf(from); known {
			r.closes(p, from, library, object)
		} else {
			e.Kind, e.Device = aggregator.DeviceClose, object
			r.emit(e)
		}
	case bpf.MemtraceTtKindTT_ALLOCATOR_GONE:
		if p, known := r.processOf(from); known {
			r.dropAllocator(p, from, object)
			p.touch(object)
		}
		e.Kind, e.Allocator = aggregator.AllocatorGone, object
		r.emit(e)
	case bpf.MemtraceTtKindTT_PERSISTENT:
		if p, known := r.process(from, library); known {
			r.raise(from.pid, exact.ReasonPersistentL1) // a comparison says whether it has any
			p.reconciliation.suspect = time.Now()
		}
	case bpf.MemtraceTtKindTT_RESIZED:
		if p, known := r.process(from, library); known {
			p.resized[object] = resized{from.time, firstAsked}
		}
	case bpf.MemtraceTtKindTT_PROGRAM_GONE:
		if p, known := r.processOf(from); known {
			p.make(object)
		}
		e.Kind, e.Program = aggregator.ProgramGone, object
		r.emit(e)
		r.dropProgram(from, object)
	case bpf.MemtraceTtKindTT_WORKLOAD_GONE:
		r.relations(from.pid).dropWorkload(object)
	case bpf.MemtraceTtKindTT_UNREAD:
		if p, known := r.process(from, library); known {
			r.unread(p, from, bpf.MemtraceTtKind(object))
		}
	case bpf.MemtraceTtKindTT_EXEC:
		r.execed(from)
	case bpf.MemtraceTtKindTT_EXIT:
		r.exits(from, exitOf(object))
	}
}

// dropAllocator forgets an allocator that ended.
func (r *run) dropAllocator(p *traced, from origin, allocator uint64) {
	r.endsAt(p, allocator, from.time)
	delete(p.allocators, allocator)
	delete(p.unknownCapacities, allocator)
	delete(p.resized, allocator)
	delete(p.deviceOf, allocator)
	p.forgetBanks(allocator)
}

// dropProgram forgets a program that ended.
func (r *run) dropProgram(from origin, program uint64) {
	if p, known := r.processes.traced(from.pid); known {
		p.noProgram(program)
	}
	r.relations(from.pid).dropProgram(program)
	r.chipsKnown(from.pid, from.time, program)
}
