package aggregator

import (
	"cmp"
	"slices"
)

// AllocatorImpl::deallocate_buffers frees all blocks of an allocator, but the Buffer objects live on: those of a
// device's traces are destroyed just after it, those of tensors whenever the program drops them. Each destructor then
// frees its buffer a second time. If another buffer has its block then, the second free releases that buffer's
// block: the allocator knows only addresses.

// released are the buffers of a process whose allocator freed them all together, and whose own free may follow.
type released struct {
	blocks map[uint64]block // by buffer
	claims map[block]*claim
}

// block is what an allocator handed out for a buffer.
type block struct {
	allocator, address uint64
	memory             Memory
}

// claim counts the released buffers of a block, and names the buffer that got the block since, or is 0.
type claim struct {
	released int
	holder   uint64
}

// maxReleased bounds the released buffers per process. A free of one that was forgotten counts as unmatched.
const maxReleased = 1 << 16

func (b *buffer) block() block { return block{b.allocator, b.address, b.memory} }

// add notes a buffer that was freed with all others of its allocator.
func (r *released) add(id uint64, freed block) {
	if len(r.blocks) >= maxReleased {
		r.clear()
	}
	if r.blocks == nil {
		r.blocks, r.claims = map[uint64]block{}, map[block]*claim{}
	}
	r.remove(id)
	r.blocks[id] = freed
	if r.claims[freed] == nil {
		r.claims[freed] = &claim{}
	}
	r.claims[freed].released++
}

// clear forgets all of them.
func (r *released) clear() { *r = released{} }

// allocated notes a new buffer: its object replaces a released one at its address, and it may have got a released
// one's block.
func (r *released) allocated(b *buffer) {
	if len(r.blocks) == 0 {
		return
	}
	r.remove(b.id)
	if c := r.claims[b.block()]; c != nil {
		c.holder = b.id
	}
}

// remove forgets a buffer, and returns its block and which buffer got that block since, or 0. known is false if the
// buffer was not released.
func (r *released) remove(id uint64) (freed block, holder uint64, known bool) {
	if freed, known = r.blocks[id]; !known {
		return
	}
	delete(r.blocks, id)
	c := r.claims[freed]
	if c.released--; c.released == 0 {
		delete(r.claims, freed)
	}
	return freed, c.holder, true
}

// list returns them for a state, by allocator.
func (r *released) list() (list []LiveBuffer) {
	for id, b := range r.blocks {
		list = append(list, LiveBuffer{Buffer: id, Allocator: b.allocator, Address: b.address, Memory: b.memory})
	}
	slices.SortFunc(list, func(x, y LiveBuffer) int {
		return cmp.Or(cmp.Compare(x.Allocator, y.Allocator), cmp.Compare(x.Buffer, y.Buffer))
	})
	return list
}

// freeAll applies that an allocator freed all that it had handed out.
func (a *Aggregator) freeAll(p *process, e *Event) {
	a.dropAll(p, e.Kind, e.Time, func(b *buffer) bool {
		if b.allocator != e.Allocator {
			return false
		}
		p.released.add(b.id, b.block())
		return true
	})
	if e.Buffer != 0 { // of a state
		p.released.add(e.Buffer, block{e.Allocator, e.Address, e.Memory})
	}
	delete(p.allocators, e.Allocator)
}

// freeReleased applies a free of a buffer that its allocator had freed already. It reports whether the buffer was one.
func (a *Aggregator) freeReleased(p *process, e *Event) bool {
	freed, holder, known := p.released.remove(e.Buffer)
	if !known {
		return false
	}
	if c := p.released.claims[freed]; c != nil {
		c.holder = 0
	}
	if b := p.buffers.get(holder); holder != 0 && b != nil && b.block() == freed {
		p.released.add(b.id, freed)
		a.drop(p, b, e, true)
	}
	return true
}
