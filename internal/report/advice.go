package report

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"tt-memtrace/aggregator"
	"tt-memtrace/internal/plural"
)

// Advice is a size to set, or how much was left, with the numbers behind it.
type Advice struct {
	// What it is about: trace_region_size, l1_small_size, circular_buffers or dram.
	About string `json:"about"`
	// Chip with the least left, or the most used, and when.
	Chip    uint32  `json:"chip"`
	Private *uint32 `json:"private_to,omitempty"`
	At      float64 `json:"at_seconds"`
	// Value to open the device with, bytes; null if there is none to set.
	Set *uint64 `json:"set_bytes" jsonschema:"nullable"`
	// Size of the memory in each bank; null for circular_buffers.
	Configured *uint64 `json:"configured_per_bank_bytes" jsonschema:"nullable"`
	// Highest use of each bank, and the distance from the lowest to the highest address
	// that was ever allocated there; null for circular_buffers.
	Peak *uint64 `json:"peak_per_bank_bytes" jsonschema:"nullable"`
	Span *uint64 `json:"span_per_bank_bytes" jsonschema:"nullable"`
	// Least bytes left: of each bank of DRAM or, for circular_buffers, on the fullest core
	// between their end and the lowest L1 buffer; below 0 they overlap. Null otherwise.
	Left *int64 `json:"left_bytes" jsonschema:"nullable"`
	// Core with the least left, the end of its circular buffers, and the lowest address
	// of the L1 buffers at that moment; null otherwise.
	Core   *[2]uint16 `json:"core" jsonschema:"nullable"`
	End    *uint64    `json:"circular_buffers_end_address" jsonschema:"nullable"`
	Lowest *uint64    `json:"l1_begin_address" jsonschema:"nullable"`

	banks uint32
}

// What the runtime rounds a bank's part of a region up to, bytes; measured with 0.81.1. It
// divides trace_region_size by the number of banks before; l1_small_size is that of a bank.
const (
	traceRounding          = 8192
	l1SmallRounding        = 32
	l1SmallRoundingFurther = 64 // on any other chip than Wormhole
)

func roundedUp(n, to uint64) uint64 { return (n + to - 1) / to * to }

// noAdvice says why nothing can be advised; empty if it can.
func (b *Builder) noAdvice(r *Report) string {
	switch {
	case r.Empty():
		return "nothing was traced"
	case r.Lost > 0:
		return plural.Of(r.Lost, "event was lost", "events were lost")
	case b.lacking:
		return "a part of the recording is missing"
	case b.midway:
		return "the recording begins midway: earlier peaks are unknown"
	}
	for _, p := range append(b.ended[:len(b.ended):len(b.ended)], b.running()...) {
		switch {
		case p.info.Source != aggregator.Traced:
			return fmt.Sprintf("the allocations of process %d were not traced one by one", p.pid)
		case p.ranBefore():
			return fmt.Sprintf("process %d ran before tracing began: its earlier peaks are unknown", p.pid)
		}
	}
	for _, k := range slices.SortedFunc(maps.Keys(b.spaces), compareSpaces) {
		if s := b.spaces[k]; s.peak.buffers > 0 && !s.peakBanks.Known {
			return fmt.Sprintf("the size of %s of chip %d%s could not be read", s.memory, k.chip.Number, ofProcess(privateTo(k.chip)))
		}
	}
	if !r.Exact {
		return "the accounts are not exact"
	}
	return ""
}

func (b *Builder) running() []*process {
	return slices.SortedFunc(maps.Values(b.started), func(x, y *process) int { return cmp.Compare(x.pid, y.pid) })
}

// advice returns the advice that follows from the peaks: one of each kind, for the chip that needs it most.
func (b *Builder) advice() []Advice {
	list := []Advice{}
	for _, region := range []struct {
		about  string
		memory aggregator.Memory
	}{{"trace_region_size", aggregator.Trace}, {"l1_small_size", aggregator.L1Small}} {
		if a := b.regionAdvice(region.about, region.memory); a != nil {
			list = append(list, *a)
		}
	}
	var fullest *Advice
	for _, chip := range slices.SortedFunc(maps.Keys(b.programs), compareChips) {
		if l := b.programs[chip].smallestGap; l != nil && (fullest == nil || l.left < *fullest.Left) {
			least := *l
			fullest = &Advice{About: "circular_buffers", Chip: chip.Number, Private: privateTo(chip), At: b.seconds(l.at), Left: &least.left,
				Core: &[2]uint16{l.core.X, l.core.Y}, End: &least.end, Lowest: &least.lowest}
		}
	}
	if fullest != nil {
		list = append(list, *fullest)
	}
	if a := b.dramAdvice(); a != nil {
		list = append(list, *a)
	}
	return list
}

// sized returns the spaces of a memory with known banks, by chip.
func (b *Builder) sized(m aggregator.Memory) []chipSpace {
	var list []chipSpace
	for _, k := range slices.SortedFunc(maps.Keys(b.spaces), compareSpaces) {
		s := b.spaces[k]
		if n := s.span().banks; k.memory == m && n.Known && n.Count > 0 && n.Bytes > 0 {
			list = append(list, chipSpace{s, k.chip})
		}
	}
	return list
}

