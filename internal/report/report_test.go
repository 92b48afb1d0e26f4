package report

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"tt-memtrace/aggregator"
	"tt-memtrace/aggregator/exact"
	"tt-memtrace/internal/record"
)

// told makes a report of events.
func told(t *testing.T, events ...aggregator.Event) *Report {
	t.Helper()
	a := aggregator.New()
	b := NewBuilder(a)
	a.OnChange, a.OnLearned, a.OnCBChange, a.OnAllocationFailed = b.Change, b.Learned, b.CBChange, b.AllocationFailed
	for i := range events {
		a.Apply(&events[i])
		b.Event(&events[i])
	}
	return b.Report(Facts{Host: "h", Source: "s", Wall: func(at uint64) time.Time { return time.Unix(0, int64(at)).UTC() }})
}

const second = 1_000_000_000

func opened() []aggregator.Event {
	return []aggregator.Event{
		{Kind: aggregator.ProcessStart, PID: 1, Time: second, Process: &aggregator.Process{Command: "python \x1b[2J m.py"}},
		{Kind: aggregator.DeviceOpen, PID: 1, Time: second, Device: 7, Opened: &aggregator.Opened{Chips: []aggregator.Chip{{Number: 0}, {Number: 1}}}},
		{Kind: aggregator.AllocatorSeen, PID: 1, Time: second, Device: 7, Allocator: 8, Capacity: &aggregator.Capacity{
			aggregator.DRAM: {Known: true, Count: 2, Bytes: 1000}, aggregator.L1: {Known: true, Count: 4, Bytes: 1000}}},
	}
}

func alloc(at, id, address, perBank uint64, st *aggregator.Stack) aggregator.Event {
	return aggregator.Event{Kind: aggregator.Alloc, PID: 1, Time: at * second, Device: 7, Allocator: 8, Buffer: id, Address: address, PerBank: perBank, Size: perBank, Stack: st}
}

func freed(at, id uint64) aggregator.Event {
	return aggregator.Event{Kind: aggregator.Free, PID: 1, Time: at * second, Device: 7, Buffer: id}
}

func stack(line uint32) *aggregator.Stack {
	return &aggregator.Stack{Frames: []aggregator.Frame{
		{Function: "tt::tt_metal::GraphTracker::track_allocate", Module: "/x/libtt_metal.so"}, {Function: "ttnn::empty", Module: "/x/_ttnncpp.so"},
		{Function: "__call__", File: "/v/site-packages/ttnn/decorators.py", Line: 5, Python: true}, {Function: "f<script>", File: "/home/m.py", Line: line, Python: true},
	}}
}

func TestPeakLeftAndChurn(t *testing.T) {
	r := told(t, append(opened(),
		alloc(2, 1, 100, 100, stack(10)), alloc(3, 2, 200, 300, stack(20)), freed(4, 1), // the peak, and a hole at its beginning
		alloc(5, 3, 600, 50, stack(10)), freed(6, 3), alloc(7, 4, 700, 10, nil),
		aggregator.Event{Kind: aggregator.ProcessExit, PID: 1, Time: 9 * second, Exit: &aggregator.Exit{Status: 1}})...)
	if len(r.Memories) != 2 {
		t.Fatalf("%+v", r.Memories)
	}
	m := r.Memories[1]
	if m.Chip != 1 || m.Memory != "DRAM" || m.Peak != 800 || m.PeakAt != 2 || m.PeakBuffers != 2 || m.End != 0 || *m.Capacity != 2000 {
		t.Errorf("%+v", m)
	}
	if len(m.Holders) != 2 || m.Holders[0].Bytes != 600 || m.Holders[0].Label() != "m.py:20 f<script> · ttnn::empty" || m.Holders[1].Bytes != 200 {
		t.Errorf("%+v", m.Holders)
	}
	// Of a bank of 1000 from 100 on: at 7 s there are 300 at 200 and 10 at 700, with 100, 200 and 390 around them.
	if f := m.Fragmented; f == nil || f.Free != 690 || f.Largest != 390 {
		t.Errorf("%+v", f)
	}
	if len(r.Left) != 2 || r.Left[0].Bytes != 1200 || r.Left[0].AtExit != 1 || *r.Left[0].Oldest != 6 || *r.Left[1].Size != 10 || r.Left[1].Bytes != 40 {
		t.Errorf("%+v", r.Left)
	}
	if p := r.Processes[0]; p.HeldAtExit != 2 || p.HeldBytesAtExit != 1240 || *p.To != 8 || p.ExitSignal != nil || *p.ExitStatus != 1 {
		t.Errorf("%+v", p)
	}
	if c := r.Churn[1]; c.Buffers != 2 || c.Bytes != 600 || c.Freed != 2 || *c.MeanLife != 1.5 || c.Most != 1 {
		t.Errorf("%+v", r.Churn)
	}
}

// The text says each thing once: chips with the same peak together, and whose a buffer is where there are several processes.
// A buffer whose chips, or whose reserved size, could not be read when it was allocated counts with them once they
// are known. What the peaks were until then is not.
func TestChipsAndSizesThatBecomeKnown(t *testing.T) {
	start := opened()
	for _, c := range []struct {
		name   string
		events []aggregator.Event
	}{
		{"chips", []aggregator.Event{start[0], start[2], alloc(2, 1, 100, 100, nil), start[1]}},
		{"banks", []aggregator.Event{start[0], start[1], alloc(2, 1, 100, 100, nil), start[2]}},
		{"size", append(opened(), alloc(2, 1, 100, 0, nil), aggregator.Event{Kind: aggregator.Scanned, PID: 1, Time: 3 * second,
			Scan: &aggregator.Scan{Allocators: []uint64{8}, Buffers: []aggregator.LiveBuffer{{Buffer: 1, Device: 7, Allocator: 8, Address: 100, PerBank: 100, Size: 60}}}})},
	} {
		for i := range c.events {
			c.events[i].Size = min(c.events[i].Size, 60)
			if e := &c.events[i]; e.Kind == aggregator.Alloc {
				e.Size = 60
			}
		}
		r := told(t, append(c.events, freed(5, 1), alloc(6, 2, 300, 50, nil))...)
		if len(r.Memories) != 2 {
			t.Fatalf("%s: %+v", c.name, r.Memories)
		}
		if m := r.Memories[1]; m.Peak != 200 || m.PeakBuffers != 1 || m.End != 100 || len(m.Holders) != 1 || m.Holders[0].Bytes != 200 {
			t.Errorf("%s: %+v", c.name, m)
		}
		if len(r.Churn) != 2 || r.Churn[0].Bytes != 400 || r.Churn[0].Buffers != 1 || r.Churn[0].Freed != 1 {
			t.Errorf("%s: %+v", c.name, r.Churn)
		}
		if r.Exact || !slices.ContainsFunc(r.Verdict(), func(f Finding) bool { return strings.Contains(f.Text, "peaks may differ") }) {
			t.Errorf("%s: exact %v, %+v", c.name, r.Exact, r.Verdict())
		}
	}
}

