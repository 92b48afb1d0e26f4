// Package memory reads the memory of live processes with a deadline, so that none of them
// can block its reader for ever.
//
// A page can belong to a file of a file system that never answers: FUSE, which any
// user can mount, or a network file system without its server. A thread that reads such a page
// cannot be killed, and neither can its process end: its probes would stay. So
// another process reads, one for the processes of each user. It holds only
// a socket and the buffer that it reads into. A read that waits for a page for longer than
// Patience fails with ErrHung, its reader is abandoned, and that process is not
// read again before the reader is back, and some seconds more. Time in which the reader waits for a processor does not count.
package memory

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"tt-memtrace/tracer/proc"
)

// patience is how long a read may wait for a page, nanoseconds.
var patience atomic.Int64

func init() { patience.Store(int64(time.Second)) }

// Patience is how long a read may wait for a page. SetPatience changes it: for tests, also while others read it.
func Patience() time.Duration     { return time.Duration(patience.Load()) }
func SetPatience(d time.Duration) { patience.Store(int64(d)) }

// filePatience is how long a file may be waited for beyond that, and filePatienceShare the part of the time in the long
// run for all of a user's: a disk that is written to, or one of the network, answers after seconds.
const (
	filePatience      = 4 * time.Second
	filePatienceShare = 100
)

// ErrHung says that a process's memory did not answer.
var ErrHung = errors.New("its memory does not answer: a page of it may lie in a file system that hangs")

// maxParts and maxBytes bound one request to a reader; parts as IOV_MAX has it.
const (
	maxParts = 1024
	maxBytes = 1 << 20
)

// Process is the memory of a process.
type Process struct {
	*state
	// hurried: see Hurried.
	hurried bool
}

// state is what is known of a process, also to who is in a hurry.
type state struct {
	pid  uint32
	user *user // nil: this process reads
	hung hang
	// filesHung: a file of it did not answer.
	filesHung hang
	// interrupted: nobody wants to know any more.
	interrupted atomic.Bool
	// readers is the processor time that readers used for this process, ns.
	readers atomic.Int64
	// charges: what is done for the process is measured, see Charged, and threads is that, ns.
	charges bool
	threads atomic.Int64
	// late is how many reads failed with ErrLater, and failed how many that could wait failed where something may be.
	late, failed atomic.Uint64
}

// hang is whether a process's memory, or a file of it, did not answer. Later it may: a fork of a process of 100 GB holds
// its mappings locked for seconds.
type hang struct {
	now   atomic.Bool
	times atomic.Int32
}

const (
	// askAgain is how long after its reader was back a process that hung is asked again, twice as long each time, and
	// askAgainMost at the most.
	askAgain     = 2 * time.Second
	askAgainMost = 10 * time.Minute
)

func (h *hang) begin() { h.now.Store(true) }

// end has the process asked again, as the reader that waited for it is back.
func (h *hang) end() {
	time.AfterFunc(min(askAgain<<min(h.times.Add(1)-1, 20), askAgainMost), func() { h.now.Store(false) })
}

// Of is the memory of a process. Nothing is read yet.
func Of(pid uint32) *Process {
	return &Process{state: &state{pid: pid, user: userOf(proc.User(pid))}}
}

// Hurried is the same memory for who must not wait for it: see ErrLater.
func (p *Process) Hurried() *Process { return &Process{state: p.state, hurried: true} }

// Late is how many reads failed with ErrLater so far.
func (p *Process) Late() uint64 { return p.late.Load() }

// Failed is how many reads of who could wait failed so far, but for those of addresses where nothing is: what is there is not known.
func (p *Process) Failed() uint64 { return p.failed.Load() }

// Direct is the memory of a process as this process reads it, without a deadline: the
// calling thread waits for as long as a page does. Where Yama lets only a process's
// ancestors read it, no other process can. It is for whoever has no probes that would stay.
func Direct(pid uint32) *Process { return &Process{state: &state{pid: pid}} }

// PID is the process's.
func (p *Process) PID() uint32 { return p.pid }

// Hung says whether a read of the process's memory was abandoned.
func (p *Process) Hung() bool { return p.hung.now.Load() }

