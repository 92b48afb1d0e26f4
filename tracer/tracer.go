// Package tracer finds the runtime in processes, attaches to it, and yields
// what happens as events.
//
// It promises never to hurt a traced process: probes are at function entries
// only, on instructions that the kernel emulates, and nothing of the process is
// written or stopped. A library whose layout cannot be proved is not attached.
package tracer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/ringbuf"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"tt-memtrace/bpf"
	"tt-memtrace/tracer/discover"
	"tt-memtrace/tracer/inspect"
	"tt-memtrace/tracer/memory"
	"tt-memtrace/tracer/metal"
	"tt-memtrace/tracer/proc"
	"tt-memtrace/tracer/watch"
)

// Options say what to trace.
type Options struct {
	// PIDs to trace; other processes then cost nothing.
	PIDs []uint32
	// Follow this process's children, what they exec and their children, and
	// nothing else. It is meant for the tracer's own PID, before it starts a command.
	Follow uint32
	// Libraries that hold the runtime's code under names of their own.
	Libraries []string
	// RingBytes is the size of the ring buffer, a power of two; 0 for DefaultRingBytes.
	RingBytes uint32
	// Stacks: each allocation and each refusal has the stack of its thread.
	Stacks bool
	// StacksPaused: with Stacks, none is sent until SendStacks asks for it.
	StacksPaused bool
	// Lacks is what the kernel is taken to lack also where it has it, for tests.
	Lacks Lacks
	// Notice receives, in one line, what a user should know: a process that
	// cannot be traced and why. It may be called from any goroutine.
	Notice func(string)
}

// DefaultRingBytes hold a hundred thousand allocations and frees: what comes in a
// tenth of a second at a million a second.
const DefaultRingBytes = 8 << 20

const (
	// drainEvery is how long records wait in the ring at most.
	drainEvery = 10 * time.Millisecond
	// sleepAfter this many empty drains the reader sleeps until it is woken.
	sleepAfter = 20
)

// Tracer is a set of loaded programs and what they are attached to.
type Tracer struct {
	opts    Options
	lacks   Lacks
	objects bpf.MemtraceObjects
	// bpfPrograms are the BPF programs by their names.
	bpfPrograms map[string]*ebpf.Program
	reader      *ringbuf.Reader
	// readerMu keeps the ring buffer mapped while Backlog looks at it.
	readerMu     sync.Mutex
	readerClosed bool
	// newest is the time of the newest record that was read, and caughtUp when all was, see lag; CLOCK_MONOTONIC ns.
	newest, caughtUp atomic.Uint64
	watch            watch.Watcher
	tasks            []link.Link
	finder           *discover.Finder
	lastNotice       string // the last notice of a process that was looked at

	// found are processes to look at.
	found *watch.PIDQueue

	watching sync.Mutex

	// mu is held while a library is read and attached to.
	mu        sync.Mutex
	libraries map[proc.FileID]*attachment
	former    []*attachment // to files that were overwritten, or copied, since
	writes    *writeWatch
	refused   map[proc.FileID]*refusal
	room      room
	retrying  bool // is about to try refused libraries again
	closed    bool
	users     map[proc.FileID]unix.Timespec // files that use the runtime and do not hold it, as of their last change

	filled filled
	failed atomic.Uint64 // attachments
	// unreserved counts allocations whose reserved size was not computed, and not probed.
	unreserved atomic.Uint64

	// sendStacks: stacks are wanted; the reader tells the BPF programs of changes.
	sendStacks atomic.Bool

	// inboxMu guards what others leave for the reader, which waits for it: it is held for a
	// moment only.
	inboxMu sync.Mutex
	// numbered are the libraries by their numbers.
	numbered map[uint32][]*attachment
	// covered is since when all probes are in, in proc.Ticks.
	covered   map[covering]uint64
	announced []announcement
	verdicts  []verdict
	syncs     []chan struct{}
	readings  []*reading
	suspects  []uint32

	freeing   *time.Timer // returns freed memory to the system
	ended     chan struct{}
	releasing sync.WaitGroup
	closing   chan struct{} // has an element for each link that is being closed
}

