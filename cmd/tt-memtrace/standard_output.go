package main

import (
	"context"
	"errors"
	"io"
	"os"
	"sync"
	"time"
)

// untilEnd is how long a write to standard output may take after the context has ended.
const untilEnd = 2 * time.Second

var errUnread = errors.New("nobody reads standard output")

// standardOutput is standard output with writes that end: a write into a full pipe that nobody reads would keep the program from
// ending.
type standardOutput struct {
	file *os.File
	ctx  context.Context

	mu      sync.Mutex
	pending []byte // what the write under way writes
	failed  error
}

func newStandardOutput(ctx context.Context) io.Writer {
	return &standardOutput{file: os.Stdout, ctx: ctx}
}

// Fd returns the file's descriptor, so that callers can find out whether it is a terminal.
func (o *standardOutput) Fd() uintptr { return o.file.Fd() }

func (o *standardOutput) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.failed != nil {
		return 0, o.failed
	}
	o.pending = append(o.pending[:0], p...)
	type result struct {
		n   int
		err error
	}
	written := make(chan result, 1)
	go func() {
		n, err := o.file.Write(o.pending)
		written <- result{n, err}
	}()
	select {
	case r := <-written:
		return r.n, r.err
	case <-o.ctx.Done():
	}
	select {
	case r := <-written:
		return r.n, r.err
	case <-time.After(untilEnd):
		o.failed = errUnread
		return 0, o.failed
	}
}
