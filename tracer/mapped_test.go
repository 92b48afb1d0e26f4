package tracer

import (
	"os"
	"slices"
	"testing"

	"tt-memtrace/aggregator"
	"tt-memtrace/aggregator/exact"
	"tt-memtrace/internal/watch"
	"tt-memtrace/test/fixture"
)

// A process that also maps its library to read it, below what it runs of it, is traced as any other: profilers map
// libraries so for the symbols, and the kernel places that where it likes.
func TestALibraryThatIsAlsoRead(t *testing.T) {
	t.Parallel()
	path := fixture.LibraryOf(t, fixture.LayoutB)
	early := start(t, Options{Follow: uint32(os.Getpid())})
	p := fixture.User(t, fixture.LayoutB)
	fixture.Do(t, p, "device 0 1")
	fixture.Do(t, p, "alloc 100 0 0 0 4096 1024 64")
	early.awaitProcess(p.PID)
	fixture.Do(t, p, "read %s", path)
	early.tracer.attacher.look(p.PID, watch.NotSeen) // again, as when it maps more code
	late := start(t, Options{PIDs: []uint32{p.PID}})
	holds := func(buffers uint64) {
		t.Helper()
		for what, tr := range map[string]*trace{"early": early, "late": late} {
			s := tr.compared(p.PID)
			if !s.Exact() || s.Buffers.WithoutBound() != buffers || len(s.Chips) != 1 || s.Agreement.Repaired != 0 {
				t.Errorf("%s: %d buffers, chips %+v, %+v, marked with %+v", what, s.Buffers, s.Chips, s.Agreement, s.Reasons)
			}
		}
	}
	holds(1)
	fixture.Do(t, p, "alloc 100 0 0 0 4096 1024 65536")
	holds(2)
}

// A process that has loaded one file twice is read by the copy that it uses, and marked where it uses both.
func TestALibraryThatIsLoadedTwice(t *testing.T) {
	t.Parallel()
	const first, second = "", "beside "
	path := fixture.LibraryOf(t, fixture.LayoutB)
	for used, other := range map[string]string{first: second, second: first} {
		early := start(t, Options{Follow: uint32(os.Getpid())})
		p := fixture.Launch(t)
		fixture.Do(t, p, "open %s", path)
		fixture.Do(t, p, "twice %s", path)
		fixture.Do(t, p, "%sdevice 0 1", used)
		fixture.Do(t, p, "%salloc 100 0 0 0 4096 1024 64", used)
		early.awaitProcess(p.PID)
		late := start(t, Options{PIDs: []uint32{p.PID}})
		for what, tr := range map[string]*trace{"early": early, "late": late} {
			s := tr.compared(p.PID)
			if !s.Exact() || !s.Buffers.Is(1) || !s.Memory[aggregator.DRAM].Requested.Is(4096) || len(s.Chips) != 1 {
				t.Errorf("%s%s: %d buffers, chips %+v, marked with %+v", used, what, s.Buffers, s.Chips, s.Reasons)
			}
		}
		fixture.Do(t, p, "%sdevice 1 2", other)
		fixture.Do(t, p, "%salloc 100 1 0 0 8192 1024 64", other)
		for what, tr := range map[string]*trace{"early": early, "late": late, "later": start(t, Options{PIDs: []uint32{p.PID}})} {
			s := tr.process(p.PID)
			if !slices.ContainsFunc(s.Reasons, func(r aggregator.Reason) bool { return r.Code == exact.ReasonNotTraced && r.Detail == whyTwice }) {
				t.Errorf("%sboth, %s: %d buffers, marked with %+v", used, what, s.Buffers, s.Reasons)
			}
			tr.stop()
		}
		p.Kill()
	}
}

// A library with two segments of code, each as far from the other as not in the file, is loaded once.
func TestALibraryWithTwoSegmentsOfCode(t *testing.T) {
	t.Parallel()
	b := fixture.WithFlags("-DLAYOUT_B -Wl,--section-start=.fini=0x8000000")
	early := start(t, Options{Follow: uint32(os.Getpid())})
	p := fixture.User(t, b)
	fixture.Do(t, p, "device 0 1")
	fixture.Do(t, p, "alloc 100 0 0 0 4096 1024 64")
	early.awaitProcess(p.PID)
	late := start(t, Options{PIDs: []uint32{p.PID}})
	for what, tr := range map[string]*trace{"early": early, "late": late} {
		if s := tr.process(p.PID); !s.Exact() || !s.Buffers.Is(1) {
			t.Errorf("%s: %d buffers, marked with %+v", what, s.Buffers, s.Reasons)
		}
	}
}