// attachment is a library that is attached to.
type attachment struct {
	// index is the number in its records: those of one layout have the same.
	index uint32
	// mapped are the numbers that processes' mappings have had of its file; guarded by inboxMu.
	mapped map[proc.FileID]bool
	tenant string // whose process was the first to map it
	lib    *metal.Library
	cover  *metal.Coverage
	layout *metal.Layout
	// build is the same for copies of one file that share what was read of it.
	build *build
	// sizes computes what buffers take of each bank; nil where that is probed.
	sizes *reservedSizes
	// slot is what the BPF programs know of it.
	slot bpf.MemtraceTtLayout
	// probes are those of its file, once there are any. Other names of the file have the same.
	probes *probeSet
	// overwritten: the file is not what it was, and has no probes.
	overwritten atomic.Bool
	// watch is the watch descriptor for writes to the file, which was modified last then.
	watch    int32
	modified unix.Timespec
	// changed is when the file was, last: an overlay copies one that is about to be.
	changed unix.Timespec
	// plain: no other file has its number while it is open, nor do mappings show another one.
	plain bool
}

// build is a library, whatever files have it; a copy is one of the same tenant.
type build struct {
	_ byte // each has an address of its own
}

// refusal is a file that is not traced, as long as a process maps it: then it may
// be another one of the same number.
type refusal struct {
	why error // nil: it is not the runtime
	// pids of those processes, with when they were looked at: CLOCK_MONOTONIC in ns.
	pids map[uint32]uint64
}

// verdict tells the reader whether a process uses a library that is not traced.
type verdict struct {
	pid uint32
	// of, where set: all processes that were traced by this attachment, in place of pid.
	of  *attachment
	why string // empty: it does not, any more
	at  uint64 // CLOCK_MONOTONIC in ns
}

// announcement tells the reader of a process that maps the runtime.
type announcement struct {
	mapping proc.Mapping
	of      *attachment
	// late: it had mapped the library before the probes were there, so what it
	// holds has to be read.
	late bool
	// at: it was looked at then, CLOCK_MONOTONIC in ns.
	at uint64
	// command and started say what it was then; started is 0 where that was not read.
	command string
	started uint64
	// seen: it was seen to map the library then; zero where that is not known.
	seen time.Time
	// unseen: it was not looked at, but an event came of it; and who started after covered, in proc.Ticks, had all
	// probes from the start.
	unseen  bool
	covered uint64
}

// New loads the programs. It wraps ErrPermission where rights are missing.
func New(o Options) (*Tracer, error) {
	if err := CheckRights(); err != nil {
		return nil, err
	}
	if o.RingBytes == 0 {
		o.RingBytes = DefaultRingBytes
	}
	if o.Notice == nil {
		o.Notice = func(string) {}
	}
	t := &Tracer{opts: o, found: watch.NewPIDQueue(), libraries: map[proc.FileID]*attachment{}, numbered: map[uint32][]*attachment{}, covered: map[covering]uint64{}, refused: map[proc.FileID]*refusal{}, users: map[proc.FileID]unix.Timespec{}, ended: make(chan struct{}), closing: make(chan struct{}, maxClosing)}
	t.sendStacks.Store(o.Stacks && !o.StacksPaused)
	t.freeing = time.AfterFunc(pause, freeOSMemory)
	var err error
	if t.finder, err = discover.FinderOf(o.Libraries); err != nil {
		return nil, err
	}
	if err := checkPIDNamespace(); err != nil {
		return nil, err
	}
	t.lacks = hostKernelLacks()
	t.lacks.MultiUprobes = t.lacks.MultiUprobes || o.Lacks.MultiUprobes
	t.lacks.PIDFilter = t.lacks.PIDFilter || o.Lacks.PIDFilter
	if t.room, err = roomFor(1 + t.descriptors(len(metal.Points))); err != nil {
		return nil, err
	}
	if t.writes, err = newWriteWatch(); outOfDescriptors(err) {
		return nil, tooFewDescriptors("watching for overwritten libraries")
	} else if err != nil {
		return nil, err
	}
	var loading errgroup.Group
	kernel := btf.NewCache() // reading the kernel's types takes as long as checking the programs
	loading.Go(func() error { return t.load(kernel) })
	loading.Go(func() (err error) {
		t.watch, err = watch.Mappings(len(o.Libraries) > 0, kernel, o.PIDs...)
		return err
	})
	// That takes as long as reading a library, which is done beside it.
	t.preload()
	err = loading.Wait()
	if outOfDescriptors(err) {
		err = tooFewDescriptors("loading the BPF programs")
	} else if err != nil {
		// To find out takes longer than reading the kernel's types. Without any of these, loading fails.
		err = cmp.Or(HostKernelError(), err)
	} else {
		err = checkDescriptors(t.descriptors(len(metal.Points)), "attaching to a library")
	}
	if err != nil {
		t.Close()
		return nil, err
	}
	t.noticeMissingFeatures()
	return t, nil
}

