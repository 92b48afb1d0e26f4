package tracer

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"
	"unsafe"

	"github.com/cilium/ebpf/ringbuf"
	"golang.org/x/sync/errgroup"

	"tt-memtrace/aggregator"
	"tt-memtrace/bpf"
	"tt-memtrace/internal/proc"
	"tt-memtrace/internal/relay"
)

// Run traces until the context ends or, with PIDs, until the last of them ends. Call it once. It passes events to
// sink in batches. Events of one process keep their order, calls of sink do not overlap, and a batch is valid only
// during its call. Run calls ready when it has attached to everything that existed at the start and has read what those
// processes held.
func (t *Tracer) Run(ctx context.Context, ready func(), sink func([]aggregator.Event)) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for _, pid := range t.opts.PIDs {
		// Do not wait for a PID that ended after it was named.
		if proc.Alive(pid) {
			t.targets.add(pid)
		}
	}
	t.over.Store(len(t.opts.PIDs) > 0 && len(t.targets.list()) == 0)
	d := newDrain(t.attacher, ready, sink)
	t.attacher.runs.Begin(t.wakeDrain, d.start)
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		// Announced processes are handled while start still examines others.
		if err := t.start(); err != nil {
			return err
		}
		return t.discover(ctx)
	})
	g.Go(func() error { return t.attacher.guarding(ctx) })
	g.Go(func() error {
		defer cancel()
		defer close(t.ended)
		defer t.caughtUp.Store(0)
		stop := context.AfterFunc(ctx, t.wakeDrain)
		defer stop()
		return d.loop(ctx)
	})
	err := g.Wait()
	if err == nil { // by now the watcher has read all
		for _, r := range d.all.runs {
			r.lives.joinUnexamined()
			r.flush()
		}
	}
	return err
}

// Sync returns once everything that happened before the call has reached the sink, or the context ends.
func (t *Tracer) Sync(ctx context.Context) error {
	done := make(chan struct{})
	t.syncs.put(done)
	if err := t.reader.Flush(); err != nil {
		return fmt.Errorf("waking the drain: %w", err)
	}
	select {
	case <-done:
		return nil
	case <-t.ended:
		return nil // the drain read everything before it ended
	case <-ctx.Done():
		return ctx.Err()
	}
}

// drain moves records from the BPF ring buffer to the runs of their processes. It reads no process's memory and waits
// for no run, so no process can delay it.
type drain struct {
	*attacher
	sink  func([]aggregator.Event)
	ready func()
	// waiting are to be settled after the current pass.
	waiting []*relay.Wanted
	// stacks: the BPF programs send stacks of allocations and frees now.
	stacks bool
	// current is the parcel of the last record's run; parcels are those of other runs in this pass.
	current struct {
		pid     uint32
		in      *relay.Inbox[mail]
		records []byte
	}
	parcels map[*relay.Inbox[mail]][]byte
	scratch []byte // for a record of an unknown run
	running sync.WaitGroup
	all     struct {
		sync.Mutex
		runs []*run
	}
}

func newDrain(a *attacher, ready func(), sink func([]aggregator.Event)) *drain {
	var mu sync.Mutex // the sink's calls come one after the other
	return &drain{
		attacher: a, ready: ready, parcels: map[*relay.Inbox[mail]][]byte{},
		scratch: make([]byte, 0, recordRoom), stacks: a.opts.Stacks && !a.opts.StacksPaused,
		sink: func(events []aggregator.Event) {
			mu.Lock()
			defer mu.Unlock()
			sink(events)
		},
	}
}

// start starts a run.
func (d *drain) start(in *relay.Inbox[mail]) {
	r := newRun(d.attacher, in, d.sink)
	d.all.Lock()
	defer d.all.Unlock()
	d.all.runs = append(d.all.runs, r)
	d.running.Go(r.loop)
}

