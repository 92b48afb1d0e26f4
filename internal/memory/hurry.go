package memory

import (
	"errors"
	"time"

	"tt-memtrace/internal/proc"
)

// The reader of events serves all processes, so it must not wait for any one of them. Most reads take some
// microseconds. A read that waits for a page gets an allowance: it is waited for as long as this user's processes
// have not caused much waiting lately. Then the caller goes on without the answer, and another goroutine receives it.

// ErrLater means that a hurried read did not wait for its answer. The same read may succeed later. If the process
// does not answer at all, it then fails with ErrHung.
var ErrLater = errors.New("its memory does not answer immediately")

const (
	// maxHurry is the longest that hurried callers wait for a user's processes in a row; over time they wait
	// 1/hurryShare of the time.
	maxHurry   = 80 * time.Millisecond
	hurryShare = 10
	// The same for all users together: one person can have many user IDs.
	maxHurryForAll   = 160 * time.Millisecond
	hurryShareForAll = 5
)

// hurryForAll is how long hurried callers may wait for the processes of all users.
var hurryForAll = proc.NewAllowance(maxHurryForAll, hurryShareForAll)

// wait returns how long a caller may wait for the user's processes now.
func (u *user) wait() time.Duration {
	return min(u.hurry.Left(), hurryForAll.Left())
}

func (u *user) waited(d time.Duration) {
	u.hurry.Take(d)
	hurryForAll.Take(d)
}

// hurriedly does what ask does, but waits no longer than allowed.
func (l *lane) hurriedly(p *Process, do func(*reader) error, h *hang) error {
	if !l.enter() {
		return p.later()
	}
	if err := l.begin(p.state); err != nil {
		l.leave()
		if errors.Is(err, ErrHung) {
			return p.later() // other processes of the user hang
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

// later counts a hurried read that came too late.
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
