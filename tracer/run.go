package tracer

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"sync"
	"time"
	"unsafe"

	"github.com/cilium/ebpf/ringbuf"
	"golang.org/x/sync/errgroup"

	"tt-memtrace/aggregator"
	"tt-memtrace/bpf"
	"tt-memtrace/tracer/inspect"
	"tt-memtrace/tracer/memory"
	"tt-memtrace/tracer/metal"
	"tt-memtrace/tracer/proc"
)

// Run traces until the context ends or, where PIDs are traced, the last of them
// has ended. It can be called once. Events go to sink in batches, those of
// a process in their order; a batch is valid during the call. Ready is called
// once everything that is to be attached to at the start is attached, and what
// it held before was read.
func (t *Tracer) Run(ctx context.Context, ready func(), sink func([]aggregator.Event)) error {
	if err := t.start(); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return t.discover(ctx) })
	g.Go(func() error { return t.guarding(ctx) })
	g.Go(func() error {
		defer cancel()
		defer close(t.ended)
		defer t.caughtUp.Store(0)
		r := &run{t: t, sink: sink, processes: map[uint32]*traced{}, lookedFor: map[uint32]struct{}{}, untraced: map[uint32]bool{}, unsizedOf: map[uint32]bool{}, sharded: sentAhead[bpf.MemtraceTtSharded]{}, targets: map[uint32]bool{}, partial: map[uint32]*aggregator.CircularBuffer{},
			execs: map[uint32]uint64{}, raised: map[aggregator.ReasonCode]raised{}, related: map[uint32]*relations{}, marks: map[uint32]*marks{}, exited: map[uint32]uint64{}, callers: map[proc.FileVersion]*metal.Launchers{}, names: inspect.ChipNames{}, stacks: newStacks(), forks: forkSearch{hurry: make(chan struct{}, 1)}}
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
	// execs are when processes began to run another program, those of them that live: who was looked
	// at before that, and announced since, was another one.
	execs map[uint32]uint64
	// untraced are those that use a library which is not traced.
	untraced map[uint32]bool
	// unsizedOf are processes of which buffers were seen before these were known: their reserved sizes were
	// not computed.
	unsizedOf map[uint32]bool
	// sharded are what the sizes of sharded buffers are computed from.
	sharded sentAhead[bpf.MemtraceTtSharded]
	// lost events, those of them that make up programs or are of traces, and ends of processes.
	lost, lostParts, lostTraces, lostMarks, lostEnds uint64
	// lostAllocs are allocations among the lost events, allocsLost is when they were lost last, and countedAt when losses were.
	lostAllocs uint64
	allocsLost span
	countedAt  uint64
	// lostUncounted is how many records that a launch was not counted can be lost.
	lostUncounted uint64
	// lostPrograms and lostWorkloads are the ends of programs and workloads among them.
	lostPrograms, lostWorkloads uint64
	lostAt                      time.Time
	// targets are the PIDs that were asked for and live.
	targets map[uint32]bool
	// partial are circular buffers whose core ranges come in several records, by thread.
	partial map[uint32]*aggregator.CircularBuffer
	// names of the chips that were met.
	names inspect.ChipNames
	// ends are of processes that are still to be forgotten.
	ends []end
	// ended are processes that ended before they were looked at. All that is to
	// come of them is in the ring.
	ended []uint32
	// later are found processes that are known already: the ring may hold
	// an exec between.
	later []announcement
	// related objects of each process, and the functions that launch ttnn operations, by file.
	related map[uint32]*relations
	// marks of each process: what it says of buffers under traces.
	marks map[uint32]*marks
	// exited are the processes that ended since launches were read last, and when.
	exited  map[uint32]uint64
	callers map[proc.FileVersion]*metal.Launchers
	// launchedAt is when launches were read last, into these.
	launchedAt   time.Time
	launchKeys   []bpf.MemtraceTtLaunchKey
	launchValues []bpf.MemtraceTtLaunch
	stacks       *stacks
	// ready, until it is called, and syncs are waited for by others, background
	// is what reads processes.
	ready      func()
	syncs      []chan struct{}
	background sync.WaitGroup
	checkedAt  time.Time
	forks      forkSearch
	// lossCounted is when a loss was counted last, in proc.Ticks.
	lossCounted uint64
	// raised are the reasons that all processes had to have, and when that was.
	raised map[aggregator.ReasonCode]raised
	// forksLost: an event was lost since forks were looked for.
	forksLost     bool
	forksSoughtAt time.Time
}

// traced is a process that maps the runtime.
type traced struct {
	// Inspector is what the reader of events asks: it waits for nobody.
	*inspect.Inspector
	// patient waits for the process's memory, for who reads it apart.
	patient *inspect.Inspector
	// lateReads is how many reads were too late, and hung that its memory did not answer, when it was marked for that last.
	lateReads uint64
	hung      bool
	mapping   proc.Mapping
	of        *attachment
	// found is when it was looked at first, and at when last.
	found, at uint64
	// first and last are when the first record and the last were made that were taken to be of it; 0 where none was yet.
	first, last uint64
	seen        time.Time // when it was seen to map the library; zero where that is not known
	// others are further builds of the runtime that it has mapped.
	others []another
	// marked is why it stays marked until it ends, or empty.
	marked  string
	late    bool // it may have used the library before the probes were there
	unseen  bool // not all probes may have been in when events came of it, and it was not looked at since
	start   aggregator.Process
	chips   *inspect.Chips
	devices map[uint64][]aggregator.Chip
	// waiting is what waits for the chips of devices.
	waiting map[uint64][]waiting
	// unsized are devices that open, or have opened, and whose allocators or chips are not known.
	unsized map[uint64]*unsized
	// used are the devices that it allocated on, of a fork; unsure: of others cannot be said
	// whether they are copies.
	used   map[uint64]bool
	unsure bool
	// closing are devices that began to close, and closed when those closed that have not opened
	// again since.
	closing    map[uint64]*closing
	closed     map[uint64]uint64
	allocators map[uint64]bool
	// banks of its allocators' memories, from which reserved sizes are computed; zero where they could not be read.
	banks   map[memoryOf]metal.Bank
	noticed bool
	// hooked are Buffers that graph capture took, so that nothing is reserved for them.
	hooked map[uint64]struct{}
	// unknownCapacities are of allocators that could not be read: perhaps they are just being destroyed.
	unknownCapacities map[uint64]unknownCapacity
	reconciliation    reconciliation
	// resident memory on the host that went out last, bytes.
	resident uint64
	// unread is how many of its events could not be read, or not whole, and unreadParts how
	// many of those that make up programs.
	unread, unreadParts uint64
}

func (p *traced) hook(buffer uint64) {
	if p.hooked == nil {
		p.hooked = map[uint64]struct{}{}
	}
	p.hooked[buffer] = struct{}{}
}

// unhook says whether a Buffer that is freed, or that is another one now, was hooked.
func (p *traced) unhook(buffer uint64) bool {
	if len(p.hooked) == 0 {
		return false
	}
	_, was := p.hooked[buffer]
	delete(p.hooked, buffer)
	return was
}

// unknownCapacity is why the capacity of an allocator is not known, and since when.
type unknownCapacity struct {
	why   error
	since time.Time
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
		done := ctx.Err() != nil
		switch {
		case done, len(r.syncs) > 0 && !r.waits(), len(readings) > 0, len(ended) > 0, len(r.later) > 0:
			r.t.reader.SetDeadline(time.Now())
		case sleeping && len(r.ends) > 0:
			r.t.reader.SetDeadline(time.Now().Add(drainEvery))
		case sleeping && r.anySuspect():
			r.t.reader.SetDeadline(time.Now().Add(settle / 2))
		case sleeping && len(r.processes)+len(r.lookedFor) > 0:
			// Launches do not wake the reader.
			r.t.reader.SetDeadline(time.Now().Add(launchEvery))
		case sleeping:
			r.t.reader.SetDeadline(time.Time{})
		default:
			r.t.reader.SetDeadline(time.Now().Add(drainEvery))
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
		for _, a := range r.later {
			r.add(a, uint64(proc.Monotonic()))
		}
		r.later = r.later[:0]
		r.announcements()
		r.scratchpads(done || len(r.syncs) > 0)
		r.capacities(done || len(r.syncs) > 0)
		r.closings(done || len(r.syncs) > 0)
		r.losses(done || len(r.syncs) > 0)
		r.counted(done || len(r.syncs) > 0 || r.over())
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
		if r.ready != nil && (done || !r.reading()) {
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
		if done || r.over() {
			return nil
		}
	}
}

// waits says whether something is still to be done about what has happened.
func (r *run) waits() bool {
	r.t.inboxMu.Lock()
	found := len(r.t.announced) > 0
	r.t.inboxMu.Unlock()
	return found || r.reading() || r.unlooked() || len(r.ends) > 0 || len(r.ended) > 0 || r.forksLost && len(r.processes) > 0 || r.forks.searching()
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

// origin says where something comes from: the process, its thread (0 where none is known),
// and when, CLOCK_MONOTONIC in ns.
type origin struct {
	pid, tid uint32
	time     uint64
}

// decode turns one record into events. Records are the kernel's, whole and aligned.
func (r *run) decode(b []byte) {
	if len(b) < int(unsafe.Sizeof(bpf.MemtraceTtHead{})) {
		return
	}
	head := (*bpf.MemtraceTtHead)(unsafe.Pointer(&b[0]))
	r.t.newest.Store(head.Time)
	from := origin{pid: head.Pid, tid: head.Tid, time: head.Time}
	switch kind := bpf.MemtraceTtKind(head.Kind); kind {
	case bpf.MemtraceTtKindTT_ALLOC:
		e := (*bpf.MemtraceTtAlloc)(unsafe.Pointer(&b[0]))
		perBank := uint64(head.PerBank)
		if p, known := r.process(from, head.Library); !known {
			if perBank == 0 {
				r.unsizedOf[from.pid] = true
			}
		} else {
			r.know(p, from, e.Device, e.Allocator)
			if p.reconciliation.forkedFrom != 0 {
				p.use(e.Device)
			}
			p.touch(e.Buffer)
			p.unhook(e.Buffer)
			if perBank == 0 {
				perBank = r.reservedSize(p, from, e)
			}
		}
		r.emit(aggregator.Event{
			Kind: aggregator.Alloc, Memory: aggregator.Memory(head.Memory), MemoryLayout: head.Layout,
			PID: from.pid, TID: from.tid, Time: from.time,
			Device: e.Device, Allocator: e.Allocator, Buffer: e.Buffer,
			Address: uint64(e.Address), Size: e.Size, PageSize: uint64(e.PageSize), PerBank: perBank,
			Stack: r.stacks.take(from),
		})
		r.markAllocated(from, e.Buffer)
	case bpf.MemtraceTtKindTT_CB:
		r.circularBuffer(from, head.Library, b)
	case bpf.MemtraceTtKindTT_KERNEL_ADDED, bpf.MemtraceTtKindTT_KERNEL_FILE, bpf.MemtraceTtKindTT_KERNEL_COPY,
		bpf.MemtraceTtKindTT_PROGRAM_ADDED, bpf.MemtraceTtKindTT_WORKLOAD_NAMED, bpf.MemtraceTtKindTT_SCRATCHPADS:
		r.process(from, head.Library)
		r.kernel(from, kind, b)
	case bpf.MemtraceTtKindTT_REFUSED:
		r.process(from, head.Library)
		r.refused(from, b)
	case bpf.MemtraceTtKindTT_TRACE:
		r.process(from, head.Library)
		r.trace(from, b)
	case bpf.MemtraceTtKindTT_MARK:
		r.process(from, head.Library)
		r.handleMark(from, (*bpf.MemtraceTtMark)(unsafe.Pointer(&b[0])))
	case bpf.MemtraceTtKindTT_SHARDED:
		r.sharded.add(from, b)
	case bpf.MemtraceTtKindTT_STACK:
		r.process(from, head.Library)
		r.stacks.sentAhead.add(from, b)
	case bpf.MemtraceTtKindTT_PROGRAM_GONE, bpf.MemtraceTtKindTT_WORKLOAD_GONE:
		if len(b) < int(unsafe.Sizeof(bpf.MemtraceTtGone{})) {
			return
		}
		e := (*bpf.MemtraceTtGone)(unsafe.Pointer(&b[0]))
		if _, known := r.process(from, head.Library); known && e.Launches.Count > 0 {
			r.lastLaunches(from.pid, e.Object.Object, &e.Launches)
		}
		r.object(from, kind, head.Library, e.Object.Object)
	default:
		r.object(from, kind, head.Library, (*bpf.MemtraceTtObject)(unsafe.Pointer(&b[0])).Object)
	}
}

// object turns the records that only name an object into events.
func (r *run) object(from origin, kind bpf.MemtraceTtKind, library uint8, object uint64) {
	e := aggregator.Event{PID: from.pid, TID: from.tid, Time: from.time}
	switch kind {
	case bpf.MemtraceTtKindTT_FREE:
		if p, known := r.process(from, library); known {
			if p.unhook(object) {
				return // it never came into the accounts
			}
			p.touch(object)
		}
		e.Kind, e.Buffer = aggregator.Free, object
		r.emit(e)
		r.marks[from.pid].forget(object)
	case bpf.MemtraceTtKindTT_HOOKED:
		if p, known := r.process(from, library); known {
			p.hook(object)
		}
	case bpf.MemtraceTtKindTT_DEVICE_OPEN:
		p, known := r.process(from, library)
		if !known {
			return
		}
		r.endsAt(p, object, from.time) // whatever was at this address is gone
		p.notSubmesh(object)
		delete(p.devices, object)
		delete(p.waiting, object)
		delete(p.closed, object)
		// Where it is not yet what it will be, its first buffer asks again.
		if d, err := r.chipsOf(p, object); err == nil {
			r.opened(p, from, object, d)
		}
		p.awaitCapacity(object)
	case bpf.MemtraceTtKindTT_DEVICE_CLOSE:
		if p, known := r.take(from); known {
			r.closes(p, from, library, object)
		} else {
			e.Kind, e.Device = aggregator.DeviceClose, object
			r.emit(e)
		}
	case bpf.MemtraceTtKindTT_ALLOCATOR_GONE:
		if p, known := r.take(from); known {
			r.endsAt(p, object, from.time)
			delete(p.allocators, object)
			delete(p.unknownCapacities, object)
			p.forgetBanks(object)
			p.touch(object)
		}
		e.Kind, e.Allocator = aggregator.AllocatorGone, object
		r.emit(e)
	case bpf.MemtraceTtKindTT_PROGRAM_GONE:
		if p, known := r.take(from); known {
			p.make(object)
			p.noProgram(object)
		}
		e.Kind, e.Program = aggregator.ProgramGone, object
		r.emit(e)
		r.relations(from.pid).dropProgram(object)
		r.chipsKnown(from.pid, from.time, object)
	case bpf.MemtraceTtKindTT_WORKLOAD_GONE:
		r.relations(from.pid).dropWorkload(object)
	case bpf.MemtraceTtKindTT_UNREAD:
		if p, known := r.process(from, library); known {
			r.unread(p, from, bpf.MemtraceTtKind(object))
		}
	case bpf.MemtraceTtKindTT_EXEC:
		r.execed(from)
	case bpf.MemtraceTtKindTT_EXIT:
		r.exits(from)
	}
}

// execed handles that a process runs a new program: all that it held is gone. Where the
// new one was found before this was read, it begins anew if anything was taken to be of it that was of
// the old one. If not, the old one is in no account, or has ended there.
func (r *run) execed(from origin) {
	r.ends = append(r.ends, end{from.pid, from.time, false})
	if lives, _, err := r.t.watchExit(from.pid); err != nil {
		r.t.opts.Notice(err.Error())
	} else if lives {
		r.execs[from.pid] = from.time
	}
	p, known := r.processes[from.pid]
	if known && p.found >= from.time && (p.first == 0 || p.first >= from.time) {
		r.copiesAreOwn(from)
		return
	}
	r.gone(from)
	if known && p.at >= from.time {
		r.add(announcement{mapping: p.mapping, of: p.of, late: p.late, at: p.at, seen: p.seen}, uint64(proc.Monotonic()))
	}
}

// exits handles the end of a process. One that was found while this was read is taken in
// first: no other event has its end. One that was found after that end has its PID.
func (r *run) exits(from origin) {
	r.announcements()
	r.later = slices.DeleteFunc(r.later, func(a announcement) bool { return a.mapping.PID == from.pid && a.at <= from.time })
	if p, known := r.processes[from.pid]; !known || p.found <= from.time {
		r.gone(from)
	}
	delete(r.targets, from.pid)
	delete(r.execs, from.pid)
	r.ends = append(r.ends, end{from.pid, from.time, true})
}

// maxClosed bounds how many devices of a process are remembered that closed.
const maxClosed = 4096

// end is that of a process, or of the program that it was, at a time.
type end struct {
	pid   uint32
	at    uint64
	whole bool
}

// leave forgets what is kept of processes that ended, beside their accounts. While a
// library is being read that waits.
func (r *run) leave() {
	if len(r.ends) == 0 || !r.t.mu.TryLock() {
		return
	}
	defer r.t.mu.Unlock()
	for _, e := range r.ends {
		r.t.unmapped(e.pid, e.at)
		if r.untraced[e.pid] {
			r.t.judge(e.pid)
		}
		if e.whole {
			r.t.detach(e.pid)
		}
	}
	r.ends = r.ends[:0]
	r.t.retryLater()
	r.judged()
}

// gone ends a process's accounts, where it has any.
func (r *run) gone(from origin) {
	p, known := r.processes[from.pid]
	_, lookedFor := r.lookedFor[from.pid]
	if known || lookedFor || r.related[from.pid] != nil {
		r.forget(from.pid, from.time)
	}
	r.stacks.drop(r.t, from.pid)
	if known {
		r.findForks(p.mapping)
	}
	if known || lookedFor { // events of either went out
		delete(r.processes, from.pid)
		delete(r.lookedFor, from.pid)
		delete(r.unsizedOf, from.pid)
		r.emit(aggregator.Event{Kind: aggregator.ProcessExit, PID: from.pid, Time: from.time})
	}
	r.copiesAreOwn(from)
}

// copiesAreOwn handles that what a process's forked children have copies of is theirs alone now.
func (r *run) copiesAreOwn(from origin) {
	for _, p := range r.processes {
		if p.reconciliation.forkedFrom == from.pid {
			p.reconciliation.forkedFrom = proc.ForkedFrom(p.mapping)
			p.start.Late = true
			r.describe(p, from.time)
			r.read(p, true)
		}
	}
}

// over says whether every process that was asked for has ended.
func (r *run) over() bool { return len(r.t.opts.PIDs) > 0 && len(r.targets) == 0 }

// judged marks the processes that use a library that is not traced.
func (r *run) judged() {
	r.t.inboxMu.Lock()
	list := r.t.verdicts
	r.t.verdicts = nil
	r.t.inboxMu.Unlock()
	for _, v := range list {
		if v.of == nil {
			r.mark(v.pid, v)
		}
		for pid, p := range r.processes {
			if v.of != nil && p.of == v.of {
				r.mark(pid, v)
			}
		}
	}
}

// mark raises or lifts that a process is not traced.
func (r *run) mark(pid uint32, v verdict) {
	e := aggregator.Event{Kind: aggregator.ReasonRaised, PID: pid, Time: v.at,
		Reason: &aggregator.Reason{Code: aggregator.ReasonNotTraced, Detail: v.why}}
	if v.why != "" {
		r.untraced[pid] = true
		r.emit(e)
	} else if p := r.processes[pid]; r.untraced[pid] && (p == nil || p.marked == "") {
		delete(r.untraced, pid)
		e.Kind = aggregator.ReasonLifted
		r.emit(e)
	}
}

// markForGood marks a process until it ends.
func (r *run) markForGood(p *traced, why string) {
	if p.marked == "" {
		p.marked = why
		r.mark(p.mapping.PID, verdict{why: why, at: proc.Now()})
	}
}

// announcements adds the processes that discovery found.
func (r *run) announcements() {
	r.judged()
	r.t.inboxMu.Lock()
	list := r.t.announced
	r.t.announced = nil
	r.t.inboxMu.Unlock()
	for _, a := range list {
		if r.known(a.mapping.PID) {
			r.later = append(r.later, a)
		} else {
			r.add(a, uint64(proc.Monotonic()))
		}
	}
}

// known says whether a process was found to map a traced library.
func (r *run) known(pid uint32) bool {
	_, known := r.processes[pid]
	return known
}

// add adds a process that was found. It is false for one that has ended since, or runs another
// program by now.
func (r *run) add(a announcement, now uint64) (p *traced, lives bool) {
	pid := a.mapping.PID
	if a.at < r.execs[pid] {
		return nil, false
	}
	command, started := a.command, a.started
	if started == 0 {
		var err error
		if command, started, err = memory.FilesOf(pid).Hurried().Command(); err != nil {
			return nil, false
		}
	}
	in := inspect.New(a.of.lib, a.mapping)
	p = &traced{
		Inspector: in.Hurried(), patient: in, mapping: a.mapping, of: a.of, found: a.at, at: a.at, seen: a.seen, late: a.late,
		devices: map[uint64][]aggregator.Chip{}, unsized: map[uint64]*unsized{}, closing: map[uint64]*closing{}, closed: map[uint64]uint64{}, allocators: map[uint64]bool{}, banks: map[memoryOf]metal.Bank{}, unknownCapacities: map[uint64]unknownCapacity{},
	}
	p.chips = inspect.NewChips(p.Inspector, pid)
	p.reconciliation.forkedFrom = proc.ForkedFrom(a.mapping)
	if old, known := r.processes[pid]; known && started < old.start.Started {
		return nil, false // it was found before its PID was another's
	} else if known && started > old.start.Started {
		r.gone(origin{pid: pid, time: a.at}) // another process with its PID: the record of its end is lost, or still to come
	}
	if old, known := r.processes[pid]; known && old.mapping.Base == p.mapping.Base && old.of.lib == p.of.lib {
		old.at = max(old.at, a.at) // an exec between may still be in the ring
		r.lookedAt(old, a)
		return old, true
	} else if known {
		there, err := proc.MapsAlike(pid, old.mapping)
		if err == nil && there {
			old.at = max(old.at, a.at)
			r.mapsAnother(old, a)
			return old, true
		}
		if err == nil {
			// It runs another program, and the record of that is lost, or still to come.
			r.gone(origin{pid: pid, time: a.at})
		}
	}
	p.reconciliation.lost, p.reconciliation.lostParts = r.missing(p)
	if err := r.t.watchForks(pid); err != nil {
		r.t.opts.Notice(err.Error())
	}
	r.processes[pid] = p
	if _, before := r.lookedFor[pid]; before {
		p.first = 1 // events of it went out
	}
	delete(r.lookedFor, pid)
	if r.unsizedOf[pid] {
		p.reconciliation.suspect = time.Now()
	}
	delete(r.unsizedOf, pid)
	if r.stacks.sent {
		r.stacks.addProcess(r.t, pid)
	}
	// Perhaps not all probes are in. When it was looked at they are, and what it holds is read.
	if p.unseen = a.unseen && started <= a.covered; p.unseen {
		r.t.found.Add(pid)
	}
	p.start = aggregator.Process{Started: started, Command: command, Late: a.late || p.unseen}
	p.describeLibrary()
	p.start.Container, p.start.InnerPID = inspect.ContainerOf(pid)
	r.describe(p, now)
	if a.of.overwritten.Load() {
		r.mark(pid, verdict{why: whyOverwritten, at: now})
	}
	r.raiseMissed(p)
	switch {
	case p.unseen:
	case a.late:
		r.read(p, true)
	case r.lost > 0 && started <= r.lossCounted:
		// What was counted as lost before it was known can be of it.
		r.mayLack(p)
	}
	return p, true
}

// lookedAt handles that a process that is known was looked at. What it held before is read unless it was.
func (r *run) lookedAt(p *traced, a announcement) {
	if a.unseen {
		return
	}
	late := a.late && !p.reconciliation.read
	if late && !p.start.Late || p.unseen && !late {
		p.start.Late = late
		r.describe(p, a.at)
	}
	p.unseen = false
	if late {
		r.read(p, true)
	}
}

// mayLack has a process read that was not known when a loss was counted.
func (r *run) mayLack(p *traced) {
	p.reconciliation.lost, p.reconciliation.lostParts = 0, 0
	p.reconciliation.suspect = time.Now()
	r.raise(p.mapping.PID, aggregator.ReasonEventsLost)
}

// describe describes a process, again where something about it changed.
func (r *run) describe(p *traced, now uint64) {
	start := p.start
	r.emit(aggregator.Event{Kind: aggregator.ProcessStart, PID: p.mapping.PID, Time: now, Process: &start})
}

// take finds the process that a record is taken to be of.
func (r *run) take(from origin) (p *traced, known bool) {
	if p, known = r.processes[from.pid]; known {
		if p.last = from.time; p.first == 0 {
			p.first = from.time
		}
	}
	return p, known
}

// process finds the process of a record, and looks it up once where it was not
// announced: its library, of that number, was attached to for another process.
func (r *run) process(from origin, library uint8) (p *traced, known bool) {
	if p, known := r.take(from); known {
		return p, true
	}
	if _, once := r.lookedFor[from.pid]; once {
		return nil, false
	}
	r.lookedFor[from.pid] = struct{}{}
	lives, reported, err := r.t.watchExit(from.pid)
	if err != nil {
		r.t.opts.Notice(err.Error())
	}
	if !lives {
		// A reported end comes after all that the process did, and after it was announced.
		if !reported {
			r.ended = append(r.ended, from.pid)
		}
		return nil, false
	}
	list, err := r.t.finder.Known(from.pid)
	if errors.Is(err, proc.ErrMapsBusy) {
		r.t.found.Add(from.pid)
	}
	if err != nil {
		return nil, false // its end is reported, as it was watched before
	}
	for _, m := range list {
		if a, covered := r.t.attachedTo(m, uint32(library)); a != nil {
			// It was not seen to map the library: it has it from its parent. Where that has
			// ended, what it has copies of is its own.
			orphan := proc.Forked(m.PID) && proc.ForkedFrom(m) == 0
			return r.add(announcement{mapping: m, of: a, at: from.time, late: orphan, unseen: true, covered: covered}, from.time)
		}
	}
	r.t.found.Add(from.pid) // to open what it maps can take long
	return nil, false
}

// know makes sure that a buffer's device and allocator were described before it.
func (r *run) know(p *traced, from origin, device, allocator uint64) {
	if _, closed := p.closed[device]; closed && p.allocators[allocator] {
		r.closeFailed(p, from)
	}
	r.device(p, from, device)
	if !p.allocators[allocator] {
		capacity, err := p.Capacity(allocator)
		r.sized(p, from, device, allocator, &capacity)
		if err != nil {
			p.unknownCapacities[allocator] = unknownCapacity{err, time.Now()}
			p.awaitCapacity(device) // its banks are asked for again
		}
	}
}

// closeFailed has a process read whose device is used after it began to close, with the allocator
// that it had: what it holds was taken to be gone, and is not.
func (r *run) closeFailed(p *traced, from origin) {
	r.unreadOf(p)
	p.reconciliation.suspect = time.Now()
	r.emit(aggregator.Event{Kind: aggregator.ReasonRaised, PID: from.pid, TID: from.tid, Time: from.time,
		Reason: &aggregator.Reason{Code: aggregator.ReasonOddEvents, Detail: "a device is used after it closed"}})
}

// uses says whether a process that lives has a chip of a unique id.
func (r *run) uses(unique uint64) bool {
	for _, p := range r.processes {
		if p.chips.Uses(unique) {
			return true
		}
	}
	return false
}

// noticeOnce notices once for each process what could not be read of it. That
// happens to a process which closes its device a moment after its first
// allocation: what it held is then shown without chips.
func (p *traced) noticeOnce(r *run, err error) {
	if !p.noticed {
		p.noticed = true
		r.t.opts.Notice(fmt.Sprintf("process %d: %v", p.mapping.PID, err))
	}
}

// device describes a device while it is there, unless that was done already. One that cannot be
// read now is in the accounts without chips, and is asked again later.
func (r *run) device(p *traced, from origin, address uint64) {
	chips, met := p.devices[address]
	if len(chips) > 0 || met && p.unsized[address] != nil {
		return
	}
	d, err := r.chipsOf(p, address)
	if errors.Is(err, memory.ErrLater) {
		p.awaitCapacity(address)
	} else if err != nil {
		p.awaitCapacity(address)
		if u := p.unsized[address]; u != nil {
			u.why = fmt.Errorf("the chips of its device at %#x are unknown: %w", address, err)
		}
	}
	r.opened(p, from, address, d)
}

func (r *run) opened(p *traced, from origin, address uint64, d inspect.Device) {
	opened := p.chips.Opened(d, r.names, r.uses)
	p.devices[address] = opened.Chips
	r.relations(p.mapping.PID).ringsAgain = true
	delete(p.closed, address)
	r.emit(aggregator.Event{Kind: aggregator.DeviceOpen, PID: from.pid, TID: from.tid, Time: from.time,
		Device: address, Opened: opened})
	if len(opened.Chips) > 0 {
		p.chipsRead(address)
	}
}

// lossEvery is how often the kernel's counters are read under load.
const lossEvery = 100 * time.Millisecond

// losses emits the number of records that found the BPF ring buffer full since it was last called.
func (r *run) losses(now bool) {
	if !now && time.Since(r.lostAt) < lossEvery {
		return
	}
	r.lostAt = time.Now()
	since, to := r.countedAt, proc.Now()
	c, err := r.t.Counters()
	if err != nil {
		return
	}
	r.countedAt = to
	var lost, parts, unreadParts uint64
	for kind, n := range c.Lost {
		if ofPrograms(bpf.MemtraceTtKind(kind)) {
			parts += n
			unreadParts += c.Unread[kind]
		}
		if bpf.MemtraceTtKind(kind) != bpf.MemtraceTtKindTT_STACK { // no account lacks it
			lost += n
		}
	}
	// What could not be read is counted by its kind, also where the record that says so was lost.
	unreadLost := c.Lost[bpf.MemtraceTtKindTT_UNREAD]
	parts += min(unreadLost, unreadParts)
	if lost > r.lost {
		r.emit(aggregator.Event{Kind: aggregator.Lost, Time: uint64(proc.Monotonic()), Count: lost - r.lost})
		r.lost, r.lostParts = lost, parts
		r.lostPrograms = c.Lost[bpf.MemtraceTtKindTT_PROGRAM_GONE]
		r.suspectAll()
		for _, p := range r.processes {
			clear(p.banks) // an allocator may have ended
		}
		r.forksLost, r.lossCounted = true, proc.Ticks()
	}
	r.findLostForks()
	if traces := c.Lost[bpf.MemtraceTtKindTT_TRACE] + min(unreadLost, c.Unread[bpf.MemtraceTtKindTT_TRACE]); traces > r.lostTraces {
		r.lostTraces = traces
		r.raiseOnAll(aggregator.ReasonTracesMissed)
	}
	if marks := c.Lost[bpf.MemtraceTtKindTT_MARK] + min(unreadLost, c.Unread[bpf.MemtraceTtKindTT_MARK]); marks > r.lostMarks {
		r.lostMarks = marks
		r.marksMissed()
	}
	if allocs := c.Lost[bpf.MemtraceTtKindTT_ALLOC] + min(unreadLost, c.Unread[bpf.MemtraceTtKindTT_ALLOC]); allocs > r.lostAllocs {
		r.lostAllocs = allocs
		r.missedAllocs(span{since, proc.Now()})
	}
	if uncounted := min(unreadLost, c.Uncounted); uncounted > r.lostUncounted {
		r.lostUncounted = uncounted
		r.raiseOnAll(aggregator.ReasonUncounted)
	}
	if gone := c.Lost[bpf.MemtraceTtKindTT_WORKLOAD_GONE]; gone > r.lostWorkloads {
		r.lostWorkloads = gone
		r.missedWorkloads()
	}
	if ends := c.Lost[bpf.MemtraceTtKindTT_EXIT] + c.Lost[bpf.MemtraceTtKindTT_EXEC]; ends > r.lostEnds {
		r.lostEnds = ends
		r.missedEnds()
	}
}

// raised is when a reason was raised on all processes: by the clock, and in proc.Ticks.
type raised struct {
	at    time.Time
	ticks uint64
}

// raiseOnAll marks all processes: it can be of any, also of one that is not known yet.
func (r *run) raiseOnAll(code aggregator.ReasonCode) {
	r.raised[code] = raised{time.Now(), proc.Ticks()}
	for pid := range r.processes {
		r.raise(pid, code)
	}
}

// raiseMissed marks a process that was not known, and may have had the library, when all were marked.
func (r *run) raiseMissed(p *traced) {
	for code, when := range r.raised {
		if p.start.Started <= when.ticks && mayPrecede(p.seen, when.at) {
			r.raise(p.mapping.PID, code)
		}
	}
}

func (r *run) raise(pid uint32, code aggregator.ReasonCode) {
	r.emit(aggregator.Event{Kind: aggregator.ReasonRaised, PID: pid, Time: uint64(proc.Monotonic()), Reason: &aggregator.Reason{Code: code}})
}

// ofPrograms says whether what programs have lacks something without a record.
func ofPrograms(k bpf.MemtraceTtKind) bool {
	switch k {
	case bpf.MemtraceTtKindTT_CB, bpf.MemtraceTtKindTT_KERNEL_ADDED, bpf.MemtraceTtKindTT_KERNEL_FILE,
		bpf.MemtraceTtKindTT_SCRATCHPADS, bpf.MemtraceTtKindTT_PROGRAM_GONE,
		bpf.MemtraceTtKindTT_PROGRAM_ADDED:
		return true
	}
	return false
}

// unread handles that a probe could not read what it was to send of a process, or not all
// of it.
func (r *run) unread(p *traced, from origin, kind bpf.MemtraceTtKind) {
	why := aggregator.Reason{Code: aggregator.ReasonReadFailed}
	switch kind {
	case bpf.MemtraceTtKindTT_KINDS:
		why.Code = aggregator.ReasonUncounted
	case bpf.MemtraceTtKindTT_TRACE:
		why.Code = aggregator.ReasonTracesMissed
	case bpf.MemtraceTtKindTT_MARK:
		why.Code = aggregator.ReasonTracesMissed
		r.marks[from.pid].doubt()
	case bpf.MemtraceTtKindTT_WORKLOAD_NAMED:
		return // the name is had from who launches it
	default:
		if rel := r.related[from.pid]; kind == bpf.MemtraceTtKindTT_ALLOC && rel != nil && len(rel.capturing) > 0 {
			r.raise(from.pid, aggregator.ReasonTracesMissed) // see missedAllocs
		}
		p.unread++
		if ofPrograms(kind) {
			p.unreadParts++
		}
		p.reconciliation.suspect = time.Now()
	}
	r.emit(aggregator.Event{Kind: aggregator.ReasonRaised, PID: from.pid, TID: from.tid, Time: from.time, Reason: &why})
}

// markUnread marks the processes of which something could not be read at once: they are read again, apart. And those
// whose memory does not answer at all.
func (r *run) markUnread() {
	for pid, p := range r.processes {
		late, hung := r.lateReads(p), p.Hung()
		if late == p.lateReads && hung == p.hung {
			continue
		}
		why := memory.ErrLater
		if hung {
			why = memory.ErrHung
			p.noticeOnce(r, why)
		}
		p.lateReads, p.hung = late, hung
		r.unreadOf(p)
		if p.reconciliation.suspect.IsZero() {
			p.reconciliation.suspect = time.Now()
		}
		r.emit(aggregator.Event{Kind: aggregator.ReasonRaised, PID: pid, Time: uint64(proc.Monotonic()),
			Reason: &aggregator.Reason{Code: aggregator.ReasonReadFailed, Detail: why.Error()}})
	}
}

// unreadOf counts that something of a process could not be read, which can be of its programs, if it has any.
func (r *run) unreadOf(p *traced) {
	p.unread++
	if rel := r.related[p.mapping.PID]; rel != nil && len(rel.programs) > 0 {
		p.unreadParts++
	}
}

// lateReads is how many reads of a process and its files were too late so far.
func (r *run) lateReads(p *traced) uint64 {
	n := p.Late()
	for _, o := range p.others {
		n += o.Late()
	}
	if rel := r.related[p.mapping.PID]; rel != nil {
		n += rel.mem.Late()
	}
	return n
}

// missing is how many events of a process can be missing, and how many of those that make
// up programs.
func (r *run) missing(p *traced) (events, parts uint64) {
	return r.lost + p.unread, r.lostParts + p.unreadParts
}

// missedEnds finds the processes that ended, or run another program by now: nothing
// reports that again.
func (r *run) missedEnds() {
	pids := maps.Clone(r.targets)
	for pid := range r.processes {
		pids[pid] = true
	}
	for pid := range r.lookedFor {
		pids[pid] = true
	}
	for pid := range r.untraced {
		pids[pid] = true
	}
	for pid := range pids {
		from := origin{pid: pid, time: uint64(proc.Monotonic())}
		p, known := r.processes[pid]
		if _, started, err := proc.Name(pid); err != nil || !proc.Alive(pid) || known && started != p.start.Started {
			r.exits(from)
			r.t.found.Add(pid) // who has its PID by now may have been taken for it
			continue
		}
		if !known {
			continue
		}
		if there, err := proc.MapsAlike(pid, p.mapping); err == nil && !there {
			r.gone(from)
		}
	}
}

// Counters sums what the kernel counted on all CPUs.
func (t *Tracer) Counters() (bpf.MemtraceTtCounters, error) {
	var sum bpf.MemtraceTtCounters
	var each []bpf.MemtraceTtCounters
	if err := t.objects.Counters.Lookup(uint32(0), &each); err != nil {
		return sum, fmt.Errorf("reading the counters: %w", err)
	}
	for _, c := range each {
		for i := range c.Seen {
			sum.Seen[i] += c.Seen[i]
			sum.Lost[i] += c.Lost[i]
			sum.Unread[i] += c.Unread[i]
		}
		sum.Hooked += c.Hooked
		sum.Truncated += c.Truncated
		sum.Unreserved += c.Unreserved
		sum.Clipped += c.Clipped
		sum.Uncounted += c.Uncounted
	}
	sum.Unreserved += t.unreserved.Load()
	return sum, nil
}
