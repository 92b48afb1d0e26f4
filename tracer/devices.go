package tracer

import (
	"errors"
	"fmt"
	"time"

	"tt-memtrace/aggregator"
	"tt-memtrace/aggregator/exact"
	"tt-memtrace/bpf"
	"tt-memtrace/internal/inspect"
	"tt-memtrace/internal/memory"
)

func (r *run) recordsOfDevices() []recordKind {
	close := takes(bpf.MemtraceTtKindTT_DEVICE_CLOSE, r.closes)
	gone := takes(bpf.MemtraceTtKindTT_ALLOCATOR_GONE, r.allocatorGone)
	close.from, gone.from = tracedProcess, tracedProcess
	return []recordKind{
		takes(bpf.MemtraceTtKindTT_DEVICE_OPEN, r.opens),
		close,
		gone,
		takes(bpf.MemtraceTtKindTT_RESIZED, r.resizes),
	}
}

// opens handles the beginning of a device's opening.
func (r *run) opens(rec record, e *bpf.MemtraceTtObject) {
	p, device := rec.p, e.Object
	if p == nil {
		return
	}
	r.endsAt(p, device, rec.time) // whatever was at this address before is gone
	p.touch(device)
	p.notAbove(device)
	delete(p.devices, device)
	delete(p.meshes, device)
	delete(p.waiting, device)
	delete(p.closed, device)
	// If the device is not complete yet, its first buffer asks again.
	if d, err := r.chipsOf(p, device); err == nil {
		r.opened(p, rec.origin, device, d)
	}
	p.awaitCapacity(device)
}

// allocatorGone handles the end of an allocator.
func (r *run) allocatorGone(rec record, e *bpf.MemtraceTtObject) {
	r.allocatorEnds(rec.p, rec.origin, e.Object)
}

func (r *run) allocatorEnds(p *traced, from origin, allocator uint64) {
	if p != nil {
		r.dropAllocator(p, from, allocator)
		p.touch(allocator)
	}
	r.emit(aggregator.Event{Kind: aggregator.AllocatorGone, PID: from.pid, TID: from.tid, Time: from.time, Allocator: allocator})
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

// know emits the descriptions of a buffer's device and allocator unless that was done.
func (r *run) know(p *traced, from origin, device, allocator uint64) {
	if _, closed := p.closed[device]; closed && p.allocators[allocator] {
		r.closeFailed(p, from)
	}
	r.device(p, from, device)
	if !p.allocators[allocator] {
		capacity, err := p.Capacity(allocator)
		r.sized(p, from, device, allocator, &capacity)
		if err != nil {
			p.unknownCapacities[allocator] = unknownCapacity{err, time.Now()}
			p.awaitCapacity(device) // to ask for its banks again
		}
	}
}

// closeFailed has a process read again that uses a device, with the same allocator, after the device began to close:
// what it held was dropped, and still exists.
func (r *run) closeFailed(p *traced, from origin) {
	r.unreadOf(p)
	p.reconciliation.suspect = time.Now()
	r.emit(aggregator.Event{Kind: aggregator.ReasonRaised, PID: from.pid, TID: from.tid, Time: from.time,
		Reason: &aggregator.Reason{Code: exact.ReasonInconsistentEvents, Detail: "a device was used after it was closed"}})
}

// uses reports whether a live process has the chip with a unique ID.
func (r *run) uses(unique uint64) bool {
	for _, p := range r.processes.each() {
		if p.chips.Uses(unique) {
			return true
		}
	}
	return false
}

// noticeOnce emits one notice per process about what could not be read of it. A typical process closes its device a
// moment after its first allocation; what it held is then shown without chips.
func (p *traced) noticeOnce(r *run, err error) {
	if !p.noticed {
		p.noticed = true
		r.t.opts.Notice(fmt.Sprintf("process %d: %v", p.mapping.PID, err))
	}
}

// device emits a device's description while the device exists, unless that was done. A device that cannot be read now
// enters the accounts without chips and is read again later.
func (r *run) device(p *traced, from origin, address uint64) {
	chips, met := p.devices[address]
	if len(chips) > 0 || met && p.unsized[address] != nil {
		return
	}
	d, err := r.chipsOf(p, address)
	if errors.Is(err, memory.ErrLater) {
		p.awaitCapacity(address)
	} else if err != nil {
		p.awaitCapacity(address)
		if u := p.unsized[address]; u != nil {
			u.why = fmt.Errorf("the chips of its device at %#x are unknown: %w", address, err)
		}
	}
	r.opened(p, from, address, d)
}

// opened emits a device's description, and what waited for that.
func (r *run) opened(p *traced, from origin, address uint64, d inspect.Device) {
	opened := r.noteOpened(p, address, d)
	r.emit(aggregator.Event{Kind: aggregator.DeviceOpen, PID: from.pid, TID: from.tid, Time: from.time,
		Device: address, Opened: opened})
	if len(opened.Chips) > 0 {
		p.chipsRead(address)
	}
}

// noteOpened notes that a device is open, and returns its description.
func (r *run) noteOpened(p *traced, address uint64, d inspect.Device) *aggregator.Opened {
	opened := p.chips.Opened(d, r.names, r.uses)
	p.devices[address] = opened.Chips
	if delete(p.meshes, address); d.Mesh {
		p.meshes[address] = true
	}
	r.relations(p.mapping.PID).ringsAgain = true
	delete(p.closed, address)
	return opened
}
