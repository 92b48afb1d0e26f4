package tracer

import (
	"slices"
	"testing"

	"tt-memtrace/aggregator/exact"
	"tt-memtrace/test/fixture"
)

// If a library does not show which chips of a mesh a program is for, it is counted on all of
// them, and the process is marked.
func TestProgramsOfChipsThatAreNotKnown(t *testing.T) {
	t.Parallel()
	p := fixture.User(t, fixture.LayoutB)
	tr := start(t, Options{PIDs: []uint32{p.PID}})
	fixture.Do(t, p, "mesh 0 1 2")
	fixture.Do(t, p, "alloc 100 0 0 0 4096 1024 64")
	// One that is in no workload is on the whole mesh.
	alone := fixture.Do(t, p, "program")
	fixture.Do(t, p, "place %s 0 0 1024", alone)
	if s := tr.process(p.PID); !s.Exact() || !s.CB.Logical.Is(2*4*1024) {
		t.Errorf("%d bytes, %+v", s.CB.Logical, s.Reasons)
	}
	workload, program := fixture.Do(t, p, "workload"), fixture.Do(t, p, "program")
	fixture.Do(t, p, "join %s %s", workload, program)
	fixture.Do(t, p, "place %s 0 0 4096", program)
	s := tr.process(p.PID)
	if !s.CB.Logical.Is(2*2*4*1024) || !slices.Contains(tr.reasons(p.PID), exact.ReasonProgramChipsUnknown) {
		t.Errorf("%d bytes, %+v", s.CB.Logical, s.Reasons)
	}
	if c := tr.snapshot().Chips; len(c) != 2 || c[0].Exact() || c[1].Exact() {
		t.Errorf("chips %+v", c)
	}
	fixture.Do(t, p, "unload %s", program)
	if s := tr.process(p.PID); !s.Exact() || !s.CB.Logical.Is(2*4*1024) {
		t.Errorf("after its end %d bytes, %+v", s.CB.Logical, s.Reasons)
	}
}
