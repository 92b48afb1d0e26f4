package inspect

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"golang.org/x/sys/unix"

	"tt-memtrace/aggregator"
	"tt-memtrace/internal/memory"
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

// elsewhere returns an Inspector of another process that maps the same library at the same place.
func (in *Inspector) elsewhere(pid uint32) *Inspector {
	other := *in
	other.mem, other.kept, other.last = memory.Of(pid), kept{}, nil
	return &other
}

// openIn finds the open devices and allocators of another process that maps the same library at the same place.
func (in *Inspector) openIn(pid uint32) (h inheritance, err error) {
	other := in.elsewhere(pid)
	found, err := other.mem.Find(other.openVptrs()...)
	if err != nil {
		return h, fmt.Errorf("reading process %d, from which it was forked: %w", pid, err)
	}
	devices, allocators, _, err := other.openDevices(found)
	if err != nil {
		return h, fmt.Errorf("reading process %d, from which it was forked: %w", pid, err)
	}
	h = inheritance{map[uint64][]uint32{}, allocators}
	for d := range devices {
		if h.chips[d], _, _, err = other.Device(d); err != nil {
			return h, err
		}
	}
	return h, nil
}

// madeSinceFork returns those of the devices that are meshes which the process is known to have made itself. Each mesh
// makes a sub-device manager as it opens, and a counter in the library numbers managers. So a copy has a lower number
// than the counter had at the fork, and that is at most what the counter of the other process is now.
func (in *Inspector) madeSinceFork(from uint32, isMesh map[uint64]bool) map[uint64]bool {
	made := map[uint64]bool{}
	counter, ok := in.lib.Lookup(metal.NextManager)
	if !ok {
		return made
	}
	next, err := in.elsewhere(from).recent().U64(in.base + counter)
	if err != nil {
		return made
	}
	for d, mesh := range isMesh {
		if !mesh {
			continue
		}
		if number, err := in.call(metal.MeshManager, d); err == nil && number >= next {
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
func (in *Inspector) disown(layout *metal.Layout, fork *Fork, b *ProcessScan, allocators []uint64) (rest []uint64, err error) {
	devices, itself, all := b.Devices, map[uint64]bool{}, false // itself are the devices that the process opened
	b.Unsure, b.Shared = map[uint64]bool{}, map[uint64]bool{}
	if fork.Opened != nil {
		if itself, all, err = fork.Opened(); err != nil {
			return nil, err
		}
	}
	own := maps.Clone(itself)
	chips, meshes := map[uint64][]uint32{}, map[uint64]bool{}
	opened := map[uint32]bool{}
	for d := range devices {
		if chips[d], meshes[d], _, err = in.Device(d); err != nil {
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
		if theirs, err = in.openIn(fork.From); err != nil {
			return nil, err
		}
	}
	madeOn := map[uint32]bool{} // chips
	if !all {
		for d := range in.madeSinceFork(fork.From, meshes) {
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
		case !inherited && !alien && (all && meshes[d] || !all && (!meshes[d] || in.withinAny(d, itself))):
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
		b.Leftover = in.leftover(layout, fork.From, shared)
	}
	kept := slices.Collect(maps.Values(devices))
	return slices.DeleteFunc(allocators, func(a uint64) bool { return slices.Contains(copied, a) && !slices.Contains(kept, a) }), nil
}

// leftover returns the buffers that the process has in copied allocators and the owner of the original has not. A
// buffer that the owner frees during the scan is among them.
func (in *Inspector) leftover(layout *metal.Layout, from uint32, allocators []uint64) *Leftover {
	l := &Leftover{}
	set, err := in.lib.AllocatorSet()
	mine, theirs := in.elsewhere(in.mem.PID()), in.elsewhere(from)
	for _, a := range allocators {
		var have []aggregator.LiveBuffer
		if err == nil {
			have, err = mine.liveBuffers(layout, a, set)
		}
		if err == nil {
			have, err = theirs.without(layout, have)
		}
		if err != nil {
			l.Unread = err
			return l
		}
		l.Buffers = append(l.Buffers, have...)
	}
	return l
}

// without returns those of another process's buffers that this one does not have at the same addresses. It does not
// read this process's set of buffers: while that process allocates this takes several tries, and there can be many
// forks.
func (in *Inspector) without(layout *metal.Layout, list []aggregator.LiveBuffer) (rest []aggregator.LiveBuffer, err error) {
	if len(list) == 0 {
		return nil, nil
	}
	objects := make([]uint64, len(list))
	for i, h := range list {
		objects[i] = h.Buffer
	}
	_, windows, err := in.windows(layout, objects)
	if errors.Is(err, unix.EFAULT) { // some address is unmapped by now
		if len(list) == 1 {
			return list, nil
		}
		half := len(list) / 2
		first, err := in.without(layout, list[:half])
		if err != nil {
			return nil, err
		}
		second, err := in.without(layout, list[half:])
		return slices.Concat(first, second), err
	}
	if err != nil {
		return nil, err
	}
	fields := fieldsOf(layout)
	for i, h := range list {
		o, ok := fields.buffer(windows[i*metal.WindowSize:][:metal.WindowSize], h.Buffer, h.Allocator)
		o.PerBank, o.PerCore = h.PerBank, h.PerCore
		if h.PerCore != "" {
			o.Address = h.Address
		}
		if !ok || o != h {
			rest = append(rest, h)
		}
	}
	return rest, nil
}

// withinAny reports whether a device is a submesh of one of these.
func (in *Inspector) withinAny(device uint64, of map[uint64]bool) bool {
	for mesh := range of {
		if in.Within(device, mesh) {
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