// preload reads the libraries of the processes that are to be traced. What fails
// is tried, and reported, when they are attached to.
func (t *Tracer) preload() {
	for _, pid := range t.opts.PIDs {
		list, err := t.finder.Mappings(pid)
		if err != nil {
			continue
		}
		if len(list) > 0 {
			memory.Of(pid).Prepare() // it may have used the runtime before
		}
		for _, m := range list {
			file := t.openMapped(m)
			t.mu.Lock()
			_, _, _ = t.read(m, file)
			t.mu.Unlock()
			file.close()
		}
	}
}

func (t *Tracer) load(kernel *btf.Cache) error {
	spec, err := bpf.LoadMemtrace()
	if err != nil {
		return fmt.Errorf("reading the BPF programs: %w", err)
	}
	spec.Maps[bpf.MemtraceMapEvents].MaxEntries = t.opts.RingBytes
	spec.Maps[bpf.MemtraceMapLayouts].MaxEntries = maxLibraries
	if t.lacks.MultiUprobes {
		usePerfEvents(spec)
	}
	set := func(name string, value any) {
		if err == nil {
			err = spec.Variables[name].Set(value)
		}
	}
	set("wakeup_bytes", uint64(t.opts.RingBytes/2))
	if t.opts.Stacks {
		set("stacks", uint8(1))
	}
	if !t.SendsStacks() {
		set("stacks_paused", uint32(1))
	}
	if t.opts.Follow != 0 {
		set("filter", uint8(1))
		set("follow", uint8(1))
	}
	if len(t.opts.PIDs) > 0 && !t.perPID() {
		set("filter", uint8(1))
	}
	if err != nil {
		return fmt.Errorf("configuring the BPF programs: %w", err)
	}
	collection, err := ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{Cache: kernel})
	if err == nil {
		defer collection.Close() // of what is not assigned
		t.bpfPrograms = maps.Clone(collection.Programs)
		err = collection.Assign(&t.objects)
	}
	for i, name := range pointPrograms {
		if err == nil && !t.lacks.MultiUprobes {
			err = t.objects.Points.Put(uint32(i), t.bpfPrograms[name])
		}
	}
	if err != nil {
		var ve *ebpf.VerifierError
		if errors.As(err, &ve) && !outOfDescriptors(err) {
			return fmt.Errorf("loading the BPF programs: %+v", ve)
		}
		if errors.Is(err, unix.EPERM) {
			return fmt.Errorf("loading the BPF programs: %w with all capabilities; a container's seccomp profile may forbid it: %w", proc.ErrPermission, err)
		}
		return fmt.Errorf("loading the BPF programs: %w", err)
	}
	if t.reader, err = ringbuf.NewReader(t.objects.Events); err != nil {
		return fmt.Errorf("opening the ring buffer: %w", err)
	}
	for _, p := range []*ebpf.Program{t.objects.ProcessFork, t.objects.ProcessExec, t.objects.ProcessExit} {
		l, err := link.AttachTracing(link.TracingOptions{Program: p})
		if err != nil {
			return fmt.Errorf("attaching to process events: %w", err)
		}
		t.tasks = append(t.tasks, l)
	}
	if t.opts.Follow != 0 {
		if _, _, err := t.watchExit(t.opts.Follow); err != nil {
			return err
		}
	}
	for _, pid := range t.opts.PIDs {
		if _, _, err := t.watchExit(pid); err != nil {
			return err
		}
	}
	return nil
}

