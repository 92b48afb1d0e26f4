package main

import (
	"errors"
	"fmt"
	"os"
	"time"

	"tt-memtrace/bpf"
	"tt-memtrace/tracer"
)

const (
	// sustainedFor is how long one thread produces as fast as it goes.
	sustainedFor = 30 * time.Second
	// stacksRate is how many events a second are produced with the stacks of their allocations, for
	// stacksFor, in pieces.
	stacksRate  = 100_000
	stacksFor   = 10 * time.Second
	stacksPiece = 10 * time.Millisecond
	// smallRing is far too small for what two threads produce.
	smallRing = 64 << 10
)

// piece of a storm, in pairs of an allocation and a free: far shorter than the driver is waited for.
const piece = 500_000

// sustained produces as fast as one thread goes, and reads it. How fast that is with bare uprobes in
// place of ours is measured before and after.
func (f *fixtures) sustained(r *results) error {
	t, err := f.target(f.one)
	if err != nil {
		return err
	}
	rate := func() error {
		detach, err := bare(t)
		if err != nil {
			return err
		}
		begin := time.Now()
		_, err = storm(f.one, 1, piece)
		r.bareRates = append(r.bareRates, 2*piece/time.Since(begin).Seconds())
		return errors.Join(err, detach())
	}
	if err := rate(); err != nil {
		return err
	}
	err = f.reading(&r.sustained, 1, tracer.Options{}, func(b *burst) error {
		for begin := time.Now(); time.Since(begin) < sustainedFor; b.produced += 2 * piece {
			if _, err := storm(f.one, 1, piece); err != nil {
				return err
			}
		}
		return nil
	})
	return errors.Join(err, rate())
}

// withStacks produces at a rate, if this machine can, and reads the stacks of the allocations too.
func (f *fixtures) withStacks(r *results) error {
	const pairs = int(stacksRate * int64(stacksPiece) / int64(time.Second) / 2)
	return f.reading(&r.withStacks, 1, tracer.Options{Stacks: true, RingBytes: stacksRing}, func(b *burst) error {
		begin := time.Now()
		for next := begin; time.Since(begin) < stacksFor; next = next.Add(stacksPiece) {
			time.Sleep(time.Until(next))
			if _, err := storm(f.one, 1, pairs); err != nil {
				return err
			}
			b.produced += 2 * uint64(pairs)
		}
		return nil
	})
}

// overload produces more than a small ring holds, and waits until the accounts
// are right again.
func (f *fixtures) overload(r *results) error {
	const threads, pairs = 2, 500_000
	return f.reading(&r.overload, threads, tracer.Options{RingBytes: smallRing}, func(b *burst) error {
		b.produced = 2 * uint64(threads*pairs)
		_, err := storm(f.one, threads, pairs)
		return err
	})
}

// reading traces what produces events, and compares what came.
func (f *fixtures) reading(b *burst, threads int, o tracer.Options, produce func(*burst) error) (err error) {
	o.PIDs = []uint32{f.one.PID}
	tr, err := trace(o)
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
	if c, err := tr.tracer.Counters(); err == nil {
		b.stacksLost = c.Lost[bpf.MemtraceTtKindTT_STACK]
	}
	// All that was allocated is freed: the accounts are right when they have nothing.
	for !s.Exact() || s.Processes[0].Buffers.Some() {
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
