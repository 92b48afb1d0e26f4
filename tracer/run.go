package tracer

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"sync"
	"time"

	"github.com/cilium/ebpf/ringbuf"
	"golang.org/x/sync/errgroup"

	"tt-memtrace/aggregator"
	"tt-memtrace/bpf"
	"tt-memtrace/tracer/inspect"
	"tt-memtrace/tracer/metal"
	"tt-memtrace/tracer/proc"
)

// Run traces until the context ends or, where PIDs are traced, the last of them
// has ended. It can be called once. Events go to sink in batches, those of
// a process in their order; a batch is valid during the call. Ready is called
// once everything that is to be attached to at the start is attached, and what
// it held before was read.
func (t *Tracer) Run(ctx context.Context, ready func(), sink func([]aggregator.Event)) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		// What is announced is read while others are still looked at.
		if err := t.start(); err != nil {
			return err
		}
		return t.discover(ctx)
	})
	g.Go(func() error { return t.guarding(ctx) })
	g.Go(func() error {
		defer cancel()
		defer close(t.ended)
		defer t.caughtUp.Store(0)
		r := newRun(t, sink)
		defer r.stacks.close()
		r.stacks.sent = t.opts.Stacks && !t.opts.StacksPaused
		for _, pid := range t.opts.PIDs {
			// One that ended since it was named is not waited for.
			if CheckPID(pid) == nil {
				r.targets[pid] = true
			}
		}
		stop := context.AfterFunc(ctx, func() { t.reader.Flush() })
		defer stop()
		defer func() {
			for _, p := range r.processes {
				p.Interrupt() // nothing of what is being read is wanted any more
			}
			r.background.Wait()
		}()
		r.ready = ready
		r.announcements()
		return r.loop(ctx)
	})
	return g.Wait()
}

// run is the reader's state: it alone turns records into events.
type run struct {
	t     *Tracer
	sink  func([]aggregator.Event)
	batch []aggregator.Event

	// processes are known. lookedFor are others that had records and were not found to map
	// a traced library: they are not looked for again before they end, or are announced.
	// No PID is in both.
	processes map[uint32]*traced
	lookedFor map[uint32]struct{}
	// targets are the PIDs that were asked for and live.
	targets map[uint32]bool
	// later are found processes that are known already: the ring may hold
	// an exec between.
	later []announcement
	// execs are when processes began to run another program, those of them that live: who was looked
	// at before that, and announced since, was another one.
	execs map[uint32]uint64
	// ended are processes that ended before they were looked at. All that is to
	// come of them is in the ring.
	ended []uint32
	// ends are of processes that are still to be forgotten.
	ends []end
	// untraced are those that use a library which is not traced.
	untraced map[uint32]bool
	forks    forkSearch

	// related objects of each process.
	related map[uint32]*relations
	// marks of each process: what it says of buffers under traces.
	marks map[uint32]*marks
	// names of the chips that were met.
	names inspect.ChipNames
	// partial are circular buffers whose core ranges come in several records, by thread.
	partial map[uint32]*aggregator.CircularBuffer
	// sharded are what the sizes of sharded buffers are computed from.
	sharded sentAhead[bpf.MemtraceTtSharded]
	// unsizedOf are processes that were not known when buffers of them were seen: the reserved sizes of these were
	// not computed.
	unsizedOf map[uint32]bool
	stacks    *stacks

	lossState
	launchState
	operationState

	// ready, until it is called, and syncs are waited for by others, background
	// is what reads processes.
	ready      func()
	syncs      []chan struct{}
	background sync.WaitGroup
	checkedAt  time.Time
}

func newRun(t *Tracer, sink func([]aggregator.Event)) *run {
	return &run{
		t: t, sink: sink,
		processes: map[uint32]*traced{}, lookedFor: map[uint32]struct{}{}, targets: map[uint32]bool{}, execs: map[uint32]uint64{}, untraced: map[uint32]bool{},
		forks:   forkSearch{hurry: make(chan struct{}, 1)},
		related: map[uint32]*relations{}, marks: map[uint32]*marks{}, names: inspect.ChipNames{}, partial: map[uint32]*aggregator.CircularBuffer{},
		sharded: sentAhead[bpf.MemtraceTtSharded]{}, unsizedOf: map[uint32]bool{}, stacks: newStacks(),
		lossState: lossState{raised: map[aggregator.ReasonCode]raised{}}, launchState: launchState{exited: map[uint32]uint64{}},
		operationState: operationState{callers: map[proc.FileVersion]*metal.Launchers{}},
	}
}

