package inspect

import (
	"fmt"
	"maps"
	"slices"

	"tt-memtrace/aggregator"
	"tt-memtrace/internal/inspect/buffers"
	"tt-memtrace/internal/inspect/view"
	"tt-memtrace/internal/metal"
	"tt-memtrace/internal/plural"
)

// A forked process that did not exec has copies of its parent's objects at the same addresses, including devices that
// the parent has closed since. Devices that the child opened itself are its own.

// Fork describes a process that was forked and has not called exec.
type Fork struct {
	// From is the process of whose objects its memory has copies.
	From uint32
	// Opened, if not nil, returns the devices that the process opened itself, and whether these are all. It is called
	// after its memory was searched.
	Opened func() (devices map[uint64]bool, all bool, err error)
	// Inherited are the devices that From had open at the fork, if it was traced then.
	Inherited map[uint64]bool
	// Used are the devices on which the process allocated: its own, or copies of From's open ones.
	Used map[uint64]bool
	// Unfreed asks for Leftover.
	Unfreed bool
}

// Leftover are buffers on copies that the other process does not have any more: either that one freed them since, or
// this process allocated them itself. Their memory does not show which.
type Leftover struct {
	Buffers []aggregator.LiveBuffer
	// Unread says why they are unknown, or is nil.
	Unread error
}

// Any reports whether there may be any.
func (l *Leftover) Any() bool { return l != nil && (l.Unread != nil || len(l.Buffers) > 0) }

// Devices returns the devices of its buffers.
func (l *Leftover) Devices() (list []uint64) {
	if l == nil {
		return nil
	}
	for _, h := range l.Buffers {
		if !slices.Contains(list, h.Device) {
			list = append(list, h.Device)
		}
	}
	return list
}

// Detail says in words how much is left over.
func (l *Leftover) Detail(from uint32) string {
	if l.Unread != nil {
		return fmt.Sprintf("its allocations on copies of devices that process %d has open are unknown: %v", from, l.Unread)
	}
	var bytes uint64
	for _, h := range l.Buffers {
		bytes += h.Size
	}
	return fmt.Sprintf("%s (%d bytes on each chip) on copies of devices that process %d has open %s not counted: "+
		"it allocated them, or that process has freed them since",
		plural.Of(len(l.Buffers), "buffer"), bytes, from, plural.Word(len(l.Buffers), "is", "are"))
}

// Detail is the detail of the reason for unsure devices.
func (f *Fork) Detail() string {
	return fmt.Sprintf("process %d, from which it was forked, may have opened and closed them", f.From)
}

// inheritance is what another process has open, which shows what is a copy.
type inheritance struct {
	chips      map[uint64][]uint32 // by device
	allocators []uint64
}

// openIn finds the open devices and allocators of another process that maps the same library at the same place.
func openIn(v *view.View, pid uint32) (h inheritance, err error) {
	other := v.Elsewhere(pid)
	found, err := other.Mem.Find(openVptrs(other)...)
	if err != nil {
		return h, fmt.Errorf("reading process %d, from which it was forked: %w", pid, err)
	}
	seen := other.View()
	devices, allocators, _, err := findOpen(seen, found)
	if err != nil {
		return h, fmt.Errorf("reading process %d, from which it was forked: %w", pid, err)
	}
	h = inheritance{map[uint64][]uint32{}, allocators}
	for d := range devices {
		if h.chips[d], _, _, err = readDevice(seen, d); err != nil {
			return h, err
		}
	}
	return h, nil
}

// madeSinceFork returns those of the devices that are meshes which the process is known to have made itself. Each mesh
// makes a sub-device manager as it opens, and a counter in the library numbers managers. So a copy has a lower number
// than the counter had at the fork, and that is at most what the counter of the other process is now.
func madeSinceFork(v *view.View, from uint32, isMesh map[uint64]bool) map[uint64]bool {
	made := map[uint64]bool{}
	counter, ok := v.Lib.Lookup(metal.NextManager)
	if !ok {
		return made
	}
	next, err := v.Elsewhere(from).Fresh().U64(v.Base + counter)
	if err != nil {
		return made
	}
	for d, mesh := range isMesh {
		if !mesh {
			continue
		}
		if number, err := v.Call(metal.MeshManager, d); err == nil && number >= next {
			made[d] = true
		}
	}
	return made
}

