package export

import (
	"bytes"
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"testing"
	"unicode"

	"tt-memtrace/aggregator"
	"tt-memtrace/aggregator/exact"
)

func status(t *testing.T, s *aggregator.Snapshot) string {
	t.Helper()
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetIndent("", "  ")
	if err := e.Encode(NewStatus(s, wall(0), "tt-host-01", "v0.1.0")); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestStatus(t *testing.T) {
	golden(t, "testdata/status.json", status(t, stream(nil).Snapshot()))
	golden(t, "testdata/status-empty.json", status(t, aggregator.New().Snapshot()))
}

func TestWhatIsUnknownIsNullAndNotZero(t *testing.T) {
	unreserved := aggregator.EmptyUsage()
	unreserved.Requested, unreserved.Buffers, unreserved.Reserved, unreserved.PeakReserved = exact.Of(5), exact.Of(1), exact.Quantity{}, exact.Quantity{}
	use := statusUse(unreserved, false)
	if use.Reserved != nil || use.PeakReserved != nil || use.Capacity != nil || use.Banks != nil || use.BankBytes != nil {
		t.Errorf("%+v", use)
	}
	absent := aggregator.EmptyUsage()
	absent.PeakReserved, absent.Banks = exact.Bounded(7, exact.AtLeast), aggregator.Banks{Known: true}
	use = statusUse(absent, false)
	if use.Reserved == nil || *use.Reserved != 0 || use.PeakReserved != nil || use.Capacity == nil || *use.Capacity != 0 || *use.Banks != 0 {
		t.Errorf("nothing held, a peak that is not known, and no such memory: %+v", use)
	}
	all := aggregator.EmptyUsage()
	all.Reserved, all.PeakReserved, all.Banks = exact.Of(3), exact.Of(4), aggregator.Banks{Known: true, Count: 12, Bytes: 1 << 30}
	use = statusUse(all, false)
	if *use.Reserved != 3 || *use.PeakReserved != 4 || *use.Capacity != 12<<30 || *use.Banks != 12 || *use.BankBytes != 1<<30 {
		t.Errorf("all known: %+v", use)
	}
	lower := aggregator.EmptyUsage()
	lower.PeakRequested, lower.PeakReserved = exact.Bounded(8, exact.AtLeast), exact.Bounded(9, exact.AtLeast)
	use = statusUse(lower, false)
	if !use.PeaksAtLeast || *use.PeakRequested != 8 || *use.PeakReserved != 9 {
		t.Errorf("sampled: %+v", use)
	}
	got := status(t, &aggregator.Snapshot{Processes: []aggregator.ProcessSnapshot{{PID: 1, Chips: []aggregator.ChipSnapshot{{Memory: aggregator.EmptyUsages(), CB: aggregator.EmptyCBUsage()}}}}})
	for _, want := range []string{`"command": null`, `"library": null`, `"build_id": null`, `"release": null`, `"arch": null`, `"reserved_bytes": 0`, `"capacity_bytes": null`} {
		if !strings.Contains(got, want) {
			t.Errorf("no %s in %s", want, got)
		}
	}
	sampled := status(t, &aggregator.Snapshot{Processes: []aggregator.ProcessSnapshot{{PID: 1, Info: aggregator.Process{Source: aggregator.Sampled},
		Chips: []aggregator.ChipSnapshot{{Memory: [aggregator.NumMemories]aggregator.Usage{aggregator.DRAM: lower}, CB: aggregator.EmptyCBUsage()}}}}})
	for _, want := range []string{`"source": "sampled"`, `"replays": null`, `"peaks_at_least": true`} {
		if !strings.Contains(sampled, want) {
			t.Errorf("no %s in %s", want, sampled)
		}
	}
	for _, no := range []string{"private_to", "unplaced", "peaks_at_least"} {
		if strings.Contains(got, no) {
			t.Errorf("%s in %s", no, got)
		}
	}
}

// What the screen shows as unknown is null: nothing was seen, and a reason says that something may be there.
func TestNothingSeenIsNullWhereSomethingMayBeMissing(t *testing.T) {
	chip := func(pids []uint32, reasons ...aggregator.Reason) aggregator.ChipSnapshot {
		c := aggregator.ChipSnapshot{PIDs: pids, Reasons: reasons, Memory: aggregator.EmptyUsages(), CB: aggregator.EmptyCBUsage(), Kernel: aggregator.EmptyKernelUsage()}
		for m := range c.Memory {
			c.Memory[m].Banks = aggregator.Banks{Known: true, Count: 12, Bytes: 1 << 30}
		}
		c.Memory[aggregator.L1].Requested, c.Memory[aggregator.L1].Reserved, c.Memory[aggregator.L1].Buffers = exact.Of(5), exact.Of(6), exact.Of(1)
		c.Memory[aggregator.Trace].Banks = aggregator.Banks{Known: true} // there is none
		return c
	}
	refused := aggregator.Reason{Code: exact.ReasonNotTraced, PID: 7}
	launches := aggregator.Reason{Code: exact.ReasonLaunchesUncounted, PID: 7}
	unplaced := aggregator.Reason{Code: exact.ReasonChipsUnknown, PID: 7}
	for name, c := range map[string]struct {
		reason *aggregator.Reason
		late   bool
		source aggregator.Source
		// what may be missing of the process, and on its chip
		buffers, onChip, programs bool
	}{
		"exact":               {},
		"not traced":          {reason: &refused, buffers: true, onChip: true, programs: true},
		"launches, no memory": {reason: &launches},
		"unknown chips":       {reason: &unplaced, onChip: true, programs: true},
		"late":                {late: true, buffers: true, onChip: true, programs: true},
		"not sampled yet":     {source: aggregator.Sampled, buffers: true, onChip: true, programs: true},
	} {
		var reasons []aggregator.Reason
		if c.reason != nil {
			reasons = append(reasons, *c.reason)
		}
		p := aggregator.ProcessSnapshot{PID: 7, Late: c.late, Info: aggregator.Process{Source: c.source}, Reasons: reasons, Buffers: exact.Of(0), Chips: []aggregator.ChipSnapshot{chip([]uint32{7}, reasons...)}}
		// A chip has only the first of many reasons: its process has them all.
		ended := p
		ended.Chips = slices.Clone(p.Chips)
		s := &aggregator.Snapshot{Chips: []aggregator.ChipSnapshot{chip([]uint32{7})}, Processes: []aggregator.ProcessSnapshot{p}, Ended: []aggregator.ProcessSnapshot{ended}}
		s.Hide()
		st := NewStatus(s, wall(8e9), "", "")
		of := func(what string, unknown bool, counts ...*uint64) {
			t.Helper()
			for i, n := range counts {
				if (n == nil) != unknown || n != nil && *n != 0 {
					t.Errorf("%s: number %d of %s is %v, is it to be null: %v", name, i, what, n, unknown)
				}
			}
		}
		of("the process", c.buffers, st.Processes[0].Buffers)
		for at, sc := range map[string]StatusChip{"the chip": st.Chips[0], "its chip": st.Processes[0].Chips[0], "the ended one's": st.Ended[0].Chips[0]} {
			u, l1, trace, cb, k := sc.Memory["dram"], sc.Memory["l1"], sc.Memory["trace"], sc.Programs, sc.Kernels
			of(at, c.onChip, u.Requested, u.Reserved, u.Buffers, u.PeakRequested, u.PeakReserved)
			of(at, false, trace.Requested, trace.Reserved, trace.Buffers, trace.PeakRequested, trace.PeakReserved)
			of(at, c.programs, cb.Physical, cb.Logical, cb.PeakPhysical, cb.PeakLogical, cb.Programs, cb.Circular, cb.Dataflow, cb.Scratchpads, cb.Global, cb.Top)
			of(at, c.programs, k.Programs, k.Application, k.Fabric, k.Dispatch, k.Bytes, k.BytesOnCores, k.DRAMCopies, k.DRAMBytes)
			if l1.Requested == nil || *l1.Requested != 5 || l1.Reserved == nil || *l1.Reserved != 6 || *l1.Buffers != 1 {
				t.Errorf("%s: %s lacks what was seen: %+v", name, at, l1)
			}
			if u.Capacity == nil {
				t.Errorf("%s: %s has no capacity", name, at)
			}
		}
	}
	// A peak of 0 that is only a lower bound is unknown, too.
	nothing := aggregator.EmptyUsage()
	nothing.PeakRequested, nothing.PeakReserved = exact.Bounded(0, exact.AtLeast), exact.Bounded(0, exact.AtLeast)
	sampled := statusUse(nothing, false)
	if sampled.PeakRequested != nil || sampled.PeakReserved != nil || sampled.Requested == nil {
		t.Errorf("sampled: %+v", sampled)
	}
	// The cores of what clients report are unknown.
	reported := statusPrograms(aggregator.CBUsage{Logical: exact.Of(9), PeakLogical: exact.Of(9), Reported: exact.Of(1)})
	if reported.Physical != nil || reported.PeakPhysical != nil || reported.Top != nil || *reported.Logical != 9 {
		t.Errorf("reported: %+v", reported)
	}
}

func TestUnknownPartsOfAConfigRing(t *testing.T) {
	full := aggregator.RingUsage{ID: 1, Base: 35168, Capacity: exact.Of(70656), Used: exact.Of(5000), Places: exact.Of(2)}
	unread := full
	unread.Used, unread.Places = exact.Quantity{}, exact.Quantity{}
	for r, want := range map[aggregator.RingUsage]string{
		{}:      `null`,
		{ID: 1}: `null`,
		full:    `{"address":35168,"capacity_bytes":70656,"used_bytes":5000,"places":2}`,
		unread:  `{"address":35168,"capacity_bytes":70656,"used_bytes":null,"places":null}`,
	} {
		if got, err := json.Marshal(statusRing(r)); err != nil || string(got) != want {
			t.Errorf("%+v: %s, %v", r, got, err)
		}
	}
}

func TestExactOnlyWhenNothingIsMissing(t *testing.T) {
	why := []aggregator.Reason{{Code: exact.ReasonLate}}
	inexact := []aggregator.ProcessSnapshot{{PID: 1}, {PID: 2, Late: true, Reasons: why}}
	for name, c := range map[string]struct {
		snapshot aggregator.Snapshot
		want     bool
	}{
		"nothing":               {aggregator.Snapshot{}, true},
		"exact processes":       {aggregator.Snapshot{Processes: inexact[:1]}, true},
		"one inexact that went": {aggregator.Snapshot{Ended: inexact}, true},
		"one inexact":           {aggregator.Snapshot{Processes: inexact}, false},
		"the host":              {aggregator.Snapshot{Reasons: why}, false},
		"lost and healed":       {aggregator.Snapshot{Counters: aggregator.Counters{Lost: 1}, Processes: inexact[:1]}, true},
		"totals":                {aggregator.Snapshot{Lacks: []string{"peaks"}}, false},
	} {
		if got := NewStatus(&c.snapshot, wall(0), "", "").Exact; got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// The chips of a reason are named as all chips are: private numbers with their process.
func TestChipsOfReasons(t *testing.T) {
	r := aggregator.Reason{Code: exact.ReasonForked, PID: 7, Chips: []aggregator.Chip{{Space: 7, Number: 0}, {Number: 3}, {Space: 7, Number: 1}}}
	st := NewStatus(&aggregator.Snapshot{Processes: []aggregator.ProcessSnapshot{{PID: 7, Reasons: []aggregator.Reason{r, {Code: exact.ReasonLate, PID: 7}}}}}, wall(8e9), "", "")
	b, err := json.Marshal(st.Reasons)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"chips":[0,1],"private_to":7}`, `"chips":[3]}`, `"pid":7}`} {
		if !strings.Contains(string(b), want) {
			t.Errorf("no %s in %s", want, b)
		}
	}
	if len(st.Reasons) != 3 {
		t.Errorf("%d reasons, not 3: %s", len(st.Reasons), b)
	}
}

// A reason is where it belongs: at the top, and with its process and chips.
func TestReasons(t *testing.T) {
	r := aggregator.Reason{Code: exact.ReasonEventsUnread, Detail: "\x1b[2J", PID: 7, Chips: []aggregator.Chip{{Number: 3}}, Since: 5e9}
	s := aggregator.Snapshot{Time: 8e9,
		Reasons:   []aggregator.Reason{{Code: exact.ReasonBehind}},
		Processes: []aggregator.ProcessSnapshot{{PID: 7, Reasons: []aggregator.Reason{r}, Chips: []aggregator.ChipSnapshot{{Reasons: []aggregator.Reason{r}}, {}}}, {PID: 8}},
		Chips:     []aggregator.ChipSnapshot{{Reasons: []aggregator.Reason{r}}, {}}, Ended: []aggregator.ProcessSnapshot{{Reasons: []aggregator.Reason{r}}},
	}
	st := NewStatus(&s, wall(8e9), "", "")
	pid, since := uint32(7), wall(5e9)
	text := Text("an event was dropped: the process's memory could not be read: \x1b[2J")
	want := []StatusReason{{Code: "events_unread", Text: text, Since: &since, PID: &pid, Chips: []uint32{3}}}
	host := []StatusReason{{Code: "behind", Text: "the tracer is behind: events are queued"}}
	for name, c := range map[string]struct {
		exact     bool
		got, want []StatusReason
	}{
		"top": {st.Exact, st.Reasons, append(host, want...)}, "ended": {st.Ended[0].Exact, st.Ended[0].Reasons, want},
		"process": {st.Processes[0].Exact, st.Processes[0].Reasons, want}, "other process": {st.Processes[1].Exact, st.Processes[1].Reasons, nil},
		"its chip": {st.Processes[0].Chips[0].Exact, st.Processes[0].Chips[0].Reasons, want}, "its other chip": {st.Processes[0].Chips[1].Exact, st.Processes[0].Chips[1].Reasons, nil},
		"chip": {st.Chips[0].Exact, st.Chips[0].Reasons, want}, "other chip": {st.Chips[1].Exact, st.Chips[1].Reasons, nil},
	} {
		if c.exact != (len(c.want) == 0) || len(c.got) != len(c.want) || len(c.want) > 0 && !reflect.DeepEqual(c.got, c.want) {
			t.Errorf("%s: exact %v, %+v", name, c.exact, c.got)
		}
	}
}

// Unsafe buffers that nobody looked for are unknown, not 0. What was found is shown.
func TestUnknownUnsafeIsNull(t *testing.T) {
	none, two := exact.Of(0), exact.Of(2)
	for name, c := range map[string]struct {
		p    aggregator.ProcessSnapshot
		want string
	}{
		"known": {aggregator.ProcessSnapshot{Unsafe: aggregator.UnsafeUsage{Buffers: none, Bytes: none, Overlapping: none, OverlappingBytes: none, Found: none}},
			`{"buffers":0,"bytes":0,"overlapping_buffers":0,"overlapping_bytes":0,"buffers_total":0}`},
		"unknown": {aggregator.ProcessSnapshot{}, `{"buffers":null,"bytes":null,"overlapping_buffers":null,"overlapping_bytes":null,"buffers_total":null}`},
		"some": {aggregator.ProcessSnapshot{Unsafe: aggregator.UnsafeUsage{Buffers: two, Bytes: exact.Of(64), Found: exact.Of(3)}},
			`{"buffers":2,"bytes":64,"overlapping_buffers":null,"overlapping_bytes":null,"buffers_total":3}`},
		"sampled": {aggregator.ProcessSnapshot{Info: aggregator.Process{Source: aggregator.Sampled}}, `null`},
	} {
		got, err := json.Marshal(NewStatus(&aggregator.Snapshot{Processes: []aggregator.ProcessSnapshot{c.p}}, wall(0), "", "").Processes[0].Unsafe)
		if err != nil || string(got) != c.want {
			t.Errorf("%s: %s, %v", name, got, err)
		}
	}
}

func TestHostileTextIsInertAndUnchanged(t *testing.T) {
	for _, in := range []string{hostile, "", "plain", "\U0010ffff\U0001f600", "\ufffd"} {
		b, err := json.Marshal(Text(in))
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range string(b) {
			if !unicode.IsPrint(r) {
				t.Errorf("%q has %q", b, r)
			}
		}
		var out string
		if err := json.Unmarshal(b, &out); err != nil || out != strings.ToValidUTF8(strings.NewReplacer("\xff", "\ufffd", "\xfe", "\ufffd").Replace(in), "\ufffd") {
			t.Errorf("%q came back as %q, %v", in, out, err)
		}
	}
	got := status(t, stream(nil).Snapshot())
	for _, r := range got {
		if r != '\n' && !unicode.IsPrint(r) {
			t.Errorf("%q reached the terminal", r)
		}
	}
}

func FuzzTextIsInert(f *testing.F) {
	f.Add(hostile)
	f.Fuzz(func(t *testing.T, s string) {
		b, err := json.Marshal(Text(s))
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range string(b) {
			if !unicode.IsPrint(r) {
				t.Fatalf("%q of %q has %q", b, s, r)
			}
		}
		var out string
		if err := json.Unmarshal(b, &out); err != nil || out != string([]rune(s)) {
			t.Fatalf("%q came back as %q, %v", s, out, err)
		}
	})
}

// What is not known of kernels is null, not a part of it.
func TestKernelsOfUnknownSizeOrCores(t *testing.T) {
	known := aggregator.KernelUsage{Bytes: exact.Of(34), OnCores: exact.Of(308)}
	if k := statusKernels(known); k.Bytes == nil || *k.Bytes != 34 || k.BytesOnCores == nil || *k.BytesOnCores != 308 {
		t.Errorf("%+v", k)
	}
	known.OnCores = exact.Bounded(300, exact.AtLeast)
	if k := statusKernels(known); k.Bytes == nil || k.BytesOnCores != nil {
		t.Errorf("with one on unknown cores: %+v", k)
	}
}
