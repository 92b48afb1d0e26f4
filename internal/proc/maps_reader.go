package proc

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// The kernel locks a process's address space while it changes a mapping, and a user's file system can make that
// wait for ever. A thread that reads the mappings then waits, too; but it can be killed, so it does not keep this
// program from ending. So a goroutine reads them, and the caller waits no longer than the process's user is allowed.

// ErrMapsBusy means that a process's mappings could not be read in time, because they are being changed.
var ErrMapsBusy = errors.New("its mappings do not answer: a thread that changes them may be waiting for a file system that hangs")

const (
	// maxMapsWait is the longest wait in a row for the mappings of a user's processes; over time they get 1/mapsShare
	// of the time. Waits shorter than mapsLook, or for a CPU, do not count.
	maxMapsWait = 200 * time.Millisecond
	mapsShare   = 10
	mapsLook    = 20 * time.Millisecond
	// maxMapsStuck bounds the goroutines that wait for processes of one user.
	maxMapsStuck = 4
	// maxMapsTime bounds each wait in any case.
	maxMapsTime = 30 * time.Second
)

// mapsUser is a user whose processes' mappings were waited for.
type mapsUser struct {
	*Allowance
	stuck atomic.Int32
}

var mapsUsers struct {
	sync.Mutex
	of map[uint32]*mapsUser
}

// waitedFor returns the mapsUser of a process, or nil if no wait was needed for that user so far.
func waitedFor(pid uint32) *mapsUser {
	mapsUsers.Lock()
	defer mapsUsers.Unlock()
	if len(mapsUsers.of) == 0 {
		return nil
	}
	return mapsUsers.of[User(pid)]
}

// waitFor returns the mapsUser of a process that now needs a wait.
func waitFor(pid uint32) *mapsUser {
	user := User(pid)
	mapsUsers.Lock()
	defer mapsUsers.Unlock()
	u := mapsUsers.of[user]
	if u == nil {
		if mapsUsers.of == nil {
			mapsUsers.of = map[uint32]*mapsUser{}
		}
		u = &mapsUser{Allowance: NewAllowance(maxMapsWait, mapsShare)}
		mapsUsers.of[user] = u
	}
	return u
}

// mapsReader reads /proc/PID/maps.
type mapsReader struct {
	pid    uint32
	chunks chan mapsChunk
	closed chan struct{}
	// tid is the thread of the reading goroutine.
	tid  atomic.Int32
	rest []byte
	last mapsChunk
	// given is the error after which nobody waits for it any more.
	given error
}

type mapsChunk struct {
	buffer *[mapsChunkBytes]byte
	n      int
	err    error
}

// mapsChunkBytes holds many lines, because the kernel has to find its place again with each read.
const mapsChunkBytes = 64 << 10

var mapsChunks = sync.Pool{New: func() any { return new([mapsChunkBytes]byte) }}

// OpenMaps opens a process's mappings for one sequential read. It and each read may fail with ErrMapsBusy.
func OpenMaps(pid uint32) (io.ReadCloser, error) {
	return openMapsFile(pid, "maps")
}

func openMapsFile(pid uint32, name string) (io.ReadCloser, error) {
	if u := waitedFor(pid); u != nil && (u.stuck.Load() >= maxMapsStuck || u.Left() <= 0) {
		return nil, fmt.Errorf("reading the mappings of process %d: %w", pid, ErrMapsBusy)
	}
	f, err := Open(pid, name)
	if err != nil {
		return nil, err
	}
	r := &mapsReader{pid: pid, chunks: make(chan mapsChunk), closed: make(chan struct{})}
	go r.run(f)
	return r, nil
}

func (r *mapsReader) run(f *os.File) {
	defer f.Close()
	for {
		c := mapsChunk{buffer: mapsChunks.Get().(*[mapsChunkBytes]byte)}
		r.tid.Store(int32(unix.Gettid()))
		c.n, c.err = f.Read(c.buffer[:])
		select {
		case r.chunks <- c:
		case <-r.closed:
			mapsChunks.Put(c.buffer)
			return
		}
		if c.err != nil {
			return
		}
	}
}

func (r *mapsReader) Read(b []byte) (int, error) {
	if len(r.rest) == 0 {
		if r.given != nil {
			return 0, r.given
		}
		r.recycle()
		if r.last, r.given = r.next(); r.given == nil {
			r.given = r.last.err
		}
		r.rest = nil
		if r.last.buffer != nil {
			r.rest = r.last.buffer[:r.last.n]
		}
		if len(r.rest) == 0 {
			return 0, r.given
		}
	}
	n := copy(b, r.rest)
	r.rest = r.rest[n:]
	return n, nil
}

func (r *mapsReader) recycle() {
	if r.last.buffer != nil {
		mapsChunks.Put(r.last.buffer)
		r.last.buffer = nil
	}
}

// next waits for the next chunk.
func (r *mapsReader) next() (mapsChunk, error) {
	timer := time.NewTimer(mapsLook)
	defer timer.Stop()
	var user *mapsUser
	for began := time.Now(); ; timer.Reset(mapsLook) {
		select {
		case c := <-r.chunks:
			return c, nil
		case <-timer.C:
		}
		if user == nil {
			user = waitFor(r.pid)
		}
		if Uninterruptible(int(r.tid.Load())) {
			user.Take(mapsLook)
		}
		if user.Left() <= 0 || time.Since(began) > maxMapsTime {
			user.stuck.Add(1)
			go func() {
				c := <-r.chunks
				close(r.closed)
				mapsChunks.Put(c.buffer)
				user.stuck.Add(-1)
			}()
			return mapsChunk{}, ErrMapsBusy
		}
	}
}

// Close ends the reading.
func (r *mapsReader) Close() error {
	r.recycle()
	if !errors.Is(r.given, ErrMapsBusy) {
		close(r.closed)
	}
	return nil
}
