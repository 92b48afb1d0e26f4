package tracer

import (
	"errors"
	"fmt"

	"tt-memtrace/aggregator"
)

// baseline is what a process held when it was read, beside the events that
// tell what became of it since.
type baseline struct {
	// devices that are open, with their allocators, 0 where unknown.
	devices map[uint64]uint64
	books   aggregator.Books
}

// baseline reads what a process holds: its open devices, and the buffers of
// their allocators. It takes about a tenth of a second; the process runs on.
func (in *inspector) baseline(layout *Layout) (*baseline, error) {
	var vptrs []uint64
	for _, vtable := range []string{deviceVtable, meshDeviceVtable, bankingAllocator, mockAllocator} {
		if v := in.vptr(vtable); v != 0 {
			vptrs = append(vptrs, v)
		}
	}
	if len(vptrs) == 0 {
		return nil, fmt.Errorf("looking for devices: the library lacks %s", deviceVtable)
	}
	found, err := in.find(vptrs...)
	if err != nil {
		return nil, err
	}
	b := &baseline{}
	var allocators []uint64
	b.devices, allocators = in.open(found)
	if len(allocators) == 0 {
		if len(b.devices) > 0 {
			return b, errors.New("its allocators were not found")
		}
		return b, nil // nothing is open, so nothing is held
	}
	return b, in.readBooks(b, layout, allocators)
}

// readBooks reads the buffers of the allocators. One that is changing too fast,
// or gone, is left out.
func (in *inspector) readBooks(b *baseline, layout *Layout, allocators []uint64) error {
	set, err := in.lib.bookOffset()
	if err != nil {
		return err
	}
	var failed error
	for _, a := range allocators {
		held, err := in.held(layout, a, set)
		if err != nil {
			failed = errors.Join(failed, err)
			continue
		}
		b.books.Allocators = append(b.books.Allocators, a)
		in.reserve(a, held)
		b.books.Buffers = append(b.books.Buffers, held...)
	}
	if len(b.books.Allocators) == 0 {
		return failed
	}
	return nil
}

// reserve fills in what the buffers of an allocator cost each bank. Where that
// cannot be had it stays 0, unknown.
func (in *inspector) reserve(allocator uint64, held []aggregator.Held) {
	var blocks [aggregator.NumMemories]map[uint64]uint64
	for i := range held {
		h := &held[i]
		if h.Memory >= aggregator.NumMemories || h.Memory == aggregator.SystemMemory {
			continue
		}
		if blocks[h.Memory] == nil {
			list, err := in.blocks(allocator, h.Memory)
			if err != nil || list == nil {
				list = map[uint64]uint64{}
			}
			blocks[h.Memory] = list
		}
		h.PerBank = blocks[h.Memory][h.Address]
	}
}
