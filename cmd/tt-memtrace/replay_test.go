package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"tt-memtrace/aggregator"
	"tt-memtrace/internal/record"
	"tt-memtrace/internal/report"
	"tt-memtrace/internal/session"
)

const origin = 5_000_000_000_000 // a recording begins at some time of the clock

// recording has a launch at each of these times from its beginning.
func recording(t *testing.T, at ...time.Duration) io.ReadCloser {
	t.Helper()
	var list []aggregator.Event
	for _, d := range at {
		list = append(list, aggregator.Event{Kind: aggregator.Launched, PID: 1, Time: origin + uint64(d)})
	}
	return recordingOf(t, list...)
}

func recordingOf(t *testing.T, events ...aggregator.Event) io.ReadCloser {
	t.Helper()
	var b bytes.Buffer
	w, err := record.NewWriter(&b, record.Header{Host: "there", Began: time.Unix(1000, 0), Monotonic: origin})
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Write(events); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return io.NopCloser(&b)
}

// A replay goes as fast as it was asked to, from where and up to where, and its
// clock is the recording's.
func TestReplayPace(t *testing.T) {
	s := time.Second
	for _, c := range []struct {
		name  string
		flags recorded
		at    []time.Duration
		// told are when which events came; over is when it ended, of the recording's clock now.
		told string
		over time.Duration
		now  time.Duration
	}{
		{"all immediately", recorded{}, []time.Duration{0, s, 3600 * s}, "0s:1 0s:1 0s:1", 0, 3600 * s},
		{"as it was", recorded{speed: 1}, []time.Duration{0, s, 3 * s}, "0s:1 1s:1 3s:1", 3 * s, 3 * s},
		{"twice as fast from 1 s up to 5 s", recorded{speed: 2, seek: s, until: 5 * s}, []time.Duration{0, s, 2 * s, 10 * s}, "0s:2 500ms:1", 2 * s, 2 * s},
		{"up to 2 s immediately", recorded{until: 2 * s}, []time.Duration{0, 2 * s, 3 * s}, "0s:2", 0, 2 * s},
		{"older ones immediately", recorded{speed: 1}, []time.Duration{-s, -s, s}, "0s:2 1s:1", s, s},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c.flags.from = []string{"r"}
				c.flags.files = []io.ReadCloser{recording(t, c.at...)}
				l, err := c.flags.start(true)
				if err != nil {
					t.Fatal(err)
				}
				if l.host != "there" || !l.Wall(origin+uint64(s)).Equal(time.Unix(1001, 0)) {
					t.Errorf("%s, %v", l.host, l.Wall(origin))
				}
				began := time.Now()
				told := ""
				l.AddSink(session.Sink{Events: func(events []aggregator.Event) { told += fmt.Sprintf(" %v:%d", time.Since(began), len(events)) }})
				if err := l.run(t.Context()); err != nil {
					t.Fatal(err)
				}
				if got := time.Since(began).Round(10 * time.Millisecond); " "+c.told != told && c.flags.speed > 0 || got != c.over {
					t.Errorf("told of%s, over after %v; want %s, %v", told, got, c.told, c.over)
				}
				if got := time.Duration(l.Now() - origin); got != c.now {
					t.Errorf("its clock is at %v, not %v", got, c.now)
				}
			})
		})
	}
}

