package tracer

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/cilium/ebpf/ringbuf"

	"tt-memtrace/aggregator"
	"tt-memtrace/bpf"
)

// drain takes the records out of the BPF ring buffer and hands each to the run of its process. It reads no process's
// memory and waits for no run, so that nobody can make it late.
type drain struct {
	*env
	attacher *attacher
	sink     func([]aggregator.Event)
	// ready is nil once it was called.
	ready func()
	// waiting are what is to be settled after the pass that is under way.
	waiting []*wanted
	// stacks: the BPF programs send stacks of allocations and frees now.
	stacks bool
	// parcels are what this pass has for each run and has not handed over yet. last caches the run of the last process.
	parcels map[*run]*parcel
	last    struct {
		pid uint32
		run *run
	}
	running sync.WaitGroup
}

// wanted is something that someone waits for. Each run settles it once nothing is left to do for what happened before.
type wanted struct {
	// begins: only what the processes held as tracing began has to be known.
	begins bool
	runs   atomic.Int32 // that have not settled it
	done   func()
}

func (w *wanted) settle() {
	if w.runs.Add(-1) == 0 {
		w.done()
	}
}

const (
	// handBytes of records are handed over at once.
	handBytes = 64 << 10
	// maxQueues bounds the records that wait for all runs together, in sizes of the BPF ring buffer. Those that wait for
	// one run are bounded by one such size.
	maxQueues = 8
)

func newDrain(a *attacher, ready func(), sink func([]aggregator.Event)) *drain {
	var mu sync.Mutex // the sink's calls come one after the other
	return &drain{env: a.env, attacher: a, ready: ready, parcels: map[*run]*parcel{}, stacks: a.opts.Stacks && !a.opts.StacksPaused,
		sink: func(events []aggregator.Event) {
			mu.Lock()
			defer mu.Unlock()
			sink(events)
		}}
}

// start starts a run.
func (d *drain) start() *run {
	r := newRun(d.attacher, d.sink)
	d.running.Go(r.loop)
	return r
}

// loop drains the ring until the context ends, or all targets have ended. When it returns, the runs have ended, too.
func (d *drain) loop(ctx context.Context) error {
	defer func() {
		d.users.end()
		for _, r := range d.users.all() {
			r.in.begin()
			r.in.end(parcel{last: true, wanted: d.waiting})
		}
		d.running.Wait()
	}()
	var record ringbuf.Record
	empty := 0
	for begun := false; ; {
		// It polls the ring on a timer or, after a quiet while, sleeps until the next record. It also lets records wake it
		// while a device opens: the device's first buffer asks for its chips, and the device may close a millisecond later.
		idle := empty >= sleepAfter || d.openings.Load() > 0
		sleeping := idle
		if sleeping {
			if err := d.objects.Idle.Set(uint32(1)); err != nil {
				return fmt.Errorf("going idle: %w", err)
			}
			// Records that arrived before the flag was set did not wake it.
			sleeping = d.reader.AvailableBytes() == 0
		}
		if sleeping {
			d.caughtUp.Store(0)
		} else if d.reader.AvailableBytes() == 0 {
			d.caught()
		}
		started := d.started.Load() // if so, all processes of the start are announced by now
		if started && !begun {
			begun = true
			d.waiting = append(d.waiting, &wanted{begins: true, done: d.begun})
		}
		for _, s := range d.syncs.take() {
			d.waiting = append(d.waiting, &wanted{done: func() { close(s) }})
		}
		if err := d.switchStacks(); err != nil {
			return err
		}
		asked := false
		for _, r := range d.users.all() {
			asked = r.in.begin() || asked
		}
		// When the context ends, read once more everything that is in the ring by now.
		done := started && (ctx.Err() != nil || d.over.Load())
		switch {
		case done, asked, started && len(d.waiting) > 0:
			d.reader.SetDeadline(time.Now())
		case sleeping:
			d.reader.SetDeadline(time.Time{})
		default:
			d.reader.SetDeadline(time.Now().Add(drainEvery))
		}
		n, err := d.pass(&record)
		if d.caughtUp.Load() == 0 {
			d.caught() // it slept, and no record woke it
		}
		if idle {
			if err := d.objects.Idle.Set(uint32(0)); err != nil {
				return fmt.Errorf("waking up: %w", err)
			}
		}
		if errors.Is(err, os.ErrClosed) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("reading the ring buffer: %w", err)
		}
		if empty++; n > 0 {
			empty = 0
		}
		var settling []*wanted
		if started {
			settling, d.waiting = d.waiting, nil
		}
		runs := d.users.all()
		for _, w := range settling {
			w.runs.Store(int32(len(runs)))
		}
		for _, r := range runs {
			p := parcel{wanted: settling, last: done}
			if left := d.parcels[r]; left != nil {
				p.records = left.records
			}
			r.in.end(p)
		}
		clear(d.parcels)
		if done {
			return nil
		}
	}
}

// begun is called once all is known that existed at the start.
func (d *drain) begun() {
	d.ready()
	d.scheduleFreeOSMemory()
}

// caught notes that all records were read, unless some still wait for a run.
func (d *drain) caught() {
	if d.queued.Load() == 0 {
		d.catchesUp()
	}
}

// pass waits for records, then hands over what is there, but no more than the ring's size per call. So under any load
// the runs and waiting callers get their turn between two passes.
func (d *drain) pass(record *ringbuf.Record) (n int, err error) {
	for size := 0; size < d.reader.BufferSize(); {
		err := d.reader.ReadInto(record)
		if errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, ringbuf.ErrFlushed) {
			return n, nil
		}
		if err != nil {
			return n, err
		}
		if n == 0 && d.caughtUp.Load() == 0 {
			d.caught() // it slept
		}
		n++
		size += len(record.RawSample) + 8 // its header in the ring
		d.route(record.RawSample)
		if record.Remaining == 0 {
			d.caught()
			d.reader.SetDeadline(time.Now())
		}
	}
	return n, nil
}

// route puts a record into the parcel of its process's run.
func (d *drain) route(b []byte) {
	if len(b) < int(unsafe.Sizeof(bpf.MemtraceTtHead{})) {
		return
	}
	head := (*bpf.MemtraceTtHead)(unsafe.Pointer(&b[0]))
	if d.last.pid != head.Pid || d.last.run == nil {
		d.last.pid, d.last.run = head.Pid, d.users.run(head.Pid)
	}
	r := d.last.run
	if bpf.MemtraceTtKind(head.Kind) == bpf.MemtraceTtKindTT_EXIT {
		d.users.ended(head.Pid)
		d.last.run = nil
	}
	p := d.parcels[r]
	if p == nil {
		p = &parcel{}
		d.parcels[r] = p
	}
	if !r.in.room(len(p.records), len(b), d.reader.BufferSize(), head.Kind) {
		return
	}
	if p.records = appendRecord(p.records, b); len(p.records) >= handBytes {
		r.in.hand(*p)
		p.records = nil
	}
}

// switchStacks switches stacks of allocations and frees on or off in the BPF programs; failures always have one.
func (d *drain) switchStacks() error {
	wanted := d.sendStacks.Load()
	if wanted == d.stacks {
		return nil
	}
	paused := uint32(1)
	if wanted {
		paused = 0
	}
	if err := d.objects.StacksPaused.Set(paused); err != nil {
		return fmt.Errorf("switching stacks: %w", err)
	}
	d.stacks = wanted
	return nil
}
