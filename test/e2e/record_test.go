package e2e

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"tt-memtrace/aggregator"
	"tt-memtrace/internal/export"
	"tt-memtrace/internal/record"
	"tt-memtrace/internal/report"
	"tt-memtrace/test/perfetto"
	"tt-memtrace/test/rig"
	"tt-memtrace/tracer"
)

// whole is all that accounts show, but for their number of events.
func whole(a *aggregator.Aggregator) string {
	s := a.Snapshot()
	var b strings.Builder
	fmt.Fprintf(&b, "%+v\n", *s)
	for _, p := range s.Processes {
		for _, buffer := range a.Buffers(p.PID) {
			fmt.Fprintf(&b, "%+v\n", buffer)
		}
		for _, pr := range a.Programs(p.PID) {
			for _, k := range pr.Kernels {
				fmt.Fprintf(&b, "%+v\n", *k)
			}
			pr.Kernels = nil
			fmt.Fprintf(&b, "%+v\n", pr)
		}
	}
	return b.String()
}

// moment is a rest point: how many events there were, and what the accounts showed.
type moment struct {
	events int
	state  string
}

// replayed reads a recording and compares at each moment.
func replayed(t *testing.T, file []byte, skip int, moments []moment) int {
	t.Helper()
	r, err := record.NewReader(bytes.NewReader(file))
	if err != nil {
		t.Fatal(err)
	}
	accounts, n, state := aggregator.New(), skip, false
	look := func() {
		if len(moments) > 0 && n == moments[0].events {
			if got := whole(accounts); got != moments[0].state {
				i := 0
				for i < min(len(got), len(moments[0].state)) && got[i] == moments[0].state[i] {
					i++
				}
				from := max(0, i-100)
				t.Fatalf("after %d events the replay differs:\n…%.300s\n…%.300s", n, got[from:], moments[0].state[from:])
			}
			moments = moments[1:]
		}
	}
	for {
		events, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		for i := range events {
			accounts.Apply(&events[i])
			switch events[i].Kind {
			case aggregator.StateBegin:
				state = true
				continue
			case aggregator.StateEnd:
				state = false
			default:
				if !state {
					n++
				}
			}
			if !state {
				look()
			}
		}
	}
	if len(moments) > 0 {
		t.Errorf("%d moments were not reached in %d events", len(moments), n)
	}
	return n
}

// A recording replays to the same accounts at each rest point, from its
// beginning and from a state; it is compact, and readable up to wherever it is cut.
func TestReplayIsTheSameAsLive(t *testing.T) {
	r := installed(t)
	const steps = 75000 // more than 100,000 events
	var file, late bytes.Buffer
	w, err := record.NewWriter(&file, record.Header{Host: "h"})
	if err != nil {
		t.Fatal(err)
	}
	var from *record.Writer // begun in the middle
	events, skipped := 0, 0
	tr := startWith(t, tracer.Options{Follow: uint32(os.Getpid())}, func(tr *trace) {
		tr.events = func(list []aggregator.Event) {
			events += len(list)
			err := w.Write(list)
			if from != nil {
				err = errors.Join(err, from.Write(list))
			}
			if err != nil {
				t.Error(err)
			}
		}
	})
	run := workload(t, r, rig.Options{Cluster: "t3k", Args: []string{"--steps", strconv.Itoa(steps), "--rest-every", strconv.Itoa(steps / 25), "--threads", "2"}})
	var moments []moment
	first := 0
	for {
		m := next(t, run, rig.EventRest)
		tr.compare(run.PID(), m)
		tr.mu.Lock()
		moments = append(moments, moment{events, whole(tr.accounts)})
		if len(moments) == 10 {
			first, skipped = len(moments)-1, events
			if from, err = record.NewWriter(&late, record.Header{Host: "h"}); err == nil {
				err = from.Write(tr.accounts.State())
			}
		}
		tr.mu.Unlock()
		if err != nil {
			t.Fatal(err)
		}
		send(t, run, "go")
		if m.Last {
			break
		}
	}
	next(t, run, rig.EventClosed)
	send(t, run, "go")
	if err := run.Wait(patience); err != nil {
		t.Fatal(err)
	}
	tr.sync()
	moments = append(moments, moment{events, whole(tr.accounts)})
	tr.stop()
	if err := errors.Join(w.Close(), from.Close()); err != nil {
		t.Fatal(err)
	}
	perEvent := float64(file.Len()) / float64(events)
	t.Logf("%d rest points, %d events, %d bytes: %.1f an event; from the tenth on %d bytes", len(moments), events, file.Len(), perEvent, late.Len())
	if perEvent > 24 || events < 100_000 {
		t.Errorf("%d events, %.1f bytes each", events, perEvent)
	}
	if got := replayed(t, file.Bytes(), 0, moments); got != events {
		t.Errorf("%d of %d events", got, events)
	}
	replayed(t, late.Bytes(), skipped, moments[first:])
	rng := rand.New(rand.NewPCG(1, 1))
	for range 200 {
		cut := rng.IntN(file.Len())
		r, err := record.NewReader(bytes.NewReader(file.Bytes()[:cut]))
		got := 0
		for err == nil {
			var list []aggregator.Event
			list, err = r.Next()
			got += len(list)
		}
		if !errors.Is(err, record.ErrCut) && (cut > 0 || !errors.Is(err, record.ErrNotRecording)) || got > events {
			t.Fatalf("cut at %d: %d events, %v", cut, got, err)
		}
	}
}

