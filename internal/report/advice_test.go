package report

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"tt-memtrace/aggregator"
)

// cbPlaced is a program's circular buffer on chip 0 and 1.
func cbPlaced(at, program, address, size uint64, x uint16) aggregator.Event {
	return aggregator.Event{Kind: aggregator.CBPlaced, PID: 1, Time: at * second, Program: program, Device: 7,
		CB: &aggregator.CircularBuffer{Call: 1, Address: address, Size: size, Ranges: []aggregator.CoreRange{{X0: x, Y0: 2, X1: x, Y1: 2}}}}
}

func in(m aggregator.Memory, e aggregator.Event) aggregator.Event {
	e.Memory = m
	return e
}

func TestAdvice(t *testing.T) {
	begin := opened()
	begin[1].Opened.Arch = "wormhole_b0"
	begin[2].Capacity = &aggregator.Capacity{aggregator.DRAM: {Known: true, Count: 12, Bytes: 1 << 30}, aggregator.L1: {Known: true, Count: 64, Bytes: 1 << 20},
		aggregator.L1Small: {Known: true, Count: 64, Bytes: 32768}, aggregator.Trace: {Known: true, Count: 12, Bytes: 352256}}
	events := append(begin,
		in(aggregator.DRAM, alloc(2, 1, 0, 1<<20, nil)), in(aggregator.DRAM, alloc(3, 2, 1<<20, 3<<20, nil)), freed(4, 1),
		// Two at a time, 100 of 150 bytes apart; one alone.
		in(aggregator.L1Small, alloc(2, 3, 1000, 100, nil)), in(aggregator.L1Small, alloc(3, 4, 850, 100, nil)), freed(4, 3),
		in(aggregator.Trace, alloc(5, 5, 5000, 9000, nil)),
		// The buffers are at their lowest before the program comes, and rise before the next one that reaches higher.
		in(aggregator.L1, alloc(2, 6, 900_000, 1000, nil)), in(aggregator.L1, alloc(3, 7, 200_000, 1000, nil)), cbPlaced(4, 11, 100_000, 20_000, 3), freed(5, 7),
		cbPlaced(6, 12, 100_000, 30_000, 4), aggregator.Event{Kind: aggregator.ProgramGone, PID: 1, Time: 7 * second, Program: 12}, in(aggregator.L1, alloc(8, 8, 190_000, 100, nil)))
	r := told(t, events...)
	var got []string
	for i := range r.Advice {
		got = append(got, r.Advice[i].Text())
	}
	want := []string{
		"trace_region_size=196608 is enough (chip 0 at 4s: 8.79 KiB per bank used, over addresses of 8.79 KiB; 344.00 KiB per bank configured)",
		"l1_small_size=256 is enough (chip 0 at 2s: 200 B per bank used, over addresses of 250 B; 32.00 KiB per bank configured)",
		"68.36 KiB of L1 left for circular buffers on the fullest core (core 3,2 of chip 0 at 7s: they end at 0x1d4c0, the L1 buffers begin at 0x2e630)",
		"11.95 GiB of DRAM left on the fullest chip, 1020.00 MiB per bank (chip 0 at 2s: 4.00 MiB of 1.00 GiB per bank used)",
	}
	if !slices.Equal(got, want) || r.NoAdvice != nil {
		t.Errorf("got\n%s\nwant\n%s\nno advice: %v", strings.Join(got, "\n"), strings.Join(want, "\n"), r.NoAdvice)
	}

	// Nothing in a region, and circular buffers that reach into the L1 buffers.
	r = told(t, append(slices.Clone(begin), in(aggregator.L1, alloc(2, 6, 1000, 1000, nil)), cbPlaced(3, 11, 900, 200, 3))...)
	got = nil
	for i := range r.Advice {
		got = append(got, r.Advice[i].Text())
	}
	for _, part := range []string{"trace_region_size=0 is enough (nothing was allocated there; 344.00 KiB per bank configured)", "l1_small_size=0 ", "circular buffers overlap L1 buffers by 100 B"} {
		if !strings.Contains(strings.Join(got, "\n"), part) {
			t.Errorf("%q is not in %q", part, got)
		}
	}
}

// As 0.81.1 does on one Wormhole and one Blackhole chip: what is asked for, and what a bank then has.
func TestRegionsAreRoundedAsTheRuntimeDoes(t *testing.T) {
	for _, c := range []struct {
		memory            aggregator.Memory
		arch              string
		banks             uint32
		asked, perBank    uint64
		needed, suggested uint64
	}{
		{aggregator.Trace, "wormhole_b0", 12, 98304, 8192, 8192, 98304}, {aggregator.Trace, "wormhole_b0", 12, 4 << 20, 352256, 349526, 12 * 352256},
		{aggregator.Trace, "blackhole", 8, 98305, 16384, 12289, 8 * 16384}, {aggregator.L1Small, "wormhole_b0", 64, 17, 32, 17, 32},
		{aggregator.L1Small, "wormhole_b0", 64, 5001, 5024, 5001, 5024}, {aggregator.L1Small, "blackhole", 110, 17, 64, 17, 64}, {aggregator.L1Small, "blackhole", 110, 5001, 5056, 5001, 5056},
	} {
		begin := opened()
		begin[1].Opened.Arch = c.arch
		begin[2].Capacity = &aggregator.Capacity{}
		begin[2].Capacity[c.memory] = aggregator.Banks{Known: true, Count: c.banks, Bytes: c.perBank}
		r := told(t, append(begin, in(c.memory, alloc(2, 1, 64, c.needed, nil)))...)
		if len(r.Advice) != 1 || *r.Advice[0].Set != c.suggested || *r.Advice[0].Configured != c.perBank {
			t.Errorf("%+v: %+v", c, r.Advice)
		}
	}
}

// If something may be missing, the report gives no advice, and says why.
func TestNoAdviceWhereSomethingIsMissing(t *testing.T) {
	a := aggregator.New()
	events := append(opened(), alloc(2, 1, 100, 100, nil))
	for i := range events {
		a.Apply(&events[i])
	}
	late, reported, shared := opened(), opened(), opened()
	late[0].Process = &aggregator.Process{Command: "c", Late: true}
	reported[0].Process = &aggregator.Process{Command: "c", Source: aggregator.Reported}
	shared[0].Process = &aggregator.Process{Command: "c", Source: aggregator.FromSharedMemory}
	for want, events := range map[string][]aggregator.Event{
		"2 events were lost":                         append(events, aggregator.Event{Kind: aggregator.Lost, Time: 3 * second, Count: 2}),
		"begins midway":                              append(a.State(), alloc(4, 2, 200, 100, nil)),
		"process 1 ran before tracing began":         append(late, alloc(2, 1, 100, 100, nil)),
		"process 1 were not traced one by one":       append(reported, alloc(2, 1, 100, 100, nil)),
		"not traced one by one":                      append(shared, alloc(2, 1, 100, 100, nil)),
		"nothing was traced":                         nil,
		"the size of L1 of chip 0 could not be read": append(opened()[:2:2], in(aggregator.L1, alloc(2, 1, 100, 100, nil))),
	} {
		r := told(t, events...)
		if r.NoAdvice == nil || !strings.Contains(string(*r.NoAdvice), want) || len(r.Advice) > 0 {
			t.Errorf("%s: %+v, not for want of %v", want, r.Advice, r.NoAdvice)
		}
	}
	if r := told(t, events...); r.NoAdvice != nil || len(r.Advice) == 0 {
		t.Errorf("of a whole recording: %v", fmt.Sprint(r.NoAdvice))
	}
}
