package inspect

import (
	"fmt"
	"slices"

	"tt-memtrace/internal/metal"
	"tt-memtrace/internal/x86eval"
)

// persistentL1 returns what an allocator, at an offset of which it has an arena, has given of L1 outside of its
// buffers, as a detail for people; empty if that is nothing.
func (in *Inspector) persistentL1(allocator, offset uint64) string {
	if offset == 0 {
		return ""
	}
	m := in.machine(x86eval.WithStepLimit(blockSteps))
	defer m.Free()
	at, err := in.vector(m, metal.PersistentRanges, allocator+offset)
	if err != nil {
		return fmt.Sprintf("its size could not be read: %v", err)
	}
	const rangeBytes, most = 16, 1 << 16
	begin, count, err := readVector(m, at, rangeBytes, most)
	if err != nil {
		return fmt.Sprintf("its size could not be read: %v", err)
	}
	var end uint64
	for at := begin; at < begin+rangeBytes*count; at += rangeBytes {
		to, err := m.ReadU64(at + 8)
		if err != nil {
			return fmt.Sprintf("its size could not be read: %v", err)
		}
		end = max(end, to)
	}
	if count == 0 {
		return ""
	}
	return fmt.Sprintf("on some cores up to address %#x", end)
}

// arenasOf returns the arenas of persistent L1 of the open devices that share chips with others.
func (in *Inspector) arenasOf(devices []uint64, o *openDevices) (list []uint64) {
	offset, err := in.lib.PersistentL1()
	if offset == 0 || err != nil {
		return nil
	}
	for device, allocator := range o.allocators {
		shares := slices.ContainsFunc(devices, func(d uint64) bool {
			return slices.ContainsFunc(o.chips[d], func(chip uint32) bool { return slices.Contains(o.chips[device], chip) })
		})
		if shares && allocator != 0 {
			list = append(list, allocator+offset)
		}
	}
	slices.Sort(list)
	return list
}
