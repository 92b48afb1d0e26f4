// Package tracer finds the runtime in processes, attaches to it, and yields
// what happens as events.
//
// It promises never to hurt a traced process: probes are at function entries
// only, on instructions that the kernel emulates, and nothing of the process is
// written or stopped. A library whose layout cannot be proved is not attached.
package tracer

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
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
	began   uint64 // ticks
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

	// started: the processes that were there were looked at.
	started atomic.Bool
	// found are processes to look at.
	found *watch.PIDQueue

	watched watched

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
	// refusals are its points at which allocations fail.
	refusals []metal.Probe
	layout   *metal.Layout
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
	t := &Tracer{opts: o, began: proc.Ticks(), found: watch.NewPIDQueue(), libraries: map[proc.FileID]*attachment{}, numbered: map[uint32][]*attachment{}, covered: map[covering]uint64{}, refused: map[proc.FileID]*refusal{}, users: map[proc.FileID]unix.Timespec{}, ended: make(chan struct{}), closing: make(chan struct{}, maxClosing)}
	t.sendStacks.Store(o.Stacks && !o.StacksPaused)
	collectLater()
	t.freeing = time.AfterFunc(pause, freeOSMemory)
	var err error
	if t.finder, err = discover.FinderOf(o.Libraries); err != nil {
		return nil, err
	}
	if err := cmp.Or(checkPIDNamespace(), checkTimeNamespace()); err != nil {
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
		err = cmp.Or(hostKernelError(), err)
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
	t.watched.all = t.objects.Watched
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

// Close detaches everything. It must not run beside Run.
func (t *Tracer) Close() error {
	t.mu.Lock()
	t.closed = true
	t.mu.Unlock()
	t.freeing.Stop()
	collectAsUsual()
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
	return errors.Join(t.watched.close(), t.objects.Close())
}

// start looks at the processes that are there; those that come are being watched.
func (t *Tracer) start() error {
	defer func() {
		t.started.Store(true)
		t.reader.Flush()
	}()
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
