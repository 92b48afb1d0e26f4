package buffers

import (
	"time"

	"tt-memtrace/internal/memory"
	"tt-memtrace/internal/proc"
)

// activity is a process's CPU time when the reading of it began, if the kernel reports it.
type activity struct {
	pid uint32
	had time.Duration
	// fine: the clock is fine enough to show any activity.
	fine bool
}

func watch(mem *memory.Process) activity {
	had, ok := proc.ProcessorTime(mem.PID())
	return activity{mem.PID(), had, ok && proc.FineClock() && mem.Live()}
}

// ran reports whether the process certainly ran since then. False may mean unknown.
func (a activity) ran() bool {
	had, ok := proc.ProcessorTime(a.pid)
	return a.fine && ok && had != a.had
}

// rested reports whether the process certainly did not run since then. False may mean unknown.
func (a activity) rested() bool {
	had, ok := proc.ProcessorTime(a.pid)
	return a.fine && ok && had == a.had && !proc.Running(a.pid) && !a.ran()
}
