package metal

import (
	"encoding/binary"
	"fmt"
	"slices"

	"tt-memtrace/internal/x86eval"
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
func addressesOfBlocks(image *x86eval.Image, function uint64) (uint32, error) {
	const block, size, offset = 3, 0x2000, 0x1000
	memory := x86eval.NewSymbolicMemory(image)
	m := x86eval.New(memory, x86eval.WithSlots(image.SlotFunc(x86eval.Libc)), x86eval.WithStepLimit(blockSteps))
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
func baseOfBlocks(image *x86eval.Image, function uint64) (uint32, error) {
	const some, more = 0x12345000, 0x3000
	looks := func(address uint64, field int64, value uint64) (paths []x86eval.Load) {
		memory := x86eval.NewSymbolicMemory(image)
		m := x86eval.New(memory, x86eval.WithSlots(image.SlotFunc(x86eval.Libc)), x86eval.WithStepLimit(blockSteps))
		list := memory.Root()
		if field >= 0 {
			memory.Set(list+uint64(field), binary.LittleEndian.AppendUint64(nil, value)...)
		}
		_, _ = m.Call(function, list, address) // it does not find the block
		return memory.Loads()
	}
	alike := func(a, b []x86eval.Load) bool {
		return slices.EqualFunc(a, b, func(x, y x86eval.Load) bool {
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

// BlockArrays is where a list of blocks (FreeListOpt) has its arrays, in bytes from the list's beginning. Each is a
// std::vector with one element a block: 8 bytes in Addresses and Sizes, one in each of Flags. A block is allocated if
// all its flags are set; the list adds Base to its address.
type BlockArrays struct {
	Addresses, Sizes, Base uint32
	Flags                  []uint32
}

// Header is how many bytes from a list's beginning have all of these.
func (a BlockArrays) Header() uint32 {
	return max(slices.Max(append([]uint32{a.Addresses, a.Sizes}, a.Flags...))+VectorSize, a.Base+8)
}

// BlockArrays finds these arrays by evaluating the function that lists the allocated blocks over a symbolic list of
// two. The error wraps ErrUnsupported if that does not show exactly these.
func (l *Library) BlockArrays() (BlockArrays, error) { return l.blockArrays() }

func (l *Library) findBlockArrays() (a BlockArrays, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("the arrays of its lists of blocks: %w: %w", err, ErrUnsupported)
		}
	}()
	image, err := l.Image()
	if err != nil {
		return a, err
	}
	function, ok := l.symbols[AllocatedBlocks]
	if !ok {
		return a, fmt.Errorf("there is no %s", AllocatedBlocks)
	}
	const blocks, maxFlags = 2, 4
	memory := x86eval.NewSymbolicMemory(image)
	list := memory.Root()
	vector := func(offset uint32) uint64 { return memory.Child(list + uint64(offset)) }
	memory.Set(list+uint64(blockTable.Addresses)+8, binary.LittleEndian.AppendUint64(nil, vector(blockTable.Addresses)+8*blocks)...)
	for {
		m := x86eval.New(memory, x86eval.WithSlots(image.SlotFunc(x86eval.Libc)))
		seen := len(memory.Loads())
		result, err := m.Alloc(VectorSize)
		if err == nil {
			_, err = m.Call(function.Value, result, list)
		}
		if err != nil {
			return a, err
		}
		var begin, count uint64
		if begin, err = m.ReadU64(result); err == nil {
			count, err = m.ReadU64(result + 8)
		}
		if err != nil {
			return a, err
		}
		count = (count - begin) / 16
		for _, load := range memory.Loads()[seen:] {
			p := load.Path
			if load.Size != 1 || len(p.Offsets) != 1 || p.Tail != 0 || slices.Contains(a.Flags, uint32(p.Offsets[0])) {
				continue
			}
			a.Flags = append(a.Flags, uint32(p.Offsets[0]))
			for i := range uint64(blocks) {
				memory.Set(vector(uint32(p.Offsets[0]))+i, 1)
			}
		}
		if count == blocks {
			return a, a.fromResult(memory, m, list, begin, memory.Loads()[seen:])
		}
		if count != 0 || len(a.Flags) == 0 || len(a.Flags) > maxFlags || len(memory.Loads()) > 1000 {
			return a, fmt.Errorf("with the flags at %#x it lists %d of %d blocks", a.Flags, count, blocks)
		}
	}
}

// fromResult finds the other places from the list of blocks that the function returned at begin, and what it loaded.
func (a *BlockArrays) fromResult(memory *x86eval.SymbolicMemory, m *x86eval.Machine, list, begin uint64, loads []x86eval.Load) error {
	a.Addresses, a.Base = blockTable.Addresses, blockTable.Base
	base := memory.Child(list + uint64(a.Base))
	for _, load := range loads {
		if p := load.Path; load.Size == 8 && len(p.Offsets) == 1 && p.Tail == 0 && uint32(p.Offsets[0]) != a.Addresses {
			a.Sizes = uint32(p.Offsets[0])
		}
	}
	for i := range uint64(2) {
		address := memory.Child(memory.Child(list+uint64(a.Addresses))+8*i) + base
		size := memory.Child(memory.Child(list+uint64(a.Sizes)) + 8*i)
		var from, to [8]byte
		if err := m.Read(begin+16*i, from[:]); err != nil {
			return err
		}
		if err := m.Read(begin+16*i+8, to[:]); err != nil {
			return err
		}
		if binary.LittleEndian.Uint64(from[:]) != address || binary.LittleEndian.Uint64(to[:]) != address+size {
			return fmt.Errorf("with the addresses at %#x, the base at %#x and the sizes at %#x, block %d is another one", a.Addresses, a.Base, a.Sizes, i)
		}
	}
	return nil
}
