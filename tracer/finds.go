package tracer

import (
	"context"
	"slices"
	"sync"
)

// finds are the processes that were seen to map something, until they are looked at.
type finds struct {
	mu   sync.Mutex
	pids []uint32
	all  bool
	wake chan struct{} // holds at most one
}

func newFinds() *finds { return &finds{wake: make(chan struct{}, 1)} }

func (f *finds) add(pid uint32) {
	f.mu.Lock()
	f.pids = append(f.pids, pid)
	f.mu.Unlock()
	f.signal()
}

// missed: some were not seen, so everyone has to be looked at.
func (f *finds) missed() {
	f.mu.Lock()
	f.all = true
	f.mu.Unlock()
	f.signal()
}

func (f *finds) signal() {
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

// wait returns what came since the last call, each once, or the context's error.
func (f *finds) wait(ctx context.Context) (pids []uint32, all bool, err error) {
	select {
	case <-f.wake:
	case <-ctx.Done():
		return nil, false, ctx.Err()
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	slices.Sort(f.pids)
	pids, all = slices.Compact(f.pids), f.all
	f.pids, f.all = nil, false
	return pids, all, nil
}
