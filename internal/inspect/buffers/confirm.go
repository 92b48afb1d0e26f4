package buffers

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"tt-memtrace/aggregator"
	"tt-memtrace/internal/inspect/view"
	"tt-memtrace/internal/metal"
)

// An allocator's lists of blocks confirm its set of buffers: each buffer has exactly one block, at its address,
// and no block is without a buffer. The runtime changes one after the other, so what differs at first is read again.

// confirmPauses are the pauses before reading, and before reading again what differed: a thread that allocates may not
// have run between the two changes.
var confirmPauses = []time.Duration{0, 0, time.Millisecond, 8 * time.Millisecond, 64 * time.Millisecond}

// Dispute is a buffer, or a block without a buffer, on which the set and the lists do not agree.
type Dispute struct {
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
	// Disputes lasted and could not be decided.
	Disputes []Dispute
	// Dropped: buffers without a block were left out.
	Dropped bool
	// Unread is why the blocks could not be read, which leaves the size of some buffers unknown; or nil. Unplaced is
	// why the places of some buffers on their cores, and so their sizes, are unknown; or nil.
	Unread, Unplaced error
}

// Read reads the buffers of an allocator, with their sizes in each bank, and confirms them by its blocks. A buffer
// without a block is left out, because it holds nothing: the runtime can free all blocks of a device in a call, and
// then leaves their buffers in the set. Buffers with an address on each of their cores have blocks in other lists,
// which are not read.
func Read(
	p *view.Process, earlier Earlier, layout *metal.Layout, allocator, set uint64,
	known func(*aggregator.LiveBuffer) bool,
) (live []aggregator.LiveBuffer, c confirmation, err error) {
	var lasting []Dispute
	for _, pause := range confirmPauses {
		time.Sleep(pause)
		if live, err = liveBuffers(p, earlier.rescan(allocator), layout, allocator, set); err != nil {
			return nil, c, err
		}
		var lists *blockLists
		if showsBlocks(p) {
			lists, c.Unread = readLists(p, allocator)
		}
		var onCores map[uint64]bool
		onCores, c.Unplaced = fillPerCore(p, layout, live)
		fillReserved(p, earlier.sizes(allocator), layout, live, lists, onCores, known)
		if c.Unread != nil {
			continue // the allocator may just be closing
		}
		if lists == nil {
			return live, c, nil
		}
		inBanks := live
		if len(onCores) > 0 { // there can be many buffers, and hardly ever such ones
			inBanks = slices.DeleteFunc(slices.Clone(live), func(h aggregator.LiveBuffer) bool {
				return onCores[h.Buffer]
			})
		}
		if lasting = stillDisputed(lasting, lists.disputes(inBanks)); len(lasting) == 0 {
			return live, c, nil
		}
	}
	if c.Unread != nil {
		return live, c, nil
	}
	all := len(live)
	live, c.Disputes = resolve(p, live, lasting)
	c.Dropped = len(live) < all
	return live, c, nil
}

// stillDisputed returns the disputes of the last reading that earlier readings, if any, had as well, perhaps with other
// sizes. Two buffers at one address are disputed as soon as they are seen: one of them holds nothing.
func stillDisputed(earlier, last []Dispute) []Dispute {
	if earlier == nil {
		return last
	}
	return slices.DeleteFunc(last, func(d Dispute) bool {
		return !d.shared && !slices.ContainsFunc(earlier, func(e Dispute) bool {
			return e.memory == d.memory && e.address == d.address && e.buffer == d.buffer
		})
	})
}

// showsBlocks reports whether the library has the functions that lead to an allocator's blocks.
func showsBlocks(p *view.Process) bool {
	return p.Lib.Defines(metal.AllocatedBlocks) && slices.ContainsFunc(metal.Statistics, p.Lib.Defines)
}

// readLists reads the blocks of all of an allocator's memories.
func readLists(p *view.Process, allocator uint64) (*blockLists, error) {
	lists := &blockLists{}
	v := p.View() // for the evaluations that lead to the lists, which are read past it
	for m := range aggregator.NumMemories {
		if m == aggregator.SystemMemory {
			continue
		}
		var err error
		if lists[m], err = blocksIn(v, allocator, m); err != nil {
			return nil, fmt.Errorf("%s: %w", m, err)
		}
	}
	return lists, nil
}

// disputes returns what buffers and blocks do not agree on.
func (lists *blockLists) disputes(live []aggregator.LiveBuffer) (found []Dispute) {
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
		d := Dispute{memory: h.Memory, address: h.Address, buffer: h.Buffer, perBank: h.PerBank}
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
				b := list.blocks[i]
				found = append(found, Dispute{memory: aggregator.Memory(m), address: b.address, block: b.size})
			}
		}
	}
	return found
}

// resolve decides the disputes that lasted. It drops buffers without a block and, where several have an address, all
// but the newest. It returns the rest, and what remains undecided.
func resolve(
	p *view.Process, live []aggregator.LiveBuffer, lasting []Dispute,
) (rest []aggregator.LiveBuffer, odd []Dispute) {
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
			number, err := Number(p, d.buffer)
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
func notMirrored(disputes []Dispute, live []aggregator.LiveBuffer) []Dispute {
	if len(disputes) == 0 {
		return nil
	}
	mirrored := map[Dispute]bool{}
	for i := range live {
		if h := &live[i]; h.Memory == aggregator.L1 {
			mirrored[Dispute{memory: h.Memory, address: h.Address, block: h.PerBank}] = true
		}
	}
	return slices.DeleteFunc(disputes, func(d Dispute) bool { return mirrored[d] })
}

// Describe says what the allocators of these buffers and their blocks do not agree on; empty if nothing.
func Describe(list []Dispute, live []aggregator.LiveBuffer) string {
	list = notMirrored(list, live)
	if len(list) == 0 {
		return ""
	}
	first := slices.MinFunc(list, func(a, b Dispute) int {
		return cmp.Or(cmp.Compare(a.memory, b.memory), cmp.Compare(a.address, b.address))
	})
	if n := len(list) - 1; n > 0 {
		return fmt.Sprintf("%s (and %d more)", first.String(), n)
	}
	return first.String()
}

func (d *Dispute) String() string {
	at := fmt.Sprintf("%s at %#x", d.memory, d.address)
	switch {
	case d.buffer == 0:
		return fmt.Sprintf("%s: the allocator has a block of %d B in each bank, and no buffer there", at, d.block)
	case d.shared:
		return fmt.Sprintf(
			"%s: the allocator has one block of %d B in each bank, and several buffers there", at, d.block)
	}
	return fmt.Sprintf("%s: the buffer takes %d B in each bank, its block %d B", at, d.perBank, d.block)
}
