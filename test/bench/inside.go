package main

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"tt-memtrace/tracer"
)

// hits are what the kernel counts of the probes, for one step.
type hits struct {
	count float64
	// inside the programs, nanoseconds, of all hits; the kernel's counting included.
	inside float64
}

// hitsOf has the kernel count what the probes of tt-memtrace do in a step.
func hitsOf(t target, steps int) (h hits, err error) {
	stats, err := ebpf.EnableStats(unix.BPF_STATS_RUN_TIME)
	if err != nil {
		return h, fmt.Errorf("counting probe hits: %w", err)
	}
	defer stats.Close()
	tr, err := trace(tracer.Options{PIDs: []uint32{t.pid}})
	if err != nil {
		return h, err
	}
	defer func() { err = errors.Join(err, tr.close()) }()
	if _, err := t.run(steps); err != nil {
		return h, err
	}
	before, err := programStats()
	if err != nil {
		return h, err
	}
	if _, err := t.run(steps); err != nil {
		return h, err
	}
	after, err := programStats()
	if err != nil {
		return h, err
	}
	for id, a := range after {
		b := before[id]
		if n := a.RunCount - b.RunCount; n > 0 {
			h.count += float64(n) / float64(steps)
			h.inside += float64(a.Runtime-b.Runtime) / float64(steps)
			fmt.Fprintf(os.Stderr, "%40s %7.2f hits a step, %4.0f ns in each\n", a.name, float64(n)/float64(steps), float64(a.Runtime-b.Runtime)/float64(n))
		}
	}
	return h, nil
}

type programStat struct {
	name string
	*ebpf.ProgramStats
}

// programStats are those of every uprobe's program.
func programStats() (map[ebpf.ProgramID]programStat, error) {
	m := map[ebpf.ProgramID]programStat{}
	for id, err := ebpf.ProgramGetNextID(0); ; id, err = ebpf.ProgramGetNextID(id) {
		if errors.Is(err, os.ErrNotExist) {
			return m, nil
		}
		if err != nil {
			return nil, err
		}
		p, err := ebpf.NewProgramFromID(id)
		if errors.Is(err, os.ErrNotExist) {
			continue // it was unloaded just now
		}
		if err != nil {
			return nil, err
		}
		info, err := p.Info()
		if err == nil && info.Type == ebpf.Kprobe {
			var s *ebpf.ProgramStats
			if s, err = p.Stats(); err == nil {
				m[id] = programStat{info.Name, s}
			}
		}
		p.Close()
		if err != nil {
			return nil, err
		}
	}
}

// burst is a storm of events that is read.
type burst struct {
	threads            int
	produced, lost     uint64
	seconds, processor float64 // the processor time is that of this process, which reads
}

func (f *fixtures) bursts(r *results) error {
	for _, threads := range []int{1, 2} {
		b, err := f.burst(threads, 2_000_000/threads)
		if err != nil {
			return err
		}
		fmt.Fprintf(os.Stderr, "reader: %+v\n", b)
		r.reader = append(r.reader, b)
	}
	return nil
}

func (f *fixtures) burst(threads, pairs int) (b burst, err error) {
	tr, err := trace(tracer.Options{PIDs: []uint32{f.one.PID}})
	if err != nil {
		return b, err
	}
	defer func() { err = errors.Join(err, tr.close()) }()
	self := uint32(os.Getpid())
	before, err := processorTime(self)
	if err != nil {
		return b, err
	}
	begin := time.Now()
	for produced := 0; produced < pairs; {
		// In pieces, each far shorter than the driver is waited for.
		n := min(pairs-produced, 500_000)
		if _, err := storm(f.one, threads, n); err != nil {
			return b, err
		}
		produced += n
	}
	b.seconds = time.Since(begin).Seconds()
	s, err := tr.state()
	if err != nil {
		return b, err
	}
	after, err := processorTime(self)
	b.threads, b.produced, b.lost = threads, 2*uint64(threads*pairs), s.Counters.Lost
	b.processor = float64(after-before) / 1e9
	return b, err
}

// attaching is what coming and going takes, and what it costs to stay.
type attaching struct {
	load, attach, detach []float64 // ms
	idle                 float64   // percent of a core
	resident, files      float64   // MB, and how much of it are pages of files and of the ring
}

func (r *results) attaching(pid uint32, count int) error {
	a := &r.attach
	for range count {
		tr, err := trace(tracer.Options{PIDs: []uint32{pid}})
		if err != nil {
			return err
		}
		begin := time.Now()
		if err := tr.close(); err != nil {
			return err
		}
		ms := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
		a.load, a.attach, a.detach = append(a.load, ms(tr.loaded)), append(a.attach, ms(tr.attached)), append(a.detach, ms(time.Since(begin)))
	}
	fmt.Fprintf(os.Stderr, "load %s, attach %s, detach %s ms\n", spreadOf(a.load), spreadOf(a.attach), spreadOf(a.detach))
	return a.stay(pid)
}
