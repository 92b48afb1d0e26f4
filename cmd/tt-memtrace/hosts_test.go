package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"tt-memtrace/aggregator"
	"tt-memtrace/internal/record"
	"tt-memtrace/internal/report"
)

const nsSecond = uint64(time.Second)

// hostRecording writes a recording of a host, with n buffers of 1000 bytes, of which one is freed.
func hostRecording(t *testing.T, host string, began time.Time, n uint64) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), strings.ReplaceAll(fmt.Sprint(host, began.Unix()), "/", "_")+".ttm")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	w, err := record.NewWriter(f, record.Header{Host: host, Source: "s", Began: began, Monotonic: nsSecond})
	events := []aggregator.Event{
		{Kind: aggregator.ProcessStart, PID: 5, Time: nsSecond, Process: &aggregator.Process{Command: "c"}},
		{Kind: aggregator.DeviceOpen, PID: 5, Time: nsSecond, Device: 7, Opened: &aggregator.Opened{Chips: []aggregator.Chip{{}, {Number: 1}}}},
		{Kind: aggregator.AllocatorSeen, PID: 5, Time: nsSecond, Device: 7, Allocator: 8, Capacity: &aggregator.Capacity{aggregator.DRAM: {Known: true, Count: 1, Bytes: 10000}}},
	}
	for i := range n {
		events = append(events, aggregator.Event{Kind: aggregator.Alloc, PID: 5, Time: 2 * nsSecond, Device: 7, Allocator: 8, Buffer: i + 1, Address: 1000 * i, PerBank: 1000, Size: 1000})
	}
	events = append(events, aggregator.Event{Kind: aggregator.Free, PID: 5, Time: 3 * nsSecond, Device: 7, Buffer: 1},
		aggregator.Event{Kind: aggregator.ProcessExit, PID: 5, Time: 4 * nsSecond})
	if err == nil {
		err = w.Write(events)
	}
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	return path
}

func runReport(t *testing.T, args ...string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	cmd := newReport()
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	cmd.SetOut(&out)
	cmd.SetArgs(args)
	err := cmd.Execute()
	return out.String(), err
}

// Recordings of several hosts are merged, those of one in order of time; of one host they are one.
func TestReportOfSeveralHosts(t *testing.T) {
	day := time.Date(2026, 5, 1, 0, 0, 0, 0, time.UTC)
	late, b, early := hostRecording(t, "a", day.Add(time.Hour), 3), hostRecording(t, "b", day, 9), hostRecording(t, "a", day, 2)
	out, err := runReport(t, "--json", late, b, early)
	if err != nil {
		t.Fatal(err)
	}
	var h report.Hosts
	if err := json.Unmarshal([]byte(out), &h); err != nil {
		t.Fatal(err)
	}
	if len(h.Hosts) != 2 || h.Hosts[0].Host != "b" || h.Hosts[0].LeftBytes != 2*8000 || h.Hosts[1].LeftBytes != 2*3000 || h.Hosts[1].Processes != 2 || !h.Hosts[1].Began.Equal(day) {
		t.Errorf("%+v", h.Hosts)
	}
	if r := h.Hosts[1].Recordings; len(r) != 2 || string(r[0]) != early || string(r[1]) != late {
		t.Errorf("%q is not in order of time", r)
	}
	if len(h.Left) != 1 || h.Left[0].Bytes != 2*11000 || h.Left[0].Buffers != 11 || h.Left[0].Hosts != 2 || h.Left[0].Most != "b" {
		t.Errorf("%+v", h.Left)
	}
	if len(h.Peaks) != 2 || h.Peaks[0].Host != "b" || h.Peaks[0].Peak != 9000 || *h.Peaks[0].Capacity != 10000 || !h.Peaks[0].At.Equal(day.Add(time.Second)) {
		t.Errorf("%+v", h.Peaks)
	}
	if out, err = runReport(t, late, b); err != nil || !strings.HasPrefix(out, "2 hosts\n") {
		t.Errorf("%v %s", err, out)
	}
	if out, err = runReport(t, early, late); err != nil || strings.HasPrefix(out, "2 hosts\n") || !strings.Contains(out, "Advice") {
		t.Errorf("of one host: %v %s", err, out)
	}
	if _, err = runReport(t, "--format", "html", late, b); exitCode(err) != exitUsage {
		t.Errorf("html of two hosts: %v", err)
	}
	if _, err = runReport(t, late, filepath.Join(t.TempDir(), "none")); exitCode(err) != exitFailed {
		t.Errorf("without one of the files: %v", err)
	}
}

// --no-arguments also leaves out of reports and exports what a recording has.
func TestArgumentsOfRecordingsAreLeftOut(t *testing.T) {
	const secret = "--token=hunter2"
	path := filepath.Join(t.TempDir(), "run.ttm")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	w, err := record.NewWriter(f, record.Header{Host: "a", Source: "python serve.py " + secret, Began: time.Unix(1.7e9, 0), Monotonic: nsSecond})
	if err == nil {
		err = w.Write([]aggregator.Event{{Kind: aggregator.ProcessStart, PID: 5, Time: nsSecond, Process: &aggregator.Process{Command: "python serve.py " + secret}}})
	}
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, format := range []string{"text", "json", "html"} {
		whole, err := runReport(t, "--format", format, path)
		if err != nil || !strings.Contains(whole, secret) {
			t.Errorf("%s: the argument is not there: %v", format, err)
		}
		less, err := runReport(t, "--format", format, "--no-arguments", path)
		if err != nil || strings.Contains(less, secret) || strings.Contains(less, "serve.py") || !strings.Contains(less, "python") {
			t.Errorf("%s: the argument is there: %v\n%.300s", format, err, less)
		}
	}
}
