// Package e2e compares the accounts with the real runtime's own numbers, on
// mock chips, at rest points of real workloads.
package e2e

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"tt-memtrace/aggregator"
	"tt-memtrace/aggregator/exact"
	"tt-memtrace/bpf"
	"tt-memtrace/internal/sampler"
	"tt-memtrace/test/rig"
	"tt-memtrace/tracer"
)

// patience bounds a wait for the workload; it is not expected to be reached.
const patience = 3 * time.Minute

// installed is the runtime that the tests run: the default release, or the one
// in TT_MEMTRACE_RELEASE.
func installed(t *testing.T) *rig.Runtime {
	t.Helper()
	release := cmp.Or(os.Getenv("TT_MEMTRACE_RELEASE"), rig.DefaultRelease)
	r, err := rig.Install(t.Context(), release)
	if errors.Is(err, rig.ErrUnavailable) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// trace is a running tracer with its accounts.
type trace struct {
	t      *testing.T
	tracer *tracer.Tracer
	// sampler, where set, is the source in place of the tracer.
	sampler *sampler.Source
	cancel  context.CancelFunc
	done    chan error
	// delivered has an element after events of the sampler.
	delivered chan struct{}

	mu       sync.Mutex
	accounts *aggregator.Aggregator
	notices  []string
	// patience is for how long becomes waits, if that is another time than all tests' patience.
	patience time.Duration
	// excused are processes whose notices repeat a mark that the test expects.
	excused []int
	// alone: only the test's own processes are traced.
	alone bool
	// opened are the processes that had chips of these numbers, and missed what a probe could not read of a process, or send.
	opened map[uint32]map[uint32]bool
	missed map[uint32][]aggregator.Reason
	// events and batch, where set, are called before and after events are booked.
	events func([]aggregator.Event)
	event  func(*aggregator.Event)
	batch  func()
}

// start traces from now on. What is around the booking of events is called in
// place of it, and calls it.
func start(t *testing.T, o tracer.Options, around ...func(events []aggregator.Event, apply func())) *trace {
	t.Helper()
	return startWith(t, o, func(*trace) {}, around...)
}

// startWith lets prepare look at the trace before it begins.
func startWith(t *testing.T, o tracer.Options, prepare func(*trace), around ...func(events []aggregator.Event, apply func())) *trace {
	t.Helper()
	if err := tracer.CheckRights(); err != nil {
		t.Skip(err)
	}
	tr := &trace{t: t, accounts: aggregator.New(), done: make(chan error, 1), alone: o.Follow != 0 || len(o.PIDs) > 0,
		opened: map[uint32]map[uint32]bool{}, missed: map[uint32][]aggregator.Reason{}}
	o.Notice = func(s string) {
		// System-wide, there may be processes that are not the test's.
		if o.Follow == 0 && len(o.PIDs) == 0 && strings.HasPrefix(s, "process ") {
			t.Log(s)
			return
		}
		tr.mu.Lock()
		defer tr.mu.Unlock()
		tr.notices = append(tr.notices, s)
	}
	prepare(tr)
	var err error
	if tr.tracer, err = tracer.New(o); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	tr.cancel = cancel
	ready := make(chan struct{})
	go func() {
		tr.done <- tr.tracer.Run(ctx, func() { close(ready) }, func(events []aggregator.Event) {
			tr.mu.Lock()
			defer tr.mu.Unlock()
			aggregator.Expand(tr.accounts, events, func(part []aggregator.Event) { tr.apply(part, around) })
			if tr.batch != nil {
				tr.batch()
			}
		})
	}()
	t.Cleanup(func() { tr.stop() })
	select {
	case <-ready:
	case err := <-tr.done:
		tr.done <- err
		t.Fatalf("the tracer ended: %v", err)
	}
	return tr
}

// apply applies events that are no scans, and shows them to the test.
func (tr *trace) apply(events []aggregator.Event, around []func([]aggregator.Event, func())) {
	apply := func() {
		for i := range events {
			tr.accounts.Apply(&events[i])
			if tr.event != nil {
				tr.event(&events[i])
			}
		}
	}
	for _, f := range around {
		inner := apply
		apply = func() { f(events, inner) }
	}
	tr.note(events)
	if tr.events != nil {
		tr.events(events)
	}
	apply()
}

// note keeps of events what the accounts do not.
func (tr *trace) note(events []aggregator.Event) {
	for i := range events {
		switch e := &events[i]; {
		case e.Kind == aggregator.DeviceOpen && e.Opened != nil:
			for _, c := range e.Opened.Chips {
				if tr.opened[c.Number] == nil {
					tr.opened[c.Number] = map[uint32]bool{}
				}
				tr.opened[c.Number][e.PID] = true
			}
		case e.Kind == aggregator.ReasonRaised && e.Reason != nil && e.Reason.Code.Missed() && e.Reason.Detail == "":
			tr.missed[e.PID] = append(tr.missed[e.PID], *e.Reason)
		case e.Kind == aggregator.ProcessExit:
			delete(tr.missed, e.PID)
		}
	}
}

func (tr *trace) stop() {
	if tr.cancel == nil {
		return
	}
	tr.cancel()
	if err := <-tr.done; err != nil {
		tr.t.Errorf("tracing: %v", err)
	}
	if tr.tracer != nil {
		if err := tr.tracer.Close(); err != nil {
			tr.t.Errorf("detaching: %v", err)
		}
	}
	tr.cancel = nil
	for _, n := range tr.notices {
		ofExcused := func(pid int) bool { return strings.HasPrefix(n, fmt.Sprintf("process %d: ", pid)) }
		if !slices.ContainsFunc(tr.excused, ofExcused) {
			tr.t.Errorf("notice: %s", n)
		}
	}
}

// sync waits until all that happened so far is in the accounts.
func (tr *trace) sync() {
	tr.t.Helper()
	ctx, cancel := context.WithTimeout(tr.t.Context(), patience)
	defer cancel()
	wait := tr.tracer.Sync
	if tr.sampler != nil {
		wait = tr.sampler.Sync
	}
	if err := wait(ctx); err != nil {
		tr.t.Fatal(err)
	}
}

func (tr *trace) snapshot() *aggregator.Snapshot {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	return tr.accounts.Snapshot()
}

func (tr *trace) buffers(pid int) []aggregator.BufferSnapshot {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	return tr.accounts.Buffers(uint32(pid))
}

func (tr *trace) process(pid int) (aggregator.ProcessSnapshot, bool) {
	for _, p := range tr.snapshot().Processes {
		if p.PID == uint32(pid) {
			return p, true
		}
	}
	return aggregator.ProcessSnapshot{}, false
}

// liveBuffer is a live buffer, as the accounts and as the runtime list it.
type liveBuffer struct {
	chips   string
	memory  string
	address uint64
	perBank uint64
}

// compareLive orders live buffers, whoever listed them.
func compareLive(a, b liveBuffer) int {
	return cmp.Or(cmp.Compare(a.chips, b.chips), cmp.Compare(a.memory, b.memory), cmp.Compare(a.address, b.address), cmp.Compare(a.perBank, b.perBank))
}

func chipSet(chips []uint32) string {
	chips = slices.Clone(chips)
	slices.Sort(chips)
	return fmt.Sprint(chips)
}

// compare checks the accounts of a process against the runtime's own at a rest point.
func (tr *trace) compare(pid int, m rig.Message) {
	t := tr.t
	t.Helper()
	tr.sync()
	tr.awaitSizes(pid)
	tr.compareHeld(pid, m)
	p, _ := tr.process(pid)
	if p.Counters.UnmatchedFrees+p.Counters.Replaced+p.Counters.Odd > 0 {
		t.Errorf("rest %d: counters %+v", m.N, p.Counters)
	}
	if c := tr.snapshot().Counters; c.Lost > 0 {
		t.Errorf("rest %d: %d events lost", m.N, c.Lost)
	}
	if !tr.alone { // the counters are of others' processes, too
		tr.mu.Lock()
		defer tr.mu.Unlock()
		if missed := tr.missed[uint32(pid)]; len(missed) > 0 {
			t.Errorf("rest %d: a probe could not read, or send, what it was to: %+v", m.N, missed)
		}
		return
	}
	k, err := tr.tracer.Counters()
	if err != nil {
		t.Fatal(err)
	}
	for kind := range k.Seen {
		// A name can lie on a page that nothing has read yet: then it is unknown.
		names := bpf.MemtraceTtKind(kind) == bpf.MemtraceTtKindTT_KERNEL_FILE || bpf.MemtraceTtKind(kind) == bpf.MemtraceTtKindTT_WORKLOAD_NAMED
		if k.Unread[kind] > 0 && !names || k.Lost[kind] > 0 {
			t.Errorf("rest %d: kind %d: %d unread, %d lost of %d", m.N, kind, k.Unread[kind], k.Lost[kind], k.Seen[kind])
		}
	}
}

// awaitSizes waits until the reserved sizes of a process's buffers are known. If it could not be read in time, as on a
// busy host, the next comparison finds a buffer's size, and lifts the mark.
func (tr *trace) awaitSizes(pid int) {
	tr.becomes(func() bool {
		p, _ := tr.process(pid)
		unsized := func(u aggregator.Usage) bool { return u.Unreserved.Some() }
		marked := func(r aggregator.Reason) bool { return r.Code == exact.ReasonReservedUnknown }
		return !slices.ContainsFunc(p.Memory[:], unsized) && !slices.ContainsFunc(p.Reasons, marked)
	})
}

// becomes waits until something holds that happens in the tracer, and says whether it does.
func (tr *trace) becomes(holds func() bool) bool {
	for end := time.Now().Add(cmp.Or(tr.patience, patience)); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if holds() {
			return true
		}
	}
	return false
}

