package tracer

import (
	"slices"
	"time"

	"tt-memtrace/aggregator"
	"tt-memtrace/bpf"
	"tt-memtrace/tracer/proc"
)

// A probe is hit where a device begins to close, and none where it has closed, or could
// not: close throws then, and the device keeps what it has. So a device that closes is held as open
// until it says itself that it is not, its allocator ends, or another device opens at its address.

// closing is a device that began to close.
type closing struct {
	origin
	library uint8
	// allocator that it has, 0 where that is not known.
	allocator uint64
	// submeshes of it, with their allocators, 0 where unknown: they close with it, and the runtime does not tell.
	submeshes map[uint64]uint64
	next      time.Time
	wait      time.Duration
}

// maxClosed bounds how many devices of a process are remembered that closed.
const maxClosed = 4096

const (
	// A device that closes is asked whether it has first after firstClosed, and at the most
	// lastClosed apart.
	firstClosed = 5 * time.Millisecond
	lastClosed  = 2 * time.Second
	// maxAsked bounds the devices of a process that are asked; others are taken to be closed.
	maxAsked = 256
)

// closes handles that a device begins to close.
func (r *run) closes(p *traced, from origin, library uint8, device uint64) {
	c := &closing{origin: from, library: library, next: time.Now().Add(firstClosed), wait: firstClosed, submeshes: map[uint64]uint64{}}
	if before := p.closing[device]; before != nil { // it could not close then, or is told twice
		c.allocator, c.submeshes = before.allocator, before.submeshes
	}
	if a, _, _ := p.AllocatorOf(device); a != 0 {
		c.allocator = a
	}
	for submesh := range p.devices {
		if p.Within(submesh, device) {
			c.submeshes[submesh], _, _ = p.AllocatorOf(submesh)
		}
	}
	p.closing[device] = c
	if len(p.closing) > maxAsked || !p.IsOpen(device) {
		r.closed(p, device, from.time)
	}
}

// closings asks the devices that are due or, with now, all whether they are closed.
func (r *run) closings(now bool) {
	for _, p := range r.processes {
		for device, c := range p.closing {
			if !now && time.Now().Before(c.next) {
				continue
			}
			if !p.IsOpen(device) {
				r.closed(p, device, proc.Now())
				continue
			}
			c.wait = min(2*c.wait, lastClosed)
			c.next = time.Now().Add(c.wait)
		}
	}
}

// closed handles that a device that began to close has closed, with its submeshes.
func (r *run) closed(p *traced, device, at uint64) {
	c := p.closing[device]
	delete(p.closing, device)
	// A mesh closes before its chips do: what programs have there passes to the chips' own devices, and ends with these.
	for mesh, before := range p.closing {
		if before.origin.time <= c.origin.time && p.shareChips(mesh, device) {
			r.closed(p, mesh, at)
		}
	}
	from := c.origin
	from.time = at
	for submesh, allocator := range c.submeshes {
		if p.allocators[allocator] {
			r.object(from, bpf.MemtraceTtKindTT_ALLOCATOR_GONE, c.library, allocator)
		}
		r.notOpen(p, from, submesh, c.origin.time)
	}
	r.notOpen(p, from, device, c.origin.time)
}

// notOpen takes a device out of the accounts that began to close then; 0 where that is not known. A trace that was
// recorded or replayed there since is of the one that opened next, and goes with it.
func (r *run) notOpen(p *traced, from origin, device, began uint64) {
	p.notSubmesh(device)
	delete(p.closing, device)
	delete(p.devices, device)
	delete(p.meshes, device)
	delete(p.waiting, device)
	delete(p.unsized, device)
	if len(p.closed) >= maxClosed {
		clear(p.closed)
	}
	p.closed[device] = from.time
	if rel := r.related[from.pid]; rel != nil {
		rel.rings.Drop(device)
		for queue, q := range rel.queues {
			if q.device == device {
				delete(rel.queues, queue)
				if q.traced > began {
					r.raise(from.pid, aggregator.ReasonTracesMissed)
				}
			}
		}
	}
	r.emit(aggregator.Event{Kind: aggregator.DeviceClose, PID: from.pid, TID: from.tid, Time: from.time, Device: device})
	if rel := r.related[from.pid]; rel != nil && len(p.devices) == 0 {
		for program := range rel.chipsUnknown { // it is on no chip now
			r.chipsKnown(from.pid, from.time, program)
		}
	}
}

// endsAt handles that a device opens at an address, or that an allocator ends there: what was closing
// with it has closed.
func (r *run) endsAt(p *traced, object, at uint64) {
	for device, c := range p.closing {
		if device == object || c.allocator == object && object != 0 {
			r.closed(p, device, at)
		}
	}
}

// notSubmesh: what is at an address is not the submesh of a device that closes, or is closed already.
func (p *traced) notSubmesh(device uint64) {
	for _, c := range p.closing {
		delete(c.submeshes, device)
	}
}

// shareChips says whether two devices have a chip in common.
func (p *traced) shareChips(one, other uint64) bool {
	return slices.ContainsFunc(p.devices[one], func(c aggregator.Chip) bool { return slices.Contains(p.devices[other], c) })
}
