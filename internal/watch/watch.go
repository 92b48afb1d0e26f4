// Package watch reports processes that map the runtime, as it happens. It attaches nothing to them.
package watch

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/ringbuf"
	"golang.org/x/sys/unix"

	"tt-memtrace/bpf"
	"tt-memtrace/internal/discover"
	"tt-memtrace/internal/proc"
)

// Watcher reports processes that map a device, or a file that may hold the runtime, as it happens.
type Watcher interface {
	// Run calls seen for each such process until the context ends, and missed if it could not see some. at is when the
	// process mapped the file or device (CLOCK_MONOTONIC in ns), or NotSeen.
	Run(ctx context.Context, seen func(pid uint32, at uint64), missed func()) error
	// Close ends the watch. Do not call it while Run runs.
	Close() error
}

// NotSeen is the time of a mapping that was not seen as it happened.
const NotSeen = math.MaxUint64

// Mappings watches for mappings of devices, and of files with the runtime's name or, with anyName, any name. It
// prefers a BPF program, which does not wake the tracer for other files. If the kernel permits none on its
// functions, it uses perf records, for which some kernels require CAP_SYS_ADMIN and which report devices later.
// kernel, the BTF cache, can be nil. of is whose devices that polls for; empty means all processes'.
func Mappings(anyName bool, kernel *btf.Cache, of ...uint32) (Watcher, error) {
	w, err := watchByProgram(anyName, kernel)
	if err == nil {
		return w, nil
	}
	p, perf := watchByPerf(anyName, of)
	if perf == nil {
		return p, nil
	}
	if errors.Is(perf, unix.EACCES) {
		perf = fmt.Errorf("%w: this needs cap_sys_admin, or kernel.perf_event_paranoid of 2 or less: %w", proc.ErrPermission, perf)
	}
	return nil, fmt.Errorf("%w; %w", err, perf)
}

// programWatch is a watch by a BPF program.
type programWatch struct {
	objects bpf.WatchObjects
	link    link.Link
	reader  *ringbuf.Reader
}

func watchByProgram(anyName bool, kernel *btf.Cache) (_ *programWatch, err error) {
	w := &programWatch{}
	defer func() {
		if err != nil {
			w.Close()
			err = fmt.Errorf("watching mappings by a program: %w", err)
		}
	}()
	spec, err := bpf.LoadWatch()
	if err != nil {
		return nil, err
	}
	type name [16]byte // as in the program: Set compares the sizes
	nameOf := func(s string) (n name) {
		copy(n[:], s)
		return n
	}
	var names [len(discover.LibraryNames)]name
	for i, n := range discover.LibraryNames {
		names[i] = nameOf(n)
	}
	for variable, value := range map[string]any{
		bpf.WatchVarNames: names, bpf.WatchVarAnyName: anyName,
		bpf.WatchVarDeviceFolder: nameOf(filepath.Base(discover.DeviceFolder)), bpf.WatchVarSharedPrefix: nameOf(discover.SharedPrefix),
	} {
		if err := spec.Variables[variable].Set(value); err != nil {
			return nil, err
		}
	}
	if err := spec.LoadAndAssign(&w.objects, &ebpf.CollectionOptions{Cache: kernel}); err != nil {
		return nil, err
	}
	if w.reader, err = ringbuf.NewReader(w.objects.Mapped); err != nil {
		return nil, err
	}
	w.link, err = link.AttachTracing(link.TracingOptions{Program: w.objects.FileMapped})
	return w, err
}

func (w *programWatch) Close() error {
	if w.link != nil {
		w.link.Close()
	}
	if w.reader != nil {
		w.reader.Close()
	}
	return w.objects.Close()
}

func (w *programWatch) Run(ctx context.Context, seen func(pid uint32, at uint64), missed func()) error {
	stop := context.AfterFunc(ctx, func() { w.reader.Flush() })
	defer stop()
	var record ringbuf.Record
	var known uint64
	for {
		// A flush, when the context ends, comes behind all records that are in the ring when it comes.
		err := w.reader.ReadInto(&record)
		if errors.Is(err, os.ErrClosed) || errors.Is(err, ringbuf.ErrFlushed) && ctx.Err() != nil {
			return nil
		}
		if errors.Is(err, ringbuf.ErrFlushed) {
			continue
		}
		if err != nil {
			return fmt.Errorf("watching mappings: %w", err)
		}
		seen(uint32(binary.LittleEndian.Uint64(record.RawSample[8:])), binary.LittleEndian.Uint64(record.RawSample))
		// Records are lost only if the ring is full. By now all of it is read, or the rest wakes this loop again.
		if record.Remaining > 0 {
			continue
		}
		var lost uint64
		if err := w.objects.Lost.Get(&lost); err != nil {
			return fmt.Errorf("watching mappings: %w", err)
		}
		if lost > known {
			known = lost
			missed()
		}
	}
}

// ByPerf reports whether a watch uses perf records of all mappings.
func ByPerf(w Watcher) bool {
	_, ok := w.(*perfWatch)
	return ok
}
