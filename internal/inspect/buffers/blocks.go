package buffers

import (
	"encoding/binary"
	"errors"
	"fmt"

	"tt-memtrace/aggregator"
	"tt-memtrace/internal/inspect/view"
	"tt-memtrace/internal/metal"
	"tt-memtrace/internal/x86eval"
)

// An allocator gives out blocks of its lists, one list a memory, and keeps beside them the set of buffers that it gave
// them to.

// blockList has the allocated blocks of an allocator's list.
type blockList struct {
	blocks []block
	// at maps their addresses to their indexes.
	at map[uint64]int32
}

// block is an allocated one: its address, and the bytes that it takes from every bank.
type block struct{ address, size uint64 }

func newBlockList(room uint64) *blockList {
	return &blockList{blocks: make([]block, 0, room), at: make(map[uint64]int32, room)}
}

func (l *blockList) add(b block) {
	l.at[b.address] = int32(len(l.blocks))
	l.blocks = append(l.blocks, b)
}

// find returns the index of the block at an address, or -1.
func (l *blockList) find(address uint64) int {
	if i, ok := l.at[address]; ok {
		return int(i)
	}
	return -1
}

// sizeAt returns the size of the block at an address; 0 if there is none, or no list.
func (l *blockList) sizeAt(address uint64) uint64 {
	if l == nil {
		return 0
	}
	if i := l.find(address); i >= 0 {
		return l.blocks[i].size
	}
	return 0
}

// maxBlocks bounds the blocks that a list can claim, free ones included.
const maxBlocks = 4 * maxLiveBuffers

// blockTries is how often a list that changes is read.
const blockTries = 4

// blocksIn reads the allocated blocks of an allocator's memory. It returns nil if there is no such memory.
func blocksIn(v *view.View, allocator uint64, memory aggregator.Memory) (*blockList, error) {
	list, err := listOf(v, allocator, memory)
	if list == 0 || err != nil {
		return nil, err
	}
	return blocksOf(v, list)
}

// blocksOf reads the allocated blocks of a list.
func blocksOf(v *view.View, list uint64) (*blockList, error) {
	arrays, err := v.Lib.BlockArrays()
	if err != nil {
		return evaluatedBlocks(v, list)
	}
	for range blockTries {
		var blocks *blockList
		if blocks, err = readBlocks(v, &arrays, list); !errors.Is(err, errMoved) {
			return blocks, err
		}
	}
	return nil, err
}

// readBlocks reads a list's arrays. It fails with errMoved if the list changed during that.
func readBlocks(v *view.View, arrays *metal.BlockArrays, list uint64) (*blockList, error) {
	header := make([]byte, arrays.Header())
	if err := v.Mem.ReadAt(header, list); err != nil {
		return nil, err
	}
	word := func(offset uint32) uint64 { return binary.LittleEndian.Uint64(header[offset:]) }
	begin, end := word(arrays.Addresses), word(arrays.Addresses+8)
	count := (end - begin) / 8
	if end < begin || count > maxBlocks {
		return nil, fmt.Errorf("a list of blocks at %#x from %#x to %#x", list, begin, end)
	}
	addresses, sizes := make([]byte, 8*count), make([]byte, 8*count)
	flags := make([][]byte, len(arrays.Flags))
	err := errors.Join(v.Mem.ReadAt(addresses, begin), v.Mem.ReadAt(sizes, word(arrays.Sizes)))
	for i, offset := range arrays.Flags {
		flags[i] = make([]byte, count)
		err = errors.Join(err, v.Mem.ReadAt(flags[i], word(offset)))
	}
	again := make([]byte, len(header))
	if failed := v.Mem.ReadAt(again, list); failed != nil {
		return nil, failed
	}
	if string(again) != string(header) {
		return nil, errMoved
	}
	if err != nil {
		return nil, err
	}
	allocated := func(i uint64) bool {
		for _, set := range flags {
			if set[i] == 0 {
				return false
			}
		}
		return true
	}
	blocks := newBlockList(count)
	for i := range count {
		if allocated(i) {
			at := binary.LittleEndian.Uint64(addresses[8*i:]) + word(arrays.Base)
			blocks.add(block{at, binary.LittleEndian.Uint64(sizes[8*i:])})
		}
	}
	return blocks, nil
}

// blockSteps bounds the evaluation that lists an allocator's blocks, in instructions: enough for a hundred thousand
// blocks.
const blockSteps = 20_000_000

// evaluatedBlocks is blocksOf for a library that does not show where a list keeps its arrays.
func evaluatedBlocks(v *view.View, list uint64) (*blockList, error) {
	m := v.Machine(x86eval.WithStepLimit(blockSteps))
	defer m.Free()
	at, err := v.Vector(m, metal.AllocatedBlocks, list)
	if err != nil {
		return nil, err
	}
	begin, count, err := view.ReadVector(m, at, 16, maxLiveBuffers)
	if err != nil {
		return nil, fmt.Errorf("evaluating %s: it returned %w", metal.AllocatedBlocks, err)
	}
	blocks := newBlockList(count)
	for at := begin; at < begin+16*count; at += 16 {
		from, err := m.ReadU64(at)
		if err != nil {
			return nil, err
		}
		to, err := m.ReadU64(at + 8)
		if err != nil {
			return nil, err
		}
		if to > from {
			blocks.add(block{from, to - from})
		}
	}
	return blocks, nil
}

// listOf returns the list of blocks from which an allocator computes a memory's statistics; 0 if there is no such
// memory.
func listOf(v *view.View, allocator uint64, memory aggregator.Memory) (list uint64, err error) {
	e := v.Evaluate(func(name string) x86eval.Hook {
		if name != metal.BlockStatistics {
			return nil
		}
		return func(m *x86eval.Machine) error {
			list = m.Arg(1) // argument 0 is where the result goes
			return view.ErrCaught
		}
	})
	result, err := e.Alloc(64)
	if err != nil {
		return 0, err
	}
	arg, err := e.Alloc(8)
	if err == nil {
		err = e.WriteU32(arg, uint32(memory))
	}
	if err == nil {
		_, err = e.Run(v.Lib.First(metal.Statistics), result, allocator, arg)
	}
	if errors.Is(err, view.ErrCaught) || errors.Is(err, x86eval.ErrThrow) {
		err = nil
	}
	return list, err
}
