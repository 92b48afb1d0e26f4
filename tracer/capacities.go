package tracer

import (
	"tt-memtrace/aggregator"
	"tt-memtrace/bpf"
	"tt-memtrace/internal/proc"
)

// A device gets its allocator after the probe of its opening, and no probe is hit at that moment. So the tracer reads
// the device repeatedly until it has an allocator or a buffer names it: then the sizes of its memories are known
// before anything is allocated in them. It also reads again a device that a buffer named while its chips could not be
// read.

// maxUnsized bounds the devices per process that are read in this way.
const maxUnsized = 256

// awaitCapacity has a device read again until its chips and its allocator are known.
func (p *traced) awaitCapacity(address uint64) {
	if p.devices.get(address).sizing == nil && count(p.devices.unsized()) < maxUnsized {
		p.devices.begins(address).sizing = &unsized{attempt: opening.from(proc.Now())}
	}
}

// resizes handles the beginning of a change of an allocator's memories, when a sub-device manager is loaded or cleared.
func (ds *devices) resizes(rec record, e *bpf.MemtraceTtObject) {
	if rec.p != nil {
		at := resizing.from(rec.time)
		rec.p.resized[e.Object] = &at
	}
}

// readResized reads the capacities of the resized allocators that are due or, with now, of all.
func (ds *devices) readResized(p *traced, now bool) {
	for address, at := range p.resized {
		if !at.due(now) {
			continue
		}
		if !p.allocators.knows(address) { // it gets its capacity with its first buffer
			delete(p.resized, address)
			continue
		}
		if capacity, err := p.Capacity(address); err == nil {
			ds.emit(nowOf(p.mapping.PID), aggregator.Event{Kind: aggregator.AllocatorSeen,
				Device: p.allocators[address].device, Allocator: address, Capacity: &capacity})
		}
		if !at.again(resizing) {
			delete(p.resized, address)
		}
	}
}

func (ds *devices) due(now bool) {
	for _, p := range ds.processes.each() {
		ds.readResized(p, now)
		ds.capacities(p, now)
		ds.closings(p, now)
	}
}

// opening reports whether some device is opening whose chips are still unknown.
func (ds *devices) opening() bool {
	for _, p := range ds.processes.each() {
		for _, d := range p.devices.unsized() {
			if !d.described {
				return true
			}
		}
	}
	return false
}

// capacities reads the devices that are due or, with now, all of them.
func (ds *devices) capacities(p *traced, now bool) {
	for address, d := range p.devices.unsized() {
		u := d.sizing
		if !u.due(now) {
			continue
		}
		allocator, capacity, err := p.AllocatorOf(address)
		if err != nil && len(p.others) > 0 {
			ds.described(p, address) // it may belong to another build; then p reads by that build now
			allocator, capacity, err = p.AllocatorOf(address)
		}
		if err == nil && ds.described(p, address) {
			ds.sized(p, nowOf(p.mapping.PID), address, allocator, &capacity)
			if p.of.sizes != nil && d.mesh { // buffers are seldom on a single chip of a mesh
				_, _ = p.bank(allocator, aggregator.DRAM) // otherwise it is read with its first buffer
			}
			continue
		}
		if u.why != nil && len(d.chips) == 0 && u.age() >= settle {
			// Sooner, the device or its process may just be ending.
			if p.SaysClosed(address) {
				p.doubtOnce() // it has closed unseen, which a comparison finds
			} else {
				p.noticeOnce(ds.core, u.why)
			}
			u.why = nil
		}
		if !u.again(opening) {
			p.devices.sized(address)
		}
	}
}

// described reports whether a device is described, after trying to.
func (ds *devices) described(p *traced, address uint64) bool {
	if len(p.devices.chips(address)) > 0 {
		return true
	}
	d, err := ds.chipsOf(p, address)
	if err == nil {
		ds.opened(p, nowOf(p.mapping.PID), address, d)
	}
	return err == nil
}

// sized emits a device's allocator and the sizes of the memories in whose banks it allocates.
func (ds *devices) sized(p *traced, from origin, device, allocator uint64, capacity *aggregator.Capacity) {
	p.noteSized(device, allocator)
	ds.emit(from, aggregator.Event{Kind: aggregator.AllocatorSeen, Device: device, Allocator: allocator, Capacity: capacity})
}

// noteSized notes that the sizes of an allocator's memories are known.
func (p *traced) noteSized(device, allocator uint64) {
	if len(p.devices.chips(device)) > 0 { // otherwise it is read again, with its chips
		p.devices.sized(device)
	}
	a := p.allocators.of(allocator)
	a.known, a.device, a.unread = true, device, nil
	if p.reconciliation.now != nil {
		p.reconciliation.met[allocator] = true
	}
}