// lineOf is the number of the only line of the leaking workload with this text.
func lineOf(t *testing.T, text string) int {
	t.Helper()
	dir, err := rig.Dir()
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(filepath.Join(dir, "leak.py"))
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for i, line := range strings.Split(string(b), "\n") {
		if strings.Contains(line, text) {
			if found != 0 {
				t.Fatalf("%q is in lines %d and %d", text, found, i+1)
			}
			found = i + 1
		}
	}
	return found
}

// The report names the line that leaks, the function of the peak, and explains
// failures as the runtime does; its exports have the same totals.
func TestReportNamesCallSites(t *testing.T) {
	r := installed(t)
	dir, err := rig.Dir()
	if err != nil {
		t.Fatal(err)
	}
	var b *report.Builder
	tr := startWith(t, tracer.Options{Follow: uint32(os.Getpid()), Stacks: true}, func(tr *trace) {
		b = report.NewBuilder(tr.accounts)
		tr.event = b.Event
		tr.accounts.OnChange, tr.accounts.OnCBChange, tr.accounts.OnAllocationFailed = b.Change, b.CBChange, b.AllocationFailed
	})
	args := []string{"--cluster", "t3k", "--wait"}
	if r.SlowOnly() { // no circular buffer, no clash with one
		args = append(args, "--no-clash")
	}
	w := workload(t, r, rig.Options{Cluster: "t3k", Script: filepath.Join(dir, "leak.py"), Args: args})
	var said struct {
		Reserved uint64 `json:"reserved"`
	}
	if err := json.Unmarshal([]byte(next(t, w, "peak").Text), &said); err != nil {
		t.Fatal(err)
	}
	oom, clash := next(t, w, "oom").Error, ""
	if !r.SlowOnly() {
		clash = next(t, w, "clash").Error
	}
	next(t, w, "done")
	tr.sync() // it ends some 50 ms after its first allocation, which can be too soon for its stacks
	send(t, w, "go")
	next(t, w, "closed")
	if err := w.Wait(patience); err != nil {
		t.Fatal(err)
	}
	tr.sync()
	tr.stop()
	rep := b.Report(report.Facts{Host: "h", Source: "leak.py", Wall: func(t uint64) time.Time { return time.Unix(0, int64(t)) }})
	if rep.Stacks == 0 || rep.StacksCut+rep.StacksLost > 0 || !rep.Exact {
		t.Errorf("%d stacks, %d cut short, exact %v", rep.Stacks, rep.StacksCut, rep.Exact)
	}

	leak := fmt.Sprintf("leak.py:%d leak_in_this_line", lineOf(t, "kept.append("))
	if len(rep.Left) != 1 || rep.Left[0].Buffers != 1 || !strings.Contains(rep.Left[0].Label(), leak) {
		t.Errorf("what is left does not name %s alone: %+v", leak, rep.Left)
	} else if !slices.ContainsFunc(rep.Left[0].Stack, func(s export.Text) bool {
		return strings.Contains(string(s), "ttnn::") && strings.Contains(string(s), "empty")
	}) {
		t.Errorf("the stack has no C++ function: %v", rep.Left[0].Stack)
	}
	chips := 0
	for _, m := range rep.Memories {
		if m.Memory != "DRAM" {
			continue
		}
		chips++
		if m.Peak != said.Reserved || !strings.Contains(m.Holders[0].Label(), "peak_in_this_function") || m.Holders[0].Buffers != 5 {
			t.Errorf("chip %d: a peak of %d bytes by %s, the runtime says %d", m.Chip, m.Peak, m.Holders[0].Label(), said.Reserved)
		}
	}
	if chips != 8 {
		t.Errorf("peaks of %d chips", chips)
	}
	checkFailures(t, rep, oom, clash)
	checkProfile(t, rep)
	checkChrome(t, r.Python, rep, said.Reserved)
}

