package ui

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"tt-memtrace/aggregator"
)

// Log is a bounded list of changes. A source adds changes in their order, and the events view reads the newest. Adding
// an allocation or a free takes some tens of nanoseconds and, unless its set of chips is new, allocates no memory.
// Several goroutines may use it.
type Log struct {
	mu      sync.Mutex
	entries []logEntry
	// next is the number of the next entry. Entries are numbered from 0, overwritten ones included.
	next  uint64
	sets  [][]aggregator.Chip
	last  int
	marks []mark
	// commands are the commands of live processes, by PID.
	commands map[uint32]string
	// failures are the newest allocations that failed, at most maxFailures.
	failures []failure
	// failed is the number of the newest failure; equal failures in a row count as one.
	failed uint64
	// refused is how many allocations failed since the last reset; each counts.
	refused uint64
	// floor is the number of the first entry since the last reset, and round the number of resets.
	floor uint64
	round atomic.Uint64
	// events counts the calls of Event.
	events atomic.Uint64
}

// Bounds of a Log.
const (
	maxEntries = 1 << 15
	maxMarks   = 512
	maxSets    = 1 << 10
)

// NewLog returns an empty log.
func NewLog() *Log {
	return &Log{entries: make([]logEntry, maxEntries), commands: map[uint32]string{}}
}

// logKind says what happened, in the original server's names where it has one.
type logKind uint8

const (
	logAlloc logKind = iota
	logFree
	logCBAlloc
	logCBFree
	logDFBAlloc
	logDFBFree
	logScratchpadAlloc
	logScratchpadFree
	logUnsafe
	logKernelLoad
	logKernelUnload
	logStart
	logExit
	logOpen
	logClose
	logLost
	// An allocation failed, or a program could not be placed: of all kinds but the two that follow.
	logFailed
	logClash
	logOutOfMemory
	numLogKinds
)

var logKindNames = [numLogKinds]string{
	"ALLOC", "FREE", "CB_ALLOC", "CB_FREE", "DFB_ALLOC", "DFB_FREE", "SCRATCHPAD_ALLOC", "SCRATCHPAD_FREE", "UNSAFE", "KERNEL_LOAD", "KERNEL_UNLOAD",
	"START", "EXIT", "OPEN", "CLOSE", "LOST", "FAILED", "CB_CLASH", "OUT_OF_MEMORY",
}

func (k logKind) String() string { return logKindNames[k] }

// logEntry is one change. There are many, so it is small.
type logEntry struct {
	time uint64
	// size is that of a buffer on each chip, also of one that was not allocated; that of a circular buffer on each
	// core, or of a kernel; or the number of lost events.
	size, address uint64
	// object is the address of the buffer, device or program in the process; 0 for none.
	object   uint64
	pid, tid uint32
	// command is the process's command at that time. text is a kernel's name, the runtime's message, how the process
	// ended, or which trace was replayed.
	command, text string
	// cores is the number of cores of a circular or dataflow buffer or a scratchpad.
	cores uint32
	// chips is the number of a set of chips, from 1 on; 0 for none, or if there are too many sets.
	chips  uint16
	kind   logKind
	memory aggregator.Memory
	// implicit means that no call freed this buffer by itself; unknown, that its allocation was not seen.
	implicit, unknown bool
}

// mark is an event that the charts show on their time axis.
type mark struct {
	time uint64
	kind logKind
	pid  uint32
	// command is the process's command at that time.
	command string
	// exit says how the process ended.
	exit  string
	count uint64
	// memory is the memory that had no room, for a failure of this kind.
	memory  aggregator.Memory
	failure aggregator.FailureKind
	// started is when the process started, because PIDs are reused.
	started uint64
}

func (l *Log) add(e logEntry) {
	e.command = l.commands[e.pid]
	l.entries[l.next%maxEntries] = e
	l.next++
}

