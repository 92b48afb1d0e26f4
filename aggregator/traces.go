package aggregator

import (
	"cmp"
	"slices"

	"tt-memtrace/aggregator/exact"
)

// A replay of a captured trace writes where buffers were while it was captured. A buffer
// that is allocated later can lie there: the runtime warns, but does not prevent it.

// Unsafe says why a buffer's contents may be overwritten: the buffer was allocated after a trace was captured, and
// was live when that trace was replayed.
type Unsafe struct {
	// Found: such a replay was seen. Otherwise the other fields are empty.
	Found bool `rec:"Found"`
	// Trace is the trace's number in the process.
	Trace uint32 `rec:"Trace"`
	// Overlaps: the buffer lies where another one was allocated while the trace was captured. Otherwise only the
	// runtime's rule is broken, not to allocate while there is a trace.
	Overlaps bool `rec:"Overlaps"`
}

// UnsafeTally is what the accounts count of the live buffers that are Unsafe; Bytes as Size of a BufferSnapshot.
type UnsafeTally struct {
	Buffers     uint64 `rec:"Buffers"`
	Bytes       uint64 `rec:"Bytes"`
	Overlapping uint64 `rec:"Overlapping"`
	// OverlappingBytes are those of Overlapping.
	OverlappingBytes uint64 `rec:"OverlappingBytes"`
}

// UnsafeUsage is what is known of a process's unsafe buffers, as in an UnsafeTally, and how many were Found since
// tracing began. A 0 is unknown if buffers may be unsafe that do not count as unsafe.
type UnsafeUsage struct {
	Buffers, Bytes, Overlapping, OverlappingBytes, Found exact.Quantity
}

// Extent is a buffer's range of addresses in each bank of a memory, from First up to but not including End.
type Extent struct {
	Memory Memory `rec:"Memory"`
	First  uint64 `rec:"First"`
	End    uint64 `rec:"End"`
}

// Capture describes the capture of a trace.
type Capture struct {
	// Extents of the buffers that were allocated during the capture.
	Extents []Extent `rec:"Extents"`
	// Cut: there were more.
	Cut bool `rec:"Cut"`
}

// trace is a trace of commands of a device.
type trace struct {
	device uint64
	number uint32
	// seen: its capture was seen. It ended then; 0 is before tracing began.
	seen         bool
	began, ended uint64
	capture      Capture
	// count of replays, and when the last was.
	count, last uint64
	// judged is how many of the process's younger buffers were looked at.
	judged int
}

// younger is a buffer that was allocated while there was a trace.
type younger struct{ id, time uint64 }

// TraceSnapshot is a trace of a device that is open.
type TraceSnapshot struct {
	// Trace is its number in the process.
	Trace uint32
	// Chips of the device; not to be changed.
	Chips []Chip
	// Captured is when its capture ended, CLOCK_MONOTONIC ns; 0 where that was before tracing
	// began, or is not known.
	Captured uint64
	// Count of replays, and when the last was, CLOCK_MONOTONIC ns.
	Count, Last uint64
}

// maxTraces and maxExtents, of one trace, bound the memory that a process can make this
// one use.
const (
	maxTraces  = 1 << 14
	maxExtents = 1 << 16
)

// traceOf returns the trace of an event, and makes it if necessary. It returns nil beyond the bound, or if the device
// closed.
func (p *process) traceOf(e *Event) *trace {
	for _, t := range p.traces {
		if t.device == e.Device && t.number == e.Trace {
			return t
		}
	}
	if len(p.traces) >= maxTraces {
		p.raise(exact.ReasonTracesMissed, e.Time)
		return nil
	}
	if d := p.devices[e.Device]; d != nil && d.closed {
		return nil
	}
	t := &trace{device: e.Device, number: e.Trace, judged: len(p.younger)}
	p.traces = append(p.traces, t)
	return t
}

// beginTrace applies the beginning of a trace's capture.
func (p *process) beginTrace(e *Event) {
	t := p.traceOf(e)
	if t == nil {
		return
	}
	*t = trace{device: e.Device, number: e.Trace, began: e.Time}
	if e.Capture != nil {
		t.capture = *e.Capture
		t.capture.Extents = slices.Clone(t.capture.Extents)
	}
	p.capturing = append(slices.DeleteFunc(p.capturing, func(o *trace) bool { return o == t }), t)
}

// endTrace applies the end of a trace's capture. If its beginning was not seen, the event has the capture.
func (p *process) endTrace(e *Event) {
	t := p.traceOf(e)
	if t == nil {
		return
	}
	i := slices.Index(p.capturing, t)
	switch {
	case i >= 0:
		p.capturing = slices.Delete(p.capturing, i, i+1)
	case e.Capture != nil:
		t.capture = *e.Capture
	default:
		return
	}
	t.capture.Extents = merged(t.capture.Extents)
	t.seen, t.ended, t.judged = true, e.Time, len(p.younger)
}

