package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"

	"tt-memtrace/aggregator"
	"tt-memtrace/internal/metal"
	"tt-memtrace/tracer"
)

// points are the functions that are probed in a library.
type points struct {
	library string
	layout  *metal.Layout // of its Buffers
	list    []point
}

type point struct {
	symbol string
	offset uint64
	// print is how bpftrace is to print the arguments that tt-memtrace reads.
	print string
}

// patience bounds waits that are not expected to take long.
const patience = 30 * time.Second

// tracing is tt-memtrace in this process, with its accounts.
type tracing struct {
	tracer   *tracer.Tracer
	mu       sync.Mutex
	accounts *aggregator.Aggregator
	// received are the allocations and frees.
	received uint64
	cancel   func()
	done     chan error
	// loaded and attached are how long it took to load the programs, and from
	// then until everything was attached and read.
	loaded, attached time.Duration
}

func trace(o tracer.Options) (*tracing, error) {
	begin := time.Now()
	tr := &tracing{accounts: aggregator.New(), done: make(chan error, 1)}
	var err error
	if tr.tracer, err = tracer.New(o); err != nil {
		return nil, err
	}
	tr.loaded = time.Since(begin)
	begin = time.Now()
	ctx, cancel := context.WithCancel(context.Background())
	tr.cancel = cancel
	ready := make(chan struct{})
	go func() {
		tr.done <- tr.tracer.Run(ctx, func() { close(ready) }, func(events []aggregator.Event) {
			tr.mu.Lock()
			defer tr.mu.Unlock()
			for i := range events {
				if k := events[i].Kind; k == aggregator.Alloc || k == aggregator.Free {
					tr.received++
				}
				tr.accounts.Apply(&events[i])
			}
		})
	}()
	select {
	case <-ready:
	case err := <-tr.done:
		return nil, errors.Join(errors.New("the tracer ended before it was ready"), err, tr.tracer.Close())
	}
	tr.attached = time.Since(begin)
	return tr, nil
}

// state is the accounts after everything that happened so far.
func (tr *tracing) state() (*aggregator.Snapshot, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := tr.tracer.Sync(ctx); err != nil {
		return nil, err
	}
	tr.mu.Lock()
	defer tr.mu.Unlock()
	return tr.accounts.Snapshot(), nil
}

func (tr *tracing) close() error {
	tr.cancel()
	return errors.Join(<-tr.done, tr.tracer.Close())
}

// memtrace traces the target.
func memtrace(t target) (func() error, error) {
	return memtraceOf(t.pid)
}

func memtraceOf(pids ...uint32) (func() error, error) {
	tr, err := trace(tracer.Options{PIDs: pids})
	if err != nil {
		return nil, err
	}
	return tr.close, nil
}

// stacksRing is what --stacks has, bytes.
const stacksRing = 128 << 20

// stacks traces the target with the stack of each allocation.
func stacks(t target) (func() error, error) {
	tr, err := trace(tracer.Options{PIDs: []uint32{t.pid}, Stacks: true, RingBytes: stacksRing})
	if err != nil {
		return nil, err
	}
	return tr.close, nil
}

// bare puts a program that does nothing at the same places.
func bare(t target) (func() error, error) {
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type: ebpf.Kprobe, AttachType: ebpf.AttachTraceUprobeMulti, License: "Apache-2.0",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Return()},
	})
	if err != nil {
		return nil, fmt.Errorf("loading the empty program: %w", err)
	}
	defer p.Close() // the link keeps it
	ex, err := link.OpenExecutable(t.points.library)
	if err != nil {
		return nil, err
	}
	var offsets []uint64
	for _, at := range t.points.list {
		offsets = append(offsets, at.offset)
	}
	l, err := ex.UprobeMulti(nil, p, &link.UprobeMultiOptions{Addresses: offsets, PID: t.pid})
	if err != nil {
		return nil, fmt.Errorf("attaching the empty program: %w", err)
	}
	return l.Close, nil
}

// bpftrace prints the arguments at the same functions, into a pipe that is read.
func bpftrace(t target) (func() error, error) {
	script := ""
	for _, at := range t.points.list {
		script += fmt.Sprintf("uprobe:%s:%s { %s }\n", t.points.library, at.symbol, at.print)
	}
	cmd := exec.Command("bpftrace", "-p", fmt.Sprint(t.pid), "-e", script)
	cmd.Env = append(os.Environ(), "BPFTRACE_PERF_RB_PAGES=1024")
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	first, drained := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(drained)
		r := bufio.NewReaderSize(out, 64<<10)
		// Its first line says that it is about to attach; what comes after is an event's.
		if _, err := r.ReadString('\n'); err == nil {
			if _, err := r.ReadString('\n'); err == nil {
				close(first)
			}
		}
		io.Copy(io.Discard, r)
	}()
	detach := func() error {
		// One that comes at a bad moment is lost on it.
		for again := time.NewTicker(time.Second); ; {
			if err := cmd.Process.Signal(os.Interrupt); err != nil {
				return err
			}
			select {
			case <-drained:
				again.Stop()
				return cmd.Wait()
			case <-again.C:
			}
		}
	}
	// It says nothing when it has attached, but it prints when it has.
	for begin := time.Now(); ; {
		select {
		case <-first:
			return detach, nil
		case <-drained:
			return nil, fmt.Errorf("bpftrace ended: %w", errors.Join(errors.New("it printed nothing"), cmd.Wait()))
		default:
		}
		if time.Since(begin) > patience {
			return nil, errors.Join(errors.New("bpftrace never printed"), detach())
		}
		if _, err := t.run(100); err != nil {
			return nil, errors.Join(err, detach())
		}
	}
}

// closers undo what was opened, the newest first.
type closers []func() error

func (c closers) close() (err error) {
	for i := len(c) - 1; i >= 0; i-- {
		err = errors.Join(err, c[i]())
	}
	return err
}

// probe puts a program of its own at each point of a target.
func (c *closers) probe(t target, program func(symbol string) asm.Instructions) error {
	ex, err := link.OpenExecutable(t.points.library)
	if err != nil {
		return err
	}
	for _, at := range t.points.list {
		p, err := ebpf.NewProgram(&ebpf.ProgramSpec{
			Type: ebpf.Kprobe, AttachType: ebpf.AttachTraceUprobeMulti, License: "Dual BSD/GPL", Instructions: program(at.symbol),
		})
		if err != nil {
			return fmt.Errorf("loading a program for %s: %w", at.symbol, err)
		}
		*c = append(*c, p.Close)
		l, err := ex.UprobeMulti(nil, p, &link.UprobeMultiOptions{Addresses: []uint64{at.offset}, PID: t.pid})
		if err != nil {
			return fmt.Errorf("attaching a program to %s: %w", at.symbol, err)
		}
		*c = append(*c, l.Close)
	}
	return nil
}
