package inspect

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"tt-memtrace/aggregator"
	"tt-memtrace/internal/inspect/view"
	"tt-memtrace/internal/metal"
	"tt-memtrace/internal/x86eval"
)

const (
	// maxQueues and maxSubDevices are more than a mesh has.
	maxQueues     = 8
	maxSubDevices = 64
	// maxRing is more than any core's L1, bytes.
	maxRing = 1 << 30
)

// ringsOf reads the kernel-config rings of a mesh, one for each of its command queues and sub-devices. A Device
// that is no mesh has none. The error wraps metal.ErrUnsupported if the library does not show how to read them.
func ringsOf(v *view.View, mesh uint64) ([]aggregator.ConfigRing, error) {
	rings, err := readRings(v, mesh)
	if errors.Is(err, x86eval.ErrUnsupported) || errors.Is(err, x86eval.ErrLimit) {
		err = fmt.Errorf("%w: %w", err, metal.ErrUnsupported)
	}
	return rings, err
}

func readRings(v *view.View, mesh uint64) ([]aggregator.ConfigRing, error) {
	if vptr, err := v.Pages().U64(mesh); err != nil || vptr != v.Vptr(metal.MeshDeviceVtable) {
		return nil, err
	}
	layout, err := v.Lib.ConfigRing()
	if err != nil {
		return nil, err
	}
	e := v.Evaluate(func(name string) x86eval.Hook {
		if strings.Contains(name, metal.CurrentQueue) {
			return x86eval.Return(0) // the thread's default queue, for callers that name none
		}
		return nil
	})
	subDevices, err := e.Run(metal.MeshSubDevices, mesh)
	if err != nil {
		return nil, err
	}
	var rings []aggregator.ConfigRing
	var seen []uint64
	for n := range uint64(maxQueues) {
		queue, err := queueOf(v, e, mesh, n)
		var vptr uint64
		if err == nil {
			vptr, err = v.Pages().U64(queue)
		}
		if errors.Is(err, x86eval.ErrThrow) || n > 0 && (err != nil || slices.Contains(seen, queue)) {
			break // no more queues: not all releases check the number
		}
		if err != nil {
			return nil, err
		}
		seen = append(seen, queue)
		if vptr != v.Vptr(metal.QueueVtable) {
			break // slow dispatch has no ring
		}
		for i := range min(uint64(uint32(subDevices)), maxSubDevices) {
			at, err := ringOfQueue(v, e, queue, vptr, i)
			if err != nil {
				return nil, err
			}
			ring, err := readRing(v, &layout, at)
			if err != nil {
				return nil, err
			}
			if ring.Capacity > 0 {
				rings = append(rings, ring)
			}
		}
	}
	return rings, nil
}

// Rings are the contents of kernel-config rings when they were last read, by the runtime's objects; and the meshes
// whose rings could not be read.
type Rings map[uint64]ringOf

type ringOf struct {
	mesh uint64
	aggregator.ConfigRing
}

// Changed returns a mesh's rings that changed or are gone. It leaves out rings that were never used.
func (r Rings) Changed(mesh uint64, rings []aggregator.ConfigRing) (changed []*aggregator.ConfigRing) {
	there := map[uint64]bool{}
	for _, now := range rings {
		there[now.ID] = true
		if before, known := r[now.ID]; before != (ringOf{mesh, now}) && (known || now.Places > 0) {
			r[now.ID] = ringOf{mesh, now}
			changed = append(changed, &now)
		}
	}
	for id, one := range r {
		if one.mesh == mesh && !there[id] {
			delete(r, id)
			changed = append(changed, &aggregator.ConfigRing{ID: id})
		}
	}
	return changed
}

// Unread returns the changes if a mesh's rings cannot be read.
func (r Rings) Unread(mesh uint64) []*aggregator.ConfigRing {
	one := aggregator.ConfigRing{ID: mesh, Unread: true}
	if _, known := r[mesh]; known {
		return nil
	}
	r[mesh] = ringOf{mesh, one}
	return []*aggregator.ConfigRing{&one}
}

// Drop forgets the rings of a mesh.
func (r Rings) Drop(mesh uint64) {
	maps.DeleteFunc(r, func(_ uint64, one ringOf) bool { return one.mesh == mesh })
}

// queueOf returns a mesh's nth command queue.
func queueOf(v *view.View, e *view.Evaluation, mesh, n uint64) (uint64, error) {
	name := v.Lib.First(metal.MeshQueue)
	if name == metal.MeshQueue[0] {
		n |= 1 << 8 // a std::optional<uint8_t> with a value
	}
	return e.Run(name, mesh, n)
}

