package buffers

import (
	"fmt"

	"tt-memtrace/aggregator"
	"tt-memtrace/internal/inspect/view"
	"tt-memtrace/internal/metal"
)

// Bank reads the numbers of an allocator's memory from which reserved sizes are computed. They do not change while
// the allocator lives.
func Bank(
	v *view.View, sizes *metal.ReservedSizes, allocator uint64, memory aggregator.Memory,
) (b metal.Bank, err error) {
	banks, err := v.OfMemory(metal.NumBanks, allocator, memory)
	if err != nil {
		return b, err
	}
	alignment, err := v.CallFirst(metal.BankAlignment, allocator, uint64(memory))
	if err != nil {
		return b, err
	}
	list, err := listOf(v, allocator, memory)
	if err == nil && list == 0 {
		err = fmt.Errorf("the allocator at %#x has no list of blocks of memory %d", allocator, memory)
	}
	if err != nil {
		return b, err
	}
	read := metal.Bank{Banks: uint32(banks), PageAlignment: uint32(alignment)}
	if read.MinBlock, err = v.Pages().U64(list + uint64(sizes.MinBlock)); err != nil {
		return b, err
	}
	if read.BlockAlignment, err = v.Pages().U64(list + uint64(sizes.BlockAlignment)); err != nil {
		return b, err
	}
	if !read.Valid() {
		return b, fmt.Errorf("the allocator at %#x has a memory %d with %+v", allocator, memory, read)
	}
	return read, nil
}
