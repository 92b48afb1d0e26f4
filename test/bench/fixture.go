package main

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"tt-memtrace/aggregator"
	"tt-memtrace/internal/metal"
	"tt-memtrace/test/fixture"
	"tt-memtrace/tracer"
)

const (
	reserved  = "_ZN2tt8tt_metal9allocator11FreeListOpt17allocate_in_blockEmmm"
	allocated = "_ZN2tt8tt_metal12GraphTracker14track_allocateEPKNS0_6BufferE"
	freed     = "_ZN2tt8tt_metal12GraphTracker16track_deallocateEPNS0_6BufferE"
	launched  = "_ZN2tt8tt_metal11distributed19EnqueueMeshWorkloadERNS1_16MeshCommandQueueERNS1_12MeshWorkloadEb"
)

// window prints what tt-memtrace reads of a Buffer, as raw words.
const window = `printf("%d %d %llx %llx %llx %llx %llx %llx %llx %llx\n", pid, tid, arg1, *uptr(arg1), *uptr(arg1+8), *uptr(arg1+16), *uptr(arg1+24), *uptr(arg1+32), *uptr(arg1+40), nsecs);`

// pointsOf finds symbols where tt-memtrace probes them.
func pointsOf(path string, prints map[string]string) (points, error) {
	lib, err := metal.OpenLibrary(path)
	if err != nil {
		return points{}, err
	}
	defer lib.Close()
	cover, err := lib.Cover()
	if err != nil {
		return points{}, err
	}
	layout, err := lib.Layout()
	if err != nil {
		return points{}, err
	}
	p := points{library: path, layout: layout}
	spare := 0 // points at which nothing is probed
	for prefix := range prints {
		if slices.ContainsFunc(cover.Spare, func(p metal.Probe) bool { return strings.HasPrefix(p.Symbol, prefix) }) {
			spare++
		}
	}
	for i := range cover.Probes {
		at := &cover.Probes[i]
		for prefix, print := range prints {
			if strings.HasPrefix(at.Symbol, prefix) {
				if !at.Emulated {
					return points{}, fmt.Errorf("%s begins with %q, which is single-stepped", at.Symbol, at.Instruction)
				}
				p.list = append(p.list, point{at.Symbol, at.Offset, print})
			}
		}
	}
	if len(p.list) < len(prints)-spare {
		return points{}, fmt.Errorf("%s has %d of %d points", path, len(p.list), len(prints))
	}
	return p, nil
}

var ofAllocating = map[string]string{
	reserved:  `printf("%d %d %lld\n", pid, tid, arg2);`,
	allocated: window,
	freed:     window,
}

var ofLaunching = map[string]string{
	launched: `printf("%d %d %llx %llx %llx\n", pid, tid, arg0, *uptr(arg1), nsecs);`,
}

// fixtures are processes that use the fixture library: one that is measured, others
// that are traced beside it, and one that has a client of an allocation server in it.
// The library of apart is another build under a name that is not looked for.
type fixtures struct {
	dir           string
	library       string
	driver        string
	server        *server
	one           *fixture.Process
	client, apart *fixture.Process
	others        []*fixture.Process
	apartsLibrary string
}

// manyOthers is how many processes are traced beside the one that is measured.
const manyOthers = 8

func startFixtures() (f *fixtures, err error) {
	f = &fixtures{}
	defer func() {
		if err != nil {
			f.close()
		}
	}()
	if f.dir, err = os.MkdirTemp("", "tt-memtrace-bench-"); err != nil {
		return nil, err
	}
	if f.library, err = (fixture.Build{Flags: []string{"-DLAYOUT_B", "-O2"}}).Library(f.dir); err != nil {
		return nil, err
	}
	if f.apartsLibrary, err = (fixture.Build{Name: "libapart.so", Flags: []string{"-DLAYOUT_B", "-O2"}}).Library(f.dir); err != nil {
		return nil, err
	}
	if f.server, err = startServer(); err != nil {
		return nil, err
	}
	if f.driver, err = fixture.Driver(f.dir); err != nil {
		return nil, err
	}
	start := func(library string, env ...string) (p *fixture.Process) {
		if err != nil {
			return nil
		}
		if p, err = fixture.Start(f.driver, env...); err != nil {
			return nil
		}
		for _, line := range []string{"open " + library, "device 0 3"} {
			if err == nil {
				_, err = p.Do("%s", line)
			}
		}
		return p
	}
	f.one = start(f.library)
	f.client = start(f.library, f.server.env(f.library, 1)...)
	f.apart = start(f.apartsLibrary)
	for range manyOthers {
		f.others = append(f.others, start(f.library))
	}
	return f, err
}

