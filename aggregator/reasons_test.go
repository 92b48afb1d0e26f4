package aggregator

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"tt-memtrace/aggregator/exact"
)

// twoProcesses are process 1 with buffers 1 and 2 of 100 bytes on chip 0, as in
// holding, and process 2 with one on chip 1; chip 2 was closed.
func twoProcesses() *Aggregator {
	return run(twoBuffers(), opened(2, 1, host(1)), on(alloc(2, 1, 1, DRAM, 100)), opened(2, 9, host(2)), closed(2, 9), gone(2, 77))
}

// inexact lists what is not exact: processes, their chips, chips, and the snapshot.
func inexact(s *Snapshot) []string {
	codes := func(list []Reason) string {
		var out []string
		for _, r := range list {
			out = append(out, string(r.Code))
		}
		return strings.Join(out, ",")
	}
	var out []string
	if len(s.Reasons) > 0 {
		out = append(out, "host "+codes(s.Reasons))
	}
	for _, p := range s.Processes {
		if !p.Exact() {
			out = append(out, fmt.Sprintf("pid %d %s", p.PID, codes(p.Reasons)))
		}
		for _, c := range p.Chips {
			if !c.Exact() {
				out = append(out, fmt.Sprintf("pid %d on %s %s", p.PID, name(c.Chip), codes(c.Reasons)))
			}
		}
	}
	for _, c := range s.Chips {
		if !c.Exact() {
			out = append(out, fmt.Sprintf("chip %s %s", name(c.Chip), codes(c.Reasons)))
		}
	}
	if s.Exact() != (len(out) == 0) {
		out = append(out, fmt.Sprintf("and exact is %v", s.Exact()))
	}
	return out
}

func wantInexact(t *testing.T, when string, a *Aggregator, want ...string) {
	t.Helper()
	if got := inexact(a.Snapshot()); !slices.Equal(got, want) {
		t.Errorf("%s:\ngot  %q\nwant %q", when, got, want)
	}
}

func reason(kind Kind, pid uint32, code exact.ReasonCode, chips ...Chip) Event {
	return Event{Kind: kind, PID: pid, Reason: &Reason{Code: code, Detail: "why", Chips: chips}}
}

