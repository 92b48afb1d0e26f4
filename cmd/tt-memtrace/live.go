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
	"tt-memtrace/aggregator/exact"
	"tt-memtrace/internal/plural"
	"tt-memtrace/internal/proc"
	"tt-memtrace/internal/record"
	"tt-memtrace/internal/sampler"
	"tt-memtrace/internal/session"
	"tt-memtrace/tracer"
)

// live is a session of a command, with its notices and the traced command.
type live struct {
	*session.Session
	// The source is one of tracer, sampler and player, or another one if all are nil.
	tracer  *tracerSource
	sampler *sampler.Source
	player  *record.Player
	// host is the name of the host where the events happen.
	host string
	// waiting, if not nil, lists the requested processes that do not use the runtime yet.
	waiting func() []uint32
	// recorder is the sink that records, or nil.
	recorder atomic.Pointer[record.Recorder]

	noticesMu sync.Mutex
	notices   []string
	pace      pace
	quiet     bool
	// silent means that the screen shows notices, so they are not written.
	silent bool
	// ofSeveral means that several sessions run, and their progress is shown together.
	ofSeveral bool
	// prints means that the command writes to standard output while events are read.
	prints bool
	// brief means that the command shows the first snapshot only, and waits for no process.
	brief bool
	// ownOnly means that the command shows all processes that it sees, which may lack those of other users.
	ownOnly bool
	// needsAll means that the output has every event, so a loss leaves it incomplete even after the numbers were corrected.
	needsAll bool

	// failures are the newest failed allocations, for snapshots.
	failures failures

	// command is the command to start and trace, or nil.
	command []string
	// output, if not nil, receives what the command writes.
	output *os.File
}

// newLive returns a session without sources, for events of this host.
func newLive(command []string, quiet bool) *live {
	return &live{
		Session: session.New(session.Clock{Now: proc.Now, Wall: clock()}),
		command: command, quiet: quiet, host: hostname(),
	}
}

// tracerSource is the tracer as a session.Source, Reconciler and Lagging. Other goroutines can read its counters while it is being
// closed.
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

// notice tells the user something in one line, and escapes untrusted text in it.
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
		standardError.notice(plural.Of(omitted, "more notice was", "more notices were") + " not written")
	}
	if write {
		standardError.notice(text)
	}
}

// pace limits written notices to maxNotices in paceTime: thousands of processes can come and go.
type pace struct {
	began            time.Time
	written, omitted int
}

const paceTime = time.Minute

// admit reports whether to write one more notice. If that begins another paceTime, it returns how many the last one omitted.
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

// Notices returns the newest notices, at most maxNotices.
func (l *live) Notices() []string {
	l.noticesMu.Lock()
	defer l.noticesMu.Unlock()
	return append([]string(nil), l.notices...)
}

// run runs the session until the context or the source ends and, with a command, until the command ends: if the context ends
// first, it sends the command a signal and waits for it. It then closes the session. If the command failed, the error is an
// *exec.ExitError; if all went well but events were missed, a lossError.
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
					cancel() // the source still reads the records in the ring
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

// reasons lists the reasons why numbers are not exact, of those whose code matches.
func reasons(s *aggregator.Snapshot, match func(exact.ReasonCode) bool) (why []string) {
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

// list joins the first three texts, and says how many more there are.
func list(texts []string) string {
	const most = 3
	if n := len(texts) - most; n > 0 {
		texts = append(texts[:most:most], fmt.Sprintf("%d more", n))
	}
	return strings.Join(texts, "; ")
}

// verdict returns a lossError if the output or the final numbers miss events. If lost events were made up for, it tells the user.
func (l *live) verdict() error {
	s := l.Snapshot()
	if lost := l.Lost(); l.needsAll {
		switch n := max(lost.Events, s.Counters.Lost); {
		case n > 0:
			return lossError(plural.Of(n, "event was lost and is missing", "events were lost and are missing"))
		case lost.Any:
			return lossError("a part of the recording is missing")
		}
	}
	why := reasons(s, exact.ReasonCode.Missed)
	if n := s.Counters.ExitedInexact; n > 0 {
		why = append(why, plural.Of(n, "process lacked events when it exited", "processes lacked events when they exited"))
	}
	if len(why) > 0 {
		return lossError("the numbers are not exact: " + list(why))
	}
	if l.needsAll && len(l.command) > 0 && l.tracer != nil {
		if unseen := beforeTraced(s); len(unseen) > 0 {
			return lossError("events are missing: " + list(unseen))
		}
	}
	if n := s.Counters.Lost; n > 0 {
		l.notice(plural.Of(n, "event was lost", "events were lost") + "; the numbers were read from the processes again, and are exact now")
	}
	return nil
}

// beforeTraced lists the processes that a command started and that held buffers before their library had probes: their
// events are missing. One that ended before that could be read is marked (late), and is not listed: each first process
// of a library begins so, and a short one rarely held any.
func beforeTraced(s *aggregator.Snapshot) (unseen []string) {
	for _, p := range slices.Concat(s.Processes, s.Ended) {
		if n := p.Agreement.Found; n > 0 && !p.Info.RanBefore {
			what := plural.Of(n, "buffer", "buffers")
			unseen = append(unseen, fmt.Sprintf("process %d allocated %s before it was traced", p.PID, what))
		}
	}
	return unseen
}

// end sends a command the signal that this program got.
func end(command *os.Process, cause error) {
	s := os.Signal(unix.SIGTERM)
	var by signalled
	if errors.As(cause, &by) {
		s = by.Signal
	}
	if s == os.Interrupt && foreground() {
		return // the terminal has sent ^C to the command, too
	}
	command.Signal(s)
}

// foreground reports whether the terminal sends its signals to this process and its commands.
func foreground() bool {
	tty, err := os.Open("/dev/tty")
	if err != nil {
		return false
	}
	defer tty.Close()
	group, err := unix.IoctlGetInt(int(tty.Fd()), unix.TIOCGPGRP)
	return err == nil && group == unix.Getpgrp()
}

// noticeFailure tells the user of the screen, which does not show the command's output, that the command failed.
func (l *live) noticeFailure(command error) {
	var failed *exec.ExitError
	if l.silent && errors.As(command, &failed) {
		l.notice(fmt.Sprintf("the command failed (%v): quit to see what it wrote", failed))
	}
}

// noticeWaiting tells the user which processes do not use the runtime yet. The screen shows that itself.
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
