package tracer

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"time"
	"unsafe"

	"github.com/cilium/ebpf/ringbuf"
	"golang.org/x/sync/errgroup"

	"tt-memtrace/aggregator"
	"tt-memtrace/bpf"
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
		r := &run{t: t, sink: sink, processes: map[uint32]*traced{}, targets: map[uint32]bool{}, partial: map[uint32]*aggregator.CircularBuffer{},
			related: map[uint32]*relations{}, callers: map[fileVersion]*callers{}, identities: identities{}, stacks: newStacks()}
		defer r.stacks.close()
		for _, pid := range t.opts.PIDs {
			// One that ended since it was named is not waited for.
			if CheckPID(pid) == nil {
				r.targets[pid] = true
			}
		}
		stop := context.AfterFunc(ctx, func() { t.reader.Flush() })
		defer stop()
		defer r.background.Wait()
		r.ready = ready
		r.announcements()
		return r.loop(ctx)
	})
	return g.Wait()
}

// run is the reader's state: it alone turns records into events.
type run struct {
	t         *Tracer
	sink      func([]aggregator.Event)
	batch     []aggregator.Event
	processes map[uint32]*traced
	// lost events, those of them that make up programs, and ends of processes.
	lost, lostParts, lostEnds uint64
	lostAt                    time.Time
	// targets are the PIDs that were asked for and live.
	targets map[uint32]bool
	// partial are circular buffers whose core ranges come in several records, by thread.
	partial map[uint32]*aggregator.CircularBuffer
	// identities of the chips that were met.
	identities identities
	// ends are of processes that are still to be forgotten.
	ends []end
	// ended are processes that ended before they were looked at. All that is to
	// come of them is in the ring.
	ended []uint32
	// later are found processes that are known already: what is in the ring may tell
	// of an exec between.
	later []announcement
	// related objects of each process, and the functions that launch ttnn operations, by file.
	related map[uint32]*relations
	callers map[fileVersion]*callers
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
}

// traced is a process that maps the runtime.
type traced struct {
	*inspector
	mapping Mapping
	of      *attachment
	at      uint64 // when it was looked at
	start   aggregator.Process
	// private: it numbers chips in its own way.
	private    bool
	devices    map[uint64][]aggregator.Chip
	allocators map[uint64]bool
	boards     map[uint32]string
	uniques    map[uint32]uint64
	complained bool
	// hooked are Buffers that graph capture took, so that nothing is reserved for them.
	hooked map[uint64]struct{}
	// strange are allocators whose capacity is not known: perhaps they are just going.
	strange map[uint64]strange
	books   bookkeeping
}

func (p *traced) hook(buffer uint64) {
	if p == nil {
		return
	}
	if p.hooked == nil {
		p.hooked = map[uint64]struct{}{}
	}
	p.hooked[buffer] = struct{}{}
}

// unhook says whether a Buffer that is freed, or that is another one now, was hooked.
func (p *traced) unhook(buffer uint64) bool {
	if p == nil || len(p.hooked) == 0 {
		return false
	}
	_, was := p.hooked[buffer]
	delete(p.hooked, buffer)
	return was
}

// strange is something that made no sense then.
type strange struct {
	why  error
	then time.Time
}