// ringOfQueue returns a command queue's ring of a sub-device. The function is virtual, and a stripped library does not
// name it. There it is the entry at the vtable index where slow dispatch's class, with the same base class, has its
// own.
func ringOfQueue(v *view.View, e *view.Evaluation, queue, vptr, subDevice uint64) (uint64, error) {
	if v.Lib.Defines(metal.QueueConfigRing) {
		return e.Run(metal.QueueConfigRing, queue, subDevice)
	}
	if !v.Lib.Defines(metal.SlowQueueVtable) || !v.Lib.Defines(metal.SlowQueueConfigRing) {
		return 0, fmt.Errorf("its command queues have no function that gives their kernel-config rings: %w", metal.ErrUnsupported)
	}
	slow, want := v.Vptr(metal.SlowQueueVtable), v.AddressOf(metal.SlowQueueConfigRing)
	const most = 64 // more than it has virtual functions
	for i := range uint64(most) {
		at, err := e.ReadU64(slow + 8*i)
		if err != nil {
			return 0, err
		}
		if at != want {
			continue
		}
		function, err := e.ReadU64(vptr + 8*i)
		if err != nil {
			return 0, err
		}
		return e.Call(function, queue, subDevice)
	}
	return 0, fmt.Errorf("its command queues have no virtual function that gives their kernel-config rings: %w", metal.ErrUnsupported)
}

// readRing reads a ring; one that was not made yet has no capacity. The process may place launches during a reading,
// so what changes is read until two readings in a row are equal.
func readRing(v *view.View, l *metal.ConfigRing, at uint64) (ring aggregator.ConfigRing, err error) {
	fail := func(err error) (aggregator.ConfigRing, error) {
		return ring, fmt.Errorf("reading the kernel-config ring at %#x: %w", at, err)
	}
	// These vectors do not move while the ring is in use.
	var b [metal.VectorSize]byte
	if err := v.Pages().ReadAt(b[:], at+uint64(l.Bases)); err == nil && bytes.Equal(b[:8], b[8:16]) {
		return ring, nil // it has no core kinds yet
	}
	var words []uint64
	for _, offset := range []uint32{l.Bases, l.Ends, l.First, l.Next} {
		begin, _, err := vectorAt(v, b[:], at+uint64(offset))
		if err != nil {
			return fail(err)
		}
		words = append(words, begin)
	}
	places, length, err := vectorAt(v, b[:], at+uint64(l.Places))
	if err == nil && length != uint64(l.Count)*metal.VectorSize {
		err = fmt.Errorf("it has %d bytes of places", length)
	}
	if err != nil {
		return fail(err)
	}
	for i := range uint64(l.Count) {
		begin, _, err := vectorAt(v, b[:], places+i*metal.VectorSize)
		if err != nil {
			return fail(err)
		}
		words = append(words, begin+uint64(l.Address), begin+uint64(l.Size))
	}
	const tries = 20
	var half []byte
	for range tries {
		all, err := v.Mem.ReadEach(slices.Concat(words, words), 0, 4)
		if err != nil {
			return fail(err)
		}
		if bytes.Equal(all[:len(all)/2], all[len(all)/2:]) {
			half = all[:len(all)/2]
			break
		}
	}
	if half == nil {
		return fail(view.ErrChanging)
	}
	number := func(i uint32) uint64 { return uint64(binary.LittleEndian.Uint32(half[4*i:])) }
	base, end, first, next := number(0), number(1), uint32(number(2)), uint32(number(3))
	ring = aggregator.ConfigRing{ID: at, Base: base, Capacity: end - base}
	if base >= end || end > maxRing || first >= l.Count || next >= l.Count {
		return fail(fmt.Errorf("it is from %#x to %#x, with places from %d to %d", base, end, first, next))
	}
	for i := first; i != next; i = (i + 1) % l.Count {
		address, size := number(4+2*i), number(5+2*i)
		if size == 0 || address < base || address+size > end {
			return fail(fmt.Errorf("it is from %#x to %#x and has %d bytes at %#x", base, end, size, address))
		}
		ring.Places++
		ring.Used += size
	}
	// A replay gets all of the ring, whatever it writes there.
	ring.Replayed = ring.Places == 1 && ring.Used == ring.Capacity
	return ring, nil
}

// vectorAt reads a std::vector of the process: where its elements begin, and their length in bytes.
func vectorAt(v *view.View, b []byte, at uint64) (begin, length uint64, err error) {
	if err := v.Pages().ReadAt(b, at); err != nil {
		return 0, 0, err
	}
	begin, end := binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint64(b[8:])
	if begin == 0 || end <= begin {
		return 0, 0, fmt.Errorf("a vector from %#x to %#x", begin, end)
	}
	return begin, end - begin, nil
}

// configSize returns a program's size in the kernel-config ring of each worker core, in bytes; 0 if it cannot be
// read.
func configSize(v *view.View, program uint64) uint64 {
	at, err := v.Call(metal.ProgramConfigSize, program, 0) // the worker cores' size
	var b [4]byte
	if err != nil || v.Mem.ReadAt(b[:], at) != nil {
		return 0
	}
	if n := uint64(binary.LittleEndian.Uint32(b[:])); n <= maxRing {
		return n
	}
	return 0
}
