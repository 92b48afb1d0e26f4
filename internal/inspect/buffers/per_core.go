package buffers

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"tt-memtrace/aggregator"
	"tt-memtrace/internal/inspect/view"
	"tt-memtrace/internal/metal"
)

// maxPerCore bounds the cores of a buffer: no chip has as many.
const maxPerCore = 256

// errPerCore means that the addresses of a buffer with an address on each core could not be read.
var errPerCore = errors.New("a buffer's addresses on its cores could not be read")

// fillPerCore fills in where the buffers with an address on each core lie, and lists them in onCores. An
// error is why it is unknown where some of them lie.
func fillPerCore(
	p *view.Process, layout *metal.Layout, live []aggregator.LiveBuffer,
) (onCores map[uint64]bool, err error) {
	where, err := p.Lib.PerCore()
	if where == nil || err != nil {
		return nil, err
	}
	var list []*aggregator.LiveBuffer
	for i := range live {
		list = append(list, &live[i])
	}
	list, at, err := flaggedPerCore(p, where, layout, list)
	if err != nil {
		return nil, err
	}
	walks := make([]*perCoreWalk, len(list))
	for i, h := range list {
		walks[i] = &perCoreWalk{buffer: h, next: at[i] + uint64(where.Addresses)}
	}
	onCores = map[uint64]bool{}
	for _, w := range walkPerCore(p, walks) {
		h := w.buffer
		onCores[h.Buffer] = true
		if h.PerCore = aggregator.NewPerCore(w.cores); h.PerCore == "" || uint64(len(w.cores)) != w.count {
			h.PerCore, err = "", fmt.Errorf("%w: %d of %d", errPerCore, len(w.cores), w.count)
			continue
		}
		h.Address = h.PerCore.Lowest()
	}
	return onCores, err
}

// flaggedPerCore returns the buffers that have an address on each core, and where their fields are.
func flaggedPerCore(
	p *view.Process, where *metal.PerCore, layout *metal.Layout, live []*aggregator.LiveBuffer,
) (list []*aggregator.LiveBuffer, at []uint64, err error) {
	sharded := slices.DeleteFunc(live, func(h *aggregator.LiveBuffer) bool {
		return h.MemoryLayout == interleaved || !hasBanks(h)
	})
	if len(sharded) == 0 {
		return nil, nil, nil
	}
	bases, err := fieldsAt(p, layout, idsOf(sharded))
	if err != nil {
		return nil, nil, err
	}
	flags, err := p.Mem.ReadEach(bases, uint64(where.Flag), 1)
	for i, is := range flags {
		if is == 1 {
			list, at = append(list, sharded[i]), append(at, bases[i])
		}
	}
	return list, at, err
}

// onCores returns the buffers with an address on each of their cores, if they can be read.
func (s *bufferSet) onCores(readings []reading) map[uint64]bool {
	where, err := s.Lib.PerCore()
	if where == nil || err != nil {
		return nil
	}
	var live []*aggregator.LiveBuffer
	for k := range readings {
		if h := &readings[k].live; h.Buffer != 0 {
			live = append(live, h)
		}
	}
	list, _, _ := flaggedPerCore(s.Process, where, s.layout, live)
	is := map[uint64]bool{}
	for _, h := range list {
		is[h.Buffer] = true
	}
	return is
}

// perCoreWalk follows a buffer's std::unordered_map from cores to addresses.
type perCoreWalk struct {
	buffer *aggregator.LiveBuffer
	// next is the next node; before the first one, the map.
	next, count uint64
	cores       []aggregator.CoreAddress
}

// walkPerCore reads the maps, all of them at a time from node to node. A map that cannot be read is cut short.
func walkPerCore(p *view.Process, walks []*perCoreWalk) []*perCoreWalk {
	const headBytes, nodeBytes = metal.SetCount + 8, metal.NodeValue + 24
	next := func(list []*perCoreWalk, size int, read func(w *perCoreWalk, b []byte)) (left []*perCoreWalk) {
		at := make([]uint64, len(list))
		for i, w := range list {
			at[i] = w.next
		}
		all, err := p.Mem.ReadEach(at, 0, size)
		for i, w := range list {
			b := make([]byte, size)
			if err == nil {
				b = all[i*size : (i+1)*size]
			} else if p.Mem.ReadAt(b, w.next) != nil {
				continue
			}
			if read(w, b); w.next != 0 {
				left = append(left, w)
			}
		}
		return left
	}
	left := next(walks, headBytes, func(w *perCoreWalk, b []byte) {
		w.next, w.count = binary.LittleEndian.Uint64(b[metal.SetFirst:]), binary.LittleEndian.Uint64(b[metal.SetCount:])
	})
	for range maxPerCore {
		if len(left) == 0 {
			break
		}
		left = next(left, nodeBytes, func(w *perCoreWalk, b []byte) {
			word := func(i int) uint64 { return binary.LittleEndian.Uint64(b[metal.NodeValue+8*i:]) }
			x, y, address := word(0), word(1), word(2)
			const most = 1 << 16
			if w.next = binary.LittleEndian.Uint64(b); x >= most || y >= most {
				w.next = 0
				return
			}
			core := aggregator.Core{X: uint16(x), Y: uint16(y)}
			w.cores = append(w.cores, aggregator.CoreAddress{Core: core, Address: address})
		})
	}
	return walks
}
