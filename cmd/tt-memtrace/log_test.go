package main

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"tt-memtrace/aggregator"
)

// A failed allocation has a line, for people who look into the log to see why a program died.
func TestLogHasFailedAllocations(t *testing.T) {
	file := filepath.Join(t.TempDir(), "r.ttm")
	b, err := io.ReadAll(recordingOf(t,
		aggregator.Event{Kind: aggregator.ProcessStart, PID: 7, Time: origin, Process: &aggregator.Process{Command: "c"}},
		aggregator.Event{Kind: aggregator.AllocationFailed, PID: 7, Time: origin, Memory: aggregator.L1, Failure: &aggregator.FailedAllocation{Message: "Out of Memory"}}))
	if err := errors.Join(err, os.WriteFile(file, b, 0o644)); err != nil {
		t.Fatal(err)
	}
	for flag, want := range map[string]string{"--json": `"event":"out_of_memory"`, "--json=false": `[PID 7] Allocation failed: "Out of Memory"`} {
		var out bytes.Buffer
		cmd := newLog()
		cmd.SetOut(&out)
		cmd.SetArgs([]string{flag, "--from", file})
		if err := cmd.Execute(); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(out.String(), want) {
			t.Errorf("%s: %q", flag, &out)
		}
	}
}
