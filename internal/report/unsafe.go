package report

import (
	"cmp"
	"maps"
	"slices"
	"strconv"

	"tt-memtrace/aggregator"
	"tt-memtrace/internal/plural"
)

// Unsafe is buffers of one site that a replay of a trace may have overwritten: they were
// allocated after the trace was captured, and were there when it was replayed.
type Unsafe struct {
	Site
	// Number of the trace in its process, and when the first of the buffers was found.
	Trace uint32  `json:"trace"`
	At    float64 `json:"at_seconds"`
	// Number of those that lie where others were allocated while the trace was captured.
	Overlapping uint64 `json:"overlapping_buffers"`
	// Address of the first in each bank: of an overlapping one, if there is any.
	Address uint64 `json:"address"`
}

// unsafeKey is a site and a trace.
type unsafeKey struct {
	site  *site
	trace uint32
}

// unsafeSite has the findings of a site.
type unsafeSite struct {
	tally
	at, overlapping, address uint64
}

// Unsafe receives a live buffer that a replay of a trace may have overwritten: again, where it
// turns out to overlap.
func (b *Builder) Unsafe(c aggregator.Change) { b.unsafeFound(c.PID, c.Time, &c.Buffer) }

func (b *Builder) unsafeFound(pid uint32, at uint64, buffer *aggregator.BufferSnapshot) {
	h := b.live[bufferKey{pid, buffer.ID}]
	if h == nil {
		return
	}
	k := unsafeKey{h.site, buffer.Unsafe.Trace}
	if h.unsafe != nil {
		k = *h.unsafe // by which trace it was found first
	}
	u := b.unsafe[k]
	if u == nil {
		if len(b.unsafe) >= maxSites {
			return
		}
		u = &unsafeSite{at: at, address: buffer.Address}
		b.unsafe[k] = u
	}
	if h.unsafe == nil {
		h.unsafe = &k
		u.add(h.total())
	}
	if buffer.Unsafe.Overlaps {
		if u.overlapping == 0 {
			u.address = buffer.Address
		}
		u.overlapping++
	}
}

// unsafeSites lists what was found: overlapping ones first, most bytes first.
func (b *Builder) unsafeSites() []Unsafe {
	keys := slices.SortedFunc(maps.Keys(b.unsafe), func(x, y unsafeKey) int {
		p, q := b.unsafe[x], b.unsafe[y]
		return cmp.Or(cmp.Compare(min(1, q.overlapping), min(1, p.overlapping)), cmp.Compare(q.bytes, p.bytes), compareSites(x.site, y.site), cmp.Compare(x.trace, y.trace))
	})
	return withOthers(keys, manySites, func(k unsafeKey) Unsafe {
		u := b.unsafe[k]
		return Unsafe{Site: k.site.public(u.tally), Trace: k.trace, At: b.seconds(u.at), Overlapping: u.overlapping, Address: u.address}
	}, func(others *Unsafe, k unsafeKey) {
		u := b.unsafe[k]
		others.sum(k.site.memory, u.tally)
		others.Overlapping += u.overlapping
	})
}

// Why says it in words.
func (u *Unsafe) Why() string {
	text := plural.Of(u.Buffers, "buffer") + " allocated after the capture of trace " + strconv.FormatUint(uint64(u.Trace), 10) + ", alive at its replay"
	switch u.Overlapping {
	case 0:
	case u.Buffers:
		text += ", in memory that the capture used"
	default:
		text += ", " + strconv.FormatUint(u.Overlapping, 10) + " of them in memory that the capture used"
	}
	return text
}

func (p *printer) unsafe(r *Report) {
	if len(r.Unsafe) == 0 {
		return
	}
	p.heading("Unsafe under traces: a replay may have overwritten these buffers")
	for i := range r.Unsafe[:min(shown, len(r.Unsafe))] {
		u := &r.Unsafe[i]
		sgr := yellow
		if u.Overlapping > 0 {
			sgr = red
		}
		p.line("  %s", p.style.paint(sgr, "at "+seconds(u.At)+", process "+strconv.FormatUint(uint64(u.PID), 10)+": "+u.Why()))
		p.line("    %s of %s, from %#x of each bank: %s", Size(u.Bytes), u.Memory, u.Address, shortened(u.Label(), wide))
	}
	if n := len(r.Unsafe) - shown; n > 0 {
		p.line("  … %d more with --json", n)
	}
}