// number of a runtime's message behind some words.
func number(t *testing.T, text, words string) uint64 {
	t.Helper()
	m := regexp.MustCompile(regexp.QuoteMeta(words) + ` (\d+)`).FindStringSubmatch(text)
	if m == nil {
		t.Fatalf("no %q in %q", words, text)
	}
	n, err := strconv.ParseUint(m[1], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func checkFailures(t *testing.T, rep *report.Report, oom, clash string) {
	t.Helper()
	want := 2
	if clash == "" {
		want = 1
	}
	if len(rep.Failures) != want {
		t.Fatalf("%d failures: %+v", len(rep.Failures), rep.Failures)
	}
	first := rep.Failures[0]
	if first.Kind != "out_of_memory" || first.Memory != "L1" || string(first.Message) != oom {
		t.Errorf("%s in %s: %q, the runtime said %q", first.Kind, first.Memory, first.Message, oom)
	}
	if *first.Asked != number(t, oom, "needs to store") || *first.Free != number(t, oom, "free:") || *first.Largest != number(t, oom, "largest free block:") {
		t.Errorf("asked for %d, %d free, %d in a block: %q", *first.Asked, *first.Free, *first.Largest, oom)
	}
	for _, c := range first.Chips {
		if c.Allocated == nil || *c.Allocated != number(t, oom, "allocated:") || *c.Free != *first.Free || *c.Largest != *first.Largest {
			t.Errorf("chip %d: %+v, the runtime said %q", c.Chip, c, oom)
		}
	}
	for _, f := range rep.Failures {
		if f.Where == nil || !strings.Contains(string(*f.Where), "leak.py:") {
			t.Errorf("no line of the workload: %v", f.Stack)
		}
	}
	if clash == "" {
		return
	}
	second := rep.Failures[1]
	if second.Kind != "clash" || string(second.Message) != clash {
		t.Errorf("%s: %q, the runtime said %q", second.Kind, second.Message, clash)
	}
	if *second.Lowest != number(t, clash, "L1 buffer allocated at") || *second.End != number(t, clash, "region ends at") {
		t.Errorf("a clash of %d and %d: %q", *second.Lowest, *second.End, clash)
	}
	if len(second.Holders) != 1 || !strings.Contains(second.Holders[0].Label(), "fill_l1") {
		t.Errorf("in the way is not what fill_l1 made: %+v", second.Holders)
	}
}

// checkProfile has pprof itself add the profile up.
func checkProfile(t *testing.T, rep *report.Report) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "p.pb.gz")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(rep.Profile(f), f.Close()); err != nil {
		t.Fatal(err)
	}
	sum := func(list []report.Site) (bytes, buffers uint64) {
		for _, s := range list {
			bytes, buffers = bytes+s.Bytes, buffers+s.Buffers
		}
		return bytes, buffers
	}
	allocated, allocations := sum(rep.Churn)
	left, leaks := sum(rep.Left)
	for _, c := range []struct {
		index, unit, total string
		frame              string // that of the leak, where pprof does not drop it for being small
	}{
		{"alloc_space", "B", fmt.Sprintf("%dB total", allocated), ""}, {"alloc_objects", "count", fmt.Sprintf("%d total", allocations), "leak_in_this_line"},
		{"inuse_space", "B", fmt.Sprintf("%dB total", left), "leak_in_this_line"}, {"inuse_objects", "count", fmt.Sprintf("%d total", leaks), "leak_in_this_line"},
	} {
		out, err := exec.Command("go", "tool", "pprof", "-top", "-unit="+c.unit, "-sample_index="+c.index, path).CombinedOutput()
		if err != nil || !strings.Contains(string(out), c.total) || !strings.Contains(string(out), c.frame) {
			t.Errorf("pprof of %s does not say %q: %v\n%s", c.index, c.total, err, out)
		}
	}
}