// Each reason is on what it affects and nowhere else, and is lifted when the numbers are corrected.
func TestReasons(t *testing.T) {
	same := []LiveBuffer{liveBuffer(1, 100), liveBuffer(2, 100)}
	full, buffers := scanned(Scan{Buffers: same}), scanned(Scan{Buffers: same, BuffersOnly: true})
	first := scanned(Scan{Buffers: same, First: true})
	partial := scanned(Scan{Buffers: same, Partial: true})
	partialBuffers := scanned(Scan{Buffers: same, Partial: true, BuffersOnly: true})
	implausible := scanned(Scan{Buffers: append([]LiveBuffer{liveBuffer(3, 1<<60)}, same...)})
	summed := Event{Kind: ProcessStart, PID: 1, Process: &Process{Started: 1, Source: FromSharedMemory}}
	attached := func(late bool) Event {
		return Event{Kind: ProcessStart, PID: 1, Process: &Process{Started: 1, Late: late}}
	}
	of1 := func(code exact.ReasonCode) []string {
		return []string{"pid 1 " + string(code), "pid 1 on 0 " + string(code), "chip 0 " + string(code)}
	}
	ofHost := func(code exact.ReasonCode) []string {
		return []string{"host " + string(code), "chip 0 " + string(code), "chip 1 " + string(code), "chip 2 " + string(code)}
	}
	cb := CircularBuffer{Size: 10, Ranges: []CoreRange{{X1: 1, Y1: 1}}}
	tested := map[exact.ReasonCode]bool{}
	for _, c := range []struct {
		name string
		code exact.ReasonCode
		by   []Event
		want []string
		// keeps are events that do not lift it, heals those that do; by its exit and
		// a ReasonLifted every reason is lifted.
		keeps, heals []Event
	}{
		{"attached late", exact.ReasonLate, []Event{attached(true)}, of1(exact.ReasonLate), []Event{full, buffers, attached(true)}, []Event{first}},
		{"attached late and read", exact.ReasonLate, []Event{attached(true)}, of1(exact.ReasonLate), nil, []Event{attached(false)}},
		{"a late device", exact.ReasonLate, []Event{late(opened(1, 5, host(0)))}, of1(exact.ReasonLate), []Event{full, buffers, attached(false)}, []Event{first}},
		{"a free of an unknown buffer", exact.ReasonUnmatchedFree, []Event{freed(1, 1, 77)}, of1(exact.ReasonUnmatchedFree), []Event{alloc(1, 1, 5, L1, 5), freed(1, 1, 5)}, []Event{buffers}},
		{"a free that was not seen", exact.ReasonMissedFree, []Event{on(alloc(1, 1, 1, DRAM, 10))}, of1(exact.ReasonMissedFree), nil, []Event{buffers}},
		{"an allocation without sense", exact.ReasonInconsistentEvents, []Event{alloc(1, 1, 5, NumMemories, 10)}, of1(exact.ReasonInconsistentEvents), nil, []Event{buffers}},
		{"a program without sense", exact.ReasonInconsistentProgramEvents, []Event{{Kind: CBPlaced, PID: 1, Device: 99, CB: &cb}}, of1(exact.ReasonInconsistentProgramEvents), []Event{full, buffers, first}, nil},
		{"a reading that left something out", exact.ReasonScanIncomplete, []Event{partial}, of1(exact.ReasonScanIncomplete), []Event{buffers, partial}, []Event{full}},
		{"a reading that left buffers out", exact.ReasonBuffersUnread, []Event{partialBuffers}, of1(exact.ReasonBuffersUnread), []Event{partialBuffers}, []Event{buffers}},
		{"an implausible buffer", exact.ReasonScanIncomplete, []Event{implausible}, of1(exact.ReasonScanIncomplete), []Event{buffers}, []Event{full}},
		{"totals alone", exact.ReasonTotalsOnly, []Event{summed}, of1(exact.ReasonTotalsOnly), []Event{full}, nil},
		{"a device of unknown chips", exact.ReasonChipsUnknown, []Event{opened(1, 8, nil)},
			append(of1(exact.ReasonChipsUnknown), "chip 1 chips_unknown", "chip 2 chips_unknown"), []Event{full, opened(1, 9, host(0))}, []Event{closed(1, 8)}},
		{"a buffer on unknown chips", exact.ReasonChipsUnknown, []Event{alloc(1, 8, 8, DRAM, 1)},
			append(of1(exact.ReasonChipsUnknown), "chip 1 chips_unknown", "chip 2 chips_unknown"), nil, []Event{opened(1, 8, host(0))}},
		{"a buffer on unknown chips that is freed", exact.ReasonChipsUnknown, []Event{alloc(1, 8, 8, DRAM, 1)},
			append(of1(exact.ReasonChipsUnknown), "chip 1 chips_unknown", "chip 2 chips_unknown"), nil, []Event{freed(1, 8, 8)}},
		{"a failed read", exact.ReasonEventsUnread, []Event{reason(ReasonRaised, 1, exact.ReasonEventsUnread)}, of1(exact.ReasonEventsUnread), []Event{buffers}, []Event{full}},
		{"blocks that disagree", exact.ReasonBlocksDisagree, []Event{scanned(Scan{Buffers: same, BuffersOnly: true, BlocksDisagree: "why"})}, of1(exact.ReasonBlocksDisagree), []Event{scanned(Scan{Buffers: same, BlocksDisagree: "again"})}, []Event{buffers}},
		{"totals that disagree", exact.ReasonTotalsDisagree, []Event{scanned(Scan{Buffers: same, TotalsDisagree: "why"})}, of1(exact.ReasonTotalsDisagree), []Event{buffers}, []Event{full}},
		{"launches that were not counted", exact.ReasonLaunchesUncounted, []Event{reason(ReasonRaised, 1, exact.ReasonLaunchesUncounted)}, of1(exact.ReasonLaunchesUncounted), []Event{full}, nil},
		{"reserved sizes that could not be read", exact.ReasonReservedUnknown, []Event{reason(ReasonRaised, 1, exact.ReasonReservedUnknown)}, of1(exact.ReasonReservedUnknown), []Event{full}, nil},
		{"a build with an unknown allocator", exact.ReasonUnknownAllocationFunctions, []Event{{Kind: ProcessStart, PID: 1, Process: &Process{Started: 1, UnknownMemory: "NewArena::allocate"}}}, of1(exact.ReasonUnknownAllocationFunctions), []Event{full}, []Event{attached(false)}},
		{"L1 outside of the allocator", exact.ReasonPersistentL1, []Event{scanned(Scan{Buffers: same, BuffersOnly: true, PersistentL1: "why", PersistentRead: true})}, of1(exact.ReasonPersistentL1), []Event{full}, []Event{scanned(Scan{Buffers: same, BuffersOnly: true, PersistentRead: true})}},
		{"a ring that could not be read", exact.ReasonConfigRingUnread, []Event{reason(ReasonRaised, 1, exact.ReasonConfigRingUnread)}, of1(exact.ReasonConfigRingUnread), []Event{full}, nil},
		{"a program on unknown chips", exact.ReasonProgramChipsUnknown, []Event{reason(ReasonRaised, 1, exact.ReasonProgramChipsUnknown)}, of1(exact.ReasonProgramChipsUnknown), []Event{full}, nil},
		{"traces from before", exact.ReasonTracesBeforeAttach, []Event{reason(ReasonRaised, 1, exact.ReasonTracesBeforeAttach)}, of1(exact.ReasonTracesBeforeAttach), []Event{full}, nil},
		{"traces that were not seen", exact.ReasonTracesMissed, []Event{reason(ReasonRaised, 1, exact.ReasonTracesMissed)}, of1(exact.ReasonTracesMissed), []Event{full}, nil},
		{"not read", exact.ReasonScanFailed, []Event{reason(ReasonRaised, 1, exact.ReasonScanFailed)}, of1(exact.ReasonScanFailed), []Event{buffers}, []Event{full}},
		{"a budget", exact.ReasonScanTimeout, []Event{reason(ReasonRaised, 1, exact.ReasonScanTimeout)}, of1(exact.ReasonScanTimeout), []Event{buffers}, []Event{full}},
		{"a fork", exact.ReasonForked, []Event{reason(ReasonRaised, 1, exact.ReasonForked)}, of1(exact.ReasonForked), []Event{full}, []Event{reason(ReasonLifted, 1, exact.ReasonForked)}},
		{"a limit", exact.ReasonLimitReached, []Event{reason(ReasonRaised, 1, exact.ReasonLimitReached)}, of1(exact.ReasonLimitReached), nil, []Event{full}},
		{"samples", exact.ReasonSampled, []Event{reason(ReasonRaised, 1, exact.ReasonSampled)}, of1(exact.ReasonSampled), []Event{full}, nil},
		{"of a newer version", "newer", []Event{reason(ReasonRaised, 1, "newer")}, of1("newer"), []Event{full, first}, nil},
		{"of the host", exact.ReasonBehind, []Event{reason(ReasonRaised, 0, exact.ReasonBehind)}, ofHost(exact.ReasonBehind), []Event{full}, nil},
		{"of a namespace", exact.ReasonPIDNamespace, []Event{reason(ReasonRaised, 0, exact.ReasonPIDNamespace)}, ofHost(exact.ReasonPIDNamespace), []Event{full}, nil},
		{"of other users", exact.ReasonOtherUsers, []Event{reason(ReasonRaised, 0, exact.ReasonOtherUsers)}, ofHost(exact.ReasonOtherUsers), []Event{full}, nil},
		{"of a process that is not traced", exact.ReasonNotTraced, []Event{reason(ReasonRaised, 3, exact.ReasonNotTraced)}, ofHost(exact.ReasonNotTraced), []Event{full}, []Event{exited(3)}},
		{"of one chip of a process", exact.ReasonEventsUnread, []Event{opened(1, 6, host(1)), reason(ReasonRaised, 1, exact.ReasonEventsUnread, host(1)...)},
			[]string{"pid 1 events_unread", "pid 1 on 1 events_unread", "chip 1 events_unread"}, nil, []Event{full}},
		{"of one chip", exact.ReasonSampled, []Event{reason(ReasonRaised, 0, exact.ReasonSampled, host(1)...)}, []string{"host sampled", "chip 1 sampled"}, nil, nil},
		{"of a process without chips", exact.ReasonEventsUnread, []Event{started(4, 4), reason(ReasonRaised, 4, exact.ReasonEventsUnread)},
			[]string{"pid 4 events_unread", "chip 0 events_unread", "chip 1 events_unread", "chip 2 events_unread"}, nil, []Event{exited(4)}},
		{"a loss", exact.ReasonEventsLost, []Event{{Kind: Lost, Count: 1}},
			[]string{"pid 1 events_lost", "pid 1 on 0 events_lost", "pid 2 events_lost", "pid 2 on 1 events_lost", "chip 0 events_lost", "chip 1 events_lost"},
			[]Event{buffers}, []Event{full, exited(2)}},
		{"a gap in a recording", exact.ReasonRecordingGap, []Event{{Kind: Lost, Count: 1, Anyone: true}, exited(2)},
			[]string{"host recording_gap", "pid 1 recording_gap", "pid 1 on 0 recording_gap", "chip 0 recording_gap,recording_gap", "chip 1 recording_gap", "chip 2 recording_gap"},
			[]Event{full, first, exited(2)}, twoProcesses().State()},
	} {
		t.Run(c.name, func(t *testing.T) {
			tested[c.code] = true
			for way, heals := range map[string][]Event{"healed": c.heals, "lifted": {reason(ReasonLifted, 1, c.code), reason(ReasonLifted, 0, c.code), reason(ReasonLifted, 3, c.code), reason(ReasonLifted, 2, c.code), reason(ReasonLifted, 4, c.code)}} {
				if heals == nil {
					continue
				}
				a := run(twoProcesses(), c.by...)
				wantInexact(t, "raised", a, c.want...)
				run(a, c.keeps...)
				wantInexact(t, "kept", a, c.want...)
				run(a, heals...)
				wantInexact(t, way, a)
			}
			a := run(twoProcesses(), c.by...)
			for pid := range uint32(5) {
				run(a, exited(pid))
			}
			if c.want[0][:4] != "host" || c.code == exact.ReasonNotTraced {
				wantInexact(t, "after the exits", a)
			}
			ended := 0
			for _, p := range a.Snapshot().Ended {
				if !p.Exact() {
					ended++
				}
			}
			if ended == 0 && c.want[0][:4] != "host" && c.code != exact.ReasonConfigRingUnread { // no ring is shown of it
				t.Error("the ended process counts as exact")
			}
		})
	}
	for _, code := range exact.ReasonCodes() {
		if !tested[code] {
			t.Errorf("%s has no test", code)
		}
	}
}

