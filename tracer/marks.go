package tracer

import (
	"slices"

	"tt-memtrace/aggregator"
	"tt-memtrace/aggregator/exact"
	"tt-memtrace/bpf"
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