// A log, a report and a recording that seek begin with the state at that time, without what was before.
func TestSeekSkips(t *testing.T) {
	s := uint64(time.Second)
	alloc := func(at, id uint64) aggregator.Event {
		return aggregator.Event{Kind: aggregator.Alloc, PID: 1, Time: origin + at, Device: 9, Buffer: id, Size: 100 * id, Address: id << 20}
	}
	b, err := io.ReadAll(recordingOf(t,
		aggregator.Event{Kind: aggregator.ProcessStart, PID: 1, Time: origin, Process: &aggregator.Process{Command: "c"}},
		aggregator.Event{Kind: aggregator.DeviceOpen, PID: 1, Time: origin, Device: 9, Opened: &aggregator.Opened{Chips: []aggregator.Chip{{Number: 3}}}},
		alloc(0, 1), alloc(s, 2), aggregator.Event{Kind: aggregator.Free, PID: 1, Time: origin + 3*s, Device: 9, Buffer: 1}, alloc(4*s, 3)))
	file := filepath.Join(t.TempDir(), "r")
	if err := errors.Join(err, os.WriteFile(file, b, 0o644)); err != nil {
		t.Fatal(err)
	}
	out := func(args ...string) string {
		t.Helper()
		f, err := os.Create(filepath.Join(t.TempDir(), "out"))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		stdout := os.Stdout
		os.Stdout = f
		defer func() { os.Stdout = stdout }()
		cmd := newRoot()
		cmd.SetArgs(append(args, "-q", "--from", file))
		err = cmd.Execute()
		b, e := os.ReadFile(f.Name())
		if err := errors.Join(err, e); err != nil {
			t.Errorf("%v: %v", args, err)
		}
		return string(b)
	}
	later := "✗ [PID 1] Freed buffer 0x1 on device 3 (100 bytes, FINAL)\n✓ [PID 1] Allocated 300 bytes of DRAM on device 3 (buffer_id=0x3)\n"
	for args, want := range map[string]string{
		"log --seek 2s": later, "log --seek 2s --speed 1000": later, "log --seek 9s": "",
		"log --seek 2s --until 3s": strings.SplitAfter(later, "\n")[0],
	} {
		if got := out(strings.Fields(args)...); got != want {
			t.Errorf("%s:\n%s", args, got)
		}
	}

	var r report.Report
	if err := json.Unmarshal([]byte(out("report", "--json", "--seek", "2s")), &r); err != nil {
		t.Fatal(err)
	}
	if !r.Began.Equal(time.Unix(1000, 0)) || r.Seconds != 4 || len(r.Memories) != 1 || r.Memories[0].Peak != 500 || r.Memories[0].PeakAt != 4 || len(r.Left) != 2 {
		t.Errorf("%v, %gs, %+v, %d left", r.Began, r.Seconds, r.Memories, len(r.Left))
	}

	path := filepath.Join(t.TempDir(), "later")
	out("record", "-o", path, "--seek", "2s") // as perf has it; FILE alone is the same
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	reader, err := record.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	h := reader.Header()
	events, err := reader.Next()
	if err != nil || h.Monotonic != origin+2*s || !h.Began.Equal(time.Unix(1002, 0)) || events[0].Kind != aggregator.StateBegin {
		t.Fatalf("%+v, %v, %+v", h, err, events)
	}
	a := aggregator.New()
	for ; err == nil; events, err = reader.Next() {
		for i := range events {
			a.Apply(&events[i])
		}
	}
	if err != io.EOF {
		t.Error(err)
	}
	if list := a.Buffers(1); len(list) != 2 || list[0].ID != 2 || list[1].ID != 3 {
		t.Errorf("%+v", list)
	}
}

func TestSizes(t *testing.T) {
	for s, want := range map[string]int64{"": 0, "1K": 1024, "10k": 10240, "100M": 100 << 20, "2G": 2 << 30, "1T": 1 << 40} {
		if got, err := bytesOf("--rotate-size", s); err != nil || got != want {
			t.Errorf("%q: %d, %v", s, got, err)
		}
	}
	for _, s := range []string{"0", "0K", "-1", "1", "1X", "M", "1.5M", "99999999999G"} {
		if _, err := bytesOf("--rotate-size", s); err == nil {
			t.Errorf("%q is a size", s)
		}
	}
}

