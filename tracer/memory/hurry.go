package memory

import (
	"errors"
	"time"

	"tt-memtrace/tracer/proc"
)

// Who reads the events of all processes must not wait for any of them. Most reads take some
// microseconds. One that waits for a page is waited for as long as its user's processes were not waited
// for much lately; then the reader goes on without it, and another goroutine takes the answer.

// ErrLater says that somebody in a hurry did not wait for an answer. The same read can succeed later; in a
// process that does not answer at all it fails with ErrHung then.
var ErrLater = errors.New("its memory does not answer at once")

const (
	// maxHurry is how long who is in a hurry waits for a user's processes in a row, and
	// hurryShare the part of the time in the long run.
	maxHurry   = 80 * time.Millisecond
	hurryShare = 10
	// Of all users' together it is this: one can have many user ids.
	maxHurryForAll   = 160 * time.Millisecond
	hurryShareForAll = 5
)

// hurryForAll is how long who is in a hurry may wait for the processes of all users.
var hurryForAll = proc.NewAllowance(maxHurryForAll, hurryShareForAll)

// wait is how long may be waited for a user's processes.
func (u *user) wait() time.Duration {
	return min(u.hurry.Left(), hurryForAll.Left())
}

func (u *user) waited(d time.Duration) {
	u.hurry.Take(d)
	hurryForAll.Take(d)
}

// hurriedly is ask for who waits no longer than allowed.
func (l *lane) hurriedly(p *Process, do func(*reader) error, h *hang) error {
	if !l.enter() {
		return p.later()
	}
	if err := l.begin(p.state); err != nil {
		l.leave()
		if errors.Is(err, ErrHung) {
			return p.later() // it is others of the user who hang
		}
		return err
	}
	may := l.of.wait()
	if may <= 0 {
		l.asked()
		l.leave()
		return p.later()
	}
	l.reader.hurry, l.reader.waited = may, 0
	err := do(l.reader)
	waited := l.reader.waited
	l.of.waited(waited)
	if !errors.Is(err, errLate) {
		l.reader.hurry = unhurried
		l.end(p.state, err, h)
		l.leave()
		return err
	}
	l.late.Store(true)
	left := l.reader.patience - waited
	go func() {
		err := l.reader.settle(left)
		l.end(p.state, err, h)
		l.late.Store(false)
		l.leave()
	}()
	return p.later()
}

// later notes that a read for who is in a hurry was too late.
func (s *state) later() error {
	s.late.Add(1)
	return ErrLater
}

// enter waits until the reader is free, but no longer than allowed.
func (l *lane) enter() bool {
	select {
	case <-l.free:
		return true
	default:
	}
	if l.late.Load() {
		return false
	}
	timer := time.NewTimer(lookInHurry)
	defer timer.Stop()
	for began := time.Now(); l.of.wait() > 0 && time.Since(began) < maxStarved*maxHurry; timer.Reset(lookInHurry) {
		select {
		case <-l.free:
			return true
		case <-timer.C:
		}
		if r := l.shown.Load(); r != nil && r.waits() {
			l.of.waited(lookInHurry)
		}
	}
	return false
}
