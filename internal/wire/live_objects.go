package wire

import (
	"slices"

	"tt-memtrace/aggregator"
)

// object is what a server is sent a record of.
type object struct {
	kind   Type // Alloc, CBAlloc or KernelLoad
	memory uint8
	pid    uint32
	id     uint64
	size   uint64
	time   uint64
	chips  []aggregator.Chip
	// gone: freed. exited: a circular buffer that was freed because its process ended.
	gone, exited bool
	// sent is the sender's own.
	sent bool
}

// isBuffer is whether a server has a buffer right already, if it has this object under its name.
func (o *object) isBuffer(b *aggregator.BufferSnapshot) bool {
	// Since is 0 of a buffer that was found; the object has the time of that.
	return o.size == b.Size && o.memory == uint8(b.Memory) && (b.Since == 0 || o.time == b.Since) && slices.Equal(o.chips, b.Chips)
}

// isKernel is the same for a binary.
func (o *object) isKernel(k *aggregator.Kernel) bool {
	return o.size == k.Bytes && o.memory == uint8(k.Type) && len(o.chips) > 0 == k.Sized
}

type bufferName struct {
	pid     uint32
	address uint64
}

// cbName is all that a server can know about a circular buffer. Buffers with equal names stand for each other.
type cbName struct {
	pid            uint32
	program        uint64
	chip           aggregator.Chip
	address, bytes uint64
}

func nameCB(pid uint32, program uint64, chip aggregator.Chip, cb *aggregator.CircularBuffer) cbName {
	return cbName{pid, program, chip, cb.Address, cb.Bytes()}
}

// kernelName names a binary, of which a program has no other on a chip.
type kernelName struct {
	pid             uint32
	program         uint64
	chip            aggregator.Chip
	kernel          uint64
	processor, hash string
}

func nameKernel(pid uint32, program uint64, chip aggregator.Chip, k *aggregator.Kernel) kernelName {
	return kernelName{pid, program, chip, k.ID, k.Processor, k.Hash}
}

// liveObjects are all live objects, under names that survive a state.
type liveObjects struct {
	buffers map[bufferName]*object
	cbs     map[cbName][]*object
	kernels map[kernelName]*object
	// numbers of processes, and the last one.
	numbers map[uint32]uint64
	number  uint64
	id      uint64
}

// forget drops all objects, and keeps the numbers and ids that are in use.
func (a *liveObjects) forget() {
	a.buffers, a.cbs, a.kernels = map[bufferName]*object{}, map[cbName][]*object{}, map[kernelName]*object{}
}

// numberOf is a small number for a process, unique among those that live.
func (a *liveObjects) numberOf(pid uint32) uint64 {
	n, ok := a.numbers[pid]
	if !ok {
		a.number = a.number%(1<<(64-addressBits)-1) + 1
		n = a.number
		a.numbers[pid] = n
	}
	return n
}

// addressBits are as many as an address in a process has. The server's key has no
// process in it, so what is above them is the process's number, from 1 on.
const addressBits = 47

// next is an id for a circular buffer or a kernel, of which programs have many at
// the same address. It is never the same twice.
func (a *liveObjects) next() uint64 {
	a.id++
	return a.id
}

// takeCB removes one of the circular buffers of a name, and returns it or nil.
func (a *liveObjects) takeCB(name cbName) *object {
	list := a.cbs[name]
	if len(list) == 0 {
		return nil
	}
	last := len(list) - 1
	o := list[last]
	list[last] = nil
	if last == 0 {
		delete(a.cbs, name)
	} else {
		a.cbs[name] = list[:last]
	}
	return o
}

// all yields every live object.
func (a *liveObjects) all(yield func(*object) bool) {
	for _, o := range a.buffers {
		if !yield(o) {
			return
		}
	}
	for _, list := range a.cbs {
		for _, o := range list {
			if !yield(o) {
				return
			}
		}
	}
	for _, o := range a.kernels {
		if !yield(o) {
			return
		}
	}
}
