// Package memory reads the memory of live processes with a deadline, so that no process can block the tracer for
// ever.
//
// A page can belong to a file of a file system that never answers: FUSE, which any user can mount, or a network file
// system whose server is gone. A thread that reads such a page cannot be killed, and its process cannot end, so its
// probes would stay. So separate reader processes do the reading, one for the processes of each user. A reader holds
// only a socket and its buffer. A read that waits for a page for longer than Patience fails with ErrHung, and its
// reader is abandoned. The target process is then not read again until that reader has returned, plus some seconds.
// Time in which a reader waits for a CPU does not count.
package memory

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"tt-memtrace/internal/plural"
	"tt-memtrace/internal/proc"
)

// patience is the value of Patience, in nanoseconds.
var patience atomic.Int64

func init() { patience.Store(int64(time.Second)) }

// Patience is how long a read may wait for a page. SetPatience changes it, for tests; it is safe while others read.
func Patience() time.Duration     { return time.Duration(patience.Load()) }
func SetPatience(d time.Duration) { patience.Store(int64(d)) }

// filePatience is how much longer than Patience a file may take: a busy disk or a network file system can need
// seconds. Over time, all files of a user get 1/filePatienceShare of the time.
const (
	filePatience      = 4 * time.Second
	filePatienceShare = 100
)

// ErrLater means that a read got no answer. The same read may succeed later. ErrHung, ErrNoAnswer and ErrInterrupted
// are ErrLater too.
var ErrLater = errors.New("no answer")

// noAnswer is an error that is ErrLater.
type noAnswer string

func (e noAnswer) Error() string { return string(e) }

// Is reports whether a target is ErrLater.
func (noAnswer) Is(target error) bool { return target == ErrLater }

// ErrHung means that a process's memory did not answer.
const ErrHung = noAnswer("its memory does not answer: one of its pages may lie on a file system that hangs")

// maxParts and maxBytes bound one request to a reader; maxParts is IOV_MAX.
const (
	maxParts = 1024
	maxBytes = 1 << 20
)

// Process reads the memory of a process.
type Process struct {
	pid  uint32
	user *user // nil: the calling process reads by itself
	// source is read in place of the live process, unless it is nil.
	source Source
	hung   hang
	// filesHung: one of its files did not answer.
	filesHung hang
	// interrupted: nobody wants its data any more.
	interrupted atomic.Bool
	// readers is the CPU time that readers used for this process, ns.
	readers atomic.Int64
	// charges: Charged measures the work for the process; threads is the sum, ns.
	charges bool
	threads atomic.Int64
	// unanswered counts reads that got no answer. failed counts failed reads of memory, except of unmapped addresses.
	unanswered, failed atomic.Uint64
}

// hang says that a process's memory, or one of its files, did not answer. That can pass: the fork of a process of 100
// GB holds the lock of its mappings for seconds.
type hang struct {
	now   atomic.Bool
	times atomic.Int32
}

const (
	// askAgain after the reader of a hung process has returned, the process is read again. The delay doubles each
	// time, up to askAgainMost.
	askAgain     = 2 * time.Second
	askAgainMost = 10 * time.Minute
)

func (h *hang) begin() { h.now.Store(true) }

// end lets the process be read again later, as the reader that waited for it has returned.
func (h *hang) end() {
	time.AfterFunc(min(askAgain<<min(h.times.Add(1)-1, 20), askAgainMost), func() { h.now.Store(false) })
}

// Of returns the memory of a process. It reads nothing yet.
func Of(pid uint32) *Process {
	return &Process{pid: pid, user: userOf(proc.User(pid))}
}

// Unanswered returns how many reads got no answer so far: those that failed with ErrLater, or whose reader failed.
func (p *Process) Unanswered() uint64 { return p.unanswered.Load() }

// Failed returns how many reads of memory have failed. Reads of unmapped addresses do not count.
func (p *Process) Failed() uint64 { return p.failed.Load() }

// Direct returns the memory of a process for reading by the calling process itself, without a deadline: the thread
// waits as long as a page takes. If Yama lets only a process's ancestors read it, no separate reader can. Use it only
// in a program without probes, which would stay if it hung.
func Direct(pid uint32) *Process { return &Process{pid: pid} }

// PID returns the process's PID.
func (p *Process) PID() uint32 { return p.pid }

// Hung reports whether a read of the process's memory was abandoned.
func (p *Process) Hung() bool { return p.hung.now.Load() }

// Prepare starts, in the background, the readers that a search of the process will need: starting them takes as long
// as the search. Errors are ignored; the search tries again.
func (p *Process) Prepare() {
	if p.user == nil {
		return
	}
	for _, l := range []*lane{&p.user.lane, &p.user.searches} {
		go func() { _ = l.ask(p, func(*reader) error { return nil }, &p.hung) }()
	}
}

// ReadAt fills b from the process's memory at address, or fails.
func (p *Process) ReadAt(b []byte, address uint64) error {
	for len(b) > 0 {
		n := min(len(b), maxBytes)
		if err := p.read(b[:n], []unix.RemoteIovec{{Base: uintptr(address), Len: n}}); err != nil {
			return fmt.Errorf("reading %s at %#x of process %d: %w", plural.Of(len(b), "byte"), address, p.pid, err)
		}
		b, address = b[n:], address+uint64(n)
	}
	return nil
}