// settles waits until a process is read again whose memory did not answer in time: on a busy machine the reader of its
// memory may get no processor for a while. Such a mark is right, and lifted soon.
func (tr *trace) settles(pid int) {
	tr.t.Helper()
	tr.sync()
	var reasons []aggregator.Reason
	if !tr.becomes(func() bool {
		p, _ := tr.process(pid)
		reasons = p.Reasons
		return !slices.ContainsFunc(reasons, func(r aggregator.Reason) bool { return r.Code == exact.ReasonEventsUnread })
	}) {
		tr.t.Errorf("process %d stays marked: %+v", pid, reasons)
	}
}

// compareHeld checks what a process holds against the runtime's own allocators, and what must be so in any test.
func (tr *trace) compareHeld(pid int, m rig.Message) {
	tr.t.Helper()
	tr.settles(pid)
	for _, wrong := range append(tr.fromRuntime(pid, m), tr.broken(pid)...) {
		tr.t.Errorf("rest %d: %s", m.N, wrong)
	}
}

// How large the memories of a mesh are is known before anything is allocated in them.
func TestCapacitiesBeforeTheFirstBuffer(t *testing.T) {
	r := installed(t)
	tr := start(t, tracer.Options{Follow: uint32(os.Getpid())})
	w := workload(t, r, rig.Options{Cluster: "n300", Args: []string{"--steps", "0"}})
	m := next(t, w, rig.EventRest)
	tr.compare(w.PID(), m)
	p, ok := tr.process(w.PID())
	if !ok || len(p.Chips) != len(w.Chip) || p.Counters.Allocs.Some() || p.Info.NotCovered != "" {
		t.Errorf("in the accounts: %t: %+v", ok, p)
	}
	for _, c := range p.Chips {
		for memory := range aggregator.NumMemories {
			if want, told := capacity(m, c.Chip.Number, memory.String()); told && !sameBanks(memory, c.Memory[memory].Banks, want) {
				t.Errorf("chip %d %v: capacity %+v, the runtime says %+v", c.Chip.Number, memory, c.Memory[memory].Banks, want)
			}
		}
	}
}

