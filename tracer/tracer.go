// Package tracer finds the processes that use the runtime, attaches probes to it, and yields events.
//
// It never hurts a traced process: it puts probes only on function entries, on instructions that the kernel
// emulates. It writes nothing into the process and never stops it. It does not attach to a library whose layout it
// cannot prove.
package tracer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/ringbuf"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"tt-memtrace/bpf"
	"tt-memtrace/internal/discover"
	"tt-memtrace/internal/memory"
	"tt-memtrace/internal/metal"
	"tt-memtrace/internal/proc"
	"tt-memtrace/internal/watch"
)

// Tracer is a set of loaded BPF programs and of the libraries that they are attached to.
type Tracer struct {
	*env
	attacher *attacher

	watch watch.Watcher
	tasks []link.Link
	ended chan struct{}
}

// New loads the BPF programs. Its error wraps ErrPermission if rights are missing.
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
	e := &env{opts: o, began: proc.Ticks(), found: watch.NewPIDQueue()}
	t := &Tracer{env: e, attacher: newAttacher(e), ended: make(chan struct{})}
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
	t.lacks = kernelLacks()
	t.lacks.MultiUprobes = t.lacks.MultiUprobes || o.Lacks.MultiUprobes
	t.lacks.PIDFilter = t.lacks.PIDFilter || o.Lacks.PIDFilter
	if t.attacher.libraries.room, err = roomFor(1 + t.attacher.uprobes.descriptors(len(metal.Points))); err != nil {
		return nil, err
	}
	if t.attacher.writes, err = newWriteWatch(); outOfDescriptors(err) {
		return nil, tooFewDescriptors("watching for overwritten libraries")
	} else if err != nil {
		return nil, err
	}
	var loading errgroup.Group
	kernel := btf.NewCache() // reading the kernel's BTF takes as long as verifying the programs
	loading.Go(func() error { return t.load(kernel) })
	loading.Go(func() (err error) {
		t.watch, err = watch.Mappings(len(o.Libraries) > 0, kernel, o.PIDs...)
		return err
	})
	// Loading takes as long as reading a library, so do both at the same time.
	t.preload()
	err = loading.Wait()
	if outOfDescriptors(err) {
		err = tooFewDescriptors("loading the BPF programs")
	} else if err != nil {
		// This check is slow, so it runs only after a failure: without any of these features loading fails.
		err = cmp.Or(kernelError(), err)
	} else {
		err = checkDescriptors(t.attacher.uprobes.descriptors(len(metal.Points)), "attaching to a library")
	}
	if err != nil {
		t.Close()
		return nil, err
	}
	t.attacher.uprobes.noticeMissingFeatures()
	return t, nil
}

// preload reads the libraries of the processes to trace. It ignores errors: attaching tries again and reports them.
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
			file := t.attacher.openMapped(m)
			t.attacher.mu.Lock()
			_, _, _ = t.attacher.read(m, file)
			t.attacher.mu.Unlock()
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
	} else {
		spec.Maps[bpf.MemtraceMapCodes].MaxEntries = 1 // the kernel allocates all of them
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
		defer collection.Close() // closes what Assign leaves
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

// Close detaches everything. Do not call it while Run runs.
func (t *Tracer) Close() error {
	t.attacher.mu.Lock()
	t.attacher.closed = true
	t.attacher.mu.Unlock()
	t.freeing.Stop()
	collectAsUsual()
	t.closeReader()
	for _, a := range t.attacher.libraries.attached() {
		t.attacher.releaseAll(a)
	}
	t.attacher.uprobes.release(t.tasks)
	if t.watch != nil {
		t.attacher.uprobes.releasing.Go(func() { t.watch.Close() })
	}
	t.attacher.uprobes.releasing.Go(func() { t.attacher.writes.file.Close() }) // this waits for the kernel, too
	t.attacher.uprobes.releasing.Wait()
	for _, a := range t.attacher.libraries.attached() {
		a.lib.Close()
	}
	return errors.Join(t.watched.close(), t.objects.Close())
}

// start examines the existing processes; the watcher already reports new ones.
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
		t.attacher.look(pid, 0)
	}
	return nil
}

// SendStacks switches the stacks of allocations and frees on or off, from about now. It does nothing without
// Options.Stacks.
func (t *Tracer) SendStacks(on bool) {
	t.sendStacks.Store(on && t.opts.Stacks)
	t.reader.Flush() // fails if the drain has ended
}

// SendsStacks reports whether stacks are wanted.
func (t *Tracer) SendsStacks() bool { return t.sendStacks.Load() }

// Reconcile has a process's accounts compared with its allocators soon, because an event did not fit them.
func (t *Tracer) Reconcile(pid uint32) {
	in := t.attacher.runs.Of(pid)
	in.Mail.suspects.put(pid)
	in.Rouse()
}

// discover attaches to processes as they map the runtime. Examining a process takes far longer than reading that it
// mapped something, so other goroutines do it: the kernel drops records that are not read in time.
func (t *Tracer) discover(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		return t.watch.Run(ctx, func(pid uint32, at uint64) {
			if t.opts.Follow != 0 {
				t.unexamined.add(pid)
			}
			t.found.AddSeen(pid, at)
		}, t.found.Missed)
	})
	looks := looks{look: func(pid uint32, seen uint64) {
		if ctx.Err() == nil {
			t.attacher.look(pid, seen)
		}
	}, start: g.Go}
	g.Go(func() error {
		for {
			pids, all, err := t.found.Wait(ctx)
			if err != nil {
				return nil
			}
			if all {
				// The kernel dropped records. Their processes are unknown, so examine all.
				everyone, err := proc.PIDs()
				if err != nil {
					return fmt.Errorf("listing processes: %w", err)
				}
				clear(pids)
				for _, pid := range everyone {
					pids[pid] = 0
				}
			}
			for pid, seen := range pids {
				looks.add(proc.User(pid), pid, seen)
			}
		}
	})
	return g.Wait()
}

// Waiting lists the PIDs of Options.PIDs that do not map the runtime yet.
func (t *Tracer) Waiting() []uint32 {
	var waiting []uint32
	for _, pid := range t.opts.PIDs {
		if list, err := t.finder.Mappings(pid); len(list) == 0 && (err == nil || errors.Is(err, discover.ErrNoRuntime)) {
			waiting = append(waiting, pid)
		}
	}
	return waiting
}
