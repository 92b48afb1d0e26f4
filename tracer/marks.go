package tracer

import (
	"slices"

	"tt-memtrace/aggregator"
	"tt-memtrace/bpf"
)

// marks is what a process says of its buffers to the runtime's own tracking of allocations
// under traces: which of them a replay may overwrite. The runtime passes it on only while it
// tracks (TT_METAL_TRACE_ALLOC_TRACKING).
type marks struct {
	// scopes by thread, the innermost last: the allocators whose buffers are marked.
	scopes map[uint32][][]uint64
	// marking is the buffer that a thread allocates in such a scope.
	marking map[uint32]uint64
	// ids are the unique ids of tracked buffers, buffers has the reverse. An id without its
	// buffer's in ids is of a buffer that is gone.
	ids, buffers map[uint64]uint64
}

// maxMarkingThreads, maxScopes of a thread, and maxTracked buffers bound the memory that a
// process can make this one use. What is beyond is not marked.
const (
	maxMarkingThreads = 4096
	maxScopes         = 64
	maxTracked        = 1 << 17
)

// handleMark handles what the runtime's tracking does.
func (r *run) handleMark(from origin, e *bpf.MemtraceTtMark) {
	m := r.marks[from.pid]
	if m == nil {
		m = &marks{scopes: map[uint32][][]uint64{}, marking: map[uint32]uint64{}, ids: map[uint64]uint64{}, buffers: map[uint64]uint64{}}
		r.marks[from.pid] = m
	}
	allocators := e.Allocators[:min(int(e.Count), len(e.Allocators))]
	scopes := m.scopes[from.tid]
	switch bpf.MemtraceTtMarkStep(e.Step) {
	case bpf.MemtraceTtMarkStepTT_MARK_SCOPE_BEGINS:
		if _, known := m.scopes[from.tid]; (known || len(m.scopes) < maxMarkingThreads) && len(scopes) < maxScopes {
			m.scopes[from.tid] = append(scopes, slices.Clone(allocators))
		}
	case bpf.MemtraceTtMarkStepTT_MARK_SCOPE_ENDS:
		if len(scopes) > 1 {
			m.scopes[from.tid] = scopes[:len(scopes)-1]
		} else {
			delete(m.scopes, from.tid) // or it began before tracing did
		}
	case bpf.MemtraceTtMarkStepTT_MARK_TRACKED:
		m.track(e.Object, e.Unique)
		if len(allocators) == 1 && slices.ContainsFunc(scopes, func(s []uint64) bool { return slices.Contains(s, allocators[0]) }) {
			// Its allocation is the next on this thread or, by another way, was the last.
			m.marking[from.tid] = e.Object
			r.corruptible(from, e.Object)
		}
	case bpf.MemtraceTtMarkStepTT_MARK_ACKNOWLEDGED:
		if buffer, ok := m.buffers[e.Unique]; ok && m.ids[buffer] == e.Unique {
			r.corruptible(from, buffer)
		}
	}
}

// markAllocated marks a buffer that was allocated, if that was in a scope.
func (r *run) markAllocated(from origin, buffer uint64) {
	m := r.marks[from.pid]
	if m == nil {
		return
	}
	if marking, ok := m.marking[from.tid]; ok {
		delete(m.marking, from.tid)
		if marking == buffer {
			r.corruptible(from, buffer)
		}
	}
}

func (r *run) corruptible(from origin, buffer uint64) {
	r.emit(aggregator.Event{Kind: aggregator.MarkedCorruptible, PID: from.pid, TID: from.tid, Time: from.time, Buffer: buffer})
}

// marksMissed: marks of any process were lost. It is rather called unsafe what is not than the
// reverse: what is allocated from now on is in no scope.
func (r *run) marksMissed() {
	for _, m := range r.marks {
		m.doubt()
	}
	r.raiseOnAll(aggregator.ReasonTracesMissed)
}

// doubt forgets which scopes there are.
func (m *marks) doubt() {
	if m != nil {
		clear(m.scopes)
		clear(m.marking)
	}
}

func (m *marks) track(buffer, id uint64) {
	m.forget(buffer)
	if id == 0 {
		return
	}
	if len(m.buffers) >= maxTracked {
		clear(m.buffers)
		clear(m.ids)
	}
	m.ids[buffer], m.buffers[id] = id, buffer
}

// forget drops a buffer that is freed.
func (m *marks) forget(buffer uint64) {
	if m == nil {
		return
	}
	if id, ok := m.ids[buffer]; ok {
		delete(m.ids, buffer)
		delete(m.buffers, id)
	}
}