func TestText(t *testing.T) {
	other := aggregator.Event{Kind: aggregator.ProcessStart, PID: 2, Time: 2 * second, Process: &aggregator.Process{Command: "other"}}
	r := told(t, append(opened(), other,
		alloc(2, 1, 100, 100, stack(10)), alloc(3, 2, 200, 300, stack(20)), freed(4, 1), alloc(5, 3, 600, 50, stack(10)),
		aggregator.Event{Kind: aggregator.ProcessExit, PID: 1, Time: 9 * second})...)
	var b bytes.Buffer
	if err := r.Text(&b, Style{}); err != nil {
		t.Fatal(err)
	}
	want := `s
on h, 1970-01-01 00:00:01, for 8s: 9 events, 0 lost

Verdict
  ! 2 buffers not freed, 1.37 KiB on all chips: process exit or device close released them
  ✓ DRAM peaked at 40.0 % (chip 0 at 2s)

Processes
        1  python \u001b[2J m.py; from 0s, exited at 8s with 2 buffers (1.37 KiB) not freed
        2  other; from 1s, still running

Not freed (bytes on all chips)
       BYTES  BUFFERS  MEMORY  AGE   RELEASED BY  PID  CALL SITE
    1.17 KiB        1    DRAM   6s  process exit    1  m.py:20 f<script> · ttnn::empty
       200 B        1    DRAM   4s  process exit    1  m.py:10 f<script> · ttnn::empty

Peak use and its holders, per chip
  DRAM of chips 0-1: 800 B of 1.95 KiB (40.0 %) at 2s, 2 buffers; 0 B at the end
  most fragmented at 4.008s: per bank 650 B free, largest free block 450 B
    BYTES  BUFFERS  PID  CALL SITE
    600 B        1    1  m.py:20 f<script> · ttnn::empty
    200 B        1    1  m.py:10 f<script> · ttnn::empty

Most allocated over time (bytes on all chips)
       BYTES  BUFFERS  MEMORY  MAX LIVE  MEAN LIFE  PID  CALL SITE
    1.17 KiB        1    DRAM         1          ·    1  m.py:20 f<script> · ttnn::empty
       600 B        2    DRAM         1         2s    1  m.py:10 f<script> · ttnn::empty

Advice
  1.17 KiB of DRAM left on the fullest chip, 600 B per bank (chip 0 at 2s: 400 B of 1000 B per bank used)
`
	if got := b.String(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	some := Site{Buffers: 6, AtExit: 3, AtClose: 2}
	if got := some.releasedBy(); got != "3 process exit, 2 device close, 1 still allocated" {
		t.Error(got)
	}
	private := uint32(7)
	if got := chipNames([]*Memory{{Chip: 0}, {Chip: 1}, {Chip: 4}, {Chip: 0, Private: &private}}); got != "chips 0-1,4, chip 0 of process 7" {
		t.Error(got)
	}
}

// A process that executes another program is distinguished, and so is a program at an earlier one's address.
func TestOneAfterTheOther(t *testing.T) {
	exit := aggregator.Event{Kind: aggregator.ProcessExit, PID: 1, Time: 3 * second}
	again := opened()
	for i := range again {
		again[i].Time = 3 * second
	}
	again[0].Process = &aggregator.Process{Command: "again", Started: 5}
	reused := slices.Clone(again)
	reused[0].Time, reused[0].Process = 6*second, &aggregator.Process{Command: "its PID", Started: 6} // the record of an exit was lost
	events := append(opened(), alloc(2, 1, 100, 100, nil), exit)
	events = append(append(events, again...), alloc(4, 2, 100, 200, nil), alloc(5, 3, 300, 100, nil), freed(5, 3))
	r := told(t, append(events, reused[0])...)
	var got []string
	for _, p := range r.Processes {
		to := -1.0
		if p.To != nil {
			to = *p.To
		}
		got = append(got, fmt.Sprintf("%s %v-%v: %d", *p.Command, p.From, to, p.HeldBytesAtExit))
	}
	if want := []string{"python \x1b[2J m.py 0-2: 400", "again 2-5: 800", "its PID 5--1: 0"}; !slices.Equal(got, want) {
		t.Errorf("%q, not %q", got, want)
	}
	if len(r.Left) != 2 || r.Left[0].AtExit != 1 || r.Left[1].AtExit != 1 {
		t.Errorf("%+v", r.Left)
	}

	on := func(at uint64, e aggregator.Event) aggregator.Event {
		e.PID, e.Time, e.Device, e.Program = 1, at*second, 7, 9
		return e
	}
	placed := func(size uint64) aggregator.Event {
		return aggregator.Event{Kind: aggregator.CBPlaced, CB: &aggregator.CircularBuffer{Address: 10, Size: size, Ranges: []aggregator.CoreRange{{}}}}
	}
	gone := aggregator.Event{Kind: aggregator.ProgramGone}
	r = told(t, append(opened(), on(2, placed(300)), on(2, aggregator.Event{Kind: aggregator.ProgramNamed, Operation: "Large"}), on(3, gone),
		on(4, placed(100)), on(4, aggregator.Event{Kind: aggregator.ProgramNamed, Operation: "Small"}), on(5, gone), on(6, placed(400)), on(7, gone))...)
	if h := r.Programs[0].Holders; len(h) != 1 || h[0].Operation != nil || h[0].Bytes != 400 {
		t.Errorf("one without a name: %+v", h)
	}
	r = told(t, append(opened(), on(2, placed(300)), on(2, aggregator.Event{Kind: aggregator.ProgramNamed, Operation: "Large"}), on(3, gone),
		on(4, placed(100)), on(4, aggregator.Event{Kind: aggregator.ProgramNamed, Operation: "Small"}), on(5, gone))...)
	if h := r.Programs[0].Holders; len(h) != 1 || *h[0].Operation != "Large" || h[0].Bytes != 300 {
		t.Errorf("%+v", h)
	}
}

// A program whose operation is not known at the peak has it when it becomes known, and otherwise the reason why not.
func TestUnnamedPrograms(t *testing.T) {
	on := func(at, program uint64, e aggregator.Event) aggregator.Event {
		e.PID, e.Time, e.Device, e.Program = 1, at*second, 7, program
		return e
	}
	placed := func(at, program uint64) aggregator.Event {
		return on(at, program, aggregator.Event{Kind: aggregator.CBPlaced, CB: &aggregator.CircularBuffer{Address: 10, Size: 100, Ranges: []aggregator.CoreRange{{}}}})
	}
	launched := func(at, program uint64) aggregator.Event {
		return on(at, program, aggregator.Event{Kind: aggregator.Launched, Count: 1})
	}
	named := func(at, program uint64, name string) aggregator.Event {
		return on(at, program, aggregator.Event{Kind: aggregator.ProgramNamed, Operation: name})
	}
	gone := func(at, program uint64) aggregator.Event {
		return on(at, program, aggregator.Event{Kind: aggregator.ProgramGone})
	}
	exit := aggregator.Event{Kind: aggregator.ProcessExit, PID: 1, Time: 9 * second}
	from := func(p aggregator.Process) []aggregator.Event {
		list := opened()
		for i := range list {
			if list[i].Kind == aggregator.ProcessStart {
				list[i].Process = &p
			}
		}
		return list
	}
	traced := aggregator.Process{Started: 1}
	late := aggregator.Process{Started: 1, Late: true, RanBefore: true}
	// The peak is two programs, 8 and 9, and is over when the first of them ends.
	peak := []aggregator.Event{placed(2, 8), placed(3, 9)}
	for what, c := range map[string]struct {
		process aggregator.Process
		events  []aggregator.Event
		want    []string
	}{
		"named after the peak":         {traced, []aggregator.Event{named(3, 8, "A"), gone(4, 8), named(5, 9, "B"), gone(6, 9)}, []string{"A 1", "B 1"}},
		"another one at the address":   {traced, []aggregator.Event{launched(3, 8), gone(4, 8), placed(5, 8), named(5, 8, "C"), named(5, 9, "B")}, []string{"B 1", "unknown: " + UnnamedLauncher.String() + " 1"}},
		"not launched":                 {traced, nil, []string{"unknown: " + UnnamedNotLaunched.String() + " 2"}},
		"ended without being launched": {traced, []aggregator.Event{gone(4, 8), gone(4, 9)}, []string{"unknown: " + UnnamedNotLaunched.String() + " 2"}},
		"the process ended":            {traced, []aggregator.Event{launched(4, 9), exit}, []string{"unknown: " + UnnamedLauncher.String() + " 1", "unknown: " + UnnamedEnded.String() + " 1"}},
		"a process from before ended":  {late, []aggregator.Event{exit}, []string{"unknown: " + UnnamedNotLaunched.String() + " 2"}},
		"sampled":                      {aggregator.Process{Started: 1, Source: aggregator.Sampled}, []aggregator.Event{exit}, []string{"unknown: " + UnnamedNotTraced.String() + " 2"}},
	} {
		r := told(t, slices.Concat(from(c.process), peak, c.events)...)
		var got []string
		for _, h := range r.Programs[0].Holders {
			if (h.Operation == nil) != (h.Unnamed != "") {
				t.Errorf("%s: %+v", what, h)
			}
			got = append(got, fmt.Sprint(h.Name(), " ", h.Programs))
		}
		slices.Sort(got)
		slices.Sort(c.want)
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, not %q", what, got, c.want)
		}
	}
}

