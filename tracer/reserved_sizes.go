package tracer

import (
	"errors"
	"time"

	"tt-memtrace/aggregator"
	"tt-memtrace/bpf"
	"tt-memtrace/tracer/memory"
	"tt-memtrace/tracer/metal"
)

// What a buffer takes of each bank is computed from its record, where the library shows how, and else probed. Where
// it cannot be computed for a buffer, the probe is attached, and the buffer has its size from the next comparison.

// reservedSizes computes what buffers of a library take of each bank.
type reservedSizes struct {
	*metal.ReservedSizes
	// known are sizes that were computed, 0 where that failed.
	known map[sizeKey]uint64
	// probing: they are to be probed as well.
	probing bool
}

type sizeKey struct {
	bank  metal.Bank
	shape metal.Shape
}

// memoryOf is a memory of an allocator.
type memoryOf struct {
	allocator uint64
	memory    aggregator.Memory
}

// maxKnownSizes bounds how many sizes of a library are kept.
const maxKnownSizes = 1 << 16

func newReservedSizes(lib *metal.Library) (*reservedSizes, error) {
	sizes, err := lib.ReservedSizes()
	if err != nil {
		return nil, err
	}
	return &reservedSizes{ReservedSizes: sizes, known: map[sizeKey]uint64{}}, nil
}

// reservedSize is what a buffer takes of each bank; 0 where that is not known, which is marked until a comparison says it.
func (r *run) reservedSize(p *traced, from origin, e *bpf.MemtraceTtAlloc) uint64 {
	if aggregator.Memory(e.Head.Memory) >= aggregator.NumMemories {
		return 0
	}
	if s := p.of.sizes; s != nil && uint32(e.Head.Library) == p.of.index { // else it is of another of its builds, for one
		size, err := r.computedSize(p, from, e)
		if err == nil && size > 0 {
			return size
		}
		r.t.unreserved.Add(1)
		if err == nil {
			r.probeSizes(p.of)
		}
	}
	rec := &p.reconciliation
	if rec.suspect.IsZero() {
		rec.suspect = time.Now()
	}
	if !rec.unreserved {
		rec.unreserved = true
		r.emit(aggregator.Event{Kind: aggregator.ReasonRaised, PID: from.pid, Time: from.time,
			Reason: &aggregator.Reason{Code: aggregator.ReasonReservedUnread, Detail: "it was not known when they were allocated"}})
	}
	return 0
}

// errSizeLost: what the size would be computed from is lost, or not known yet. Of other buffers it may be computed.
var errSizeLost = errors.New("lost")

// computedSize is 0 where the size cannot be computed.
func (r *run) computedSize(p *traced, from origin, e *bpf.MemtraceTtAlloc) (uint64, error) {
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
		sharded := r.sharded.take(from)
		if sharded == nil {
			return 0, errSizeLost
		}
		s.Sharded(&key.shape, sharded.Fields[:min(int(sharded.Length), len(sharded.Fields))], sharded.Ranges[:min(int(sharded.RangesLength), len(sharded.Ranges))])
	}
	size, known := s.known[key]
	if !known {
		size, _ = s.PerBank(key.bank, &key.shape) // why not does not matter: it is probed then
		if len(s.known) >= maxKnownSizes {
			clear(s.known)
		}
		s.known[key] = size
	}
	return size, nil
}

// probeSizes has the reserved sizes of a library's buffers probed from soon on. Those that were not known until then
// are taken from the allocators.
func (r *run) probeSizes(of *attachment) {
	if of.sizes.probing {
		return
	}
	of.sizes.probing = true
	r.background.Go(func() {
		if err := r.t.attachSpare(of); err != nil {
			r.t.opts.Notice(err.Error())
		}
	})
}

// bank is what of an allocator's memory decides how much buffers take of each bank; not valid where
// it could not be read. An error says that it may be read later.
func (p *traced) bank(allocator uint64, m aggregator.Memory) (metal.Bank, error) {
	of := memoryOf{allocator, m}
	bank, known := p.banks[of]
	if known {
		return bank, nil
	}
	bank, err := p.Bank(p.of.sizes.ReservedSizes, allocator, m)
	if errors.Is(err, memory.ErrLater) {
		return bank, err
	}
	p.banks[of] = bank
	// When the first buffer in another of its memories is read here, the allocator may be gone.
	for m := range aggregator.NumMemories {
		of := memoryOf{allocator, m}
		if _, known := p.banks[of]; known || m == aggregator.SystemMemory {
			continue
		}
		if b, err := p.Bank(p.of.sizes.ReservedSizes, allocator, m); err == nil {
			p.banks[of] = b
		}
	}
	return bank, nil
}

// forgetBanks forgets those of an allocator that ended.
func (p *traced) forgetBanks(allocator uint64) {
	for m := range aggregator.NumMemories {
		delete(p.banks, memoryOf{allocator, m})
	}
}
