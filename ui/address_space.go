package ui

import (
	"cmp"
	"slices"

	"tt-memtrace/aggregator"
)

// blockKind says what a block of an address space is.
type blockKind uint8

const (
	freeBlock blockKind = iota
	bufferBlock
	// smallBlock is a buffer of L1_SMALL in the map of a core's L1.
	smallBlock
	// circularBlock is a range that circular and dataflow buffers and scratchpads use on a core.
	circularBlock
	// ringBlock is the kernel-config ring.
	ringBlock
	// belowBlock is below the allocator's memory: firmware and similar.
	belowBlock
	// edgeBlock is before the first buffer of a bank: free, or below the allocator's memory.
	edgeBlock
)

var blockNames = [...]string{"free", "buffer", "L1_SMALL", "circular", "kernel-config ring", "not the allocator's", "free or reserved"}

func (k blockKind) String() string { return blockNames[k] }

// block is a range of an address space.
type block struct {
	from, to uint64
	kind     blockKind
	buffer   *bufferRow
	// programs are those with circular buffers here, in the order of their lowest addresses; the owner of each has the
	// same index.
	programs []*aggregator.ProgramSnapshot
	owners   []owner
	ring     *aggregator.RingUsage
	// clash means that it overlaps another block.
	clash bool
}

func (b *block) size() uint64 { return b.to - b.from }

// space is the address space of a bank, or of a core's L1, with its blocks.
type space struct {
	blocks []block
	// It begins at from and ends at to, if these are known.
	from, to uint64
	// free is the free bytes in each bank; it is known if the capacity is. The largest free block is between
	// largestLeast and largestMost, because the ends of a bank are not always known.
	known                     bool
	free                      uint64
	largestLeast, largestMost uint64
	// holes is the number of free pieces; if split, there may be one more.
	holes, clashes int
	// split means that free bytes may be at both ends of the bank.
	split bool
	// gap is the free bytes between a core's circular buffers and the buffers above them, if it has both.
	gap    uint64
	hasGap bool
}

// newSpace returns a space with sorted blocks and its free bytes. others are blocks that are not buffers of the memory:
// on a core, buffers of L1_SMALL, circular buffers and the kernel-config ring.
func newSpace(buffers, others []block, banks aggregator.Banks, core bool) space {
	bytes, known := banks.Bytes, banks.Known && banks.Count > 0
	byAddress := func(a, b block) int { return cmp.Or(cmp.Compare(a.from, b.from), cmp.Compare(a.to, b.to)) }
	slices.SortFunc(buffers, byAddress)
	slices.SortFunc(others, byAddress)
	s := space{known: known}
	least, most := beginning(buffers, others, banks)
	s.measure(buffers, bytes, least, most)
	all := slices.Concat(buffers, others)
	slices.SortFunc(all, byAddress)
	var end uint64
	widest := -1
	for i := range all {
		if all[i].from < end && widest >= 0 && all[i].size() > 0 {
			all[i].clash, all[widest].clash = true, true
			s.clashes++
		}
		if all[i].to > end {
			end, widest = all[i].to, i
		}
	}
	// A core's L1 begins with memory that is not the allocator's.
	below := uint64(0)
	if core && known {
		if below = least; most < unbounded {
			below = most
		}
	}
	s.to = end
	if known {
		switch {
		case !core && banks.Based:
			s.from, below = banks.Base, banks.Base
		case !core && len(buffers) > 0:
			s.from = min(least, buffers[0].from)
		}
		s.to = max(end, below+bytes)
	}
	nothing := func(from, to uint64) {
		if from < below {
			s.blocks = append(s.blocks, block{from: from, to: min(to, below), kind: belowBlock})
			from = min(to, below)
		}
		kind := freeBlock
		if from == max(s.from, below) && most == unbounded && (core || len(buffers) > 0) {
			kind = edgeBlock
		}
		if from < to {
			s.blocks = append(s.blocks, block{from: from, to: to, kind: kind})
		}
	}
	at := s.from
	for i := range all {
		if all[i].from > at {
			nothing(at, all[i].from)
		}
		s.blocks = append(s.blocks, all[i])
		at = max(at, all[i].to)
	}
	nothing(at, max(s.to, at))
	if core && len(buffers) > 0 {
		var top uint64
		for i := range others {
			if others[i].kind == circularBlock {
				top = max(top, others[i].to)
			}
		}
		if top > 0 {
			s.hasGap = true
			s.gap = buffers[0].from - min(top, buffers[0].from)
		}
	}
	return s
}