// set returns the number of a set of chips; 0 if it is empty, or new and there are maxSets already. There are few sets,
// and most often it is the last one again.
func (l *Log) set(chips []aggregator.Chip) uint16 {
	if len(chips) == 0 {
		return 0
	}
	if l.last < len(l.sets) && slices.Equal(l.sets[l.last], chips) {
		return uint16(l.last + 1)
	}
	for i := range l.sets {
		if slices.Equal(l.sets[i], chips) {
			l.last = i
			return uint16(i + 1)
		}
	}
	if len(l.sets) == maxSets {
		return 0
	}
	l.sets = append(l.sets, slices.Clone(chips))
	l.last = len(l.sets) - 1
	return uint16(len(l.sets))
}

// Event must be called with each event after the accounts have applied it, and before a snapshot includes it. It adds
// starts and exits of processes, opened and closed devices, and losses. Change, CBChange and the like add the rest.
func (l *Log) Event(e *aggregator.Event) {
	l.events.Add(1)
	if e.Kind != aggregator.Alloc && e.Kind != aggregator.Free {
		l.event(e)
	}
}

// maxLogText is how many bytes of a command or message are kept.
const maxLogText = 320

func short(s string) string { return strings.Clone(s[:min(len(s), maxLogText)]) }

func (l *Log) event(e *aggregator.Event) {
	n := logEntry{time: e.Time, pid: e.PID, tid: e.TID}
	var started uint64
	var command string
	switch e.Kind {
	case aggregator.ProcessStart:
		n.kind = logStart
		if e.Process != nil {
			command, started = short(e.Process.Command), e.Process.Started
		}
	case aggregator.ProcessExit:
		n.kind = logExit
		switch { // the kind says that the process ended, and the column is narrow
		case e.Exit == nil:
		case e.Exit.Signal != 0:
			n.text = e.Exit.SignalName()
		default:
			n.text = fmt.Sprintf("status %d", e.Exit.Status)
		}
	case aggregator.DeviceOpen:
		n.kind, n.object = logOpen, e.Device
	case aggregator.DeviceClose:
		n.kind, n.object = logClose, e.Device
	case aggregator.Lost:
		n.kind, n.size = logLost, e.Count
	case aggregator.StateBegin: // a state lists all processes
		l.mu.Lock()
		clear(l.commands)
		l.mu.Unlock()
		return
	default:
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if e.Process != nil {
		l.commands[e.PID] = command
	}
	if e.Opened != nil {
		n.chips = l.set(e.Opened.Chips)
	}
	l.add(n)
	l.mark(mark{time: n.time, kind: n.kind, pid: n.pid, count: e.Count, started: started, exit: e.Exit.String()})
	if n.kind == logExit {
		delete(l.commands, e.PID)
	}
}

// AllocationFailed adds an allocation that failed. It returns the failure's number, and whether to explain it: not if
// the process repeats a failed allocation with the same numbers, nor if there were too many lately.
func (l *Log) AllocationFailed(e *aggregator.Event) (number uint64, explain bool) {
	n := logEntry{time: e.Time, pid: e.PID, tid: e.TID, kind: failureLogKind(e.Failure.Kind), memory: e.Memory, size: e.Failure.Asked, text: short(e.Failure.Message), object: e.Program}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.add(n)
	l.mark(mark{time: n.time, kind: n.kind, pid: n.pid, count: 1, memory: n.memory, failure: e.Failure.Kind})
	return l.fail(e)
}

// mark adds an event for the charts. It merges repeated ones: a process can be described several times, and losses and
// failures come in series.
func (l *Log) mark(m mark) {
	m.command = l.commands[m.pid]
	switch m.kind {
	case logLost, logFailed, logClash, logOutOfMemory:
		if n := len(l.marks); n > 0 {
			last := &l.marks[n-1]
			if last.kind == m.kind && last.pid == m.pid && last.memory == m.memory && last.failure == m.failure && m.time-last.time < 1e9 {
				last.count += m.count
				return
			}
		}
	case logStart:
		for _, old := range l.marks {
			if old.kind == logStart && old.pid == m.pid && old.started == m.started {
				return
			}
		}
	case logExit:
	default:
		return
	}
	if len(l.marks) == maxMarks {
		l.marks = slices.Delete(l.marks, 0, maxMarks/4)
	}
	l.marks = append(l.marks, m)
}

// Change adds a buffer that was allocated or freed.
func (l *Log) Change(c aggregator.Change) {
	n := logEntry{
		time: c.Time, size: c.Buffer.Size, address: c.Buffer.Address, object: c.Buffer.ID, pid: c.PID, tid: c.TID,
		memory: c.Buffer.Memory, implicit: c.Implicit, unknown: c.Unknown,
	}
	if c.Freed {
		n.kind = logFree
	}
	l.mu.Lock()
	n.chips = l.set(c.Chips)
	l.add(n)
	l.mu.Unlock()
}

// Unsafe adds a buffer that a replay of a trace may have overwritten.
func (l *Log) Unsafe(c aggregator.Change) {
	n := logEntry{
		time: c.Time, size: c.Buffer.Size, address: c.Buffer.Address, object: c.Buffer.ID, pid: c.PID, tid: c.TID,
		memory: c.Buffer.Memory, kind: logUnsafe, text: fmt.Sprintf("trace %d was replayed", c.Buffer.Unsafe.Trace),
	}
	if c.Buffer.Unsafe.Overlaps {
		n.text += ", whose capture used this memory"
	}
	l.mu.Lock()
	n.chips = l.set(c.Chips)
	l.add(n)
	l.mu.Unlock()
}

// CBChange adds a circular or dataflow buffer or a scratchpad that was placed on or removed from a chip.
func (l *Log) CBChange(c aggregator.CBChange) {
	n := logEntry{
		time: c.Time, size: c.CB.Size, address: c.CB.Address, pid: c.PID, cores: uint32(c.CB.Cores()), memory: aggregator.L1, kind: logCBAlloc,
	}
	switch c.CB.Kind {
	case aggregator.Dataflow:
		n.kind = logDFBAlloc
	case aggregator.Scratchpad:
		n.kind = logScratchpadAlloc
	}
	if c.Freed {
		n.kind++
	}
	one := [1]aggregator.Chip{c.Chip}
	l.mu.Lock()
	n.chips = l.set(one[:])
	l.add(n)
	l.mu.Unlock()
}

// KernelChange adds a kernel's binary that was loaded for a chip, or unloaded.
func (l *Log) KernelChange(c aggregator.KernelChange) {
	n := logEntry{time: c.Time, size: c.Kernel.Bytes, object: c.Program, pid: c.PID, text: c.Kernel.Name, memory: aggregator.L1, kind: logKernelLoad}
	if c.Unloaded {
		n.kind = logKernelUnload
	}
	one := [1]aggregator.Chip{c.Chip}
	l.mu.Lock()
	n.chips = l.set(one[:])
	l.add(n)
	l.mu.Unlock()
}

// reset removes all entries, marks and failures, because the user moved a replay back, and its events come again.
func (l *Log) reset() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.floor, l.marks, l.failures, l.refused = l.next, nil, nil, 0
	l.round.Add(1)
}