func (r *run) loop(ctx context.Context) error {
	var record ringbuf.Record
	empty := 0
	for {
		// Either the ring is looked at on a timer or, after a quiet while, the
		// next record wakes the reader.
		sleeping := empty >= sleepAfter
		if sleeping {
			if err := r.t.objects.Idle.Set(uint32(1)); err != nil {
				return fmt.Errorf("going idle: %w", err)
			}
			// Records that came before the flag was set woke nobody.
			sleeping = r.t.reader.AvailableBytes() == 0
		}
		r.syncs = append(r.syncs, r.t.waiting()...)
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
		case sleeping && r.doubting():
			r.t.reader.SetDeadline(time.Now().Add(settle / 2))
		case sleeping && len(r.processes) > 0:
			// Launches wake nobody.
			r.t.reader.SetDeadline(time.Now().Add(launchEvery))
		case sleeping:
			r.t.reader.SetDeadline(time.Time{})
		default:
			r.t.reader.SetDeadline(time.Now().Add(drainEvery))
		}
		n, err := r.drain(&record)
		if empty >= sleepAfter {
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
			r.add(a, uint64(monotonic()))
		}
		r.later = r.later[:0]
		r.announcements()
		r.scratchpads(done || len(r.syncs) > 0)
		r.losses(done || len(r.syncs) > 0)
		r.counted(done || len(r.syncs) > 0)
		for _, rd := range readings {
			r.merge(rd)
		}
		for _, pid := range ended {
			r.gone(&bpf.MemtraceTtHead{Pid: pid, Time: uint64(monotonic())})
		}
		r.check()
		r.flush()
		r.leave()
		if r.ready != nil && (done || !r.reading()) {
			r.ready()
			r.ready = nil
			r.t.giveBack()
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
func (r *run) waits() bool { return r.reading() || len(r.ends) > 0 }

// Sync returns when everything that happened before the call has reached the
// sink, or when the context ends.
func (t *Tracer) Sync(ctx context.Context) error {
	done := make(chan struct{})
	t.telling.Lock()
	t.syncs = append(t.syncs, done)
	t.telling.Unlock()
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
	t.telling.Lock()
	defer t.telling.Unlock()
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

// decode turns one record into events. Records are the kernel's, whole and aligned.
func (r *run) decode(b []byte) {
	if len(b) < int(unsafe.Sizeof(bpf.MemtraceTtHead{})) {
		return
	}
	head := (*bpf.MemtraceTtHead)(unsafe.Pointer(&b[0]))
	switch bpf.MemtraceTtKind(head.Kind) {
	case bpf.MemtraceTtKindTT_ALLOC:
		e := (*bpf.MemtraceTtAlloc)(unsafe.Pointer(&b[0]))
		p := r.process(head)
		r.know(p, head, e.Device, e.Allocator)
		p.touch(e.Buffer)
		p.unhook(e.Buffer)
		r.emit(aggregator.Event{
			Kind: aggregator.Alloc, Memory: aggregator.Memory(head.Memory), Layout: head.Layout,
			PID: head.Pid, TID: head.Tid, Time: head.Time,
			Device: e.Device, Allocator: e.Allocator, Buffer: e.Buffer,
			Address: uint64(e.Address), Size: e.Size, PageSize: uint64(e.PageSize), PerBank: uint64(head.PerBank),
			Stack: r.stacks.take(head),
		})
	case bpf.MemtraceTtKindTT_CB:
		r.circularBuffer(head, b)
	case bpf.MemtraceTtKindTT_KERNEL_ADDED, bpf.MemtraceTtKindTT_KERNEL_FILE, bpf.MemtraceTtKindTT_KERNEL_COPY,
		bpf.MemtraceTtKindTT_PROGRAM_ADDED, bpf.MemtraceTtKindTT_WORKLOAD_NAMED, bpf.MemtraceTtKindTT_SCRATCHPADS:
		r.kernel(head, b)
	case bpf.MemtraceTtKindTT_REFUSED:
		r.refused(head, b)
	case bpf.MemtraceTtKindTT_STACK:
		r.process(head)
		r.stacks.add(head, b)
	default:
		r.object(head, (*bpf.MemtraceTtObject)(unsafe.Pointer(&b[0])).Object)
	}
}

// object turns the records that only name an object into events.
func (r *run) object(head *bpf.MemtraceTtHead, object uint64) {
	e := aggregator.Event{PID: head.Pid, TID: head.Tid, Time: head.Time}
	switch bpf.MemtraceTtKind(head.Kind) {
	case bpf.MemtraceTtKindTT_FREE:
		p := r.process(head)
		if p.unhook(object) || !p.touch(object) {
			return // it never came into the accounts
		}
		e.Kind, e.Buffer = aggregator.Free, object
		r.emit(e)
	case bpf.MemtraceTtKindTT_HOOKED:
		r.process(head).hook(object)
	case bpf.MemtraceTtKindTT_DEVICE_OPEN:
		p := r.process(head)
		if p == nil {
			return
		}
		delete(p.devices, object) // whatever was at this address is gone
		r.device(p, head, object)
	case bpf.MemtraceTtKindTT_DEVICE_CLOSE:
		if p := r.processes[head.Pid]; p != nil {
			delete(p.devices, object)
		}
		r.forgetRings(head.Pid, func(g configRing) bool { return g.device == object })
		e.Kind, e.Device = aggregator.DeviceClose, object
		r.emit(e)
	case bpf.MemtraceTtKindTT_ALLOCATOR_GONE:
		if p := r.processes[head.Pid]; p != nil {
			delete(p.allocators, object)
			delete(p.strange, object)
			p.touch(object)
		}
		e.Kind, e.Allocator = aggregator.AllocatorGone, object
		r.emit(e)
	case bpf.MemtraceTtKindTT_PROGRAM_GONE:
		r.processes[head.Pid].touch(object)
		e.Kind, e.Program = aggregator.ProgramGone, object
		r.emit(e)
		r.relations(head.Pid).dropProgram(object)
	case bpf.MemtraceTtKindTT_WORKLOAD_GONE:
		r.relations(head.Pid).dropWorkload(object)
	case bpf.MemtraceTtKindTT_EXEC:
		// A new program in the old process: all that it held is gone. Where the new one
		// was found before this was read, it is the one that is known.
		r.ends = append(r.ends, end{head.Pid, head.Time, false})
		if p := r.processes[head.Pid]; p == nil || p.at < head.Time {
			r.gone(head)
		}
	case bpf.MemtraceTtKindTT_EXIT:
		// One that was found while this was read is taken in first: nothing would
		// tell of its end again.
		r.announcements()
		r.later = slices.DeleteFunc(r.later, func(a announcement) bool { return a.mapping.PID == head.Pid })
		r.gone(head)
		delete(r.targets, head.Pid)
		r.ends = append(r.ends, end{head.Pid, head.Time, true})
	}
}

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
		if e.whole {
			r.t.detach(e.pid)
		}
	}
	r.ends = r.ends[:0]
}

// gone ends a process's accounts, where it has any.
func (r *run) gone(head *bpf.MemtraceTtHead) {
	_, known := r.processes[head.Pid]
	if known || r.related[head.Pid] != nil {
		r.forget(head.Pid)
	}
	r.stacks.drop(r.t, head.Pid)
	if known {
		delete(r.processes, head.Pid)
		r.emit(aggregator.Event{Kind: aggregator.ProcessExit, PID: head.Pid, Time: head.Time})
	}
	// What its forked children have copies of is theirs alone now.
	for _, p := range r.processes {
		if p != nil && p.books.parent == head.Pid {
			p.books.parent = 0
			p.start.Late = true
			r.tell(p, head.Time)
			r.read(p, true)
		}
	}
}

// over says whether every process that was asked for has ended.
func (r *run) over() bool { return len(r.t.opts.PIDs) > 0 && len(r.targets) == 0 }

// announcements takes in the processes that discovery found.
func (r *run) announcements() {
	r.t.telling.Lock()
	list := r.t.announced
	r.t.announced = nil
	r.t.telling.Unlock()
	for _, a := range list {
		if r.processes[a.mapping.PID] != nil {
			r.later = append(r.later, a)
		} else {
			r.add(a, uint64(monotonic()))
		}
	}
}

func (r *run) add(a announcement, now uint64) *traced {
	pid := a.mapping.PID
	command, started, err := describe(pid)
	if err != nil {
		return nil // gone already
	}
	p := &traced{
		inspector: newInspector(a.of.lib, a.mapping), mapping: a.mapping, of: a.of, at: a.at, private: renumbered(pid),
		devices: map[uint64][]aggregator.Chip{}, allocators: map[uint64]bool{}, boards: map[uint32]string{}, strange: map[uint64]strange{},
	}
	p.books.parent = forkedFrom(a.mapping)
	if old := r.processes[pid]; old != nil && old.base == p.base && old.lib == p.lib {
		if a.late && !old.books.read && p.books.parent == 0 {
			r.read(old, true)
		}
		return old
	}
	p.books.lostParts = r.lostParts
	r.processes[pid] = p
	if r.t.opts.Stacks {
		r.stacks.meet(r.t, pid)
	}
	a.late = a.late && p.books.parent == 0
	p.start = aggregator.Process{
		Started: started, Command: command, Library: a.mapping.Path, BuildID: a.of.lib.BuildID, Release: a.of.lib.Release,
		NotCovered: strings.Join(a.of.cover.NotCovered(), ", "), Late: a.late,
	}
	p.start.Container, p.start.InnerPID = placed(pid)
	r.tell(p, now)
	if a.late {
		r.read(p, true)
	}
	return p
}

// tell describes a process, anew where something of it turned out otherwise.
func (r *run) tell(p *traced, now uint64) {
	start := p.start
	r.emit(aggregator.Event{Kind: aggregator.ProcessStart, PID: p.mapping.PID, Time: now, Process: &start})
}

// process finds the process of a record, and looks it up where it was not
// announced: its library was attached to for another process.
func (r *run) process(head *bpf.MemtraceTtHead) *traced {
	if p, ok := r.processes[head.Pid]; ok {
		return p
	}
	r.processes[head.Pid] = nil // looked for once
	lives, err := r.t.watchExit(head.Pid)
	if err != nil {
		r.t.opts.Notice(err.Error())
	}
	if !lives {
		r.ended = append(r.ended, head.Pid)
		return nil
	}
	list, err := mappings(head.Pid, r.t.extra)
	if err != nil {
		return nil // its end is reported, as it was watched before
	}
	for _, m := range list {
		r.t.mu.Lock()
		a, err := r.t.library(m)
		r.t.mu.Unlock()
		if err == nil && a != nil && a.index == uint32(head.Library) {
			return r.add(announcement{mapping: m, of: a, at: head.Time}, head.Time)
		}
	}
	return nil
}

// know makes sure that a buffer's device and allocator were described before it.
func (r *run) know(p *traced, head *bpf.MemtraceTtHead, device, allocator uint64) {
	if p == nil {
		return
	}
	if _, ok := p.devices[device]; !ok {
		r.device(p, head, device)
	}
	if !p.allocators[allocator] {
		p.allocators[allocator] = true
		capacity, err := p.capacity(allocator)
		if err != nil {
			p.strange[allocator] = strange{err, time.Now()}
		}
		r.emit(aggregator.Event{Kind: aggregator.AllocatorSeen, PID: head.Pid, TID: head.Tid, Time: head.Time,
			Device: device, Allocator: allocator, Capacity: &capacity})
	}
}

// uniqueOf is a chip's unique id, 0 where it is not known. It is asked for once,
// and again for chips that were not there.
func (p *traced) uniqueOf(id uint32) uint64 {
	if _, ok := p.uniques[id]; !ok {
		if ids, err := p.uniqueIDs(); err == nil {
			p.uniques = ids
		} else if p.uniques == nil {
			p.uniques = map[uint32]uint64{}
		}
		p.uniques[id] += 0 // asked
	}
	return p.uniques[id]
}

// uses says whether a process that lives has a chip of a unique id.
func (r *run) uses(unique uint64) bool {
	for _, p := range r.processes {
		if p == nil {
			continue
		}
		for _, id := range p.uniques {
			if id == unique {
				return true
			}
		}
	}
	return false
}

// boardOf is board, asked once for each chip.
func (p *traced) boardOf(id uint32) string {
	name, ok := p.boards[id]
	if !ok {
		name = p.board(id)
		p.boards[id] = name
	}
	return name
}

// complain tells once for each process what could not be read of it. That
// happens to a process which closes its device a moment after its first
// allocation: what it held is then shown without chips.
func (p *traced) complain(r *run, err error) {
	if !p.complained {
		p.complained = true
		r.t.opts.Notice(fmt.Sprintf("process %d: %v", p.mapping.PID, err))
	}
}

// device describes a device while it is there.
func (r *run) device(p *traced, head *bpf.MemtraceTtHead, address uint64) {
	ids, mesh, arch, err := p.device(address)
	if err != nil {
		if bpf.MemtraceTtKind(head.Kind) == bpf.MemtraceTtKindTT_DEVICE_OPEN {
			return // not yet what it will be: its first buffer asks again
		}
		p.complain(r, fmt.Errorf("the chips of its device at %#x are unknown: %w", address, err))
	}
	opened := &aggregator.Opened{Mesh: mesh, Arch: arch}
	for _, id := range ids {
		opened.Chips = append(opened.Chips, r.identities.chip(head.Pid, id, p.uniqueOf(id), p.private, r.uses))
		opened.Boards = append(opened.Boards, p.boardOf(id))
	}
	p.devices[address] = opened.Chips
	r.emit(aggregator.Event{Kind: aggregator.DeviceOpen, PID: head.Pid, TID: head.Tid, Time: head.Time,
		Device: address, Opened: opened})
}

// lossEvery is how often the kernel's counters are read under load.
const lossEvery = 100 * time.Millisecond

// losses tells of records that found the ring full since it was last called.
func (r *run) losses(now bool) {
	if !now && time.Since(r.lostAt) < lossEvery {
		return
	}
	r.lostAt = time.Now()
	c, err := r.t.Counters()
	if err != nil {
		return
	}
	var lost, parts uint64
	for kind, n := range c.Lost {
		switch bpf.MemtraceTtKind(kind) {
		case bpf.MemtraceTtKindTT_CB, bpf.MemtraceTtKindTT_KERNEL_ADDED, bpf.MemtraceTtKindTT_KERNEL_FILE, bpf.MemtraceTtKindTT_SCRATCHPADS:
			parts += n
		}
		if bpf.MemtraceTtKind(kind) != bpf.MemtraceTtKindTT_STACK { // no account lacks it
			lost += n
		}
	}
	if lost > r.lost {
		r.emit(aggregator.Event{Kind: aggregator.Lost, Time: uint64(monotonic()), Count: lost - r.lost})
		r.lost, r.lostParts = lost, parts
		r.doubtAll()
	}
	if ends := c.Lost[bpf.MemtraceTtKindTT_EXIT] + c.Lost[bpf.MemtraceTtKindTT_EXEC]; ends > r.lostEnds {
		r.lostEnds = ends
		r.missedEnds()
	}
}

// missedEnds finds the processes that ended, or run another program by now: nothing
// tells of that again.
func (r *run) missedEnds() {
	pids := maps.Clone(r.targets)
	for pid := range r.processes {
		pids[pid] = true
	}
	for pid := range pids {
		head := &bpf.MemtraceTtHead{Kind: uint8(bpf.MemtraceTtKindTT_EXIT), Pid: pid, Time: uint64(monotonic())}
		p := r.processes[pid]
		if _, started, err := describe(pid); err != nil || !alive(pid) || p != nil && started != p.start.Started {
			r.object(head, 0)
			continue
		}
		if p == nil {
			continue
		}
		if there, err := mapsAlike(pid, p.mapping); err == nil && !there {
			r.gone(head)
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
	return sum, nil
}
