package tracer

import (
	"errors"
	"fmt"
	"time"

	"tt-memtrace/aggregator"
)

// baseline is what a process held when it was read, beside the events that
// tell what became of it since.
type baseline struct {
	// devices that are open, with their allocators, 0 where unknown.
	devices map[uint64]uint64
	books   aggregator.Books
	// left are allocators whose buffers could not be read.
	left []uint64
	// programs that were not known, and those that could not be read.
	programs []heldProgram
	unread   []uint64
	why      error // of one of them
}

// baseline reads what a process holds: its open devices, the buffers of their
// allocators, and its programs but for those that are known. It takes about a
// tenth of a second, and a hundredth for each program; the process runs on.
func (in *inspector) baseline(layout *Layout, known map[uint64]bool) (*baseline, error) {
	var vptrs []uint64
	if v := in.programVptr(); v != 0 {
		vptrs = append(vptrs, v)
	}
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
	if b.devices, allocators, err = in.open(found); err != nil {
		return nil, err
	}
	if len(allocators) == 0 {
		if len(b.devices) > 0 {
			return b, errors.New("its allocators were not found")
		}
		return b, nil // nothing is open, so nothing is held
	}
	if err := in.readBooks(b, layout, allocators); err != nil {
		return b, err
	}
	in.readPrograms(b, found, known)
	return b, nil
}

// programTime bounds how long the programs of a process are read.
const programTime = 5 * time.Second

// readPrograms reads the programs that are not known. A library that keeps them
// in another way shows none, and says so.
func (in *inspector) readPrograms(b *baseline, found objects, known map[uint64]bool) {
	vptr := in.programVptr()
	if b.books.ProgramsRead = vptr != 0; !b.books.ProgramsRead {
		return
	}
	b.books.Programs = in.programs(found[vptr])
	in = in.closely()
	builder, err := in.builder(b.devices)
	if err != nil {
		builder.device = 0
	}
	deadline := time.Now().Add(programTime)
	for i, id := range b.books.Programs {
		if known[id] {
			continue
		}
		if time.Now().After(deadline) {
			b.unread = append(b.unread, b.books.Programs[i:]...)
			b.why = fmt.Errorf("reading them took more than %v", programTime)
			return
		}
		in.fresh()
		h, err := in.hold(id, b.devices, builder)
		if err != nil {
			in.fresh()
			// Perhaps it was just being made.
			h, err = in.hold(id, b.devices, builder)
		}
		if err != nil && len(in.programs([]uint64{id - 16})) == 0 {
			continue // or just destroyed
		}
		if err != nil {
			b.unread, b.why = append(b.unread, id), err
		}
		b.programs = append(b.programs, h)
	}
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
			b.left = append(b.left, a)
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