// Devices that are opened again can have banks of other sizes, which begin elsewhere.
func TestBanksOfAnotherSize(t *testing.T) {
	small := func(at, bytes uint64) []aggregator.Event {
		return []aggregator.Event{opened()[1], {Kind: aggregator.AllocatorSeen, PID: 1, Time: at * second, Device: 7, Allocator: 8,
			Capacity: &aggregator.Capacity{aggregator.L1Small: {Known: true, Count: 4, Bytes: bytes}}}}
	}
	closed := aggregator.Event{Kind: aggregator.DeviceClose, PID: 1, Time: 4 * second, Device: 7}
	events := append(append(opened()[:1], small(1, 1000)...), in(aggregator.L1Small, alloc(2, 1, 5100, 900, nil)), freed(3, 1), closed)
	events = append(append(events, small(5, 200)...), in(aggregator.L1Small, alloc(6, 2, 9100, 100, nil)), in(aggregator.L1Small, alloc(7, 3, 9050, 20, nil)), freed(8, 3))
	r := told(t, events...)
	m := r.Memories[0]
	if m.Peak != 3600 || *m.Capacity != 4000 {
		t.Errorf("peak %d of %d", m.Peak, *m.Capacity)
	}
	if last := m.Timeline[len(m.Timeline)-1]; *last.Free != 100 || *last.Largest != 100 {
		t.Errorf("%d free, %d in one block", *last.Free, *last.Largest)
	}
	// One more buffer had 30 bytes above it, and 50 below.
	if f := m.Fragmented; f.Free != 80 || f.Largest != 50 {
		t.Errorf("most fragmented: %+v", f)
	}
	i := slices.IndexFunc(r.Advice, func(a Advice) bool { return a.About == "l1_small_size" })
	if a := r.Advice[i]; *a.Set != 960 || *a.Span != 900 || *a.Peak != 900 || *a.Configured != 1000 {
		t.Errorf("%s", a.Text())
	}

	// While another process has buffers where the banks began before, what is free is not known.
	other := aggregator.Event{Kind: aggregator.ProcessStart, PID: 2, Time: 4 * second, Process: &aggregator.Process{Command: "other"}}
	theirs := small(5, 200)
	for i := range theirs {
		theirs[i].PID = 2
	}
	events = append(append(append(opened()[:1], small(1, 1000)...), in(aggregator.L1Small, alloc(2, 1, 5100, 900, nil)), other), theirs...)
	r = told(t, append(events, freed(8, 1))...)
	if m := r.Memories[0]; m.Timeline[len(m.Timeline)-1].Free != nil || len(r.Advice) > 0 && r.Advice[0].About == "l1_small_size" {
		t.Errorf("both: %+v, %+v", m.Timeline[len(m.Timeline)-1], r.Advice)
	}
}

// A program that retries for ever fails more often than is explained, which is counted; chips that it closed do not explain it.
func TestManyFailures(t *testing.T) {
	events := opened()
	events[1].Opened = &aggregator.Opened{Chips: []aggregator.Chip{{Number: 0}}}
	events = append(events, aggregator.Event{Kind: aggregator.DeviceClose, PID: 1, Time: second, Device: 7},
		aggregator.Event{Kind: aggregator.DeviceOpen, PID: 1, Time: second, Device: 17, Opened: &aggregator.Opened{Chips: []aggregator.Chip{{Number: 1}}}})
	for i := range uint64(maxFailures + 50) {
		kind := aggregator.OutOfMemory
		if i >= maxFailures+40 {
			kind = aggregator.Clash
		}
		events = append(events, aggregator.Event{Kind: aggregator.AllocationFailed, PID: 1, Time: (2 + i) * second, Memory: aggregator.L1, Failure: &aggregator.FailedAllocation{Message: "m", Kind: kind}})
	}
	r := told(t, events...)
	if n := r.FailuresOmitted; len(r.Failures) != maxFailures || n == nil || n.OutOfMemory != 40 || n.Clashes != 10 {
		t.Errorf("%d failures, omitted %+v", len(r.Failures), n)
	}
	if c := r.Failures[0].Chips; len(c) != 1 || c[0].Chip != 1 {
		t.Errorf("explained by %+v", c)
	}
	var b bytes.Buffer
	if err := r.Text(&b, Style{}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"✗ 240 × out of memory", "✗ 10 L1 clashes", "  … 240 more, 190 of them with --json"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q in\n%s", want, b.String())
		}
	}
	if h := Merge([]*Report{r, told(t)}, [][]string{{"a"}, {"b"}}); h.Hosts[0].Failed != 250 {
		t.Errorf("of hosts: %+v", h.Hosts)
	}
}