// unbounded is above all addresses.
const unbounded = 1 << 62

// beginning returns the bounds of the address at which a bank begins: both are the same if that was read. If not, a core's
// lowest circular buffer is an upper bound, because these are placed from the beginning on. Lower bounds are the end of the
// kernel-config ring, and the address from which a whole bank reaches to the end of the last buffer.
func beginning(buffers, others []block, banks aggregator.Banks) (least, most uint64) {
	if banks.Based {
		return banks.Base, banks.Base
	}
	most = unbounded
	for i := range buffers {
		least = max(least, buffers[i].to-min(buffers[i].to, banks.Bytes))
	}
	for i := range others {
		switch b := &others[i]; b.kind {
		case circularBlock:
			most = min(most, b.from)
		case ringBlock:
			least = max(least, b.to)
		}
	}
	return min(least, most), most
}

// measure finds the free bytes of a bank of this size, which begins between two addresses. Free bytes between buffers are
// certain. Of those before the first and after the last buffer only the sum is, and a part if its ends are
// known.
func (s *space) measure(buffers []block, bytes, from, to uint64) {
	if !s.known {
		return
	}
	if len(buffers) == 0 {
		s.free, s.largestLeast, s.largestMost, s.holes = bytes, bytes, bytes, 1
		return
	}
	low := buffers[0].from
	var used, hole uint64
	end := low
	for i := range buffers {
		b := &buffers[i]
		if b.from > end {
			s.holes++
			hole = max(hole, b.from-end)
		}
		used += max(b.to, end) - max(b.from, end)
		end = max(end, b.to)
	}
	s.free = bytes - min(used, bytes)
	slack := bytes - min(end-low, bytes)
	// The part before the first buffer, by where the bank can begin.
	least := low - min(to, low)
	most := max(min(low-min(low, from), slack), least)
	least = min(least, slack)
	most = min(most, slack)
	middle := max(least, min(slack/2, most))
	s.largestLeast = max(hole, max(middle, slack-middle))
	s.largestMost = max(hole, least, slack-least, most, slack-most)
	switch {
	case slack == 0:
	case least > 0 && most < slack: // some are at each end
		s.holes += 2
	default:
		s.holes++
		s.split = least < most
	}
}

// coreUse is the L1 of a core that circular buffers use.
type coreUse struct {
	core  aggregator.Core
	bytes uint64
}

// interval is a range of a core's L1, and the program and the process that use it; coresOf sets only the range.
type interval struct {
	from, to uint64
	program  *aggregator.ProgramSnapshot
	owner    owner
}

// maxShownCore bounds coordinates: no chip has more rows or columns of cores.
const maxShownCore = 63

// coresOf returns the L1 that circular buffers use on each core of a chip, the most used core first. It is a sum over
// processes: of each, the union of its programs' buffers.
func coresOf(r *reader, chip aggregator.Chip, ascii bool) []coreUse {
	sum := map[aggregator.Core]uint64{}
	for _, o := range owners(r.snapshot, ascii) {
		if !onChip(o.process, chip) {
			continue
		}
		programs := r.programs(o.process)
		per := map[aggregator.Core][]interval{}
		for i := range programs {
			for j := range programs[i].Placed {
				c := &programs[i].Placed[j]
				if c.Chip != chip || c.Kind == aggregator.GlobalCircular || c.Size == 0 {
					continue
				}
				for _, rg := range c.Ranges {
					for x := rg.X0; x <= min(rg.X1, maxShownCore); x++ {
						for y := rg.Y0; y <= min(rg.Y1, maxShownCore); y++ {
							core := aggregator.Core{X: x, Y: y}
							per[core] = append(per[core], interval{from: c.Address, to: c.Address + c.Size})
						}
					}
				}
			}
		}
		for core, list := range per {
			sum[core] += union(list)
		}
	}
	out := make([]coreUse, 0, len(sum))
	for core, n := range sum {
		out = append(out, coreUse{core, n})
	}
	slices.SortFunc(out, func(a, b coreUse) int {
		return cmp.Or(cmp.Compare(b.bytes, a.bytes), cmp.Compare(a.core.Y, b.core.Y), cmp.Compare(a.core.X, b.core.X))
	})
	return out
}

