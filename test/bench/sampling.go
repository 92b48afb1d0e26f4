package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"tt-memtrace/aggregator"
	"tt-memtrace/aggregator/exact"
	"tt-memtrace/internal/sampler"
	"tt-memtrace/test/rig"
)

// sampled is what samples of a process take that changes so many buffers a second.
type sampled struct {
	rate int
	// look is the processor time of one sample with the accounts, ms; failed are those that could not be read.
	look   []float64
	failed int
}

// The process that is sampled.
const (
	sampledBuffers  = 10_000
	sampledPrograms = 100
	sampledBytes    = 6_000_000_000
)

// sampling is a sampler with its accounts.
type sampling struct {
	source *sampler.Source
	cancel func()
	done   chan error

	mu       sync.Mutex
	accounts *aggregator.Aggregator
}

// sample samples a process.
func sample(ctx context.Context, pid uint32) (*sampling, error) {
	of, err := sampler.New(sampler.Options{PIDs: []uint32{pid}})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	s := &sampling{source: of, cancel: cancel, done: make(chan error, 1), accounts: aggregator.New()}
	ready := make(chan struct{})
	go func() {
		s.done <- of.Run(ctx, func() { close(ready) }, func(events []aggregator.Event) {
			s.mu.Lock()
			defer s.mu.Unlock()
			for i := range events {
				s.accounts.Apply(&events[i])
			}
		})
	}()
	<-ready
	return s, nil
}

func (s *sampling) close() error {
	s.cancel()
	return errors.Join(<-s.done, s.source.Close())
}

// beside are the steps that are timed while their process is sampled.
var beside = []struct{ cluster, step, name string }{
	{"n150", "allocate", "allocate+free"},
	{"t3k", "allocate", "allocate+free"},
	{"t3k", "launch", "cached launch"},
}

// besideFor is how long they are timed in a round: for some samples that are a second apart.
const besideFor = 3 * time.Second

// besides compares steps of the real runtime alone and while they are sampled.
func (r *results) besides(ctx context.Context, installed *rig.Runtime, count int) error {
	for _, b := range beside {
		p, err := startSteps(ctx, installed, b.cluster, untracked)
		if err != nil {
			return err
		}
		defer p.run.Close()
		t, err := p.target(b.step, nil)
		if err != nil {
			return err
		}
		const some = 2000
		ns, err := t.run(some)
		if err != nil {
			return err
		}
		each := int(some * float64(besideFor) / ns)
		s, err := rounds(b.cluster+", "+b.step+", sampled", count, 1, each, []variant{
			{"nothing", nil, t},
			{"sampled", sampledEvery(time.Second, each/3), t},
			{"often", sampledEvery(oftenInterval, each/3), t},
		})
		if err != nil {
			return err
		}
		r.beside = append(r.beside, s)
	}
	return nil
}

const oftenInterval = time.Second / 20

// searches are more than a sampler may make at the same time.
const searches = 10

// sampledEvery samples the target at an interval, after the searches of its memory that a sampler makes one after the
// other when it begins: it makes them in so many steps of the target.
func sampledEvery(interval time.Duration, steps int) func(target) (func() error, error) {
	return func(t target) (func() error, error) {
		s, err := sample(context.Background(), t.pid)
		if err != nil {
			return nil, err
		}
		ctx, cancel := context.WithCancel(context.Background())
		began := make(chan error, 1)
		go func() {
			_, err := t.run(steps)
			began <- err
		}()
		for range searches {
			err = errors.Join(err, s.source.Sync(ctx))
		}
		err = errors.Join(err, <-began)
		sampled := make(chan error, 1)
		go func() {
			tick := time.NewTicker(interval)
			defer tick.Stop()
			for {
				select {
				case <-ctx.Done():
					sampled <- nil
					return
				case <-tick.C:
				}
				if err := s.source.Sync(ctx); err != nil && ctx.Err() == nil {
					sampled <- err
					return
				}
			}
		}()
		return func() error {
			cancel()
			return errors.Join(<-sampled, s.close())
		}, err
	}
}

