package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"tt-memtrace/aggregator"
	"tt-memtrace/tracer"
)

// targets are the flags that say what to trace.
type targets struct {
	pids      []uint
	libraries []string
	ring      uint32
	quiet     bool
}

func (t *targets) flags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.UintSliceVarP(&t.pids, "pid", "p", nil, "trace this process only (repeatable)")
	f.StringSliceVar(&t.libraries, "lib", nil, "a file that holds the runtime's code under another name (repeatable)")
	f.Uint32Var(&t.ring, "ring-bytes", 16<<20, "size of the event buffer in bytes, a power of two")
	f.BoolVarP(&t.quiet, "quiet", "q", false, "no notices on standard error")
	_ = cmd.RegisterFlagCompletionFunc("pid", completePIDs)
	_ = cmd.MarkFlagFilename("lib", "so")
}

// completePIDs offers the processes that map the runtime.
func completePIDs(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	var list []string
	for pid, command := range tracer.Users() {
		list = append(list, strconv.FormatUint(uint64(pid), 10)+"\t"+command)
	}
	return list, cobra.ShellCompDirectiveNoFileComp
}

func (t *targets) check(command []string) error {
	if len(t.pids) > 0 && len(command) > 0 {
		return fmt.Errorf("%w: -p and -- CMD exclude each other", errUsage)
	}
	if t.ring < 4096 || t.ring&(t.ring-1) != 0 {
		return fmt.Errorf("%w: --ring-bytes %d is not a power of two of at least 4096", errUsage, t.ring)
	}
	if len(command) > 0 {
		if _, err := exec.LookPath(command[0]); err != nil {
			return fmt.Errorf("starting %s: %w", command[0], err)
		}
	}
	return nil
}

// live is a running trace and its accounts.
type live struct {
	mu       sync.Mutex
	accounts *aggregator.Aggregator
	tracer   *tracer.Tracer
	// batch, where set, is called after each batch was applied, under the lock.
	batch func()

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

// start loads the tracer for the targets. Nothing is attached before run.
func (t *targets) start(command []string) (*live, error) {
	if err := t.check(command); err != nil {
		return nil, err
	}
	if err := tracer.CheckRights(); err != nil {
		return nil, err
	}
	l := &live{
		accounts: aggregator.New(), ready: make(chan struct{}), ended: make(chan struct{}),
		command: command, quiet: t.quiet,
	}
	o := tracer.Options{Libraries: t.libraries, RingBytes: t.ring, Notice: l.notice}
	var err error
	if o.PIDs, err = checkPIDs(t.pids); err != nil {
		return nil, err
	}
	if len(command) > 0 {
		o.Follow = uint32(os.Getpid())
	}
	l.tracer, err = tracer.New(o)
	if err != nil {
		return nil, err
	}
	return l, nil
}

// checkPIDs fails unless all the processes are there and may be traced.
func checkPIDs(pids []uint) ([]uint32, error) {
	var list []uint32
	for _, pid := range pids {
		if pid > math.MaxInt32 {
			return nil, fmt.Errorf("tracing PID %d: no such process", pid)
		}
		if err := tracer.CheckPID(uint32(pid)); err != nil {
			return nil, err
		}
		list = append(list, uint32(pid))
	}
	return list, nil
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
	select {
	case <-l.ended:
	default:
		// The accounts have no clock: between events, time passes all the same.
		s.Time = max(s.Time, tracer.Now())
	}
	return s
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
	err := l.tracer.Run(ctx, ready, func(events []aggregator.Event) {
		l.mu.Lock()
		defer l.mu.Unlock()
		for i := range events {
			l.accounts.Apply(&events[i])
		}
		if l.batch != nil {
			l.batch()
		}
	})
	waiting.Wait()
	err = errors.Join(err, l.tracer.Close())
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
	if l.silent {
		return
	}
	text := "process %d does not use the runtime yet: waiting"
	if l.brief {
		text = "process %d does not use the runtime yet"
	}
	for _, pid := range l.tracer.Waiting() {
		l.notice(fmt.Sprintf(text, pid))
	}
}

// clock turns the kernel's monotonic time into the time of day.
func clock() func(uint64) time.Time {
	var ts unix.Timespec
	now := time.Now()
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		return func(uint64) time.Time { return time.Time{} }
	}
	zero := now.Add(-time.Duration(ts.Nano())).Round(0)
	return func(t uint64) time.Time { return zero.Add(time.Duration(t)) }
}

func hostname() string {
	h, err := os.Hostname()
	if err != nil {
		return "localhost"
	}
	return h
}

// stdout is buffered; who uses it flushes it after each batch.
func stdout() *bufio.Writer { return bufio.NewWriterSize(os.Stdout, 64<<10) }
