package inspect

import (
	"fmt"
	"slices"

	"tt-memtrace/tracer/memory"
)

// A forked process that did not exec has copies of its parent's objects, at the same
// addresses. Only the parent uses what they stand for; what the child has opened itself is
// its own. A device of the same chips at the same address in both is a copy: a chip can be
// open in one process only.

// inheritance is what another process has open, by which copies are known.
type inheritance struct {
	chips      map[uint64][]uint32 // by device
	allocators []uint64
}

// openIn finds the devices and allocators that another process has open, which maps the
// same library at the same place.
func (in *Inspector) openIn(pid uint32) (h inheritance, err error) {
	other := *in
	other.mem = memory.Of(pid)
	found, err := other.mem.Find(other.openVptrs()...)
	if err != nil {
		return h, fmt.Errorf("reading what it was forked from, process %d: %w", pid, err)
	}
	devices, allocators, err := other.openDevices(found)
	if err != nil {
		return h, fmt.Errorf("reading what it was forked from, process %d: %w", pid, err)
	}
	h = inheritance{map[uint64][]uint32{}, allocators}
	for d := range devices {
		if h.chips[d], _, _, err = other.Device(d); err != nil {
			return h, err
		}
	}
	return h, nil
}

// disown leaves out what is a copy of another process's: devices and their allocators.
func (in *Inspector) disown(pid uint32, devices map[uint64]uint64, allocators []uint64) ([]uint64, error) {
	if len(devices) == 0 && len(allocators) == 0 {
		return allocators, nil
	}
	h, err := in.openIn(pid)
	if err != nil {
		return nil, err
	}
	for d := range devices {
		theirs, there := h.chips[d]
		if !there {
			continue
		}
		if chips, _, _, err := in.Device(d); err == nil && slices.Equal(chips, theirs) {
			delete(devices, d)
		}
	}
	return slices.DeleteFunc(allocators, func(a uint64) bool {
		for _, own := range devices {
			if own == a {
				return false
			}
		}
		return slices.Contains(h.allocators, a)
	}), nil
}