// Prepare starts the readers that a search of the process will ask, beside what the caller does: that takes as long as the
// search. What fails is tried again by who asks them.
func (p *Process) Prepare() {
	if p.user == nil {
		return
	}
	for _, l := range []*lane{&p.user.lane, &p.user.searches} {
		go func() { _ = l.ask(p, func(*reader) error { return nil }, &p.hung) }()
	}
}

// ReadAt fills b from the process's address, or fails.
func (p *Process) ReadAt(b []byte, address uint64) error {
	for len(b) > 0 {
		n := min(len(b), maxBytes)
		if err := p.read(b[:n], []unix.RemoteIovec{{Base: uintptr(address), Len: n}}); err != nil {
			return fmt.Errorf("reading %d bytes at %#x of process %d: %w", len(b), address, p.pid, err)
		}
		b, address = b[n:], address+uint64(n)
	}
	return nil
}

// ReadEach reads the same piece, of size bytes at an offset, of many objects, one
// behind the other.
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
			return nil, fmt.Errorf("reading %d objects of process %d: %w", len(some), p.pid, err)
		}
	}
	return all, nil
}

// Interrupt ends the reads of the process's memory, also one that is under way.
func (p *Process) Interrupt() {
	p.interrupted.Store(true)
	if p.user != nil {
		p.user.interrupt(p.state)
		p.user.searches.interrupt(p.state)
		p.user.files.interrupt(p.state)
	}
}

// ErrInterrupted says that Interrupt ended a read.
var ErrInterrupted = errors.New("reading its memory was interrupted")

func (p *Process) read(b []byte, parts []unix.RemoteIovec) error {
	n, err := p.readSome(b, parts)
	if err == nil && n != len(b) {
		err = fmt.Errorf("got %d of %d bytes: %w", n, len(b), unix.EFAULT) // of what follows
	}
	return err
}

// readSome reads the parts up to the first that cannot be read, which is an error where it is the first of all.
func (p *Process) readSome(b []byte, parts []unix.RemoteIovec) (int, error) {
	n, err := p.tryRead(b, parts)
	if err != nil && !p.hurried && !errors.Is(err, unix.EFAULT) {
		p.failed.Add(1)
	}
	return n, err
}

func (p *Process) tryRead(b []byte, parts []unix.RemoteIovec) (int, error) {
	if p.hung.now.Load() {
		return 0, ErrHung
	}
	if p.user == nil {
		local := []unix.Iovec{{Base: &b[0], Len: uint64(len(b))}}
		return unix.ProcessVMReadv(int(p.pid), local, parts, 0)
	}
	n, err := p.user.read(p, b, parts)
	return n, p.answered(err)
}

// answered is what a reader's error says of the process.
func (p *Process) answered(err error) error {
	if err != nil && p.interrupted.Load() {
		return ErrInterrupted
	}
	if errors.Is(err, errLate) {
		return ErrHung
	}
	return err
}

// ReaderTime is the processor time that readers used so far for this process; what this process
// reads itself is its own.
func (p *Process) ReaderTime() time.Duration { return time.Duration(p.readers.Load()) }

// Charging has Used count what others do for who asks it. That takes longer then: each is bound to a thread.
func (p *Process) Charging() *Process {
	p.charges = true
	return p
}

// Charged does something for the process on a goroutine that somebody waits for: what it uses of a processor is
// part of Used, where that counts.
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

// Used is the processor time that others than the thread that waits for them used so far for this process: readers,
// and what was Charged.
func (p *Process) Used() time.Duration { return p.ReaderTime() + time.Duration(p.threads.Load()) }

// users have a reader each, so that one waits for none of another's processes.
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
		u = &user{id: id, hurry: proc.NewAllowance(maxHurry, hurryShare)}
		u.files.more = proc.NewAllowance(filePatience, filePatienceShare)
		for _, l := range []*lane{&u.lane, &u.searches, &u.files} {
			l.of, l.free = u, make(chan struct{}, 1)
			l.free <- struct{}{}
		}
		users.of[id] = u
	}
	return u
}

// Waits says whether a reader of a user's processes, who was asked for something, waits for a page, and
// works whether one does not: it has to be waited for, as a processor has.
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

// Stop ends all readers. The next read starts another one.
func Stop() {
	users.Lock()
	defer users.Unlock()
	for _, u := range users.of {
		u.stop()
		u.searches.stop()
		u.files.stop()
	}
}
