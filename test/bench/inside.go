package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"tt-memtrace/tracer"
)

// hits are the kernel's counts of the probes, for one step.
type hits struct {
	count float64
	// inside the programs, nanoseconds, of all hits; the kernel's counting included.
	inside float64
}

// hitsOf has the kernel count what the probes of tt-memtrace do in a step.
func hitsOf(t target) (h hits, err error) {
	const steps = 5000
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
	threads                              int
	produced, received, lost, stacksLost uint64
	seconds, processor                   float64 // the processor time is that of this process, which reads
	// healed is how long the accounts were not right after it.
	healed time.Duration
}

func (f *fixtures) bursts(r *results) error {
	for _, threads := range []int{1, 2} {
		var b burst
		if err := f.reading(&b, threads, tracer.Options{}, func(b *burst) error {
			const pairs = 2_000_000
			for range pairs / piece {
				if _, err := storm(f.one, threads, piece/threads); err != nil {
					return err
				}
			}
			b.produced = 2 * pairs
			return nil
		}); err != nil {
			return err
		}
		r.reader = append(r.reader, b)
	}
	if err := f.sustained(r); err != nil {
		return err
	}
	if err := f.withStacks(r); err != nil {
		return err
	}
	return f.overload(r)
}

// attaching is what coming and going takes, and what it costs to stay.
type attaching struct {
	load, attach, detach []float64 // ms
	another              []float64 // ms: what one more such process adds to attach
	peer                 []float64 // ms, from bpftrace's start until it traces
	snapshot             []float64 // ms, by a process of its own
	idle                 idling
}

// once attaches to processes and detaches.
func (a *attaching) once(pids ...uint32) error {
	tr, err := trace(tracer.Options{PIDs: pids})
	if err != nil {
		return err
	}
	begin := time.Now()
	if err := tr.close(); err != nil {
		return err
	}
	ms := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
	a.load, a.attach, a.detach = append(a.load, ms(tr.loaded)), append(a.attach, ms(tr.attached)), append(a.detach, ms(time.Since(begin)))
	return nil
}

// attachTo attaches to processes and detaches, so many times.
func attachTo(count int, pids ...uint32) (a attaching, err error) {
	for range count {
		if err := a.once(pids...); err != nil {
			return a, err
		}
	}
	fmt.Fprintf(os.Stderr, "%d processes: load %s, attach %s, detach %s ms\n", len(pids), spreadOf(a.load), spreadOf(a.attach), spreadOf(a.detach))
	err = real(pids, func(command func(args ...string) *exec.Cmd) (err error) {
		if a.snapshot, err = snapshots(count, command); err == nil {
			a.idle, err = stay(pids, command)
		}
		return err
	})
	return a, err
}

// growth is what one process and many take.
type growth struct{ one, many attaching }

func (f *fixtures) growth(r *results, count int) (err error) {
	if r.growth.one, err = attachTo(count, f.pids(0)...); err != nil {
		return err
	}
	r.growth.many, err = attachTo(count, f.pids(manyOthers)...)
	return err
}
