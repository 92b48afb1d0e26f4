package main

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"tt-memtrace/aggregator"
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
