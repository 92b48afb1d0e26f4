package e2e

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"tt-memtrace/internal/report"
	"tt-memtrace/test/rig"
	"tt-memtrace/tracer"
)

// Whatever finds no room is reported in the runtime's own words and numbers and with its call site, though no stacks
// are requested; exceptions that have nothing to do with memory are not.
func TestFailuresOfEachKind(t *testing.T) {
	r := installed(t)
	if r.SlowOnly() {
		return // it places no circular buffers on mock chips
	}
	dir, err := rig.Dir()
	if err != nil {
		t.Fatal(err)
	}
	const small = "1463500" // bytes of L1 for buffers, which leaves the kernel-config ring some 500
	for name, c := range map[string]struct {
		env  []string
		ways string
		args []string
		// kinds are the failures, one for each way that has any.
		kinds []string
	}{
		"usual":  {ways: "other,beyond_l1,shards,oom,dram", kinds: []string{"beyond_l1", "out_of_memory", "out_of_memory"}},
		"hybrid": {env: []string{"TT_METAL_ALLOCATOR_MODE_HYBRID=1"}, ways: "oom,beyond_l1", kinds: []string{"out_of_memory", "beyond_l1"}},
		"ring":   {ways: "too_large", args: []string{"--worker-l1-size", small}, kinds: []string{"program_too_large"}},
	} {
		t.Run(name, func(t *testing.T) {
			var b *report.Builder
			tr := startWith(t, tracer.Options{Follow: uint32(os.Getpid())}, func(tr *trace) {
				b = report.NewBuilder(tr.accounts)
				tr.event = b.Event
				tr.accounts.OnChange, tr.accounts.OnCBChange, tr.accounts.OnAllocationFailed = b.Change, b.CBChange, b.AllocationFailed
			})
			w := workload(t, r, rig.Options{Cluster: "n150", Script: filepath.Join(dir, "failures.py"), Env: c.env,
				Args: append([]string{"--cluster", "n150", "--wait", "--ways", c.ways}, c.args...)})
			var said, sites []string
			for _, way := range strings.Split(c.ways, ",") {
				m := next(t, w, way)
				var what struct {
					Failed bool `json:"failed"`
				}
				if err := json.Unmarshal([]byte(m.Text), &what); err != nil {
					t.Fatal(err)
				}
				if what.Failed {
					said, sites = append(said, m.Error), append(sites, way)
				}
			}
			next(t, w, "done")
			tr.sync()
			send(t, w, "go")
			next(t, w, "closed")
			if err := w.Wait(patience); err != nil {
				t.Fatal(err)
			}
			tr.sync()
			tr.stop()
			rep := b.Report(report.Facts{Host: "h", Source: "failures.py", Wall: func(t uint64) time.Time { return time.Unix(0, int64(t)) }})
			if len(rep.Failures) != len(c.kinds) || len(said) != len(c.kinds) {
				t.Fatalf("the runtime says %q, reported are %+v", said, rep.Failures)
			}
			for i := range rep.Failures {
				f := &rep.Failures[i]
				if f.Kind != c.kinds[i] || string(f.Message) != said[i] {
					t.Errorf("%s: %q, want %s: %q", f.Kind, f.Message, c.kinds[i], said[i])
				}
				if f.Where == nil || !strings.Contains(string(*f.Where), " "+sites[i]) {
					t.Errorf("%s: no %s in %v", f.Kind, sites[i], f.Stack)
				}
				checkNumbers(t, f)
			}
		})
	}
}

// checkNumbers compares a failure's numbers with those in its message.
func checkNumbers(t *testing.T, f *report.Failure) {
	t.Helper()
	text := string(f.Message)
	same := func(got *uint64, words string) {
		if got == nil || *got != number(t, text, words) {
			t.Errorf("%s %v: %s", words, got, text)
		}
	}
	switch f.Kind {
	case "beyond_l1":
		same(f.End, "grow to")
		same(f.Limit, "max L1 size of")
		if n := len(f.CircularBuffers); n != 3 || f.CircularBuffers[0].Bytes != 1<<20 || f.CircularBuffers[0].Cores != 4 || f.CircularBuffers[n-1].Bytes != 2048 {
			t.Errorf("circular buffers: %+v", f.CircularBuffers)
		} else if end := f.CircularBuffers[n-1].Address + 2048; end != *f.End {
			t.Errorf("the last one ends at %d, not at %d", end, *f.End)
		}
	case "program_too_large":
		if !strings.Contains(text, "too large for kernel config buffer") || f.Program == nil || f.Limit == nil || *f.Program <= *f.Limit {
			t.Errorf("%v of %v bytes: %s", f.Program, f.Limit, text)
		}
	case "out_of_memory":
		same(f.Allocated, "allocated:")
		same(f.Free, "free:")
		same(f.Largest, "largest free block:")
		if f.Memory == "L1" && (!f.Complete || len(f.Holders) != 1 || *f.Chips[0].Allocated != *f.Allocated) {
			t.Errorf("complete %t: %+v on %+v, %s", f.Complete, f.Holders, f.Chips, text)
		}
	}
}
