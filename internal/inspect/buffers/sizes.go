package buffers

import (
	"encoding/binary"

	"tt-memtrace/aggregator"
	"tt-memtrace/internal/inspect/view"
	"tt-memtrace/internal/metal"
)

// fillReserved fills in the size in each bank of an allocator's buffers. A size that cannot be found stays 0
// (unknown). lists are the allocator's blocks, nil if unknown: they have the sizes, but when they were read, another
// buffer may have been at an address. With probes, events report that. Without probes, the size is computed from the
// buffer's fields if the library shows how. So it is for buffers with an address on each of their cores, onCores, of
// which the allocator has blocks in other lists.
func fillReserved(
	p *view.Process, computed *sizes, layout *metal.Layout, live []aggregator.LiveBuffer, lists *blockLists,
	onCores map[uint64]bool, known func(*aggregator.LiveBuffer) bool,
) {
	var later, perCore []*aggregator.LiveBuffer
	if computed != nil {
		later = computed.compute(p, layout, live, known)
	}
	for i := range live {
		h := &live[i]
		switch {
		case !hasBanks(h) || h.PerBank != 0 || known != nil && known(h):
			continue
		case onCores[h.Buffer]:
			if h.PerCore != "" {
				perCore = append(perCore, h)
			}
			continue
		case lists == nil:
			continue
		}
		if h.PerBank = lists[h.Memory].sizeAt(h.Address); h.PerBank != 0 {
			later = append(later, h)
		}
	}
	_ = new(sizes).computeSharded(p, layout, perCore) // on an error the sizes stay unknown
	if computed != nil {
		forgetChanged(p, layout, later)
	}
}

// hasBanks reports whether a buffer is in a memory of the chip.
func hasBanks(h *aggregator.LiveBuffer) bool {
	return h.Memory < aggregator.NumMemories && h.Memory != aggregator.SystemMemory
}

// forgetChanged drops what was read later about buffers that have changed since they were read.
func forgetChanged(p *view.Process, layout *metal.Layout, later []*aggregator.LiveBuffer) {
	_, windows, err := readWindows(p, layout, idsOf(later))
	fields := fieldsOf(layout)
	for i, h := range later {
		if err == nil {
			now, ok := fields.buffer(windows[i*metal.WindowSize:], h.Buffer, h.Allocator)
			now.PerBank, now.PerCore = h.PerBank, h.PerCore
			if h.PerCore != "" {
				now.Address = h.Address
			}
			if ok && now == *h {
				continue
			}
		}
		h.PerBank = 0
	}
}

func idsOf(buffers []*aggregator.LiveBuffer) []uint64 {
	ids := make([]uint64, len(buffers))
	for i, h := range buffers {
		ids[i] = h.Buffer
	}
	return ids
}

// sizes computes and caches the sizes in each bank of an allocator's buffers.
type sizes struct {
	banks [aggregator.NumMemories]metal.Bank // invalid if not read
	known map[metal.Shape]uint64
}

// interleaved is the runtime's TensorMemoryLayout::INTERLEAVED.
const interleaved = 0

// maxKnownSizes bounds the cached sizes.
const maxKnownSizes = 1 << 14

// compute fills in the sizes that can be computed, and returns the sharded ones among these buffers: for them more
// was read, later.
func (s *sizes) compute(
	p *view.Process, layout *metal.Layout, live []aggregator.LiveBuffer, known func(*aggregator.LiveBuffer) bool,
) (sharded []*aggregator.LiveBuffer) {
	computed, err := p.Lib.ReservedSizes()
	if err != nil {
		return nil
	}
	for i := range live {
		switch h := &live[i]; {
		case !hasBanks(h):
		case h.MemoryLayout == interleaved:
			if known == nil || !known(h) {
				h.PerBank = s.perBank(p, computed, h, shapeOf(h))
			}
		case computed.Span > 0:
			sharded = append(sharded, h)
		}
	}
	if s.computeSharded(p, layout, sharded) != nil {
		return nil
	}
	return sharded
}

// computeSharded fills in the sizes of sharded buffers.
func (s *sizes) computeSharded(p *view.Process, layout *metal.Layout, sharded []*aggregator.LiveBuffer) error {
	if len(sharded) == 0 {
		return nil
	}
	computed, err := p.Lib.ReservedSizes()
	if err != nil {
		return err
	}
	shapes, err := shardedShapes(p, computed, layout, sharded)
	if err != nil {
		return err
	}
	for i, h := range sharded {
		h.PerBank = s.perBank(p, computed, h, shapes[i])
	}
	return nil
}

func shapeOf(h *aggregator.LiveBuffer) metal.Shape {
	return metal.Shape{Memory: uint32(h.Memory), Layout: uint32(h.MemoryLayout), Size: h.Size, PageSize: h.PageSize}
}

// shardedShapes reads the data from which the sizes of sharded buffers are computed.
func shardedShapes(
	p *view.Process, computed *metal.ReservedSizes, layout *metal.Layout, buffers []*aggregator.LiveBuffer,
) ([]metal.Shape, error) {
	at, err := fieldsAt(p, layout, idsOf(buffers))
	if err != nil {
		return nil, err
	}
	span := int(computed.Span)
	fields, err := p.Mem.ReadEach(at, 0, span)
	if err != nil {
		return nil, err
	}
	// Read lists of core ranges grouped by length: most have one range.
	ranges, byLength := make([][]byte, len(buffers)), map[uint64][]int{}
	for i := range buffers {
		if computed.Ranges == 0 {
			break
		}
		v := fields[i*span+int(computed.Ranges):]
		if n := binary.LittleEndian.Uint64(v[8:]) - binary.LittleEndian.Uint64(v); n > 0 && n <= metal.MaxRanges {
			byLength[n] = append(byLength[n], i)
		}
	}
	for n, of := range byLength {
		begins := make([]uint64, len(of))
		for k, i := range of {
			begins[k] = binary.LittleEndian.Uint64(fields[i*span+int(computed.Ranges):])
		}
		b, err := p.Mem.ReadEach(begins, 0, int(n))
		if err != nil {
			return nil, err
		}
		for k, i := range of {
			ranges[i] = b[uint64(k)*n : uint64(k+1)*n]
		}
	}
	shapes := make([]metal.Shape, len(buffers))
	for i, h := range buffers {
		shapes[i] = shapeOf(h)
		computed.Sharded(&shapes[i], fields[i*span:(i+1)*span], ranges[i])
	}
	return shapes, nil
}

// perBank returns 0 if the size is unknown.
func (s *sizes) perBank(
	p *view.Process, computed *metal.ReservedSizes, h *aggregator.LiveBuffer, shape metal.Shape,
) uint64 {
	if size, known := s.known[shape]; known {
		return size
	}
	bank := &s.banks[h.Memory]
	if !bank.Valid() {
		var err error
		if *bank, err = Bank(p.View(), computed, h.Allocator, h.Memory); err != nil {
			return 0
		}
	}
	size, _ := computed.PerBank(*bank, &shape) // on an error the list of blocks has the size
	if s.known == nil || len(s.known) >= maxKnownSizes {
		s.known = map[metal.Shape]uint64{}
	}
	s.known[shape] = size
	return size
}
