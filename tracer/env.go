package tracer

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/ringbuf"
	"golang.org/x/sys/unix"

	"tt-memtrace/aggregator/exact"
	"tt-memtrace/bpf"
	"tt-memtrace/internal/discover"
	"tt-memtrace/internal/proc"
	"tt-memtrace/internal/watch"
)

// env is what the drain, the runs and the goroutines that attach probes share: the options, the loaded BPF programs,
// and what they leave for each other.
type env struct {
	opts    Options
	began   uint64 // ticks
	lacks   Lacks
	objects bpf.MemtraceObjects
	// bpfPrograms maps a BPF program's name to it.
	bpfPrograms map[string]*ebpf.Program
	reader      *ringbuf.Reader
	// readerMu keeps the ring buffer mapped while Backlog reads its size.
	readerMu     sync.Mutex
	readerClosed bool
	// newest is the time of the newest record read; caughtUp is when the drain last found the ring empty (see lag).
	// CLOCK_MONOTONIC, ns.
	newest, caughtUp atomic.Uint64
	finder           *discover.Finder
	// started is set once all processes that existed at the start were examined.
	started atomic.Bool
	// found queues PIDs to examine.
	found      *watch.PIDQueue
	watched    watched
	unexamined unexamined
	filled     filled
	targets    targets
	// over is set when all of Options.PIDs have ended.
	over atomic.Bool
	// openings counts the runs in which a device is opening whose chips are unknown.
	openings atomic.Int32
	history  lossHistory
	// interpreters counts the interpreters that the BPF programs got. It distinguishes code objects of processes whose
	// PID and addresses can be the same.
	interpreters atomic.Uint64
	failed       atomic.Uint64 // attachments that failed
	// unreserved counts allocations whose reserved size was neither computed nor probed.
	unreserved atomic.Uint64
	// sendStacks is what the user wants; the drain passes changes on to the BPF programs.
	sendStacks atomic.Bool
	freeing    *time.Timer // returns freed memory to the kernel

	// syncs are closed once all that happened before has reached the sink.
	syncs mailbox[chan struct{}]
}

// scope returns the PID for which probes are attached that see a process; 0 is all processes.
func (e *env) scope(pid uint32) uint32 {
	if e.perPID() {
		return pid
	}
	return 0
}

// catchesUp notes that the drain has read everything.
func (e *env) catchesUp() { e.caughtUp.Store(proc.Now()) }

// wakeDrain has the drain begin another pass.
func (e *env) wakeDrain() {
	if e.reader != nil {
		_ = e.reader.Flush() // fails if tracing has ended
	}
}

// scheduleFreeOSMemory returns memory to the kernel at the next pause. Reading files and processes leaves behind
// several times what is kept of them, and the heap by itself shrinks slowly.
func (e *env) scheduleFreeOSMemory() { e.freeing.Reset(pause) }

const pause = time.Second

// perPID reports whether each traced process gets separate probes.
func (e *env) perPID() bool {
	n := len(e.opts.PIDs)
	return n > 0 && n <= maxOwnProbes && (e.lacks.MultiUprobes || !e.lacks.PIDFilter)
}

// watchExit makes the BPF programs report the process's exec and exit. It does not start to watch a process that is
// already ending. If such a process was watched before (reported), its end is reported, or already in the ring.
func (e *env) watchExit(pid uint32) (lives, reported bool, err error) {
	e.watched.mu.Lock()
	defer e.watched.mu.Unlock()
	is, err := e.watched.at(pid)
	if err != nil {
		return false, false, err
	}
	before := *is != 0
	if !before {
		*is = 1
	}
	lives = proc.Alive(pid)
	if !lives && !before {
		*is = 0
	}
	return lives, lives || before, nil
}

// mailbox is what other goroutines leave for a run or the drain. That waits for its lock, so it is held only for a
// moment.
type mailbox[T any] struct {
	mu   sync.Mutex
	list []T
}

func (m *mailbox[T]) put(v T) {
	m.mu.Lock()
	m.list = append(m.list, v)
	m.mu.Unlock()
}

// take returns what is in the mailbox, once.
func (m *mailbox[T]) take() []T {
	m.mu.Lock()
	defer m.mu.Unlock()
	list := m.list
	m.list = nil
	return list
}

// keep takes out of the mailbox what is not to be kept.
func (m *mailbox[T]) keep(keep func(T) bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.list = slices.DeleteFunc(m.list, func(v T) bool { return !keep(v) })
}

// empty reports whether nothing is in the mailbox.
func (m *mailbox[T]) empty() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.list) == 0
}

// watched are the processes whose exec and exit the BPF programs report. If not all processes are traced, they are
// also the only traced ones. The BPF programs write to the same map, so changes go to the mapped page, byte by byte.
type watched struct {
	mu  sync.Mutex
	all *ebpf.Map
	// page is the page of the map that was used last, and number its index. Mapping all pages would be a twelfth of
	// this program's memory.
	page   []byte
	number uint32
}

// pidsInPage is TT_PIDS_IN_PAGE of events.h.
const pidsInPage = uint32(len(bpf.MemtraceTtPids{}.Is))

