package e2e

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/procfs"

	"tt-memtrace/aggregator"
	"tt-memtrace/internal/proc"
	"tt-memtrace/test/fixture"
	"tt-memtrace/test/rig"
	"tt-memtrace/tracer"
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

const (
	// soakBatch is how many processes the driver starts before it answers.
	soakBatch = 40
	// Processes of a storm that ended are gone from the accounts in that time.
	storm     = 30_000
	goneAfter = 2 * time.Second
	// comparedAtOnce is after how many processes their ends are compared: long before a PID is used again.
	comparedAtOnce = 25 * soakBatch
)

// lives are processes that come and go, and how many ends of programs the accounts have of each.
type lives struct {
	tr      *trace
	driver  *fixture.Process
	library string
	// programs is how many each process ran, of those that are still to be compared, and all how many processes there were.
	programs map[uint32]int
	all      int
	// ended is how many programs of each process ended, the host's other ones included, and inexact why something was missing
	// of one then; guarded by the trace's lock.
	ended   map[uint32]int
	inexact map[uint32][]aggregator.Reason
}

func newLives(t *testing.T, tr *trace) *lives {
	l := &lives{tr: tr, driver: fixture.Launch(t), library: fixture.LibraryOf(t, fixture.LayoutB), programs: map[uint32]int{}, ended: map[uint32]int{}, inexact: map[uint32][]aggregator.Reason{}}
	tr.mu.Lock()
	defer tr.mu.Unlock()
	exits := 0
	tr.events = func(events []aggregator.Event) {
		exits = 0
		for i := range events {
			if events[i].Kind == aggregator.ProcessExit {
				l.ended[events[i].PID]++
				exits++
			}
		}
	}
	tr.batch = func() {
		if exits == 0 {
			return
		}
		for _, p := range tr.accounts.Snapshot().Ended {
			// One that could not be read in time, beside processes of others that do not answer, is marked (with a detail).
			if slices.ContainsFunc(p.Reasons, func(r aggregator.Reason) bool { return r.Code.Missed() && r.Detail == "" }) {
				l.inexact[p.PID] = p.Reasons
			}
		}
	}
	return l
}

// untilProbed lets processes come and go until the library has probes: those before are in no account.
func (l *lives) untilProbed() {
	l.tr.t.Helper()
	if !l.tr.becomes(func() bool {
		if err := l.some(); err != nil {
			l.tr.t.Fatal(err)
		}
		l.tr.sync()
		l.tr.mu.Lock()
		probed := len(l.ended) > 0
		l.tr.mu.Unlock()
		l.forget()
		return probed
	}) {
		l.tr.t.Fatal("none of them is in the accounts")
	}
}

// some lets some processes come and go.
func (l *lives) some() error {
	answer, err := l.driver.Do("lives %d %s", soakBatch, l.library)
	if err != nil {
		return err
	}
	for i, text := range strings.Fields(answer) {
		pid, err := strconv.ParseUint(text, 10, 32)
		if err != nil {
			return err
		}
		l.all++
		l.programs[uint32(pid)]++
		if i%4 == 2 { // it executed another program
			l.programs[uint32(pid)]++
		}
	}
	if len(l.programs) < comparedAtOnce {
		return nil
	}
	return l.compare()
}

// compare compares the ends of programs that are in the accounts with those that ended.
func (l *lives) compare() error {
	ctx, cancel := context.WithTimeout(l.tr.t.Context(), patience)
	defer cancel()
	if err := l.tr.tracer.Sync(ctx); err != nil {
		return err
	}
	defer l.forget()
	l.tr.mu.Lock()
	defer l.tr.mu.Unlock()
	var wrong []error
	for pid, n := range l.programs {
		if got := l.ended[pid]; got != n {
			wrong = append(wrong, fmt.Errorf("process %d ended %d times in the accounts, not %d", pid, got, n))
		}
		if why := l.inexact[pid]; why != nil {
			wrong = append(wrong, fmt.Errorf("process %d lacked something when it ended: %+v", pid, why))
		}
	}
	return errors.Join(wrong...)
}

// forget has those that came and went until now not compared.
func (l *lives) forget() {
	l.tr.mu.Lock()
	defer l.tr.mu.Unlock()
	clear(l.programs)
	clear(l.ended)
	clear(l.inexact)
}

// Processes that use the runtime for a moment come and go, as many as the machine makes, beside real
// workloads: these have the runtime's own numbers at each rest point, each program's end is in the accounts once, nobody
// who ended stays there, and what the tracer holds does not grow. A quarter of the processes is killed, a quarter executes
// another program, and the others end by themselves. It takes ten seconds, or TT_MEMTRACE_SOAK_TIME.
func TestSoak(t *testing.T) {
	r := installed(t)
	sample := "10s"
	if testing.Short() {
		sample = "1ns" // beside one workload
	}
	lasts, err := time.ParseDuration(cmp.Or(os.Getenv("TT_MEMTRACE_SOAK_TIME"), sample))
	if err != nil {
		t.Fatal(err)
	}
	tr := start(t, tracer.Options{})
	work := func() {
		w := workload(t, r, rig.Options{Cluster: "n300", Args: []string{"--steps", "100"}})
		tr.toTheEnd(w)
	}
	l := newLives(t, tr)
	l.untilProbed()
	work()
	tr.noneEnded()
	shown := tr.shown()
	before, began, first := holds(t), time.Now(), l.all

	var stop atomic.Bool
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		for !stop.Load() {
			if err := l.some(); err != nil {
				t.Error(err)
				return
			}
		}
	}()
	looked := make(chan struct{})
	go func() {
		defer close(looked)
		shown.look(&stop)
	}()
	defer func() { <-stopped; <-looked }()
	defer stop.Store(true)
	workloads := 0
	for ; workloads == 0 || time.Since(began) < lasts || !closed(looked) && time.Since(began) < lasts+patience; workloads++ {
		work()
	}
	stop.Store(true)
	<-stopped
	<-looked
	took, n := time.Since(began), l.all-first
	t.Logf("%d processes in %v, %.0f a second, beside %d workloads", n, took.Round(time.Second), float64(n)/took.Seconds(), workloads)
	if asked := os.Getenv("TT_MEMTRACE_SOAK_TIME"); asked == "10m" && n < storm {
		t.Logf("that is no storm of %d", storm)
	}
	shown.gone(time.Now())
	if err := l.compare(); err != nil {
		t.Error(err)
	}
	s := tr.snapshot()
	for r := range s.Why() {
		if r.PID == 0 { // others' processes are not the test's
			t.Errorf("the accounts are not exact: %v", r.String())
		}
	}
	if s.Counters.Lost > 0 {
		t.Errorf("events were lost: %+v", s.Counters)
	}
	// What chips hold is what processes that live hold: of the test's there are none.
	left := map[aggregator.Chip]uint64{}
	for _, c := range s.Chips {
		for _, u := range c.Memory {
			left[c.Chip] += sizeOf(u.Buffers)
		}
	}
	for _, p := range s.Processes {
		for _, c := range p.Chips {
			for _, u := range c.Memory {
				left[c.Chip] -= sizeOf(u.Buffers)
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
	if grown := after.heap - before.heap; grown > 12<<20+16*n { // the screen keeps what it draws of the past: 3 to 7 MB more in 20 s
		t.Errorf("%d bytes are kept of %d processes", grown, n)
	}
	if grown := after.resident - before.resident; grown > 64<<20 {
		t.Errorf("resident memory has grown by %d bytes", grown)
	}
}

func closed(c chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
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
