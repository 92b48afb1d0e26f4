package aggregator

import "testing"

func counted(pid uint32, number uint32, dram, cb uint64) Event {
	s := &RuntimeTotals{Chip: Chip{Number: number}, CB: cb}
	s.Requested[DRAM] = dram
	return Event{Kind: RuntimeTotalsChanged, PID: pid, RuntimeTotals: s}
}

// Totals replace earlier ones, add up over processes, and go with their process.
// What they do not have stays unknown.
func TestRuntimeTotals(t *testing.T) {
	a := New()
	apply := func(list ...Event) *Snapshot {
		for i := range list {
			a.Apply(&list[i])
		}
		return a.Snapshot()
	}
	summed := func(pid uint32) Event {
		return Event{Kind: ProcessStart, PID: pid, Process: &Process{Started: 1, Source: FromSharedMemory}}
	}
	s := apply(summed(1), summed(2), counted(1, 0, 100, 10), counted(1, 1, 50, 0), counted(2, 0, 7, 1), counted(1, 0, 80, 20))
	if c := s.Chips[0]; !c.Memory[DRAM].Requested.Is(87) || !c.CB.Physical.Is(21) || len(c.PIDs) != 2 {
		t.Errorf("%+v", c)
	}
	u := s.Chips[0].Memory[DRAM]
	if !s.Chips[0].TotalsOnly || u.unreserved == 0 || u.PeakReserved.Known() || u.Reserved.Known() || u.Buffers.Known() || u.Banks.Known {
		t.Errorf("it knows too much: %+v", u)
	}
	if cb := s.Chips[0].CB; !s.Chips[0].TotalsOnly || cb.Programs.Known() || cb.Logical.Known() {
		t.Errorf("it knows too much: %+v", cb)
	}
	if s.Exact() {
		t.Error("sums count as exact")
	}
	if m := s.Processes[0].Memory[DRAM]; !m.Requested.Is(130) || !s.Processes[0].Chips[0].TotalsOnly {
		t.Errorf("%+v", m)
	}

	s = apply(Event{Kind: RuntimeTotalsChanged, PID: 1, RuntimeTotals: &RuntimeTotals{Chip: Chip{Number: 1}, Closed: true}})
	if len(s.Processes[0].Chips) != 1 || !s.Chips[1].Memory[DRAM].Requested.Is(0) || s.Chips[1].Memory[DRAM].unreserved != 0 {
		t.Errorf("%+v", s)
	}
	s = apply(Event{Kind: ProcessExit, PID: 1})
	if c := s.Chips[0]; !c.Memory[DRAM].Requested.Is(7) || !c.CB.Physical.Is(1) {
		t.Errorf("%+v", c)
	}
	if e := s.Ended[0].Memory[DRAM]; !e.Requested.Is(80) || !s.Ended[0].Chips[0].TotalsOnly {
		t.Errorf("%+v", e)
	}

	// Nonsense is not counted.
	s = apply(counted(2, 0, 1<<63, 0), counted(2, 0, 0, 1<<48), Event{Kind: RuntimeTotalsChanged, PID: 2})
	if p := s.Processes[0]; p.counters.Odd != 3 || !p.Memory[DRAM].Requested.Is(7) {
		t.Errorf("%+v", p)
	}
}

// What is left of the dead is in no sum.
func TestStaleEntries(t *testing.T) {
	a := New()
	g := StaleEntry{PID: 9, Command: "python"}
	g.Requested[DRAM] = 60 << 20
	at := Chip{Number: 3}
	a.Apply(&Event{Kind: StaleEntriesChanged, StaleEntries: &StaleEntries{at, []StaleEntry{g}}})
	a.Apply(&Event{Kind: StaleEntriesChanged}) // of no chip
	s := a.Snapshot()
	if len(s.Chips) != 1 || len(s.Chips[0].StaleEntries) != 1 || s.Chips[0].StaleEntries[0] != g || !s.Chips[0].Memory[DRAM].Requested.Is(0) || len(s.Processes) != 0 {
		t.Errorf("%+v", s)
	}
	a.Apply(&Event{Kind: StaleEntriesChanged, StaleEntries: &StaleEntries{Chip: at}})
	if s := a.Snapshot(); len(s.Chips[0].StaleEntries) != 0 {
		t.Errorf("%+v", s)
	}
}
