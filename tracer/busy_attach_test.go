package tracer

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"tt-memtrace/aggregator"
	"tt-memtrace/aggregator/exact"
	"tt-memtrace/test/fixture"
)

// A process that allocates all the time while probes are put in, one after the other: ends are seen before what makes
// things, and before the process is announced. Nothing of that is an end that nobody knows, and at no time is it exact
// without what it held.
func TestAttachedWhileItAllocates(t *testing.T) {
	t.Parallel()
	const live = 400
	tr := start(t, Options{Follow: uint32(os.Getpid())})
	for range 4 {
		p := fixture.Launch(t)
		dir := t.TempDir()
		library, file := filepath.Join(dir, "libtt_metal.so"), filepath.Join(dir, "lives")
		if err := os.WriteFile(library, fixture.Read(t, fixture.LibraryOf(t, fixture.LayoutB)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, make([]byte, 16<<20), 0o600); err != nil {
			t.Fatal(err)
		}
		tr.tracer.attacher.mu.Lock() // nothing is attached to
		fixture.Do(t, p, "open %s", library)
		fixture.Do(t, p, "device 0 1")
		fixture.Do(t, p, "slide 0 %d %d %s", live, time.Millisecond.Nanoseconds(), file)
		tr.tracer.attacher.mu.Unlock()
		tr.await("it is read", func() bool {
			s, known := tr.lookup(p.PID)
			if known && s.Exact() && !s.Late && s.Buffers.WithoutBound() < live {
				t.Errorf("%d buffers of %d, and nothing is marked: %+v", s.Buffers, live, s.Agreement)
			}
			// Nothing is found where all that it had then is freed when it is read.
			return known && !s.Late && s.Agreement.Comparisons > 0
		})
		fixture.Do(t, p, "end_slide")
		allEnded(t, tr.process(p.PID))
		p.Kill()
	}
}

// The same with a tracer that starts then.
func TestStartedWhileItAllocates(t *testing.T) {
	t.Parallel()
	const live = 4000
	file := filepath.Join(t.TempDir(), "lives")
	if err := os.WriteFile(file, make([]byte, 16<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	for range 4 {
		p := fixture.User(t, fixture.LayoutB)
		fixture.Do(t, p, "device 0 1")
		fixture.Do(t, p, "slide 0 %d %d %s", live, (50 * time.Microsecond).Nanoseconds(), file)
		tr := start(t, Options{PIDs: []uint32{p.PID}})
		fixture.Do(t, p, "end_slide")
		tr.await("it is read", func() bool { return !tr.process(p.PID).Late })
		allEnded(t, tr.process(p.PID))
		p.Kill()
		tr.stop()
	}
}

// And of many processes: events of those that are not looked at yet come while others are read.
func TestStartedWhileManyAllocate(t *testing.T) {
	const live, count = 2000, 4
	file := filepath.Join(t.TempDir(), "lives")
	if err := os.WriteFile(file, make([]byte, 16<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, all := range []bool{true, false} {
		var processes []*fixture.Process
		var pids []uint32
		for range count {
			p := fixture.User(t, fixture.LayoutB)
			fixture.Do(t, p, "device 0 1")
			fixture.Do(t, p, "slide 0 %d %d %s", live, (200 * time.Microsecond).Nanoseconds(), file)
			processes, pids = append(processes, p), append(pids, p.PID)
		}
		if all {
			pids = nil
		}
		tr := start(t, Options{PIDs: pids})
		for _, p := range processes {
			s, known := tr.lookup(p.PID)
			if !known || s.Exact() && !s.Late && s.Buffers.WithoutBound() < live {
				t.Errorf("ready, all %v, process %d: %+v", all, p.PID, s)
			}
			fixture.Do(t, p, "end_slide")
		}
		for _, p := range processes {
			tr.await("it is read", func() bool {
				s := tr.process(p.PID)
				return !s.Late && !slices.ContainsFunc(s.Reasons, func(r aggregator.Reason) bool { return r.Code == exact.ReasonEventsUnread })
			})
			allEnded(t, tr.process(p.PID))
			p.Kill()
		}
		tr.stop()
	}
}

// allEnded fails unless each buffer of a process was known when it was freed. What they reserved is not known before
// the next comparison.
func allEnded(t *testing.T, s aggregator.ProcessSnapshot) {
	t.Helper()
	if s.Buffers.Some() || s.Counters.UnmatchedFrees+s.Counters.Replaced > 0 ||
		slices.ContainsFunc(s.Reasons, func(r aggregator.Reason) bool { return r.Code != exact.ReasonReservedUnknown }) {
		t.Errorf("%d buffers, %+v, %+v, marked with %+v", s.Buffers, s.Counters, s.Agreement, s.Reasons)
	}
}