// checkChrome checks the trace against the format's description: which fields
// each phase has to have, and that what begins ends. Then Perfetto opens it.
func checkChrome(t *testing.T, python string, rep *report.Report, peak uint64) {
	t.Helper()
	var b bytes.Buffer
	if err := rep.Chrome(&b); err != nil {
		t.Fatal(err)
	}
	var trace struct {
		TraceEvents []map[string]any `json:"traceEvents"`
	}
	if err := json.Unmarshal(b.Bytes(), &trace); err != nil {
		t.Fatal(err)
	}
	needs := map[string][]string{
		"M": {"name", "pid", "args"}, "C": {"name", "pid", "ts", "args"}, "X": {"name", "pid", "tid", "ts", "dur"},
		"b": {"name", "cat", "id", "pid", "tid", "ts"}, "e": {"name", "cat", "id", "pid", "tid", "ts"}, "i": {"name", "pid", "tid", "ts", "s"},
	}
	seen := map[string]int{}
	open := map[any]bool{}
	last := 0.0
	for _, e := range trace.TraceEvents {
		phase, _ := e["ph"].(string)
		seen[phase]++
		for _, field := range needs[phase] {
			if _, ok := e[field]; !ok {
				t.Fatalf("%q lacks %s: %v", phase, field, e)
			}
		}
		ts, ok := e["ts"].(float64)
		if needs[phase] == nil || !ok || ts < last {
			t.Fatalf("out of place: %v", e)
		}
		last = ts
		switch phase {
		case "b":
			open[e["id"]] = true
		case "e":
			if !open[e["id"]] {
				t.Fatalf("ends and did not begin: %v", e)
			}
			delete(open, e["id"])
		}
	}
	if len(open) > 0 || seen["C"] == 0 || seen["X"] != 1 || seen["b"] == 0 || seen["i"] != len(rep.Failures) {
		t.Errorf("%d do not end; %v", len(open), seen)
	}
	checkPerfetto(t, python, rep, b.Bytes(), peak)
}

