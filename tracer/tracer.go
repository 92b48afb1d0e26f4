// Package tracer finds the runtime in processes, attaches to it, and yields
// what happens as events.
//
// It promises never to hurt a traced process: probes stand at function entries
// only, on instructions that the kernel emulates, and nothing of the process is
// written or stopped. A library whose layout cannot be proved is not attached.
package tracer

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/features"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/ringbuf"
	"github.com/fsnotify/fsnotify"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"tt-memtrace/bpf"
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
	// Lacks is what the kernel is taken to lack also where it has it, for tests.
	Lacks Lacks
	// Notice is told, in one line, what a user should know: a process that
	// cannot be traced and why. It may be called from any goroutine.
	Notice func(string)
}

// DefaultRingBytes hold a hundred thousand allocations and frees: what comes in a
// tenth of a second at a million a second.
const DefaultRingBytes = 8 << 20

const (
	// drainEvery is how long records wait in the ring at the most.
	drainEvery = 10 * time.Millisecond
	// sleepAfter this many empty drains the reader sleeps until it is woken.
	sleepAfter = 20
)

// Tracer is a set of loaded programs and what they are attached to.
type Tracer struct {
	opts    Options
	lacks   Lacks
	objects bpf.MemtraceObjects
	reader  *ringbuf.Reader
	watch   watch
	tasks   []link.Link
	extra   []FileID
	told    string // the last notice of a process that was looked at

	watching sync.Mutex

	// mu is held while a library is read and attached to.
	mu        sync.Mutex
	libraries map[FileID]*attachment
	former    []*attachment // to files that were written over since
	writes    *fsnotify.Watcher
	refused   map[FileID]*refusal
	users     map[FileID]unix.Timespec // files that use the runtime and do not hold it, as of their last change

	// telling is held for a moment only: the reader waits for it.
	telling   sync.Mutex
	announced []announcement
	syncs     []chan struct{}
	readings  []*reading
	doubted   []uint32

	giving    *time.Timer // when memory is given back
	ended     chan struct{}
	releasing sync.WaitGroup
	closing   chan struct{} // has an element for each link that is being closed
}

// attachment is a library that is attached to.
type attachment struct {
	index  uint32
	lib    *Library
	cover  *Coverage
	layout *Layout
	// links for all processes, or for each PID, and since when.
	links  map[uint32][]link.Link
	linked map[uint32]time.Time
}

// refusal is a file that is not traced, as long as a process maps it: then it may
// be another one of the same number.
type refusal struct {
	why error // nil: it is not the runtime
	// pids of those processes, with when they were looked at: CLOCK_MONOTONIC in ns.
	pids map[uint32]uint64
}

// announcement tells the reader of a process that maps the runtime.
type announcement struct {
	mapping Mapping
	of      *attachment
	// late: it had mapped the library before the probes were there, so what it
	// holds has to be read.
	late bool
	// at: it was looked at then, CLOCK_MONOTONIC in ns.
	at uint64
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
	t := &Tracer{opts: o, libraries: map[FileID]*attachment{}, refused: map[FileID]*refusal{}, users: map[FileID]unix.Timespec{}, ended: make(chan struct{}), closing: make(chan struct{}, maxClosing)}
	t.giving = time.AfterFunc(pause, debug.FreeOSMemory)
	var err error
	if t.writes, err = fsnotify.NewWatcher(); err != nil {
		return nil, fmt.Errorf("watching for libraries that are written over: %w", err)
	}
	for _, path := range o.Libraries {
		lib, err := OpenLibrary(path)
		if err != nil {
			return nil, err
		}
		_, err = lib.Cover()
		lib.Close()
		if err != nil {
			return nil, err
		}
		t.extra = append(t.extra, lib.ID)
	}
	if err := features.HaveProgramHelper(ebpf.Kprobe, asm.FnLoop); errors.Is(err, ebpf.ErrNotSupported) {
		return nil, fmt.Errorf("this kernel has no bounded loops, which need Linux 5.17 or later: %w", err)
	}
	t.lacks = kernelLacks()
	t.lacks.MultiUprobes = t.lacks.MultiUprobes || o.Lacks.MultiUprobes
	t.lacks.PIDFilter = t.lacks.PIDFilter || o.Lacks.PIDFilter
	var loading errgroup.Group
	kernel := btf.NewCache() // reading the kernel's types takes as long as checking the programs
	loading.Go(func() error { return t.load(kernel) })
	loading.Go(func() (err error) {
		t.watch, err = watchMappings(len(t.extra) > 0, kernel)
		return err
	})
	// That takes as long as reading a library, which is done beside it.
	t.foresee()
	if err := loading.Wait(); err != nil {
		t.Close()
		return nil, err
	}
	t.saysWhatItLacks()
	return t, nil
}

