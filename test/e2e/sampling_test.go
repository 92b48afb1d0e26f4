package e2e

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"tt-memtrace/aggregator"
	"tt-memtrace/aggregator/exact"
	"tt-memtrace/internal/sampler"
	"tt-memtrace/test/rig"
	"tt-memtrace/tracer"
)

// sample samples from now on.
func sample(t *testing.T, o sampler.Options) *trace {
	t.Helper()
	tr := &trace{t: t, accounts: aggregator.New(), done: make(chan error, 1), delivered: make(chan struct{}, 1)}
	o.Notice = func(s string) {
		if !strings.HasPrefix(s, "sampling every") {
			tr.mu.Lock()
			tr.notices = append(tr.notices, s)
			tr.mu.Unlock()
		}
	}
	var err error
	if tr.sampler, err = sampler.New(o); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	tr.cancel = cancel
	ready := make(chan struct{})
	go func() {
		tr.done <- tr.sampler.Run(ctx, func() { close(ready) }, func(events []aggregator.Event) {
			tr.mu.Lock()
			defer tr.mu.Unlock()
			for i := range events {
				tr.accounts.Apply(&events[i])
			}
			select {
			case tr.delivered <- struct{}{}:
			default:
			}
		})
	}()
	t.Cleanup(tr.stop)
	<-ready
	return tr
}

// rests waits until all was read of a process that does nothing: a search for new programs
// may have to wait for its share of a processor, of which looks that were asked for without a pause would take most.
func (tr *trace) rests(pid int) {
	tr.t.Helper()
	tr.sync()
	for end := time.After(time.Minute); ; {
		p, ok := tr.process(pid)
		if !ok || len(p.Reasons) == 1 && p.Reasons[0].Code == exact.ReasonSampled {
			return
		}
		select {
		case <-tr.delivered:
		case <-end:
			tr.t.Fatalf("process %d is not as it was when it came to rest: %v", pid, p.Reasons)
		}
	}
}

// A command that is sampled has the runtime's numbers, at every rest point: buffers and
// programs that came and went between two looks too.
func TestSampledEqualsTheRuntimes(t *testing.T) {
	r := installed(t)
	for _, cluster := range []string{"n150", "n300", "t3k"} {
		t.Run(cluster, func(t *testing.T) {
			tr := sample(t, sampler.Options{Follow: uint32(os.Getpid()), Interval: 300 * time.Millisecond})
			w := workload(t, r, rig.Options{Cluster: cluster, Args: []string{"--steps", "300", "--threads", "2"}})
			tr.atEachRest(w, func(m rig.Message) {
				tr.rests(w.PID())
				tr.compareHeld(w.PID(), m)
				if p, ok := tr.process(w.PID()); ok && p.Info.Source != aggregator.Sampled {
					t.Errorf("it is %v", p.Info.Source)
				}
			})
		})
	}
}

// What buffers cost a bank is their own, also where others were at their addresses while they were read.
func TestSampledWhileOthersComeAndGo(t *testing.T) {
	r := installed(t)
	tr := sample(t, sampler.Options{Follow: uint32(os.Getpid()), Interval: 20 * time.Millisecond})
	w := workload(t, r, rig.Options{Cluster: "n150", Script: rig.Alternate})
	next(t, w, rig.EventOpen)
	send(t, w, "go")
	m := next(t, w, rig.EventRest)
	tr.rests(w.PID())
	tr.compareHeld(w.PID(), m)
	send(t, w, "go")
}

// Programs, what they have in L1 and their kernels are those that probes see.
func TestSampledProgramsEqualTheProbed(t *testing.T) {
	r := placesCircularBuffers(t)
	probed := start(t, tracer.Options{Follow: uint32(os.Getpid())})
	tr := sample(t, sampler.Options{Follow: uint32(os.Getpid()), Interval: 300 * time.Millisecond})
	w := workload(t, r, rig.Options{Cluster: "n150", Script: rig.Programs})
	n := 0
	operations(t, w, func(event string, op operation) {
		if n++; event == "op" && n%4 != 0 {
			return
		}
		probed.sync()
		tr.rests(w.PID())
		got, want := programsOf(tr.programs(w.PID())), programsOf(probed.programs(w.PID()))
		for id, p := range want {
			if got[id] != p {
				t.Errorf("%s: program %#x is\n%s\nprobed\n%s", event, id, got[id], p)
			}
		}
		if len(got) != len(want) {
			t.Errorf("%s: %d programs, probed %d", event, len(got), len(want))
		}
		ours, theirs := tr.snapshot(), probed.snapshot()
		for i, c := range ours.Chips {
			d := theirs.Chips[i]
			c.CB.PeakPhysical, c.CB.PeakLogical, d.CB.PeakPhysical, d.CB.PeakLogical = exact.Of(0), exact.Of(0), exact.Of(0), exact.Of(0)
			if c.CB != d.CB || c.Kernel != d.Kernel || c.ConfigRing != d.ConfigRing {
				t.Errorf("%s: chip %d: %+v %+v %+v\nprobed %+v %+v %+v", event, i, c.CB, c.Kernel, c.ConfigRing, d.CB, d.Kernel, d.ConfigRing)
			}
		}
		if t.Failed() {
			t.FailNow()
		}
	})
}
