package tracer

import (
	"time"

	"tt-memtrace/internal/proc"
)

// Much of what is reported has no probe at its moment: a device has opened or closed, a program's scratchpads have
// their places. It is looked for again at a pace. Other things are read at intervals. All paces and intervals are here.

// pace says when something is looked for: first after an age of first, then after waits that grow by factor up to
// longest. After an age of until it is given up, never if that is 0.
type pace struct {
	first, longest time.Duration
	factor         int
	until          time.Duration
}

var (
	// opening: a device gets its allocator after the probe of its opening.
	opening = pace{5 * time.Millisecond, 500 * time.Millisecond, 2, time.Minute}
	// closingPace: a device has closed, or has failed to, after the probe of its close.
	closingPace = pace{5 * time.Millisecond, 2 * time.Second, 2, 0}
	// resizing: the probe is at the beginning of a change of an allocator's memories. It is read a moment later, and
	// once more.
	resizing = pace{2 * time.Millisecond, 200 * time.Millisecond, 100, 200 * time.Millisecond}
	// placingPace: scratchpads are read soon, until each has an address, and once more later: the first answer may be
	// from an earlier placement.
	placingPace = pace{2 * time.Millisecond, 200 * time.Millisecond, 100, 3 * time.Second}
)

const (
	// drainEvery is the longest that a record waits in the BPF ring buffer.
	drainEvery = 10 * time.Millisecond
	// sleepAfter this many empty passes the drain sleeps until a record wakes it.
	sleepAfter = 20
	// lossEvery is how often the BPF programs' counters are read under load.
	lossEvery = 100 * time.Millisecond
	// launchEvery is how often counts without records (launches), rings and host memory are read.
	launchEvery = 500 * time.Millisecond
	// lookEvery is how often first launches are looked for, to name workloads.
	lookEvery = time.Millisecond
	// settle after the last event that put its accounts in doubt, a process is read again.
	settle = 200 * time.Millisecond
	// checkEvery is the shortest interval at which a process is compared without a reason. A slow reading makes it
	// longer: reading takes at most 1/checkShare of the time.
	checkEvery = 10 * time.Second
	checkShare = 1000
	// retryShare: after a failed reading the next comes sooner, but readings take at most 1/retryShare of the time.
	retryShare = 10
	// forksEvery is the shortest interval between searches for forked processes, lostForksEvery that after losses.
	forksEvery     = 100 * time.Millisecond
	lostForksEvery = time.Second
	// lookAgain is how long to wait before examining a process again whose mappings were busy.
	lookAgain = time.Second
	// retryAfter the end of a process, refused libraries are tried again.
	retryAfter = time.Second
	// unexaminedFor is how long a process may wait to be examined. Older notes may be about another process with its
	// PID.
	unexaminedFor = 10 * time.Second
)

// attempt is something that is looked for at a pace, since a time (CLOCK_MONOTONIC, ns).
type attempt struct {
	since, next uint64
	wait        time.Duration
}

// from begins to look for something that happened at a time.
func (p pace) from(since uint64) attempt { return attempt{since, since + uint64(p.first), p.first} }

// due reports whether it is to be looked for, or someone waits for that (now).
func (a *attempt) due(now bool) bool { return now || proc.Now() >= a.next }

// age is how long it is looked for.
func (a *attempt) age() time.Duration { return time.Duration(max(proc.Now(), a.since) - a.since) }

// again has it looked for once more, unless it is given up.
func (a *attempt) again(p pace) (more bool) {
	a.wait = min(time.Duration(p.factor)*a.wait, p.longest)
	a.next = proc.Now() + uint64(a.wait)
	return p.until == 0 || a.age() < p.until
}

// soon has it looked for at the first wait again, unless it is given up.
func (a *attempt) soon(p pace) (more bool) {
	a.wait = p.first / time.Duration(p.factor)
	return a.again(p)
}

// interval is when something was last done that is done at most so often.
type interval struct{ last time.Time }

// due reports whether it is to be done, or someone waits for that (now), and takes it for done.
func (i *interval) due(every time.Duration, now bool) bool {
	if !now && time.Since(i.last) < every {
		return false
	}
	i.last = time.Now()
	return true
}
