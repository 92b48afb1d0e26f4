package tracer

import (
	"os"
	"slices"
	"testing"
	"time"

	"tt-memtrace/aggregator"
	"tt-memtrace/internal/symbol"
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

// Calls of Python's are named again after a while, and keep the same names as the same object.
func TestStacksOfPythonAreNamedAgain(t *testing.T) {
	files := symbol.NewFiles()
	t.Cleanup(files.Close)
	p := &namedStacks{Process: symbol.NewProcess(uint32(os.Getpid()), files, nil), known: map[string]knownStack{}}
	calls := p.Unwind(symbol.Registers{}, nil, []symbol.PythonFrame{{Code: 8, Instruction: 8}}, false)
	pass := func() {
		k := p.known[string(p.key)]
		k.until = time.Now()
		p.known[string(p.key)] = k
	}
	first := p.name(calls)
	pass()
	if p.name(calls) != first {
		t.Error("the same names are another stack")
	}
	other := &aggregator.Stack{Frames: []aggregator.Frame{{Function: "of code that was freed", Python: true}}}
	k := p.known[string(p.key)]
	k.Stack, k.until = other, time.Now().Add(time.Minute)
	p.known[string(p.key)] = k
	if p.name(calls) != other {
		t.Error("named again without a pause")
	}
	pass()
	if s := p.name(calls); s == other || len(s.Frames) != 1 || s.Frames[0].Function != "" {
		t.Errorf("not named again: %+v", s)
	}
}
