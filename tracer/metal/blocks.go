package metal

import (
	"encoding/binary"
	"fmt"
	"slices"

	"tt-memtrace/tracer/eval"
)

// Blocks is where an allocator's list of a bank's blocks (FreeListOpt) has what leads to a block's address, in bytes
// from the list's beginning.
type Blocks struct {
	// Addresses is a pointer to the addresses of all blocks, 8 bytes each.
	Addresses uint32
	// Base is added to them.
	Base uint32
}

// blockTable is where all 82 releases from 0.59.0rc58 to 0.81.1 have these. Only one function shows each, so another
// place is not believed.
var blockTable = Blocks{Addresses: 0x40, Base: 0x10}

// Blocks finds these places by evaluating functions over a symbolic list. The error wraps ErrUnsupported if that
// shows nothing, or another place than the table.
func (l *Library) Blocks() (b Blocks, err error) {
	image, err := l.Image()
	if err != nil {
		return b, err
	}
	take, free := l.symbols[allocateInBlock[0]], l.symbols[deallocateBlock]
	if take.Value == 0 || free.Value == 0 {
		return b, fmt.Errorf("its lists of blocks have no functions that take and free a block: %w", ErrUnsupported)
	}
	if b.Addresses, err = addressesOfBlocks(image, take.Value); err == nil {
		b.Base, err = baseOfBlocks(image, free.Value)
	}
	if err != nil {
		return b, fmt.Errorf("its lists of blocks: %w: %w", err, ErrUnsupported)
	}
	if b != blockTable {
		return b, fmt.Errorf("its lists of blocks have their addresses at %#x and add what is at %#x, not as always at %#x and %#x: %w",
			b.Addresses, b.Base, blockTable.Addresses, blockTable.Base, ErrUnsupported)
	}
	return b, nil
}

// blockSteps bounds the evaluations, instructions.
const blockSteps = 300

// addressesOfBlocks: allocating the end of a block adds to its address.
func addressesOfBlocks(image *eval.Image, function uint64) (uint32, error) {
	const block, size, offset = 3, 0x2000, 0x1000
	memory := eval.NewSymbolicMemory(image)
	m := eval.New(memory, eval.WithSlots(image.SlotFunc(eval.Libc)), eval.WithStepLimit(blockSteps))
	list := memory.Root()
	_, failed := m.Call(function, list, block, size, offset) // it may fail: there are no blocks
	for _, load := range memory.Loads() {
		p := load.Path
		if p.Root != list || len(p.Offsets) != 1 || p.Tail != 8*block || load.Size != 8 {
			continue
		}
		at := memory.Child(list+uint64(p.Offsets[0])) + 8*block
		var now [8]byte
		if err := m.Read(at, now[:]); err == nil && binary.LittleEndian.Uint64(now[:]) == memory.Child(at)+offset {
			return uint32(p.Offsets[0]), nil
		}
	}
	return 0, fmt.Errorf("to take a part of a block adds to no address of it (%v)", failed)
}

// baseOfBlocks: freeing a block by its address subtracts the base, then looks the block up. So where it looks depends
// only on the difference.
func baseOfBlocks(image *eval.Image, function uint64) (uint32, error) {
	const some, more = 0x12345000, 0x3000
	looks := func(address uint64, field int64, value uint64) (paths []eval.Load) {
		memory := eval.NewSymbolicMemory(image)
		m := eval.New(memory, eval.WithSlots(image.SlotFunc(eval.Libc)), eval.WithStepLimit(blockSteps))
		list := memory.Root()
		if field >= 0 {
			memory.Set(list+uint64(field), binary.LittleEndian.AppendUint64(nil, value)...)
		}
		_, _ = m.Call(function, list, address) // it does not find the block
		return memory.Loads()
	}
	alike := func(a, b []eval.Load) bool {
		return slices.EqualFunc(a, b, func(x, y eval.Load) bool {
			return x.Size == y.Size && x.Path.Tail == y.Path.Tail && slices.Equal(x.Path.Offsets, y.Path.Offsets)
		})
	}
	for _, load := range looks(some, -1, 0) {
		field := load.Path.Tail
		if len(load.Path.Offsets) > 0 || load.Size != 8 || field < 0 {
			continue
		}
		one := looks(some, field, more)
		if alike(one, looks(some+more, field, 2*more)) && !alike(one, looks(some+more, field, more)) {
			return uint32(field), nil
		}
	}
	return 0, fmt.Errorf("to free a block subtracts no field from its address")
}
