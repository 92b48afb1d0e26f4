package tracer

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"tt-memtrace/aggregator"
	"tt-memtrace/tracer/eval"
)

// The runtime's allocators keep a set of the buffers that they handed out, and
// lists of blocks. Reading both gives what a process held before it was traced.

// allocatedBuffers returns a copy of an allocator's std::unordered_set<Buffer*>.
var allocatedBuffers = []string{
	"_ZNK2tt8tt_metal13AllocatorImpl21get_allocated_buffersEv",
	"_ZNK2tt8tt_metal9Allocator21get_allocated_buffersEv",
}

// numAllocatedBuffers returns how many there are in it.
var numAllocatedBuffers = []string{
	"_ZNK2tt8tt_metal13AllocatorImpl25get_num_allocated_buffersEv",
	"_ZNK2tt8tt_metal9Allocator25get_num_allocated_buffersEv",
}

// allocatorOf returns a device's allocator.
var allocatorOf = map[string][]string{
	deviceVtable: {
		"_ZNK2tt8tt_metal6Device14allocator_implEv",
		"_ZNK2tt8tt_metal6Device9allocatorEv",
	},
	meshDeviceVtable: {
		"_ZNK2tt8tt_metal11distributed10MeshDevice14allocator_implEv",
		"_ZNK2tt8tt_metal11distributed10MeshDevice9allocatorEv",
	},
}

// statistics of one memory, for which an allocator asks its list of blocks.
var statistics = []string{
	"_ZNK2tt8tt_metal13AllocatorImpl14get_statisticsERKNS0_10BufferTypeE",
	"_ZNK2tt8tt_metal9Allocator14get_statisticsERKNS0_10BufferTypeE",
}

const (
	blockStatistics  = "_ZNK2tt8tt_metal9allocator11FreeListOpt14get_statisticsEv"
	allocatedBlocks  = "_ZNK2tt8tt_metal9allocator11FreeListOpt19allocated_addressesEv"
	deviceIsOpen     = "_ZNK2tt8tt_metal6Device14is_initializedEv"
	meshIsOpen       = "_ZNK2tt8tt_metal11distributed10MeshDevice14is_initializedEv"
	bankingAllocator = "_ZTVN2tt8tt_metal18L1BankingAllocatorE"
	mockAllocator    = "_ZTVN2tt8tt_metal12experimental13MockAllocatorE"
)

// The parts of a std::unordered_set of libstdc++, and of its nodes, which hold a
// pointer and no hash; bytes.
const (
	setBuckets = 8
	setFirst   = 16
	setCount   = 24
	nodeValue  = 8
)

// maxHeld bounds what a process can claim to hold in one allocator.
const maxHeld = 4 << 20

// setOffset is where an allocator keeps the set of its buffers, which the
// function that copies it shows: it reads the number of buckets and of elements.
func (l *Library) setOffset() (uint64, error) {
	loads, err := l.loads(allocatedBuffers, true)
	if err != nil {
		return 0, err
	}
	for _, at := range loads {
		if !slices.Contains(loads, at-setBuckets+setCount) {
			continue
		}
		set := at - setBuckets
		// The other one that reads it has to agree, where there is one.
		counted, err := l.loads(numAllocatedBuffers, false)
		if err == nil && !slices.Contains(counted, set+setCount) {
			return 0, fmt.Errorf("finding the set of buffers: it seems to be at %#x, but its count is not at %#x", set, set+setCount)
		}
		return uint64(set), nil
	}
	return 0, fmt.Errorf("finding the set of buffers: %s does not show it", allocatedBuffers[0])
}

// loads are the offsets of the words that a function reads of its object first.
func (l *Library) loads(names []string, copies bool) ([]int64, error) {
	image, err := l.Image()
	if err != nil {
		return nil, err
	}
	s, ok := l.symbols[l.first(names)]
	if !ok {
		return nil, fmt.Errorf("evaluating %s: the library lacks it", names[0])
	}
	probe := eval.NewProbe(image)
	m := eval.New(probe, eval.WithSlots(image.SlotFunc(eval.Libc)), eval.WithStepLimit(1000))
	object := probe.Root()
	args := []uint64{object}
	if copies {
		result, err := m.Alloc(64)
		if err != nil {
			return nil, err
		}
		args = []uint64{result, object}
	}
	// It does not get far with an object that is not there: what it reads
	// first is enough.
	_, _ = m.Call(s.Value, args...)
	var offsets []int64
	for _, load := range probe.Loads() {
		if len(load.Path.Offsets) == 0 && load.Size == 8 {
			offsets = append(offsets, load.Path.Tail)
		}
	}
	return offsets, nil
}