// at returns the byte of a process.
func (w *watched) at(pid uint32) (*byte, error) {
	if number := pid / pidsInPage; w.page == nil || w.number != number {
		page, err := unix.Mmap(w.all.FD(), int64(number)*int64(pidsInPage), int(pidsInPage), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		if err != nil {
			return nil, fmt.Errorf("watching process %d: %w", pid, err)
		}
		if err := w.unmap(); err != nil {
			return nil, err
		}
		w.page, w.number = page, number
	}
	return &w.page[pid%pidsInPage], nil
}

func (w *watched) unmap() error {
	if w.page == nil {
		return nil
	}
	err := unix.Munmap(w.page)
	w.page = nil
	return err
}

func (w *watched) close() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.unmap()
}

// has reports whether a process is watched.
func (w *watched) has(pid uint32) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	is, err := w.at(pid)
	return err == nil && *is != 0
}

// Options say what to trace.
type Options struct {
	// PIDs to trace; other processes then cost nothing.
	PIDs []uint32
	// Follow traces only the descendants of this process, across exec. Set it to the tracer's own PID before starting
	// a command.
	Follow uint32
	// Libraries are files that contain the runtime under another name than its own.
	Libraries []string
	// RingBytes is the size of the ring buffer, a power of two; 0 for DefaultRingBytes.
	RingBytes uint32
	// Stacks adds the thread's stack to each allocation and free. Failures always have theirs.
	Stacks bool
	// StacksPaused, with Stacks, sends no stacks until SendStacks asks for them.
	StacksPaused bool
	// Lacks lists features that the tracer treats as missing even if the kernel has them, for tests.
	Lacks Lacks
	// Notice receives one line that the user should know, such as why a process cannot be traced. It may be called
	// from any goroutine.
	Notice func(string)
}

// DefaultRingBytes holds a hundred thousand allocations and frees: a tenth of a second at a million a second.
const DefaultRingBytes = 8 << 20

// Lacks names features of newer kernels that this one lacks.
type Lacks struct {
	// MultiUprobes, from Linux 6.6: one link for all probes in a library. Without them each probe has a perf event of
	// its own.
	MultiUprobes bool
	// PIDFilter, from Linux 6.10 and later versions of 6.6 and 6.9: multi-uprobes with a PID are hit by all threads
	// of the process. Without it the probes are hit by all processes, and the BPF programs skip those that are not
	// traced.
	PIDFilter bool
}

// maxOwnProbes is the most processes that get separate probes. A hit runs through the probes of all of them to
// find the right one; the map of traced processes costs the same for any number.
const maxOwnProbes = 4

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

// filled counts entries that a run sees while it walks a table.
type filled struct{ launches atomic.Uint64 }

// kernelCounters sums the BPF programs' counters over all CPUs.
func (e *env) kernelCounters() (bpf.MemtraceTtCounters, error) {
	var sum bpf.MemtraceTtCounters
	var each []bpf.MemtraceTtCounters
	if err := e.objects.Counters.Lookup(uint32(0), &each); err != nil {
		return sum, fmt.Errorf("reading the counters: %w", err)
	}
	for _, c := range each {
		for i := range c.Seen {
			sum.Seen[i] += c.Seen[i]
			sum.Lost[i] += c.Lost[i]
			sum.Unread[i] += c.Unread[i]
		}
		sum.Hooked += c.Hooked
		sum.Truncated += c.Truncated
		sum.Unreserved += c.Unreserved
		sum.Clipped += c.Clipped
		sum.Uncounted += c.Uncounted
	}
	sum.Unreserved += e.unreserved.Load()
	return sum, nil
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

// lossCounts are counters of losses, as they were when they were last read.
type lossCounts struct {
	countedAt uint64
	// lossCounted is when a loss was last found, in proc.Ticks.
	lossCounted uint64
	// lost counts lost events, without those that the accounts do not need. Among these, lostParts make up programs.
	lost, lostParts uint64
	// missed counts, by kind, the records that were lost or could not be sent.
	missed [bpf.MemtraceTtKindTT_KINDS]uint64
	// lostUncounted is how many lost records may have said that a launch was not counted.
	lostUncounted uint64
}

// lossHistory is what a run that begins has to know of earlier losses.
type lossHistory struct {
	mu     sync.Mutex
	counts lossCounts
	raised map[exact.ReasonCode]moment
	// reported is how many lost records were reported, each once, whichever run finds it.
	reported uint64
}

// now returns the counts of the last loss, and the reasons that were raised for losses.
func (h *lossHistory) now() (counts lossCounts, raised map[exact.ReasonCode]moment) {
	h.mu.Lock()
	defer h.mu.Unlock()
	raised = map[exact.ReasonCode]moment{}
	maps.Copy(raised, h.raised)
	return h.counts, raised
}

func (h *lossHistory) raise(code exact.ReasonCode, when moment) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.raised == nil {
		h.raised = map[exact.ReasonCode]moment{}
	}
	h.raised[code] = when
}

// report returns how many of the lost records were not reported yet, which is then done.
func (h *lossHistory) report(counts lossCounts) (unreported uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if counts.lost != h.counts.lost {
		h.counts = counts
	}
	unreported = max(counts.lost, h.reported) - h.reported
	h.reported += unreported
	return unreported
}

// moment is one time on two clocks: the watcher's (CLOCK_MONOTONIC, ns) and the kernel's for process starts
// (proc.Ticks).
type moment struct{ at, ticks uint64 }

func momentNow() moment { return moment{proc.Now(), proc.Ticks()} }
