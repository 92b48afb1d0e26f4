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
	openings(t, installed(t), rig.Options{Simulator: simulator(t), Args: []string{"--traces"}}, true)
}

// The ways of test/rig/ways.py that need no more than one chip, also after losses.
func TestWaysOnASimulator(t *testing.T) {
	total := &tally{modes: map[string]int{}, marked: map[string]int{}}
	ways := []string{"open_device", "open_mesh_device", "two_command_queues", "sharded", "views", "program_cache", "trace_released", "traces_kept"}
	observe(t, installed(t), rig.Options{Simulator: simulator(t), Args: ways}, total, false)
	t.Logf("%d ways, %d rest points, %v; %d fields compared, %d wrong and unmarked; marked: %v",
		total.ways, total.rests, total.modes, total.compared, total.wrong, total.marked)
}

// simulator is the folder that has one.
func simulator(t *testing.T) string {
	t.Helper()
	dir := os.Getenv("TT_MEMTRACE_SIMULATOR")
	if dir == "" {
		t.Fatal("TT_MEMTRACE_SIMULATOR is not set: it names a folder with a simulator's library and the descriptors of its chips")
	}
	return dir
}