// The summary of a replay names a file only where there is one, and promises call sites only where the recording has them.
func TestWhatShowsMoreOfAReplay(t *testing.T) {
	plain := aggregator.Event{Kind: aggregator.Lost, Time: origin, Count: 1}
	stacked := plain
	stacked.Stack = &aggregator.Stack{Frames: []aggregator.Frame{{Function: "f"}}}
	for _, c := range []struct {
		from  recorded
		event aggregator.Event
		want  string
	}{
		{recorded{from: []string{"run.ttm"}}, plain, "'tt-memtrace report FILE' has all of it"},
		{recorded{from: []string{"run.ttm"}}, stacked, "'tt-memtrace report FILE' has all of it, with call sites"},
		{recorded{from: []string{"demo"}, files: []io.ReadCloser{nil}}, plain, "'tt-memtrace demo --save FILE' saves the recording: 'tt-memtrace report FILE' has all of it"},
	} {
		l, err := (&recorded{from: []string{"r"}, files: []io.ReadCloser{recordingOf(t, c.event)}}).start(true)
		if err != nil {
			t.Fatal(err)
		}
		further := c.from.further(l)
		if err := l.run(t.Context()); err != nil && !onlyLoss(err) {
			t.Fatal(err)
		}
		if got := further(); got != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
	for _, from := range [][]string{nil, {"-"}} {
		if (&recorded{from: from}).further(newLive(nil, true)) != nil {
			t.Errorf("%q is no file to report on", from)
		}
	}
}

// part writes a file of a recording, with one buffer more than its number.
func part(t *testing.T, run, number uint64, began time.Duration, events ...aggregator.Event) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), fmt.Sprintf("%d-%d.ttm", run, number))
	f, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	w, err := record.NewWriter(f, record.Header{Host: "there", Began: time.Unix(1000, 0).Add(began), Monotonic: origin + uint64(began), Run: run, Part: number})
	if err := errors.Join(err, w.Write(events), w.Close()); err != nil {
		t.Fatal(err)
	}
	return name
}

// joined is a file of several recordings, one behind the other.
func joined(t *testing.T, names ...string) string {
	t.Helper()
	var all []byte
	for _, name := range names {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, b...)
	}
	name := filepath.Join(t.TempDir(), "all.ttm")
	if err := os.WriteFile(name, all, 0o644); err != nil {
		t.Fatal(err)
	}
	return name
}

