package watch

import (
	"context"
	"sync"
)

// PIDQueue holds processes that were seen to map something, until they are examined.
type PIDQueue struct {
	mu   sync.Mutex
	pids map[uint32]uint64 // when each first mapped something since it was last examined, or NotSeen
	all  bool
	wake chan struct{} // holds at most one
}

func NewPIDQueue() *PIDQueue {
	return &PIDQueue{pids: map[uint32]uint64{}, wake: make(chan struct{}, 1)}
}

// Add adds a process that was not seen to map something.
func (f *PIDQueue) Add(pid uint32) { f.AddSeen(pid, NotSeen) }

// AddSeen adds a process that mapped something at a time (CLOCK_MONOTONIC in ns); 0 is before all others.
func (f *PIDQueue) AddSeen(pid uint32, at uint64) {
	f.mu.Lock()
	if first, before := f.pids[pid]; !before || at < first {
		f.pids[pid] = at
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

// Wait returns the processes added since the last call, with when each first mapped something (NotSeen if nobody saw
// it), or the context's error.
func (f *PIDQueue) Wait(ctx context.Context) (pids map[uint32]uint64, all bool, err error) {
	select {
	case <-f.wake:
	case <-ctx.Done():
		return nil, false, ctx.Err()
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	pids, all = f.pids, f.all
	f.pids, f.all = map[uint32]uint64{}, false
	return pids, all, nil
}
