package session

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"tt-memtrace/aggregator"
	"tt-memtrace/aggregator/exact"
)

// source delivers batches, and then ends or, if it goes on, waits for the context.
type source struct {
	batches  [][]aggregator.Event
	goesOn   bool
	err      error
	mayBegin <-chan struct{}

	reconcile func(pid uint32)
	closed    func()
}

func (s *source) Run(ctx context.Context, ready func(), deliver func([]aggregator.Event)) error {
	if s.mayBegin != nil {
		<-s.mayBegin
	}
	ready()
	ready() // a second call has no effect
	for _, b := range s.batches {
		deliver(b)
	}
	if s.goesOn {
		<-ctx.Done()
	}
	return s.err
}

func (s *source) Close() error {
	if s.closed != nil {
		s.closed()
	}
	return nil
}

// reconciler is a source that can read processes again.
type reconciler struct{ source }

func (s *reconciler) Reconcile(pid uint32) { s.reconcile(pid) }

func newSession(now uint64) *Session {
	return New(Clock{Now: func() uint64 { return now }, Wall: func(t uint64) time.Time { return time.Unix(0, int64(t)) }})
}

func opened(pid uint32) aggregator.Event {
	return aggregator.Event{Kind: aggregator.DeviceOpen, PID: pid, Time: 1, Device: 7, Opened: &aggregator.Opened{Chips: []aggregator.Chip{{}}}}
}

func alloc(pid uint32, id uint64) aggregator.Event {
	return aggregator.Event{Kind: aggregator.Alloc, PID: pid, Time: 2, Device: 7, Buffer: id, Size: 100}
}

func free(pid uint32, id uint64) aggregator.Event {
	return aggregator.Event{Kind: aggregator.Free, PID: pid, Time: 3, Device: 7, Buffer: id}
}

