package tracer

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/features"
	"golang.org/x/sys/unix"

	"tt-memtrace/tracer/eval"
)

// Report is what can be said of one library without attaching to it.
type Report struct {
	Library *Library
	// Processes that map it, if it was found through processes.
	Processes []uint32
	Coverage  *Coverage
	// Layout is nil where it is not proved.
	Layout *Layout
	// Getters that describe devices and capacities; none where it is not the runtime.
	Getters []Getter
	// Err says why it would not be traced, or is nil.
	Err error
}

// Inspect looks at one file. The error wraps ErrUnsupported where it is no
// library of the runtime; a library that cannot be traced is reported.
func Inspect(path string) (*Report, error) {
	lib, err := OpenLibrary(path)
	if err != nil {
		return nil, err
	}
	return inspect(lib), nil
}

func inspect(lib *Library) *Report {
	r := &Report{Library: lib}
	r.Coverage, r.Err = lib.Cover()
	if !lib.IsRuntime() {
		return r
	}
	var err error
	r.Layout, err = lib.Layout()
	r.Err = errors.Join(r.Err, err)
	r.Getters = lib.getters()
	return r
}

// Extent is a part of a file.
type Extent struct{ Offset, Length int64 }

// InspectExtents is Inspect, and tells which parts of the file's segments the
// report rests on. The test set of all releases is cut from these.
func InspectExtents(path string) (*Report, []Extent, error) {
	lib, err := OpenLibrary(path)
	if err != nil {
		return nil, nil, err
	}
	reads := &recorder{file: lib.file}
	image, err := eval.NewImage(reads, 0)
	lib.image = func() (*eval.Image, error) { return image, err }
	reads.extents = nil // what it took to relocate it
	r := inspect(lib)
	for _, p := range r.Coverage.Probes {
		reads.extents = append(reads.extents, Extent{int64(p.Offset - p.Skipped), entryBytes})
	}
	return r, reads.extents, nil
}

// recorder notes what is read of a file.
type recorder struct {
	file    io.ReaderAt
	extents []Extent
}

func (r *recorder) ReadAt(p []byte, offset int64) (int, error) {
	n, err := r.file.ReadAt(p, offset)
	r.extents = append(r.extents, Extent{offset, int64(n)})
	return n, err
}

// InspectProcesses looks at every build of the runtime that the processes have
// mapped; with no PIDs, that any process has. Skipped says why processes or
// files were passed over.
func InspectProcesses(pids []uint32) (reports []*Report, skipped []error) {
	var err error
	if len(pids) == 0 {
		if pids, err = allPIDs(); err != nil {
			return nil, []error{fmt.Errorf("listing processes: %w", err)}
		}
	}
	byFile := map[FileID]*Report{}
	for _, pid := range pids {
		if pid == uint32(os.Getpid()) {
			continue
		}
		list, err := mappings(pid, nil)
		if errors.Is(err, os.ErrPermission) {
			continue // another user's; Rights says so
		}
		for _, m := range list {
			lib, err := openMapped(m)
			if err != nil {
				skipped = append(skipped, fmt.Errorf("process %d: %w", pid, err))
				continue
			}
			if r := byFile[lib.ID]; r != nil {
				r.Processes = append(r.Processes, pid)
				lib.Close()
				continue
			}
			if !lib.IsRuntime() {
				lib.Close()
				continue
			}
			r := inspect(lib)
			lib.Path = m.Path // as the process names it, not by what it was opened
			r.Processes = []uint32{pid}
			byFile[lib.ID] = r
			reports = append(reports, r)
		}
	}
	return reports, skipped
}

// Check is one property of the host that tracing depends on.
type Check struct {
	Name string
	OK   bool
	// Detail says what was found, or what to do.
	Detail string
}

// CheckKernel says what the kernel can do.
func CheckKernel() []Check {
	var u unix.Utsname
	release := "unknown"
	if unix.Uname(&u) == nil {
		release = unix.ByteSliceToString(u.Release[:])
	}
	checks := []Check{{"kernel", true, release}}
	feature := func(name string, err error, without string) {
		c := Check{Name: name, OK: err == nil}
		switch {
		case err == nil:
			c.Detail = "yes"
		case errors.Is(err, ebpf.ErrNotSupported):
			c.Detail = "no: " + without
		case errors.Is(err, unix.EPERM):
			c.Detail = "unknown: finding out is not permitted"
		default:
			c.Detail = "unknown: " + err.Error()
		}
		checks = append(checks, c)
	}
	// Neither is needed, but each is better.
	lacks := kernelLacks()
	better := func(name string, lacks bool, without string) {
		c := Check{Name: name, OK: true, Detail: "yes"}
		if lacks {
			c.Detail = "no: " + without
		}
		checks = append(checks, c)
	}
	better("multi-uprobes", lacks.MultiUprobes, withoutMulti+" (Linux 6.6 has them)")
	if !lacks.MultiUprobes {
		better("multi-uprobes of a process", lacks.PIDFilter, withoutPIDFilter+" (Linux 6.10 has them)")
	}
	feature("bounded loops", features.HaveProgramHelper(ebpf.Kprobe, asm.FnLoop), "Linux 5.17 or later is needed")
	feature("ring buffer", features.HaveMapType(ebpf.RingBuf), "Linux 5.8 or later is needed")
	feature("task storage", features.HaveMapType(ebpf.TaskStorage), "Linux 5.11 or later is needed")
	_, err := os.Stat("/sys/kernel/btf/vmlinux")
	btf := Check{Name: "BTF", OK: err == nil, Detail: "yes"}
	if err != nil {
		btf.Detail = "no: a kernel with CONFIG_DEBUG_INFO_BTF is needed"
	}
	watch := Check{Name: "watching new processes", OK: true, Detail: "yes"}
	if w, err := watchMappings(false, nil); err != nil {
		watch.OK, watch.Detail = false, err.Error()
	} else {
		if _, ok := w.(*perfWatch); ok {
			watch.Detail = "by perf's records of all mappings, as this kernel lets no program into its functions"
		}
		w.Close()
	}
	return append(checks, btf, watch)
}