// A process that exits with something missed is counted, also where it is forgotten.
func TestInexactExitsAreCounted(t *testing.T) {
	a := New()
	for pid := range uint32(2 * maxEnded) {
		run(a, started(pid+1, 1), Event{Kind: Lost, Count: 1, Time: uint64(pid+1) * 10_000_000_000}, exited(pid+1), started(1000+pid, 1), freed(1000+pid, 1, 1), exited(1000+pid))
	}
	if n := a.Snapshot().Counters.ExitedInexact; n != 2*maxEnded {
		t.Errorf("%d, not %d", n, 2*maxEnded)
	}
	// So is one without accounts, as it was not traced; once.
	run(a, reason(ReasonRaised, 5000, exact.ReasonNotTraced), exited(5000), exited(5000), reason(ReasonRaised, 5001, exact.ReasonSampled), exited(5001))
	if n := a.Snapshot().Counters.ExitedInexact; n != 2*maxEnded+1 {
		t.Errorf("with one that was not traced: %d, not %d", n, 2*maxEnded+1)
	}
}

func TestReasonAsText(t *testing.T) {
	r := Reason{Code: exact.ReasonEventsLost, Detail: "3"}
	if got := r.String(); got != "events were lost: 3" {
		t.Error(got)
	}
	r = Reason{Code: "of_a_newer_version"}
	if got := r.String(); got != "of a newer version" {
		t.Error(got)
	}
	// A process of which nothing is known is not said to use the runtime; once it is, it is.
	rs := reasons{}
	for unsure, want := range map[bool]string{true: "it may use the runtime and is not traced: x", false: "it uses the runtime and is not traced: x"} {
		rs.raise(Reason{Code: exact.ReasonNotTraced, PID: 3, Detail: "x", Unsure: unsure}, 9)
		if got := rs.list[0].String(); got != want {
			t.Error(got)
		}
	}
}