// A sink receives a batch before it is applied, what each event changes and then that, then the batch's end, and
// is closed after the sources.
func TestOrderOfCallbacks(t *testing.T) {
	s := newSession(9)
	var got []string
	say := func(format string, a ...any) { got = append(got, fmt.Sprintf(format, a...)) }
	s.AddSource(&source{
		batches: [][]aggregator.Event{{opened(1), alloc(1, 5)}, {free(1, 5)}},
		closed:  func() { say("source closed") },
	})
	buffers := func() int { return len(s.Accounts().Buffers(1)) }
	s.AddSink(Sink{
		Events: func(e []aggregator.Event) { say("%d events, %d buffers", len(e), buffers()) },
		Event:  func(e *aggregator.Event) { say("event at %d, %d buffers", e.Time, buffers()) },
		Change: func(c aggregator.Change) { say("change of %d, freed %v", c.Buffer.ID, c.Freed) },
		Batch:  func() { say("batch, %d buffers", buffers()) },
		Close:  func() error { say("sink closed"); return nil },
	})
	s.AddSink(Sink{Batch: func() { say("second sink") }})
	if err := s.Run(t.Context(), func() { say("ready") }); err != nil {
		t.Error(err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	want := []string{
		"ready",
		"2 events, 0 buffers", "event at 1, 0 buffers", "change of 5, freed false", "event at 2, 1 buffers", "batch, 1 buffers", "second sink",
		"1 events, 1 buffers", "change of 5, freed true", "event at 3, 0 buffers", "batch, 0 buffers", "second sink",
		"source closed", "sink closed",
	}
	if !slices.Equal(got, want) {
		t.Errorf("%s\nnot\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// A source is asked to read a process again after the batch that showed the need, once
// for each process, and without the session's lock: it may ask for a snapshot.
func TestReconcileWithoutTheLock(t *testing.T) {
	s := newSession(9)
	var asked []uint32
	applied := 0
	r := &reconciler{source{batches: [][]aggregator.Event{
		{opened(1), opened(2), free(1, 5), free(1, 6), free(2, 5)},
		{alloc(1, 8)},
	}}}
	r.reconcile = func(pid uint32) {
		if !s.mu.TryLock() {
			t.Fatal("the lock is held")
		}
		s.mu.Unlock()
		if n := s.Snapshot().Counters.Events; n != 5 || applied != 1 {
			t.Errorf("asked after %d events and %d batches", n, applied)
		}
		asked = append(asked, pid)
	}
	s.AddSource(r)
	s.AddSource(&source{goesOn: true}) // cannot be asked
	s.AddSink(Sink{Batch: func() { applied++ }})
	if err := s.Run(t.Context(), func() {}); err != nil {
		t.Error(err)
	}
	if !slices.Equal(asked, []uint32{1, 2}) {
		t.Errorf("asked for %v", asked)
	}
}

// Sources run together: ready when the last one is, over when the first one ends, and
// their batches do not mix.
func TestManySources(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSession(9)
		begin := make(chan struct{})
		failure := errors.New("it broke")
		var batches [][]aggregator.Event
		for range 100 {
			batches = append(batches, []aggregator.Event{opened(1), alloc(1, 5), free(1, 5)})
		}
		s.AddSource(&source{batches: batches, goesOn: true})
		s.AddSource(&source{batches: batches, mayBegin: begin, err: failure})
		var mu sync.Mutex
		inside, ready, changes := 0, 0, 0
		s.AddSink(Sink{
			Events: func([]aggregator.Event) {
				if inside++; inside != 1 {
					t.Error("two batches at the same time")
				}
			},
			Change: func(aggregator.Change) { changes++ },
			Batch:  func() { inside-- },
		})
		done := make(chan error)
		go func() { done <- s.Run(t.Context(), func() { mu.Lock(); ready++; mu.Unlock() }) }()
		synctest.Wait()
		select {
		case <-s.Ready():
			t.Error("ready before all sources are")
		default:
		}
		close(begin)
		if err := <-done; !errors.Is(err, failure) {
			t.Error(err)
		}
		<-s.Ready()
		if ready != 1 || changes != 400 {
			t.Errorf("ready %d times, %d changes", ready, changes)
		}
	})
}

// What did not run closes its sources only: a sink that received nothing has nothing to
// finish.
func TestCloseWithoutRun(t *testing.T) {
	s := newSession(9)
	closed := 0
	s.AddSource(&source{closed: func() { closed++ }})
	s.AddSink(Sink{Close: func() error { t.Error("the sink is closed"); return nil }})
	if err := s.Close(); err != nil || closed != 1 {
		t.Errorf("%v, %d closed", err, closed)
	}
}

// Time passes between events as long as the session goes on.
func TestSnapshotTime(t *testing.T) {
	s := newSession(50)
	s.Lacks = []string{"peaks"}
	s.AddSource(&source{batches: [][]aggregator.Event{{opened(1), alloc(1, 5)}}})
	s.AddSink(Sink{Close: func() error { return errors.New("no room") }})
	if err := s.Run(t.Context(), func() {}); err != nil {
		t.Error(err)
	}
	if snapshot := s.Snapshot(); snapshot.Time != 50 || !slices.Equal(snapshot.Lacks, s.Lacks) {
		t.Errorf("%+v", snapshot)
	}
	s.Now = func() uint64 { return 60 }
	if err := s.Close(); err == nil || err.Error() != "no room" {
		t.Error(err)
	}
	<-s.Ended()
	s.Now = func() uint64 { return 70 }
	if snapshot := s.Snapshot(); snapshot.Time != 60 || len(s.Buffers(1)) != 1 || s.Programs(1) != nil && len(s.Programs(1)) > 0 {
		t.Errorf("%+v", snapshot)
	}
}

// lagging is a source that is behind.
type lagging struct {
	source
	behind time.Duration
}

func (s *lagging) Behind() time.Duration { return s.behind }
func (s *lagging) Stuck() time.Duration  { return s.behind }

func TestBehindIsNotExact(t *testing.T) {
	for behind, want := range map[time.Duration]bool{0: true, maxBehind: true, maxBehind + 1: false, time.Hour: false} {
		s := newSession(uint64(10 * time.Second))
		s.AddSource(&source{})
		s.AddSource(&lagging{behind: behind})
		s.deliver([]aggregator.Event{opened(1)})
		snapshot := s.Snapshot()
		if snapshot.Exact() != want || snapshot.Chips[0].Exact() != want {
			t.Errorf("%v behind: %v", behind, snapshot.Reasons)
		}
		if !snapshot.Processes[0].Exact() {
			t.Error("it is not the process's own")
		}
		if !want && snapshot.Reasons[0].Code != exact.ReasonBehind {
			t.Error(snapshot.Reasons)
		}
	}
}

// No argument of a command reaches a sink or the accounts, and the source's events stay.
func TestArgumentsAreLeftOut(t *testing.T) {
	const whole = "python serve.py --token=hunter2"
	for _, leave := range []bool{false, true} {
		s := newSession(2)
		s.NoArguments = leave
		start := aggregator.Event{Kind: aggregator.ProcessStart, PID: 1, Time: 1, Process: &aggregator.Process{Started: 1, Command: whole}}
		ended := aggregator.Snapshot{Ended: []aggregator.ProcessSnapshot{{PID: 2, Info: aggregator.Process{Command: whole}}}}
		state := aggregator.Event{Kind: aggregator.StateEnd, Time: 1, Totals: &ended}
		seen := 0
		s.AddSource(&source{batches: [][]aggregator.Event{{{Kind: aggregator.StateBegin, Time: 1}, start, state}}})
		s.AddSink(Sink{Events: func(events []aggregator.Event) {
			var commands []string
			for _, e := range events {
				if e.Process != nil {
					commands = append(commands, e.Process.Command)
				}
				if e.Totals != nil {
					commands = append(commands, e.Totals.Ended[0].Info.Command)
				}
			}
			for _, c := range commands {
				seen++
				if want := map[bool]string{true: "python", false: whole}[leave]; c != want {
					t.Errorf("leave out %v: %q", leave, c)
				}
			}
		}})
		if err := s.Run(t.Context(), func() {}); err != nil {
			t.Fatal(err)
		}
		s.View(func(a *aggregator.Aggregator) {
			for _, p := range a.Snapshot().Processes {
				seen++
				if strings.Contains(p.Info.Command, "hunter2") == leave {
					t.Errorf("leave out %v: the accounts have %q", leave, p.Info.Command)
				}
			}
		})
		if seen != 3 || start.Process.Command != whole || ended.Ended[0].Info.Command != whole {
			t.Errorf("%d commands were seen; the source's are %q and %q", seen, start.Process.Command, ended.Ended[0].Info.Command)
		}
	}
}
