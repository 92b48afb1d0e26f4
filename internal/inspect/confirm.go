package inspect

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"slices"
	"time"

	"tt-memtrace/aggregator"
	"tt-memtrace/internal/metal"
)

// An allocator's lists of blocks confirm its set of buffers: each buffer has exactly one block, at its address,
// and no block is without a buffer. The runtime changes one after the other, so what differs at first is read again.

// confirmPauses are the pauses before reading, and before reading again what differed: a thread that allocates may not
// have run between the two changes.
var confirmPauses = []time.Duration{0, 0, time.Millisecond, 8 * time.Millisecond, 64 * time.Millisecond}

// dispute is a buffer, or a block without a buffer, on which the set and the lists do not agree.
type dispute struct {
	memory  aggregator.Memory
	address uint64
	buffer  uint64 // 0 for a block without a buffer
	// perBank is the buffer's size in each bank, 0 if unknown, and block is its block's, 0 if it has none.
	perBank, block uint64
	// shared: another buffer has the address, too.
	shared bool
}

// blockLists are an allocator's blocks by memory; nil if the allocator lacks the memory.
type blockLists [aggregator.NumMemories]*blockList

// confirmation is how the blocks of an allocator confirm its buffers.
type confirmation struct {
	// disputes are those that lasted and could not be decided.
	disputes []dispute
	// dropped: buffers without a block were left out.
	dropped bool
	// unread is why the blocks could not be read, so that the size of some buffers is unknown; or nil. unplaced is why
	// it is unknown where some buffers lie on their cores, and so what they take.
	unread, unplaced error
}

// confirmedBuffers reads the buffers of an allocator, with their sizes in each bank, and confirms them by its blocks. A
// buffer without a block is left out, because it holds nothing: the runtime can free all blocks of a device in a call, and
// then leaves their buffers in the set. Buffers with an address on each of their cores have blocks in other lists,
// which are not read.
func (in *Inspector) confirmedBuffers(layout *metal.Layout, allocator, set uint64, known func(*aggregator.LiveBuffer) bool) (live []aggregator.LiveBuffer, c confirmation, err error) {
	var lasting []dispute
	for _, pause := range confirmPauses {
		time.Sleep(pause)
		if live, err = in.liveBuffers(layout, allocator, set); err != nil {
			return nil, c, err
		}
		var lists *blockLists
		if in.showsBlocks() {
			lists, c.unread = in.blockLists(allocator)
		}
		var onCores map[uint64]bool
		onCores, c.unplaced = in.fillPerCore(layout, live)
		in.fillReserved(layout, allocator, live, lists, onCores, known)
		if c.unread != nil {
			continue // the allocator may just be closing
		}
		if lists == nil {
			return live, c, nil
		}
		inBanks := live
		if len(onCores) > 0 { // there can be many buffers, and hardly ever such ones
			inBanks = slices.DeleteFunc(slices.Clone(live), func(h aggregator.LiveBuffer) bool { return onCores[h.Buffer] })
		}
		if lasting = stillDisputed(lasting, lists.disputes(inBanks)); len(lasting) == 0 {
			return live, c, nil
		}
	}
	if c.unread != nil {
		return live, c, nil
	}
	all := len(live)
	live, c.disputes = in.resolve(live, lasting)
	c.dropped = len(live) < all
	return live, c, nil
}

// stillDisputed returns the disputes of the last reading that earlier readings, if any, had as well, perhaps with other
// sizes. Two buffers at one address are disputed as soon as they are seen: one of them holds nothing.
func stillDisputed(earlier, last []dispute) []dispute {
	if earlier == nil {
		return last
	}
	return slices.DeleteFunc(last, func(d dispute) bool {
		return !d.shared && !slices.ContainsFunc(earlier, func(e dispute) bool {
			return e.memory == d.memory && e.address == d.address && e.buffer == d.buffer
		})
	})
}

// showsBlocks reports whether the library has the functions that lead to an allocator's blocks.
func (in *Inspector) showsBlocks() bool {
	return in.lib.Defines(metal.AllocatedBlocks) && slices.ContainsFunc(metal.Statistics, in.lib.Defines)
}

// blockLists reads the blocks of all of an allocator's memories.
func (in *Inspector) blockLists(allocator uint64) (*blockLists, error) {
	lists := &blockLists{}
	in = in.withCache() // for the evaluations that lead to the lists, which are read past it
	for m := range aggregator.NumMemories {
		if m == aggregator.SystemMemory {
			continue
		}
		var err error
		if lists[m], err = in.blocks(allocator, m); err != nil {
			return nil, fmt.Errorf("%s: %w", m, err)
		}
	}
	return lists, nil
}

