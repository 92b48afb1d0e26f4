package tracer

import (
	"slices"
	"testing"

	"tt-memtrace/aggregator"
	"tt-memtrace/bpf"
)

// What a process marks is marked for its thread and allocator alone, by ids of buffers that are
// still there; what is lost unmarks rather than marks.
func TestMarks(t *testing.T) {
	r := &run{marks: map[uint32]*marks{}}
	mark := func(tid uint32, step bpf.MemtraceTtMarkStep, object, unique uint64, allocators ...uint64) {
		e := &bpf.MemtraceTtMark{Object: object, Unique: unique, Step: uint32(step), Count: uint32(len(allocators))}
		copy(e.Allocators[:], allocators)
		r.handleMark(origin{pid: 1, tid: tid}, e)
	}
	const (
		tracked = bpf.MemtraceTtMarkStepTT_MARK_TRACKED
		begins  = bpf.MemtraceTtMarkStepTT_MARK_SCOPE_BEGINS
		ends    = bpf.MemtraceTtMarkStepTT_MARK_SCOPE_ENDS
		known   = bpf.MemtraceTtMarkStepTT_MARK_ACKNOWLEDGED
	)
	expect := func(what string, want ...uint64) {
		t.Helper()
		var got []uint64
		for _, e := range r.batch {
			if e.Kind == aggregator.MarkedCorruptible && !slices.Contains(got, e.Buffer) {
				got = append(got, e.Buffer)
			}
		}
		if r.batch = nil; !slices.Equal(got, want) {
			t.Errorf("%s: %v, not %v, are marked", what, got, want)
		}
	}
	mark(1, begins, 0, 0, 70, 71)
	mark(1, begins, 0, 0, 72)
	mark(1, tracked, 10, 1, 71)
	r.markAllocated(origin{pid: 1, tid: 1}, 10)
	mark(1, tracked, 11, 2, 73)
	r.markAllocated(origin{pid: 1, tid: 1}, 11)
	mark(2, tracked, 12, 3, 71)
	r.markAllocated(origin{pid: 1, tid: 2}, 12)
	expect("in scopes", 10)
	mark(1, ends, 0, 0)
	mark(1, tracked, 13, 4, 72)
	mark(1, tracked, 14, 5, 70)
	expect("after the inner one", 14)
	mark(1, ends, 0, 0)
	mark(1, ends, 0, 0)
	mark(1, tracked, 15, 6, 70)
	expect("after both")

	mark(1, known, 0, 2)
	mark(1, known, 0, 99)
	expect("acknowledged", 11)
	r.marks[1].forget(12)
	mark(1, tracked, 15, 7, 70) // another buffer at the address of 15
	mark(1, known, 0, 3)
	mark(1, known, 0, 6)
	expect("of buffers that are gone")
	mark(1, known, 0, 7)
	expect("of the one that is there", 15)

	mark(1, begins, 0, 0, 70)
	r.marks[1].doubt()
	mark(1, tracked, 16, 8, 70)
	expect("after a loss")

	for range 2 * maxScopes {
		mark(1, begins, 0, 0, 70)
	}
	for tid := range uint32(2 * maxMarkingThreads) {
		mark(tid, begins, 0, 0, 70)
	}
	for i := range uint64(maxTracked + 10) {
		mark(1, tracked, 1<<32+i, 100+i, 1)
	}
	if m := r.marks[1]; len(m.scopes) > maxMarkingThreads || len(m.scopes[1]) > maxScopes || len(m.ids) > maxTracked || len(m.ids) != len(m.buffers) {
		t.Errorf("%d threads, %d scopes, %d and %d buffers are kept", len(m.scopes), len(m.scopes[1]), len(m.ids), len(m.buffers))
	}
}
