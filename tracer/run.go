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
	"tt-memtrace/aggregator/exact"
	"tt-memtrace/bpf"
	"tt-memtrace/internal/inspect"
	"tt-memtrace/internal/metal"
	"tt-memtrace/internal/proc"
)

// Run traces until the context ends or, with PIDs, until the last of them ends. Call it once. It passes events to
// sink in batches, those of one process in order; a batch is valid only during the call. It calls ready once it has
// attached to everything that existed at the start and has read what those processes held.
func (t *Tracer) Run(ctx context.Context, ready func(), sink func([]aggregator.Event)) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		// The reader handles announced processes while start still examines others.
		if err := t.start(); err != nil {
			return err
		}
		return t.discover(ctx)
	})
	g.Go(func() error { return t.guarding(ctx) })
	r := newRun(t, sink)
	g.Go(func() error {
		defer cancel()
		defer close(t.ended)
		defer t.caughtUp.Store(0)
		defer r.stacks.close()
		r.stacks.sent = t.opts.Stacks && !t.opts.StacksPaused
		for _, pid := range t.opts.PIDs {
			// Do not wait for a PID that ended after it was named.
			if proc.Alive(pid) {
				r.targets[pid] = true
			}
		}
		stop := context.AfterFunc(ctx, func() { t.reader.Flush() })
		defer stop()
		defer func() {
			for _, p := range r.processes.each() {
				p.Interrupt() // nobody wants the results of running reads any more
			}
			r.background.Wait()
		}()
		r.ready = ready
		r.announcements()
		return r.loop(ctx)
	})
	err := g.Wait()
	if err == nil { // by now the watcher has read all
		r.joinUnexamined()
		r.flush()
	}
	return err
}

// run is the reader's state. Only the reader turns records into events.
type run struct {
	t     *Tracer
	sink  func([]aggregator.Event)
	batch []aggregator.Event

	// kinds says what is done with each kind of record.
	kinds     [bpf.MemtraceTtKindTT_KINDS]recordKind
	processes processes
	// targets are the PIDs of Options that still live.
	targets map[uint32]bool
	// later are announcements of processes that are already known: their exec may still be in the ring.
	later []announcement
	// ended are processes that ended before they were examined. Their last records are already in the ring.
	ended []uint32
	// unknownEnds are ends of a command's processes that were never announced.
	unknownEnds []unknownEnd
	// ends are ends of processes whose remaining state is still to be dropped (see leave).
	ends  []end
	forks forkSearch

	// names of the chips seen so far.
	names inspect.ChipNames
	// partial are circular buffers whose core ranges arrive in several records, by thread.
	partial map[uint32]*aggregator.CircularBuffer
	// sharded holds the records from which the sizes of sharded buffers are computed.
	sharded sentAhead[bpf.MemtraceTtSharded]
	// perCore are where buffers lie that have an address on each core, until their allocation is read.
	perCore sentAhead[bpf.MemtraceTtPerCore]
	stacks  *stacks

	lossState
	launchState
	operationState

	// ready is nil once it was called. Callers of Sync wait on syncs. background runs the reads of processes.
	ready      func()
	syncs      []chan struct{}
	background sync.WaitGroup
	checkedAt  time.Time
}

func newRun(t *Tracer, sink func([]aggregator.Event)) *run {
	r := &run{
		t: t, sink: sink, processes: processes{}, targets: map[uint32]bool{},
		forks: forkSearch{hurry: make(chan struct{}, 1)},
		names: inspect.ChipNames{}, partial: map[uint32]*aggregator.CircularBuffer{},
		sharded: sentAhead[bpf.MemtraceTtSharded]{}, perCore: sentAhead[bpf.MemtraceTtPerCore]{}, stacks: newStacks(),
		lossState: lossState{raised: map[exact.ReasonCode]moment{}}, launchState: launchState{exited: map[uint32]uint64{}},
		operationState: operationState{callers: map[proc.FileVersion]*metal.Launchers{}},
	}
	for _, list := range [][]recordKind{
		r.recordsOfBuffers(), r.recordsOfDevices(), r.recordsOfPrograms(), r.recordsOfFailures(), r.recordsOfTraces(),
		r.recordsOfMarks(), r.stacks.records(), r.recordsOfLosses(), r.recordsOfProcesses(),
	} {
		for _, k := range list {
			r.kinds[k.kind] = k
		}
	}
	return r
}

