package e2e

import (
	"os"
	"strconv"
	"testing"
	"time"

	"tt-memtrace/internal/report"
	"tt-memtrace/test/rig"
	"tt-memtrace/tracer"
)

// With the sizes that a report advises, the same run finds room; with the next smaller ones, it does not.
func TestAdvisedSizesAreTheSmallest(t *testing.T) {
	r := installed(t)
	if r.Release < "0.81" {
		t.Skip("how this release rounds was not measured")
	}
	var b *report.Builder
	tr := startWith(t, tracer.Options{Follow: uint32(os.Getpid())}, func(tr *trace) {
		b = report.NewBuilder(tr.accounts)
		tr.event = b.Event
		tr.accounts.OnChange, tr.accounts.OnCBChange, tr.accounts.OnAllocationFailed = b.Change, b.CBChange, b.AllocationFailed
	})
	stopped := false
	// run opens devices with these sizes, and says what became of it.
	run := func(event string, trace, small uint64) {
		t.Helper()
		w := workload(t, r, rig.Options{Cluster: "n150", Script: rig.Regions, Args: []string{
			"--trace-region", strconv.FormatUint(trace, 10), "--l1-small", strconv.FormatUint(small, 10)}})
		for _, event := range []string{"open", event} {
			next(t, w, event)
			if !stopped {
				tr.sync()
			}
			send(t, w, "go")
		}
		next(t, w, "closed")
		if err := w.Wait(patience); err != nil {
			t.Fatal(err)
		}
	}
	run("held", 4<<20, 32768)
	tr.sync()
	tr.stop()
	stopped = true
	rep := b.Report(report.Facts{Host: "h", Source: "regions.py", Wall: func(t uint64) time.Time { return time.Unix(0, int64(t)) }})
	sizes := map[string]uint64{}
	for _, a := range rep.Advice {
		if a.Set != nil {
			sizes[a.About] = *a.Set
		}
	}
	trace, small := sizes["trace_region_size"], sizes["l1_small_size"]
	if trace == 0 || trace >= 4<<20 || small == 0 || small >= 32768 {
		t.Fatalf("%+v", rep.Advice)
	}
	run("held", trace, small)
	run("no_room", trace-1<<17, small)
	run("no_room", trace, small-32)
}
