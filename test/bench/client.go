package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"tt-memtrace/test/fixture"
)

// recordBytes is the length of a record that the client sends.
const recordBytes = 144

// server is an allocation server that takes records and does nothing with them:
// no real one costs its clients less.
type server struct {
	dir      string
	client   string // what is preloaded into its clients
	listener net.Listener
	received atomic.Uint64 // bytes
}

func startServer() (s *server, err error) {
	s = &server{}
	if s.dir, err = os.MkdirTemp("", "tt-memtrace-bench-"); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			os.RemoveAll(s.dir)
		}
	}()
	if s.client, err = fixture.Client(s.dir); err != nil {
		return nil, err
	}
	if s.listener, err = net.Listen("unix", filepath.Join(s.dir, "socket")); err != nil {
		return nil, err
	}
	go func() {
		for {
			c, err := s.listener.Accept()
			if err != nil {
				return // closed
			}
			go func() {
				defer c.Close()
				io.CopyBuffer(&counter{&s.received}, struct{ io.Reader }{c}, make([]byte, 1<<10*recordBytes))
			}()
		}
	}()
	return s, nil
}

type counter struct{ n *atomic.Uint64 }

func (c *counter) Write(b []byte) (int, error) {
	c.n.Add(uint64(len(b)))
	return len(b), nil
}

// env makes a process that loads a library a client, which sends a record for each
// of so many chips.
func (s *server) env(library string, chips int) []string {
	return []string{"LD_PRELOAD=" + s.client, "BENCH_LIBRARY=" + library, fmt.Sprintf("BENCH_CHIPS=%d", chips),
		"BENCH_SERVER=" + s.listener.Addr().String()}
}

// counting is a target whose records are counted: each step has to send so many.
func (s *server) counting(t target, records int) target {
	run := t.run
	t.run = func(steps int) (float64, error) {
		before := s.received.Load()
		ns, err := run(steps)
		want := uint64(steps * records * recordBytes)
		for begin := time.Now(); err == nil && s.received.Load()-before < want; time.Sleep(time.Millisecond) {
			if time.Since(begin) > patience {
				err = fmt.Errorf("%d steps sent %d bytes to the server, want %d", steps, s.received.Load()-before, want)
			}
		}
		return ns, err
	}
	return t
}

func (s *server) close() error { return errors.Join(s.listener.Close(), os.RemoveAll(s.dir)) }
