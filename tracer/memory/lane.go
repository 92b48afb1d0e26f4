package memory

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"tt-memtrace/tracer/proc"
)

// user is whose processes are read: by one reader, and searched by another one, as
// that takes longer.
type user struct {
	id uint32
	lane
	searches lane
	// files are opened by another one, as that can wait for a disk.
	files lane
	// abandoned is how many readers still wait for a page.
	abandoned atomic.Int32
	// hurry is how long who is in a hurry may wait for this user's processes.
	hurry *proc.Allowance
}

// lane is a reader, which is asked for one thing after the other.
type lane struct {
	of *user
	// free has an element while nobody asks the reader, starts it, or waits for a late answer.
	free chan struct{}
	// more, where not nil, is how long may be waited beyond Patience, and began when it was asked last.
	more  *proc.Allowance
	began time.Time
	// late: somebody waits for an answer that came too late for who asked.
	late   atomic.Bool
	reader *reader
	// shown is the reader, or the last one, for who may only look at it.
	shown atomic.Pointer[reader]
	// ended is the processor time of the readers before this one, and charged how much of all was
	// charged to the processes that it was used for.
	ended, charged time.Duration
	// idle ends the reader when it was not asked for a while.
	idle *time.Timer
	// asking guards for whom the reader is asked now.
	asking   sync.Mutex
	askedFor *state
}

const (
	// maxAbandoned readers may wait for pages of one user's; then no process of that
	// user is read until one of them is back.
	maxAbandoned = 2
	// idleAfter is how long an unused reader is kept.
	idleAfter = time.Minute
)

func (u *user) read(p *Process, b []byte, parts []unix.RemoteIovec) (n int, err error) {
	var refused unix.Errno
	err = u.ask(p, func(r *reader) (err error) {
		n, refused, err = r.read(p.pid, b, parts)
		return err
	}, &p.hung)
	if err == nil && refused != 0 {
		err = refused
	}
	return n, err
}

// ask has the reader do something for a process. One that fails is abandoned, and the process hangs where it
// was too late.
func (l *lane) ask(p *Process, do func(*reader) error, h *hang) error {
	if p.hurried {
		return l.hurriedly(p, do, h)
	}
	<-l.free
	defer l.leave()
	if err := l.begin(p.state); err != nil {
		return err
	}
	err := do(l.reader)
	l.end(p.state, err, h)
	return err
}

func (l *lane) leave() { l.free <- struct{}{} }

// begin has a reader ready to be asked for a process.
func (l *lane) begin(s *state) error {
	if l.reader == nil {
		if l.of.abandoned.Load() >= maxAbandoned {
			return fmt.Errorf("%d reads of processes of user %d wait: %w", maxAbandoned, l.of.id, ErrHung)
		}
		r, err := start()
		if err != nil {
			return fmt.Errorf("starting a process to read with: %w", err)
		}
		l.reader = r
		l.shown.Store(r)
		l.idle = time.AfterFunc(idleAfter, l.stop)
	}
	l.idle.Reset(idleAfter)
	if !l.askFor(s) {
		return ErrInterrupted
	}
	l.reader.patience, l.began = Patience(), time.Now()
	if l.more != nil {
		l.reader.patience += max(0, l.more.Left())
	}
	return nil
}

// end takes in that the reader has answered, or that it failed.
func (l *lane) end(s *state, err error, h *hang) {
	l.asked()
	if l.more != nil {
		l.more.Take(max(0, time.Since(l.began)-Patience()))
	}
	used := max(l.ended+l.reader.processorTime(), l.charged) // of one that died nothing is known
	s.readers.Add(int64(used - l.charged))
	l.charged = used
	if err != nil {
		l.of.abandoned.Add(1)
		l.ended = used
		late := errors.Is(err, errLate)
		if late {
			h.begin()
		}
		l.reader.abandon(func() {
			l.of.abandoned.Add(-1)
			if late {
				h.end()
			}
		})
		l.reader = nil
		l.idle.Stop()
	}
}

// askFor notes for whom the reader is asked next. It is false for one that was interrupted.
func (l *lane) askFor(s *state) bool {
	l.asking.Lock()
	defer l.asking.Unlock()
	if s.interrupted.Load() {
		return false
	}
	l.askedFor = s
	return true
}

func (l *lane) asked() {
	l.asking.Lock()
	defer l.asking.Unlock()
	l.askedFor = nil
}

// state is whether the reader was asked for something, and waits for a page then.
func (l *lane) state() (asked, waits bool) {
	l.asking.Lock()
	asked = l.askedFor != nil
	l.asking.Unlock()
	r := l.shown.Load()
	return asked, asked && r != nil && r.waits()
}

// interrupt has whoever asks the reader for a process wait no longer.
func (l *lane) interrupt(s *state) {
	l.asking.Lock()
	defer l.asking.Unlock()
	if l.askedFor == s {
		l.reader.socket.Close()
	}
}

func (l *lane) stop() {
	<-l.free
	defer l.leave()
	if l.reader != nil {
		l.idle.Stop()
		l.ended += l.reader.processorTime()
		l.reader.close()
		l.reader = nil
	}
}
