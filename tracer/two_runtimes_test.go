package tracer

import (
	"os"
	"slices"
	"testing"

	"tt-memtrace/aggregator"
	"tt-memtrace/aggregator/exact"
	"tt-memtrace/test/fixture"
)

// A process that has two builds of the runtime is read by the one that it uses, whichever it loaded first. Where it
// uses both it is marked: that it holds only what one of them shows is not said.
func TestTwoBuildsInOneProcess(t *testing.T) {
	t.Parallel()
	const first, second = "", "beside "
	for _, used := range []string{first, second} {
		early := start(t, Options{Follow: uint32(os.Getpid())})
		p := fixture.User(t, fixture.LayoutB)
		fixture.Do(t, p, "second %s", fixture.LibraryOf(t, fixture.LayoutA))
		early.await("both builds have probes", func() bool {
			early.tracer.attacher.mu.Lock()
			defer early.tracer.attacher.mu.Unlock()
			return early.tracer.attacher.libraries.builds() == 2
		})
		early.awaitProcess(p.PID)
		fixture.Do(t, p, "%sdevice 0 1", used)
		fixture.Do(t, p, "%salloc 100 0 0 0 4096 1024 64", used)
		holds := func(tr *trace, what string) {
			t.Helper()
			if s := tr.process(p.PID); !s.Exact() || !s.Buffers.Is(1) || !s.Memory[aggregator.DRAM].Requested.Is(4096) || len(s.Chips) != 1 {
				t.Errorf("%s%s: %d buffers, chips %+v, marked with %+v", used, what, s.Buffers, s.Chips, s.Reasons)
			}
		}
		holds(early, "early")
		if s := early.compared(p.PID); !s.Exact() || s.Agreement.Repaired != 0 {
			t.Errorf("%scompared: %+v, marked with %+v", used, s.Agreement, s.Reasons)
		}
		late := start(t, Options{PIDs: []uint32{p.PID}})
		holds(late, "late")
		other := second
		if used == second {
			other = first
		}
		fixture.Do(t, p, "%sdevice 1 2", other)
		fixture.Do(t, p, "%salloc 100 1 0 0 8192 1024 64", other)
		for what, tr := range map[string]*trace{"early": early, "late": late, "later": start(t, Options{PIDs: []uint32{p.PID}})} {
			s := tr.process(p.PID)
			if !slices.ContainsFunc(s.Reasons, func(r aggregator.Reason) bool { return r.Code == exact.ReasonNotTraced && r.Detail == whyTwice }) {
				t.Errorf("%sboth, %s: %d buffers, marked with %+v", used, what, s.Buffers, s.Reasons)
			}
			if what != "later" && !s.Buffers.Is(2) {
				t.Errorf("%sboth, %s: %d buffers, which events told", used, what, s.Buffers)
			}
			tr.stop()
		}
		p.Kill()
	}
}

// A reading by one build does not take out what the other one holds.
func TestTwoBuildsAreNotCompared(t *testing.T) {
	for why, want := range map[string]int{whyTwice: 0, "": 1} {
		r, p, rd := beingRead(t, false)
		p.marked, rd.buffersOnly = why, true
		if r.comparisons.merge(rd); r.count(aggregator.Scanned) != want || p.reconciliation.now != nil {
			t.Errorf("%q: compared %d times", why, r.count(aggregator.Scanned))
		}
	}
}
