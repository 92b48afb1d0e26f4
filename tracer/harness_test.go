package tracer

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"tt-memtrace/aggregator"
	"tt-memtrace/bpf"
	"tt-memtrace/internal/proc"
	"tt-memtrace/internal/relay"
)

// patience bounds a wait for what is bound to happen; it is not expected to be reached.
const patience = 3 * time.Minute

// trace is a running tracer with its accounts.
type trace struct {
	t      *testing.T
	tracer *Tracer
	cancel context.CancelFunc
	done   chan error

	mu        sync.Mutex
	accounts  *aggregator.Aggregator
	delivered map[aggregator.Kind]uint64
	placed    []aggregator.Event
	allocated aggregator.Event // the last
	// oldest is how old an allocation of a process was at the most when it came here.
	oldest map[uint32]time.Duration
	// ended is how the programs of a process ended.
	ended   map[uint32][]*aggregator.Exit
	notices []string
	// changed has something whenever the accounts or notices may have.
	changed chan struct{}
	// holding, where set, keeps the reader when it next delivers events.
	holding atomic.Pointer[hold]
}

// hold keeps the reader from when it is there until it may go.
type hold struct{ there, release chan struct{} }

// hold has the reader wait where it delivers an event that a process makes, until release is called.
func (tr *trace) hold(event func()) (release func()) {
	h := &hold{make(chan struct{}), make(chan struct{})}
	tr.holding.Store(h)
	event()
	<-h.there
	return sync.OnceFunc(func() { close(h.release) })
}

// announces reports whether a process was found whose announcement still waits for its run.
func (tr *trace) announces(pid uint32) bool {
	announced := &tr.tracer.attacher.runs.Of(pid).Mail.announced
	announced.mu.Lock()
	defer announced.mu.Unlock()
	return slices.ContainsFunc(announced.list, func(a announcement) bool { return a.mapping.PID == pid })
}

func needRights(t *testing.T) {
	t.Helper()
	if err := CheckRights(); err != nil {
		t.Skip(err)
	}
}

func start(t *testing.T, o Options) *trace {
	t.Helper()
	needRights(t)
	tr := &trace{t: t, accounts: aggregator.New(), oldest: map[uint32]time.Duration{}, ended: map[uint32][]*aggregator.Exit{}, delivered: map[aggregator.Kind]uint64{},
		done: make(chan error, 1), changed: make(chan struct{}, 1)}
	o.Lacks = lacking(t)
	o.Notice = func(s string) {
		if strings.HasPrefix(s, "this kernel") {
			return // TestOlderKernels reads it
		}
		tr.mu.Lock()
		tr.notices = append(tr.notices, s)
		tr.mu.Unlock()
		tr.change()
	}
	var err error
	if tr.tracer, err = New(o); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	tr.cancel = cancel
	ready := make(chan struct{})
	go func() {
		tr.done <- tr.tracer.Run(ctx, func() { close(ready) }, func(events []aggregator.Event) {
			if h := tr.holding.Swap(nil); h != nil {
				close(h.there)
				<-h.release
			}
			tr.mu.Lock()
			for i := range events {
				tr.delivered[events[i].Kind]++
				if events[i].Kind == aggregator.CBPlaced {
					tr.placed = append(tr.placed, events[i])
				}
				if events[i].Kind == aggregator.Alloc {
					tr.allocated = events[i]
					tr.oldest[events[i].PID] = max(tr.oldest[events[i].PID], time.Duration(proc.Now()-events[i].Time))
				}
				if events[i].Kind == aggregator.ProcessExit {
					tr.ended[events[i].PID] = append(tr.ended[events[i].PID], events[i].Exit)
				}
				tr.accounts.Apply(&events[i])
			}
			tr.mu.Unlock()
			tr.change()
		})
	}()
	t.Cleanup(tr.stop)
	select {
	case <-ready:
	case err := <-tr.done:
		tr.done <- err
		t.Fatalf("the tracer ended: %v", err)
	}
	return tr
}

func (tr *trace) change() {
	select {
	case tr.changed <- struct{}{}:
	default:
	}
}

// stop ends the tracer and detaches it.
func (tr *trace) stop() {
	if tr.cancel == nil {
		return
	}
	tr.cancel()
	tr.cancel = nil
	if err := <-tr.done; err != nil {
		tr.t.Errorf("tracing: %v", err)
	}
	if err := tr.tracer.Close(); err != nil {
		tr.t.Errorf("detaching: %v", err)
	}
}