// taken says whether another process had a chip of this number, traced system-wide: then the test's own are shown apart.
func (tr *trace) taken(number, by uint32) bool {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	for pid := range tr.opened[number] {
		if pid != by {
			return true
		}
	}
	return false
}

// asked is what the workload asked for on a chip, and how many buffers of that
// memory there are beside, which operations made.
func asked(m rig.Message, chip uint32, memory string) (bytes uint64, others int) {
	for _, d := range m.Devices {
		if !slices.Contains(d.Chips, chip) {
			continue
		}
		bytes += d.Asked[memory]
		for _, b := range d.Buffers {
			if b.Type == memory && b.Asked == nil {
				others++
			}
		}
	}
	return bytes, others
}

func capacity(m rig.Message, chip uint32, memory string) (aggregator.Banks, bool) {
	for _, d := range m.Devices {
		if v, ok := d.Views[memory]; ok && slices.Contains(d.Chips, chip) {
			b := aggregator.Banks{Known: true, Count: uint32(v.NumBanks), Bytes: v.TotalBytesPerBank}
			if v.Base != nil {
				b.Base, b.Based = *v.Base, true
			}
			return b, true
		}
	}
	return aggregator.Banks{}, false
}

// sameBanks compares banks with those that the runtime reports. It reports where these begin only while they hold buffers, and the
// accounts know it of DRAM and L1.
func sameBanks(m aggregator.Memory, got, want aggregator.Banks) bool {
	based := want.Count > 0 && (m == aggregator.DRAM || m == aggregator.L1)
	if got.Based != based || based && want.Based && got.Base != want.Base {
		return false
	}
	return got.Known == want.Known && got.Count == want.Count && got.Bytes == want.Bytes
}

