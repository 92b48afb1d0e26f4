package main

import (
	"sync"
	"time"

	"tt-memtrace/internal/memory"
	"tt-memtrace/internal/proc"
	"tt-memtrace/internal/telemetry"
)

// hostSystem returns a reader of this host's devices and processes, which waits for no process's memory for long.
func hostSystem() *telemetry.System {
	s := telemetry.New("/")
	a := newArguments(func(pid uint32) ([]string, error) { return memory.FilesOf(pid).Arguments() })
	s.ReadArguments(a.of)
	return s
}

// arguments reads the arguments of processes for callers that must not wait, such as the screen: arguments lie in a
// process's memory, which its user can keep from answering for seconds.
type arguments struct {
	read func(pid uint32) ([]string, error)
	wait *proc.Allowance

	mu sync.Mutex
	// asked are reads that were begun and whose results nobody has taken.
	asked map[uint32]*argumentsRead
}

// argumentsRead is a read; the fields are valid once done is closed.
type argumentsRead struct {
	done chan struct{}
	args []string
	err  error
}

// Callers wait for arguments for argumentsWait in a row, and for 1/argumentsShare of the time.
const (
	argumentsWait  = 50 * time.Millisecond
	argumentsShare = 20
)

// maxAsked bounds the reads that are kept.
const maxAsked = 4096

func newArguments(read func(pid uint32) ([]string, error)) *arguments {
	return &arguments{
		read: read, wait: proc.NewAllowance(argumentsWait, argumentsShare), asked: map[uint32]*argumentsRead{},
	}
}

// of returns a process's arguments. It fails with memory.ErrNoAnswer if they take too long; a later call may have them.
func (a *arguments) of(pid uint32) ([]string, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	r := a.asked[pid]
	if r == nil {
		if len(a.asked) >= maxAsked { // by processes that have ended
			clear(a.asked)
		}
		r = &argumentsRead{done: make(chan struct{})}
		a.asked[pid] = r
		go func() {
			r.args, r.err = a.read(pid)
			close(r.done)
		}()
	}
	began := time.Now()
	late := time.NewTimer(max(0, a.wait.Left()))
	defer late.Stop()
	select {
	case <-r.done:
	case <-late.C:
		select { // both may be ready
		case <-r.done:
		default:
			a.wait.Take(time.Since(began))
			return nil, memory.ErrNoAnswer
		}
	}
	a.wait.Take(time.Since(began))
	delete(a.asked, pid)
	return r.args, r.err
}
