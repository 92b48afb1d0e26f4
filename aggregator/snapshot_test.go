package aggregator

import (
	"reflect"
	"slices"
	"testing"

	"tt-memtrace/aggregator/exact"
)

func TestSnapshotIsInOrder(t *testing.T) {
	a := run(New(), opened(9, 1, private(9, 1, 0)), opened(3, 1, host(7, 2)), opened(5, 1, host(2)))
	s := a.Snapshot()
	var chips []Chip
	for _, c := range s.Chips {
		chips = append(chips, c.Chip)
	}
	if want := append(host(2, 7), private(9, 0, 1)...); !slices.Equal(chips, want) {
		t.Errorf("chips %v, want %v", chips, want)
	}
	if got := s.Chips[0].PIDs; !slices.Equal(got, []uint32{3, 5}) {
		t.Errorf("PIDs %v", got)
	}
	var pids []uint32
	for _, p := range s.Processes {
		pids = append(pids, p.PID)
	}
	if !slices.Equal(pids, []uint32{3, 5, 9}) || s.Processes[0].Chips[0].Chip.Number != 2 {
		t.Errorf("processes %v, first %+v", pids, s.Processes[0])
	}
}

func TestSnapshotDoesNotChangeLater(t *testing.T) {
	chips := host(0, 1)
	a := run(New(), started(1, 5), opened(1, 1, chips), seen(1, 2, 1), alloc(1, 1, 1, DRAM, 100),
		opened(2, 1, chips), alloc(2, 1, 1, DRAM, 1), exited(2))
	before, expected := a.Snapshot(), a.Snapshot()
	for i := range chips {
		chips[i] = Chip{Number: 99} // the event is its sender's
	}
	more := []Event{alloc(1, 1, 2, DRAM, 50), freed(1, 1, 1), opened(3, 1, host(0)), exited(3), exited(1), {Kind: Lost, Count: 3}}
	run(a, more...)
	if !reflect.DeepEqual(before, expected) {
		t.Errorf("it changed:\n%+v\nwas\n%+v", before, expected)
	}
}

