package main

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

// Recordings of several hosts are exported side by side, each complete or not at all.
func TestExport(t *testing.T) {
	day := time.Date(2026, 5, 1, 0, 0, 0, 0, time.UTC)
	a, b := hostRecording(t, "a", day, 3), hostRecording(t, "b", day.AddDate(0, 0, 1), 3)
	dir := t.TempDir()
	run := func(args ...string) error {
		cmd := newExport()
		cmd.SilenceErrors, cmd.SilenceUsage = true, true
		cmd.SetArgs(args)
		return cmd.Execute()
	}
	if err := run("-o", dir, a, b); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		pattern string
		n       int
	}{
		{"buffers/host=a/day=2026-05-01/a*-20260501T000000Z.parquet", 1}, {"buffers/host=b/day=2026-05-02/*.parquet", 1}, {"samples/host=*/day=*/*.parquet", 2},
		{"processes/host=*/day=*/*.parquet", 2}, {"recordings/host=*/day=*/*.parquet", 2}, {"failures/host=*/day=*/*.parquet", 2}, {"*/*/*/*.part", 0},
	} {
		if found, err := filepath.Glob(filepath.Join(dir, c.pattern)); err != nil || len(found) != c.n {
			t.Errorf("%s: %v %v", c.pattern, found, err)
		}
	}
	damaged := filepath.Join(t.TempDir(), "damaged.ttm")
	whole, err := os.ReadFile(a)
	if err != nil {
		t.Fatal(err)
	}
	whole[len(whole)-60] ^= 1
	if err := os.WriteFile(damaged, whole, 0o644); err != nil {
		t.Fatal(err)
	}
	fresh := t.TempDir()
	if err := run("-o", fresh, damaged); exitCode(err) != exitFailed {
		t.Errorf("a damaged recording: %v", err)
	}
	if found, _ := filepath.Glob(filepath.Join(fresh, "*/*/*/*")); len(found) > 0 {
		t.Errorf("of a damaged recording there is %v", found)
	}
	for _, args := range [][]string{{a}, {"-o", dir}, {"-o", dir, "--speed", "-1", a}} {
		if err := run(args...); exitCode(err) != exitUsage {
			t.Errorf("export %v: %v", args, err)
		}
	}
}
