package tracer

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"
	"unsafe"

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
	g.Go(func() error { return t.attacher.guarding(ctx) })
	r := newRun(t.attacher, sink)
	g.Go(func() error {
		defer cancel()
		defer close(t.ended)
		defer t.caughtUp.Store(0)
		defer r.stacks.close()
		r.stacks.sent = t.opts.Stacks && !t.opts.StacksPaused
		for _, pid := range t.opts.PIDs {
			// Do not wait for a PID that ended after it was named.
			if proc.Alive(pid) {
				r.lives.targets[pid] = true
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
		r.lives.announcements()
		return r.loop(ctx)
	})
	err := g.Wait()
	if err == nil { // by now the watcher has read all
		r.lives.joinUnexamined()
		r.flush()
	}
	return err
}

// run is the reader's state. Only the reader turns records into events.
type run struct {
	*core
	buffers     *buffers
	comparisons *comparisons
	devices     *devices
	forks       *forks
	launches    *launches
	lives       *lives
	losses      *losses
	markings    *markings
	programs    *programs
	rings       *rings
	stacks      *stacks
	traces      *traces

	// ready is nil once it was called. waiting are callers of Sync.
	ready   func()
	waiting []chan struct{}
}

func newRun(a *attacher, sink func([]aggregator.Event)) *run {
	c := &core{env: a.env, attacher: a, sink: sink, processes: processes{}, raised: map[exact.ReasonCode]moment{}}
	r := &run{
		core:     c,
		devices:  &devices{core: c, names: inspect.ChipNames{}},
		markings: &markings{c},
		rings:    &rings{core: c},
		stacks:   newStacks(),
	}
	r.launches = &launches{core: c, rings: r.rings, exited: map[uint32]uint64{}, callers: map[proc.FileVersion]*metal.Launchers{}}
	r.programs = &programs{core: c, devices: r.devices, launches: r.launches, partial: map[uint32]*aggregator.CircularBuffer{}}
	r.traces = &traces{core: c, devices: r.devices}
	r.buffers = &buffers{core: c, devices: r.devices, markings: r.markings, stacks: r.stacks, traces: r.traces,
		sharded: sentAhead[bpf.MemtraceTtSharded]{}, perCore: sentAhead[bpf.MemtraceTtPerCore]{}}
	r.forks = &forks{core: c, devices: r.devices, search: forkSearch{hurry: make(chan struct{}, 1)}}
	r.losses = &losses{core: c, forks: r.forks}
	r.comparisons = &comparisons{core: c, devices: r.devices, forks: r.forks, losses: r.losses, programs: r.programs}
	r.lives = &lives{core: c, comparisons: r.comparisons, forks: r.forks, launches: r.launches, losses: r.losses, stacks: r.stacks,
		targets: map[uint32]bool{}}
	c.add(r.devices, r.programs, r.forks, r.buffers, r.traces, r.markings, r.rings, &failures{c, r.stacks}, r.stacks, r.losses,
		r.launches, r.lives)
	return r
}

func (r *run) loop(ctx context.Context) error {
	var record ringbuf.Record
	empty := 0
	for {
		// The reader polls the ring on a timer or, after a quiet while, sleeps until the next record. It also lets
		// records wake it while a device opens: the device's first buffer asks for its chips, and the device may
		// close a millisecond later.
		idle := empty >= sleepAfter || r.devices.opening()
		sleeping := idle
		if sleeping {
			if err := r.objects.Idle.Set(uint32(1)); err != nil {
				return fmt.Errorf("going idle: %w", err)
			}
			// Records that arrived before the flag was set did not wake the reader.
			sleeping = r.reader.AvailableBytes() == 0
		}
		if sleeping {
			r.caughtUp.Store(0)
		} else if r.reader.AvailableBytes() == 0 {
			r.catchesUp()
		}
		started := r.started.Load() // if so, all processes of the start are announced by now
		r.waiting = append(r.waiting, r.syncs.take()...)
		if err := r.switchStacks(); err != nil {
			return err
		}
		// Take finished readings before draining: then all records from before their end are applied before they are
		// merged.
		readings := r.comparisons.finished.take()
		ended := r.lives.ended
		r.lives.ended = nil
		// When the context ends, read once more everything that is in the ring by now.
		done := ctx.Err() != nil && started
		if done || len(r.waiting) > 0 && !r.waits() || len(readings) > 0 || len(ended) > 0 || len(r.lives.later) > 0 {
			r.reader.SetDeadline(time.Now())
		} else {
			r.reader.SetDeadline(r.deadline(sleeping))
		}
		n, err := r.drain(&record)
		if r.caughtUp.Load() == 0 {
			r.catchesUp() // it slept, and no record woke it
		}
		if idle {
			if err := r.objects.Idle.Set(uint32(0)); err != nil {
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
		r.conclude(readings, ended, done || len(r.waiting) > 0)
		if r.ready != nil && (done || started && !r.reading()) {
			r.ready()
			r.ready = nil
			r.scheduleFreeOSMemory()
		}
		if len(r.waiting) > 0 {
			r.forks.search.soon()
		}
		if !r.waits() || done {
			for _, s := range r.waiting {
				close(s)
			}
			r.waiting = nil
		}
		if done || started && r.lives.over() {
			return nil
		}
	}
}

// deadline is how long to wait for records; the zero time means until a record wakes the reader.
func (r *run) deadline(sleeping bool) time.Time {
	wait := drainEvery
	switch {
	case !sleeping, len(r.lives.ends) > 0:
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
// happened, it does immediately what otherwise waits for its time.
func (r *run) conclude(readings []*reading, ended []uint32, now bool) {
	for _, a := range r.lives.later {
		r.lives.add(a, proc.Now())
	}
	r.lives.later = r.lives.later[:0]
	r.lives.announcements()
	for f := range featuresThat[timed](r.core) {
		f.due(now || r.lives.over())
	}
	for _, rd := range readings {
		r.comparisons.merge(rd)
	}
	for _, pid := range ended {
		r.lives.gone(origin{pid: pid, time: proc.Now()})
	}
	r.losses.markUnread()
	r.comparisons.check()
	r.lives.leave()
	r.flush()
}

// waits reports whether work remains for what has happened so far.
func (r *run) waits() bool {
	started := r.started.Load() // load this before announced, as in loop
	found := !r.attacher.announced.empty()
	return !started || found || r.reading() || r.unlooked() || len(r.lives.ends) > 0 || len(r.lives.ended) > 0 || r.forks.search.lost && r.processes.active() || r.forks.search.searching()
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
	t.syncs.put(done)
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

// drain waits for records, then reads what is there, but no more than the ring's size per call. So under any load
// losses, processes and waiting callers get their turn between two drains.
func (r *run) drain(record *ringbuf.Record) (n int, err error) {
	for size := 0; size < r.reader.BufferSize(); {
		err := r.reader.ReadInto(record)
		if errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, ringbuf.ErrFlushed) {
			return n, nil
		}
		if err != nil {
			return n, err
		}
		if n == 0 {
			if r.caughtUp.Load() == 0 {
				r.catchesUp() // it slept
			}
			// Processes are announced before their first record.
			r.lives.announcements()
		}
		n++
		size += len(record.RawSample) + 8 // its header in the ring
		r.decode(record.RawSample)
		r.launches.nameLaunched(r.newest.Load())
		if len(r.batch) >= 4096 {
			r.flush()
		}
		if record.Remaining == 0 {
			r.catchesUp()
			r.reader.SetDeadline(time.Now())
		}
	}
	return n, nil
}

// decode turns one record into events. The BPF programs wrote it, so it is whole and aligned.
func (r *run) decode(b []byte) {
	if len(b) < int(unsafe.Sizeof(bpf.MemtraceTtHead{})) {
		return
	}
	head := (*bpf.MemtraceTtHead)(unsafe.Pointer(&b[0]))
	r.newest.Store(head.Time)
	if int(head.Kind) >= len(r.kinds) {
		return
	}
	k := &r.kinds[head.Kind]
	if k.take == nil || len(b) < int(k.least) {
		return
	}
	rec := record{origin: origin{pid: head.Pid, tid: head.Tid, time: head.Time}, library: head.Library, bytes: b}
	switch k.from {
	case anyProcess:
		rec.p, _ = r.lives.process(rec.origin, head.Library)
	case tracedProcess:
		rec.p, _ = r.processOf(rec.origin)
	}
	k.take(rec)
}

// switchStacks switches stacks of allocations and frees on or off in the BPF programs; failures always have one.
func (r *run) switchStacks() error {
	wanted := r.sendStacks.Load()
	if wanted == r.stacks.sent {
		return nil
	}
	paused := uint32(1)
	if wanted {
		paused = 0
	}
	if err := r.objects.StacksPaused.Set(paused); err != nil {
		return fmt.Errorf("switching stacks: %w", err)
	}
	r.stacks.sent = wanted
	return nil
}