func (r *run) loop(ctx context.Context) error {
	var record ringbuf.Record
	empty := 0
	for {
		// The reader polls the ring on a timer or, after a quiet while, sleeps until the next record. It also lets
		// records wake it while a device opens: the device's first buffer asks for its chips, and the device may
		// close a millisecond later.
		idle := empty >= sleepAfter || r.opening()
		sleeping := idle
		if sleeping {
			if err := r.t.objects.Idle.Set(uint32(1)); err != nil {
				return fmt.Errorf("going idle: %w", err)
			}
			// Records that arrived before the flag was set did not wake the reader.
			sleeping = r.t.reader.AvailableBytes() == 0
		}
		if sleeping {
			r.t.caughtUp.Store(0)
		} else if r.t.reader.AvailableBytes() == 0 {
			r.t.catchesUp()
		}
		started := r.t.started.Load() // if so, all processes of the start are announced by now
		r.syncs = append(r.syncs, r.t.waiting()...)
		if err := r.switchStacks(); err != nil {
			return err
		}
		// Take finished readings before draining: then all records from before their end are applied before they are
		// merged.
		readings := r.t.finished()
		ended := r.ended
		r.ended = nil
		// When the context ends, read once more everything that is in the ring by now.
		done := ctx.Err() != nil && started
		if done || len(r.syncs) > 0 && !r.waits() || len(readings) > 0 || len(ended) > 0 || len(r.later) > 0 {
			r.t.reader.SetDeadline(time.Now())
		} else {
			r.t.reader.SetDeadline(r.deadline(sleeping))
		}
		n, err := r.drain(&record)
		if r.t.caughtUp.Load() == 0 {
			r.t.catchesUp() // it slept, and no record woke it
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

// deadline is how long to wait for records; the zero time means until a record wakes the reader.
func (r *run) deadline(sleeping bool) time.Time {
	wait := drainEvery
	switch {
	case !sleeping, len(r.ends) > 0:
	case r.anySuspect():
		wait = settle / 2
	case r.processes.active():
		wait = launchEvery // launches send no records that would wake the reader
	default:
		return time.Time{}
	}
	return time.Now().Add(wait)
}

// conclude does the work that follows from the records just read. With now, because someone waits for all that has
// happened, it does at once what otherwise waits for its time.
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

// waits reports whether work remains for what has happened so far.
func (r *run) waits() bool {
	started := r.t.started.Load() // load this before announced, as in loop
	r.t.inboxMu.Lock()
	found := len(r.t.announced) > 0
	r.t.inboxMu.Unlock()
	return !started || found || r.reading() || r.unlooked() || len(r.ends) > 0 || len(r.ended) > 0 || r.forks.lost && r.processes.active() || r.forks.searching()
}

// unlooked reports whether a process that sent events is still to be examined. It gives up a second after the process
// was found: its library may not answer.
func (r *run) unlooked() bool {
	for _, p := range r.processes {
		if p.stage == joining && proc.Now()-p.traced.found < uint64(time.Second) {
			return true
		}
	}
	return false
}

// Sync returns once everything that happened before the call has reached the sink, or the context ends.
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
		return nil // the reader read everything before it ended
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

// drain waits for records, then reads what is there, but no more than the ring's size per call. So under any load
// losses, processes and waiting callers get their turn between two drains.
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
			// Processes are announced before their first record.
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