// A reason keeps the time at which it began, however often it is raised again, and
// a comparison that began before it was raised again does not lift it.
func TestReasonsKeepTheirTime(t *testing.T) {
	loss := func(at uint64) Event { return Event{Kind: Lost, Count: 1, Time: at} }
	a := run(twoBuffers(), loss(30), loss(40))
	early := a.Snapshot()
	if r := early.Processes[0].Reasons[0]; r.Since != 30 || r.Last != 40 || r.PID != 1 {
		t.Errorf("%+v", r)
	}
	scan := Scan{Buffers: []LiveBuffer{liveBuffer(1, 100), liveBuffer(2, 100)}, Began: 35}
	if run(a, scanned(scan)); a.Snapshot().Exact() {
		t.Error("healed by what was read before the loss")
	}
	scan.Began = 41
	if run(a, scanned(scan)); !a.Snapshot().Exact() {
		t.Error("not healed")
	}
	if r := early.Processes[0].Reasons; len(r) != 1 || r[0].Since != 30 || r[0].Last != 40 {
		t.Errorf("an earlier snapshot changed: %+v", r)
	}
}

// A loss is counted some time after it happened: a process that exited in between
// lacks events too.
func TestALossMarksExitedProcesses(t *testing.T) {
	const second = 1_000_000_000
	exit := func(at uint64) Event { return Event{Kind: ProcessExit, PID: 1, Time: at} }
	for at, want := range map[uint64]bool{10 * second: true, 12 * second: false} {
		a := run(twoBuffers(), exit(10*second), Event{Kind: Lost, Count: 1, Time: at})
		s := a.Snapshot()
		if s.Ended[0].Exact() == want || !s.Exact() || (s.Counters.ExitedInexact == 1) != want {
			t.Errorf("loss at %d: ended exact %v, snapshot %v", at, s.Ended[0].Exact(), s.Exact())
		}
	}
	reported := started(2, 7)
	reported.Process.Source = Reported
	a := run(New(), reported, exited(2), Event{Kind: Lost, Count: 1})
	if s := a.Snapshot(); !s.Ended[0].Exact() {
		t.Errorf("%+v", s.Ended[0].Reasons)
	}
}

