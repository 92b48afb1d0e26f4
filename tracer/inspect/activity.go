package inspect

import (
	"time"

	"tt-memtrace/tracer/proc"
)

// activity is what a process had of processors when it began to be read, where the host kernel can tell.
type activity struct {
	pid uint32
	had time.Duration
	// fine: what it does shows.
	fine bool
}

func watch(pid uint32) activity {
	had, ok := proc.ProcessorTime(pid)
	return activity{pid, had, ok && proc.FineClock()}
}

// ran says that the process did something since then, and not that it did nothing.
func (a activity) ran() bool {
	had, ok := proc.ProcessorTime(a.pid)
	return a.fine && ok && had != a.had
}

// rested says that the process did nothing since then, and not that it did something.
func (a activity) rested() bool {
	had, ok := proc.ProcessorTime(a.pid)
	return a.fine && ok && had == a.had && !proc.Running(a.pid) && !a.ran()
}