func (l *Log) marked() []mark {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.marks)
}

// since appends the entries from this number on to a list, except for overwritten ones and those before the last reset,
// and returns the number of the next entry.
func (l *Log) since(from uint64, list []logEntry) ([]logEntry, uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	from = max(from, l.next-min(l.next, maxEntries), l.floor)
	for from < l.next {
		at := from % maxEntries
		n := min(l.next-from, maxEntries-at)
		list = append(list, l.entries[at:at+n]...)
		from += n
	}
	return list, l.next
}

// upTo returns the number of the next entry.
func (l *Log) upTo() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.next
}

// chipSets returns the sets that entries refer to. Later calls only add sets.
func (l *Log) chipSets() [][]aggregator.Chip {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.sets[:len(l.sets):len(l.sets)]
}

// frozenLog is a copy of a Log's entries that does not change.
type frozenLog struct {
	entries []logEntry
	next    uint64
}

func (l *Log) freeze() *frozenLog {
	list, next := l.since(0, nil)
	return &frozenLog{list, next}
}

func (h *frozenLog) upTo() uint64 { return h.next }

func (h *frozenLog) since(from uint64, list []logEntry) ([]logEntry, uint64) {
	first := h.next - uint64(len(h.entries))
	from = max(from, first)
	if from >= h.next {
		return list, from
	}
	return append(list, h.entries[from-first:]...), h.next
}
