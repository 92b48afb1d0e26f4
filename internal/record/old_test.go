package record

import (
	"io"
	"os"
	"slices"
	"testing"

	"tt-memtrace/aggregator"
	"tt-memtrace/aggregator/exact"
)

// testdata has recordings of the real runtime on mock chips that were made before this
// test: run.ttm of a command from its start, with stacks; late.ttm of a process that
// had run already, with stacks; state.ttm begins with the state that an earlier
// recording had led to. The totals are those that the program had which made them.
func TestRecordingsMadeBefore(t *testing.T) {
	type total struct {
		events, allocs, launches, binaries int
		// Bytes of all processes: at the end, and the sum of the processes' peaks.
		dram, dramReserved, peakDRAM, l1, cb, peakCB uint64
		buffers, programs                            uint64
	}
	for name, want := range map[string]total{
		"run":   {events: 102, allocs: 16, binaries: 17, peakDRAM: 73728, peakCB: 1572864},
		"late":  {events: 123, allocs: 10, launches: 4, binaries: 34, peakDRAM: 73728, peakCB: 1572864},
		"state": {events: 1528, allocs: 9455, launches: 2642, binaries: 91, dram: 29285580624, dramReserved: 29290331136, peakDRAM: 30628406608, l1: 22597272, cb: 15491072, peakCB: 25452544, buffers: 132, programs: 114},
	} {
		f, err := os.Open("testdata/" + name + ".ttm")
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		r, err := NewReader(f)
		var got total
		accounts := aggregator.New()
		kinds := map[aggregator.Kind]int{}
		for err == nil {
			var events []aggregator.Event
			events, err = r.Next()
			for i := range events {
				accounts.Apply(&events[i])
				kinds[events[i].Kind]++
				if e := &events[i]; e.Kind == aggregator.Alloc && e.Stack == nil && name != "state" {
					t.Errorf("%s: an allocation lacks its stack", name)
				}
			}
			got.events += len(events)
		}
		if err != io.EOF || r.Unknown > 0 {
			t.Errorf("%s: %v, %d events are of unknown kinds", name, err, r.Unknown)
		}
		s := accounts.Snapshot()
		got.launches, got.binaries = int(s.Counters.Launches), kinds[aggregator.KernelLoaded]
		for _, p := range slices.Concat(s.Processes, s.Ended) {
			dram := p.Memory[aggregator.DRAM]
			got.allocs += int(p.Counters.Allocs.WithoutBound())
			got.dram += number(dram.Requested)
			got.dramReserved += number(dram.Reserved)
			got.peakDRAM += number(dram.PeakRequested)
			got.l1 += number(p.Memory[aggregator.L1].Requested)
			got.cb += number(p.CB.Physical)
			got.peakCB += number(p.CB.PeakPhysical)
			got.buffers += p.Buffers.WithoutBound()
			got.programs += number(p.CB.Programs)
		}
		if got != want {
			t.Errorf("%s:\n got %+v\nwant %+v", name, got, want)
		}
		today := map[string][]member{}
		typesOf(root, today)
		for typ, members := range r.Header().Types {
			for _, m := range members {
				if !slices.Contains(today[typ], m) {
					t.Errorf("%s.ttm has %s.%s of the form %s, which is not read any more", name, typ, m[0], m[1])
				}
			}
		}
	}
}

// number is the number of a quantity, whatever its bound.
func number(q exact.Quantity) uint64 {
	n, _ := q.Value()
	return n
}