// With nothing to be wrong about, an idle host is exact, whatever was lost before.
func TestAnIdleHostIsExact(t *testing.T) {
	wantInexact(t, "idle", run(twoBuffers(), Event{Kind: Lost, Count: 5}, exited(1), Event{Kind: Lost, Count: 1}))
}

func TestReasonsAreBounded(t *testing.T) {
	a := twoBuffers()
	long := strings.Repeat("x", 10_000)
	for i := range 2000 {
		code := exact.ReasonCode(fmt.Sprint("code", i))
		for _, pid := range []uint32{0, 1, uint32(1000 + i)} {
			e := reason(ReasonRaised, pid, code)
			e.Reason.Detail = long
			run(a, e)
		}
	}
	s := a.Snapshot()
	if len(s.Reasons) != maxHostReasons || len(s.Processes[0].Reasons) != maxProcessReasons || len(s.Chips[0].Reasons) != maxChipReasons {
		t.Errorf("%d, %d, %d reasons", len(s.Reasons), len(s.Processes[0].Reasons), len(s.Chips[0].Reasons))
	}
	if n := len(s.Reasons[0].Detail); n != maxDetail {
		t.Errorf("%d bytes of detail", n)
	}
	run(a, Event{Kind: ReasonRaised, PID: 1}, reason(ReasonRaised, 1, ""))
}

