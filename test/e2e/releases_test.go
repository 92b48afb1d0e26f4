package e2e

import (
	"errors"
	"os"
	"testing"

	"tt-memtrace/test/rig"
	"tt-memtrace/tracer"
)

// oldestRelease that runs on mock chips. It keeps a buffer's fields in the
// Buffer, where the default release has them behind a pointer.
const oldestRelease = "0.66.0"

// The oldest release has the runtime's numbers too. `make compat` runs all tests
// on it and on others.
func TestOldestRelease(t *testing.T) {
	r, err := rig.Install(t.Context(), oldestRelease)
	if errors.Is(err, rig.ErrUnavailable) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	tr := start(t, tracer.Options{Follow: uint32(os.Getpid())})
	rests, buffers := tr.toTheEnd(workload(t, r, rig.Options{Cluster: "t3k", Args: []string{"--steps", "100"}}))
	t.Logf("%d rest points, %d buffers compared", rests, buffers)
	s := tr.snapshot()
	if !s.SeesFailures() {
		t.Error("failed allocations are not seen in it")
	}
	for _, c := range s.Chips {
		if card := cards["t3k"]; c.Board != card.board || c.Arch != card.arch {
			t.Errorf("chip %d is a %q on a %q", c.Chip.Number, c.Arch, c.Board)
		}
	}
}
