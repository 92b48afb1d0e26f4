// Package buffers reads the buffers of one allocator of a process: which it has, their sizes in each bank and their
// places on cores. The allocator's lists of blocks confirm them.
package buffers

import (
	"encoding/binary"
	"errors"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"tt-memtrace/aggregator"
	"tt-memtrace/internal/inspect/view"
	"tt-memtrace/internal/metal"
)

// The runtime's allocators keep a set of the buffers that they handed out, and lists of blocks. Reading both shows
// what a process held before it was traced.

// maxLiveBuffers bounds the buffers that a process can claim; atOnce of them are read at a time.
const (
	maxLiveBuffers = aggregator.MaxProcessBuffers
	atOnce         = 4096
)

// Unconfirmed reads the buffers of an allocator, without confirming them by its blocks.
func Unconfirmed(p *view.Process, layout *metal.Layout, allocator, set uint64) ([]aggregator.LiveBuffer, error) {
	return liveBuffers(p, Earlier(nil).rescan(allocator), layout, allocator, set)
}

// liveBuffers reads the buffers of an allocator. The process keeps running: what it does not touch is read correctly,
// and the set is read again until it is complete.
func liveBuffers(
	p *view.Process, r *rescan, layout *metal.Layout, allocator, set uint64,
) ([]aggregator.LiveBuffer, error) {
	return r.follow(setOf(p, layout, allocator, allocator+set), p.Limit(strictTime).Over, p.Limit(time.Second).Over)
}

// readWindows reads the part of each Buffer object that has its fields, one after another, and returns where these
// parts are.
func readWindows(p *view.Process, layout *metal.Layout, buffers []uint64) (at []uint64, windows []byte, err error) {
	if at, err = fieldsAt(p, layout, buffers); err != nil {
		return nil, nil, err
	}
	windows, err = p.Mem.ReadEach(at, 0, metal.WindowSize)
	return at, windows, err
}

// fieldsAt returns where the fields of Buffer objects begin.
func fieldsAt(p *view.Process, layout *metal.Layout, buffers []uint64) ([]uint64, error) {
	at := slices.Clone(buffers)
	if layout.Indirect {
		words, err := p.Mem.ReadEach(buffers, uint64(layout.Base), 8)
		if err != nil {
			return nil, err
		}
		for i := range at {
			at[i] = binary.LittleEndian.Uint64(words[8*i:])
		}
	} else {
		for i := range at {
			at[i] += uint64(layout.Base)
		}
	}
	return at, nil
}

// bufferFields are the offsets of a layout's fields from the window's beginning.
type bufferFields struct {
	allocator, status, hooked, device, address, size, pageSize, memory, layout uint32
}

func fieldsOf(l *metal.Layout) bufferFields {
	return bufferFields{
		allocator: l.Offset("allocator"), status: l.Offset("status"), hooked: l.Offset("hooked"),
		device: l.Offset("device"), address: l.Offset("address"),
		size: l.Offset("size"), pageSize: l.Offset("page_size"), memory: l.Offset("type"), layout: l.Offset("layout"),
	}
}

// buffer decodes a window. It returns false if the buffer is not this allocator's, or not allocated (any more).
func (f *bufferFields) buffer(w []byte, id, allocator uint64) (h aggregator.LiveBuffer, ok bool) {
	u64 := func(offset uint32) uint64 { return binary.LittleEndian.Uint64(w[offset:]) }
	u32 := func(offset uint32) uint32 { return binary.LittleEndian.Uint32(w[offset:]) }
	if u64(f.allocator) != allocator || w[f.status] != metal.StatusAllocated || w[f.hooked] != 0 {
		return h, false
	}
	return aggregator.LiveBuffer{
		Buffer: id, Device: u64(f.device), Allocator: allocator, Address: uint64(u32(f.address)), Size: u64(f.size),
		PageSize: u64(f.pageSize), Memory: aggregator.Memory(min(u32(f.memory), 255)),
		MemoryLayout: uint8(min(u32(f.layout), 255)),
	}, true
}

// Number reads the runtime's number of a buffer: a later buffer has a higher one.
func Number(p *view.Process, buffer uint64) (uint64, error) {
	id, err := p.Lib.UniqueID()
	if err != nil {
		return 0, err
	}
	var word [8]byte
	if id.Indirect {
		if err := p.Mem.ReadAt(word[:], buffer+uint64(id.Pointer)); err != nil {
			return 0, err
		}
		buffer = binary.LittleEndian.Uint64(word[:])
	}
	err = p.Mem.ReadAt(word[:], buffer+uint64(id.Offset))
	return binary.LittleEndian.Uint64(word[:]), err
}

// Without removes from another process's buffers those that this process also has at the same address. It reads the
// buffers themselves and not this process's set of them: reading a set takes several tries while its process
// allocates, and a process can have many forks.
func Without(
	p *view.Process, layout *metal.Layout, list []aggregator.LiveBuffer,
) (rest []aggregator.LiveBuffer, err error) {
	if len(list) == 0 {
		return nil, nil
	}
	objects := make([]uint64, len(list))
	for i, h := range list {
		objects[i] = h.Buffer
	}
	_, windows, err := readWindows(p, layout, objects)
	if errors.Is(err, unix.EFAULT) { // some address is unmapped by now
		if len(list) == 1 {
			return list, nil
		}
		half := len(list) / 2
		first, err := Without(p, layout, list[:half])
		if err != nil {
			return nil, err
		}
		second, err := Without(p, layout, list[half:])
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