// mappedBefore is more than passes between a process's mapping of the library and
// that it is seen.
const mappedBefore = 2 * time.Second

// mayPrecede says whether a process that was seen mapping the library then may have done so
// before the probes were in it.
func mayPrecede(seen, linked time.Time) bool {
	return seen.IsZero() || seen.Sub(linked) < mappedBefore
}

// watchExit has the kernel report the process's exec and exit. One that is ending
// by now is not watched, unless it was before: its end is reported then, or is in the ring already.
func (t *Tracer) watchExit(pid uint32) (lives, reported bool, err error) {
	t.watching.Lock()
	defer t.watching.Unlock()
	err = t.objects.Watched.Update(pid, uint8(1), ebpf.UpdateNoExist)
	before := errors.Is(err, ebpf.ErrKeyExist)
	if err != nil && !before {
		return false, false, fmt.Errorf("watching process %d: %w", pid, err)
	}
	lives = proc.Alive(pid)
	if !lives && !before {
		if err := t.objects.Watched.Delete(pid); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return false, false, fmt.Errorf("watching process %d: %w", pid, err)
		}
	}
	return lives, lives || before, nil
}

// Close detaches everything. It must not run beside Run.
func (t *Tracer) Close() error {
	t.mu.Lock()
	t.closed = true
	t.mu.Unlock()
	t.freeing.Stop()
	t.closeReader()
	for _, a := range t.attached() {
		t.releaseAll(a)
	}
	t.release(t.tasks)
	if t.watch != nil {
		t.releasing.Go(func() { t.watch.Close() })
	}
	t.releasing.Go(func() { t.writes.file.Close() }) // it waits for the kernel as well
	t.releasing.Wait()
	for _, a := range t.attached() {
		a.lib.Close()
	}
	return t.objects.Close()
}

// start looks at the processes that are there; those that come are being watched.
func (t *Tracer) start() error {
	pids := t.opts.PIDs
	if len(pids) == 0 && t.opts.Follow == 0 {
		var err error
		if pids, err = proc.PIDs(); err != nil {
			return fmt.Errorf("listing processes: %w", err)
		}
	}
	for _, pid := range pids {
		t.look(pid, time.Time{})
	}
	return nil
}

// discover attaches to processes as they map the runtime. Looking takes far
// longer than seeing, so it is done apart: the kernel drops what is not read.
func (t *Tracer) discover(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		return t.watch.Run(ctx, t.found.Add, t.found.Missed)
	})
	looks := looks{look: func(pid uint32, seen time.Time) {
		if ctx.Err() == nil {
			t.look(pid, seen)
		}
	}, start: g.Go}
	g.Go(func() error {
		for {
			pids, all, err := t.found.Wait(ctx)
			if err != nil {
				return nil
			}
			if all {
				// Some records were dropped: whom they were of is found by looking at everyone.
				everyone, err := proc.PIDs()
				if err != nil {
					return fmt.Errorf("listing processes: %w", err)
				}
				clear(pids)
				for _, pid := range everyone {
					pids[pid] = time.Time{}
				}
			}
			for pid, seen := range pids {
				looks.add(proc.User(pid), pid, seen)
			}
		}
	})
	return g.Wait()
}