// newAdvice has the numbers of a space, and what was configured.
func (b *Builder) newAdvice(about string, s chipSpace, configured aggregator.Banks) *Advice {
	peak, span := s.peak.bytes/uint64(configured.Count), s.span().bytes
	return &Advice{About: about, Chip: s.chip.Number, Private: privateTo(s.chip), At: b.seconds(max(s.peakAt, b.first)), Configured: &configured.Bytes, Peak: &peak, Span: &span,
		banks: configured.Count}
}

func (b *Builder) regionAdvice(about string, m aggregator.Memory) *Advice {
	var most *Advice
	for _, s := range b.sized(m) {
		if s.unsized {
			return nil
		}
		a := b.newAdvice(about, s, s.span().banks)
		if most == nil || *a.Span > *most.Span {
			rounding := uint64(l1SmallRoundingFurther)
			if b.archs[s.chip] == "wormhole_b0" {
				rounding = l1SmallRounding
			}
			set := roundedUp(*a.Span, rounding)
			if m == aggregator.Trace {
				set = roundedUp(*a.Span, traceRounding) * uint64(a.banks)
			}
			a.Set, most = &set, a
		}
	}
	return most
}

func (b *Builder) dramAdvice() *Advice {
	var least *Advice
	for _, s := range b.sized(aggregator.DRAM) {
		if s.unsized || s.peak.buffers == 0 || s.peakBanks.Count == 0 {
			continue
		}
		a := b.newAdvice("dram", s, s.peakBanks)
		left := int64(*a.Configured) - int64(*a.Peak)
		if a.Left = &left; least == nil || left < *least.Left {
			least = a
		}
	}
	return least
}

// Text says it in a line, the numbers it rests on in brackets.
func (a *Advice) Text() string {
	on := fmt.Sprintf("chip %d", a.Chip) + ofProcess(a.Private)
	at := on + " at " + seconds(a.At)
	switch a.About {
	case "circular_buffers":
		what := "left for circular buffers on the fullest core"
		if *a.Left < 0 {
			return fmt.Sprintf("circular buffers overlap L1 buffers by %s (core %d,%d of %s: they end at %#x, the L1 buffers begin at %#x)",
				Size(uint64(-*a.Left)), a.Core[0], a.Core[1], at, *a.End, *a.Lowest)
		}
		return fmt.Sprintf("%s of L1 %s (core %d,%d of %s: they end at %#x, the L1 buffers begin at %#x)", Size(uint64(*a.Left)), what, a.Core[0], a.Core[1], at, *a.End, *a.Lowest)
	case "dram":
		return fmt.Sprintf("%s of DRAM left on the fullest chip, %s per bank (%s: %s of %s per bank used)", Size(uint64(max(0, *a.Left))*uint64(a.banks)), Size(uint64(max(0, *a.Left))),
			at, Size(*a.Peak), Size(*a.Configured))
	}
	if *a.Peak == 0 {
		return fmt.Sprintf("%s=0 is enough (nothing was allocated there; %s per bank configured)", a.About, Size(*a.Configured))
	}
	return fmt.Sprintf("%s=%d is enough (%s: %s per bank used, over addresses of %s; %s per bank configured)", a.About, *a.Set, at, Size(*a.Peak), Size(*a.Span), Size(*a.Configured))
}

// l1Gap is where circular buffers and L1 buffers came closest.
type l1Gap struct {
	at          uint64
	left        int64
	core        aggregator.Core
	end, lowest uint64
}

// end is the end of a program's buffer, and a core that it is on.
type end struct {
	address uint64
	core    aggregator.Core
}

// closest notes how close the circular buffers of a chip are to its L1 buffers now.
func (b *Builder) closest(chip aggregator.Chip, at uint64) {
	p, s := b.programs[chip], b.spaces[spaceKey{chip, aggregator.L1}]
	if p == nil || s == nil || s.many || s.unsized || s.blocks.count == 0 {
		return
	}
	top, ok := p.top()
	if !ok {
		return
	}
	lowest := s.blocks.pieces[0][0].start
	if left := int64(lowest) - int64(top.address); p.smallestGap == nil || left < p.smallestGap.left {
		p.smallestGap = &l1Gap{at, left, top.core, top.address, lowest}
	}
}

// top is the highest end.
func (p *programSpace) top() (top end, ok bool) {
	if p.stale {
		p.stale, p.highest = false, end{}
		for e := range p.ends {
			if e.address > p.highest.address || e.address == p.highest.address && (e.core.Y < p.highest.core.Y || e.core.Y == p.highest.core.Y && e.core.X < p.highest.core.X) {
				p.highest = e
			}
		}
	}
	return p.highest, len(p.ends) > 0
}

// placed counts a buffer that was placed, n = 1, or released, n = -1.
func (p *programSpace) placed(cb *aggregator.CircularBuffer, n int) {
	if cb.Kind == aggregator.ReportedCircular || cb.Kind == aggregator.GlobalCircular || len(cb.Ranges) == 0 {
		return
	}
	e := end{cb.Address + cb.Size, aggregator.Core{X: cb.Ranges[0].X0, Y: cb.Ranges[0].Y0}}
	if p.ends[e] += n; p.ends[e] <= 0 {
		delete(p.ends, e)
	}
	p.stale = p.stale || n < 0 || e.address >= p.highest.address
}

func (p *printer) advice(r *Report) {
	p.heading("Advice")
	if r.NoAdvice != nil {
		p.line("  none: %s", printable(*r.NoAdvice))
	}
	for i := range r.Advice {
		p.line("  %s", r.Advice[i].Text())
	}
}
