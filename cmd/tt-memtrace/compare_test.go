package main

import (
	"encoding/json"
	"strings"
	"testing"

	"tt-memtrace/internal/export"
)

// What was not seen, and may be there, is not compared as 0 bytes.
func TestComparisonOfWhatMayBeMissing(t *testing.T) {
	runtime := uint64(4096)
	d := diagnosis{Compared: []comparison{
		{PID: 7, Memory: "dram", Traced: export.Seen(0, true), Runtime: &runtime},
		{PID: 7, Memory: "l1", Traced: export.Seen(0, false), Runtime: &runtime},
		{PID: 7, Memory: "trace", Traced: export.Seen(4096, true), Runtime: &runtime},
	}}
	var b strings.Builder
	d.printCompared(&b)
	got := strings.Join(strings.Fields(b.String()), " ")
	for _, want := range []string{" 7 0 dram ? 4096 ", "7 0 l1 0 4096 +4096", "7 0 trace 4096 4096 ", "?: nothing was seen"} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in %s", want, b.String())
		}
	}
	if out, err := json.Marshal(d.Compared[0]); err != nil || !strings.Contains(string(out), `"traced":null`) {
		t.Errorf("%s, %v", out, err)
	}
}