// openTime bounds how long the devices and allocators of a process are looked for.
const openTime = 5 * time.Second

var errOpenTime = fmt.Errorf("looking for its devices and allocators took more than %v", openTime)

// open finds the devices that a process has open, each with its allocator or 0,
// and all allocators, of which a device can have more.
func (in *inspector) open(found objects) (devices map[uint64]uint64, allocators []uint64, err error) {
	devices = map[uint64]uint64{}
	deadline := time.Now().Add(openTime)
	late := func() bool { return time.Now().After(deadline) }
	add := func(allocator uint64) {
		if !slices.Contains(allocators, allocator) {
			allocators = append(allocators, allocator)
		}
	}
	for vtable, isOpen := range map[string]string{deviceVtable: deviceIsOpen, meshDeviceVtable: meshIsOpen} {
		for _, address := range found[in.vptr(vtable)] {
			if late() {
				return nil, nil, errOpenTime
			}
			// A device that was closed can still be found.
			if initialized, err := in.call(isOpen, address); err == nil && initialized&1 == 0 {
				continue
			}
			if chips, _, _, err := in.device(address); err != nil || len(chips) == 0 || chips[0] >= maxChips {
				continue
			}
			a, err := in.allocator(allocatorOf[vtable], address)
			if err == nil {
				add(a)
			}
			devices[address] = a
		}
	}
	for _, vtable := range []string{bankingAllocator, mockAllocator} {
		if vptr := in.vptr(vtable); vptr != 0 {
			for _, address := range found[vptr] {
				if late() {
					return nil, nil, errOpenTime
				}
				if in.hasBanks(address) {
					add(address)
				}
			}
		}
	}
	return devices, allocators, nil
}

// allocator is that of a device. The getter returns it or, in most releases,
// where the pointer to it is: only an allocator has banks.
func (in *inspector) allocator(getter []string, device uint64) (uint64, error) {
	a, err := in.callFirst(getter, device)
	if err != nil {
		return 0, err
	}
	pointer := a
	if a, err = in.pages().u64(pointer); err == nil && in.hasBanks(a) {
		return a, nil
	}
	if in.hasBanks(pointer) {
		return pointer, nil
	}
	return 0, fmt.Errorf("no allocator at %#x", pointer)
}

func (in *inspector) hasBanks(allocator uint64) bool {
	const most = 1 << 16
	n, err := in.ofMemory(numBanks, allocator, aggregator.DRAM)
	return err == nil && n > 0 && n < most
}

// errChanging: the process changed what was read of it each time.
var errChanging = errors.New("it changes faster than it can be read")

// held reads the buffers of an allocator. The process runs on meanwhile: what it
// does not touch is read right, and the set is read anew until it is whole.
func (in *inspector) held(layout *Layout, allocator, set uint64) ([]aggregator.Held, error) {
	deadline := time.Now().Add(time.Second)
	for {
		list, err := in.set(allocator + set)
		if err == nil {
			var held []aggregator.Held
			if held, err = in.buffers(layout, list, allocator); err == nil {
				return held, nil
			}
		}
		if time.Now().After(deadline) {
			return nil, fmt.Errorf("reading the buffers of the allocator at %#x: %w: %w", allocator, errChanging, err)
		}
	}
}

// set walks a std::unordered_set of pointers.
func (in *inspector) set(address uint64) ([]uint64, error) {
	p := in.pages()
	count, err := p.u64(address + setCount)
	if err != nil {
		return nil, err
	}
	if count > maxHeld {
		return nil, fmt.Errorf("a set at %#x claims %d elements", address, count)
	}
	list := make([]uint64, 0, count)
	node, err := p.u64(address + setFirst)
	for ; err == nil && node != 0; node, err = p.u64(node) {
		if uint64(len(list)) == count {
			return nil, fmt.Errorf("a set at %#x has more than its %d elements", address, count)
		}
		value, err := p.u64(node + nodeValue)
		if err != nil {
			return nil, err
		}
		list = append(list, value)
	}
	if err != nil {
		return nil, err
	}
	after, err := in.pages().u64(address + setCount)
	if err == nil && (uint64(len(list)) != count || after != count) {
		err = fmt.Errorf("a set at %#x of %d elements had %d, then %d", address, count, len(list), after)
	}
	return list, err
}

