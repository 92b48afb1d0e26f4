package tracer

import (
	"sync"
	"time"

	"tt-memtrace/aggregator"
	"tt-memtrace/internal/proc"
)

// A process of a command can map the runtime and end before it is examined, so before it has probes. The watcher knows
// who mapped something, the reader who of the command's processes ended: only both together show it.

// unexamined are the processes that the watcher saw map what may be the runtime, until they are examined, with when it
// was last. It is kept for the processes of a command alone.
type unexamined struct {
	mu     sync.Mutex
	mapped map[uint32]time.Time
}

// add notes that a process mapped something.
func (u *unexamined) add(pid uint32) {
	u.mu.Lock()
	defer u.mu.Unlock()
	const most = 4096
	if u.mapped == nil || len(u.mapped) >= most {
		u.mapped = map[uint32]time.Time{}
	}
	u.mapped[pid] = time.Now()
}

// take forgets a process, and reports whether it waited to be examined.
func (u *unexamined) take(pid uint32) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	at, waits := u.mapped[pid]
	delete(u.mapped, pid)
	return waits && time.Since(at) < unexaminedFor
}

// unknownEnd is the end of a command's process that no one has announced.
type unknownEnd struct {
	from origin
	how  *aggregator.Exit
	seen time.Time
}

// endedUnknown handles the end of a process that was not announced: if it mapped the runtime, it is reported.
func (lv *lives) endedUnknown(from origin, how *aggregator.Exit) {
	if lv.opts.Follow == 0 {
		return
	}
	if lv.unexamined.take(from.pid) {
		lv.missedWhole(from.pid)
		return
	}
	lv.unknownEnds = append(lv.unknownEnds, unknownEnd{from, how, time.Now()}) // the watcher may be late
}

// joinUnexamined reports the processes that the watcher saw only after the reader saw their end.
func (lv *lives) joinUnexamined() {
	kept := lv.unknownEnds[:0]
	for _, e := range lv.unknownEnds {
		switch {
		case lv.unexamined.take(e.from.pid):
			lv.missedWhole(e.from.pid)
			lv.end(e.from, e.how)
		case time.Since(e.seen) < unexaminedFor:
			kept = append(kept, e)
		}
	}
	lv.unknownEnds = kept
}

// missedWhole marks a process of which nothing was traced.
func (lv *lives) missedWhole(pid uint32) {
	lv.mark(pid, verdict{why: "it mapped the runtime, and ended before it could be examined", unsure: true, at: proc.Now()})
}
