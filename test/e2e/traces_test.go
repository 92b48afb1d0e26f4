package e2e

import (
	"cmp"
	"encoding/json"
	"os"
	"slices"
	"testing"

	"tt-memtrace/aggregator"
	"tt-memtrace/aggregator/exact"
	"tt-memtrace/internal/proc"
	"tt-memtrace/test/rig"
	"tt-memtrace/tracer"
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
			if h := p.HostMemory.Bytes().WithoutBound(); !ok || h == 0 || max(h, resident)-min(h, resident) > resident/10 {
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

// Traces that are kept until the device closes are freed twice: with the allocator's buffers, and by their destructors.
// Tracers from the start and late ones stay exact.
func TestTracesKeptUntilTheDeviceCloses(t *testing.T) {
	r := installed(t)
	early := start(t, tracer.Options{Follow: uint32(os.Getpid())})
	for _, cluster := range []string{"n150", "t3k"} {
		w := workload(t, r, rig.Options{Cluster: cluster, Script: rig.Traces, Args: []string{"--pause"}})
		next(t, w, "open")
		send(t, w, "go")
		next(t, w, "captured")
		late := start(t, tracer.Options{PIDs: []uint32{uint32(w.PID())}})
		late.sync()
		send(t, w, "go")
		next(t, w, "allocated")
		send(t, w, "keep")
		next(t, w, "kept")
		for name, tr := range map[string]*trace{"early": early, "late": late} {
			// The next comparison after two is ten seconds away, so none is under way as the device closes.
			if !tr.becomes(func() bool { p, _ := tr.process(w.PID()); return p.Exact() && p.Agreement.Comparisons >= 2 }) {
				p, _ := tr.process(w.PID())
				t.Fatalf("%s, %s: not exact while it runs: %v, %+v", name, cluster, p.Reasons, p.Agreement)
			}
		}
		send(t, w, "close")
		next(t, w, rig.EventClosed)
		for name, tr := range map[string]*trace{"early": early, "late": late} {
			tr.nothing(w.PID())
			if p, ok := tr.process(w.PID()); !ok || !p.Exact() || p.Counters.UnmatchedFrees != 0 || p.Agreement.Repaired != 0 {
				t.Errorf("%s, %s: %v, reasons %v, %+v, %+v", name, cluster, ok, p.Reasons, p.Counters, p.Agreement)
			}
		}
		late.stop()
		send(t, w, "go")
		if err := w.Wait(patience); err != nil {
			t.Fatal(err)
		}
	}
}

// The accounts equal the allocator's blocks after all buffers of a device were freed in one call, even if the second free of
// an old buffer releases the block of a new one.
func TestAllBuffersFreedAtOnce(t *testing.T) {
	r := installed(t)
	tr := start(t, tracer.Options{Follow: uint32(os.Getpid())})
	w := workload(t, r, rig.Options{Cluster: "n300", Script: rig.FreedAtOnce})
	for rests := 0; ; {
		m, err := w.Next(patience)
		if err != nil {
			t.Fatal(err)
		}
		if m.Event == rig.EventClosed {
			if rests != 10 {
				t.Errorf("%d rest points", rests)
			}
			break
		}
		if m.Event != rig.EventRest {
			continue
		}
		rests++
		var said struct{ Blocks [][2]uint64 }
		if err := json.Unmarshal([]byte(m.Text), &said); err != nil {
			t.Fatal(err)
		}
		tr.sync()
		var has [][2]uint64
		for _, b := range tr.buffers(w.PID()) {
			has = append(has, [2]uint64{b.Address, b.PerBank})
		}
		// The runtime counts from the beginning of the allocator's part.
		slices.SortFunc(has, func(x, y [2]uint64) int { return cmp.Compare(x[0], y[0]) })
		same := len(has) == len(said.Blocks)
		for i := range has {
			same = same && has[i][0]-said.Blocks[i][0] == has[0][0]-said.Blocks[0][0] && has[i][1] == said.Blocks[i][1]
		}
		p, _ := tr.process(w.PID())
		if !same || !p.Exact() || p.Counters.UnmatchedFrees != 0 {
			t.Fatalf("rest point %d: the accounts have %v, the allocator %v; %+v, reasons %v", rests, has, said.Blocks, p.Counters, p.Reasons)
		}
		send(t, w, "go")
	}
	tr.nothing(w.PID())
}

// A late tracer finds out whether a buffer from before can be overwritten by a trace from before: none if no trace was
// captured or all buffers are older, otherwise this is unknown, and marked. What is allocated later counts.
func TestUnsafeAfterALateAttach(t *testing.T) {
	r := installed(t)
	if !r.TracksUnsafe() {
		t.Skip("this release does not track what is unsafe")
	}
	w := workload(t, r, rig.Options{Cluster: "n300", Script: rig.Traces, Args: []string{"--pause"}, Env: []string{"TT_METAL_TRACE_ALLOC_TRACKING=1"}})
	pid := w.PID()
	before := func(tr *trace) bool {
		p, _ := tr.process(pid)
		return slices.ContainsFunc(p.Reasons, func(r aggregator.Reason) bool { return r.Code == exact.ReasonTracesBeforeAttach })
	}
	found := map[string]int{}
	attach := func(when string) *trace {
		late := startWith(t, tracer.Options{PIDs: []uint32{uint32(pid)}}, func(tr *trace) {
			tr.accounts.OnUnsafe = func(aggregator.Change) { found[when]++ }
		})
		late.sync()
		return late
	}
	next(t, w, "open")
	opened := attach("open")
	send(t, w, "go")
	next(t, w, "captured")
	captured := attach("captured")
	send(t, w, "go")
	var said struct{ Unsafe *int }
	if err := json.Unmarshal([]byte(next(t, w, "allocated").Text), &said); err != nil || said.Unsafe == nil || *said.Unsafe == 0 {
		t.Fatalf("%v, %+v", err, said)
	}
	allocated := attach("allocated")
	for when, c := range map[string]struct {
		*trace
		unknown bool
	}{"open": {opened, false}, "captured": {captured, false}, "allocated": {allocated, true}} {
		p, _ := c.process(pid)
		if before(c.trace) != c.unknown || p.HidesUnsafe() != c.unknown || p.Unsafe.Buffers.Some() {
			t.Errorf("attached at %s: reasons %v, %+v", when, p.Reasons, p.Unsafe)
		}
	}
	send(t, w, "replay")
	if w.Wait(patience) == nil {
		t.Log("the replay did not crash")
	}
	for when, want := range map[string]int{"open": *said.Unsafe, "captured": *said.Unsafe, "allocated": 0} {
		c := map[string]*trace{"open": opened, "captured": captured, "allocated": allocated}[when]
		c.awaitExit(pid)
		if found[when] != want {
			t.Errorf("attached at %s: %d are unsafe, want %d", when, found[when], want)
		}
	}
}