// looks looks at the processes of each user one after the other, beside those of others: a user's
// files can make that wait.
type looks struct {
	look  func(pid uint32, seen time.Time)
	start func(func() error)
	mu    sync.Mutex
	users map[uint32]map[uint32]time.Time // of each that is being looked at, whom next
}

func (l *looks) add(user, pid uint32, seen time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if next, busy := l.users[user]; busy {
		if before, waits := next[pid]; !waits || seen.Before(before) {
			next[pid] = seen // the zero time, where it is not known, is before all
		}
		return
	}
	if l.users == nil {
		l.users = map[uint32]map[uint32]time.Time{}
	}
	l.users[user] = map[uint32]time.Time{pid: seen}
	l.start(func() error {
		for {
			l.mu.Lock()
			next := l.users[user]
			if len(next) == 0 {
				delete(l.users, user)
				l.mu.Unlock()
				return nil
			}
			l.users[user] = map[uint32]time.Time{}
			l.mu.Unlock()
			for pid, seen := range next {
				l.look(pid, seen)
			}
		}
	})
}

// inScope says whether a process is one to trace.
func (t *Tracer) inScope(pid uint32) bool {
	switch {
	case pid == uint32(os.Getpid()):
		return false
	case t.opts.Follow != 0:
		var one uint8
		return t.objects.Watched.Lookup(pid, &one) == nil
	case len(t.opts.PIDs) > 0:
		return slices.Contains(t.opts.PIDs, pid)
	}
	return true
}

// lookAgain is after how long a process is looked at again whose mappings were busy.
const lookAgain = time.Second

// look attaches to what a process has mapped, where it is in scope, and which was seen
// mapping something then; the zero time where that is not known.
func (t *Tracer) look(pid uint32, seen time.Time) {
	if !t.inScope(pid) {
		return
	}
	at := uint64(proc.Monotonic())
	list, err := t.finder.Mappings(pid)
	if errors.Is(err, proc.ErrMapsBusy) {
		time.AfterFunc(lookAgain, func() { t.found.Add(pid) })
		return
	}
	hidden := errors.Is(err, discover.ErrHidden)
	if err != nil && !hidden && !outOfDescriptors(err) {
		return // gone, or not ours to see, or it does not use the runtime
	}
	t.mu.Lock()
	t.accept(unopened(pid), pid)
	switch {
	case hidden:
		t.refuse(unopened(pid), pid, err)
		t.notice(pid, err)
	case err != nil:
		t.refuse(unopened(pid), pid, tooFewDescriptors("reading what it maps"))
		t.retryLater()
	}
	if len(list) > maxMapped {
		list = list[:maxMapped]
		t.refuse(unopened(pid), pid, errTooMany)
	}
	t.mu.Unlock()
	if len(list) == 0 {
		return
	}
	// To read what it is called can take long, too.
	command, started, err := memory.FilesOf(pid).Command()
	if err != nil {
		return // gone
	}
	for _, m := range list {
		again, err := t.attachTo(announcement{mapping: m, at: at, command: command, started: started}, seen)
		for _, pid := range again {
			t.look(pid, time.Time{})
		}
		if err != nil {
			t.notice(pid, err)
		}
	}
}

// notice says why a process is not traced, unless that was the last thing said.
func (t *Tracer) notice(pid uint32, why error) {
	text := fmt.Sprintf("process %d: %v", pid, why)
	t.inboxMu.Lock()
	again := text == t.lastNotice
	t.lastNotice = text
	t.inboxMu.Unlock()
	if !again {
		t.opts.Notice(text)
	}
}

// attachTo is attach, to a file that is opened unless it is attached to already: most processes map one of those.
func (t *Tracer) attachTo(found announcement, seen time.Time) (again []uint32, err error) {
	again, err = t.attach(found, mappedFile{}, seen)
	for errors.Is(err, errNotOpened) {
		file := t.openMapped(found.mapping)
		again, err = t.attach(found, file, seen)
		file.close()
	}
	return again, err
}