// merged sorts extents and joins those that touch.
func merged(list []Extent) []Extent {
	list = slices.Clone(list)
	slices.SortFunc(list, func(x, y Extent) int {
		return cmp.Or(cmp.Compare(x.Memory, y.Memory), cmp.Compare(x.First, y.First), cmp.Compare(x.End, y.End))
	})
	out := list[:0]
	for _, x := range list {
		if n := len(out); n > 0 && out[n-1].Memory == x.Memory && x.First <= out[n-1].End {
			out[n-1].End = max(out[n-1].End, x.End)
			continue
		}
		out = append(out, x)
	}
	return out
}

// releaseTrace applies the release of a trace: it is not replayed any more. What it overwrote stays overwritten.
func (p *process) releaseTrace(number uint32) {
	p.dropTraces(func(t *trace) bool { return t.number == number })
}

func (p *process) dropTraces(which func(*trace) bool) {
	p.traces = slices.DeleteFunc(p.traces, which)
	p.capturing = slices.DeleteFunc(p.capturing, which)
	if len(p.traces) == 0 {
		p.younger = nil
	}
}

func (p *process) dropTracesOf(device uint64) {
	p.dropTraces(func(t *trace) bool { return t.device == device })
}

// meetsTraces notes a new buffer for the present traces.
func (p *process) meetsTraces(b *buffer) {
	if b.memory == Trace || b.time == 0 {
		return
	}
	for _, t := range p.capturing {
		switch {
		case !p.sharesChips(t, b):
		case len(t.capture.Extents) < maxExtents:
			t.capture.Extents = append(t.capture.Extents, b.extent())
		default:
			t.capture.Cut = true
		}
	}
	if len(p.younger) >= 1024 && len(p.younger) > 2*p.buffers.live {
		p.forgetFreed()
	}
	p.younger = append(p.younger, younger{b.id, b.time})
}

func (b *buffer) extent() Extent {
	last := b.address
	if b.perCore {
		last = slices.Max(b.onCores().Addresses())
	}
	return Extent{b.memory, b.address, last + max(b.perBank, 1)}
}

func (p *process) sharesChips(t *trace, b *buffer) bool {
	d := p.devices[t.device]
	return d != nil && (d == b.device || slices.ContainsFunc(b.device.shares, func(s *share) bool { return slices.Contains(d.shares, s) }))
}

// alive returns the buffer of an entry, or nil if it was freed.
func (p *process) alive(y younger) *buffer {
	if b := p.buffers.get(y.id); b != nil && b.time == y.time {
		return b
	}
	return nil
}

// forgetFreed removes freed buffers from the younger ones.
func (p *process) forgetFreed() {
	before := make([]int, len(p.younger)+1) // how many before each stay
	kept := p.younger[:0]
	for i, y := range p.younger {
		before[i] = len(kept)
		if p.alive(y) != nil {
			kept = append(kept, y)
		}
	}
	before[len(p.younger)] = len(kept)
	for _, t := range p.traces {
		t.judged = before[t.judged]
	}
	p.younger = kept
}

// replay applies a replay of a trace. The live buffers that were allocated after its capture are unsafe from now on.
func (a *Aggregator) replay(p *process, e *Event) {
	p.counters.Replays += e.Count
	p.launched = max(p.launched, e.Time)
	t := p.traceOf(e)
	if t == nil {
		return
	}
	if !t.seen && t.count == 0 && (p.info.Late || p.counters.AtLeast) && a.muted == nil && !slices.Contains(p.capturing, t) {
		// It was captured before tracing began, so every buffer whose allocation was seen is younger. Those from before
		// are unknown, and so is what memory the capture used: the source raises exact.ReasonTracesBeforeAttach for the former.
		t.seen = true
		p.listAll()
	}
	t.count += e.Count
	t.last = max(t.last, e.Time)
	if !t.seen {
		return // it is unknown when it was captured
	}
	for ; t.judged < len(p.younger); t.judged++ {
		b := p.alive(p.younger[t.judged])
		if b != nil && b.time > t.ended && p.sharesChips(t, b) && a.muted == nil { // a state carries what is unsafe
			a.judge(p, t, b, e)
		}
	}
}

// listAll makes all buffers that were seen to be allocated younger than some trace.
func (p *process) listAll() {
	p.younger = p.younger[:0]
	for b := range p.buffers.all() {
		if b.time != 0 && b.memory != Trace {
			p.younger = append(p.younger, younger{b.id, b.time})
		}
	}
	slices.SortFunc(p.younger, func(x, y younger) int { return cmp.Or(cmp.Compare(x.time, y.time), cmp.Compare(x.id, y.id)) })
	for _, t := range p.traces {
		t.judged = 0
		if judged := max(t.last, t.ended); judged > 0 {
			t.judged, _ = slices.BinarySearchFunc(p.younger, judged, func(y younger, last uint64) int { return cmp.Compare(y.time, last+1) })
		}
	}
}