func union(list []interval) uint64 {
	slices.SortFunc(list, func(a, b interval) int { return cmp.Compare(a.from, b.from) })
	var sum, end uint64
	for _, i := range list {
		if i.to > end {
			sum += i.to - max(i.from, end)
			end = i.to
		}
	}
	return sum
}

func onChip(p *aggregator.ProcessSnapshot, chip aggregator.Chip) bool {
	return slices.ContainsFunc(p.Chips, func(c aggregator.ChipSnapshot) bool { return c.Chip == chip })
}

// circularBlocks returns the circular buffers on one core of a chip, without those inside L1 buffers. Adjacent and
// overlapping ones form one block.
func circularBlocks(r *reader, chip aggregator.Chip, core aggregator.Core, ascii bool) []block {
	var list []interval
	for _, o := range owners(r.snapshot, ascii) {
		if !onChip(o.process, chip) {
			continue
		}
		programs := r.programs(o.process)
		for i := range programs {
			for j := range programs[i].Placed {
				c := &programs[i].Placed[j]
				if c.Chip == chip && c.Kind != aggregator.GlobalCircular && c.Size > 0 && covers(c.Ranges, core) {
					list = append(list, interval{c.Address, c.Address + c.Size, &programs[i], o})
				}
			}
		}
	}
	slices.SortFunc(list, func(a, b interval) int { return cmp.Compare(a.from, b.from) })
	var out []block
	for _, i := range list {
		n := len(out)
		if n == 0 || i.from > out[n-1].to {
			out = append(out, block{from: i.from, to: i.to, kind: circularBlock})
			n++
		}
		b := &out[n-1]
		b.to = max(b.to, i.to)
		if !slices.Contains(b.programs, i.program) {
			b.programs, b.owners = append(b.programs, i.program), append(b.owners, i.owner)
		}
	}
	return out
}

func covers(ranges []aggregator.CoreRange, c aggregator.Core) bool {
	return slices.ContainsFunc(ranges, func(r aggregator.CoreRange) bool {
		return c.X >= r.X0 && c.X <= r.X1 && c.Y >= r.Y0 && c.Y <= r.Y1
	})
}

// perCoreCores returns the cores of a chip that have buffers with an address on each core.
func perCoreCores(r *reader, chip aggregator.Chip, ascii bool) (cores []aggregator.Core) {
	known := map[aggregator.Core]bool{}
	for _, o := range owners(r.snapshot, ascii) {
		if !onChip(o.process, chip) {
			continue
		}
		for _, b := range r.buffers(o.process) {
			if !slices.Contains(b.Chips, chip) {
				continue
			}
			for core := range b.PerCore.All() {
				if !known[core] {
					known[core] = true
					cores = append(cores, core)
				}
			}
		}
	}
	slices.SortFunc(cores, func(a, b aggregator.Core) int { return cmp.Or(cmp.Compare(a.Y, b.Y), cmp.Compare(a.X, b.X)) })
	return cores
}

// bufferBlocks returns the buffers of a memory on a chip; of those with an address on each core, those on the core
// or, if it is nil, the addresses that they take on any core.
func bufferBlocks(r *reader, chip aggregator.Chip, m aggregator.Memory, core *aggregator.Core, kind blockKind, ascii bool) []block {
	var out, anyCore []block
	for _, o := range owners(r.snapshot, ascii) {
		if !onChip(o.process, chip) {
			continue
		}
		banks := bankCounts(o.process)
		list := r.buffers(o.process)
		for i := range list {
			b := &list[i]
			if b.Memory != m || !slices.Contains(b.Chips, chip) {
				continue
			}
			one := func(address uint64) block {
				return block{from: address, to: address + min(b.PerBank, 1<<64-1-address), kind: kind, buffer: &bufferRow{o, b, banks[m]}}
			}
			switch {
			case b.PerCore == "":
				out = append(out, one(b.Address))
			case core == nil:
				for _, e := range b.Extents() {
					anyCore = append(anyCore, one(e.First))
				}
			default:
				if address, ok := b.PerCore.On(*core); ok {
					out = append(out, one(address))
				}
			}
		}
	}
	return append(out, withoutOverlaps(anyCore)...)
}

// withoutOverlaps cuts off what an earlier block has: blocks on different cores do not clash.
func withoutOverlaps(list []block) (out []block) {
	slices.SortFunc(list, func(a, b block) int { return cmp.Compare(a.from, b.from) })
	var end uint64
	for _, b := range list {
		if b.from = max(b.from, end); b.from < b.to {
			out, end = append(out, b), b.to
		}
	}
	return out
}
