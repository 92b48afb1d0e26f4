package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"tt-memtrace/aggregator"
	"tt-memtrace/internal/report"
)

// A difference of recordings that lack events says so, and is not exact.
func TestDiffOfRecordingsThatLackEvents(t *testing.T) {
	write := func(name string, r io.ReadCloser) string {
		t.Helper()
		b, err := io.ReadAll(r)
		path := filepath.Join(t.TempDir(), name)
		if err := errors.Join(err, os.WriteFile(path, b, 0o644)); err != nil {
			t.Fatal(err)
		}
		return path
	}
	whole := write("whole", recording(t, 0, time.Second))
	lacking := write("lacking", recordingOf(t, aggregator.Event{Kind: aggregator.Lost, Time: origin, Count: 3}))
	for _, c := range []struct {
		before, after, output string
		code                  int
	}{
		{whole, whole, "", exitFine}, {lacking, whole, "", exitLost}, {whole, lacking, "", exitLost},
		{lacking, whole, "/dev/full", exitFailed},
	} {
		var out bytes.Buffer
		cmd := newReport()
		cmd.SilenceErrors, cmd.SilenceUsage = true, true
		cmd.SetOut(&out)
		cmd.SetArgs([]string{"--diff", c.before, c.after, "-o", c.output})
		if err := cmd.Execute(); exitCode(err) != c.code || c.output == "" && out.Len() == 0 {
			t.Errorf("from %s to %s: %v\n%s", filepath.Base(c.before), filepath.Base(c.after), err, &out)
		}
	}
}

// The times of a recording's report are those of --seek and --until.
func TestReportTimesAreThoseOfTheRecording(t *testing.T) {
	file := filepath.Join(t.TempDir(), "r.ttm")
	b, err := io.ReadAll(recordingOf(t,
		aggregator.Event{Kind: aggregator.ProcessStart, PID: 1, Time: origin + uint64(2*time.Second), Process: &aggregator.Process{Command: "c"}},
		aggregator.Event{Kind: aggregator.AllocationFailed, PID: 1, Time: origin + uint64(5*time.Second), Memory: aggregator.L1, Failure: &aggregator.FailedAllocation{Message: "m"}}))
	if err := errors.Join(err, os.WriteFile(file, b, 0o644)); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		flags []string
		from  float64
		fails int
	}{{nil, 2, 1}, {[]string{"--until", "4900ms"}, 2, 0}, {[]string{"--until", "5s"}, 2, 1}, {[]string{"--seek", "3s"}, 2, 1}, {[]string{"--seek", "5001ms"}, 2, 0}} {
		var out bytes.Buffer
		cmd := newReport()
		cmd.SetOut(&out)
		cmd.SetArgs(append([]string{"--json", file}, c.flags...))
		if err := cmd.Execute(); err != nil {
			t.Fatal(err)
		}
		var r report.Report
		if err := json.Unmarshal(out.Bytes(), &r); err != nil {
			t.Fatal(err)
		}
		if r.Began.Unix() != 1000 || r.Processes[0].From != c.from || len(r.Failures) != c.fails || c.fails > 0 && r.Failures[0].At != 5 {
			t.Errorf("%q: from %v on, processes %+v, failures %+v", c.flags, r.Began, r.Processes, r.Failures)
		}
	}
}