// foresee reads the libraries of the processes that are to be traced. What fails
// is tried, and told, when they are attached to.
func (t *Tracer) foresee() {
	for _, pid := range t.opts.PIDs {
		list, err := mappings(pid, t.extra)
		if err != nil {
			continue
		}
		t.mu.Lock()
		for _, m := range list {
			_, _, _ = t.read(m)
		}
		t.mu.Unlock()
	}
}

func (t *Tracer) load(kernel *btf.Cache) error {
	spec, err := bpf.LoadMemtrace()
	if err != nil {
		return fmt.Errorf("reading the BPF programs: %w", err)
	}
	spec.Maps[bpf.MemtraceMapEvents].MaxEntries = t.opts.RingBytes
	if t.lacks.MultiUprobes {
		singly(spec)
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
	if err := spec.LoadAndAssign(&t.objects, &ebpf.CollectionOptions{Cache: kernel}); err != nil {
		var ve *ebpf.VerifierError
		if errors.As(err, &ve) {
			return fmt.Errorf("loading the BPF programs: %+v", ve)
		}
		if errors.Is(err, unix.EPERM) {
			return fmt.Errorf("loading the BPF programs: %w with all capabilities; a container's seccomp profile may forbid it: %w", ErrPermission, err)
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
		if _, err := t.watchExit(t.opts.Follow); err != nil {
			return err
		}
	}
	for _, pid := range t.opts.PIDs {
		if _, err := t.watchExit(pid); err != nil {
			return err
		}
	}
	return nil
}

// mappedBefore is more than passes between a process's mapping of the library and
// that it is looked at.
const mappedBefore = 2 * time.Second

// watchExit has the kernel report the process's exec and exit. One that is ending
// by now is not watched, unless it was before: its end is reported then.
func (t *Tracer) watchExit(pid uint32) (lives bool, err error) {
	t.watching.Lock()
	defer t.watching.Unlock()
	err = t.objects.Watched.Update(pid, uint8(1), ebpf.UpdateNoExist)
	before := errors.Is(err, ebpf.ErrKeyExist)
	if err != nil && !before {
		return false, fmt.Errorf("watching process %d: %w", pid, err)
	}
	lives = alive(pid)
	if !lives && !before {
		if err := t.objects.Watched.Delete(pid); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return false, fmt.Errorf("watching process %d: %w", pid, err)
		}
	}
	return lives, nil
}

// Close detaches everything. It must not run beside Run.
func (t *Tracer) Close() error {
	t.giving.Stop()
	if t.reader != nil {
		t.reader.Close()
	}
	for _, a := range t.libraries {
		t.releaseAll(a)
	}
	t.release(t.tasks)
	if t.watch != nil {
		t.releasing.Go(func() { t.watch.Close() })
	}
	t.releasing.Go(func() { t.writes.Close() }) // it waits for the kernel as well
	t.releasing.Wait()
	for _, a := range t.libraries {
		a.lib.Close()
	}
	for _, a := range t.former {
		a.lib.Close()
	}
	return t.objects.Close()
}

// start looks at the processes that are there; those that come are being watched.
func (t *Tracer) start() error {
	pids := t.opts.PIDs
	if len(pids) == 0 && t.opts.Follow == 0 {
		var err error
		if pids, err = allPIDs(); err != nil {
			return fmt.Errorf("listing processes: %w", err)
		}
	}
	for _, pid := range pids {
		t.look(pid, true)
	}
	return nil
}

// discover attaches to processes as they map the runtime. Looking takes far
// longer than seeing, so it is done apart: the kernel drops what is not read.
func (t *Tracer) discover(ctx context.Context) error {
	found := newFinds()
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		return t.watch.Run(ctx, found.add, found.missed)
	})
	g.Go(func() error {
		for {
			pids, all, err := found.wait(ctx)
			if err != nil {
				return nil
			}
			if all {
				// Some records were dropped: whom they were of is found by looking at everyone.
				if pids, err = allPIDs(); err != nil {
					return fmt.Errorf("listing processes: %w", err)
				}
			}
			for _, pid := range pids {
				t.look(pid, all)
			}
		}
	})
	return g.Wait()
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

