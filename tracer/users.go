package tracer

import (
	"cmp"
	"maps"
	"slices"
	"sync"

	"tt-memtrace/internal/proc"
)

// Each user whose processes are traced has a run: a goroutine that turns their records into events, and reads their
// memory where a record alone does not say enough. So what a process does can hold up the accounts of its own user's
// processes, and of nobody else's.

// maxRuns is how many users have a run of their own; all others share one.
const maxRuns = 64

// users say which run a process belongs to. A process belongs to one run until it ends, also if it changes its user.
type users struct {
	mu sync.Mutex
	// start starts another run; nil before and after tracing, when what is left for a run goes to first.
	start func() *run
	first *run
	// runs are by user; of are by PID.
	runs map[uint32]*run
	of   map[uint32]*run
}

// run returns the run of a process. A process that was forked, and has not called exec, belongs to its parent's: it has
// copies of what that holds. Any goroutine may call it.
func (u *users) run(pid uint32) *run {
	u.mu.Lock()
	defer u.mu.Unlock()
	r := u.of[pid]
	if r != nil || u.start == nil {
		return cmp.Or(r, u.first)
	}
	if r = u.of[proc.ForkParent(pid)]; r == nil {
		r = u.byUser(proc.User(pid))
	}
	u.of[pid] = r
	return r
}

func (u *users) byUser(id uint32) *run {
	r := u.runs[id]
	if r == nil && len(u.runs) >= maxRuns {
		id = ^uint32(0) // no user has this ID
		r = u.runs[id]
	}
	if r == nil {
		r = u.start()
		u.runs[id] = r
	}
	return r
}

// begin has runs started as processes need one.
func (u *users) begin(start func() *run) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.start, u.runs, u.of = start, map[uint32]*run{}, map[uint32]*run{}
	u.first = u.byUser(0)
}

// end starts no more runs.
func (u *users) end() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.start = nil
}

// ended forgets a process: a later one with its PID can be another user's.
func (u *users) ended(pid uint32) {
	u.mu.Lock()
	defer u.mu.Unlock()
	delete(u.of, pid)
}

// another reports whether a process is known to belong to another run than that of a core.
func (u *users) another(pid uint32, c *core) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	r := u.of[pid]
	return r != nil && r.core != c
}

// all returns all runs.
func (u *users) all() []*run {
	u.mu.Lock()
	defer u.mu.Unlock()
	return slices.Collect(maps.Values(u.runs))
}

// targets are the PIDs of Options that still live.
type targets struct {
	mu   sync.Mutex
	left map[uint32]bool
}

func (t *targets) add(pid uint32) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.left == nil {
		t.left = map[uint32]bool{}
	}
	t.left[pid] = true
}

// ended removes a process, and reports whether it was the last.
func (t *targets) ended(pid uint32) (last bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.left[pid] {
		return false
	}
	delete(t.left, pid)
	return len(t.left) == 0
}

func (t *targets) list() []uint32 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Collect(maps.Keys(t.left))
}
