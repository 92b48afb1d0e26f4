package tracer

import (
	"errors"

	"tt-memtrace/aggregator"
	"tt-memtrace/bpf"
	"tt-memtrace/internal/memory"
	"tt-memtrace/internal/metal"
)

// A buffer's size in each bank is computed from its record if the library shows how, and otherwise read by a probe.
// If it cannot be computed for some buffer, the probe is attached from then on, and that buffer gets its size from
// the next comparison.

// maxKnownSizes bounds the sizes kept per library.
const maxKnownSizes = 1 << 16

// reservedSize returns how much of each bank a buffer takes. It returns 0 if that is unknown; then the process is
// marked until a comparison finds the size.
func (bs *buffers) reservedSize(p *traced, from origin, e *bpf.MemtraceTtAlloc) uint64 {
	if aggregator.Memory(e.Head.Memory) >= aggregator.NumMemories {
		return 0
	}
	if s := p.of.sizes; s != nil && uint32(e.Head.Library) == p.of.index { // otherwise, for example, the buffer is of another build that the process maps
		size, err := bs.computedSize(p, from, e)
		if err == nil && size > 0 {
			return size
		}
		bs.unreserved.Add(1)
		if err == nil {
			bs.probeSizes(p.of)
		}
	}
	bs.reservedUnread(p, from)
	return 0
}

// placesOnCores returns where a buffer lies that has an address on each of its cores; empty for other buffers. It
// returns false if some of the places could not be read: then what the buffer takes is unknown.
func (bs *buffers) placesOnCores(from origin) (places aggregator.PerCore, known bool) {
	e := bs.perCore.take(from)
	if e == nil {
		return "", true
	}
	list := make([]aggregator.CoreAddress, 0, len(e.Cores))
	for _, c := range e.Cores[:min(int(e.Count), len(e.Cores))] {
		list = append(list, aggregator.CoreAddress{Core: aggregator.Core{X: c.X, Y: c.Y}, Address: uint64(c.Address)})
	}
	if e.Count == e.Total {
		places = aggregator.NewPerCore(list)
	}
	return places, places != ""
}

// errSizeLost: the input of the computation is lost or not known yet; other buffers may still be computed.
var errSizeLost = errors.New("lost")

// computedSize computes the size from the record; 0 without an error means that it cannot be computed.
func (bs *buffers) computedSize(p *traced, from origin, e *bpf.MemtraceTtAlloc) (uint64, error) {
	s, m := p.of.sizes, aggregator.Memory(e.Head.Memory)
	bank, err := p.bank(e.Allocator, m)
	if err != nil {
		return 0, err
	}
	const saturated, interleaved = 1<<32 - 1, 0
	if !bank.Valid() || e.PageSize == saturated {
		return 0, nil
	}
	key := sizeKey{bank, metal.Shape{Memory: uint32(m), Layout: uint32(e.Head.Layout), Size: e.Size, PageSize: uint64(e.PageSize)}}
	if key.shape.Layout != interleaved && s.Span > 0 {
		sharded := bs.sharded.take(from)
		if sharded == nil {
			return 0, errSizeLost
		}
		s.Sharded(&key.shape, sharded.Fields[:min(int(sharded.Length), len(sharded.Fields))], sharded.Ranges[:min(int(sharded.RangesLength), len(sharded.Ranges))])
	}
	size, known := s.known[key]
	if !known {
		size, _ = s.PerBank(key.bank, &key.shape) // on an error the size is 0, and the probe takes over
		if len(s.known) >= maxKnownSizes {
			clear(s.known)
		}
		s.known[key] = size
	}
	return size, nil
}

// probeSizes attaches, in the background, the probe that reads reserved sizes. Until it is attached, unknown sizes
// come from the allocators.
func (bs *buffers) probeSizes(of *attachment) {
	if of.sizes.probing {
		return
	}
	of.sizes.probing = true
	bs.background.Go(func() {
		if err := bs.attacher.attachSpare(of); err != nil {
			bs.opts.Notice(err.Error())
		}
	})
}

// bank returns the numbers of an allocator's memory from which reserved sizes are computed; an invalid Bank if they
// could not be read. An error means that they may be read later.
func (p *traced) bank(allocator uint64, m aggregator.Memory) (metal.Bank, error) {
	a := p.allocators.of(allocator)
	bank, known := a.banks[m]
	if bank.Valid() {
		return bank, nil
	}
	var err error
	if !known {
		bank, err = p.Bank(p.of.sizes.ReservedSizes, allocator, m)
	}
	if !bank.Valid() { // the other allocator may have become known since
		if same, known := p.bankOfChips(a, m); known {
			bank, err = same, nil
		}
	}
	if known && !bank.Valid() {
		return bank, nil
	}
	if errors.Is(err, memory.ErrLater) {
		return bank, err
	}
	if a.banks == nil {
		a.banks = map[aggregator.Memory]metal.Bank{}
	}
	a.banks[m] = bank
	// Read the other memories too: the allocator may be gone when the first buffer in one of them is handled.
	for m := range aggregator.NumMemories {
		if _, known := a.banks[m]; known || m == aggregator.SystemMemory {
			continue
		}
		if b, err := p.Bank(p.of.sizes.ReservedSizes, allocator, m); err == nil {
			a.banks[m] = b
		}
	}
	return bank, nil
}

// bankOfChips returns what another allocator of the process shows about a memory of the same chips, if it is DRAM. All
// allocators of a chip divide its DRAM in the same way, but L1 also by sub-devices. On a busy host, an event can be
// handled after its allocator is gone, and other allocators of the chips remain.
func (p *traced) bankOfChips(of *allocator, m aggregator.Memory) (metal.Bank, bool) {
	if m != aggregator.DRAM && m != aggregator.Trace {
		return metal.Bank{}, false
	}
	for _, other := range p.allocators {
		if bank := other.banks[m]; bank.Valid() && p.devices.shareChips(other.device, of.device) {
			return bank, true
		}
	}
	return metal.Bank{}, false
}