// A chip in a process's own numbering is not the host's chip of that number.
func TestAFailureNamesPrivateChips(t *testing.T) {
	events := opened()
	events[1].Opened = &aggregator.Opened{Chips: []aggregator.Chip{{Number: 0}, {Space: 1, Number: 0}}}
	r := told(t, append(events, aggregator.Event{Kind: aggregator.AllocationFailed, PID: 1, Time: 2 * second, Memory: aggregator.L1, Failure: &aggregator.FailedAllocation{Message: "m"}})...)
	if c := r.Failures[0].Chips; len(c) != 2 || c[0].Private != nil || c[1].Private == nil || *c[1].Private != 1 {
		t.Errorf("explained by %+v", c)
	}
	var b bytes.Buffer
	if err := r.Text(&b, Style{}); err != nil {
		t.Fatal(err)
	}
	if want := "chip 0, chip 0 of process 1, per bank"; !strings.Contains(b.String(), want) {
		t.Errorf("no %q in\n%s", want, b.String())
	}
}

// So is the one that a peak was on.
func TestPeaksNamePrivateChips(t *testing.T) {
	events := opened()
	events[1].Opened = &aggregator.Opened{Chips: []aggregator.Chip{{Space: 1, Number: 0}}}
	r := told(t, append(events, alloc(2, 1, 100, 100, nil))...)
	var alone, merged bytes.Buffer
	if err := errors.Join(r.Text(&alone, Style{}), Merge([]*Report{r, told(t)}, [][]string{{"a"}, {"b"}}).Text(&merged, Style{})); err != nil {
		t.Fatal(err)
	}
	if want := "DRAM peaked at 10.0 % (chip 0 of process 1 at "; !strings.Contains(alone.String(), want) {
		t.Errorf("no %q in\n%s", want, alone.String())
	}
	if want := "  0 of process 1  "; !strings.Contains(merged.String(), want) {
		t.Errorf("no %q in\n%s", want, merged.String())
	}
}

func TestPercent(t *testing.T) {
	for share, want := range map[float64]string{0: "0.0 %", 1e-9: "< 0.1 %", 0.00018: "< 0.1 %", 0.001: "0.1 %", 0.5: "50.0 %", 0.9996: "99.9 %", 1: "100.0 %", 1.2: "120.0 %"} {
		if got := percent(share); got != want {
			t.Errorf("%v: %s, not %s", share, got, want)
		}
	}
}

// Lists are of the largest sites, and of the sum of all others, so that they add up.
func TestManySites(t *testing.T) {
	events := opened()
	for i := range uint64(150) {
		events = append(events, alloc(2, 1+i, 1000*i, 500-i, nil))
	}
	r := told(t, append(events, freed(3, 1))...)
	add := func(list []Site) (n, buffers, bytes uint64) {
		for _, s := range list {
			n, buffers, bytes = n+max(1, s.Others), buffers+s.Buffers, bytes+s.Bytes
		}
		return n, buffers, bytes
	}
	m := r.Memories[0]
	if n, buffers, bytes := add(m.Holders); len(m.Holders) != manyHolders+1 || n != 150 || buffers != m.PeakBuffers || bytes != m.Peak {
		t.Errorf("holders: %d sites of %d, with %d buffers, %d bytes", len(m.Holders), n, buffers, bytes)
	}
	if n, buffers, bytes := add(r.Left); len(r.Left) != manySites+1 || n != 149 || buffers != 149 || bytes != 2*m.End || r.Left[manySites].Memory != "DRAM" {
		t.Errorf("left: %d sites of %d, with %d buffers, %d bytes", len(r.Left), n, buffers, bytes)
	}
	if n, buffers, bytes := add(r.Churn); len(r.Churn) != manySites+1 || n != 150 || buffers != 150 || bytes != 2*m.Peak {
		t.Errorf("churn: %d sites of %d, with %d buffers, %d bytes", len(r.Churn), n, buffers, bytes)
	}
	var b bytes.Buffer
	if err := r.Text(&b, Style{}); err != nil {
		t.Fatal(err)
	}
	if got := b.String(); strings.Count(got, "… 139 more, the largest with --json") != 1 || strings.Count(got, "… 140 more, the largest with --json") != 1 || strings.Count(got, "… 145 more, the largest with --json") != 1 {
		t.Error(got)
	}
	h := Merge([]*Report{r, r}, [][]string{{"a"}, {"b"}})
	if x := h.Left[manySites]; len(h.Left) != manySites+1 || x.Others != 49 || x.Buffers != 98 || x.Site != "49 others" || x.Memory != "DRAM" {
		t.Errorf("of two hosts: %+v", x)
	}
	d := NewDiff(told(t, opened()...), r)
	if x := d.Left[manySites]; len(d.Left) != manySites+1 || x.Others != 49 || x.BuffersAfter != 49 {
		t.Errorf("difference: %+v", x)
	}
}

// Two reports on the same events are the same, also in the order of what ends at one time.
func TestReportsAreReproducible(t *testing.T) {
	var events []aggregator.Event
	for pid := uint32(1); pid <= 8; pid++ {
		for _, e := range append(opened(), alloc(2, 1, 100, 100, stack(10)), alloc(3, 2, 300, 100, stack(20))) {
			e.PID = pid
			if e.Process != nil {
				e.Process = &aggregator.Process{Command: "c", Started: 7, Late: true, RanBefore: true}
			}
			events = append(events, e)
		}
	}
	first := map[string]string{}
	for range 5 {
		r := told(t, events...)
		for name, write := range map[string]func(io.Writer) error{
			"text": func(w io.Writer) error { return r.Text(w, Style{}) }, "json": r.JSON, "csv": r.CSV, "chrome": r.Chrome, "profile": r.Profile, "html": r.HTML,
		} {
			var b strings.Builder
			if err := write(&b); err != nil {
				t.Fatal(err)
			}
			if first[name] == "" {
				first[name] = b.String()
			} else if b.String() != first[name] {
				t.Errorf("%s differs from one time to the next", name)
			}
		}
	}
}

