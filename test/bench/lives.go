package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"tt-memtrace/internal/memory"
	"tt-memtrace/internal/proc"
	"tt-memtrace/test/fixture"
	"tt-memtrace/test/program"
	"tt-memtrace/tracer"
)

// lives is a storm of short processes, of those that use the library for a moment and of those that do not.
type lives struct {
	count int
	// alone and traced are how long one takes that uses the library, four at a time, ms.
	alone, traced float64
	// processor is what tracing one takes of processors, strangers what it takes where they use no library, and
	// look what a bare look takes, ms.
	processor, strangers, look float64
	// found of them, of which one in four executes a program.
	found uint64
}

func (f *fixtures) storms(r *results) (err error) {
	const count, first = 2000, 200 // the first ones have the library read
	driver, err := fixture.Start(f.driver)
	if err != nil {
		return err
	}
	defer driver.Kill()
	live := func(n int) (ms float64, err error) {
		const piece = 100
		begin := time.Now()
		for range n / piece {
			if _, err := driver.Do("lives %d %s", piece, f.library); err != nil {
				return 0, err
			}
		}
		return float64(time.Since(begin).Microseconds()) / 1000 / float64(n), nil
	}
	l := &r.lives
	l.count = count
	if l.alone, err = live(count); err != nil {
		return err
	}
	if _, err := driver.Do("open %s", f.library); err != nil {
		return err
	}
	if l.look, err = f.bareLooks(driver, count); err != nil {
		return err
	}
	tr, err := trace(tracer.Options{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, tr.close()) }()
	if _, err := live(first); err != nil {
		return err
	}
	exited := func() (n uint64, used time.Duration, err error) {
		s, err := tr.state()
		if err != nil {
			return 0, 0, err
		}
		used, err = tracersTime(driver)
		return s.Counters.Exited, used, err
	}
	foundBefore, usedBefore, err := exited()
	if err != nil {
		return err
	}
	if l.traced, err = live(count); err != nil {
		return err
	}
	found, used, err := exited()
	if err != nil {
		return err
	}
	l.found = found - foundBefore
	l.processor = float64((used - usedBefore).Microseconds()) / 1000 / count
	if l.strangers, err = strangers(driver, count); err != nil {
		return err
	}
	fmt.Fprintf(os.Stderr, "short processes: %.2f ms each alone, %.2f traced, %.3f ms of processors each, a bare look %.3f, of strangers %.3f; %d of %d found\n", l.alone, l.traced, l.processor, l.look, l.strangers, l.found, l.count)
	return nil
}

// toLooks is what tracing a program of a short process takes, to a bare look at one.
func (l *lives) toLooks() float64 { return l.processor * float64(l.count) / float64(l.found) / l.look }

// bareLooks are what the least takes that says of a process whose it is and which library it has where, and reads a device and an
// allocator of it, ms of processors: each file that says so is read once, and memory twice, by another process.
func (f *fixtures) bareLooks(p *fixture.Process, count int) (ms float64, err error) {
	buffer := make([]byte, 64<<10)
	whole := func(path string) error {
		fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return &os.PathError{Op: "open", Path: path, Err: err}
		}
		defer unix.Close(fd)
		for {
			if n, err := unix.Read(fd, buffer); err != nil || n == 0 {
				return err
			}
		}
	}
	folder := "/proc/" + strconv.Itoa(int(p.PID)) + "/"
	files := []string{"maps", "stat", "status", "cgroup", "cmdline", "environ"}
	libraries, err := proc.Loaded(p.PID, func(path string, _ proc.FileID) bool { return path == f.library })
	if err != nil || len(libraries) == 0 {
		return 0, errors.Join(err, fmt.Errorf("process %d does not map %s", p.PID, f.library))
	}
	page := make([]byte, 4096)
	before, err := tracersTime(p)
	if err != nil {
		return 0, err
	}
	for range count {
		for _, name := range files {
			if err := whole(folder + name); err != nil {
				return 0, err
			}
		}
		for range 2 {
			if err := memory.Of(p.PID).ReadAt(page, libraries[0].Base); err != nil {
				return 0, err
			}
		}
	}
	used, err := tracersTime(p)
	return float64((used - before).Microseconds()) / 1000 / float64(count), err
}

// strangers have tt-memtrace see processes that use no library, one after the other: ms of processors for each.
func strangers(driver *fixture.Process, count int) (ms float64, err error) {
	before, err := tracersTime(driver)
	if err != nil {
		return 0, err
	}
	if err := exec.Command("sh", "-c", "for i in $(seq "+strconv.Itoa(count)+"); do /bin/true; done").Run(); err != nil {
		return 0, err
	}
	used, err := tracersTime(driver)
	return float64((used - before).Microseconds()) / 1000 / float64(count), err
}

// tracersTime is what this process and those that read for it had of processors, which
// leaves out a driver.
func tracersTime(driver *fixture.Process) (sum time.Duration, err error) {
	all, err := program.WithChildren(os.Getpid())
	if err != nil {
		return 0, err
	}
	for _, p := range all {
		if p.PID == int(driver.PID) {
			continue
		}
		ns, err := processorTime(uint32(p.PID))
		if err != nil {
			return 0, err
		}
		sum += time.Duration(ns)
	}
	return sum, nil
}

func (r *results) livesPart(p printer) {
	l := r.lives
	p(`
### With processes that come and go

%d processes, four at a time, each of which opens a device, allocates twice and ends, or executes another program that does so. A *bare look*
reads once each what the kernel says of such a process (maps, stat, status, cgroup, cmdline and environ in /proc), and by another process, which
a page that never comes can block, two pages of its memory: no tracer that knows whose a process is and what chips it opened can do with less.
Other processes are as many of /bin/true, one after the other.

| each alone, ms | traced, ms | processor time to trace one, ms | programs found | a bare look, ms | for each program, to a bare look | of other processes, ms |
|---|---|---|---|---|---|---|
| %.2f | %.2f | %.2f | %d | %.2f | %.2f | %.3f |`, l.count, l.alone, l.traced, l.processor, l.found, l.look, l.toLooks(), l.strangers)
}