// sync waits until all that happened so far is in the accounts.
func (tr *trace) sync() {
	tr.t.Helper()
	ctx, cancel := context.WithTimeout(tr.t.Context(), patience)
	defer cancel()
	if err := tr.tracer.Sync(ctx); err != nil {
		tr.t.Fatal(err)
	}
}

// await waits for something that no Sync covers.
func (tr *trace) await(what string, holds func() bool) {
	tr.t.Helper()
	late := time.After(patience)
	for !holds() {
		select {
		case <-tr.changed:
		case <-late:
			tr.mu.Lock()
			defer tr.mu.Unlock()
			tr.t.Fatalf("it never happened: %s; notices %q", what, tr.notices)
		}
	}
}

func (tr *trace) snapshot() *aggregator.Snapshot {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	return tr.accounts.Snapshot()
}

// lookup is a process's accounts, if there are any.
func (tr *trace) lookup(pid uint32) (aggregator.ProcessSnapshot, bool) {
	list := tr.snapshot().Processes
	i := slices.IndexFunc(list, func(p aggregator.ProcessSnapshot) bool { return p.PID == pid })
	if i < 0 {
		return aggregator.ProcessSnapshot{}, false
	}
	return list[i], true
}

// process is a process's accounts after all that happened.
func (tr *trace) process(pid uint32) aggregator.ProcessSnapshot {
	tr.t.Helper()
	tr.sync()
	p, ok := tr.lookup(pid)
	if !ok {
		tr.t.Fatalf("process %d is in no account", pid)
	}
	return p
}

func (tr *trace) awaitProcess(pid uint32) {
	tr.t.Helper()
	tr.await(fmt.Sprintf("process %d is found", pid), func() bool { _, ok := tr.lookup(pid); return ok })
}

func (tr *trace) buffers(pid uint32) []aggregator.BufferSnapshot {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	return tr.accounts.Buffers(pid)
}

func (tr *trace) counters() bpf.MemtraceTtCounters {
	tr.t.Helper()
	c, err := tr.tracer.Counters()
	if err != nil {
		tr.t.Fatal(err)
	}
	return c
}

// losesOne waits until one record of each kind is lost. A record that still found room in the BPF ring buffer is lost
// once the drain finds none for it in the run's inbox.
func (tr *trace) losesOne(kinds ...bpf.MemtraceTtKind) {
	tr.t.Helper()
	for late := time.Now().Add(patience); ; {
		lost := tr.counters().Lost
		if !slices.ContainsFunc(kinds, func(k bpf.MemtraceTtKind) bool { return lost[k] != 1 }) {
			return
		}
		if time.Now().After(late) {
			tr.t.Errorf("they are not lost: %+v", lost)
			return
		}
	}
}

// buffersSeen are the kernel's count of probe hits, and those of them that were lost.
func buffersSeen(c bpf.MemtraceTtCounters) (seen, lost uint64) {
	for _, k := range []bpf.MemtraceTtKind{bpf.MemtraceTtKindTT_ALLOC, bpf.MemtraceTtKindTT_FREE} {
		seen += c.Seen[k]
		lost += c.Lost[k]
	}
	return seen, lost
}

// says is whether there is a notice with this in it.
func (tr *trace) says(part string) bool {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	return slices.ContainsFunc(tr.notices, func(n string) bool { return strings.Contains(n, part) })
}

// noticed fails the test unless there are exactly these notices, in parts.
func (tr *trace) noticed(parts ...string) {
	tr.t.Helper()
	tr.mu.Lock()
	defer tr.mu.Unlock()
	if len(tr.notices) != len(parts) {
		tr.t.Errorf("notices %q", tr.notices)
		return
	}
	for i, p := range parts {
		if !strings.Contains(tr.notices[i], p) {
			tr.t.Errorf("the notice %q does not say %q", tr.notices[i], p)
		}
	}
}

// links are how many there are to probes.
func (tr *trace) links() (n int) {
	tr.tracer.attacher.mu.Lock()
	defer tr.tracer.attacher.mu.Unlock()
	for _, s := range tr.tracer.attacher.libraries.sets() {
		for _, links := range s.links {
			n += len(links)
		}
	}
	return n
}

// runOf returns a run that nothing is handed to.
func runOf(a *attacher, sink func([]aggregator.Event)) *run {
	return newRun(a, relay.NewInbox(a.runs), sink)
}
