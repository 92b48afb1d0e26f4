package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"tt-memtrace/aggregator"
	"tt-memtrace/record"
	"tt-memtrace/sampler"
	"tt-memtrace/session"
	"tt-memtrace/tracer"
	"tt-memtrace/tracer/proc"
)

// live is a session with what a command shows of it: notices, the host that it is
// from, and the command that is traced.
type live struct {
	*session.Session
	// tracer, sampler or player, where set, is the source.
	tracer  *tracerSource
	sampler *sampler.Source
	player  *record.Player
	// host is where the events are from.
	host string
	// waiting, where set, says which processes do not use the runtime yet.
	waiting func() []uint32
	// recorder, where set, is one of the sinks.
	recorder atomic.Pointer[record.Recorder]

	noticesMu sync.Mutex
	notices   []string
	pace      pace
	quiet     bool
	// silent: notices are shown by the screen and not written.
	silent bool
	// ofSeveral: others are read at the same time, and their progress is shown together.
	ofSeveral bool
	// prints: standard output gets text while events are read.
	prints bool
	// brief: only the first snapshot is wanted, and no process is waited for.
	brief bool
	// ownOnly: all processes are to be shown, and those of other users may not be seen.
	ownOnly bool
	// needsAll: what is written has each event, so that it stays incomplete when the
	// numbers are corrected.
	needsAll bool

	// failures are for snapshots.
	failures failures

	command []string
	// output, where set, takes what the command writes.
	output *os.File
}

func newLive(command []string, quiet bool) *live {
	return &live{
		Session: session.New(session.Clock{Now: proc.Now, Wall: clock()}),
		command: command, quiet: quiet, host: hostname(),
	}
}

// tracerSource is the tracer as a session.Source, Reconciler and Lagging. Its counters can be
// read while it is closed.
type tracerSource struct {
	*tracer.Tracer
	mu     sync.Mutex
	closed bool
}

var (
	_ session.Reconciler = (*tracerSource)(nil)
	_ session.Lagging    = (*tracerSource)(nil)
)

func (s *tracerSource) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	return s.Tracer.Close()
}

const maxNotices = 100

// notice says something in one line, whatever names a process or a file has.
func (l *live) notice(text string) {
	text = strings.ReplaceAll(printable(text), "\n", "; ")
	l.noticesMu.Lock()
	defer l.noticesMu.Unlock()
	if len(l.notices) == maxNotices {
		l.notices = slices.Delete(l.notices, 0, 1)
	}
	l.notices = append(l.notices, text)
	if l.quiet || l.silent {
		return
	}
	write, omitted := l.pace.admit(time.Now())
	if omitted > 0 {
		standardError.notice(fmt.Sprintf("%d more notices were not written", omitted))
	}
	if write {
		standardError.notice(text)
	}
}

// pace limits how many notices are written: thousands of processes can come and go.
type pace struct {
	began            time.Time
	written, omitted int
}

const paceTime = time.Minute

// admit says whether one more is written now, and how many were not before.
func (p *pace) admit(now time.Time) (write bool, omitted int) {
	if now.Sub(p.began) >= paceTime {
		omitted = p.omitted
		*p = pace{began: now}
	}
	if p.written == maxNotices {
		p.omitted++
		return false, omitted
	}
	p.written++
	return true, omitted
}

// Notices are the newest of what a user should know.
func (l *live) Notices() []string {
	l.noticesMu.Lock()
	defer l.noticesMu.Unlock()
	return append([]string(nil), l.notices...)
}

// run traces until the context ends or the last traced PID ends; with a
// command until that ends, which the end of the context asks it to. The
// command's own failure is an *exec.ExitError.
func (l *live) run(asked context.Context) error {
	ctx, cancel := context.WithCancel(asked)
	if len(l.command) > 0 {
		ctx, cancel = context.WithCancel(context.WithoutCancel(asked))
	}
	defer cancel()
	defer l.progress()()
	var command error
	var waiting sync.WaitGroup
	err := l.Run(ctx, func() {
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
					l.noticeFailure(command)
					stop()
					cancel() // what its end left in the ring is still read
				})
			}
		}
		l.noticeWaiting()
	})
	waiting.Wait()
	err = errors.Join(err, l.Close())
	if err == nil {
		err = command
	}
	if err == nil {
		err = l.verdict()
	}
	return err
}

// reasons lists why numbers are not exact, by codes that match.
func reasons(s *aggregator.Snapshot, match func(aggregator.ReasonCode) bool) (why []string) {
	for r := range s.Why() {
		if !match(r.Code) {
			continue
		}
		text := r.String()
		if r.PID != 0 {
			text = fmt.Sprintf("process %d: %s", r.PID, text)
		}
		why = append(why, text)
	}
	return why
}

// list is the first three of some texts, and how many more there are.
func list(texts []string) string {
	const most = 3
	if n := len(texts) - most; n > 0 {
		texts = append(texts[:most:most], fmt.Sprintf("%d more", n))
	}
	return strings.Join(texts, "; ")
}

// verdict says whether what happened while tracing is all in the numbers at the end,
// and if it is now, but was not for a while, that it is.
func (l *live) verdict() error {
	s := l.Snapshot()
	if lost := l.Lost(); l.needsAll {
		switch n := max(lost.Events, s.Counters.Lost); {
		case n > 0:
			return lossError(fmt.Sprintf("%d events were lost, and are missing", n))
		case lost.Any:
			return lossError("a part of the recording is missing")
		}
	}
	why := reasons(s, aggregator.ReasonCode.Missed)
	if n := s.Counters.ExitedInexact; n > 0 {
		why = append(why, fmt.Sprintf("%d processes lacked events when they exited", n))
	}
	if len(why) > 0 {
		return lossError("the numbers are not exact: " + list(why))
	}
	if n := s.Counters.Lost; n > 0 {
		l.notice(fmt.Sprintf("%d events were lost; the numbers were read from the processes again, and are exact now", n))
	}
	return nil
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

// noticeFailure says on the screen how the command ended that is not seen there.
func (l *live) noticeFailure(command error) {
	var failed *exec.ExitError
	if l.silent && errors.As(command, &failed) {
		l.notice(fmt.Sprintf("the command failed (%v): quit to see what it wrote", failed))
	}
}

// noticeWaiting says which processes do not use the runtime yet. The screen says that itself, for as long as it is so.
func (l *live) noticeWaiting() {
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
