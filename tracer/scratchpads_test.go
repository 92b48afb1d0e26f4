package tracer

import (
	"testing"

	"tt-memtrace/test/fixture"
)

// A device that closed before a program's scratchpads on it were looked at stays closed.
func TestScratchpadsOfAClosedDevice(t *testing.T) {
	t.Parallel()
	p := fixture.User(t, fixture.LayoutB)
	tr := start(t, Options{PIDs: []uint32{p.PID}})
	fixture.Do(t, p, "device 0 1")
	program := fixture.Number(t, p, "program")
	kernel := fixture.Number(t, p, "kernel %#x 0", program)
	tr.sync()
	release := tr.hold(func() { fixture.Do(t, p, "alloc 100 0 0 0 4096 1024 64") })
	fixture.Do(t, p, "scratchpad %#x 0 %#x 4096 64 2 3 4 5", program, kernel)
	fixture.Do(t, p, "close 0")
	fixture.Do(t, p, "destroy 0")
	release()
	if s := tr.process(p.PID); !s.Exact() || len(s.Chips) > 0 {
		t.Errorf("it has %+v, marked with %+v", s.Chips, s.Reasons)
	}
}
