package tracer

import (
	"slices"
	"testing"

	"tt-memtrace/aggregator"
	"tt-memtrace/test/fixture"
)

// Stacks are switched on and off while a process is traced.
func TestStacksAreSwitched(t *testing.T) {
	p := fixture.User(t, fixture.LayoutB)
	tr := start(t, Options{PIDs: []uint32{p.PID}, Stacks: true, StacksPaused: true})
	fixture.Do(t, p, "device 0 5")
	next := 100
	allocated := func() *aggregator.Stack {
		fixture.Do(t, p, "alloc %d 0 0 0 4096 1024 64", next)
		next++
		tr.sync()
		tr.mu.Lock()
		defer tr.mu.Unlock()
		return tr.allocated.Stack
	}
	named := func(s *aggregator.Stack) bool {
		return s != nil && slices.ContainsFunc(s.Frames, func(f aggregator.Frame) bool { return f.Function == "main" })
	}
	for _, on := range []bool{false, true, false, true} {
		tr.tracer.SendStacks(on)
		tr.sync()
		if s := allocated(); tr.tracer.SendsStacks() != on || named(s) != on || !on && s != nil {
			t.Errorf("stacks on: %v, and the allocation has %+v", on, s)
		}
	}
}
