package main

import (
	"encoding/json"
	"strings"
	"testing"

	"tt-memtrace/internal/export"

	"tt-memtrace/aggregator/exact"
)

// What was not seen, and may be there, is not compared as 0 bytes.
func TestComparisonOfWhatMayBeMissing(t *testing.T) {
	runtime := uint64(4096)
	d := diagnosis{Compared: []comparison{
		{PID: 7, Memory: "dram", Traced: nil, Runtime: &runtime},
		{PID: 7, Memory: "l1", Traced: export.Exactly(exact.Of(0)), Runtime: &runtime},
		{PID: 7, Memory: "trace", Traced: export.Exactly(exact.Of(4096)), Runtime: &runtime},
	}}
	var b strings.Builder
	d.printCompared(&b)
	got := strings.Join(strings.Fields(b.String()), " ")
	for _, want := range []string{" 7 0 dram ? 4096 ", "7 0 l1 0 4096 +4096", "7 0 trace 4096 4096 ", "?: nothing was seen"} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in %s", want, b.String())
		}
	}
	if out, err := json.Marshal(d.Compared[0]); err != nil || !strings.Contains(string(out), `"traced_bytes":null`) {
		t.Errorf("%s, %v", out, err)
	}
}