func (r *run) loop(ctx context.Context) error {
	var record ringbuf.Record
	empty := 0
	for {
		// Either the ring is looked at on a timer or, after a quiet while, the next
		// record wakes the reader. So does one while a device opens: its first buffer
		// asks for its chips, which may be closed a millisecond later.
		idle := empty >= sleepAfter || r.opening()
		sleeping := idle
		if sleeping {
			if err := r.t.objects.Idle.Set(uint32(1)); err != nil {
				return fmt.Errorf("going idle: %w", err)
			}
			// Records that came before the flag was set did not wake the reader.
			sleeping = r.t.reader.AvailableBytes() == 0
		}
		if sleeping {
			r.t.caughtUp.Store(0)
		} else if r.t.reader.AvailableBytes() == 0 {
			r.t.catchesUp()
		}
		started := r.t.started.Load() // then all who were there are announced by now
		r.syncs = append(r.syncs, r.t.waiting()...)
		if err := r.switchStacks(); err != nil {
			return err
		}
		// What was read by now is merged when all that happened before is.
		readings := r.t.finished()
		ended := r.ended
		r.ended = nil
		// Whoever ends this has done with what he wants to see: all that is in the
		// ring by now is read once more.
		done := ctx.Err() != nil && started
		if done || len(r.syncs) > 0 && !r.waits() || len(readings) > 0 || len(ended) > 0 || len(r.later) > 0 {
			r.t.reader.SetDeadline(time.Now())
		} else {
			r.t.reader.SetDeadline(r.deadline(sleeping))
		}
		n, err := r.drain(&record)
		if r.t.caughtUp.Load() == 0 {
			r.t.catchesUp() // it slept, and no event woke it
		}
		if idle {
			if err := r.t.objects.Idle.Set(uint32(0)); err != nil {
				return fmt.Errorf("waking up: %w", err)
			}
		}
		if errors.Is(err, os.ErrClosed) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("reading the ring buffer: %w", err)
		}
		if n > 0 {
			empty = 0
		} else {
			empty++
		}
		r.conclude(readings, ended, done || len(r.syncs) > 0)
		if r.ready != nil && (done || started && !r.reading()) {
			r.ready()
			r.ready = nil
			r.t.scheduleFreeOSMemory()
		}
		if len(r.syncs) > 0 {
			r.forks.soon()
		}
		if !r.waits() || done {
			for _, s := range r.syncs {
				close(s)
			}
			r.syncs = nil
		}
		if done || started && r.over() {
			return nil
		}
	}
}

// deadline is until when records are waited for; the zero time where only one wakes the reader.
func (r *run) deadline(sleeping bool) time.Time {
	wait := drainEvery
	switch {
	case !sleeping, len(r.ends) > 0:
	case r.anySuspect():
		wait = settle / 2
	case len(r.processes)+len(r.lookedFor) > 0:
		wait = launchEvery // launches do not wake the reader
	default:
		return time.Time{}
	}
	return time.Now().Add(wait)
}

// conclude does what follows from the records that were read: at once what has its time otherwise, where someone waits for all that
// happened so far.
func (r *run) conclude(readings []*reading, ended []uint32, now bool) {
	for _, a := range r.later {
		r.add(a, uint64(proc.Monotonic()))
	}
	r.later = r.later[:0]
	r.announcements()
	r.scratchpads(now)
	r.capacities(now)
	r.closings(now)
	r.losses(now)
	r.readCounts(now || r.over())
	r.nameLaunched(math.MaxUint64)
	for _, rd := range readings {
		r.merge(rd)
	}
	for _, pid := range ended {
		r.gone(origin{pid: pid, time: uint64(proc.Monotonic())})
	}
	r.markUnread()
	r.check()
	r.leave()
	r.flush()
}

// waits says whether something is still to be done about what has happened.
func (r *run) waits() bool {
	started := r.t.started.Load() // before what is announced is looked at, as in loop
	r.t.inboxMu.Lock()
	found := len(r.t.announced) > 0
	r.t.inboxMu.Unlock()
	return !started || found || r.reading() || r.unlooked() || len(r.ends) > 0 || len(r.ended) > 0 || r.forks.lost && len(r.processes) > 0 || r.forks.searching()
}

// unlooked says whether a process is to be looked at of which events came, within a second: its library may not answer.
func (r *run) unlooked() bool {
	for _, p := range r.processes {
		if p.unseen && proc.Now()-p.found < uint64(time.Second) {
			return true
		}
	}
	return false
}

// Sync returns when everything that happened before the call has reached the
// sink, or when the context ends.
func (t *Tracer) Sync(ctx context.Context) error {
	done := make(chan struct{})
	t.inboxMu.Lock()
	t.syncs = append(t.syncs, done)
	t.inboxMu.Unlock()
	if err := t.reader.Flush(); err != nil {
		return fmt.Errorf("waking the reader: %w", err)
	}
	select {
	case <-done:
		return nil
	case <-t.ended:
		return nil // the reader's last act was to read everything
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (t *Tracer) waiting() []chan struct{} {
	t.inboxMu.Lock()
	defer t.inboxMu.Unlock()
	list := t.syncs
	t.syncs = nil
	return list
}

// drain waits for records, then reads all there are, but no more than the ring
// holds: what comes meanwhile waits for the next round, so that losses, processes
// and whoever waits are looked at under any load.
func (r *run) drain(record *ringbuf.Record) (n int, err error) {
	for size := 0; size < r.t.reader.BufferSize(); {
		err := r.t.reader.ReadInto(record)
		if errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, ringbuf.ErrFlushed) {
			return n, nil
		}
		if err != nil {
			return n, err
		}
		if n == 0 {
			if r.t.caughtUp.Load() == 0 {
				r.t.catchesUp() // it slept
			}
			// Announced before their first event.
			r.announcements()
		}
		n++
		size += len(record.RawSample) + 8 // its header in the ring
		r.decode(record.RawSample)
		r.nameLaunched(r.t.newest.Load())
		if len(r.batch) >= 4096 {
			r.flush()
		}
		if record.Remaining == 0 {
			r.t.catchesUp()
			r.t.reader.SetDeadline(time.Now())
		}
	}
	return n, nil
}

func (r *run) flush() {
	if len(r.batch) > 0 {
		r.sink(r.batch)
		r.batch = r.batch[:0]
	}
}

func (r *run) emit(e aggregator.Event) { r.batch = append(r.batch, e) }
