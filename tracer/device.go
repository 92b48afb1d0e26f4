package tracer

import (
	"iter"
	"slices"
	"time"

	"tt-memtrace/aggregator"
	"tt-memtrace/internal/metal"
)

// device is a device of a process, a chip or a mesh, from when it begins to open until it has closed.
type device struct {
	// described: the accounts have it. Until then it is opening, or was only seen to close.
	described bool
	chips     []aggregator.Chip // nil while unknown
	// numbers are the process's own numbers of the chips.
	numbers []uint32
	mesh    bool
	// sizing is set while its allocator or its chips are unknown: they are read again.
	sizing *unsized
	// closing is set once it began to close.
	closing *closing
	// waiting is the work that waits until its chips are known.
	waiting []waiting
}

// deviceTable is the devices of a process, by address.
type deviceTable struct {
	all map[uint64]*device
	// busy are the devices that are read again, are closing, or have waiting work. A process can name any number of
	// devices, but few are busy.
	busy map[uint64]*device
	// closed is when a device closed that has not opened again since.
	closed map[uint64]uint64
}

// maxClosed bounds the closed devices that are remembered per process.
const maxClosed = 4096

// get returns what is known of a device: the zero device if nothing is.
func (ds *deviceTable) get(address uint64) device {
	if d := ds.all[address]; d != nil {
		return *d
	}
	return device{}
}

// of returns a device, from now on known if need be.
func (ds *deviceTable) of(address uint64) *device {
	d := ds.all[address]
	if d == nil {
		if ds.all == nil {
			ds.all = map[uint64]*device{}
		}
		d = &device{}
		ds.all[address] = d
	}
	return d
}

// begins returns a device that is busy from now on.
func (ds *deviceTable) begins(address uint64) *device {
	if ds.busy == nil {
		ds.busy = map[uint64]*device{}
	}
	ds.busy[address] = ds.of(address)
	return ds.busy[address]
}

// rests ends that a device is busy, unless it still is.
func (ds *deviceTable) rests(address uint64) {
	if d := ds.busy[address]; d != nil && d.sizing == nil && d.closing == nil && len(d.waiting) == 0 {
		delete(ds.busy, address)
	}
}

// opens forgets whatever was at the address of a device that opens.
func (ds *deviceTable) opens(address uint64) {
	delete(ds.all, address)
	delete(ds.busy, address)
	delete(ds.closed, address)
}

// describe notes a device as the accounts have it.
func (ds *deviceTable) describe(address uint64, chips []aggregator.Chip, mesh bool) {
	d := ds.of(address)
	d.described, d.chips, d.mesh = true, chips, mesh
	delete(ds.closed, address)
}

// close forgets a device that has closed.
func (ds *deviceTable) close(address, at uint64) {
	delete(ds.all, address)
	delete(ds.busy, address)
	if ds.closed == nil || len(ds.closed) >= maxClosed {
		ds.closed = map[uint64]uint64{}
	}
	ds.closed[address] = at
}

// sized ends the reading of a device again.
func (ds *deviceTable) sized(address uint64) {
	if d := ds.all[address]; d != nil {
		if d.sizing = nil; !d.described && d.closing == nil {
			delete(ds.all, address)
		}
		ds.rests(address)
	}
}

// chips returns the chips of a device, nil while they are unknown.
func (ds *deviceTable) chips(address uint64) []aggregator.Chip { return ds.get(address).chips }

// described yields the devices that the accounts have.
func (ds *deviceTable) described() iter.Seq2[uint64, *device] {
	return which(ds.all, func(d *device) bool { return d.described })
}

// closing yields the devices that began to close.
func (ds *deviceTable) closing() iter.Seq2[uint64, *device] {
	return which(ds.busy, func(d *device) bool { return d.closing != nil })
}

// unsized yields the devices that are read again.
func (ds *deviceTable) unsized() iter.Seq2[uint64, *device] {
	return which(ds.busy, func(d *device) bool { return d.sizing != nil })
}

// which yields the objects of a table for which is holds. They may be removed while it yields.
func which[T any](all map[uint64]*T, is func(*T) bool) iter.Seq2[uint64, *T] {
	return func(yield func(uint64, *T) bool) {
		for address, d := range all {
			if is(d) && !yield(address, d) {
				return
			}
		}
	}
}

// shareChips reports whether two devices have a chip in common.
func (ds *deviceTable) shareChips(one, other uint64) bool {
	return slices.ContainsFunc(ds.chips(one), func(c aggregator.Chip) bool { return slices.Contains(ds.chips(other), c) })
}

// onlyRead reports whether a mesh is the only one of which the chips are known.
func (ds *deviceTable) onlyRead(mesh uint64) bool {
	for address, d := range ds.described() {
		if d.mesh && len(d.chips) > 0 && address != mesh {
			return false
		}
	}
	return ds.get(mesh).mesh
}

// notAbove removes a device from those that close with others: another device is at its address now, or it is closed
// already.
func (ds *deviceTable) notAbove(address uint64) {
	for _, d := range ds.closing() {
		delete(d.closing.above, address)
	}
}

// count counts what is yielded.
func count[K, V any](list iter.Seq2[K, V]) (n int) {
	for range list {
		n++
	}
	return n
}

// allocator is an allocator of a process.
type allocator struct {
	// known: the accounts have it, with the sizes of its memories if these could be read.
	known  bool
	device uint64
	// unread is why the sizes of its memories are unknown, perhaps because it is being destroyed, and since when.
	unread      error
	unreadSince time.Time
	// banks of its memories, for computing reserved sizes; the zero Bank if they could not be read.
	banks map[aggregator.Memory]metal.Bank
}

// allocatorTable is the allocators of a process, by address.
type allocatorTable map[uint64]*allocator

// knows reports whether the accounts have an allocator.
func (as allocatorTable) knows(address uint64) bool { return as[address] != nil && as[address].known }

// of returns an allocator, from now on known if need be.
func (as allocatorTable) of(address uint64) *allocator {
	a := as[address]
	if a == nil {
		a = &allocator{}
		as[address] = a
	}
	return a
}

// known yields the allocators that the accounts have.
func (as allocatorTable) known() iter.Seq2[uint64, *allocator] {
	return which(as, func(a *allocator) bool { return a.known })
}

// on returns the allocator of a device; 0 if it is unknown.
func (as allocatorTable) on(device uint64) uint64 {
	for address, a := range as.known() {
		if a.device == device {
			return address
		}
	}
	return 0
}

// forgetBanks forgets the banks of all allocators.
func (as allocatorTable) forgetBanks() {
	for _, a := range as {
		a.banks = nil
	}
}

// closing is a device that began to close.
type closing struct {
	origin
	attempt
	// allocator is the device's, 0 if unknown.
	allocator uint64
	// above maps the meshes that close with the device, though no probe is hit for them, to their allocators (0 if
	// unknown): a mesh's submeshes, and the meshes that have a chip.
	above map[uint64]uint64
}

// unsized is a device whose allocator or chips are unknown.
type unsized struct {
	attempt
	// why is the error of reading its chips when a buffer named it; nil once noticed.
	why error
}

// waiting is an action that waits for a device's chips.
type waiting struct {
	program uint64
	do      func()
}
