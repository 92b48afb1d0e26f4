// Package relay distributes the records of the BPF ring buffer to runs, one goroutine per user. A process can delay
// only the events of its own user.
package relay

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"tt-memtrace/bpf"
	"tt-memtrace/internal/proc"
)

// maxRuns is how many users have a run of their own; all others share one.
const maxRuns = 64

// maxQueues bounds all queues together, in sizes of the BPF ring buffer. One queue is bounded by one such size.
const maxQueues = 8

// Users maps processes to runs. A process keeps its run until it ends, even if it changes its user. Mail is what others
// leave for a run. The zero value starts no runs: see Begin.
type Users[Mail any] struct {
	mu sync.Mutex
	// start starts another run; nil before and after tracing, when what is left for a run goes to first.
	start func(*Inbox[Mail])
	wake  func()
	first *Inbox[Mail]
	// inboxes are by user; of are by PID.
	inboxes map[uint32]*Inbox[Mail]
	of      map[uint32]*Inbox[Mail]

	// queued counts the bytes of records that wait for all runs.
	queued atomic.Int64

	// spare are buffers of records that were taken in.
	spare   [][]byte
	spareMu sync.Mutex
}

// BufferBytes is the capacity of a buffer for the records of a parcel.
const BufferBytes = 1 << 20

// maxSpare bounds the buffers that are kept: for as much as the largest BPF ring buffer has room for.
const maxSpare = 16

// Buffer returns an empty buffer for the records of a parcel.
func (u *Users[Mail]) Buffer() []byte {
	u.spareMu.Lock()
	defer u.spareMu.Unlock()
	if n := len(u.spare); n > 0 {
		b := u.spare[n-1]
		u.spare = u.spare[:n-1]
		return b
	}
	return make([]byte, 0, BufferBytes)
}

// Trim drops the buffers that are kept.
func (u *Users[Mail]) Trim() {
	u.spareMu.Lock()
	defer u.spareMu.Unlock()
	u.spare = nil
}

// recycle takes back a buffer.
func (u *Users[Mail]) recycle(b []byte) {
	u.spareMu.Lock()
	defer u.spareMu.Unlock()
	if cap(b) == BufferBytes && len(u.spare) < maxSpare {
		u.spare = append(u.spare, b[:0])
	}
}

// Begin has runs started as processes need one. wake has the drain begin another pass.
func (u *Users[Mail]) Begin(wake func(), start func(*Inbox[Mail])) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.wake, u.start = wake, start
	u.inboxes, u.of = map[uint32]*Inbox[Mail]{}, map[uint32]*Inbox[Mail]{}
	u.first = u.byUser(0)
}

// End starts no more runs.
func (u *Users[Mail]) End() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.start = nil
}

// Of returns the inbox of a process's run. A process that was forked, and has not called exec, belongs to its parent's:
// it has copies of what that holds. It returns nil before Begin.
func (u *Users[Mail]) Of(pid uint32) *Inbox[Mail] {
	u.mu.Lock()
	defer u.mu.Unlock()
	in := u.of[pid]
	if in != nil || u.start == nil {
		return cmp.Or(in, u.first)
	}
	if in = u.of[proc.ForkParent(pid)]; in == nil {
		in = u.byUser(proc.User(pid))
	}
	u.of[pid] = in
	return in
}

func (u *Users[Mail]) byUser(id uint32) *Inbox[Mail] {
	in := u.inboxes[id]
	if in == nil && len(u.inboxes) >= maxRuns {
		id = ^uint32(0) // no user has this ID
		in = u.inboxes[id]
	}
	if in == nil {
		in = NewInbox(u)
		u.inboxes[id] = in
		u.start(in)
	}
	return in
}

// Ended forgets a process: a later one with its PID can be another user's.
func (u *Users[Mail]) Ended(pid uint32) {
	u.mu.Lock()
	defer u.mu.Unlock()
	delete(u.of, pid)
}

// Another reports whether a process is known to belong to another run.
func (u *Users[Mail]) Another(pid uint32, in *Inbox[Mail]) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	of := u.of[pid]
	return of != nil && of != in
}

// All returns the inboxes of all runs.
func (u *Users[Mail]) All() []*Inbox[Mail] {
	u.mu.Lock()
	defer u.mu.Unlock()
	return slices.Collect(maps.Values(u.inboxes))
}

// Lost counts, by kind, the records that found no room in an inbox.
func (u *Users[Mail]) Lost() (lost [bpf.MemtraceTtKindTT_KINDS]uint64) {
	for _, in := range u.All() {
		for kind, n := range in.Lost() {
			lost[kind] += n
		}
	}
	return lost
}
