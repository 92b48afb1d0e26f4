package e2e

import (
	"cmp"
	"os"
	"strconv"
	"testing"

	"tt-memtrace/test/rig"
	"tt-memtrace/tracer"
)

// Processes that start at the same time, and one after the other, are each attached to before
// their first allocation, have the runtime's own numbers, and are gone with their end.
// TT_MEMTRACE_PROCESSES says how many.
func TestManyProcessesOfTheHost(t *testing.T) {
	r := installed(t)
	n, err := strconv.Atoi(cmp.Or(os.Getenv("TT_MEMTRACE_PROCESSES"), "3"))
	if err != nil {
		t.Fatal(err)
	}
	tr := start(t, tracer.Options{})
	// They share a chip.
	chip := uint64(0)
	begin := func() *rig.Run {
		w := workload(t, r, rig.Options{Cluster: "n150", FirstChipID: chip, Args: []string{"--steps", "25"}})
		chip = w.Chip[0]
		return w
	}
	check := func(w *rig.Run) {
		t.Helper()
		tr.compare(w.PID(), next(t, w, rig.EventRest))
		p, ok := tr.process(w.PID())
		if !ok || p.Late || p.Agreement.Found > 0 || p.Counters.UnmatchedFrees > 0 || p.Counters.Allocs != p.Counters.Frees.Add(p.Buffers) {
			t.Errorf("process %d, in the accounts: %t: %+v", w.PID(), ok, p)
		}
	}
	end := func(w *rig.Run) {
		t.Helper()
		send(t, w, "go")
		tr.toTheEnd(w)
		tr.sync()
		if p, ok := tr.process(w.PID()); ok {
			t.Errorf("process %d has ended and is in the accounts: %+v", w.PID(), p)
		}
	}
	var all []*rig.Run
	for range n {
		all = append(all, begin())
	}
	for _, w := range all {
		check(w)
	}
	for _, w := range all {
		end(w)
	}
	for range n {
		w := begin()
		check(w)
		end(w)
	}
	if c := tr.snapshot().Counters; c.Exited < uint64(2*n) || c.Lost > 0 {
		t.Errorf("%d processes, and the counters are %+v", 2*n, c)
	}
}