// nothing checks that the process holds nothing any more.
func (tr *trace) nothing(pid int) {
	tr.t.Helper()
	tr.sync()
	if list := tr.buffers(pid); len(list) > 0 {
		tr.t.Errorf("after closing, process %d still holds %d buffers: %+v", pid, len(list), list[0])
	}
	var left []string
	// Until a process is read again that was read while it closed, what it holds is unknown.
	tr.becomes(func() (known bool) { left, known = tr.onChips(pid); return known })
	if len(left) > 0 {
		tr.t.Errorf("after closing: %s", strings.Join(left, "; "))
	}
}

// onChips lists what chips hold that no other process uses, and reports whether all of that is known.
func (tr *trace) onChips(pid int) (left []string, known bool) {
	s := tr.snapshot()
	known = true
	for _, c := range s.Chips {
		foreign := slices.ContainsFunc(c.PIDs, func(p uint32) bool { return p != uint32(pid) }) ||
			slices.ContainsFunc(c.Reasons, func(r aggregator.Reason) bool { return r.PID != 0 && r.PID != uint32(pid) })
		if foreign {
			continue // traced system-wide beside processes that are not the test's
		}
		for m, u := range c.Memory {
			if !u.Requested.Is(0) || !u.Reserved.Is(0) || !u.Buffers.Is(0) || !u.Unreserved.Is(0) {
				left = append(left, fmt.Sprintf("chip %d %v holds %+v", c.Chip.Number, aggregator.Memory(m), u))
			}
			known = known && u.Buffers.Known() && u.Requested.Known() && u.Reserved.Known()
		}
	}
	return left, known
}

func workload(t *testing.T, r *rig.Runtime, o rig.Options) *rig.Run {
	t.Helper()
	if o.Script == "" {
		o.Script = rig.Workload
	}
	w, err := r.Start(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Close)
	return w
}

