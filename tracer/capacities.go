package tracer

import (
	"time"

	"tt-memtrace/aggregator"
	"tt-memtrace/bpf"
	"tt-memtrace/internal/proc"
)

// A device gets its allocator after the probe of its opening, and no probe is hit at that moment. So the tracer reads
// the device repeatedly until it has an allocator or a buffer names it: then the sizes of its memories are known
// before anything is allocated in them. It also reads again a device that a buffer named while its chips could not be
// read.

// unsized is a device whose allocator or chips are unknown.
type unsized struct {
	since, next time.Time
	wait        time.Duration
	// why is the error of reading its chips when a buffer named it; nil once noticed.
	why error
}

const (
	// firstSized is the delay of the first read after its opening began; the delays double up to lastSized.
	firstSized = 5 * time.Millisecond
	lastSized  = 500 * time.Millisecond
	// longestOpening is how long to keep reading a device.
	longestOpening = time.Minute
	// maxUnsized bounds the devices per process that are read in this way.
	maxUnsized = 256
)

// awaitCapacity has a device read again until its chips and its allocator are known.
func (p *traced) awaitCapacity(device uint64) {
	if p.unsized[device] == nil && len(p.unsized) < maxUnsized {
		now := time.Now()
		p.unsized[device] = &unsized{since: now, next: now.Add(firstSized), wait: firstSized}
	}
}

// resized is an allocator of which a memory changes its size, when a sub-device manager is loaded or cleared. The probe
// is at the beginning of that, so it is read a moment later, and once more.
type resized struct {
	time uint64
	// next is the age at which it is read next.
	next time.Duration
}

// resizes handles the beginning of a change of an allocator's memories.
func (ds *devices) resizes(rec record, e *bpf.MemtraceTtObject) {
	if rec.p != nil {
		rec.p.resized[e.Object] = resized{rec.time, firstAsked}
	}
}

// readResized reads the capacities of the resized allocators that are due or, with now, of all.
func (ds *devices) readResized(p *traced, now bool) {
	for allocator, at := range p.resized {
		age := proc.Monotonic() - time.Duration(at.time)
		if !now && age < at.next {
			continue
		}
		if !p.allocators[allocator] { // it gets its capacity with its first buffer
			delete(p.resized, allocator)
			continue
		}
		if capacity, err := p.Capacity(allocator); err == nil {
			ds.emit(nowOf(p.mapping.PID), aggregator.Event{Kind: aggregator.AllocatorSeen,
				Device: p.deviceOf[allocator], Allocator: allocator, Capacity: &capacity})
		}
		if at.next = lastAsked; age < lastAsked {
			p.resized[allocator] = at
		} else {
			delete(p.resized, allocator)
		}
	}
}

func (ds *devices) due(now bool) {
	ds.capacities(now)
	ds.closings(now)
}

// opening reports whether some device is opening whose chips are still unknown.
func (ds *devices) opening() bool {
	for _, p := range ds.processes.each() {
		for device := range p.unsized {
			if _, described := p.devices[device]; !described {
				return true
			}
		}
	}
	return false
}

// capacities reads the devices that are due or, with now, all of them.
func (ds *devices) capacities(now bool) {
	for _, p := range ds.processes.each() {
		ds.readResized(p, now)
		for device, u := range p.unsized {
			if !now && time.Now().Before(u.next) {
				continue
			}
			allocator, capacity, err := p.AllocatorOf(device)
			if err != nil && len(p.others) > 0 {
				ds.described(p, device) // it may belong to another build; then p reads by that build now
				allocator, capacity, err = p.AllocatorOf(device)
			}
			if err == nil && ds.described(p, device) {
				ds.sized(p, origin{pid: p.mapping.PID, time: proc.Now()}, device, allocator, &capacity)
			} else if time.Since(u.since) > longestOpening {
				delete(p.unsized, device)
			} else {
				u.wait = min(2*u.wait, lastSized)
				u.next = time.Now().Add(u.wait)
				if u.why != nil && len(p.devices[device]) == 0 && time.Since(u.since) >= settle { // sooner, the device or its process may just be ending
					p.noticeOnce(ds.core, u.why)
					u.why = nil
				}
			}
		}
	}
}

// described reports whether a device is described, after trying to.
func (ds *devices) described(p *traced, device uint64) bool {
	if len(p.devices[device]) > 0 {
		return true
	}
	d, err := ds.chipsOf(p, device)
	if err == nil {
		ds.opened(p, origin{pid: p.mapping.PID, time: proc.Now()}, device, d)
	}
	return err == nil
}

// sized emits a device's allocator and the sizes of the memories in whose banks it allocates.
func (ds *devices) sized(p *traced, from origin, device, allocator uint64, capacity *aggregator.Capacity) {
	p.noteSized(device, allocator)
	ds.emit(from, aggregator.Event{Kind: aggregator.AllocatorSeen,
		Device: device, Allocator: allocator, Capacity: capacity})
}

// noteSized notes that the sizes of an allocator's memories are known.
func (p *traced) noteSized(device, allocator uint64) {
	if len(p.devices[device]) > 0 { // otherwise it is read again, with its chips
		delete(p.unsized, device)
	}
	p.allocators[allocator] = true
	p.deviceOf[allocator] = device
	delete(p.unknownCapacities, allocator)
	if p.reconciliation.now != nil {
		p.reconciliation.met[allocator] = true
	}
}

// unknownCapacity is why an allocator's capacity is unknown, and since when.
type unknownCapacity struct {
	why   error
	since time.Time
}