// attach puts the probes into a library, once for all processes or once for
// each PID, and announces the process that was found. Again are processes
// for which that had failed before: they are to be looked at again.
func (t *Tracer) attach(found announcement, file mappedFile, seen time.Time) (again []uint32, err error) {
	m := found.mapping
	t.mu.Lock()
	defer t.mu.Unlock()
	a, err := t.library(m, file)
	if a == nil {
		return nil, err
	}
	scope := t.scope(m.PID)
	if a.probes == nil || a.probes.links[scope] == nil {
		if err = t.attachPoints(a, scope); err != nil {
			t.failed.Add(1)
			t.refuse(a.lib.ID, m.PID, err)
			return nil, err
		}
		again = slices.DeleteFunc(t.accept(a.lib.ID, scope), func(pid uint32) bool { return pid == m.PID })
	}
	// Whoever mapped the library before the probes were in it may have used it before. To look
	// at others first can take long; what counts is when it was seen.
	found.of, found.late, found.seen = a, mayPrecede(seen, a.probes.linked[scope]), seen
	// The reader handles the announcement of a process before its end.
	t.inboxMu.Lock()
	lives, _, err := t.watchExit(m.PID)
	if lives {
		t.announced = append(t.announced, found)
	}
	t.inboxMu.Unlock()
	if !lives {
		return again, err
	}
	return again, t.reader.Flush()
}

// mappedFile is a file that a process has mapped: opened, or why not.
type mappedFile struct {
	mem  *memory.Process
	file *os.File
	err  error
	stat unix.Stat_t
	// release is of the Python package around it, asked for of a file that was not read before.
	release string
	asked   bool
}

// errNotOpened says that more has to be known of a mapped file.
var errNotOpened = errors.New("the file is not open")

// openMapped opens what a process has mapped. That can take seconds, where the file is a user's, so t.mu
// is not to be held.
func (t *Tracer) openMapped(m proc.Mapping) (f mappedFile) {
	f.mem = memory.FilesOf(m.PID)
	f.file, f.err = discover.OpenFile(f.mem, m)
	if outOfDescriptors(f.err) {
		f.err = tooFewDescriptors("opening " + m.Path)
	}
	if f.err != nil {
		return f
	}
	if err := unix.Fstat(int(f.file.Fd()), &f.stat); err != nil {
		f.err = fmt.Errorf("opening %s: %w", m.Path, err)
		return f
	}
	t.mu.Lock()
	known := t.libraries[proc.VersionOf(&f.stat).FileID] != nil || t.users[m.ID] == f.stat.Ctim
	t.mu.Unlock()
	if !known {
		f.release, f.asked = f.mem.Release(m.Path), true
	}
	return f
}

func (f mappedFile) close() {
	if f.file != nil {
		f.file.Close()
	}
}

// held is the library of a mapping, where it is known without a look at the file: it is open, so that none but it has its
// number, and whoever writes to it is noticed.
func (t *Tracer) held(id proc.FileID) *attachment {
	if a := t.libraries[id]; a != nil && a.probes != nil && a.plain && t.writes.watched[a.watch] == a {
		return a
	}
	return nil
}

// library checks a mapped library, once for each file. Both results
// are nil where the file is not the runtime.
func (t *Tracer) library(m proc.Mapping, file mappedFile) (a *attachment, err error) {
	var refused proc.FileID
	if a = t.held(m.ID); a == nil && file.mem == nil {
		err = errNotOpened
	} else if a == nil {
		a, refused, err = t.read(m, file)
	}
	if refused != (proc.FileID{}) {
		t.refuse(refused, m.PID, err)
	}
	if a != nil {
		t.inboxMu.Lock()
		if a.mapped == nil || len(a.mapped) >= maxMapped {
			a.mapped = map[proc.FileID]bool{}
		}
		a.mapped[m.ID] = true
		t.inboxMu.Unlock()
	}
	return a, err
}