func (f *fixtures) close() {
	for _, p := range append(f.others, f.one, f.client, f.apart) {
		if p != nil {
			p.Kill()
		}
	}
	if f.server != nil {
		f.server.close()
	}
	os.RemoveAll(f.dir)
}

// pids are those of one and, after it, so many others.
func (f *fixtures) pids(others int) []uint32 {
	list := []uint32{f.one.PID}
	for _, p := range f.others[:others] {
		list = append(list, p.PID)
	}
	return list
}

// storm allocates and frees so many times, in so many threads. It returns the
// processor time that these took, which other processes disturb less than the clock.
func storm(p *fixture.Process, threads, pairs int) (ns float64, err error) {
	took, err := p.Do("storm 0 %d %d 0", threads, pairs)
	if err != nil {
		return 0, err
	}
	return strconv.ParseFloat(took, 64)
}

// processorTime of all threads of a process, in nanoseconds: its clock is named by its id.
func processorTime(pid uint32) (int64, error) {
	const scheduled = 2
	var t unix.Timespec
	if err := unix.ClockGettime(int32(^pid<<3|scheduled), &t); err != nil {
		return 0, fmt.Errorf("reading the processor time of %d: %w", pid, err)
	}
	return t.Nano(), nil
}

// target allocates and frees in one of the processes.
func (f *fixtures) target(p *fixture.Process) (target, error) {
	at, err := pointsOf(f.library, ofAllocating)
	return target{p.PID, func(n int) (float64, error) { return storm(p, 1, n) }, at}, err
}

// events compares what one allocation and free cost, three probe hits, at the fixture library.
func (f *fixtures) events(r *results, count, steps int) error {
	t, err := f.target(f.one)
	if err != nil {
		return err
	}
	apart, err := f.target(f.apart)
	if err != nil {
		return err
	}
	client, err := f.target(f.client)
	if err != nil {
		return err
	}
	if r.pairs, err = rounds("fixture, alloc+free", count, shortPieces, steps, []variant{
		{"nothing", nil, t},
		{"bare", bare, t},
		{"records", records, t},
		{"events", events, t},
		{"memtrace", memtrace, t},
		{"memleak", memleak, t},
		{"client", nil, f.server.counting(client, 2)},
		{"bpftrace", bpftrace, t},
		{"elsewhere", func(target) (func() error, error) { return memtraceOf(f.others[0].PID) }, t},
		{"many", func(target) (func() error, error) { return memtraceOf(f.pids(manyOthers)...) }, t},
		{"apart, nothing", nil, apart},
		{"apart", f.everywhere, apart},
	}); err != nil {
		return err
	}
	r.hits["fixture"], err = hitsOf(t)
	return err
}

// everywhere traces all processes of the host, of which apart is none.
func (f *fixtures) everywhere(t target) (func() error, error) {
	tr, err := trace(tracer.Options{})
	if err != nil {
		return nil, err
	}
	s, err := tr.state()
	if err == nil {
		traced := func(pid uint32) bool {
			return slices.ContainsFunc(s.Processes, func(p aggregator.ProcessSnapshot) bool { return p.PID == pid })
		}
		if !traced(f.one.PID) || traced(t.pid) {
			err = fmt.Errorf("%d is to be traced, and %d is not to be: %v, %v", f.one.PID, t.pid, traced(f.one.PID), traced(t.pid))
		}
	}
	if err != nil {
		return nil, errors.Join(err, tr.close())
	}
	return tr.close, nil
}
