package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"tt-memtrace/aggregator"
	"tt-memtrace/tracer"
)

// source yields events until its context ends or there are no more. Ready is
// called when it has begun to listen; a batch is valid during the call.
type source interface {
	Run(ctx context.Context, ready func(), sink func([]aggregator.Event)) error
	Close() error
}

// sink is told of what happens. What is nil is not called. All is called under
// the lock of the accounts, in the order of events, and must not block; close is
// called when tracing is over.
type sink struct {
	// events are told before they are booked, changes as they are, and batch
	// when all of a batch are.
	events func([]aggregator.Event)
	change func(aggregator.Change)
	cb     func(aggregator.CBChange)
	kernel func(aggregator.KernelChange)
	refuse func(*aggregator.Event)
	batch  func()
	close  func() error
}

// live is a running source, its accounts, and where they go.
type live struct {
	mu       sync.Mutex
	accounts *aggregator.Aggregator
	source   source
	// now is the present by the clock of the events, wall turns that clock into
	// the time of day, and host is where they are from.
	now  func() uint64
	wall func(uint64) time.Time
	host string
	// recorded: the source ends by itself. traced is what was then, in the recorder's words.
	recorded bool
	traced   string
	// waiting, where set, says which processes do not use the runtime yet.
	waiting func() []uint32
	sinks   []sink
	// lacks is what the source cannot tell of any process.
	lacks []string

	noticesMu sync.Mutex
	notices   []string
	quiet     bool
	// silent: notices are shown by the screen and not written.
	silent bool
	// brief: the first snapshot is all that is wanted, nothing is waited for.
	brief bool

	ready   chan struct{}
	command []string
	// output, where set, takes what the command writes.
	output *os.File
	// ended is closed when tracing is over.
	ended chan struct{}
	err   error
}

func newLive(command []string, quiet bool) *live {
	return &live{
		accounts: aggregator.New(), ready: make(chan struct{}), ended: make(chan struct{}),
		command: command, quiet: quiet, now: tracer.Now, wall: clock(), host: hostname(),
	}
}

// add has a sink told of what happens. It must not run beside run.
func (l *live) add(s sink) {
	l.sinks = append(l.sinks, s)
	l.accounts.OnChange = each(l.accounts.OnChange, s.change)
	l.accounts.OnCBChange = each(l.accounts.OnCBChange, s.cb)
	l.accounts.OnKernelChange = each(l.accounts.OnKernelChange, s.kernel)
	l.accounts.OnRefused = each(l.accounts.OnRefused, s.refuse)
}

// each calls both, where there are both.
func each[T any](first, second func(T)) func(T) {
	switch {
	case first == nil:
		return second
	case second == nil:
		return first
	}
	return func(v T) { first(v); second(v) }
}

const maxNotices = 100

func (l *live) notice(text string) {
	text = printable(text)
	l.noticesMu.Lock()
	defer l.noticesMu.Unlock()
	if len(l.notices) < maxNotices {
		l.notices = append(l.notices, text)
	}
	if !l.quiet && !l.silent {
		fmt.Fprintln(os.Stderr, "tt-memtrace: "+text)
	}
}

// Notices are the newest of what a user should know.
func (l *live) Notices() []string {
	l.noticesMu.Lock()
	defer l.noticesMu.Unlock()
	return append([]string(nil), l.notices...)
}

// Snapshot is the state of the accounts now.
func (l *live) Snapshot() *aggregator.Snapshot {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.accounts.Snapshot()
	s.Lacks = l.lacks
	select {
	case <-l.ended:
	default:
		// The accounts have no clock: between events, time passes all the same.
		s.Time = max(s.Time, l.now())
	}
	return s
}

// Buffers are the live buffers of a process, oldest first.
func (l *live) Buffers(pid uint32) []aggregator.BufferSnapshot {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.accounts.Buffers(pid)
}

// Programs are the programs of a process, oldest first.
func (l *live) Programs(pid uint32) []aggregator.ProgramSnapshot {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.accounts.Programs(pid)
}

// run traces until the context ends or the last traced PID ends; with a
// command until that ends, which the end of the context asks it to. The
// command's own failure is an *exec.ExitError.
func (l *live) run(asked context.Context) error {
	defer close(l.ended)
	ctx, cancel := context.WithCancel(asked)
	if len(l.command) > 0 {
		ctx, cancel = context.WithCancel(context.WithoutCancel(asked))
	}
	defer cancel()
	var command error
	var waiting sync.WaitGroup
	ready := func() {
		if len(l.command) > 0 {
			c := exec.Command(l.command[0], l.command[1:]...)
			c.Stdin, c.Stdout, c.Stderr = os.Stdin, os.Stdout, os.Stderr
			if l.output != nil {
				c.Stdin, c.Stdout, c.Stderr = nil, l.output, l.output
			}
			if command = c.Start(); command != nil {
				cancel()
			} else {
				stop := context.AfterFunc(asked, func() { end(c.Process, context.Cause(asked)) })
				waiting.Go(func() {
					command = c.Wait()
					stop()
					cancel() // what its end left in the ring is still read
				})
			}
		}
		l.tellWaiting()
		close(l.ready)
	}
	err := l.source.Run(ctx, ready, func(events []aggregator.Event) {
		l.mu.Lock()
		defer l.mu.Unlock()
		for _, s := range l.sinks {
			if s.events != nil {
				s.events(events)
			}
		}
		for i := range events {
			l.accounts.Apply(&events[i])
		}
		for _, s := range l.sinks {
			if s.batch != nil {
				s.batch()
			}
		}
	})
	waiting.Wait()
	err = errors.Join(err, l.source.Close())
	for _, s := range l.sinks {
		if s.close != nil {
			err = errors.Join(err, s.close())
		}
	}
	if err == nil {
		err = command
	}
	if err == nil && l.Snapshot().Counters.Lost > 0 {
		err = errLost
	}
	l.err = err
	return err
}

// end asks a command to end as this program was asked to.
func end(command *os.Process, cause error) {
	s := os.Signal(unix.SIGTERM)
	var by signalled
	if errors.As(cause, &by) {
		s = by.Signal
	}
	if s == os.Interrupt && foreground() {
		return // the terminal's ^C has reached it too
	}
	command.Signal(s)
}

// foreground: the terminal's signals go to this process and its commands.
func foreground() bool {
	tty, err := os.Open("/dev/tty")
	if err != nil {
		return false
	}
	defer tty.Close()
	group, err := unix.IoctlGetInt(int(tty.Fd()), unix.TIOCGPGRP)
	return err == nil && group == unix.Getpgrp()
}

// tellWaiting says which processes do not use the runtime yet. On the screen that is plain to see.
func (l *live) tellWaiting() {
	if l.silent || l.waiting == nil {
		return
	}
	text := "process %d does not use the runtime yet: waiting"
	if l.brief {
		text = "process %d does not use the runtime yet"
	}
	for _, pid := range l.waiting() {
		l.notice(fmt.Sprintf(text, pid))
	}
}