// checkPerfetto has Perfetto's trace processor load the trace, and compares what it makes of it.
func checkPerfetto(t *testing.T, python string, rep *report.Report, trace []byte, peak uint64) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "trace.json")
	if err := os.WriteFile(path, trace, 0o644); err != nil {
		t.Fatal(err)
	}
	tables, err := perfetto.Query(t.Context(), python, path,
		"SELECT name, value FROM stats WHERE value > 0 AND severity != 'info'",
		"SELECT t.name, MAX(value) FROM counter c JOIN counter_track t ON t.id = c.track_id WHERE t.name GLOB 'chip * DRAM bytes' GROUP BY t.name",
		"SELECT category, COUNT(*), SUM(dur < 0) FROM slice GROUP BY category ORDER BY category",
		"SELECT s.dur / 1e9 FROM slice s WHERE s.category = 'process'",
		fmt.Sprintf("SELECT name FROM process WHERE pid = %d", rep.Processes[0].PID),
		"SELECT EXTRACT_ARG(arg_set_id, 'args.message') FROM slice WHERE category = 'failure' ORDER BY ts")
	if errors.Is(err, perfetto.ErrUnavailable) {
		t.Log(err)
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	if len(tables[0]) > 0 {
		t.Errorf("Perfetto complains: %v", tables[0])
	}
	for _, c := range tables[1] {
		if c[1] != float64(peak) {
			t.Errorf("%v is at most %v, not %d", c[0], c[1], peak)
		}
	}
	var buffers uint64
	for _, s := range rep.Churn {
		buffers += s.Buffers
	}
	if want := [][]any{{"buffer", float64(buffers), 0.0}, {"failure", float64(len(rep.Failures)), 0.0}, {"process", 1.0, 0.0}}; len(tables[1]) != 8 || !reflect.DeepEqual(tables[2], want) {
		t.Errorf("counters %v, slices %v, not %v", tables[1], tables[2], want)
	}
	if took := *rep.Processes[0].To - rep.Processes[0].From; math.Abs(tables[3][0][0].(float64)-took) > 1e-6 {
		t.Errorf("the process took %v s, not %v", tables[3], took)
	}
	if tables[4][0][0] != string(*rep.Processes[0].Command) {
		t.Errorf("the process is %v, not %s", tables[4], *rep.Processes[0].Command)
	}
	if len(tables[5]) != len(rep.Failures) {
		t.Fatalf("%d failures, not %d", len(tables[5]), len(rep.Failures))
	}
	for i, m := range tables[5] {
		if m[0] != string(rep.Failures[i].Message) {
			t.Errorf("failure %d: %v, not %s", i, m, rep.Failures[i].Message)
		}
	}
}

// The largest free block is the allocator's own, at rest points of a mesh
// without submeshes, whose allocators would see other parts of the same memory.
func TestFragmentationIsTheAllocators(t *testing.T) {
	r := installed(t)
	var b *report.Builder
	tr := startWith(t, tracer.Options{Follow: uint32(os.Getpid())}, func(tr *trace) {
		b = report.NewBuilder(tr.accounts)
		tr.event, tr.accounts.OnChange = b.Event, b.Change
	})
	w := workload(t, r, rig.Options{Cluster: "n300", Args: []string{"--steps", "200", "--submeshes", "0"}})
	compared := 0
	for {
		m := next(t, w, rig.EventRest)
		tr.compare(w.PID(), m)
		tr.mu.Lock()
		for _, c := range m.Devices[0].Chips {
			for name, v := range m.Devices[0].Views {
				memory := slices.Index([]string{"DRAM", "L1", "", "L1_SMALL", "TRACE"}, name)
				free, largest, ok := b.Free(aggregator.Chip{Number: c}, aggregator.Memory(memory))
				if !ok {
					continue
				}
				compared++
				if free != v.TotalBytesPerBank-v.AllocatedPerBank || largest != v.LargestFreePerBank {
					t.Errorf("rest %d, chip %d %s: %d free, %d in a block; the runtime says %d and %d",
						m.N, c, name, free, largest, v.TotalBytesPerBank-v.AllocatedPerBank, v.LargestFreePerBank)
				}
			}
		}
		tr.mu.Unlock()
		if t.Failed() {
			t.FailNow()
		}
		send(t, w, "go")
		if m.Last {
			break
		}
	}
	if compared < 40 {
		t.Errorf("only %d were known", compared)
	}
}
