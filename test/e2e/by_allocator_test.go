package e2e

import (
	"os"
	"slices"
	"testing"

	"tt-memtrace/aggregator"
	"tt-memtrace/internal/metal"
	"tt-memtrace/test/rig"
	"tt-memtrace/tracer"
)

// A runtime whose graph tracker does not see buffers has the same numbers, from its
// allocator, also after allocations that failed.
func TestBuffersSeenByTheAllocator(t *testing.T) {
	r := installed(t)
	points := metal.Points
	t.Cleanup(func() { metal.Points = points })
	metal.Points = slices.Clone(points)
	for i := range metal.Points {
		if metal.Points[i].Way == metal.ByGraphTracker {
			metal.Points[i].Symbols = []string{"_ZN2tt8tt_metal12GraphTracker4noneEv"}
		}
	}
	allocations := 0
	tr := start(t, tracer.Options{Follow: uint32(os.Getpid())}, func(events []aggregator.Event, apply func()) {
		for _, e := range events {
			if e.Kind == aggregator.Alloc {
				allocations++
			}
		}
		apply()
	})
	w := workload(t, r, rig.Options{Cluster: "n300", Args: []string{"--steps", "300", "--threads", "2"}})
	tr.compare(w.PID(), next(t, w, rig.EventRest))
	send(t, w, "oom")
	if oom := next(t, w, rig.EventOOM); oom.Error == "" {
		t.Fatal("no error")
	}
	send(t, w, "rest")
	rests, buffers := tr.toTheEnd(w)
	t.Logf("%d rest points, %d buffers compared, %d allocations", rests, buffers, allocations)
	if report, err := metal.Examine(r.Library); err != nil || report.Coverage.Way != metal.ByAllocator || buffers < 100 {
		t.Errorf("seen by %v, %d allocations, %v", report.Coverage.Way, allocations, err)
	}
}
