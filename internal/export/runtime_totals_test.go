package export

import (
	"encoding/json"
	"strings"
	"testing"

	"tt-memtrace/aggregator"
	"tt-memtrace/test/schema"
)

// What the runtime's own sums do not have is null, the source is named, and leftovers of killed processes are
// listed separately.
func TestStatusOfRuntimeTotals(t *testing.T) {
	a := aggregator.New()
	sums := aggregator.RuntimeTotals{Chip: aggregator.Chip{Number: 2}, CB: 7}
	sums.Requested[aggregator.DRAM] = 1 << 20
	stale := aggregator.StaleEntry{PID: 9, Command: hostile, RuntimeTotals: sums}
	for _, e := range []aggregator.Event{
		{Kind: aggregator.ProcessStart, PID: 5, Process: &aggregator.Process{Started: 1, Source: aggregator.FromSharedMemory, Container: "docker:0123456789ab", InnerPID: 1}},
		{Kind: aggregator.RuntimeTotalsChanged, PID: 5, RuntimeTotals: &sums},
		{Kind: aggregator.StaleEntriesChanged, StaleEntries: &aggregator.StaleEntries{Chip: sums.Chip, List: []aggregator.StaleEntry{stale}}},
	} {
		a.Apply(&e)
	}
	s := a.Snapshot()
	s.Lacks = []string{"buffers", "peaks"}
	text := status(t, s)
	for _, strict := range []bool{false, true} {
		if err := schema.Validate(t, schema.Compile(t, schema.Of(t, "", Status{}, strict)), text); err != nil {
			t.Error(err)
		}
	}
	var st Status
	if err := json.Unmarshal([]byte(text), &st); err != nil {
		t.Fatal(err)
	}
	c, p := st.Chips[0], st.Processes[0]
	u := c.Memory["dram"]
	if st.Exact || c.Programs != nil || c.Kernels != nil || c.CBSum == nil || *c.CBSum != 7 || *u.Requested != 1<<20 ||
		u.Reserved != nil || u.PeakRequested != nil || u.PeakReserved != nil || u.Buffers != nil || u.Capacity != nil {
		t.Errorf("%s", text)
	}
	if p.Source != "shared_memory" || p.Buffers != nil || p.Allocs != nil || p.Frees != nil || *p.Container != "docker:0123456789ab" || *p.InnerPID != 1 {
		t.Errorf("%s", text)
	}
	if g := st.SharedMemory.StaleEntries; len(g) != 1 || g[0].PID != 9 || g[0].Chip != 2 || g[0].Requested["dram"] != 1<<20 || g[0].CB != 7 {
		t.Errorf("%s", text)
	}
	// With nothing there, the source is named all the same, and nothing is exact.
	empty := aggregator.New().Snapshot()
	empty.Lacks = s.Lacks
	if text := status(t, empty); !strings.Contains(text, `"exact": false`) || !strings.Contains(text, `"lacks": [`) {
		t.Error(text)
	}
}