// ReadEach reads, from each of many objects, size bytes at an offset, and returns them one after another.
func (p *Process) ReadEach(objects []uint64, offset uint64, size int) ([]byte, error) {
	all := make([]byte, size*len(objects))
	most := min(maxParts, maxBytes/max(size, 1))
	parts := make([]unix.RemoteIovec, 0, min(most, len(objects)))
	for from := 0; from < len(objects); from += most {
		some := objects[from:min(from+most, len(objects))]
		parts = parts[:0]
		for _, o := range some {
			parts = append(parts, unix.RemoteIovec{Base: uintptr(o + offset), Len: size})
		}
		if err := p.read(all[from*size:(from+len(some))*size], parts); err != nil {
			return nil, fmt.Errorf("reading %s of process %d: %w", plural.Of(len(some), "object"), p.pid, err)
		}
	}
	return all, nil
}

// Interrupt ends all reads of the process's memory, including one under way.
func (p *Process) Interrupt() {
	p.interrupted.Store(true)
	if p.user != nil {
		p.user.interrupt(p)
		p.user.searches.interrupt(p)
		p.user.files.interrupt(p)
	}
}

// ErrInterrupted means that Interrupt ended a read.
const ErrInterrupted = noAnswer("reading its memory was interrupted")

func (p *Process) read(b []byte, parts []unix.RemoteIovec) error {
	n, err := p.readSome(b, parts)
	if err == nil && n != len(b) {
		err = fmt.Errorf("got %d of %d bytes: %w", n, len(b), unix.EFAULT) // the next part cannot be read
	}
	return err
}

// readSome reads the parts up to the first that cannot be read. It fails only if that is the very first.
func (p *Process) readSome(b []byte, parts []unix.RemoteIovec) (int, error) {
	n, err := p.tryRead(b, parts)
	if err != nil && !errors.Is(err, unix.EFAULT) {
		p.failed.Add(1)
	}
	return n, err
}

func (p *Process) tryRead(b []byte, parts []unix.RemoteIovec) (int, error) {
	if p.hung.now.Load() {
		p.unanswered.Add(1)
		return 0, ErrHung
	}
	if p.source != nil {
		return p.readSource(b, parts)
	}
	if p.user == nil {
		local := []unix.Iovec{{Base: &b[0], Len: uint64(len(b))}}
		return unix.ProcessVMReadv(int(p.pid), local, parts, 0)
	}
	n, err := p.user.read(p, b, parts)
	return n, p.answered(err)
}

// answered translates a reader's error into one about the process.
func (p *Process) answered(err error) error {
	if err != nil && p.interrupted.Load() {
		return ErrInterrupted
	}
	if errors.Is(err, errLate) {
		return ErrHung
	}
	return err
}

// ReaderTime returns the CPU time that readers used so far for this process. It excludes what the calling process
// reads itself.
func (p *Process) ReaderTime() time.Duration { return time.Duration(p.readers.Load()) }

// Charging makes Used include the work of helper goroutines. They then take longer, as each is bound to a thread.
func (p *Process) Charging() *Process {
	p.charges = true
	return p
}

// Charged runs do, on a goroutine that somebody waits for, and adds its CPU time to Used if Charging was called.
func (p *Process) Charged(do func()) {
	if !p.charges {
		do()
		return
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	thread := unix.Gettid()
	before, _ := proc.ThreadTime(thread)
	defer func() {
		after, _ := proc.ThreadTime(thread)
		p.threads.Add(int64(after - before))
	}()
	do()
}

// Used returns the CPU time spent so far for this process by others than the waiting thread: by readers, and in
// Charged.
func (p *Process) Used() time.Duration { return p.ReaderTime() + time.Duration(p.threads.Load()) }

// users has a reader for each user, so that nobody waits for another user's processes.
var users struct {
	sync.Mutex
	of map[uint32]*user
}

func userOf(id uint32) *user {
	users.Lock()
	defer users.Unlock()
	u := users.of[id]
	if u == nil {
		if users.of == nil {
			users.of = map[uint32]*user{}
		}
		u = &user{id: id}
		u.files.more = proc.NewAllowance(filePatience, filePatienceShare)
		for _, l := range []*lane{&u.lane, &u.searches, &u.files} {
			l.of, l.free = u, make(chan struct{}, 1)
			l.free <- struct{}{}
		}
		users.of[id] = u
	}
	return u
}

// Waits reports whether a reader with a request for a user's processes waits for a page, and whether one works
// without waiting. A working one is worth waiting for, like a CPU.
func Waits(id uint32) (waits, works bool) {
	users.Lock()
	u := users.of[id]
	users.Unlock()
	if u == nil {
		return false, false
	}
	for _, l := range []*lane{&u.lane, &u.searches, &u.files} {
		asked, waiting := l.state()
		waits, works = waits || waiting, works || asked && !waiting
	}
	return waits, works
}

// Stop ends all readers. The next read starts a new one.
func Stop() {
	users.Lock()
	defer users.Unlock()
	for _, u := range users.of {
		u.stop()
		u.searches.stop()
		u.files.stop()
	}
}