// scope is the PID for which probes are put in that are to see a process; 0 is all.
func (t *Tracer) scope(pid uint32) uint32 {
	if t.perPID() {
		return pid
	}
	return 0
}

// covering is what probes see: a library, by its number, in the processes of a scope.
type covering struct{ index, scope uint32 }

// coverFrom notes since when, in proc.Ticks, all probes of a library are in; never while they are put in.
func (t *Tracer) coverFrom(index, scope uint32, ticks uint64) {
	t.inboxMu.Lock()
	t.covered[covering{index, scope}] = ticks
	t.inboxMu.Unlock()
}

// attachedTo is the library of a number, where a mapping is of its file, without waiting for anybody; and since when
// all of its probes are in, in proc.Ticks.
func (t *Tracer) attachedTo(m proc.Mapping, index uint32) (*attachment, uint64) {
	t.inboxMu.Lock()
	defer t.inboxMu.Unlock()
	for _, a := range t.numbered[index] {
		if a.mapped[m.ID] {
			return a, t.covered[covering{index, t.scope(m.PID)}]
		}
	}
	return nil, 0
}

// unnumber has no more processes taken to be of a library.
func (t *Tracer) unnumber(a *attachment) {
	t.inboxMu.Lock()
	t.numbered[a.index] = slices.DeleteFunc(t.numbered[a.index], func(b *attachment) bool { return a == b })
	t.inboxMu.Unlock()
}

// read is library, which alone notes what is refused.
func (t *Tracer) read(m proc.Mapping, file mappedFile) (a *attachment, refused proc.FileID, err error) {
	if file.err != nil {
		return nil, unopened(m.PID), file.err
	}
	// A file that was read before is recognized: reading it again, for
	// every process that maps it, takes tens of milliseconds.
	st := &file.stat
	if t.users[m.ID] == st.Ctim {
		return nil, proc.FileID{}, nil
	}
	id := proc.VersionOf(st).FileID
	if a := t.libraries[id]; a != nil && a.changed != st.Ctim {
		if err := t.changed(a, memory.ProcName(file.file), st.Ctim); err != nil {
			return nil, id, err
		}
	}
	if a, refused, err := t.known(id, m.PID); a != nil || refused != (proc.FileID{}) {
		return a, refused, err
	}
	if !file.asked {
		return nil, proc.FileID{}, errNotOpened // it was known when it was opened
	}
	defer t.scheduleFreeOSMemory()
	if !t.finder.IsRuntime(m.ID) && !metal.KnowsRuntime(memory.ProcName(file.file)) {
		t.users[m.ID] = st.Ctim
		return nil, proc.FileID{}, nil
	}
	tenant := inspect.Tenant(m.PID)
	a, err = t.copyOf(tenant, st, memory.ProcName(file.file), m.Path)
	if err != nil {
		return nil, unopened(m.PID), err
	}
	if a != nil {
		a.lib.Beside = file.mem.OpenPath
	} else {
		lib, err := discover.Library(file.mem, m, file.file)
		if outOfDescriptors(err) {
			err = tooFewDescriptors("opening " + m.Path)
		}
		if err != nil {
			return nil, unopened(m.PID), err
		}
		if a, err = t.check(lib); a == nil {
			lib.Close()
			return nil, lib.ID, err
		}
	}
	a.lib.Release, a.tenant, a.changed = file.release, tenant, st.Ctim
	if err := t.admit(a.tenant, a.build); err != nil {
		a.lib.Close()
		return nil, a.lib.ID, err
	}
	lib := a.lib
	a.index = t.number(a.slot)
	t.libraries[lib.ID] = a
	t.inboxMu.Lock()
	t.numbered[a.index] = append(t.numbered[a.index], a)
	t.inboxMu.Unlock()
	t.guard(a)
	return a, proc.FileID{}, nil
}

