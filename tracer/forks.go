package tracer

import (
	"slices"
	"sync"
	"time"

	"tt-memtrace/tracer/proc"
)

// A forked process maps nothing, so it is unknown before its first event. It is looked for
// where that does not come: when the process that it was forked from ends, as what it has
// copies of is its own then, and after a loss, which can be of that event.

// forkSearch collects what processes have mapped whose forks are wanted, for one search at a
// time.
type forkSearch struct {
	mu      sync.Mutex
	of      []proc.Mapping
	running bool
}

// searching says whether forks are being looked for.
func (s *forkSearch) searching() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.running
}

// findLostForks looks for forks of all processes after a loss, at most once a second unless
// somebody waits.
func (r *run) findLostForks() {
	if !r.forksLost || len(r.syncs) == 0 && time.Since(r.forksSoughtAt) < time.Second {
		return
	}
	r.forksLost, r.forksSoughtAt = false, time.Now()
	var list []proc.Mapping
	for _, p := range r.processes {
		list = append(list, p.mapping)
	}
	if len(list) > 0 {
		r.findForks(list...)
	}
}

// findForks looks for processes that were forked from others, and that are not known yet.
func (r *run) findForks(of ...proc.Mapping) {
	s := &r.forks
	s.mu.Lock()
	defer s.mu.Unlock()
	s.of = append(s.of, of...)
	if s.running {
		return
	}
	s.running = true
	known := map[uint32]bool{}
	for pid := range r.processes {
		known[pid] = true
	}
	r.background.Go(func() {
		for {
			s.mu.Lock()
			list := s.of
			s.of, s.running = nil, len(list) > 0
			s.mu.Unlock()
			if len(list) == 0 {
				return
			}
			pids, _ := proc.PIDs() // without /proc nothing is traced
			for _, pid := range pids {
				if known[pid] || !proc.Forked(pid) {
					continue
				}
				if slices.ContainsFunc(list, func(m proc.Mapping) bool {
					alike, err := proc.MapsAlike(pid, m)
					return alike && err == nil
				}) {
					r.t.look(pid, time.Time{})
				}
			}
		}
	})
}
