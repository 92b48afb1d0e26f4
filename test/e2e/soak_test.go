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

	"tt-memtrace/aggregator"
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

// ends counts those of programs that map one library, as far as it is known what they map: other programs of the
// host can be traced beside the test's.
type ends struct {
	library string
	// of are the libraries of processes with events, "" until it is known.
	of map[uint32]string
	n  int
}

// count takes in events, before they are in the accounts.
func (l *ends) count(events []aggregator.Event) {
	for _, e := range events {
		switch e.Kind {
		case aggregator.Lost, aggregator.ReasonRaised, aggregator.ReasonLifted:
		case aggregator.ProcessExit:
			if of, has := l.of[e.PID]; has && (of == "" || of == l.library) {
				l.n++
			}
			delete(l.of, e.PID)
		case aggregator.ProcessStart:
			l.of[e.PID] = e.Process.Library
		default:
			l.of[e.PID] += ""
		}
	}
}

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
	counted := ends{library: library, of: map[uint32]string{}}
	tr.mu.Lock()
	tr.events = counted.count
	tr.mu.Unlock()
	before, began, first := holds(t), time.Now(), lives.Load()

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
		n, took.Round(time.Second), float64(n)/took.Seconds(), workloads, counted.n, gone.Round(time.Millisecond))

	s := tr.snapshot()
	if got, want := counted.n, int(n)/soakBatch*batchEnds; got != want {
		t.Errorf("%d ends are in the accounts, not %d", got, want)
	}
	if !s.Exact() || s.Counters.Lost > 0 || s.Counters.ExitedInexact > 0 {
		t.Errorf("the accounts are not exact: %+v", s.Counters)
	}
	// What chips hold is what processes that live hold: of the test's there are none.
	left := map[aggregator.Chip]uint64{}
	for _, c := range s.Chips {
		for _, u := range c.Memory {
			left[c.Chip] += u.Buffers
		}
	}
	for _, p := range s.Processes {
		for _, c := range p.Chips {
			for _, u := range c.Memory {
				left[c.Chip] -= u.Buffers
			}
		}
	}
	for c, n := range left {
		if n != 0 {
			t.Errorf("chip %v holds %d buffers of nobody", c, int64(n))
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
