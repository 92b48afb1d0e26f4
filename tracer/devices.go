package tracer

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"tt-memtrace/aggregator"
	"tt-memtrace/aggregator/exact"
	"tt-memtrace/bpf"
	"tt-memtrace/internal/inspect"
	"tt-memtrace/internal/memory"
	"tt-memtrace/internal/proc"
)

// devices are the records of devices and their allocators, from when they open until they have closed.
type devices struct {
	*core
	// names of the chips seen so far.
	names inspect.ChipNames
}

func (ds *devices) records() []recordKind {
	close := takes(bpf.MemtraceTtKindTT_DEVICE_CLOSE, ds.closes)
	gone := takes(bpf.MemtraceTtKindTT_ALLOCATOR_GONE, ds.allocatorGone)
	close.from, gone.from = tracedProcess, tracedProcess
	return []recordKind{
		takes(bpf.MemtraceTtKindTT_DEVICE_OPEN, ds.opens),
		close,
		gone,
		takes(bpf.MemtraceTtKindTT_RESIZED, ds.resizes),
	}
}

// opens handles the beginning of a device's opening.
func (ds *devices) opens(rec record, e *bpf.MemtraceTtObject) {
	p, device := rec.p, e.Object
	if p == nil {
		return
	}
	ds.endsAt(p, device, rec.time) // whatever was at this address before is gone
	p.touch(device)
	p.devices.notAbove(device)
	p.devices.opens(device)
	// If the device is not complete yet, its first buffer asks again.
	if d, err := ds.chipsOf(p, device); err == nil {
		ds.opened(p, rec.origin, device, d)
	}
	p.awaitCapacity(device)
}

// allocatorGone handles the end of an allocator.
func (ds *devices) allocatorGone(rec record, e *bpf.MemtraceTtObject) {
	ds.allocatorEnds(rec.p, rec.origin, e.Object)
}

func (ds *devices) allocatorEnds(p *traced, from origin, allocator uint64) {
	if p != nil {
		ds.dropAllocator(p, from, allocator)
		p.touch(allocator)
	}
	ds.emit(from, aggregator.Event{Kind: aggregator.AllocatorGone, Allocator: allocator})
}

// dropAllocator forgets an allocator that ended.
func (ds *devices) dropAllocator(p *traced, from origin, allocator uint64) {
	ds.endsAt(p, allocator, from.time)
	delete(p.allocators, allocator)
	delete(p.resized, allocator)
}

// know emits the descriptions of a buffer's device and allocator unless that was done.
func (ds *devices) know(p *traced, from origin, device, allocator uint64) {
	if _, closed := p.devices.closed[device]; closed && p.allocators.knows(allocator) {
		ds.closeFailed(p, from)
	}
	ds.device(p, from, device)
	if !p.allocators.knows(allocator) {
		capacity, err := p.Capacity(allocator)
		ds.sized(p, from, device, allocator, &capacity)
		if err != nil {
			a := p.allocators[allocator]
			a.unread, a.unreadSince = err, time.Now()
			p.awaitCapacity(device) // to ask for its banks again
		}
	}
}

// closeFailed has a process read again that uses a device, with the same allocator, after the device began to close:
// what it held was dropped, and still exists.
func (ds *devices) closeFailed(p *traced, from origin) {
	ds.unreadOf(p)
	p.doubt()
	ds.raiseWhy(from, aggregator.Reason{Code: exact.ReasonInconsistentEvents, Detail: "a device was used after it was closed"})
}

// uses reports whether a live process has the chip with a unique ID.
func (ds *devices) uses(unique uint64) bool {
	for _, p := range ds.processes.each() {
		if p.chips.Uses(unique) {
			return true
		}
	}
	return false
}

// noticeOnce emits one notice per process about what could not be read of it. A typical process closes its device a
// moment after its first allocation; what it held is then shown without chips.
func (p *traced) noticeOnce(c *core, err error) {
	if !p.noticed {
		p.noticed = true
		c.opts.Notice(fmt.Sprintf("process %d: %v", p.mapping.PID, err))
	}
}

// device emits a device's description while the device exists, unless that was done. A device that cannot be read now
// enters the accounts without chips and is read again later.
func (ds *devices) device(p *traced, from origin, address uint64) {
	known := p.devices.get(address)
	if len(known.chips) > 0 || known.described && known.sizing != nil {
		return
	}
	d, err := ds.chipsOf(p, address)
	if errors.Is(err, memory.ErrLater) {
		p.awaitCapacity(address)
	} else if err != nil {
		p.awaitCapacity(address)
		if u := p.devices.get(address).sizing; u != nil {
			u.why = fmt.Errorf("the chips of its device at %#x are unknown: %w", address, err)
		}
	}
	ds.opened(p, from, address, d)
}

// opened emits a device's description, and what waited for that.
func (ds *devices) opened(p *traced, from origin, address uint64, d inspect.Device) {
	opened := ds.noteOpened(p, address, d)
	ds.emit(from, aggregator.Event{Kind: aggregator.DeviceOpen, Device: address, Opened: opened})
	if len(opened.Chips) > 0 {
		p.chipsRead(address)
	}
}

// noteOpened notes that a device is open, and returns its description.
func (ds *devices) noteOpened(p *traced, address uint64, d inspect.Device) *aggregator.Opened {
	opened := p.chips.Opened(d, ds.names, ds.uses)
	p.devices.describe(address, opened.Chips, d.Mesh)
	p.devices.of(address).numbers = d.Numbers()
	ds.relations(p.mapping.PID).ringsAgain = true
	return opened
}