// The past of a process that ran before tracing began is unknown, also once all that it held then has been read.
func TestLate(t *testing.T) {
	info := aggregator.Process{Command: "c", Started: 7, Late: true, RanBefore: true}
	read := info
	read.Late = false
	start := aggregator.Event{Kind: aggregator.ProcessStart, PID: 1, Time: second, Process: &info}
	scan := aggregator.Event{Kind: aggregator.Scanned, PID: 1, Time: second, Scan: &aggregator.Scan{First: true, Allocators: []uint64{8}, ProgramsRead: true,
		Buffers: []aggregator.LiveBuffer{{Device: 7, Allocator: 8, Buffer: 1, Address: 100, PerBank: 100, Size: 200}, {Device: 7, Allocator: 8, Buffer: 2, Address: 300, PerBank: 100, Size: 200}}}}
	now := aggregator.Event{Kind: aggregator.ProcessStart, PID: 1, Time: second, Process: &read}
	later := alloc(3, 3, 500, 100, nil)
	later.Size = 200
	held := []aggregator.Event{start, opened()[1], opened()[2], scan, now, later, freed(5, 2), alloc(9, 4, 700, 10, nil)}
	r := told(t, held...)
	if len(r.Left) != 2 || r.Left[0].Buffers != 2 || r.Left[0].Oldest != nil || *r.Left[0].Youngest != 6 || *r.Left[1].Oldest != 0 {
		t.Errorf("ages: %+v", r.Left)
	}
	if len(r.Churn) != 2 || r.Churn[0].Buffers != 1 || r.Churn[0].Freed != 1 || r.Churn[0].MeanLife != nil {
		t.Errorf("allocations and lifetimes: %+v", r.Churn)
	}
	if !r.Exact || !r.Processes[0].RanBefore || r.NoAdvice == nil || !strings.Contains(string(*r.NoAdvice), "process 1 ran before tracing began") {
		t.Errorf("exact %t, %+v, no advice as %v", r.Exact, r.Processes, r.NoAdvice)
	}
	var b bytes.Buffer
	if err := r.Text(&b, Style{}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"  ✓ 3 buffers still allocated at the end", "  ! process 1 ran before tracing began: earlier peaks", "c; from before tracing began, still running", "  6s – ·  ", "\nPeak use and its holders, per chip, since tracing began\n"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q in\n%s", want, b.String())
		}
	}

	// It may have closed what it had open.
	if r := told(t, append([]aggregator.Event{start, now}, append(opened()[1:], later)...)...); !r.Processes[0].RanBefore || len(r.Advice) > 0 {
		t.Errorf("what was closed: %+v, %+v", r.Processes, r.Advice)
	}
	// One that was started since was only seen before the probes of its library were in.
	info.RanBefore, read.RanBefore = false, false
	if r := told(t, append([]aggregator.Event{start, now}, append(opened()[1:], later)...)...); r.Processes[0].RanBefore || r.NoAdvice != nil {
		t.Errorf("started since: %+v, %v", r.Processes, r.NoAdvice)
	}
	if r := told(t, held...); !r.Processes[0].RanBefore {
		t.Errorf("it held something: %+v", r.Processes)
	}
}

func stateOf(events []aggregator.Event) []aggregator.Event {
	a := aggregator.New()
	for i := range events {
		a.Apply(&events[i])
	}
	return a.State()
}

// The peaks and counts of a sampled process are marked as lower bounds.
func TestSampled(t *testing.T) {
	events := append(opened(), alloc(2, 1, 100, 100, nil), freed(4, 1), aggregator.Event{Kind: aggregator.ProcessExit, PID: 1, Time: 9 * second})
	traced := told(t, events...)
	events[0].Process = &aggregator.Process{Command: "m", Source: aggregator.Sampled}
	r := told(t, events...)
	if traced.Sampled || !r.Sampled {
		t.Errorf("traced counts as sampled: %t, and sampled: %t", traced.Sampled, r.Sampled)
	}
	for r, want := range map[*Report]bool{traced: false, r: true} {
		var b bytes.Buffer
		if err := r.Text(&b, Style{}); err != nil {
			t.Fatal(err)
		}
		for _, text := range []string{"DRAM peaked at ≥ 10.0 %", "per chip: at least", "! sampled: ", "every buffer that was seen was freed", "chips): at least"} {
			if strings.Contains(b.String(), text) != want {
				t.Errorf("%q, want it %t, in\n%s", text, want, b.String())
			}
		}
		b.Reset()
		if err := r.HTML(&b); err != nil {
			t.Fatal(err)
		}
		for _, heading := range []string{"Use over time, by call site", "Peak use and its holders", "Most allocated over time"} {
			if strings.Contains(b.String(), heading+": at least</h2>") != want || strings.Contains(b.String(), heading+"</h2>") == want {
				t.Errorf("%q, want it at least: %t, in\n%s", heading, want, b.String()[:3000])
			}
		}
	}
}

// What a sampled process had at its last sample it can have freed before its end.
func TestLiveAtTheLastSample(t *testing.T) {
	events := append(opened(), alloc(2, 1, 100, 100, nil), aggregator.Event{Kind: aggregator.ProcessExit, PID: 1, Time: 9 * second})
	of := map[aggregator.Source]string{}
	for _, source := range []aggregator.Source{aggregator.Traced, aggregator.Sampled} {
		events[0].Process = &aggregator.Process{Command: "m", Source: source}
		var text, page bytes.Buffer
		r := told(t, events...)
		if err := errors.Join(r.Text(&text, Style{}), r.HTML(&page)); err != nil {
			t.Fatal(err)
		}
		of[source] = text.String() + page.String()
	}
	for _, known := range []string{"1 buffer not freed", "Not freed (", ">Not freed</h2>", " not freed", ">not freed<option", ">not freed at exit"} {
		if !strings.Contains(of[aggregator.Traced], known) || strings.Contains(of[aggregator.Sampled], known) {
			t.Errorf("%q of what was traced and not of what was sampled, but:\n%s", known, of[aggregator.Sampled][:2000])
		}
	}
	for _, known := range []string{"whether they were freed after it is unknown", "Live at the last sample (", ">Live at the last sample</h2>", " at its last sample", ">live at the last sample<option", ">at its last sample"} {
		if !strings.Contains(of[aggregator.Sampled], known) || strings.Contains(of[aggregator.Traced], known) {
			t.Errorf("%q of what was sampled and not of what was traced, but:\n%s", known, of[aggregator.Sampled][:2000])
		}
	}
}

// A report of sampled processes names those that could not be read, at the end or when they exited, and no others.
func TestUnreadProcessesAreNamed(t *testing.T) {
	raised := func(pid uint32) aggregator.Event {
		return aggregator.Event{Kind: aggregator.ReasonRaised, PID: pid, Time: 3 * second, Reason: &aggregator.Reason{Code: exact.ReasonScanFailed, Detail: "it hangs"}}
	}
	var events []aggregator.Event
	for pid := range uint32(3) {
		events = append(events, aggregator.Event{Kind: aggregator.ProcessStart, PID: pid + 1, Time: second, Process: &aggregator.Process{Command: "m", Source: aggregator.Sampled}})
	}
	events = append(events, raised(1), raised(2), aggregator.Event{Kind: aggregator.ProcessExit, PID: 2, Time: 4 * second})
	var b bytes.Buffer
	if err := told(t, events...).Text(&b, Style{}); err != nil {
		t.Fatal(err)
	}
	for pid, want := range map[int]bool{1: true, 2: true, 3: false} {
		if named := fmt.Sprintf("! not exact: process %d: its memory could not be read: it hangs\n", pid); strings.Contains(b.String(), named) != want {
			t.Errorf("%q, want it %t, in\n%s", named, want, b.String())
		}
	}
}

