package tracer

import (
	"tt-memtrace/aggregator"
	"tt-memtrace/bpf"
	"tt-memtrace/internal/proc"
)

// A probe is hit when a device begins to close, but none when it has closed or has failed to: close may throw, and
// then the device keeps its buffers. So a closing device counts as open until its memory says that it is closed, its
// allocator ends, or another device opens at its address.

// maxAsked bounds the closing devices per process; beyond it, a closing device counts as closed.
const maxAsked = 256

// closes handles the beginning of a device's close.
func (ds *devices) closes(rec record, e *bpf.MemtraceTtObject) {
	p, address := rec.p, e.Object
	if p == nil {
		ds.emit(rec.origin, aggregator.Event{Kind: aggregator.DeviceClose, Device: address})
		return
	}
	d := p.devices.begins(address)
	c := &closing{origin: rec.origin, attempt: closingPace.from(rec.time), above: map[uint64]uint64{}}
	if before := d.closing; before != nil { // the earlier close failed, or this one is reported twice
		c.allocator, c.above = before.allocator, before.above
	}
	if a, _, _ := p.AllocatorOf(address); a != 0 {
		c.allocator = a
	}
	alone := p.devices.onlyRead(address)
	for mesh, m := range p.devices.described() {
		switch {
		case m.mesh && (p.Within(mesh, address) || !d.mesh && p.devices.shareChips(mesh, address)):
			c.above[mesh], _, _ = p.AllocatorOf(mesh)
		case mesh != address && len(m.chips) == 0 && m.closing == nil && alone && p.IsClosed(mesh):
			// It is gone before it was read. If its mesh is not this one, or not known to be, it stays marked.
			c.above[mesh] = p.allocators.on(mesh)
		}
	}
	d.closing = c
	if count(p.devices.closing()) > maxAsked || !p.IsOpen(address) {
		ds.closed(p, address, rec.time)
	}
}

// closings checks whether the devices that are due (or, with now, all closing ones) have closed.
func (ds *devices) closings(p *traced, now bool) {
	for address, d := range p.devices.closing() {
		if !d.closing.due(now) {
			continue
		}
		if p.IsOpen(address) {
			d.closing.again(closingPace)
		} else {
			ds.closed(p, address, proc.Now())
		}
	}
}

// closed handles that a closing device has closed, and the meshes above it with it.
func (ds *devices) closed(p *traced, address, at uint64) {
	d := p.devices.of(address)
	c := d.closing
	d.closing = nil
	// A mesh closes before its chips do: what its programs have there moves to the chips' own devices, and ends with
	// those.
	for mesh, m := range p.devices.closing() {
		if m.closing.origin.time <= c.origin.time && p.devices.shareChips(mesh, address) {
			ds.closed(p, mesh, at)
		}
	}
	from := c.origin
	from.time = at
	for mesh, allocator := range c.above {
		if p.allocators.knows(allocator) {
			ds.processOf(from)
			ds.allocatorEnds(p, from, allocator)
		}
		ds.notOpen(p, from, mesh, c.origin.time)
	}
	ds.notOpen(p, from, address, c.origin.time)
}

// notOpen removes a device from the accounts. began is when it began to close, 0 if unknown.
func (ds *devices) notOpen(p *traced, from origin, device, began uint64) {
	p.devices.notAbove(device)
	p.devices.close(device, from.time)
	if rel := ds.processes.get(from.pid).relations; rel != nil {
		for f := range featuresThat[closer](ds.core) {
			f.deviceClosed(p, rel, from, device, began)
		}
	}
	ds.emit(from, aggregator.Event{Kind: aggregator.DeviceClose, Device: device})
}

// endsAt handles that a device opens, or an allocator ends, at an address: a closing device there, or with that
// allocator, has closed.
func (ds *devices) endsAt(p *traced, object, at uint64) {
	for address, d := range p.devices.closing() {
		if address == object || d.closing.allocator == object && object != 0 {
			ds.closed(p, address, at)
		}
	}
}
