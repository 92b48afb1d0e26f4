package tracer

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"tt-memtrace/aggregator"
	"tt-memtrace/aggregator/exact"
	"tt-memtrace/internal/metal"
	"tt-memtrace/internal/proc"
	"tt-memtrace/test/fixture"
)

// Code into which the kernel puts no probes is not traced, and a reason says so.
func TestCodeWithoutProbes(t *testing.T) {
	for how, why := range map[string]string{"unseal": whyBare, "move": "moved all of its code"} {
		p := fixture.Holder(t, &fixture.LayoutB)
		fixture.Do(t, p, "map %s", fixture.Device)
		fixture.Do(t, p, "device 0 1")
		fixture.Do(t, p, "%s %s", how, fixture.LibraryOf(t, fixture.LayoutB))
		late := start(t, Options{PIDs: []uint32{p.PID}})
		s, _ := late.lookup(p.PID)
		if !slices.ContainsFunc(append(s.Reasons, late.snapshot().Reasons...), func(r aggregator.Reason) bool {
			return r.PID == p.PID && r.Code == exact.ReasonNotTraced && strings.Contains(r.Detail, why)
		}) {
			t.Errorf("%s: %+v, and of all %+v", how, s.Reasons, late.snapshot().Reasons)
		}
		late.stop()
		p.Kill()
	}
}

// A process is marked with the next comparison if a debugger writes over a probe what was there before.
func TestProbeThatADebuggerTakesOut(t *testing.T) {
	p := fixture.User(t, fixture.LayoutB)
	tr := start(t, Options{PIDs: []uint32{p.PID}})
	fixture.Do(t, p, "device 0 1")
	if s := tr.process(p.PID); !s.Exact() {
		t.Fatalf("it is marked with %+v", s.Reasons)
	}
	path := fixture.LibraryOf(t, fixture.LayoutB)
	mapped, err := proc.Loaded(p.PID, func(name string, _ proc.FileID) bool { return name == path })
	if err != nil || len(mapped) != 1 {
		t.Fatal(mapped, err)
	}
	lib, err := metal.OpenLibrary(path)
	if err != nil {
		t.Fatal(err)
	}
	defer lib.Close()
	cover, err := lib.Cover()
	if err != nil {
		t.Fatal(err)
	}
	memory, err := os.OpenFile(fmt.Sprintf("/proc/%d/mem", p.PID), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer memory.Close()
	at, was := cover.Probes[0].Address+cover.Probes[0].Skipped, make([]byte, 1)
	if !lib.ReadCode(was, at) {
		t.Fatalf("there is no code at %#x", at)
	}
	if _, err := memory.WriteAt(was, int64(lib.LoadedAt(mapped[0])+at)); err != nil {
		t.Fatal(err)
	}
	tr.tracer.Reconcile(p.PID)
	tr.await("it is marked", func() bool {
		s, _ := tr.lookup(p.PID)
		return slices.ContainsFunc(s.Reasons, func(r aggregator.Reason) bool { return r.Code == exact.ReasonNotTraced && r.Detail == whyTakenOut })
	})
}
