package e2e

import (
	"encoding/json"
	"os"
	"slices"
	"testing"

	"tt-memtrace/aggregator"
	"tt-memtrace/test/rig"
	"tt-memtrace/tracer"
	"tt-memtrace/tracer/proc"
)

// What is alive when a trace is replayed, and younger, is what the runtime's own tracking calls unsafe, without what the
// program marks as corruptible; the one that lies where the capture had a buffer is known. Mock chips crash within the replay, so that how it goes on is not tested here.
func TestUnsafeUnderATrace(t *testing.T) {
	r := installed(t)
	if !r.TracksUnsafe() {
		t.Skip("this release does not track what is unsafe")
	}
	found := map[uint64]aggregator.Unsafe{}
	tr := startWith(t, tracer.Options{Follow: uint32(os.Getpid())}, func(tr *trace) {
		tr.accounts.OnUnsafe = func(c aggregator.Change) { found[c.Buffer.Address] = c.Buffer.Unsafe }
	})
	for _, command := range []string{"replay", "release"} {
		w := workload(t, r, rig.Options{Cluster: "n150", Script: rig.Traces, Env: []string{"TT_METAL_TRACE_ALLOC_TRACKING=1"}})
		var captured struct{ Free uint64 }
		var allocated struct {
			Live, Marked []uint64
			Unsafe       *int
		}
		said := func(event string, to any) {
			if err := json.Unmarshal([]byte(next(t, w, event).Text), to); err != nil {
				t.Fatal(err)
			}
		}
		said("captured", &captured)
		said("allocated", &allocated)
		if r.MarksCorruptible() && len(allocated.Marked) != 3 {
			t.Errorf("%d buffers are marked", len(allocated.Marked))
		}
		tr.sync()
		tr.mu.Lock()
		traces := tr.accounts.Traces(uint32(w.PID()))
		tr.mu.Unlock()
		if len(traces) != 1 || traces[0].Captured == 0 || traces[0].Count != 0 || len(traces[0].Chips) != 1 || len(found) != 0 {
			t.Fatalf("before a replay: traces %+v, unsafe %+v", traces, found)
		}
		if p, _ := tr.process(w.PID()); command == "release" {
			resident, ok := proc.ResidentMemory(uint32(w.PID()))
			if h := p.HostMemory.Bytes; !ok || h == 0 || max(h, resident)-min(h, resident) > resident/10 {
				t.Errorf("%d bytes are resident, by the accounts %+v", resident, p.HostMemory)
			}
		}
		send(t, w, command)
		if command == "release" {
			next(t, w, "released")
			tr.sync()
			if traces := tr.accounts.Traces(uint32(w.PID())); len(traces) != 0 || len(found) != 0 {
				t.Errorf("after the release: traces %+v, unsafe %+v", traces, found)
			}
			continue
		}
		pid := w.PID()
		if w.Wait(patience) == nil {
			t.Log("the replay did not crash")
		}
		tr.awaitExit(pid)
		if allocated.Unsafe == nil || len(found) != *allocated.Unsafe {
			t.Errorf("%d are unsafe, by the runtime's own tracking %v", len(found), allocated.Unsafe)
		}
		for address, u := range found {
			if !slices.Contains(allocated.Live, address) || slices.Contains(allocated.Marked, address) || u.Overlaps != (address == captured.Free) {
				t.Errorf("%#x: %+v; live are %#x, the capture had %#x", address, u, allocated.Live, captured.Free)
			}
		}
		clear(found)
	}
}