func next(t *testing.T, w *rig.Run, event string) rig.Message {
	t.Helper()
	m, err := w.Await(event, patience)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func send(t *testing.T, w *rig.Run, command string) {
	t.Helper()
	if err := w.Send(command); err != nil {
		t.Fatal(err)
	}
}

// toTheEnd compares at every rest point until the workload has closed its devices.
func (tr *trace) toTheEnd(w *rig.Run) (rests, buffers int) {
	tr.t.Helper()
	tr.atEachRest(w, func(m rig.Message) {
		tr.compare(w.PID(), m)
		rests++
		for _, d := range m.Devices {
			buffers += len(d.Buffers)
		}
	})
	return rests, buffers
}

// atEachRest calls check at every rest point, until the workload has closed its devices and holds nothing.
func (tr *trace) atEachRest(w *rig.Run, check func(rig.Message)) {
	t := tr.t
	t.Helper()
	for {
		m := next(t, w, rig.EventRest)
		check(m)
		if t.Failed() {
			t.FailNow()
		}
		send(t, w, "go")
		if m.Last {
			break
		}
	}
	next(t, w, rig.EventClosed)
	tr.nothing(w.PID())
	send(t, w, "go")
	if err := w.Wait(patience); err != nil {
		t.Fatal(err)
	}
}

// cards are what the clusters are made of.
var cards = map[string]struct{ arch, board string }{
	"n150":   {"wormhole_b0", "n150"},
	"n300":   {"wormhole_b0", "n300"},
	"t3k":    {"wormhole_b0", "n300"},
	"galaxy": {"wormhole_b0", "galaxy"},
	"p150":   {"blackhole", "p150"},
}

// A command that is followed from before its start has the runtime's numbers,
// at every rest point and on every kind of cluster.
func TestAccountsEqualTheRuntimes(t *testing.T) {
	r := installed(t)
	t.Logf("on %s are compared: %s", r.Release, r.Compared())
	for _, cluster := range rig.Clusters {
		t.Run(cluster, func(t *testing.T) {
			tr := start(t, tracer.Options{Follow: uint32(os.Getpid())})
			w := workload(t, r, rig.Options{Cluster: cluster, Args: []string{"--steps", "300", "--threads", "2"}})
			rests, buffers := tr.toTheEnd(w)
			for _, c := range tr.snapshot().Chips {
				card := cards[cluster]
				if cluster == "galaxy" && r.Release < "0.67" {
					card.board = "" // its mock of one does not say
				}
				if c.Board != card.board || c.Arch != card.arch {
					t.Errorf("chip %d is a %q on a %q, not a %q on a %q", c.Chip.Number, c.Arch, c.Board, card.arch, card.board)
				}
			}
			t.Logf("%d rest points, %d buffers compared", rests, buffers)
			if buffers < 100 {
				t.Errorf("only %d buffers were there to compare", buffers)
			}
		})
	}
}

func env(pairs ...string) []string { return pairs }

// The runtime's own tracking makes no difference.
func TestRuntimesTrackingOff(t *testing.T) {
	r := installed(t)
	tr := start(t, tracer.Options{Follow: uint32(os.Getpid())})
	tr.toTheEnd(workload(t, r, rig.Options{Cluster: "t3k", Args: []string{"--steps", "100"}, Env: env("TT_METAL_SHM_TRACKING_DISABLED=1")}))
}

// A PID that is given right after its start, before it is even the program that
// loads the runtime, has the same numbers.
func TestAttachByPID(t *testing.T) {
	r := installed(t)
	dir, err := rig.Dir()
	if err != nil {
		t.Fatal(err)
	}
	w := workload(t, r, rig.Options{Cluster: "t3k", Script: "/bin/sh", SlowDispatch: r.SlowOnly(), Args: []string{
		"-c", `read -r go && exec "$0" "$@"`, r.Python, filepath.Join(dir, rig.Workload), "--cluster", "t3k", "--steps", "100", "--seed", "7",
	}})
	tr := start(t, tracer.Options{PIDs: []uint32{uint32(w.PID())}})
	send(t, w, "go")
	tr.toTheEnd(w)
	// The tracer ends by itself with its last process.
	select {
	case err := <-tr.done:
		tr.done <- err
	case <-time.After(patience):
		t.Error("the tracer did not end with its process")
	}
}

// Two processes on the same chips, and one on others, are kept apart by PID and
// summed per chip; all of them are found without being named.
func TestSystemWide(t *testing.T) {
	r := installed(t)
	tr := start(t, tracer.Options{})
	runs := []*rig.Run{
		workload(t, r, rig.Options{Cluster: "t3k", FirstChipID: 5000, Args: []string{"--steps", "50", "--seed", "1"}}),
		workload(t, r, rig.Options{Cluster: "t3k", FirstChipID: 5000, Args: []string{"--steps", "50", "--seed", "2"}}),
		workload(t, r, rig.Options{Cluster: "t3k", FirstChipID: 5000, Args: []string{"--steps", "50", "--seed", "3", "--mesh", "1x2"}}),
	}
	for range 2 {
		// The runtimes' sum on a chip and memory, and the processes that it is of.
		type place struct {
			chip   aggregator.Chip
			memory string
		}
		sum := map[place]uint64{}
		var pids []uint32
		for _, w := range runs {
			m := next(t, w, rig.EventRest)
			tr.compare(w.PID(), m)
			pids = append(pids, uint32(w.PID()))
			p, _ := tr.process(w.PID())
			for _, c := range p.Chips {
				for memory, bytes := range m.Reserved(c.Chip.Number) {
					sum[place{c.Chip, memory}] += bytes
				}
			}
		}
		for _, c := range tr.snapshot().Chips {
			if !slices.ContainsFunc(c.PIDs, func(pid uint32) bool { return slices.Contains(pids, pid) }) {
				continue // its processes are not the test's
			}
			for m, u := range c.Memory {
				if want := sum[place{c.Chip, aggregator.Memory(m).String()}]; !u.Reserved.Is(want) {
					t.Errorf("chip %v %v: %d bytes reserved by all, the runtimes' sum is %d", c.Chip, aggregator.Memory(m), u.Reserved, want)
				}
			}
		}
		for _, w := range runs {
			send(t, w, "go")
		}
	}
	for _, w := range runs {
		pid := w.PID()
		w.Close() // kills it
		tr.awaitExit(pid)
		tr.nothing(pid)
	}
}

// awaitStart fails unless the process comes into the accounts: what it does then is traced.
func (tr *trace) awaitStart(pid int) {
	tr.t.Helper()
	tr.awaitProcess(pid, true)
}

// awaitExit fails unless the process leaves the accounts.
func (tr *trace) awaitExit(pid int) {
	tr.t.Helper()
	tr.awaitProcess(pid, false)
}

// awaitProcess waits until the process is in the accounts, or is not.
func (tr *trace) awaitProcess(pid int, there bool) {
	tr.t.Helper()
	tr.sync() // which can take as long as a process is being read
	for deadline := time.Now().Add(patience / 4); ; tr.sync() {
		if _, ok := tr.process(pid); ok == there {
			return
		}
		if time.Now().After(deadline) {
			tr.t.Fatalf("process %d in the accounts: %t, although it should be %t", pid, !there, there)
		}
	}
}

// A killed process takes its memory out of the accounts.
func TestKilledProcess(t *testing.T) {
	r := installed(t)
	tr := start(t, tracer.Options{Follow: uint32(os.Getpid())})
	w := workload(t, r, rig.Options{Cluster: "n300", Args: []string{"--steps", "50"}})
	tr.compare(w.PID(), next(t, w, rig.EventRest))
	if len(tr.buffers(w.PID())) == 0 {
		t.Fatal("it holds nothing")
	}
	pid := w.PID()
	w.Close()
	tr.awaitExit(pid)
	tr.nothing(pid)
}

// Running out of memory inside the process, caught there, changes no account.
func TestOutOfMemory(t *testing.T) {
	r := installed(t)
	tr := start(t, tracer.Options{Follow: uint32(os.Getpid())})
	w := workload(t, r, rig.Options{Cluster: "n300", Args: []string{"--steps", "50"}})
	m := next(t, w, rig.EventRest)
	tr.compare(w.PID(), m)
	before, _ := tr.process(w.PID())
	for range 3 {
		send(t, w, "oom")
		if oom := next(t, w, rig.EventOOM); oom.Error == "" {
			t.Fatal("no error")
		}
	}
	send(t, w, "rest")
	tr.compare(w.PID(), next(t, w, rig.EventRest))
	after, _ := tr.process(w.PID())
	if before.Memory != after.Memory || before.Buffers != after.Buffers {
		t.Errorf("the accounts changed:\n%+v\n%+v", before, after)
	}
	send(t, w, "go")
	tr.toTheEnd(w)
}

// Devices that close with tensors alive on them leave nothing behind.
func TestCloseWithLiveTensors(t *testing.T) {
	r := installed(t)
	for _, cluster := range []string{"n150", "t3k"} {
		t.Run(cluster, func(t *testing.T) {
			tr := start(t, tracer.Options{Follow: uint32(os.Getpid())})
			w := workload(t, r, rig.Options{Cluster: cluster, Args: []string{"--steps", "50", "--close-with-live", "--close-submeshes", "live"}})
			for {
				m, err := w.Next(patience)
				if err != nil {
					t.Fatal(err)
				}
				if m.Event == rig.EventRest {
					tr.compare(w.PID(), m)
					send(t, w, "go")
				}
				if m.Event == rig.EventClosed {
					break
				}
			}
			tr.nothing(w.PID())
			send(t, w, "go")
			if err := w.Wait(patience); err != nil {
				t.Fatal(err)
			}
			tr.nothing(w.PID())
		})
	}
}

// A submesh that is referenced when its mesh closes holds nothing of the chips any more, for a
// tracer that saw it and for one that came later, also when the chips are opened again.
func TestSubmeshOfAClosedMesh(t *testing.T) {
	r := installed(t)
	tr := start(t, tracer.Options{Follow: uint32(os.Getpid())})
	w := workload(t, r, rig.Options{Cluster: "n300", Script: rig.Submesh})
	tr.compare(w.PID(), next(t, w, rig.EventRest))
	send(t, w, "go")
	next(t, w, rig.EventClosed)
	tr.nothing(w.PID())
	send(t, w, "go")
	m := next(t, w, rig.EventRest)
	tr.compare(w.PID(), m)
	late := start(t, tracer.Options{PIDs: []uint32{uint32(w.PID())}})
	late.compareHeld(w.PID(), m)
	late.stop()
	tr.tracer.Reconcile(uint32(w.PID()))
	for deadline := time.Now().Add(patience); ; tr.sync() {
		if p, _ := tr.process(w.PID()); p.Agreement.Comparisons > 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("it was not compared")
		}
	}
	tr.compare(w.PID(), m)
	send(t, w, "go")
}

// sizeOf is the number of a quantity, whatever its bound.
func sizeOf(q exact.Quantity) uint64 {
	n, _ := q.Value()
	return n
}