func TestSnapshotsAreCopies(t *testing.T) {
	a := run(New(), started(1, 5), opened(1, 1, host(0)), seen(1, 2, 1), alloc(1, 1, 1, DRAM, 100), exited(7), opened(2, 1, nil), exited(2))
	want, spoilt := a.Snapshot(), a.Snapshot()
	spoilt.Time = 0
	spoilt.Chips[0].Memory[DRAM] = Usage{}
	spoilt.Chips[0].PIDs[0] = 77
	spoilt.Processes[0].Chips[0].Memory[DRAM] = Usage{}
	spoilt.Processes[0].Chips[0].PIDs[0] = 77
	spoilt.Processes[0].Info.Command = "x"
	spoilt.Ended[0] = ProcessSnapshot{}
	if got := a.Snapshot(); !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestTimesAreOfTheFirstAndTheNewestEvent(t *testing.T) {
	at := func(time uint64, e Event) Event { e.Time = time; return e }
	a := run(New(), at(10, started(1, 5)))
	if p := a.Snapshot().Processes[0]; p.Since != 10 || p.Last != 10 {
		t.Errorf("after its start: %d to %d", p.Since, p.Last)
	}
	run(a, at(30, alloc(1, 1, 1, L1, 1)), at(20, freed(1, 1, 1)), at(40, Event{Kind: Lost, Count: 2}))
	s := a.Snapshot()
	if p := s.Processes[0]; p.Since != 10 || p.Last != 30 || s.Time != 40 {
		t.Errorf("%d to %d at %d", p.Since, p.Last, s.Time)
	}
	run(a, at(50, exited(1)))
	if p := a.Snapshot().Ended[0]; p.Since != 10 || p.Last != 50 {
		t.Errorf("after its exit: %d to %d", p.Since, p.Last)
	}
}

func TestCountersAreOverAllProcesses(t *testing.T) {
	a := run(New(), opened(1, 1, host(0)), Event{Kind: Lost, Count: 3}, Event{Kind: Lost, Count: 4}, exited(1), exited(1))
	if got, want := a.Snapshot().Counters, (Counters{Events: 5, Lost: 7, Exited: 1, ExitedInexact: 1}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}

func TestOnlyTheNewestProcessesThatExitedAreKept(t *testing.T) {
	a := New()
	for pid := uint32(1); pid <= maxEnded+5; pid++ {
		run(a, opened(pid, 1, host(0)), alloc(pid, 1, 1, L1, uint64(pid)), exited(pid))
	}
	s := a.Snapshot()
	if len(s.Ended) != maxEnded || s.Ended[0].PID != 6 || s.Ended[maxEnded-1].PID != maxEnded+5 || s.Counters.Exited != maxEnded+5 {
		t.Errorf("%d of %d, from %d to %d", len(s.Ended), s.Counters.Exited, s.Ended[0].PID, s.Ended[len(s.Ended)-1].PID)
	}
	if got := s.Ended[0].Memory[L1].Requested; !got.Is(6) {
		t.Errorf("it held %d bytes", got)
	}
}

func TestDescriptionOfAProcess(t *testing.T) {
	a := run(New(), alloc(1, 1, 1, L1, 1))
	if got := a.Snapshot().Processes[0].Info; got != (Process{}) {
		t.Errorf("from nothing: %+v", got)
	}
	first, second := started(1, 5), started(1, 5)
	second.Process.Command = "after exec"
	run(a, first)
	if got := a.Snapshot().Processes[0].Info; got != *first.Process {
		t.Errorf("%+v", got)
	}
	run(a, second, Event{Kind: ProcessStart, PID: 1})
	if got := a.Snapshot().Processes[0].Info; got != *second.Process {
		t.Errorf("%+v", got)
	}
}

func TestCapacity(t *testing.T) {
	small, large := Banks{Known: true, Count: 12, Bytes: 100}, Banks{Known: true, Count: 12, Bytes: 300}
	of := func(b Banks) Capacity { return Capacity{Trace: b} }
	for name, c := range map[string]struct {
		events []Event
		want   Banks
	}{
		"not reported": {[]Event{opened(1, 1, host(0))}, Banks{}},
		"reported":     {[]Event{opened(1, 1, host(0)), seenWith(1, 2, 1, of(small))}, small},
		"reported to have none": {
			[]Event{opened(1, 1, host(0)), seenWith(1, 2, 1, of(Banks{Known: true}))}, Banks{Known: true},
		},
		"what is not known takes nothing back": {
			[]Event{opened(1, 1, host(0)), seenWith(1, 2, 1, of(small)), seenWith(1, 3, 1, Capacity{})}, small,
		},
		"the largest of those who have it open": {
			[]Event{opened(1, 1, host(0)), seenWith(1, 2, 1, of(large)), opened(2, 1, host(0)), seenWith(2, 2, 1, of(small))}, large,
		},
		"not that of one who has gone": {
			[]Event{opened(1, 1, host(0)), seenWith(1, 2, 1, of(small)), opened(2, 1, host(0)), seenWith(2, 2, 1, of(large)), exited(2)}, small,
		},
		"not that of an earlier device of the same process": {
			[]Event{opened(1, 1, host(0)), seenWith(1, 2, 1, of(large)), closed(1, 1), gone(1, 2), opened(1, 1, host(0)), seenWith(1, 2, 1, of(small))}, small,
		},
		"the newest once all have gone": {
			[]Event{opened(1, 1, host(0)), seenWith(1, 2, 1, of(large)), opened(2, 1, host(0)), seenWith(2, 2, 1, of(small)), exited(1), exited(2)}, small,
		},
		"the newest once all have closed": {
			[]Event{opened(1, 1, host(0)), seenWith(1, 2, 1, of(small)), closed(1, 1), gone(1, 2)}, small,
		},
	} {
		t.Run(name, func(t *testing.T) {
			u := run(New(), c.events...).Snapshot().Chips[0].Memory[Trace]
			if u.Banks != c.want {
				t.Errorf("%+v, want %+v", u.Banks, c.want)
			}
			bytes, known := u.Capacity()
			if bytes != uint64(c.want.Count)*c.want.Bytes || known != c.want.Known {
				t.Errorf("%d bytes, known %v", bytes, known)
			}
		})
	}
}

func TestAPeakWithABufferOfUnknownSizeIsUnsure(t *testing.T) {
	a := run(New(), opened(1, 1, host(0)), seen(1, 2, 1), alloc(1, 1, 1, DRAM, 10))
	peaks := func() [3]exact.Bound {
		s := a.Snapshot()
		return [3]exact.Bound{s.Chips[0].Memory[DRAM].PeakReserved.Bound(), s.Processes[0].Memory[DRAM].PeakReserved.Bound(), s.Chips[0].Memory[L1].PeakReserved.Bound()}
	}
	if got := peaks(); got != [3]exact.Bound{} {
		t.Errorf("all sizes known: %v", got)
	}
	run(a, alloc(1, 1, 2, Trace, 10), freed(1, 1, 2), Event{Kind: Alloc, PID: 1, Device: 1, Buffer: 3, Size: 5}, freed(1, 1, 3))
	if got := peaks(); got != [3]exact.Bound{exact.AtLeast, exact.AtLeast, exact.Exact} {
		t.Errorf("after a buffer of unknown size: %v", got)
	}
}

// The peaks of a sampled process, and of its chips, are lower bounds, also of a memory in which
// it held nothing at any look, and after it ended.
func TestPeaksOfASampledProcessAreLowerBounds(t *testing.T) {
	lower := func(q exact.Quantity) bool { // a lower bound of 0 is unknown
		b := q.Bound()
		return b == exact.AtLeast || b == exact.Unknown
	}
	all := func(c *ChipSnapshot) bool {
		for _, u := range c.Memory {
			if !u.Absent() && (!lower(u.PeakRequested) || !lower(u.PeakReserved)) {
				return false
			}
		}
		return lower(c.CB.PeakPhysical) && lower(c.CB.PeakLogical)
	}
	none := func(c *ChipSnapshot) bool {
		for _, u := range c.Memory {
			if lower(u.PeakRequested) || lower(u.PeakReserved) {
				return false
			}
		}
		return !lower(c.CB.PeakPhysical) && !lower(c.CB.PeakLogical)
	}
	a := run(New(), Event{Kind: ProcessStart, PID: 1, Process: &Process{Source: Sampled}}, opened(1, 1, host(0)),
		Event{Kind: ProcessStart, PID: 2, Process: &Process{}}, opened(2, 1, host(0, 1)), seen(1, 2, 1), alloc(1, 1, 1, DRAM, 10))
	check := func(what string, a *Aggregator) {
		t.Helper()
		s := a.Snapshot()
		if !all(&s.Chips[0]) || !none(&s.Chips[1]) {
			t.Errorf("%s: chips: %+v", what, s.Chips)
		}
		for i := range s.Processes {
			p := &s.Processes[i]
			if p.PID == 1 && (!all(&p.Chips[0]) || !lower(p.Memory[L1].PeakRequested) || !lower(p.CB.PeakLogical)) || p.PID == 2 && !none(&p.Chips[0]) {
				t.Errorf("%s: process %d: %+v", what, p.PID, p)
			}
		}
	}
	check("live", a)
	check("from its state", run(New(), a.State()...))
	run(a, Event{Kind: ProcessExit, PID: 1})
	check("ended", a)
	check("ended, from its state", run(New(), a.State()...))
}

func TestBuffersAreListedOldestFirst(t *testing.T) {
	a := run(New(), opened(1, 0x100, host(0, 1)))
	if got := a.Buffers(1); len(got) != 0 {
		t.Errorf("%v", got)
	}
	if got := a.Buffers(2); got != nil {
		t.Errorf("of no process: %v", got)
	}
	early, same := alloc(1, 0x100, 9, L1, 40), alloc(1, 0x100, 4, DRAM, 7)
	early.Time, same.Time = 10, 20
	twin := same
	twin.Buffer = 2
	run(a, same, early, twin)
	got := a.Buffers(1)
	want := BufferSnapshot{ID: 9, Memory: L1, MemoryLayout: 2, Address: 0x9000, Size: 40, PerBank: 4, PageSize: 32, Since: 10, TID: 2, Chips: host(0, 1)}
	if len(got) != 3 || !reflect.DeepEqual(got[0], want) || got[1].ID != 2 || got[2].ID != 4 {
		t.Errorf("%+v", got)
	}
}

func TestMemoriesHaveTheRuntimesNames(t *testing.T) {
	for m, want := range []string{"DRAM", "L1", "SYSTEM_MEMORY", "L1_SMALL", "TRACE", "UNKNOWN"} {
		if got := Memory(m).String(); got != want {
			t.Errorf("%d is %q, want %q", m, got, want)
		}
	}
}
