package tracer

import (
	"errors"
	"time"

	"github.com/cilium/ebpf"

	"tt-memtrace/bpf"
	"tt-memtrace/internal/proc"
)

// KindNames are the names of record kinds, by number; kind 0 has none.
var KindNames = [bpf.MemtraceTtKindTT_KINDS]string{
	bpf.MemtraceTtKindTT_ALLOC:          "alloc",
	bpf.MemtraceTtKindTT_FREE:           "free",
	bpf.MemtraceTtKindTT_ALLOCATOR_GONE: "allocator_gone",
	bpf.MemtraceTtKindTT_DEVICE_OPEN:    "device_open",
	bpf.MemtraceTtKindTT_DEVICE_CLOSE:   "device_close",
	bpf.MemtraceTtKindTT_CB:             "cb",
	bpf.MemtraceTtKindTT_PROGRAM_GONE:   "program_gone",
	bpf.MemtraceTtKindTT_EXEC:           "exec",
	bpf.MemtraceTtKindTT_EXIT:           "exit",
	bpf.MemtraceTtKindTT_KERNEL_ADDED:   "kernel_added",
	bpf.MemtraceTtKindTT_KERNEL_FILE:    "kernel_file",
	bpf.MemtraceTtKindTT_KERNEL_COPY:    "kernel_copy",
	bpf.MemtraceTtKindTT_PROGRAM_ADDED:  "program_added",
	bpf.MemtraceTtKindTT_WORKLOAD_NAMED: "workload_named",
	bpf.MemtraceTtKindTT_WORKLOAD_GONE:  "workload_gone",
	bpf.MemtraceTtKindTT_SCRATCHPADS:    "scratchpads",
	bpf.MemtraceTtKindTT_REFUSED:        "failure",
	bpf.MemtraceTtKindTT_STACK:          "stack",
	bpf.MemtraceTtKindTT_CODE:           "python_code",
	bpf.MemtraceTtKindTT_SHARDED:        "sharded_buffer",
	bpf.MemtraceTtKindTT_PER_CORE:       "per_core_buffer",
	bpf.MemtraceTtKindTT_PERSISTENT:     "persistent_l1",
	bpf.MemtraceTtKindTT_RESIZED:        "allocator_resized",
	bpf.MemtraceTtKindTT_HOOKED:         "hooked_allocation",
	bpf.MemtraceTtKindTT_TRACE:          "trace",
	bpf.MemtraceTtKindTT_MARK:           "corruptible_mark",
	bpf.MemtraceTtKindTT_UNREAD:         "unread",
}

// Failed returns how often attaching probes failed for a library whose layouts are known.
func (t *Tracer) Failed() uint64 { return t.failed.Load() }

// Fill says how full a table of the BPF programs is. What finds no room in it is not traced, or not counted.
type Fill struct {
	// Table is "launches", "libraries" or "interpreters".
	Table             string
	Entries, Capacity uint64
}

// Fills returns how full the BPF programs' tables are; nil if they cannot be read, as after Close.
func (t *Tracer) Fills() []Fill {
	list := []Fill{
		{"launches", t.filled.launches.Load(), uint64(t.objects.Launches.MaxEntries())},
	}
	n, err := keys(t.objects.Pythons)
	if err != nil {
		return nil
	}
	list = append(list, Fill{"interpreters", n, uint64(t.objects.Pythons.MaxEntries())})
	t.attacher.mu.Lock()
	defer t.attacher.mu.Unlock()
	return append(list, Fill{"libraries", t.attacher.libraries.builds(), uint64(t.attacher.libraries.room.all)})
}

// keys counts the keys of a map of PIDs. If keys are deleted during that, the iteration can start over; so it stops at
// the map's capacity.
func keys(m *ebpf.Map) (n uint64, err error) {
	var key uint32
	var last any
	for most := uint64(m.MaxEntries()); n < most; n++ {
		if err := m.NextKey(last, &key); errors.Is(err, ebpf.ErrKeyNotExist) {
			return n, nil
		} else if err != nil {
			return 0, err
		}
		last = key
	}
	return n, nil
}

// Refused returns how many mapped files contain the runtime but cannot be traced: processes that use them are in no
// account.
func (t *Tracer) Refused() int {
	t.attacher.mu.Lock()
	defer t.attacher.mu.Unlock()
	n := 0
	for _, r := range t.attacher.refusals.refused {
		if r.why != nil {
			n++
		}
	}
	return n
}

// Behind returns for how long events have waited to be taken in; 0 if none waits. It may be called from any goroutine,
// at any time.
func (t *Tracer) Behind() time.Duration {
	behind, _ := t.lags()
	return behind
}

// Stuck returns for how long events have waited while the drain, or a user's run, read none; 0 if all go on. A run can
// be behind for long because its user's processes make it wait. It may be called from any goroutine, at any time.
func (t *Tracer) Stuck() time.Duration {
	_, stuck := t.lags()
	return stuck
}

func (t *Tracer) lags() (behind, stuck time.Duration) {
	inRing, _ := t.ring()
	l := lag{time.Duration(t.caughtUp.Load()), time.Duration(t.newest.Load())}
	behind = l.of(proc.Monotonic(), inRing > 0)
	stuck = behind
	for _, in := range t.attacher.runs.All() {
		_, waited, still := in.Waiting()
		behind, stuck = max(behind, waited), max(stuck, still)
	}
	return behind, stuck
}

// lag says how far behind the drain is with the BPF ring buffer. No single clock shows that: after a quiet hour the
// newest event is an hour old when the next one arrives, and on a busy host something always waits. So the lag is the
// age of the newest event read, but at most the time since the drain caught up, by reading everything or by waking up.
// caughtUp is 0 while it sleeps.
type lag struct{ caughtUp, newest time.Duration }

func (l lag) of(now time.Duration, waiting bool) time.Duration {
	if !waiting || l.caughtUp == 0 {
		return 0
	}
	return max(min(now-l.caughtUp, now-l.newest), 0)
}

// Backlog returns how many bytes of events wait, and for how many there is room before events are lost: in the BPF ring
// buffer or, if more wait there, for one user's run. Both are 0 after Close. It may be called from any goroutine.
func (t *Tracer) Backlog() (waiting, size uint64) {
	waiting, size = t.ring()
	for _, in := range t.attacher.runs.All() {
		bytes, _, _ := in.Waiting()
		waiting = max(waiting, min(uint64(bytes), size))
	}
	return waiting, size
}

// ring returns how many bytes wait in the BPF ring buffer, and its size; both 0 after Close.
func (t *Tracer) ring() (waiting, size uint64) {
	t.readerMu.Lock()
	defer t.readerMu.Unlock()
	if t.reader == nil || t.readerClosed {
		return 0, 0
	}
	return uint64(t.reader.AvailableBytes()), uint64(t.reader.BufferSize())
}

// closeReader unmaps the ring buffer.
func (t *Tracer) closeReader() {
	t.readerMu.Lock()
	defer t.readerMu.Unlock()
	if t.reader != nil {
		t.reader.Close()
		t.readerClosed = true
	}
}

// Counters sums the BPF programs' counters over all CPUs. Lost includes records that found no room later.
func (t *Tracer) Counters() (bpf.MemtraceTtCounters, error) {
	c, err := t.kernelCounters()
	for kind, n := range t.attacher.runs.Lost() {
		c.Lost[kind] += n
	}
	return c, err
}