// judge marks a buffer that is younger than a trace and was live when the trace was replayed.
func (a *Aggregator) judge(p *process, t *trace, b *buffer, e *Event) {
	verdict := unsafeRule
	if t.overlaps(b.extent()) {
		verdict = unsafeOverlaps
	}
	if verdict <= b.unsafe {
		return
	}
	if b.unsafe == 0 {
		p.counters.Unsafe++
	}
	if t.ended == 0 && verdict < unsafeOverlaps && !p.has(exact.ReasonTracesBeforeAttach) {
		p.raise(exact.ReasonTracesBeforeAttach, e.Time) // the buffer may lie where the capture had others
	}
	p.unsafe.sub(b)
	b.unsafe, b.trace = verdict, t.number
	p.unsafe.add(b)
	if a.OnUnsafe != nil {
		a.OnUnsafe(Change{Time: e.Time, PID: p.pid, TID: e.TID, Buffer: b.snapshot(), Chips: b.device.opened.Chips})
	}
}

// How a buffer is unsafe, in increasing severity; 0 means that no overwrite is known.
const (
	unsafeRule uint8 = 1 + iota
	unsafeOverlaps
	// markedCorruptible: the program knows that it can be overwritten, so no replay makes it unsafe.
	markedCorruptible
)

// markCorruptible applies what a program says of a buffer.
func (p *process) markCorruptible(id uint64) {
	if b := p.buffers.get(id); b != nil {
		p.unsafe.sub(b)
		b.unsafe, b.trace = markedCorruptible, 0
	}
}

// unsafety is why the buffer is unsafe, if it is.
func (b *buffer) unsafety() Unsafe {
	return Unsafe{Found: b.unsafe == unsafeRule || b.unsafe == unsafeOverlaps, Trace: b.trace, Overlaps: b.unsafe == unsafeOverlaps}
}

// inherit applies what a state says of a buffer.
func (p *process) inherit(b *buffer, u *Unsafe) {
	if !u.Found {
		return
	}
	b.unsafe, b.trace = unsafeRule, u.Trace
	if u.Overlaps {
		b.unsafe = unsafeOverlaps
	}
	p.unsafe.add(b)
}

func (t *trace) overlaps(x Extent) bool {
	// The last that begins before the buffer's end is the only one that can reach into it.
	i, _ := slices.BinarySearchFunc(t.capture.Extents, x, func(o, x Extent) int {
		return cmp.Or(cmp.Compare(o.Memory, x.Memory), cmp.Compare(o.First, x.End))
	})
	return i > 0 && t.capture.Extents[i-1].Memory == x.Memory && t.capture.Extents[i-1].End > x.First
}

func (u *UnsafeTally) add(b *buffer) {
	switch b.unsafe {
	case unsafeOverlaps:
		u.Overlapping++
		u.OverlappingBytes += b.size
		fallthrough
	case unsafeRule:
		u.Buffers++
		u.Bytes += b.size
	}
}

func (u *UnsafeTally) sub(b *buffer) {
	switch b.unsafe {
	case unsafeOverlaps:
		u.Overlapping--
		u.OverlappingBytes -= b.size
		fallthrough
	case unsafeRule:
		u.Buffers--
		u.Bytes -= b.size
	}
}

// Traces lists the traces of a process that are captured or were replayed on devices that
// are open, by number.
func (a *Aggregator) Traces(pid uint32) (list []TraceSnapshot) {
	p := a.processes[pid]
	if p == nil {
		return nil
	}
	traces := slices.SortedFunc(slices.Values(p.traces), func(x, y *trace) int {
		return cmp.Or(cmp.Compare(x.number, y.number), cmp.Compare(x.device, y.device))
	})
	for _, t := range traces {
		if !t.seen && t.count == 0 {
			continue // being captured
		}
		s := TraceSnapshot{Trace: t.number, Captured: t.ended, Count: t.count, Last: t.last}
		if d := p.devices[t.device]; d != nil {
			s.Chips = d.opened.Chips
		}
		list = append(list, s)
	}
	return list
}

// traceState lists the events of traces by time. Between the buffers' allocations, in their order, they lead to the
// same verdicts.
func (p *process) traceState() (list []Event) {
	for _, t := range p.traces {
		e := Event{PID: p.pid, Device: t.device, Trace: t.number}
		capture := t.capture
		capture.Extents = slices.Clone(capture.Extents)
		switch {
		case t.seen:
			e.Kind, e.Time, e.Capture = TraceCaptured, t.ended, &capture
			list = append(list, e)
		case slices.Contains(p.capturing, t):
			e.Kind, e.Time, e.Capture = TraceBegun, t.began, &capture
			list = append(list, e)
		}
		if t.count > 0 {
			list = append(list, Event{Kind: Replayed, PID: p.pid, Time: t.last, Device: t.device, Trace: t.number, Count: t.count})
		}
	}
	slices.SortStableFunc(list, func(x, y Event) int {
		return cmp.Or(cmp.Compare(x.Time, y.Time), cmp.Compare(x.Trace, y.Trace), cmp.Compare(x.Device, y.Device))
	})
	return list
}
