//go:build simulator

package e2e

import (
	"os"
	"testing"

	"tt-memtrace/test/rig"
)

// On the chips of a simulator, which run the kernels: operations, also inside a trace that is replayed, chips that are
// opened again and, if there are several, the fabric.
func TestOnASimulator(t *testing.T) {
	dir := os.Getenv("TT_MEMTRACE_SIMULATOR")
	if dir == "" {
		t.Fatal("TT_MEMTRACE_SIMULATOR is not set: it names a folder with a simulator's library and the descriptors of its chips")
	}
	openings(t, installed(t), rig.Options{Simulator: dir, Args: []string{"--traces"}}, true)
}
