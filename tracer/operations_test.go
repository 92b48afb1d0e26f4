package tracer

import (
	"testing"

	"tt-memtrace/aggregator"
	"tt-memtrace/test/fixture"
)

// A program has its operation's name a moment after it was launched, not when launches are read: its process can have
// ended then.
func TestOperationIsKnownBeforeLaunchesAreRead(t *testing.T) {
	t.Parallel()
	p := fixture.User(t, fixture.LayoutB)
	tr := start(t, Options{PIDs: []uint32{p.PID}})
	fixture.Do(t, p, "device 0 1 2")
	const attempts = 20 // launches may be read at the very moment
	for range attempts {
		w, program := fixture.Number(t, p, "workload"), fixture.Number(t, p, "program")
		fixture.Do(t, p, "kernel %#x 0", program)
		fixture.Do(t, p, "join %#x %#x", w, program)
		fixture.Do(t, p, "operate %#x", w)
		var s aggregator.ProgramSnapshot
		tr.await("the program has a name", func() bool {
			tr.mu.Lock()
			defer tr.mu.Unlock()
			for _, s = range tr.accounts.Programs(p.PID) {
				if s.ID == program {
					return s.Operation != ""
				}
			}
			return false
		})
		if s.Operation != "TestOperation" {
			t.Fatalf("%+v", s)
		}
		if !s.Launches.Some() {
			return
		}
	}
	t.Errorf("%d programs had no name before their launches were read", attempts)
}
