package memory

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"tt-memtrace/internal/proc"
)

// user has the readers for the processes of one user: one reads memory, one searches it (which takes longer), and one
// opens files.
type user struct {
	id uint32
	lane
	searches lane
	// files is apart, because opening a file can wait for a disk.
	files lane
	// abandoned counts abandoned readers that still wait for a page.
	abandoned atomic.Int32
}

// lane is one reader, which handles one request at a time.
type lane struct {
	of *user
	// free has an element while the reader is not in use: nobody asks it or starts it.
	free chan struct{}
	// more, if not nil, is how long requests may wait beyond Patience. began is when the last request began.
	more   *proc.Allowance
	began  time.Time
	reader *reader
	// shown is the current or last reader, for callers that do not hold free and may only look at it.
	shown atomic.Pointer[reader]
	// ended is the CPU time of earlier readers. charged is how much of the total was charged to processes.
	ended, charged time.Duration
	// idle ends the reader after a while without requests.
	idle *time.Timer
	// asking guards askedFor, the process that the current request is for.
	asking   sync.Mutex
	askedFor *Process
}

const (
	// While maxAbandoned readers wait for pages of one user's processes, no process of that user is read.
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

// ask runs do with the reader, for a process. A reader that fails is abandoned; if it was too late, h marks the
// process as hung.
func (l *lane) ask(p *Process, do func(*reader) error, h *hang) error {
	<-l.free
	defer l.leave()
	err := l.begin(p)
	if err == nil {
		err = do(l.reader)
		l.end(p, err, h)
	}
	if err != nil {
		p.unanswered.Add(1)
	}
	return err
}

func (l *lane) leave() { l.free <- struct{}{} }

// begin makes sure that there is a reader for a process's request.
func (l *lane) begin(p *Process) error {
	if l.reader == nil {
		if l.of.abandoned.Load() >= maxAbandoned {
			return fmt.Errorf("%d reads of processes of user %d are waiting: %w", maxAbandoned, l.of.id, ErrHung)
		}
		r, err := start()
		if err != nil {
			return fmt.Errorf("starting a helper process: %w", err)
		}
		l.reader = r
		l.shown.Store(r)
		l.idle = time.AfterFunc(idleAfter, l.stop)
	}
	l.idle.Reset(idleAfter)
	if !l.askFor(p) {
		return ErrInterrupted
	}
	l.reader.patience, l.began = Patience(), time.Now()
	if l.more != nil {
		l.reader.patience += max(0, l.more.Left())
	}
	return nil
}

// end settles a request that was answered, or whose reader failed.
func (l *lane) end(p *Process, err error, h *hang) {
	l.asked()
	if l.more != nil {
		l.more.Take(max(0, time.Since(l.began)-Patience()))
	}
	used := max(l.ended+l.reader.processorTime(), l.charged) // the time of a reader that died is unknown
	p.readers.Add(int64(used - l.charged))
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

// askFor notes which process the next request is for. It returns false if the process was interrupted.
func (l *lane) askFor(p *Process) bool {
	l.asking.Lock()
	defer l.asking.Unlock()
	if p.interrupted.Load() {
		return false
	}
	l.askedFor = p
	return true
}

func (l *lane) asked() {
	l.asking.Lock()
	defer l.asking.Unlock()
	l.askedFor = nil
}

// state reports whether the reader has a request, and whether it waits for a page.
func (l *lane) state() (asked, waits bool) {
	l.asking.Lock()
	asked = l.askedFor != nil
	l.asking.Unlock()
	r := l.shown.Load()
	return asked, asked && r != nil && r.waits()
}

// interrupt ends the wait of a caller that reads this process.
func (l *lane) interrupt(p *Process) {
	l.asking.Lock()
	defer l.asking.Unlock()
	if l.askedFor == p {
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
