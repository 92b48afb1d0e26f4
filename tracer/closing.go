package tracer

import (
	"slices"
	"time"

	"tt-memtrace/aggregator"
	"tt-memtrace/bpf"
	"tt-memtrace/internal/proc"
)

// A probe is hit when a device begins to close, but none when it has closed or has failed to: close may throw, and
// then the device keeps its buffers. So a closing device counts as open until its memory says that it is closed, its
// allocator ends, or another device opens at its address.

// closing is a device that began to close.
type closing struct {
	origin
	// allocator is the device's, 0 if unknown.
	allocator uint64
	// above maps the meshes that close with the device, though no probe is hit for them, to their allocators (0 if
	// unknown): a mesh's submeshes, and the meshes that have a chip.
	above map[uint64]uint64
	next  time.Time
	wait  time.Duration
}

// maxClosed bounds the closed devices that are remembered per process.
const maxClosed = 4096

const (
	// A closing device is first read firstClosed after it began to close; the delays double up to lastClosed.
	firstClosed = 5 * time.Millisecond
	lastClosed  = 2 * time.Second
	// maxAsked bounds the closing devices per process; beyond it, a closing device counts as closed at once.
	maxAsked = 256
)

// closes handles the beginning of a device's close.
func (ds *devices) closes(rec record, e *bpf.MemtraceTtObject) {
	p, device := rec.p, e.Object
	if p == nil {
		ds.emit(rec.origin, aggregator.Event{Kind: aggregator.DeviceClose, Device: device})
		return
	}
	c := &closing{origin: rec.origin, next: time.Now().Add(firstClosed), wait: firstClosed, above: map[uint64]uint64{}}
	if before := p.closing[device]; before != nil { // the earlier close failed, or this one is reported twice
		c.allocator, c.above = before.allocator, before.above
	}
	if a, _, _ := p.AllocatorOf(device); a != 0 {
		c.allocator = a
	}
	for mesh := range p.meshes {
		if p.Within(mesh, device) || !p.meshes[device] && p.shareChips(mesh, device) {
			c.above[mesh], _, _ = p.AllocatorOf(mesh)
		}
	}
	p.closing[device] = c
	if len(p.closing) > maxAsked || !p.IsOpen(device) {
		ds.closed(p, device, rec.time)
	}
}

// closings checks whether the devices that are due (or, with now, all closing ones) have closed.
func (ds *devices) closings(now bool) {
	for _, p := range ds.processes.each() {
		for device, c := range p.closing {
			if !now && time.Now().Before(c.next) {
				continue
			}
			if !p.IsOpen(device) {
				ds.closed(p, device, proc.Now())
				continue
			}
			c.wait = min(2*c.wait, lastClosed)
			c.next = time.Now().Add(c.wait)
		}
	}
}

// closed handles that a closing device has closed, and the meshes above it with it.
func (ds *devices) closed(p *traced, device, at uint64) {
	c := p.closing[device]
	delete(p.closing, device)
	// A mesh closes before its chips do: what its programs have there moves to the chips' own devices, and ends with
	// those.
	for mesh, before := range p.closing {
		if before.origin.time <= c.origin.time && p.shareChips(mesh, device) {
			ds.closed(p, mesh, at)
		}
	}
	from := c.origin
	from.time = at
	for mesh, allocator := range c.above {
		if p.allocators[allocator] {
			ds.processOf(from)
			ds.allocatorEnds(p, from, allocator)
		}
		ds.notOpen(p, from, mesh, c.origin.time)
	}
	ds.notOpen(p, from, device, c.origin.time)
}

// notOpen removes a device from the accounts. began is when it began to close, 0 if unknown.
func (ds *devices) notOpen(p *traced, from origin, device, began uint64) {
	p.notAbove(device)
	delete(p.closing, device)
	delete(p.devices, device)
	delete(p.meshes, device)
	delete(p.waiting, device)
	delete(p.unsized, device)
	if len(p.closed) >= maxClosed {
		clear(p.closed)
	}
	p.closed[device] = from.time
	if rel := ds.processes.get(from.pid).relations; rel != nil {
		for _, f := range ds.closers {
			f.deviceClosed(p, rel, from, device, began)
		}
	}
	ds.emit(from, aggregator.Event{Kind: aggregator.DeviceClose, Device: device})
}

// endsAt handles that a device opens, or an allocator ends, at an address: a closing device there, or with that
// allocator, has closed.
func (ds *devices) endsAt(p *traced, object, at uint64) {
	for device, c := range p.closing {
		if device == object || c.allocator == object && object != 0 {
			ds.closed(p, device, at)
		}
	}
}

// notAbove removes a device from those that close with others: another device is at its address now, or it is closed
// already.
func (p *traced) notAbove(device uint64) {
	for _, c := range p.closing {
		delete(c.above, device)
	}
}

// shareChips reports whether two devices have a chip in common.
func (p *traced) shareChips(one, other uint64) bool {
	return slices.ContainsFunc(p.devices[one], func(c aggregator.Chip) bool { return slices.Contains(p.devices[other], c) })
}
