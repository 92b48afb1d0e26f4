package tracer

import (
	"slices"

	"tt-memtrace/aggregator"
	"tt-memtrace/aggregator/exact"
	"tt-memtrace/bpf"
)

// marks is what the runtime's own tracking of allocations under traces says about a process's buffers: which of them
// a replay may overwrite. The runtime reports it only while it tracks (TT_METAL_TRACE_ALLOC_TRACKING).
type marks struct {
	// scopes maps a thread to its scopes, innermost last: the allocators whose buffers are marked.
	scopes map[uint32][][]uint64
	// marking is the buffer that a thread is allocating in such a scope.
	marking map[uint32]uint64
	// ids maps tracked buffers to their unique ids, and buffers the ids to the buffers. If ids has no entry for an
	// id's buffer, that buffer is gone.
	ids, buffers map[uint64]uint64
	// incomplete is set once something was not marked.
	incomplete bool
}

// These bound the memory that a process can make the tracer use: maxMarkingThreads, maxScopes per thread, and
// maxTracked buffers. What exceeds them, or the allocators of a record, is not marked, and the process gets a reason.
const (
	maxMarkingThreads = 4096
	maxScopes         = 64
	maxTracked        = 1 << 17
)

// markings are the records of the runtime's tracking.
type markings struct{ *core }

func (ms *markings) records() []recordKind {
	mark := takes(bpf.MemtraceTtKindTT_MARK, ms.handleMark)
	mark.missed = ms.marksMissed
	mark.unread = func(rec record) {
		ms.processes.get(rec.pid).marks.doubt()
		ms.raise(rec.origin, exact.ReasonTracesMissed)
	}
	return []recordKind{mark}
}

// handleMark handles a record of the runtime's tracking.
func (ms *markings) handleMark(rec record, e *bpf.MemtraceTtMark) {
	from := rec.origin
	m := ms.processes.get(from.pid).marks
	if m == nil {
		m = &marks{scopes: map[uint32][][]uint64{}, marking: map[uint32]uint64{}, ids: map[uint64]uint64{}, buffers: map[uint64]uint64{}}
		ms.processes.of(from.pid).marks = m
	}
	allocators := e.Allocators[:min(int(e.Count), len(e.Allocators))]
	scopes := m.scopes[from.tid]
	whole := int(e.Count) == len(allocators)
	switch bpf.MemtraceTtMarkStep(e.Step) {
	case bpf.MemtraceTtMarkStepTT_MARK_SCOPE_BEGINS:
		if _, known := m.scopes[from.tid]; (known || len(m.scopes) < maxMarkingThreads) && len(scopes) < maxScopes {
			m.scopes[from.tid] = append(scopes, slices.Clone(allocators))
		} else {
			whole = false
		}
	case bpf.MemtraceTtMarkStepTT_MARK_SCOPE_ENDS:
		if len(scopes) > 1 {
			m.scopes[from.tid] = scopes[:len(scopes)-1]
		} else {
			delete(m.scopes, from.tid) // or the scope began before tracing
		}
	case bpf.MemtraceTtMarkStepTT_MARK_TRACKED:
		whole = m.track(e.Object, e.Unique)
		if len(allocators) == 1 && slices.ContainsFunc(scopes, func(s []uint64) bool { return slices.Contains(s, allocators[0]) }) {
			// The thread's next record is this buffer's allocation; in the allocator's way it was the last one.
			m.marking[from.tid] = e.Object
			ms.corruptible(from, e.Object)
		}
	case bpf.MemtraceTtMarkStepTT_MARK_ACKNOWLEDGED:
		if buffer, ok := m.buffers[e.Unique]; ok && m.ids[buffer] == e.Unique {
			ms.corruptible(from, buffer)
		}
	}
	if !whole && !m.incomplete {
		m.incomplete = true
		ms.raise(from, exact.ReasonTracesMissed)
	}
}

// markAllocated marks a newly allocated buffer if it was allocated in a scope.
func (ms *markings) markAllocated(from origin, buffer uint64) {
	m := ms.processes.get(from.pid).marks
	if m == nil {
		return
	}
	if marking, ok := m.marking[from.tid]; ok {
		delete(m.marking, from.tid)
		if marking == buffer {
			ms.corruptible(from, buffer)
		}
	}
}

func (ms *markings) corruptible(from origin, buffer uint64) {
	ms.emit(from, aggregator.Event{Kind: aggregator.MarkedCorruptible, Buffer: buffer})
}

// marksMissed handles that marks of unknown processes were lost. It forgets all scopes, so later allocations are in
// none: rather call a buffer unsafe that is not than the reverse.
func (ms *markings) marksMissed(span) {
	for _, p := range ms.processes {
		p.marks.doubt()
	}
	ms.raiseOnAll(exact.ReasonTracesMissed)
}

// doubt forgets all scopes.
func (m *marks) doubt() {
	if m != nil {
		clear(m.scopes)
		clear(m.marking)
	}
}

// track notes a buffer's unique id. It reports whether the other buffers' are still known.
func (m *marks) track(buffer, id uint64) bool {
	m.forget(buffer)
	if id == 0 {
		return true
	}
	full := len(m.buffers) >= maxTracked
	if full {
		clear(m.buffers)
		clear(m.ids)
	}
	m.ids[buffer], m.buffers[id] = id, buffer
	return !full
}

// forget drops a freed buffer.
func (m *marks) forget(buffer uint64) {
	if m == nil {
		return
	}
	if id, ok := m.ids[buffer]; ok {
		delete(m.ids, buffer)
		delete(m.buffers, id)
	}
}