// buffers reads Buffer objects, of which those that are not the allocator's, or
// not allocated (any more), are left out.
func (in *inspector) buffers(layout *Layout, list []uint64, allocator uint64) ([]aggregator.Held, error) {
	at := slices.Clone(list)
	base := uint64(layout.Base)
	if layout.Indirect {
		words, err := in.many(list, base, 8)
		if err != nil {
			return nil, err
		}
		for i := range at {
			at[i] = binary.LittleEndian.Uint64(words[8*i:])
		}
		base = 0
	}
	windows, err := in.many(at, base, windowSize)
	if err != nil {
		return nil, err
	}
	held := make([]aggregator.Held, 0, len(list))
	for i, id := range list {
		w := windows[i*windowSize : (i+1)*windowSize]
		u64 := func(field string) uint64 { return binary.LittleEndian.Uint64(w[layout.offset(field):]) }
		u32 := func(field string) uint32 { return binary.LittleEndian.Uint32(w[layout.offset(field):]) }
		if u64("allocator") != allocator || w[layout.offset("status")] != statusAllocated || w[layout.offset("hooked")] != 0 {
			continue
		}
		held = append(held, aggregator.Held{
			Buffer: id, Device: u64("device"), Allocator: allocator, Address: uint64(u32("address")), Size: u64("size"),
			PageSize: u64("page_size"), Memory: aggregator.Memory(min(u32("type"), 255)), Layout: uint8(min(u32("layout"), 255)),
		})
	}
	return held, nil
}

// many reads the same piece of many objects, some hundred at a time.
func (in *inspector) many(objects []uint64, offset uint64, size int) ([]byte, error) {
	const most = 1024 // IOV_MAX
	all := make([]byte, size*len(objects))
	remote := make([]unix.RemoteIovec, 0, most)
	for from := 0; from < len(objects); from += most {
		part := objects[from:min(from+most, len(objects))]
		remote = remote[:0]
		for _, o := range part {
			remote = append(remote, unix.RemoteIovec{Base: uintptr(o + offset), Len: size})
		}
		b := all[from*size : (from+len(part))*size]
		local := []unix.Iovec{{Base: &b[0], Len: uint64(len(b))}}
		n, err := unix.ProcessVMReadv(int(in.mem), local, remote, 0)
		if err == nil && n != len(b) {
			err = fmt.Errorf("got %d of %d bytes", n, len(b))
		}
		if err != nil {
			return nil, fmt.Errorf("reading %d objects: %w", len(part), err)
		}
	}
	return all, nil
}

// blockSteps bounds the evaluation that lists the blocks of an allocator, in
// instructions: enough for a hundred thousand.
const blockSteps = 20_000_000

// errCaught ends an evaluation whose purpose is served.
var errCaught = errors.New("caught")

// blocks lists what every bank lost to each address of an allocator's memory, bytes.
func (in *inspector) blocks(allocator uint64, memory aggregator.Memory) (map[uint64]uint64, error) {
	list, err := in.blockList(allocator, memory)
	if list == 0 {
		return nil, err
	}
	m := in.machine(eval.WithStepLimit(blockSteps))
	at, err := in.vector(m, allocatedBlocks, list)
	if err != nil {
		return nil, err
	}
	begin, count, err := readVector(m, at, 16, maxHeld)
	if err != nil {
		return nil, fmt.Errorf("evaluating %s: it returned %w", allocatedBlocks, err)
	}
	blocks := make(map[uint64]uint64, count)
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
			blocks[from] = to - from
		}
	}
	return blocks, nil
}

// blockList is the list of blocks that an allocator asks for the statistics of a
// memory; 0 where there is no such memory.
func (in *inspector) blockList(allocator uint64, memory aggregator.Memory) (list uint64, err error) {
	e := in.evaluate(func(name string) eval.Hook {
		if name != blockStatistics {
			return nil
		}
		return func(m *eval.Machine) error {
			list = m.Arg(1) // behind the place for the result
			return errCaught
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
		_, err = e.call(in.lib.first(statistics), result, allocator, arg)
	}
	if errors.Is(err, errCaught) || errors.Is(err, eval.ErrThrow) {
		err = nil
	}
	return list, err
}