func (r *results) besidePart(p printer) {
	p(`
### With --sample

Such steps for %d seconds in each round, alone, while the process is sampled once a second, as by default, and every %d ms. A sample is
rare, so all of them count, not the fastest: with whoever else is on the core they take longer than above.

| | alone | spread of the rounds alone | added by a sample a second | added by one every %[2]d ms |
|---|---|---|---|---|`, int(besideFor.Seconds()), oftenInterval.Milliseconds())
	for i, s := range r.beside {
		alone := spreadOf(s["nothing"])
		p("| %s, %s | %s | %.2f µs | %s | %s |", beside[i].cluster, beside[i].name, microseconds(s["nothing"]), (alone.high-alone.low)/1000,
			microseconds(s.added("sampled", "nothing")), microseconds(s.added("often", "nothing")))
	}
}

// startHolding starts a process with the real runtime on t3k that holds so much.
func startHolding(ctx context.Context, installed *rig.Runtime, buffers, operations, bytes int) (*rig.Run, error) {
	dir, err := rig.Dir()
	if err != nil {
		return nil, err
	}
	w, err := installed.Start(ctx, rig.Options{Cluster: "t3k", Script: filepath.Join(filepath.Dir(dir), "bench", "holding.py"),
		Args: []string{dir, "t3k", fmt.Sprint(buffers), fmt.Sprint(operations), fmt.Sprint(bytes)}})
	if err != nil {
		return nil, err
	}
	if _, err := w.Await("open", 5*time.Minute); err != nil {
		w.Close()
		return nil, err
	}
	return w, nil
}

// sampling measures samples a second apart, whatever part of a processor they take.
func (r *results) sampling(ctx context.Context, installed *rig.Runtime, count int) (err error) {
	w, err := startHolding(ctx, installed, sampledBuffers, sampledPrograms, sampledBytes)
	if err != nil {
		return err
	}
	defer w.Close()
	s, err := sample(ctx, uint32(w.PID()))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	for _, rate := range []int{0, 100, 300} {
		if err := w.Send(fmt.Sprint("churn ", rate)); err != nil {
			return err
		}
		if _, err := w.Await("done", patience); err != nil {
			return err
		}
		m := sampled{rate: rate}
		for i := range 2 + max(10, count) {
			time.Sleep(time.Second)
			before, err := ownTime()
			if err != nil {
				return err
			}
			if err := s.source.Sync(ctx); err != nil {
				return err
			}
			after, err := ownTime()
			if err != nil {
				return err
			}
			if i < 2 {
				continue // what it had before the rate changed
			}
			m.look = append(m.look, float64((after-before).Microseconds())/1000)
			s.mu.Lock()
			for _, reason := range s.accounts.Snapshot().Reasons {
				if reason.Code == exact.ReasonBuffersUnread || reason.Code == exact.ReasonScanFailed {
					m.failed++
				}
			}
			s.mu.Unlock()
		}
		fmt.Fprintf(os.Stderr, "%d buffers, %d changed a second: a sample takes %s ms, %d failed\n", sampledBuffers, rate, spreadOf(m.look), m.failed)
		r.sampled = append(r.sampled, m)
	}
	return errors.Join(w.Send("quit"), w.Wait(time.Minute))
}

// ownTime is what this process used so far.
func ownTime() (time.Duration, error) {
	var t unix.Timespec
	err := unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &t)
	return time.Duration(t.Nano()), err
}

func (r *results) samplingPart(p printer) {
	p(`
### Sampling

What a sample takes of a processor, with the accounts, of a process with the real runtime on t3k with %d buffers, %d programs and
%d GB of arrays, which frees and allocates so many buffers a second.

| changed a second | a sample, ms | failed, of %d |
|---|---|---|`, sampledBuffers, sampledPrograms, int(sampledBytes/1e9), len(r.sampled[0].look))
	for _, m := range r.sampled {
		p("| %d | %s | %d |", m.rate, spreadOf(m.look), m.failed)
	}
}
