package main

import (
	"errors"
	"fmt"
	"os"
	"time"

	"tt-memtrace/tracer"
)

// A million events a second for half a minute, in pieces of a hundredth of a second.
const (
	sustainedRate  = 1_000_000
	sustainedFor   = 30 * time.Second
	sustainedPiece = 10 * time.Millisecond
	// smallRing is far too small for what two threads produce.
	smallRing = 64 << 10
)

// sustained produces at a rate, if this machine can, and reads it.
func (f *fixtures) sustained(r *results) error {
	const threads = 2
	const pairs = int(sustainedRate*int64(sustainedPiece)/int64(time.Second)) / 2 / threads
	return f.reading(&r.sustained, threads, 0, func(b *burst) error {
		begin := time.Now()
		for next := begin; time.Since(begin) < sustainedFor; next = next.Add(sustainedPiece) {
			time.Sleep(time.Until(next))
			if _, err := f.one.Do("storm 0 %d %d 0", threads, pairs); err != nil {
				return err
			}
			b.produced += 2 * uint64(threads*pairs)
		}
		return nil
	})
}

// overload produces more than a small ring holds, and waits until the accounts
// are right again.
func (f *fixtures) overload(r *results) error {
	const threads, pairs = 2, 500_000
	return f.reading(&r.overload, threads, smallRing, func(b *burst) error {
		b.produced = 2 * uint64(threads*pairs)
		_, err := storm(f.one, threads, pairs)
		return err
	})
}

// reading traces what produces events, and compares what came.
func (f *fixtures) reading(b *burst, threads int, ring uint32, produce func(*burst) error) (err error) {
	tr, err := trace(tracer.Options{PIDs: []uint32{f.one.PID}, RingBytes: ring})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, tr.close()) }()
	b.threads = threads
	self := uint32(os.Getpid())
	before, err := processorTime(self)
	if err != nil {
		return err
	}
	begin := time.Now()
	if err := produce(b); err != nil {
		return err
	}
	b.seconds = time.Since(begin).Seconds()
	produced := time.Now()
	s, err := tr.state()
	if err != nil {
		return err
	}
	after, err := processorTime(self)
	if err != nil {
		return err
	}
	b.processor = float64(after-before) / 1e9
	b.lost = s.Counters.Lost
	tr.mu.Lock()
	b.received = tr.received
	tr.mu.Unlock()
	if b.received+b.lost != b.produced {
		return fmt.Errorf("%d events were produced, %d received and %d lost", b.produced, b.received, b.lost)
	}
	// All that was allocated is freed: the accounts are right when they have nothing.
	for !s.Exact() || s.Processes[0].Buffers > 0 {
		if time.Since(produced) > patience {
			return fmt.Errorf("the accounts did not become right again: %+v", s.Processes[0])
		}
		time.Sleep(10 * time.Millisecond)
		if s, err = tr.state(); err != nil {
			return err
		}
	}
	b.healed = time.Since(produced)
	fmt.Fprintf(os.Stderr, "reader: %+v\n", *b)
	return nil
}
