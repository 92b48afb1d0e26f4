package tracer

import (
	"testing"

	"tt-memtrace/aggregator"
	"tt-memtrace/test/fixture"
)

// A build without the functions that throw when an allocation fails is not said to have had no failures.
func TestFailuresThatAreNotCovered(t *testing.T) {
	p := fixture.User(t, fixture.LayoutB)
	tr := start(t, Options{PIDs: []uint32{p.PID}})
	tr.awaitProcess(p.PID)
	if got := tr.process(p.PID); got.Info.NotCovered != aggregator.FailuresNotCovered || tr.snapshot().SeesFailures() {
		t.Errorf("not covered: %q", got.Info.NotCovered)
	}
}