// disputes returns what buffers and blocks do not agree on.
func (lists *blockLists) disputes(live []aggregator.LiveBuffer) (found []dispute) {
	var taken [aggregator.NumMemories][]uint8 // how many buffers have a block: 2 for more
	for m, list := range lists {
		if list != nil {
			taken[m] = make([]uint8, len(list.blocks))
		}
	}
	places := make([]int32, len(live)) // of the buffers' blocks
	for i := range live {
		h := &live[i]
		places[i] = -1
		if !hasBanks(h) || lists[h.Memory] == nil {
			continue
		}
		at := lists[h.Memory].find(h.Address)
		if places[i] = int32(at); at >= 0 {
			taken[h.Memory][at] = min(taken[h.Memory][at]+1, 2)
		}
	}
	for i := range live {
		h := &live[i]
		if !hasBanks(h) || lists[h.Memory] == nil {
			continue
		}
		d := dispute{memory: h.Memory, address: h.Address, buffer: h.Buffer, perBank: h.PerBank}
		if at := places[i]; at >= 0 {
			d.block, d.shared = lists[h.Memory].blocks[at].size, taken[h.Memory][at] > 1
		}
		if d.block == 0 || d.shared || h.PerBank != 0 && h.PerBank != d.block {
			found = append(found, d)
		}
	}
	for m, list := range lists {
		for i, n := range taken[m] {
			if n == 0 {
				found = append(found, dispute{memory: aggregator.Memory(m), address: list.blocks[i].address, block: list.blocks[i].size})
			}
		}
	}
	return found
}

// resolve decides the disputes that lasted. It drops buffers without a block and, where several have an address, all
// but the newest. It returns the rest, and what remains undecided.
func (in *Inspector) resolve(live []aggregator.LiveBuffer, lasting []dispute) (rest []aggregator.LiveBuffer, odd []dispute) {
	drop := map[uint64]bool{}
	type place struct {
		memory  aggregator.Memory
		address uint64
	}
	newest := map[place]uint64{} // the number of the newest buffer there
	numbers := map[uint64]uint64{}
	for _, d := range lasting {
		switch at := (place{d.memory, d.address}); {
		case d.buffer != 0 && d.block == 0:
			drop[d.buffer] = true
		case d.shared:
			number, err := in.bufferNumber(d.buffer)
			if err != nil {
				odd = append(odd, d)
				continue
			}
			numbers[d.buffer] = number
			newest[at] = max(newest[at], number)
		default:
			odd = append(odd, d)
		}
	}
	for _, d := range lasting {
		if number, ok := numbers[d.buffer]; ok && number != newest[place{d.memory, d.address}] {
			drop[d.buffer] = true
		} else if ok && d.perBank != 0 && d.perBank != d.block {
			odd = append(odd, d)
		}
	}
	return slices.DeleteFunc(live, func(h aggregator.LiveBuffer) bool { return drop[h.Buffer] }), odd
}

// notMirrored leaves out blocks without a buffer that mirror a mesh's: with per-core allocation (HYBRID), the runtime
// also marks the blocks of a mesh's L1 buffers in the lists of the mesh's chips.
func notMirrored(disputes []dispute, live []aggregator.LiveBuffer) []dispute {
	if len(disputes) == 0 {
		return nil
	}
	mirrored := map[dispute]bool{}
	for i := range live {
		if h := &live[i]; h.Memory == aggregator.L1 {
			mirrored[dispute{memory: h.Memory, address: h.Address, block: h.PerBank}] = true
		}
	}
	return slices.DeleteFunc(disputes, func(d dispute) bool { return mirrored[d] })
}

// describeDisputes says what buffers and blocks do not agree on.
func describeDisputes(list []dispute) string {
	if len(list) == 0 {
		return ""
	}
	first := slices.MinFunc(list, func(a, b dispute) int {
		return cmp.Or(cmp.Compare(a.memory, b.memory), cmp.Compare(a.address, b.address))
	})
	if n := len(list) - 1; n > 0 {
		return fmt.Sprintf("%s (and %d more)", first.String(), n)
	}
	return first.String()
}

func (d *dispute) String() string {
	at := fmt.Sprintf("%s at %#x", d.memory, d.address)
	switch {
	case d.buffer == 0:
		return fmt.Sprintf("%s: the allocator has a block of %d B in each bank, and no buffer there", at, d.block)
	case d.shared:
		return fmt.Sprintf("%s: the allocator has one block of %d B in each bank, and several buffers there", at, d.block)
	}
	return fmt.Sprintf("%s: the buffer takes %d B in each bank, its block %d B", at, d.perBank, d.block)
}

// bufferNumber reads the runtime's number of a buffer: a later buffer has a higher one.
func (in *Inspector) bufferNumber(buffer uint64) (uint64, error) {
	id, err := in.lib.UniqueID()
	if err != nil {
		return 0, err
	}
	var word [8]byte
	if id.Indirect {
		if err := in.mem.ReadAt(word[:], buffer+uint64(id.Pointer)); err != nil {
			return 0, err
		}
		buffer = binary.LittleEndian.Uint64(word[:])
	}
	err = in.mem.ReadAt(word[:], buffer+uint64(id.Offset))
	return binary.LittleEndian.Uint64(word[:]), err
}