// Differences, and reports of several hosts, say of a sampled process no more than a report of it does.
func TestSampledInDiffAndHosts(t *testing.T) {
	events := append(opened(), alloc(2, 1, 100, 100, nil), alloc(3, 2, 100, 100, nil), freed(4, 2), aggregator.Event{Kind: aggregator.ProcessExit, PID: 1, Time: 9 * second})
	traced := told(t, events...)
	events[0].Process = &aggregator.Process{Command: "m", Source: aggregator.Sampled}
	sampled := told(t, events...)
	const notFreed, last, either = "\nNot freed (", "\nLive at the last sample (", "\nNot freed, or live at the last sample ("
	for _, c := range []struct {
		name         string
		a, b         *Report
		want         []string
		hosts, diffs []string
		not          []string
	}{
		{"traced", traced, traced, []string{notFreed}, []string{"  NOT FREED  ", "  yes  "}, nil, []string{"at least", "sample", "NOT SEEN"}},
		{"sampled", sampled, sampled, []string{last, ": at least"}, []string{"  NOT SEEN FREED  ", "  sampled  "}, []string{"\nfrom s (sampled)\n", "\n  to s (sampled)\n"}, []string{"ever freed", "NEVER", "  yes  "}},
		{"one sampled", traced, sampled, []string{either, ": at least"}, []string{"  NOT SEEN FREED  ", "  sampled  ", "  yes  "}, []string{"\nfrom s\n", "\n  to s (sampled)\n"}, []string{notFreed, last, "NEVER"}},
	} {
		var diff, hosts bytes.Buffer
		if err := errors.Join(NewDiff(c.a, c.b).Text(&diff, Style{}), Merge([]*Report{c.a, c.b}, make([][]string, 2)).Text(&hosts, Style{})); err != nil {
			t.Fatal(err)
		}
		for what, text := range map[string]string{"diff": "\n" + diff.String(), "hosts": hosts.String()} {
			want := append(slices.Clone(c.want), c.hosts...)
			if what == "diff" {
				want = append(slices.Clone(c.want), c.diffs...)
			}
			for _, w := range want {
				if !strings.Contains(text, w) {
					t.Errorf("%s, %s: %q is missing in\n%s", c.name, what, w, text)
				}
			}
			for _, no := range c.not {
				if strings.Contains(text, no) {
					t.Errorf("%s, %s: %q is in\n%s", c.name, what, no, text)
				}
			}
		}
	}
}

// Before and after a state, the report goes on with the same live buffers.
func TestAStateKeepsLiveBuffers(t *testing.T) {
	a := aggregator.New()
	events := append(opened(), alloc(2, 1, 100, 100, stack(10)), alloc(3, 2, 200, 300, nil))
	for i := range events {
		a.Apply(&events[i])
	}
	r := told(t, append(a.State(), freed(4, 1))...)
	if m := r.Memories[0]; m.Peak != 800 || m.End != 600 || len(m.Holders) != 2 {
		t.Errorf("%+v", m)
	}
	if len(r.Left) != 1 || r.Left[0].Bytes != 1200 || len(r.Churn) != 0 {
		t.Errorf("left %+v, churn %+v", r.Left, r.Churn)
	}
	if r.Began.Unix() != 3 || r.Seconds != 1 || r.Stacks != 0 {
		t.Errorf("from %v on for %v s, %d stacks", r.Began, r.Seconds, r.Stacks)
	}
	// The same in one batch, with events ahead of the state.
	a = aggregator.New()
	b := NewBuilder(a)
	a.OnChange = b.Change
	for _, batch := range [][]aggregator.Event{append(slices.Clone(events), stateOf(events)...), {freed(4, 1)}} {
		for i := range batch {
			a.Apply(&batch[i])
			b.Event(&batch[i])
		}
	}
	r = b.Report(Facts{Wall: func(at uint64) time.Time { return time.Unix(0, int64(at)) }})
	if m := r.Memories[0]; m.Peak != 800 || m.End != 600 || len(r.Left) != 1 || r.Left[0].Bytes != 1200 {
		t.Errorf("%+v, left %+v", m, r.Left)
	}
	// If files are missing before it, what was there is gone without an event.
	cb := aggregator.Event{Kind: aggregator.CBPlaced, PID: 1, Time: 2 * second, Program: 5, Device: 7, CB: &aggregator.CircularBuffer{Size: 64, Ranges: []aggregator.CoreRange{{}}}}
	r = told(t, append(append(opened(), alloc(2, 1, 100, 100, nil), cb), aggregator.New().State()...)...)
	if m, p := r.Memories[0], r.Programs[0]; m.Peak != 200 || m.End != 0 || len(m.Holders) != 1 || p.Peak != 64 || len(p.Holders) != 1 {
		t.Errorf("%+v %+v", m, p)
	}
}

