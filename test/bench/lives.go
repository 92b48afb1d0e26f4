package main

import (
	"errors"
	"fmt"
	"os"
	"time"

	"tt-memtrace/test/fixture"
	"tt-memtrace/test/program"
	"tt-memtrace/tracer"
)

// lives is a storm of short processes, each of which uses the library for a moment.
type lives struct {
	count int
	// alone and traced are how long one takes, four at a time, ms.
	alone, traced float64
	// processor is what tracing one takes of processors, ms.
	processor float64
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
	fmt.Fprintf(os.Stderr, "short processes: %.2f ms each alone, %.2f traced, %.3f ms of processors each; %d of %d found\n", l.alone, l.traced, l.processor, l.found, l.count)
	return nil
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

%d processes, four at a time, each of which opens a device, allocates twice and ends, or executes another program that does so.

| each alone, ms | traced, ms | processor time to trace one, ms | found |
|---|---|---|---|
| %.2f | %.2f | %.2f | %d |`, l.count, l.alone, l.traced, l.processor, l.found)
}
