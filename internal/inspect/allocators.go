package inspect

import (
	"fmt"
	"slices"

	"tt-memtrace/aggregator"
	"tt-memtrace/internal/inspect/view"
	"tt-memtrace/internal/metal"
	"tt-memtrace/internal/x86eval"
)

// allocatorOf returns a device's allocator. The getter returns the allocator or, in most releases, the address of the
// pointer to it; only an allocator has banks, which shows which one it is.
func allocatorOf(v *view.View, getter []string, device uint64) (uint64, error) {
	a, err := v.CallFirst(getter, device)
	if err != nil {
		return 0, err
	}
	pointer := a
	if a, err = v.Pages().U64(pointer); err == nil && isAllocator(v, a) {
		return a, nil
	}
	if isAllocator(v, pointer) {
		return pointer, nil
	}
	return 0, fmt.Errorf("no allocator at %#x", pointer)
}

// allocatorWithBanks reads a device's allocator and its banks. It fails unless all of it is known.
func allocatorWithBanks(v *view.View, device uint64) (allocator uint64, c aggregator.Capacity, err error) {
	vptr, err := v.Pages().U64(device)
	if err != nil {
		return 0, c, err
	}
	err = errNotADevice
	for vtable, getter := range metal.AllocatorOf {
		if v.Vptr(vtable) == vptr {
			allocator, err = allocatorOf(v, getter, device)
		}
	}
	if err == nil {
		c, err = capacityOf(v, allocator)
	}
	return allocator, c, err
}

func isAllocator(v *view.View, allocator uint64) bool {
	const most = 1 << 16
	n, err := v.OfMemory(metal.NumBanks, allocator, aggregator.DRAM)
	return err == nil && n > 0 && n < most
}

// halMemories are the numbers of the runtime's HalMemType, which name a memory with all its parts: L1_SMALL and TRACE
// begin elsewhere in it.
var halMemories = map[aggregator.Memory]aggregator.Memory{aggregator.L1: 0, aggregator.DRAM: 1}

// isResized reports whether an allocator's L1 has another size than known: a sub-device manager can take some of it.
func isResized(v *view.View, allocator uint64, known uint64) bool {
	size, err := v.OfMemory(metal.BankSize, allocator, aggregator.L1)
	return err == nil && size != known
}

func capacityOf(v *view.View, allocator uint64) (c aggregator.Capacity, err error) {
	for m := range aggregator.NumMemories {
		if m == aggregator.SystemMemory {
			continue // not on the chip, and the allocator has no answer for it
		}
		n, e := v.OfMemory(metal.NumBanks, allocator, m)
		if e != nil {
			err = e
			continue
		}
		size, e := v.OfMemory(metal.BankSize, allocator, m)
		if e != nil {
			err = e
			continue
		}
		c[m] = aggregator.Banks{Known: true, Count: uint32(n), Bytes: size}
		if of, ok := halMemories[m]; ok && n > 0 {
			if base, e := v.OfMemory(metal.BankBase, allocator, of); e == nil {
				c[m].Base, c[m].Based = base, true
			}
		}
	}
	return c, err
}

// arenaSteps bounds the evaluation that lists what an arena has given, in instructions.
const arenaSteps = 20_000_000

// persistentL1 returns what an allocator, at an offset of which it has an arena, has given of L1 outside of its
// buffers, as a detail for people; empty if that is nothing.
func persistentL1(v *view.View, allocator, offset uint64) string {
	if offset == 0 {
		return ""
	}
	m := v.Machine(x86eval.WithStepLimit(arenaSteps))
	defer m.Free()
	at, err := v.Vector(m, metal.PersistentRanges, allocator+offset)
	if err != nil {
		return fmt.Sprintf("its size could not be read: %v", err)
	}
	const rangeBytes, most = 16, 1 << 16
	begin, count, err := view.ReadVector(m, at, rangeBytes, most)
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
func arenasOf(v *view.View, devices []uint64, o *openDevices) (list []uint64) {
	offset, err := v.Lib.PersistentL1()
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
