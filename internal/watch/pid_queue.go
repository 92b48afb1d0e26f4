package watch

import (
	"context"
	"sync"
	"time"
)

// PIDQueue holds processes that were seen to map something, until they are examined.
type PIDQueue struct {
	mu   sync.Mutex
	pids map[uint32]time.Time // when each was first seen since it was last examined
	all  bool
	wake chan struct{} // holds at most one
}

func NewPIDQueue() *PIDQueue {
	return &PIDQueue{pids: map[uint32]time.Time{}, wake: make(chan struct{}, 1)}
}

func (f *PIDQueue) Add(pid uint32) { f.AddSeen(pid, time.Now()) }

// AddSeen adds a process that was seen to map something at a time (zero if unknown), and that could not be examined.
func (f *PIDQueue) AddSeen(pid uint32, seen time.Time) {
	f.mu.Lock()
	if first, before := f.pids[pid]; !before || seen.Before(first) {
		f.pids[pid] = seen
	}
	f.mu.Unlock()
	f.signal()
}

// Missed notes that some processes were not seen, so all must be examined.
func (f *PIDQueue) Missed() {
	f.mu.Lock()
	f.all = true
	f.mu.Unlock()
	f.signal()
}

func (f *PIDQueue) signal() {
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

// Wait returns the processes added since the last call, with when each was first seen, or the context's error.
func (f *PIDQueue) Wait(ctx context.Context) (pids map[uint32]time.Time, all bool, err error) {
	select {
	case <-f.wake:
	case <-ctx.Done():
		return nil, false, ctx.Err()
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	pids, all = f.pids, f.all
	f.pids, f.all = map[uint32]time.Time{}, false
	return pids, all, nil
}