// dropEndedAllocators adds the live allocators to a scan, and forgets known ones that it did not find: the records of
// their ends were lost.
func (ds *devices) dropEndedAllocators(from origin, rd *reading, scan *aggregator.Scan) {
	p := rd.of
	if rd.buffersOnly || rd.result.Unsearched != nil || p.marked == whyTwice {
		return
	}
	scan.Live, scan.LiveRead = slices.Clone(rd.result.Found), true
	for a := range p.allocators.known() {
		_, since := rd.touched[a]
		switch {
		case since || slices.Contains(rd.result.Found, a):
		case p.reconciliation.met[a]:
			scan.Live = append(scan.Live, a)
		default:
			ds.dropAllocator(p, from, a)
		}
	}
}

// scanned adds open devices and the capacities of their allocators to a scan, and describes devices that could not be
// read then. A device that had closed has opened again, and that record was lost.
func (ds *devices) scanned(rd *reading, from origin, scan *aggregator.Scan) {
	p := rd.of
	for _, device := range slices.Sorted(maps.Keys(rd.devices)) {
		allocator := rd.devices[device]
		d, read := rd.described[device]
		if _, since := rd.touched[device]; read && !since && len(p.devices.chips(device)) == 0 {
			scan.Devices = append(scan.Devices, aggregator.ScannedDevice{Device: device, Opened: *ds.noteOpened(p, device, d)})
		}
		ds.device(p, from, device) // if it could not be read then
		c, read := rd.capacities[allocator]
		if _, since := rd.touched[allocator]; read && !since {
			if p.allocators.knows(allocator) {
				p.allocators[allocator].banks = nil // it may have another size now
			} else {
				p.noteSized(device, allocator)
			}
			scan.Sizes = append(scan.Sizes, aggregator.ScannedCapacity{Allocator: allocator, Device: device, Capacity: c})
		}
		if allocator != 0 {
			ds.know(p, from, device, allocator)
		}
	}
	for i := range scan.Buffers {
		h := &scan.Buffers[i]
		if _, ok := rd.touched[h.Buffer]; !ok && !rd.gone(h.Device, h.Allocator) {
			ds.know(p, from, h.Device, h.Allocator)
		}
	}
}

// reopened removes devices that closed without a record, and describes again those that have other chips than known:
// another device opened at the same address, or a mesh was read while it was reshaped. It reports whether there are
// such; then the whole process must be read again, because the accounts drop what the earlier device had.
func (ds *devices) reopened(p *traced, rd *reading) (any bool) {
	from := origin{pid: p.mapping.PID, time: rd.at}
	for _, device := range rd.closed {
		if d := p.devices.get(device); d.described && d.closing == nil && p.IsClosed(device) {
			ds.notOpen(p, from, device, 0)
		}
	}
	for device, d := range rd.described {
		known := p.devices.get(device)
		_, since := rd.touched[device]
		// Do not compare names: they depend on the environment, which the process can change.
		if len(known.chips) == 0 || since || known.closing != nil || slices.Equal(known.numbers, d.Numbers()) {
			continue
		}
		ds.notOpen(p, from, device, 0)
		maps.DeleteFunc(p.allocators, func(_ uint64, a *allocator) bool { return a.device == device })
		ds.opened(p, from, device, d)
		p.reconciliation.disagrees, any = true, true
	}
	return any
}

// A process can have several copies of the runtime: builds that two packages bring along, or one build loaded twice.
// Only the copy that made an object can read it. So the tracer reads a process by one build, the one that has devices
// open. If another one has devices open too, the accounts know its objects only from events, and the process is
// marked.

// whyTwice is why it is marked.
const whyTwice = "it has devices open by two copies of the runtime; only one copy's can be read"

// readBy switches to another of the process's builds for reading it.
func (ds *devices) readBy(p *traced, other int) {
	o := &p.others[other]
	now := another{p.Inspector, p.mapping, p.of}
	p.Inspector, p.mapping, p.of = o.Inspector, o.mapping, o.of
	*o = now
	p.allocators.forgetBanks()
	p.chips = inspect.NewChips(p.Inspector, p.mapping.PID)
	p.describeLibrary()
	ds.describe(p, proc.Now())
}

// describeLibrary fills in the description of the build by which the process is read.
func (p *traced) describeLibrary() {
	lib := p.of.lib
	p.start.Library, p.start.BuildID, p.start.Release = p.mapping.Path, lib.BuildID, lib.Release
	p.start.NotCovered = strings.Join(p.of.notCovered(), ", ")
	p.start.UnknownMemory = strings.Join(lib.UnknownMemory(), ", ")
}

// chipsOf reads a device by the build that made it.
func (ds *devices) chipsOf(p *traced, device uint64) (inspect.Device, error) {
	d, err := p.chips.Device(device)
	if err == nil || errors.Is(err, memory.ErrLater) {
		return d, err
	}
	for i := range p.others {
		if _, _, _, failed := p.others[i].Device(device); errors.Is(failed, memory.ErrLater) {
			return d, failed
		} else if failed != nil {
			continue
		}
		for _, known := range p.devices.described() {
			if len(known.chips) > 0 {
				ds.markForGood(p, whyTwice)
				return d, err
			}
		}
		ds.readBy(p, i)
		return p.chips.Device(device)
	}
	return d, err
}