// known is what became of a file that was looked at before.
func (t *Tracer) known(id proc.FileID, pid uint32) (a *attachment, refused proc.FileID, err error) {
	if a := t.libraries[id]; a != nil {
		return a, proc.FileID{}, nil
	}
	if r := t.refused[id]; r != nil && !t.fits(r, inspect.Tenant(pid)) {
		return nil, id, r.why
	}
	return nil, proc.FileID{}, nil
}

// refuse notes that a process maps a file that is not traced, until it ends.
func (t *Tracer) refuse(id proc.FileID, pid uint32, why error) {
	at := uint64(proc.Monotonic())
	if lives, _, _ := t.watchExit(pid); !lives {
		return
	}
	r := t.refused[id]
	if r == nil {
		r = &refusal{pids: map[uint32]uint64{}}
		t.refused[id] = r
	}
	r.why = why // it may be another one than the last time
	r.pids[pid] = at
	if why != nil {
		t.judge(pid)
	}
}

// accept ends the refusals of a library that could not be attached to before, of one
// process or, with pid 0, of all, and returns whose they were.
func (t *Tracer) accept(id proc.FileID, pid uint32) (accepted []uint32) {
	r := t.refused[id]
	if r == nil {
		return nil
	}
	for one := range r.pids {
		if pid == 0 || one == pid {
			accepted = append(accepted, one)
		}
	}
	for _, one := range accepted {
		t.lift(id, one)
	}
	return accepted
}

// unmapped takes note that a process, or the program that it was, ended then.
func (t *Tracer) unmapped(pid uint32, then uint64) {
	for id, r := range t.refused {
		if at, ok := r.pids[pid]; ok && at < then {
			t.lift(id, pid)
		}
	}
}

// lift ends the refusal of a file for a process.
func (t *Tracer) lift(id proc.FileID, pid uint32) {
	r := t.refused[id]
	if delete(r.pids, pid); len(r.pids) == 0 {
		delete(t.refused, id)
	}
	if r.why != nil {
		t.judge(pid)
	}
}

// judge tells the reader whether a process uses a library that is not traced.
func (t *Tracer) judge(pid uint32) {
	v := verdict{pid: pid, at: proc.Now()}
	for _, r := range t.refused {
		if _, ok := r.pids[pid]; ok && r.why != nil {
			v.why = r.why.Error()
		}
	}
	t.tell(v)
}

// tell hands the reader a verdict.
func (t *Tracer) tell(v verdict) {
	t.inboxMu.Lock()
	t.verdicts = append(t.verdicts, v)
	t.inboxMu.Unlock()
	t.reader.Flush()
}

func (t *Tracer) check(lib *metal.Library) (*attachment, error) {
	if !lib.IsRuntime() && !t.finder.IsRuntime(lib.ID) {
		return nil, nil // a library that uses the runtime, beside the one that holds it
	}
	go lib.Image() // it takes as long as the rest, and is asked for next
	cover, err := lib.Cover()
	if err != nil {
		return nil, err
	}
	layout, err := lib.Layout()
	if err != nil {
		return nil, err
	}
	a := &attachment{lib: lib, cover: cover, layout: layout, build: new(build)}
	if a.slot, err = slotOf(lib, cover, layout); err != nil {
		return nil, err
	}
	if len(cover.Spare) > 0 {
		if a.sizes, err = newReservedSizes(lib); err != nil {
			return nil, err
		}
	}
	return a, nil
}

// byPhase puts probes in the order in which they are attached.
func byPhase(probes []metal.Probe) []metal.Probe {
	slices.SortStableFunc(probes, func(a, b metal.Probe) int { return cmp.Compare(a.Point.Phase, b.Point.Phase) })
	return probes
}

// Waiting lists the PIDs that were asked for and do not map the runtime yet.
func (t *Tracer) Waiting() []uint32 {
	var waiting []uint32
	for _, pid := range t.opts.PIDs {
		if list, err := t.finder.Mappings(pid); len(list) == 0 && (err == nil || errors.Is(err, discover.ErrNoRuntime)) {
			waiting = append(waiting, pid)
		}
	}
	return waiting
}