// If a buffer's chips were not known for a while, the peaks of the chips that it can have been on are lower bounds:
// others may have been freed during that time.
func TestPeaksLackBuffersOfUnknownChips(t *testing.T) {
	for _, c := range []struct {
		name     string
		by       []Event
		atLeast0 bool // on chip 0, of process 1
		atLeast1 bool
	}{
		{"never known", []Event{opened(1, 5, host(0)), alloc(1, 8, 8, DRAM, 1), freed(1, 8, 8)}, true, false},
		{"never known of any device", []Event{alloc(1, 8, 8, DRAM, 1), freed(1, 8, 8)}, false, true},
		{"known before it was freed", []Event{alloc(1, 8, 8, DRAM, 1), opened(1, 8, host(0)), freed(1, 8, 8)}, true, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := run(New(), slices.Concat([]Event{started(1, 1), started(2, 2), opened(2, 1, host(1))}, c.by, []Event{exited(1)})...)
			for _, chip := range a.Snapshot().Chips {
				want := c.atLeast0 && chip.Chip == host(0)[0] || c.atLeast1 && chip.Chip == host(1)[0]
				if b := chip.Memory[DRAM].PeakRequested.Bound(); (b != exact.Exact) != want || b == exact.Uncertain || chip.Memory[L1].PeakRequested.Bound() != exact.Exact {
					t.Errorf("chip %v: %+v", chip.Chip, chip.Memory)
				}
			}
		})
	}
}

// What is lost can be what makes a peak higher, and what would have made it lower: no peak of what was traced then is certain any more,
// also once the numbers are right again.
func TestPeaksAreUncertainAfterALoss(t *testing.T) {
	lost := Event{Kind: Lost, Time: 5, Count: 1}
	seen := []Event{started(1, 1), opened(1, 5, host(0)), alloc(1, 5, 8, DRAM, 1), started(2, 2), opened(2, 6, host(1)), alloc(2, 6, 8, DRAM, 1)}
	wrong := Event{Kind: Scanned, PID: 1, Time: 6, Scan: &Scan{Allocators: []uint64{6}}}
	ended := append(slices.Clone(seen), exited(1))
	for _, c := range []struct {
		name string
		by   []Event
		want []bool // of the chips
	}{
		{"nothing lost", seen, []bool{false, false}},
		{"lost", append(slices.Clone(seen), lost), []bool{true, true}},
		{"lost of one that has ended", append(ended, lost), []bool{true, true}},
		{"a comparison corrects one", append(slices.Clone(seen), wrong), []bool{true, false}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := run(New(), c.by...).Snapshot()
			for i, chip := range s.Chips {
				if got := chip.Memory[DRAM].PeakRequested.Bound(); (got == exact.Uncertain) != c.want[i] || chip.CB.PeakLogical.Known() == c.want[i] {
					t.Errorf("chip %v: %v, programs %v", chip.Chip, got, chip.CB.PeakLogical)
				}
			}
			for _, p := range slices.Concat(s.Processes, s.Ended) {
				if want := c.want[p.PID-1]; (p.Memory[DRAM].PeakRequested.Bound() == exact.Uncertain) != want || p.CB.PeakLogical.Known() == want || p.Chips[0].Memory[L1].PeakRequested.Known() == want {
					t.Errorf("process %d: %+v", p.PID, p.Memory[DRAM])
				}
			}
		})
	}
}