// loop drains the ring until the context ends, or all targets have ended. When it returns, the runs have ended, too.
func (d *drain) loop(ctx context.Context) error {
	defer func() {
		d.runs.End()
		for _, in := range d.runs.All() {
			in.Begin()
			in.End(relay.Parcel{Last: true, Wanted: d.waiting})
		}
		d.running.Wait()
	}()
	var record ringbuf.Record
	empty := 0
	for begun := false; ; {
		// It polls the ring on a timer or, after a quiet while, sleeps until the next record. It also lets records wake
		// it while a device opens: the device's first buffer asks for its chips, and the device may close a millisecond
		// later.
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
			d.runs.Trim()
		} else if d.reader.AvailableBytes() == 0 {
			d.catchesUp()
		}
		started := d.started.Load() // if so, all processes of the start are announced by now
		if started && !begun {
			begun = true
			d.waiting = append(d.waiting, &relay.Wanted{Begins: true, Done: d.begun})
		}
		for _, s := range d.syncs.take() {
			d.waiting = append(d.waiting, &relay.Wanted{Done: func() { close(s) }})
		}
		if err := d.switchStacks(); err != nil {
			return err
		}
		asked := false
		for _, in := range d.runs.All() {
			asked = in.Begin() || asked
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
			d.catchesUp() // it slept, and no record woke it
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
		var settling []*relay.Wanted
		if started {
			settling, d.waiting = d.waiting, nil
		}
		d.fill(nil)
		inboxes := d.runs.All()
		for _, w := range settling {
			w.Need(len(inboxes))
		}
		for _, in := range inboxes {
			in.End(relay.Parcel{Records: d.parcels[in], Wanted: settling, Last: done})
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

// pass waits for records, then hands over what is there, but no more than the ring's size per call. So under any load
// the runs and waiting callers get their turn between two passes.
func (d *drain) pass(record *ringbuf.Record) (n int, err error) {
	for size := 0; size < d.reader.BufferSize(); {
		record.RawSample = d.tail()
		err := d.reader.ReadInto(record)
		if errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, ringbuf.ErrFlushed) {
			return n, nil
		}
		if err != nil {
			return n, err
		}
		if n == 0 && d.caughtUp.Load() == 0 {
			d.catchesUp() // it slept
		}
		n++
		size += len(record.RawSample) + 8 // its header in the ring
		d.route(record.RawSample)
		if record.Remaining == 0 {
			d.catchesUp()
			d.reader.SetDeadline(time.Now())
		}
	}
	return n, nil
}

// recordRoom is more than any record takes in a parcel.
const recordRoom = 16 << 10

// tail returns where the next record is read to: where it belongs if it is of the same run as the last one.
func (d *drain) tail() []byte {
	if n := len(d.current.records) + relay.HeadBytes; cap(d.current.records) >= n+recordRoom {
		return d.current.records[n:n]
	}
	return d.scratch
}

// fill goes over to filling the parcel of another run.
func (d *drain) fill(in *relay.Inbox[mail]) {
	if d.current.in != nil && d.current.records != nil {
		d.parcels[d.current.in] = d.current.records
	}
	d.current.in, d.current.records = in, d.parcels[in]
}

// route puts a record into the parcel of its process's run.
func (d *drain) route(b []byte) {
	if len(b) < int(unsafe.Sizeof(bpf.MemtraceTtHead{})) {
		return
	}
	head := (*bpf.MemtraceTtHead)(unsafe.Pointer(&b[0]))
	d.newest.Store(head.Time)
	if c := &d.current; c.in == nil || c.pid != head.Pid {
		c.pid = head.Pid
		if in := d.runs.Of(head.Pid); in != c.in {
			d.fill(in)
		}
	}
	c := &d.current
	if bpf.MemtraceTtKind(head.Kind) == bpf.MemtraceTtKindTT_EXIT {
		d.runs.Ended(head.Pid)
		c.pid = 0 // a later process with this PID can have another run
	}
	if !c.in.Room(len(c.records), len(b), d.reader.BufferSize(), head.Kind) {
		return
	}
	if c.records == nil {
		c.records = d.runs.Buffer()
	}
	if c.records = relay.Append(c.records, b); cap(c.records)-len(c.records) < relay.HeadBytes+recordRoom {
		c.in.Hand(relay.Parcel{Records: c.records})
		c.records = nil
		delete(d.parcels, c.in)
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