// look attaches to what a process has mapped, where it is in scope. Unless
// early, it was seen mapping something just now.
func (t *Tracer) look(pid uint32, early bool) {
	if !t.inScope(pid) {
		return
	}
	at := uint64(monotonic())
	list, err := mappings(pid, t.extra)
	if err != nil {
		return // gone, or not ours to see
	}
	for _, m := range list {
		if err := t.attach(m, at, early); err != nil {
			if text := fmt.Sprintf("process %d: %v", pid, err); text != t.told {
				t.told = text
				t.opts.Notice(text)
			}
		}
	}
}

// attach puts the probes into a library, once for all processes or once for
// each PID, and announces the process that was looked at at a time.
func (t *Tracer) attach(m Mapping, at uint64, early bool) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	a, err := t.library(m)
	if a == nil {
		return err
	}
	var scope uint32
	if t.perPID() {
		scope = m.PID
	}
	if a.links[scope] == nil {
		early = true
		if a.links[scope], err = t.probe(a, scope); err != nil {
			return err
		}
		a.linked[scope] = time.Now()
	}
	// What is seen mapping the library now may have done so a while ago.
	early = early || time.Since(a.linked[scope]) < mappedBefore
	// The reader takes in who is announced before it takes in that he ended.
	t.telling.Lock()
	lives, err := t.watchExit(m.PID)
	if lives {
		t.announced = append(t.announced, announcement{mapping: m, of: a, late: early, at: at})
	}
	t.telling.Unlock()
	if !lives {
		return err
	}
	return t.reader.Flush()
}

// library opens and checks a mapped library, once for each file. Both results
// are nil where the file is not the runtime.
func (t *Tracer) library(m Mapping) (*attachment, error) {
	a, refused, err := t.read(m)
	if refused != (FileID{}) {
		t.refuse(refused, m.PID, err)
	}
	return a, err
}

// read is library, which alone notes what is refused.
func (t *Tracer) read(m Mapping) (a *attachment, refused FileID, err error) {
	// A file that was read before is told by what it is: reading it again, for
	// every process that maps it, takes tens of milliseconds.
	var st unix.Stat_t
	named := unix.Stat(m.fileName(), &st) == nil && st.Ino == m.ID.Inode
	if named && t.users[m.ID] == st.Ctim {
		return nil, FileID{}, nil
	}
	if named {
		if a, refused, err := t.known(FileID{st.Dev, st.Ino}); a != nil || refused != (FileID{}) {
			return a, refused, err
		}
	}
	// Another file of that name says nothing of the one that is mapped.
	if named && !slices.Contains(t.extra, m.ID) && !knowsRuntime(m.fileName()) {
		t.users[m.ID] = st.Ctim
		t.giveBack()
		return nil, FileID{}, nil
	}
	defer t.giveBack()
	lib, err := openMapped(m)
	if err != nil {
		return nil, FileID{}, err
	}
	if a, refused, err := t.known(lib.ID); a != nil || refused != (FileID{}) {
		lib.Close()
		return a, refused, err
	}
	if a, err = t.check(lib); a == nil {
		lib.Close()
		return nil, lib.ID, err
	}
	t.libraries[lib.ID] = a
	t.guard(lib)
	return a, FileID{}, nil
}

// giveBack returns memory to the system after files and processes were read: that
// leaves several times as much behind as is kept of them, and the heap shrinks slowly
// by itself. It waits until there is a pause.
func (t *Tracer) giveBack() { t.giving.Reset(pause) }

const pause = time.Second

// known is what became of a file that was looked at before.
func (t *Tracer) known(id FileID) (a *attachment, refused FileID, err error) {
	if a := t.libraries[id]; a != nil {
		return a, FileID{}, nil
	}
	if r := t.refused[id]; r != nil {
		return nil, id, r.why
	}
	return nil, FileID{}, nil
}

// refuse notes that a process maps a file that is not traced, until it ends.
func (t *Tracer) refuse(id FileID, pid uint32, why error) {
	at := uint64(monotonic())
	if lives, _ := t.watchExit(pid); !lives {
		return
	}
	if t.refused[id] == nil {
		t.refused[id] = &refusal{why, map[uint32]uint64{}}
	}
	t.refused[id].pids[pid] = at
}

