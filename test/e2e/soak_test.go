//go:build soak

package e2e

import (
	"cmp"
	"os"
	"runtime"
	"runtime/debug"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/procfs"

	"tt-memtrace/test/fixture"
	"tt-memtrace/test/rig"
	"tt-memtrace/tracer"
	"tt-memtrace/tracer/proc"
)

// held is what the tracer's process holds.
type held struct {
	goroutines, descriptors int
	heap, resident          int
}

func holds(t *testing.T) (h held) {
	t.Helper()
	debug.FreeOSMemory()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	self, err := procfs.Self()
	if err != nil {
		t.Fatal(err)
	}
	st, err := self.Stat()
	if err != nil {
		t.Fatal(err)
	}
	if h.descriptors, err = self.FileDescriptorsLen(); err != nil {
		t.Fatal(err)
	}
	h.goroutines, h.heap, h.resident = runtime.NumGoroutine(), int(m.HeapAlloc), st.ResidentMemory()
	return h
}

// soakBatch is how many processes the driver starts before it answers, and batchEnds how many programs end:
// a quarter of them execute another one.
const (
	soakBatch = 40
	batchEnds = soakBatch + soakBatch/4
)

// Processes that use the runtime for a moment come and go, as many as the machine makes, beside real
// workloads: these have the runtime's own numbers at each rest point, each program's end is in the accounts, nobody who
// ended stays there, and what the tracer holds does not grow. A quarter of the processes is killed, a quarter executes another program,
// and the others end by themselves. TT_MEMTRACE_SOAK_TIME says for how long.
func TestSoak(t *testing.T) {
	r := installed(t)
	lasts, err := time.ParseDuration(cmp.Or(os.Getenv("TT_MEMTRACE_SOAK_TIME"), "1ns"))
	if err != nil {
		t.Fatal(err)
	}
	tr := start(t, tracer.Options{})
	p, library := fixture.Launch(t), fixture.LibraryOf(t, fixture.LayoutB)
	var lives atomic.Int64
	some := func() bool {
		if _, err := p.Do("lives %d %s", soakBatch, library); err != nil {
			t.Error(err)
			return false
		}
		lives.Add(soakBatch)
		return true
	}
	work := func() {
		w := workload(t, r, rig.Options{Cluster: "n300", Args: []string{"--steps", "100"}})
		tr.toTheEnd(w)
	}
	some()
	work()
	tr.noneEnded()
	before, began, first := holds(t), time.Now(), lives.Load()
	exited := tr.snapshot().Counters.Exited

	var stop atomic.Bool
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		for !stop.Load() && some() {
		}
	}()
	defer func() { <-stopped }()
	defer stop.Store(true)
	workloads := 0
	for ; workloads == 0 || time.Since(began) < lasts; workloads++ {
		work()
	}
	stop.Store(true)
	<-stopped
	took, n := time.Since(began), lives.Load()-first
	gone := tr.noneEnded()
	t.Logf("%d processes in %v, %.0f a second, beside %d workloads, and %d ends in the accounts; the last of them left after %v",
		n, took.Round(time.Second), float64(n)/took.Seconds(), workloads, tr.snapshot().Counters.Exited-exited, gone.Round(time.Millisecond))

	s := tr.snapshot()
	// The workloads end, too, the last of them perhaps later. Whoever was found between an exec and its
	// record ends once more, with nothing: less than one in a thousand.
	if got, want := s.Counters.Exited-exited, uint64(n)/soakBatch*batchEnds; got < want || got > want+uint64(workloads)+1+want/1000 {
		t.Errorf("%d ends are in the accounts, not %d beside %d workloads", got, want, workloads)
	}
	if !s.Exact() || s.Counters.Lost > 0 || s.Counters.ExitedInexact > 0 {
		t.Errorf("the accounts are not exact: %+v", s.Counters)
	}
	for _, c := range s.Chips {
		for _, u := range c.Memory {
			if u.Buffers > 0 || u.Requested > 0 {
				t.Errorf("chip %v holds %+v", c.Chip, u)
			}
		}
	}
	// Those who read processes end a moment after their processes.
	after := holds(t)
	for late := time.Now().Add(patience); (after.goroutines > before.goroutines || after.descriptors > before.descriptors+8) && time.Now().Before(late); after = holds(t) {
		runtime.Gosched()
	}
	t.Logf("held before and after: %+v, %+v", before, after)
	if after.goroutines > before.goroutines || after.descriptors > before.descriptors+8 {
		t.Errorf("goroutines or descriptors are left: %+v, before %+v", after, before)
	}
	if grown := after.heap - before.heap; grown > 2<<20+16*int(n) {
		t.Errorf("%d bytes are kept of %d processes", grown, n)
	}
	if grown := after.resident - before.resident; grown > 64<<20 {
		t.Errorf("resident memory has grown by %d bytes", grown)
	}
}

// noneEnded waits until no process that ended is in the accounts, and says for how long.
func (tr *trace) noneEnded() time.Duration {
	tr.t.Helper()
	began := time.Now()
	for {
		tr.sync()
		ended := 0
		for _, p := range tr.snapshot().Processes {
			if !proc.Alive(p.PID) {
				ended++
			}
		}
		if ended == 0 {
			return time.Since(began)
		}
		if time.Since(began) > patience {
			tr.t.Fatalf("%d processes that ended are in the accounts", ended)
		}
	}
}