// disown removes copies from the devices of a scan, and returns the allocators without those of copies. Unsure devices
// stay in.
//
// A device is the process's own if the process opened it, or allocated on it while the other process did not have it
// open. So is a mesh (or a chip, if not all opened devices are known) that spans only chips of such devices, except a
// mesh that the other process had open at the fork, or may have had. A mesh that was made after the fork is the
// process's own, with its chips. The remaining ones are copies if all that the process opened is known. Otherwise only
// those are copies that the other process has open with the same chips, which is all that can be compared: it may have
// closed some since.
func disown(
	v *view.View, layout *metal.Layout, fork *Fork, b *ProcessScan, allocators []uint64,
) (rest []uint64, err error) {
	devices, itself, all := b.Devices, map[uint64]bool{}, false // itself are the devices that the process opened
	b.Unsure, b.Shared = map[uint64]bool{}, map[uint64]bool{}
	if fork.Opened != nil {
		if itself, all, err = fork.Opened(); err != nil {
			return nil, err
		}
	}
	own := map[uint64]bool{}
	maps.Copy(own, itself)
	chips, meshes := map[uint64][]uint32{}, map[uint64]bool{}
	opened := map[uint32]bool{}
	for d := range devices {
		if chips[d], meshes[d], _, err = readDevice(v, d); err != nil {
			return nil, err
		}
		if own[d] {
			for _, c := range chips[d] {
				opened[c] = true
			}
		}
	}
	var theirs inheritance
	if !all && len(devices)+len(allocators) > 0 {
		if theirs, err = openIn(v, fork.From); err != nil {
			return nil, err
		}
	}
	madeOn := map[uint32]bool{} // chips
	if !all {
		for d := range madeSinceFork(v, fork.From, meshes) {
			own[d] = true
			for _, c := range chips[d] {
				madeOn[c] = true
			}
		}
	}
	copied := theirs.allocators
	var shared []uint64 // allocators of copies on which it may have allocated before tracing began
	for d, a := range devices {
		alien := slices.ContainsFunc(chips[d], func(c uint32) bool { return !opened[c] })
		same, there := theirs.chips[d]
		there = there && slices.Equal(chips[d], same)
		inherited := meshes[d] && (fork.Inherited[d] || there)
		switch {
		case own[d]:
		case !meshes[d] && !there && len(chips[d]) == 1 && madeOn[chips[d][0]]:
			own[d] = true
		case fork.Used[d] && !fork.Inherited[d] && !there:
			own[d] = true
		case !inherited && !alien && (all && meshes[d] || !all && (!meshes[d] || isWithinAny(v, d, itself))):
			own[d] = true
		case inherited, all, there:
			if fork.Used[d] {
				b.Shared[d] = !all
			}
			if !all && a != 0 && !slices.Contains(shared, a) {
				shared = append(shared, a)
			}
			delete(devices, d)
			copied = append(copied, a)
		default:
			own[d], b.Unsure[d] = true, true
		}
	}
	if fork.Unfreed {
		b.Leftover = leftoverOf(v.Process, layout, fork.From, shared)
	}
	kept := slices.Collect(maps.Values(devices))
	return slices.DeleteFunc(allocators, func(a uint64) bool { return slices.Contains(copied, a) && !slices.Contains(kept, a) }), nil
}

// leftoverOf returns the buffers that the process has in copied allocators and the owner of the original has not. A
// buffer that the owner frees during the scan is among them.
func leftoverOf(p *view.Process, layout *metal.Layout, from uint32, allocators []uint64) *Leftover {
	l := &Leftover{}
	set, err := p.Lib.AllocatorSet()
	theirs := p.Elsewhere(from)
	for _, a := range allocators {
		var have []aggregator.LiveBuffer
		if err == nil {
			have, err = buffers.Unconfirmed(p, layout, a, set)
		}
		if err == nil {
			have, err = buffers.Without(theirs, layout, have)
		}
		if err != nil {
			l.Unread = err
			return l
		}
		l.Buffers = append(l.Buffers, have...)
	}
	return l
}

// isWithinAny reports whether a device is a submesh of one of these.
func isWithinAny(v *view.View, device uint64, of map[uint64]bool) bool {
	for mesh := range of {
		if isWithin(v, device, mesh) {
			return true
		}
	}
	return false
}

// mayCount reports whether an allocator, or one of its buffers, belongs to an open device.
func (b *ProcessScan) mayCount(allocator uint64, live []aggregator.LiveBuffer) bool {
	return b.Holds(allocator) || slices.ContainsFunc(live, func(h aggregator.LiveBuffer) bool {
		_, open := b.Devices[h.Device]
		return open
	})
}

// dropClosed drops allocators that belong to no open device and whose buffers are on devices that are not open, or are
// copies: what is closed holds nothing, whatever its objects still list. An allocator of a sub-device does not show
// whose it is, but its buffers do.
func (b *ProcessScan) dropClosed() {
	open, closed := map[uint64]bool{}, map[uint64]bool{}
	for _, h := range b.Scan.Buffers {
		if _, isOpen := b.Devices[h.Device]; isOpen || b.Holds(h.Allocator) {
			open[h.Allocator] = true
		} else {
			closed[h.Allocator] = true
		}
	}
	gone := func(a uint64) bool { return closed[a] && !open[a] }
	b.Found = slices.DeleteFunc(b.Found, gone)
	b.Scan.Allocators = slices.DeleteFunc(b.Scan.Allocators, gone)
	b.Scan.Buffers = slices.DeleteFunc(b.Scan.Buffers, func(h aggregator.LiveBuffer) bool { return gone(h.Allocator) })
}
