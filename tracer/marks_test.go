package tracer

import (
	"slices"
	"testing"

	"tt-memtrace/aggregator"
	"tt-memtrace/aggregator/exact"
	"tt-memtrace/bpf"
	"tt-memtrace/test/fixture"
)

// What a process marks is marked for its thread and allocator alone, by ids of buffers that are
// still there; what is lost unmarks rather than marks.
func TestMarks(t *testing.T) {
	r := runOf(newAttacher(&env{}), nil)
	mark := func(tid uint32, step bpf.MemtraceTtMarkStep, object, unique uint64, allocators ...uint64) {
		e := &bpf.MemtraceTtMark{Object: object, Unique: unique, Step: uint32(step), Count: uint32(len(allocators))}
		copy(e.Allocators[:], allocators)
		r.markings.handleMark(record{origin: origin{pid: 1, tid: tid}}, e)
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
	r.markings.markAllocated(origin{pid: 1, tid: 1}, 10)
	mark(1, tracked, 11, 2, 73)
	r.markings.markAllocated(origin{pid: 1, tid: 1}, 11)
	mark(2, tracked, 12, 3, 71)
	r.markings.markAllocated(origin{pid: 1, tid: 2}, 12)
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
	r.processes.get(1).marks.forget(12)
	mark(1, tracked, 15, 7, 70) // another buffer at the address of 15
	mark(1, known, 0, 3)
	mark(1, known, 0, 6)
	expect("of buffers that are gone")
	mark(1, known, 0, 7)
	expect("of the one that is there", 15)

	mark(1, begins, 0, 0, 70)
	r.processes.get(1).marks.doubt()
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
	if m := r.processes.get(1).marks; len(m.scopes) > maxMarkingThreads || len(m.scopes[1]) > maxScopes || len(m.ids) > maxTracked || len(m.ids) != len(m.buffers) {
		t.Errorf("%d threads, %d scopes, %d and %d buffers are kept", len(m.scopes), len(m.scopes[1]), len(m.ids), len(m.buffers))
	}
}

// What is not marked because of a limit may be overwritten, or may not: the process is marked.
func TestLimitsOfMarks(t *testing.T) {
	begins := &bpf.MemtraceTtMark{Step: uint32(bpf.MemtraceTtMarkStepTT_MARK_SCOPE_BEGINS), Count: 1}
	for what, over := range map[string]func(r *run){
		"scopes of a thread": func(r *run) {
			for range maxScopes + 1 {
				r.markings.handleMark(record{origin: origin{pid: 1, tid: 1}}, begins)
			}
		},
		"threads": func(r *run) {
			for tid := range uint32(maxMarkingThreads + 1) {
				r.markings.handleMark(record{origin: origin{pid: 1, tid: tid}}, begins)
			}
		},
		"tracked buffers": func(r *run) {
			for i := range uint64(maxTracked + 1) {
				r.markings.handleMark(record{origin: origin{pid: 1}}, &bpf.MemtraceTtMark{Step: uint32(bpf.MemtraceTtMarkStepTT_MARK_TRACKED), Object: 1<<32 + i, Unique: 1 + i})
			}
		},
	} {
		r := runOf(newAttacher(&env{}), nil)
		over(r)
		if len(r.batch) != 1 || r.batch[0].Reason == nil || r.batch[0].Reason.Code != exact.ReasonTracesMissed {
			t.Errorf("%s: %+v", what, r.batch)
		}
	}
}

// A record has room for some of a scope's allocators only.
func TestScopeOfManyAllocators(t *testing.T) {
	p := fixture.User(t, fixture.LayoutB)
	tr := start(t, Options{PIDs: []uint32{p.PID}})
	fixture.Do(t, p, "device 0 1")
	fixture.Do(t, p, "scope 0")
	if s := tr.process(p.PID); missesTraces(s) {
		t.Errorf("with one allocator: %+v", s.Reasons)
	}
	fixture.Do(t, p, "wide_scope 0")
	if s := tr.process(p.PID); !missesTraces(s) {
		t.Errorf("with nine: %+v", s.Reasons)
	}
}
