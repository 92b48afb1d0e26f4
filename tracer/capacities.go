package tracer

import (
	"time"

	"tt-memtrace/aggregator"
	"tt-memtrace/tracer/proc"
)

// A device gets its allocator after the probe of its opening, and no probe is hit
// then. So the device is asked until it has one, or until a buffer names it: how large its
// memories are is known before anything is allocated in them. So is one that a buffer named, and
// whose chips could not be read then.

// unsized is a device whose allocator or chips are not known.
type unsized struct {
	since, next time.Time
	wait        time.Duration
	// why its chips could not be read, when a buffer named it, unless that was noticed.
	why error
}

const (
	// firstSized is how long after its opening began a device is asked first, and lastSized how
	// long the asking is apart at the most.
	firstSized = 5 * time.Millisecond
	lastSized  = 500 * time.Millisecond
	// longestOpening is how long a device is asked.
	longestOpening = time.Minute
	// maxUnsized bounds the devices of a process that are asked.
	maxUnsized = 256
)

// awaitCapacity has a device asked for its chips and its allocator until it has both.
func (p *traced) awaitCapacity(device uint64) {
	if p.unsized[device] == nil && len(p.unsized) < maxUnsized {
		now := time.Now()
		p.unsized[device] = &unsized{since: now, next: now.Add(firstSized), wait: firstSized}
	}
}

// opening says whether a device opens whose chips are not known yet.
func (r *run) opening() bool {
	for _, p := range r.processes {
		for device := range p.unsized {
			if _, described := p.devices[device]; !described {
				return true
			}
		}
	}
	return false
}

// capacities asks devices that are due or, with now, all.
func (r *run) capacities(now bool) {
	for _, p := range r.processes {
		for device, u := range p.unsized {
			if !now && time.Now().Before(u.next) {
				continue
			}
			allocator, capacity, err := p.AllocatorOf(device)
			if err != nil && len(p.others) > 0 {
				r.described(p, device) // it can be of another build, which is asked then
				allocator, capacity, err = p.AllocatorOf(device)
			}
			if err == nil && r.described(p, device) {
				r.sized(p, origin{pid: p.mapping.PID, time: proc.Now()}, device, allocator, &capacity)
			} else if time.Since(u.since) > longestOpening {
				delete(p.unsized, device)
			} else {
				u.wait = min(2*u.wait, lastSized)
				u.next = time.Now().Add(u.wait)
				if u.why != nil && len(p.devices[device]) == 0 && time.Since(u.since) >= settle { // else it may be going, or its process
					p.noticeOnce(r, u.why)
					u.why = nil
				}
			}
		}
	}
}

// described says whether a device is described, after a try.
func (r *run) described(p *traced, device uint64) bool {
	if len(p.devices[device]) > 0 {
		return true
	}
	d, err := r.chipsOf(p, device)
	if err == nil {
		r.opened(p, origin{pid: p.mapping.PID, time: proc.Now()}, device, d)
	}
	return err == nil
}

// sized takes in which allocator a device has, and how large the memories are that it has banks of.
func (r *run) sized(p *traced, from origin, device, allocator uint64, capacity *aggregator.Capacity) {
	if len(p.devices[device]) > 0 { // else its capacity comes again, with its chips
		delete(p.unsized, device)
	}
	p.allocators[allocator] = true
	delete(p.unknownCapacities, allocator)
	if p.reconciliation.now != nil {
		p.reconciliation.met[allocator] = true
	}
	r.emit(aggregator.Event{Kind: aggregator.AllocatorSeen, PID: from.pid, TID: from.tid, Time: from.time,
		Device: device, Allocator: allocator, Capacity: capacity})
}

// unknownCapacity is why the capacity of an allocator is not known, and since when.
type unknownCapacity struct {
	why   error
	since time.Time
}
