package report

import (
	"cmp"
	"slices"

	"tt-memtrace/aggregator"
)

// programSpace is the L1 of a chip used by programs.
type programSpace struct {
	used, peak uint64
	peakAt     uint64
	peakOpen   bool
	by         map[programKey]uint64
	holders    map[string]tally
	// ends of the buffers now, the highest unless stale, and where it was closest to an L1 buffer.
	ends        map[end]int
	highest     end
	stale       bool
	smallestGap *l1Gap
}

// CBChange receives the placing or release of a circular or dataflow buffer.
func (b *Builder) CBChange(c aggregator.CBChange) {
	k := programKey{c.PID, c.Program}
	bytes := c.CB.Bytes()
	if !c.Freed {
		b.place(c.Chip, k, c.Time, c.CB)
		return
	}
	p := b.programs[c.Chip]
	if p == nil || p.by[k] < bytes {
		return
	}
	b.capture(p)
	p.placed(c.CB, -1)
	p.used -= bytes
	if p.by[k] -= bytes; p.by[k] == 0 {
		delete(p.by, k)
	}
}

func (b *Builder) place(chip aggregator.Chip, k programKey, at uint64, cb *aggregator.CircularBuffer) {
	p := b.programs[chip]
	if p == nil {
		p = &programSpace{by: map[programKey]uint64{}, ends: map[end]int{}}
		b.programs[chip] = p
	}
	bytes := cb.Bytes()
	p.placed(cb, 1)
	p.used += bytes
	p.by[k] += bytes
	if p.used > p.peak {
		p.peak, p.peakAt, p.peakOpen = p.used, at, true
	}
	b.closest(chip, at)
}

func (b *Builder) capture(p *programSpace) {
	if !p.peakOpen {
		return
	}
	p.peakOpen = false
	p.holders = map[string]tally{}
	for k, bytes := range p.by {
		t := p.holders[b.names[k]]
		t.add(bytes)
		p.holders[b.names[k]] = t
	}
}

// Operation is the name of a program that did not end, or empty.
func (b *Builder) Operation(pid uint32, program uint64) string {
	return b.names[programKey{pid, program}]
}

func (b *Builder) programsOf(c aggregator.Chip) Programs {
	p := b.programs[c]
	b.capture(p)
	out := Programs{Chip: c.Number, Private: privateTo(c), Peak: p.peak, PeakAt: b.seconds(p.peakAt), Holders: []ProgramOperation{}}
	for name, t := range p.holders {
		out.Holders = append(out.Holders, ProgramOperation{known(name), t.buffers, t.bytes})
	}
	slices.SortFunc(out.Holders, func(x, y ProgramOperation) int {
		return cmp.Or(cmp.Compare(y.Bytes, x.Bytes), cmp.Compare(deref(x.Operation), deref(y.Operation)))
	})
	return out
}