// Recordings of one host are read in order of time. A part that is missing is marked; another run that was closed lacks
// nothing, and the accounts start over with it. Reports and exports have each run by itself, exact.
func TestSeveralRecordings(t *testing.T) {
	s := uint64(time.Second)
	accounts := aggregator.New()
	state := func(at uint64) []aggregator.Event {
		list := accounts.State()
		for i := range list {
			list[i].Time = origin + at
		}
		return list
	}
	do := func(at uint64, list ...aggregator.Event) []aggregator.Event {
		for i := range list {
			list[i].Time = origin + at
			accounts.Apply(&list[i])
		}
		return list
	}
	begun := func(pid uint32, at uint64) []aggregator.Event {
		return do(at, aggregator.Event{Kind: aggregator.ProcessStart, PID: pid, Process: &aggregator.Process{Command: "c", Started: 1}},
			aggregator.Event{Kind: aggregator.DeviceOpen, PID: pid, Device: 9, Opened: &aggregator.Opened{Chips: []aggregator.Chip{{Number: 3}}}},
			aggregator.Event{Kind: aggregator.Alloc, PID: pid, Device: 9, Buffer: 1, Size: 100, Address: 1 << 20})
	}
	alloc := func(at, id uint64) []aggregator.Event {
		return do(at, aggregator.Event{Kind: aggregator.Alloc, PID: 1, Device: 9, Buffer: id, Size: 100, Address: id << 20})
	}
	one := part(t, origin, 1, 0, begun(1, 0)...)
	before := state(s)
	two := part(t, origin, 2, time.Second, append(before, alloc(s, 2)...)...)
	before = state(2 * s)
	three := part(t, origin, 3, 2*time.Second, append(before, alloc(2*s, 3)...)...)
	accounts = aggregator.New()
	other := part(t, origin+5*s, 1, 5*time.Second, begun(2, 6*s)...)
	cut := filepath.Join(t.TempDir(), "cut.ttm")
	if b, err := os.ReadFile(joined(t, one, two, three)); err != nil || os.WriteFile(cut, b[:len(b)-1], 0o644) != nil {
		t.Fatal("cutting a recording: ", err)
	}
	again := part(t, 77, 1, 1500*time.Millisecond, begun(2, 2*s+s/2)...) // recorded while parts 2 and 3 were

	for _, c := range []struct {
		name    string
		files   []string
		code    int
		exact   bool
		buffers map[uint32]uint64
		// runs, if several, are those that reports and exports have, each exact.
		runs int
	}{
		{"in order", []string{one, two, three}, exitFine, true, map[uint32]uint64{1: 3}, 1},
		{"as a shell sorts them", []string{three, one, two}, exitFine, true, map[uint32]uint64{1: 3}, 1},
		{"one is missing", []string{one, three}, exitLost, true, map[uint32]uint64{1: 3}, 1},
		{"one is missing in a file of both", []string{joined(t, one, three)}, exitLost, true, map[uint32]uint64{1: 3}, 1},
		{"all in one file", []string{joined(t, one, two, three)}, exitFine, true, map[uint32]uint64{1: 3}, 1},
		{"of another run", []string{one, two, three, other}, exitFine, true, map[uint32]uint64{2: 1}, 2},
		{"another run after a cut one", []string{cut, other}, exitLost, true, map[uint32]uint64{2: 1}, 2},
		{"of two others", []string{other, one, again, three, two}, exitFailed, false, nil, 3},
		{"at the same time", []string{one, two, three, again}, exitFailed, false, nil, 2},
	} {
		var out bytes.Buffer
		run := func(args ...string) int {
			out.Reset()
			root := newRoot()
			root.SilenceErrors, root.SilenceUsage = true, true
			root.SetOut(&out)
			root.SetArgs(append(args, "-q"))
			return exitCode(root.Execute())
		}
		args := []string{"status", "--json"}
		for _, name := range c.files {
			args = append(args, "--from", name)
		}
		if code := run(args...); c.buffers != nil && code != exitFine || c.buffers == nil && code == exitFine {
			t.Errorf("%s: status ended with %d\n%s", c.name, code, &out)
		}
		if c.buffers != nil {
			var st struct {
				Exact     bool
				Processes []struct {
					PID     uint32
					Buffers uint64
				}
			}
			if err := json.Unmarshal(out.Bytes(), &st); err != nil {
				t.Fatal(err)
			}
			got := map[uint32]uint64{}
			for _, p := range st.Processes {
				got[p.PID] = p.Buffers
			}
			if st.Exact != c.exact || !maps.Equal(got, c.buffers) {
				t.Errorf("%s: exact %t, buffers of processes %v, not %v", c.name, st.Exact, got, c.buffers)
			}
		}
		for _, command := range [][]string{{"report", "--json"}, {"log", "--json"}, {"record", "-o", filepath.Join(t.TempDir(), "r")}, {"export", "-o", t.TempDir()}} {
			args := slices.Clone(command)
			for _, name := range c.files {
				if command[0] == "export" || command[0] == "report" {
					args = append(args, name)
				} else {
					args = append(args, "--from", name)
				}
			}
			want := c.code
			if c.runs > 1 && (command[0] == "export" || command[0] == "report") {
				want = exitFine
			}
			if code := run(args...); code != want {
				t.Errorf("%s: %s ended with %d", c.name, command[0], code)
			}
			if command[0] == "export" {
				rows, err := filepath.Glob(filepath.Join(command[2], "recordings", "*", "*", "*.parquet"))
				if err != nil || len(rows) != c.runs {
					t.Errorf("%s: exported are %q", c.name, rows)
				}
			}
			if command[0] != "report" {
				continue
			}
			if c.runs > 1 {
				var h report.Hosts
				if err := json.Unmarshal(out.Bytes(), &h); err != nil {
					t.Fatal(err)
				}
				if len(h.Hosts) != c.runs || slices.ContainsFunc(h.Hosts, func(r report.Host) bool { return !r.Exact || r.Lost > 0 || r.Host != "there" }) {
					t.Errorf("%s: runs %+v", c.name, h.Hosts)
				}
				continue
			}
			var r report.Report
			if err := json.Unmarshal(out.Bytes(), &r); err != nil {
				t.Fatal(err)
			}
			running := map[uint32]bool{}
			for _, p := range r.Processes {
				if p.To == nil {
					running[p.PID] = true
				}
			}
			if r.Exact != (c.code == exitFine) || len(running) != len(c.buffers) {
				t.Errorf("%s: report exact %t, running %v", c.name, r.Exact, running)
			}
		}
	}
}