// unmapped takes note that a process, or the program that it was, ended then.
func (t *Tracer) unmapped(pid uint32, then uint64) {
	for id, r := range t.refused {
		if at, ok := r.pids[pid]; ok && at < then {
			delete(r.pids, pid)
		}
		if len(r.pids) == 0 {
			delete(t.refused, id)
		}
	}
}

func (t *Tracer) check(lib *Library) (*attachment, error) {
	if !lib.IsRuntime() && !slices.Contains(t.extra, lib.ID) {
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
	return &attachment{index: t.vacant(), lib: lib, cover: cover, layout: layout, links: map[uint32][]link.Link{}, linked: map[uint32]time.Time{}}, nil
}

// maxLibraries is for how many the kernel's map of layouts has room.
const maxLibraries = 64

// vacant is a number that no library has. Where there is none left, those that no
// process maps are given up: over weeks, containers bring many.
func (t *Tracer) vacant() uint32 {
	if len(t.libraries)+len(t.former) >= maxLibraries {
		t.giveUp()
	}
	taken := map[uint32]bool{}
	for _, a := range t.libraries {
		taken[a.index] = true
	}
	for _, a := range t.former {
		taken[a.index] = true
	}
	index := uint32(0)
	for taken[index] {
		index++
	}
	return index
}

// giveUp detaches from the libraries that no process maps.
func (t *Tracer) giveUp() {
	pids, err := allPIDs()
	if err != nil {
		return
	}
	mapped := map[uint64]bool{}
	for _, pid := range pids {
		list, _ := mappings(pid, t.extra)
		for _, m := range list {
			mapped[m.ID.Inode] = true
		}
	}
	var gone []*attachment
	for id, a := range t.libraries {
		if mapped[id.Inode] {
			continue
		}
		t.releaseAll(a)
		gone = append(gone, a)
		_ = t.writes.Remove(a.lib.name())
		delete(t.libraries, id)
	}
	t.former = slices.DeleteFunc(t.former, func(a *attachment) bool {
		if mapped[a.lib.ID.Inode] {
			return false
		}
		gone = append(gone, a)
		return true
	})
	t.releasing.Wait() // before their layouts are replaced
	for _, a := range gone {
		a.lib.Close()
	}
}

// tellLayout tells the programs how the library lays things out.
func (t *Tracer) tellLayout(a *attachment) error {
	if a.index >= t.objects.Layouts.MaxEntries() {
		return fmt.Errorf("%s: more than %d builds of the runtime at once", a.lib.Path, t.objects.Layouts.MaxEntries())
	}
	k := a.layout.kernel()
	if !a.lib.Defines(reserveLocal) {
		k.Marked = 1 // where dataflow buffers are covered, it was checked
	}
	if a.lib.Defines(reserveSpace + "jjjRNS1_23ProgramDispatchMetadataE") {
		k.Waits = 1
	}
	if err := t.objects.Layouts.Put(a.index, &k); err != nil {
		return fmt.Errorf("storing the layout: %w", err)
	}
	return nil
}

// probe attaches every point of the library; pid 0 is all processes.
func (t *Tracer) probe(a *attachment, pid uint32) ([]link.Link, error) {
	if err := t.tellLayout(a); err != nil {
		return nil, err
	}
	// Through the open file, so that it is the file that was checked.
	ex, err := link.OpenExecutable(a.lib.name())
	if err != nil {
		return nil, fmt.Errorf("attaching to %s: %w", a.lib.Path, err)
	}
	programs := map[string]*ebpf.Program{
		bpf.MemtraceProgReserveInBank:      t.objects.ReserveInBank,
		bpf.MemtraceProgBufferAllocated:    t.objects.BufferAllocated,
		bpf.MemtraceProgBufferFreed:        t.objects.BufferFreed,
		bpf.MemtraceProgAllocatorGone:      t.objects.AllocatorGone,
		bpf.MemtraceProgDeviceOpened:       t.objects.DeviceOpened,
		bpf.MemtraceProgDeviceClosed:       t.objects.DeviceClosed,
		bpf.MemtraceProgProgramLaidOut:     t.objects.ProgramLaidOut,
		bpf.MemtraceProgCbPlaced:           t.objects.CbPlaced,
		bpf.MemtraceProgL1Reserved:         t.objects.L1Reserved,
		bpf.MemtraceProgDfbPlaced:          t.objects.DfbPlaced,
		bpf.MemtraceProgProgramGone:        t.objects.ProgramGone,
		bpf.MemtraceProgKernelAdded:        t.objects.KernelAdded,
		bpf.MemtraceProgKernelRead:         t.objects.KernelRead,
		bpf.MemtraceProgBinaryRead:         t.objects.BinaryRead,
		bpf.MemtraceProgKernelsCopied:      t.objects.KernelsCopied,
		bpf.MemtraceProgProgramAdded:       t.objects.ProgramAdded,
		bpf.MemtraceProgWorkloadGone:       t.objects.WorkloadGone,
		bpf.MemtraceProgWorkloadNamed:      t.objects.WorkloadNamed,
		bpf.MemtraceProgLaunched:           t.objects.Launched,
		bpf.MemtraceProgTraceReplayed:      t.objects.TraceReplayed,
		bpf.MemtraceProgScratchpadsLaidOut: t.objects.ScratchpadsLaidOut,
		bpf.MemtraceProgRingMade:           t.objects.RingMade,
		bpf.MemtraceProgRingTaken:          t.objects.RingTaken,
		bpf.MemtraceProgOutOfMemory:        t.objects.OutOfMemory,
		bpf.MemtraceProgBuffersClash:       t.objects.BuffersClash,
	}
	offsets := map[string][]uint64{}
	for _, p := range slices.Concat(a.cover.Probes, a.lib.refusals()) {
		offsets[p.Point.Program] = append(offsets[p.Point.Program], p.Offset)
	}
	// Frees go live before allocations: a free too many is counted as such, one
	// too few would stay in the accounts.
	order := []string{
		bpf.MemtraceProgDeviceClosed, bpf.MemtraceProgAllocatorGone, bpf.MemtraceProgBufferFreed,
		bpf.MemtraceProgReserveInBank, bpf.MemtraceProgDeviceOpened, bpf.MemtraceProgBufferAllocated,
		bpf.MemtraceProgProgramGone, bpf.MemtraceProgProgramLaidOut, bpf.MemtraceProgL1Reserved,
		bpf.MemtraceProgDfbPlaced, bpf.MemtraceProgCbPlaced, bpf.MemtraceProgScratchpadsLaidOut,
		bpf.MemtraceProgWorkloadGone, bpf.MemtraceProgLaunched, bpf.MemtraceProgKernelsCopied, bpf.MemtraceProgBinaryRead,
		bpf.MemtraceProgKernelRead, bpf.MemtraceProgWorkloadNamed, bpf.MemtraceProgProgramAdded, bpf.MemtraceProgKernelAdded,
		bpf.MemtraceProgTraceReplayed, bpf.MemtraceProgRingTaken, bpf.MemtraceProgRingMade,
		bpf.MemtraceProgOutOfMemory, bpf.MemtraceProgBuffersClash,
	}
	var links []link.Link
	for _, name := range order {
		o := offsets[name]
		if len(o) == 0 {
			continue
		}
		more, err := t.uprobes(ex, programs[name], o, uint64(a.index), pid)
		if err != nil {
			t.release(links)
			return nil, fmt.Errorf("attaching %s to %s: %w", name, a.lib.Path, err)
		}
		links = append(links, more...)
	}
	return links, nil
}

// openMapped opens the very file that a process has mapped, in whatever mount
// namespace, also where its name leads elsewhere by now.
func openMapped(m Mapping) (*Library, error) {
	lib, err := OpenLibrary(m.fileName())
	if err == nil && lib.ID.Inode == m.ID.Inode {
		return lib, nil
	}
	if err == nil {
		lib.Close()
		err = fmt.Errorf("opening %s: the file was replaced after it was mapped", m.Path)
	}
	if deleted, e := openMapFile(m); e == nil {
		return deleted, nil
	}
	return nil, err
}

// releaseAll takes all probes of a library out.
func (t *Tracer) releaseAll(a *attachment) {
	for _, links := range a.links {
		t.release(links)
	}
}

// detach takes the probes of one PID out, where they were its own.
func (t *Tracer) detach(pid uint32) {
	for _, a := range t.libraries {
		t.release(a.links[pid])
		delete(a.links, pid)
	}
}
