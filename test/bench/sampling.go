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
	"tt-memtrace/sampler"
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

// sampledOften samples the target twenty times as often as is the default, as its steps take less than a second.
func sampledOften(t target) (func() error, error) {
	s, err := sample(context.Background(), t.pid)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	sampled := make(chan error, 1)
	go func() {
		for ctx.Err() == nil {
			if err := s.source.Sync(ctx); err != nil && ctx.Err() == nil {
				sampled <- err
				return
			}
			time.Sleep(sampledEvery)
		}
		sampled <- nil
	}()
	return func() error {
		cancel()
		return errors.Join(<-sampled, s.close())
	}, nil
}

const sampledEvery = time.Second / 20

// sampling measures samples a second apart, whatever part of a processor they take.
func (r *results) sampling(ctx context.Context, installed *rig.Runtime, count int) (err error) {
	dir, err := rig.Dir()
	if err != nil {
		return err
	}
	w, err := installed.Start(ctx, rig.Options{Cluster: "t3k", Script: filepath.Join(filepath.Dir(dir), "bench", "holding.py"),
		Args: []string{dir, "t3k", fmt.Sprint(sampledBuffers), fmt.Sprint(sampledPrograms), fmt.Sprint(sampledBytes)}})
	if err != nil {
		return err
	}
	defer w.Close()
	if _, err := w.Await("open", 5*time.Minute); err != nil {
		return err
	}
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
				if reason.Code == aggregator.ReasonBuffersUnread || reason.Code == aggregator.ReasonNotRead {
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
