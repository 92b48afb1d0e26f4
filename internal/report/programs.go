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
	holders    map[holder]tally
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

// holder names what held L1 at a peak: an operation; programs without one, and why they have none; or, while both are
// unknown, one program.
type holder struct {
	operation string
	why       Unnamed
	program   programKey
}

func (b *Builder) capture(p *programSpace) {
	if !p.peakOpen {
		return
	}
	p.peakOpen = false
	p.holders = map[holder]tally{}
	for k, bytes := range p.by {
		h := holder{operation: b.names[k]}
		if h.operation == "" {
			h.program = k
		}
		t := p.holders[h]
		t.add(bytes)
		p.holders[h] = t
	}
}

// concluded returns what a holder is known to be now.
func (b *Builder) concluded(h holder) holder {
	switch k := h.program; {
	case k == programKey{}:
		return h
	case b.names[k] != "":
		return holder{operation: b.names[k]}
	default:
		return holder{why: b.unnamed(k)}
	}
}

// conclude replaces the holders that are these programs by what is known about them now: their addresses can be
// reused.
func (b *Builder) conclude(are func(programKey) bool) {
	for _, p := range b.programs {
		for h, t := range p.holders {
			if h.program == (programKey{}) || !are(h.program) {
				continue
			}
			delete(p.holders, h)
			h = b.concluded(h)
			t.buffers, t.bytes = t.buffers+p.holders[h].buffers, t.bytes+p.holders[h].bytes
			p.holders[h] = t
		}
	}
}

// unnamed is why a program has no name.
func (b *Builder) unnamed(k programKey) Unnamed {
	_, launched := b.launched[k]
	p := b.started[k.pid]
	switch {
	case p == nil || p.info.Source != aggregator.Traced:
		return UnnamedNotTraced
	case launched:
		return UnnamedLauncher
	case p.to == 0 || p.ranBefore():
		return UnnamedNotLaunched
	}
	return UnnamedEnded
}

// Operation is the name of a program that did not end, or empty.
func (b *Builder) Operation(pid uint32, program uint64) string {
	return b.names[programKey{pid, program}]
}

func (b *Builder) programsOf(c aggregator.Chip) Programs {
	p := b.programs[c]
	b.capture(p)
	out := Programs{Chip: c.Number, Private: privateTo(c), Peak: p.peak, PeakAt: b.seconds(p.peakAt), Holders: []ProgramOperation{}}
	sums := map[holder]tally{}
	for h, t := range p.holders {
		h = b.concluded(h)
		t.buffers, t.bytes = t.buffers+sums[h].buffers, t.bytes+sums[h].bytes
		sums[h] = t
	}
	for h, t := range sums {
		out.Holders = append(out.Holders, ProgramOperation{known(h.operation), h.why, t.buffers, t.bytes})
	}
	slices.SortFunc(out.Holders, func(x, y ProgramOperation) int {
		return cmp.Or(cmp.Compare(y.Bytes, x.Bytes), cmp.Compare(deref(x.Operation), deref(y.Operation)), cmp.Compare(x.Unnamed, y.Unnamed))
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
		return "unknown: " + o.Unnamed.String()
	}
	return printable(*o.Operation)
}

// Unnamed is why the operation of programs is not known.
type Unnamed string

const (
	// UnnamedNotTraced: their process was not traced, or is not known.
	UnnamedNotTraced Unnamed = "not_traced"
	// UnnamedNotLaunched: no launch was seen, and only the launch has the operation.
	UnnamedNotLaunched Unnamed = "not_launched"
	// UnnamedEnded: their process ended before their launch was read.
	UnnamedEnded Unnamed = "process_ended"
	// UnnamedLauncher: the launcher is no ttnn operation, or could not be read.
	UnnamedLauncher Unnamed = "launcher"
)

func (u Unnamed) String() string {
	switch u {
	case UnnamedNotTraced:
		return "the process was not traced"
	case UnnamedNotLaunched:
		return "not launched since tracing began"
	case UnnamedEnded:
		return "the process ended before the launch was read"
	}
	return "not launched by a ttnn operation, or its caller could not be read"
}

// samePrograms groups the chips on which programs used the same L1.
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
