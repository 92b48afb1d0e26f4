package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/prometheus/procfs"

	"tt-memtrace/test/rig"
	"tt-memtrace/tracer"
)

// resident is what attaching to one process takes while its host memory grows.
type resident struct {
	what string
	// size is its resident memory, bytes.
	size uint64
	// attach is what attaching takes, and all all that passes until it is detached again, ms.
	attach, all []float64
}

// largeProcess attaches to a process with the real runtime that holds more and more.
func (r *results) largeProcess(ctx context.Context, installed *rig.Runtime, count int) (err error) {
	w, err := installed.Start(ctx, rig.Options{Cluster: "t3k", Script: rig.Workload, Args: []string{"--steps", "200", "--rest-every", "100"}})
	if err != nil {
		return err
	}
	defer w.Close()
	if _, err := w.Rest(2 * time.Minute); err != nil {
		return err
	}
	const GB = 1_000_000_000
	for _, step := range []struct {
		what, command string
	}{
		{"nothing more", ""},
		{"arrays of 1 GB in total", fmt.Sprint("arrays ", GB)},
		{"of 3 GB", fmt.Sprint("arrays ", 2*GB)},
		{"of 6 GB", fmt.Sprint("arrays ", 3*GB)},
		{"and 14 TiB of address space", fmt.Sprint("reserve ", 14<<40)},
	} {
		if step.command != "" {
			if err := w.Send(step.command); err != nil {
				return err
			}
			if _, err := w.Rest(2 * time.Minute); err != nil {
				return err
			}
		}
		m, err := attachAndDetach(w.PID(), step.what, max(3, count))
		if err != nil {
			return err
		}
		r.resident = append(r.resident, m)
	}
	return errors.Join(w.Send("quit"), w.Wait(time.Minute))
}

// attachAndDetach attaches to a process and detaches from it again.
func attachAndDetach(pid int, what string, count int) (m resident, err error) {
	m.what = what
	if m.size, err = residentBytes(pid); err != nil {
		return m, err
	}
	for range count {
		begin := time.Now()
		tr, err := trace(tracer.Options{PIDs: []uint32{uint32(pid)}})
		if err != nil {
			return m, err
		}
		m.attach = append(m.attach, float64(tr.attached.Microseconds())/1000)
		if err := tr.close(); err != nil {
			return m, err
		}
		m.all = append(m.all, float64(time.Since(begin).Microseconds())/1000)
	}
	fmt.Fprintf(os.Stderr, "%30s: %5.2f GB resident, attach %s ms, all %s ms\n", m.what, float64(m.size)/1e9, spreadOf(m.attach), spreadOf(m.all))
	return m, nil
}

// holdingProcesses attaches to processes with the real runtime that hold more and more buffers and programs.
func (r *results) holdingProcesses(ctx context.Context, installed *rig.Runtime, count int) error {
	for _, c := range []struct{ buffers, operations int }{{100, 1}, {10_000, 1}, {100, 100}, {10_000, 300}} {
		w, err := startHolding(ctx, installed, c.buffers, c.operations, 0)
		if err != nil {
			return err
		}
		m, err := attachAndDetach(w.PID(), fmt.Sprintf("%d buffers, %d operations", c.buffers, c.operations), max(3, count))
		err = errors.Join(err, w.Send("quit"), w.Wait(time.Minute))
		w.Close() // removes what it leaves in /dev/shm
		if err != nil {
			return err
		}
		r.holding = append(r.holding, m)
	}
	return nil
}

func (r *results) holdingPart(p printer) {
	p(`
### With what a process holds

At a process with the real runtime on t3k that keeps programs of as many operations, each of which has a program for each of the eight
chips, with two kernels and a circular buffer.

| it holds | attach, and read what is held, ms | load, attach and detach, ms |
|---|---|---|`)
	for _, m := range r.holding {
		p("| %s | %s | %s |", m.what, spreadOf(m.attach), spreadOf(m.all))
	}
}

func (r *results) residentPart(p printer) {
	p(`
### With the size of the process

At a process with the real runtime on t3k that holds arrays of 1 kB to 100 MB, a seventh of them by bytes below 100 kB, and then an
address space as an address sanitizer's shadow takes it, of which a page in each TiB is used.

| it holds | resident memory, GB | attach, and read what is held, ms | load, attach and detach, ms | to the first row |
|---|---|---|---|---|`)
	first := spreadOf(r.resident[0].all).median
	for _, m := range r.resident {
		p("| %s | %.2f | %s | %s | %.2f |", m.what, float64(m.size)/1e9, spreadOf(m.attach), spreadOf(m.all), spreadOf(m.all).median/first)
	}
}

func residentBytes(pid int) (uint64, error) {
	p, err := procfs.NewProc(pid)
	if err != nil {
		return 0, err
	}
	s, err := p.NewStatus()
	return s.VmRSS, err
}