// A recording that was rotated is reported on as one that was not, also where more happened right behind a state.
func TestRotatedIsAsOne(t *testing.T) {
	cb := aggregator.Event{Kind: aggregator.CBPlaced, PID: 1, Time: 3 * second, Program: 5, Device: 7, CB: &aggregator.CircularBuffer{Size: 64, Ranges: []aggregator.CoreRange{{}}}}
	gone := aggregator.Event{Kind: aggregator.ProgramGone, PID: 1, Time: 7 * second, Program: 5}
	cut := &aggregator.Stack{Frames: stack(30).Frames, Cut: true}
	events := append(opened(), alloc(2, 1, 100, 100, stack(10)), cb, alloc(3, 2, 200, 300, cut), freed(4, 1),
		alloc(5, 3, 600, 50, nil), alloc(6, 4, 700, 20, stack(10)), gone, freed(8, 4), freed(9, 2))
	reported := func(rotated ...int) string {
		var file bytes.Buffer
		var w *record.Writer
		a := aggregator.New()
		for i := range events {
			var err error
			if i == 0 || slices.Contains(rotated, i) {
				if w != nil {
					err = w.Close()
				}
				if err == nil {
					w, err = record.NewWriter(&file, record.Header{})
				}
				if err == nil && i > 0 {
					err = w.Write(a.State())
				}
			}
			if err == nil {
				err = w.Write(events[i : i+1])
			}
			if err != nil {
				t.Fatal(err)
			}
			a.Apply(&events[i])
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		r, err := record.NewReader(&file)
		if err != nil {
			t.Fatal(err)
		}
		a = aggregator.New()
		b := NewBuilder(a)
		a.OnChange, a.OnCBChange = b.Change, b.CBChange
		for {
			list, err := r.Next()
			if err == io.EOF {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			for i := range list {
				a.Apply(&list[i])
				b.Event(&list[i])
			}
		}
		var out bytes.Buffer
		if err := b.Report(Facts{Wall: func(at uint64) time.Time { return time.Unix(0, int64(at)).UTC() }}).JSON(&out); err != nil {
			t.Fatal(err)
		}
		return out.String()
	}
	want := reported()
	for i := 1; i < len(events); i++ {
		if got := reported(i, i+2); got != want {
			t.Fatalf("rotated at %d:\n%s\nnot\n%s", i, got, want)
		}
	}
}

// What was freed by an event that was lost is no leak, whether a scan of the process shows it or a new buffer in its place.
func TestALostFreeIsNoLeak(t *testing.T) {
	r := told(t, append(opened(), alloc(2, 1, 100, 100, nil), alloc(2, 2, 200, 100, nil), alloc(2, 3, 300, 100, nil),
		aggregator.Event{Kind: aggregator.Lost, Time: 3 * second, Count: 2},
		alloc(4, 1, 100, 200, nil),
		aggregator.Event{Kind: aggregator.Scanned, PID: 1, Time: 5 * second, Scan: &aggregator.Scan{Allocators: []uint64{8},
			Buffers: []aggregator.LiveBuffer{{Buffer: 1, Device: 7, Allocator: 8, Address: 100, Size: 200, PerBank: 200}, {Buffer: 3, Device: 7, Allocator: 8, Address: 300, Size: 100, PerBank: 100}}}},
		freed(6, 1), aggregator.Event{Kind: aggregator.AllocatorGone, PID: 1, Time: 7 * second, Allocator: 8})...)
	if len(r.Left) != 1 || r.Left[0].Buffers != 1 || r.Left[0].AtClose != 1 || *r.Left[0].Size != 100 {
		t.Errorf("left %+v", r.Left)
	}
	if c := r.Churn[0]; *c.Size != 100 || c.Freed != 2 || *c.MeanLife != 2.5 {
		t.Errorf("churn %+v", r.Churn)
	}
	// The accounts are right again, what is missing before stays missing.
	if r.Lost != 2 || r.Exact {
		t.Errorf("%d lost, exact %v", r.Lost, r.Exact)
	}
	r = told(t, append(append(opened(), aggregator.Event{Kind: aggregator.Lost, Time: 3 * second, Count: 2}), aggregator.New().State()...)...)
	if r.Lost != 2 || r.Exact {
		t.Errorf("before a state: %d lost, exact %v", r.Lost, r.Exact)
	}
	if r = told(t, opened()...); r.Lost != 0 || !r.Exact {
		t.Errorf("of none: %d lost, exact %v", r.Lost, r.Exact)
	}
}

// Nothing that a process says controls the terminal or the page.
func TestHostileText(t *testing.T) {
	r := told(t, append(opened(), alloc(2, 1, 100, 100, stack(10)), aggregator.Event{Kind: aggregator.AllocationFailed, PID: 1, Time: 3 * second,
		Memory: aggregator.L1, Failure: &aggregator.FailedAllocation{Message: "\x1b]0;x\x07<img src=x>\n\"'\u202eGiB 21"}})...)
	for format, write := range map[string]func(*Report, *bytes.Buffer) error{
		"text": func(r *Report, b *bytes.Buffer) error { return r.Text(b, Style{}) }, "html": func(r *Report, b *bytes.Buffer) error { return r.HTML(b) },
		"json": func(r *Report, b *bytes.Buffer) error { return r.JSON(b) }, "chrome": func(r *Report, b *bytes.Buffer) error { return r.Chrome(b) },
	} {
		var b bytes.Buffer
		if err := write(r, &b); err != nil {
			t.Fatal(err)
		}
		if strings.ContainsAny(b.String(), "\x1b\x07\u202e") {
			t.Errorf("%s has control characters", format)
		}
		if format == "html" && (strings.Contains(b.String(), "<img") || strings.Count(b.String(), "<script") != 3) {
			t.Error("the page has a process's markup")
		}
		if (format == "json" || format == "chrome") && !json.Valid(b.Bytes()) {
			t.Errorf("%s is no JSON", format)
		}
	}
}

func TestDiff(t *testing.T) {
	before := told(t, append(opened(), alloc(2, 1, 100, 100, stack(10)))...)
	after := told(t, append(opened(), alloc(2, 1, 100, 100, stack(10)), alloc(3, 2, 200, 300, stack(20)))...)
	d := NewDiff(before, after)
	if len(d.Peaks) != 2 || d.Peaks[0].Before != 200 || d.Peaks[0].After != 800 {
		t.Errorf("%+v", d.Peaks)
	}
	if len(d.Left) != 1 || d.Left[0].Before != 0 || d.Left[0].After != 1200 || !strings.HasPrefix(string(d.Left[0].Site), "m.py:20") {
		t.Errorf("%+v", d.Left)
	}
	if same := NewDiff(after, after); len(same.Peaks)+len(same.Left)+len(same.Churn) != 0 {
		t.Errorf("%+v", same)
	}
	var b bytes.Buffer
	if err := d.Text(&b, Style{}); err != nil || !strings.Contains(b.String(), "+1.17 KiB") {
		t.Errorf("%v %s", err, b.String())
	}
}

// A chip that a process numbers by itself is not the host's of that number.
func TestDiffNamesPrivateChips(t *testing.T) {
	pid := uint32(7)
	before := &Report{Memories: []Memory{{Chip: 0, Memory: "DRAM", Peak: 100}, {Chip: 0, Private: &pid, Memory: "DRAM", Peak: 1}}}
	after := &Report{Memories: []Memory{{Chip: 0, Memory: "DRAM", Peak: 200}, {Chip: 0, Private: &pid, Memory: "DRAM", Peak: 201}}}
	d := NewDiff(before, after)
	if len(d.Peaks) != 2 || d.Peaks[0].Private || !d.Peaks[1].Private {
		t.Errorf("%+v", d.Peaks)
	}
	var b bytes.Buffer
	if err := d.Text(&b, Style{}); err != nil || !strings.Contains(b.String(), "of chip 0\n") || !strings.Contains(b.String(), "of chip 0, as their process numbers them\n") {
		t.Errorf("%v %s", err, b.String())
	}
}

// However long it goes on, a timeline has a bounded number of points, and none of its peaks is lost.
func TestTimelineIsBounded(t *testing.T) {
	events := opened()
	for i := range uint64(3000) {
		at := 2 + i*i // at wider and wider intervals
		events = append(events, alloc(at, 1, 100, 100+i%7, nil), freed(at+1, 1))
	}
	events = append(events, alloc(1<<62, 2, 100, 1, nil))
	r := told(t, events...)
	line := r.Memories[0].Timeline
	top := uint64(0)
	for i, p := range line {
		top = max(top, p.Used)
		if i > 0 && p.At <= line[i-1].At {
			t.Fatalf("point %d is at %v, the previous one at %v", i, p.At, line[i-1].At)
		}
	}
	if len(line) > points+1 || len(line) < points/4 || top != r.Memories[0].Peak {
		t.Errorf("%d points, up to %d of %d", len(line), top, r.Memories[0].Peak)
	}
}

// A point of a timeline is the most that was held from there to the next one, where nothing came or went as well.
func TestTimelineHoldsBetweenChanges(t *testing.T) {
	changes := []struct {
		at   float64
		used uint64
	}{{1, 200}, {3, 800}, {5, 600}, {9, 0}, {10, 20}}
	events := append(opened(), alloc(2, 1, 100, 100, nil), alloc(4, 2, 200, 300, nil), freed(6, 1), freed(10, 2), alloc(11, 3, 100, 10, nil))
	m := told(t, events...).Memories[0]
	for i, p := range m.Timeline {
		to := 11.0
		if i+1 < len(m.Timeline) {
			to = m.Timeline[i+1].At
		}
		var want uint64
		for j, c := range changes {
			if c.at < to && (j+1 == len(changes) || changes[j+1].at >= p.At) {
				want = max(want, c.used)
			}
		}
		if p.Used != want {
			t.Fatalf("from %v to %v s: %d, not %d", p.At, to, p.Used, want)
		}
	}
}

func TestCSVHasALineForEachPoint(t *testing.T) {
	r := told(t, append(opened(), alloc(2, 1, 100, 100, nil), freed(3, 1), alloc(4, 1, 100, 50, nil))...)
	var b bytes.Buffer
	if err := r.CSV(&b); err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(b.String(), "\n"); n != 1+len(r.Memories[0].Timeline)+len(r.Memories[1].Timeline) {
		t.Errorf("%d lines: %s", n, b.String())
	}
}

// If there are too many places, the rest are one place that has no calls.
func TestTooManySites(t *testing.T) {
	s := sites{map[siteKey]*site{}, map[*aggregator.Stack]string{}}
	var last *site
	for i := range uint64(maxSites + 1) {
		last = s.of(1, &aggregator.BufferSnapshot{Size: i})
	}
	if again := s.of(1, &aggregator.BufferSnapshot{Stack: stack(1)}); again != last || again.calls != nil {
		t.Errorf("%+v", again.calls)
	}
	if p := last.public(tally{}); *p.Where != "others" || p.Operation != nil || p.Stack != nil {
		t.Errorf("%+v", p)
	}
}

func TestOperationNames(t *testing.T) {
	for _, c := range []struct{ frames, want string }{
		{"ttnn::create_device_tensor ttnn::operations::binary_ng::BinaryNgDeviceOperation::create_output_tensors ttnn::prim::binary_ng ttnn::add", "ttnn::add"},
		{"ttnn::create_device_tensor ttnn::prim::binary_ng main", "ttnn::prim::binary_ng"},
		{"ttnn::operations::binary_ng::BinaryNgDeviceOperation::create_output_tensors main", "ttnn::operations::binary_ng::BinaryNgDeviceOperation"},
		{"tt::tt_metal::Buffer::create main", ""},
	} {
		st := &aggregator.Stack{}
		for f := range strings.FieldsSeq(c.frames) {
			st.Frames = append(st.Frames, aggregator.Frame{Function: f})
		}
		if got := operation(st); got != c.want {
			t.Errorf("%s: %q, not %q", c.frames, got, c.want)
		}
	}
	if got := where(&aggregator.Stack{Frames: []aggregator.Frame{{Function: "tt::x"}, {Function: "app::load", Module: "/a"}, {Function: "main", Module: "/a"}}}); got != "app::load ← main" {
		t.Error(got)
	}
	if got := fmt.Sprint([]string{Size(0), Size(1023), Size(1536)}); got != "[0 B 1023 B 1.50 KiB]" {
		t.Error(got)
	}
}

// In a narrow terminal no number and no call site is lost: the site has a line of its own.
func TestTextOfANarrowTerminal(t *testing.T) {
	r := overTime(append(opened(), alloc(2, 1, 100, 100, stack(10)))...)
	for _, width := range []int{30, 50, 60, 120} {
		var b strings.Builder
		if err := r.Text(&b, Style{Width: width}); err != nil {
			t.Fatal(err)
		}
		_, left, _ := strings.Cut(b.String(), "Not freed")
		left, _, _ = strings.Cut(left, "\n\n")
		for _, want := range []string{"still allocated", "DRAM", "400 B", "\n      m.py:10 f"} {
			if strings.HasPrefix(want, "\n") && width == 120 {
				want = "  m.py:10 f<script>"
			}
			if !strings.Contains(left, want) {
				t.Errorf("%d wide: no %q in\n%s", width, want, left)
			}
		}
	}
}

// A process that was not traced, alive or ended, is named, and nothing is claimed about buffers that nobody saw. One that is traced
// later, or turns out not to use the runtime, is not.
func TestVerdictOnProcessesThatWereNotTraced(t *testing.T) {
	raised := func(unsure bool) aggregator.Event {
		return aggregator.Event{Kind: aggregator.ReasonRaised, PID: 9, Time: second, Reason: &aggregator.Reason{Code: exact.ReasonNotTraced, Detail: "no symbols", Unsure: unsure}}
	}
	lifted := aggregator.Event{Kind: aggregator.ReasonLifted, PID: 9, Time: 2 * second, Reason: &aggregator.Reason{Code: exact.ReasonNotTraced}}
	exit := func(pid uint32) aggregator.Event {
		return aggregator.Event{Kind: aggregator.ProcessExit, PID: pid, Time: 3 * second}
	}
	traced := slices.Concat(opened(), []aggregator.Event{alloc(2, 1, 100, 100, nil), freed(3, 1), exit(1)})
	begins := aggregator.Event{Kind: aggregator.ProcessStart, PID: 9, Time: second, Process: &aggregator.Process{Command: "m"}}
	const named, seen, all = "process 9: it uses the runtime and is not traced: no symbols", "every buffer that was seen was freed", "every buffer was freed"
	for name, c := range map[string]struct {
		events     []aggregator.Event
		want, lack []string
	}{
		"alive":                 {[]aggregator.Event{raised(false)}, []string{named}, []string{seen, all}},
		"ended":                 {[]aggregator.Event{raised(false), lifted, exit(9)}, []string{named}, []string{seen, all}},
		"ended without a word":  {[]aggregator.Event{raised(false), exit(9)}, []string{named}, []string{seen, all}},
		"beside one":            {append([]aggregator.Event{raised(false), lifted, exit(9)}, traced...), []string{named, seen}, []string{all}},
		"it does not use it":    {append([]aggregator.Event{raised(true), lifted}, traced...), []string{all}, []string{"process 9", seen}},
		"traced after all":      {append([]aggregator.Event{raised(false), begins, lifted, exit(9)}, traced...), []string{all}, []string{"process 9:", seen}},
		"nobody was left alone": {traced, []string{all}, []string{"process 9", seen}},
	} {
		t.Run(name, func(t *testing.T) {
			var b bytes.Buffer
			if err := told(t, c.events...).Text(&b, Style{}); err != nil {
				t.Fatal(err)
			}
			for _, text := range c.want {
				if !strings.Contains(b.String(), text) {
					t.Errorf("no %q in\n%s", text, b.String())
				}
			}
			for _, text := range append(c.lack, "no process used the TT-Metal runtime") {
				if strings.Contains(b.String(), text) {
					t.Errorf("%q in\n%s", text, b.String())
				}
			}
		})
	}
}
