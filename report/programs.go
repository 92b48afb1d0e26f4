package report

import (
	"cmp"
	"fmt"
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

func (p *printer) programs(r *Report) {
	if len(r.Programs) == 0 {
		return
	}
	p.heading("Circular and dataflow buffers of programs at their peak (sum over programs, which share addresses)%s", r.AtLeast())
	for _, group := range samePrograms(r.Programs) {
		c := group[0]
		p.line("  %s: %s at %s", chipNames(group), Size(c.Peak), seconds(c.PeakAt))
		p.line("%s", p.style.paint(faint, fmt.Sprintf("    %10s  %8s  %s", "BYTES", "PROGRAMS", "OPERATION")))
		for _, h := range c.Holders[:min(shown, len(c.Holders))] {
			p.line("    %10s  %8d  %s", Size(h.Bytes), h.Programs, h.Name())
		}
	}
}

func (o *ProgramOperation) Name() string {
	if o.Operation == nil {
		return "unknown"
	}
	return printable(*o.Operation)
}

// samePrograms groups the chips on which programs used the same.
func samePrograms(list []Programs) [][]*Programs {
	return grouped(list, func(c *Programs) string {
		key := fmt.Sprint(c.Private == nil, c.Peak, seconds(c.PeakAt))
		for _, h := range c.Holders {
			key += fmt.Sprint(h.Name(), h.Bytes, h.Programs)
		}
		return key
	})
}

func (c *Programs) place() (uint32, *uint32) { return c.Chip, c.Private }
