package tracer

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"tt-memtrace/aggregator"
	"tt-memtrace/bpf"
	"tt-memtrace/test/fixture"
	"tt-memtrace/tracer/discover"
	"tt-memtrace/tracer/metal"
	"tt-memtrace/tracer/proc"
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
	// ended is how many programs of a process ended.
	ended   map[uint32]int
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

func needRights(t *testing.T) {
	t.Helper()
	if err := CheckRights(); err != nil {
		t.Skip(err)
	}
}

func start(t *testing.T, o Options) *trace {
	t.Helper()
	needRights(t)
	tr := &trace{t: t, accounts: aggregator.New(), oldest: map[uint32]time.Duration{}, ended: map[uint32]int{}, delivered: map[aggregator.Kind]uint64{},
		done: make(chan error, 1), changed: make(chan struct{}, 1)}
	o.Lacks = lacking(t)
	o.Notice = func(s string) {
		if strings.HasPrefix(s, "this host kernel") {
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
					tr.ended[events[i].PID]++
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

// The banks that every allocator of the fixture has.
var (
	bankCount = [aggregator.NumMemories]uint64{12, 64, 0, 64, 12}
	bankBytes = [aggregator.NumMemories]uint64{1 << 30, 1 << 20, 0, 1 << 15, 1 << 24}
)

// ledger is what a process should be found to hold.
type ledger struct {
	t       *testing.T
	tr      *trace
	p       *fixture.Process
	live    map[uint64]aggregator.BufferSnapshot
	allocs  uint64
	frees   uint64
	freed   uint64 // implicitly
	random  uint64
	private bool
}

func keep(t *testing.T, tr *trace, p *fixture.Process) *ledger {
	return &ledger{t: t, tr: tr, p: p, live: map[uint64]aggregator.BufferSnapshot{}, random: 1}
}

func (l *ledger) next(n uint64) uint64 {
	l.random = l.random*6364136223846793005 + 1442695040888963407
	return l.random >> 33 % n
}

// device opens one; several chips are a mesh.
func (l *ledger) device(place int, chips ...int) {
	l.t.Helper()
	if len(chips) == 1 {
		fixture.Do(l.t, l.p, "device %d %d", place, chips[0])
		return
	}
	fixture.Do(l.t, l.p, "mesh %d %s", place, strings.Trim(fmt.Sprint(chips), "[]"))
}

func (l *ledger) alloc(place int, m aggregator.Memory, chips ...int) {
	l.t.Helper()
	b := aggregator.BufferSnapshot{
		Memory: m, MemoryLayout: []uint8{0, 2, 3}[l.next(3)], Size: 1 + l.next(1<<36), PageSize: 1 + l.next(1<<20),
		Address: l.next(1<<32 - 1), PerBank: 1 + l.next(1<<31),
	}
	b.Reserved = b.PerBank * bankCount[m]
	for _, c := range chips {
		b.Chips = append(b.Chips, l.chip(c))
	}
	slices.SortFunc(b.Chips, func(x, y aggregator.Chip) int { return int(x.Number) - int(y.Number) })
	b.ID = fixture.Number(l.t, l.p, "alloc %d %d %d %d %d %d %d", b.PerBank, place, m, b.MemoryLayout, b.Size, b.PageSize, b.Address)
	l.live[b.ID] = b
	l.allocs++
}

func (l *ledger) chip(n int) aggregator.Chip {
	c := aggregator.Chip{Number: uint32(n)}
	if l.private {
		c.Space = l.p.PID
	}
	return c
}

func (l *ledger) free() {
	l.t.Helper()
	for id := range l.live { // any
		fixture.Do(l.t, l.p, "free %#x", id)
		delete(l.live, id)
		l.frees++
		return
	}
}

// implicit says that everything was freed by no call of its own.
func (l *ledger) implicit() {
	l.freed += uint64(len(l.live))
	clear(l.live)
}

// compare checks every number of the process.
func (l *ledger) compare() aggregator.ProcessSnapshot {
	l.t.Helper()
	p := l.tr.process(l.p.PID)
	// Where a host is slow, a process is not waited for: its chips are known when it was read apart.
	unplaced := func(u aggregator.Usage) bool { return u.Buffers > 0 }
	for end := time.Now().Add(patience / 4); slices.ContainsFunc(p.Unplaced[:], unplaced) && time.Now().Before(end); p = l.tr.process(l.p.PID) {
		time.Sleep(10 * time.Millisecond) // what is awaited happens in the tracer
	}
	if p.Buffers != uint64(len(l.live)) {
		l.t.Errorf("%d buffers, want %d", p.Buffers, len(l.live))
	}
	type use struct{ requested, reserved, buffers uint64 }
	want := map[aggregator.Chip]*[aggregator.NumMemories]use{}
	for _, b := range l.live {
		for _, c := range b.Chips {
			if want[c] == nil {
				want[c] = &[aggregator.NumMemories]use{}
			}
			u := &want[c][b.Memory]
			u.requested += b.Size
			u.reserved += b.PerBank * bankCount[b.Memory]
			u.buffers++
		}
	}
	for _, c := range p.Chips {
		w := want[c.Chip]
		if w == nil {
			w = &[aggregator.NumMemories]use{}
		}
		delete(want, c.Chip)
		for m, u := range c.Memory {
			if got := (use{u.Requested, u.Reserved, u.Buffers}); got != w[m] {
				l.t.Errorf("%v %v holds %+v, want %+v", c.Chip, aggregator.Memory(m), got, w[m])
			}
		}
	}
	if len(want) > 0 {
		l.t.Errorf("chips without accounts: %+v", want)
	}
	for _, b := range l.tr.buffers(l.p.PID) {
		w := l.live[b.ID]
		b.Since, b.TID = 0, 0
		b.Chips = slices.Clone(b.Chips)
		slices.SortFunc(b.Chips, func(x, y aggregator.Chip) int { return int(x.Number) - int(y.Number) })
		if fmt.Sprintf("%+v", b) != fmt.Sprintf("%+v", w) {
			l.t.Errorf("buffer %+v, want %+v", b, w)
		}
	}
	c := p.Counters
	if c.Allocs != l.allocs || c.Frees != l.frees || c.ImplicitFrees != l.freed || c.Odd != 0 {
		l.t.Errorf("counters %+v, want %d allocations, %d frees and %d implicit ones", c, l.allocs, l.frees, l.freed)
	}
	return p
}

// How large the memories of a device are is known when it is open, before anything is
// allocated in them, and it is that of the device which is at the address now.
func TestCapacitiesBeforeTheFirstBuffer(t *testing.T) {
	p := fixture.Launch(t)
	tr := start(t, Options{PIDs: []uint32{p.PID}})
	fixture.Do(t, p, "open %s", fixture.LibraryOf(t, fixture.LayoutB))
	tr.awaitProcess(p.PID)
	l := keep(t, tr, p)
	for range 2 {
		l.device(0, 3)
		l.device(1, 0, 1)
		chips := l.compare().Chips
		if len(chips) != 3 {
			t.Errorf("chips %+v", chips)
		}
		for _, c := range chips {
			for m, u := range c.Memory {
				if want := (aggregator.Banks{Known: bankCount[m] > 0, Count: uint32(bankCount[m]), Bytes: bankBytes[m]}); u.Banks != want {
					t.Errorf("chip %v: %v has %+v, not %+v", c.Chip, aggregator.Memory(m), u.Banks, want)
				}
			}
		}
		fixture.Do(t, p, "close 0")
		fixture.Do(t, p, "close 1")
		tr.sync()
	}
	tr.noticed()
}

// Everything that a process allocates and frees is in its accounts, exactly, in
// whatever way its library was built; and all those builds at once.
func TestAccountsMatchTheProcess(t *testing.T) {
	t.Parallel()
	builds := []struct {
		name  string
		build fixture.Build
	}{
		{"layout A", fixture.LayoutA},
		{"layout B", fixture.LayoutB},
		{"not optimized", fixture.WithFlags("-O0")},
		{"endbr64", fixture.WithFlags("-O2 -fcf-protection=full")},
		{"stripped", fixture.Build{Strip: true}},
		{"moved fields", fixture.WithFlags("-DSHIFT=256")},
		{"with DWARF", fixture.WithFlags("-O2 -g -DLAYOUT_B -DGROW=8")},
		{"code behind data", fixture.WithFlags("-Wl,-Ttext-segment=0x600000")},
		{"in one segment", fixture.WithFlags("-Wl,-z,noseparate-code")},
		// The graph tracker of this one sees no buffer that could be probed.
		{"observers", fixture.Build{Flags: []string{"-DLAYOUT_B", "-DOBSERVER"}, Strip: true, Hide: []string{
			metal.TrackAllocate, "_ZN2tt8tt_metal12GraphTracker16track_deallocateEPNS0_6BufferE"}}},
	}
	if _, err := exec.LookPath("clang++"); err == nil {
		builds = append(builds, struct {
			name  string
			build fixture.Build
		}{"clang", fixture.Build{Compiler: "clang++", Flags: []string{"-O2", "-DLAYOUT_B"}}})
	}
	var processes []*fixture.Process
	var pids []uint32
	for _, b := range builds {
		p := fixture.User(t, b.build)
		processes, pids = append(processes, p), append(pids, p.PID)
	}
	tr := start(t, Options{PIDs: pids})
	for i, b := range builds {
		t.Run(b.name, func(t *testing.T) {
			p := processes[i]
			l := keep(t, tr, p)
			l.device(0, 3)
			l.device(1, 0, 1, 2, 7)
			for m := range aggregator.NumMemories {
				l.alloc(0, m, 3)
				l.alloc(1, m, 0, 1, 2, 7)
			}
			snapshot := l.compare()
			for _, c := range snapshot.Chips {
				for m, u := range c.Memory {
					if bankCount[m] > 0 && (!u.Banks.Known || uint64(u.Banks.Count) != bankCount[m] || u.Banks.Bytes != bankBytes[m]) {
						t.Errorf("chip %v: %v has %+v", c.Chip, aggregator.Memory(m), u.Banks)
					}
				}
				if arch := map[bool]string{true: "wormhole_b0", false: "blackhole"}[c.Chip.Number == 3]; c.Arch != arch {
					t.Errorf("chip %v is a %q, want %q", c.Chip, c.Arch, arch)
				}
			}
			if snapshot.Info.Library != fixture.LibraryOf(t, b.build) || !strings.HasPrefix(snapshot.Info.Command, "driver") {
				t.Errorf("process %+v", snapshot.Info)
			}
			for range 100 {
				if len(l.live) > 0 && l.next(2) == 0 {
					l.free()
				} else if l.next(2) == 0 {
					l.alloc(0, aggregator.Memory(l.next(5)), 3)
				} else {
					l.alloc(1, aggregator.Memory(l.next(5)), 0, 1, 2, 7)
				}
			}
			l.compare()
			for len(l.live) > 0 {
				l.free()
			}
			l.compare()
		})
	}
	if c := tr.counters(); c.Unreserved != 0 || c.Hooked != 0 {
		t.Errorf("counters %+v", c)
	}
	tr.noticed()
}

// Of three layouts that are in no table, two are proved by the code and traced
// exactly. The third, of which one field shows nowhere, is refused: nothing is
// traced, and that field is named.
func TestLayoutsThatAreInNoTable(t *testing.T) {
	t.Parallel()
	proved := []*fixture.Process{
		fixture.User(t, fixture.WithFlags("-O2 -DIMPL -DGROW=16")),
		fixture.User(t, fixture.WithFlags("-O2 -DIMPL -DLAYOUT_B -DSWAP_FLAGS -DSWAP_SIZES -DGROW=24")),
	}
	unproved := fixture.User(t, fixture.WithFlags("-O2 -DLAYOUT_B -DSWAP_SIZES -DGROW=40"))
	tr := start(t, Options{PIDs: []uint32{proved[0].PID, proved[1].PID, unproved.PID}})
	for _, p := range proved {
		l := keep(t, tr, p)
		l.device(0, 3)
		for m := range aggregator.NumMemories {
			l.alloc(0, m, 3)
			l.alloc(0, m, 3)
		}
		l.compare()
		l.free()
		l.compare()
	}
	fixture.Do(t, unproved, "device 0 1")
	fixture.Do(t, unproved, "alloc 100 0 0 0 4096 1024 64")
	tr.sync()
	if p, ok := tr.lookup(unproved.PID); ok {
		t.Errorf("accounts of %+v", p)
	}
	tr.noticed("nothing shows where a buffer keeps its hooked")
}

// A burst of several threads is counted to the last event.
func TestManyThreadsLoseNothing(t *testing.T) {
	p := fixture.User(t, fixture.LayoutB)
	// The race detector makes the reader several times slower: it has twice the room.
	tr := start(t, Options{PIDs: []uint32{p.PID}, RingBytes: 2 * DefaultRingBytes})
	fixture.Do(t, p, "device 0 5")
	// A pause after every few, for it takes the real runtime several times as
	// long to allocate, and the machine may have two processors only.
	fixture.Do(t, p, "storm 0 4 50000 500")
	s := tr.process(p.PID)
	seen, lost := buffersSeen(tr.counters())
	if seen != 400000 || lost != 0 {
		t.Errorf("the kernel saw %d and lost %d", seen, lost)
	}
	if s.Counters.Allocs != 200000 || s.Counters.Frees != 200000 || s.Buffers != 0 || s.Counters.UnmatchedFrees+s.Counters.Replaced != 0 {
		t.Errorf("counters %+v, %d buffers left", s.Counters, s.Buffers)
	}
	for _, c := range s.Chips {
		for m, u := range c.Memory {
			if u.Requested != 0 || u.Reserved != 0 || u.PeakRequested > 4*8*4096 || u.PeakReserved > 4*8*1024*bankCount[m] {
				t.Errorf("%v holds %+v", aggregator.Memory(m), u)
			}
		}
	}
	tr.noticed()
}

// A ring that is too small loses events, and says how many.
func TestLossesAreCounted(t *testing.T) {
	t.Parallel()
	p := fixture.User(t, fixture.LayoutA)
	tr := start(t, Options{PIDs: []uint32{p.PID}, RingBytes: uint32(os.Getpagesize())})
	fixture.Do(t, p, "device 0 5")
	fixture.Do(t, p, "storm 0 4 20000 0")
	tr.sync()
	c := tr.counters()
	seen, lost := buffersSeen(c)
	if seen != 160000 || lost == 0 {
		t.Errorf("the kernel saw %d and lost %d", seen, lost)
	}
	tr.mu.Lock()
	delivered := tr.delivered[aggregator.Alloc] + tr.delivered[aggregator.Free]
	tr.mu.Unlock()
	if delivered != seen-lost {
		t.Errorf("%d were delivered of %d seen and %d lost", delivered, seen, lost)
	}
	var all uint64
	for _, n := range c.Lost {
		all += n
	}
	if got := tr.snapshot().Counters.Lost; got != all {
		t.Errorf("the accounts know of %d lost events, the kernel of %d", got, all)
	}
	// It goes on, and what comes after is exact again.
	before, _ := tr.lookup(p.PID)
	l := keep(t, tr, p)
	l.alloc(0, aggregator.L1, 5)
	l.alloc(0, aggregator.DRAM, 5)
	after := tr.process(p.PID)
	if after.Counters.Allocs != before.Counters.Allocs+2 {
		t.Errorf("counters %+v, before %+v", after.Counters, before.Counters)
	}
}

// Whoever waits for what has happened is served however fast more happens: the
// reader ends a round when it has read as much as the ring holds.
func TestRoundsEndUnderAnyLoad(t *testing.T) {
	t.Parallel()
	p := fixture.User(t, fixture.LayoutB)
	tr := start(t, Options{PIDs: []uint32{p.PID}, RingBytes: uint32(os.Getpagesize())})
	fixture.Do(t, p, "device 0 5")
	tr.sync()
	tr.mu.Lock()
	tr.accounts.OnChange = func(aggregator.Change) { // slower than they come
		for since := time.Now(); time.Since(since) < 50*time.Microsecond; {
		}
	}
	tr.mu.Unlock()
	storm := make(chan error, 1)
	go func() {
		_, err := p.Do("storm 0 1 2000000000 0") // until it is killed
		storm <- err
	}()
	for begun := false; !begun; {
		tr.sync()
		begun = tr.snapshot().Counters.Events > 1000
	}
	for range 3 {
		tr.sync()
	}
	p.Kill()
	if err := <-storm; err == nil {
		t.Error("the load has ended by itself")
	}
}

// Where even the record of a process's end finds the ring full, its accounts end
// all the same, and those of what it was before an exec.
func TestLostEndsAreFound(t *testing.T) {
	t.Parallel()
	loud, ends, execs := fixture.User(t, fixture.LayoutB), fixture.User(t, fixture.LayoutB), fixture.User(t, fixture.LayoutB)
	tr := start(t, Options{PIDs: []uint32{loud.PID, ends.PID, execs.PID}, RingBytes: uint32(os.Getpagesize())})
	for _, p := range []*fixture.Process{loud, ends, execs} {
		fixture.Do(t, p, "device 0 5")
		fixture.Do(t, p, "alloc 100 0 0 0 4096 1024 64")
		tr.process(p.PID)
	}
	tr.mu.Lock() // the reader waits for it
	fixture.Do(t, loud, "storm 0 1 20000 0")
	fixture.Do(t, execs, "exec")
	ends.Kill()
	c, err := tr.tracer.Counters()
	tr.mu.Unlock()
	if err != nil {
		t.Fatal(err)
	}
	if c.Lost[bpf.MemtraceTtKindTT_EXIT] != 1 || c.Lost[bpf.MemtraceTtKindTT_EXEC] != 1 {
		t.Fatalf("the ring was not full: %+v", c.Lost)
	}
	for _, p := range []*fixture.Process{ends, execs} {
		tr.await("its accounts end", func() bool { _, ok := tr.lookup(p.PID); return !ok })
	}
	if s := tr.process(loud.PID); len(s.Chips) == 0 {
		t.Errorf("the one that lives: %+v", s)
	}
}

// Where the record of an exec is lost, and the new program is found before that is known, it has
// nothing of the old one.
func TestLostExecOfWhatIsFoundAgain(t *testing.T) {
	library := fixture.LibraryOf(t, fixture.LayoutB)
	tr := start(t, Options{Follow: uint32(os.Getpid()), RingBytes: uint32(os.Getpagesize())})
	loud, execs := fixture.User(t, fixture.LayoutB), fixture.Launch(t)
	fixture.Do(t, execs, "open %s", library)
	for _, p := range []*fixture.Process{loud, execs} {
		tr.awaitProcess(p.PID)
		fixture.Do(t, p, "device 0 5")
		fixture.Do(t, p, "alloc 100 0 0 0 4096 1024 64")
		tr.process(p.PID)
	}
	release := tr.hold(func() { fixture.Do(t, loud, "alloc 100 0 0 0 4096 1024 8192") })
	defer release()
	fixture.Do(t, loud, "storm 0 1 20000 0")
	fixture.Do(t, execs, "exec")
	fixture.Do(t, execs, "open %s", library)
	found := func() bool {
		tr.tracer.inboxMu.Lock()
		defer tr.tracer.inboxMu.Unlock()
		return slices.ContainsFunc(tr.tracer.announced, func(a announcement) bool { return a.mapping.PID == execs.PID })
	}
	for late := time.Now().Add(patience); !found(); {
		if time.Now().After(late) {
			t.Fatal("it is not found")
		}
	}
	c, err := tr.tracer.Counters()
	release()
	if err != nil {
		t.Fatal(err)
	}
	if c.Lost[bpf.MemtraceTtKindTT_EXEC] == 0 {
		t.Fatalf("the ring was not full: %+v", c.Lost)
	}
	tr.await("it holds nothing", func() bool { s, ok := tr.lookup(execs.PID); return ok && s.Exact() && s.Buffers == 0 })
}

// Events of before a reading began are told from later ones: not all probes were in then.
func TestEventsOfBeforeAReading(t *testing.T) {
	p := &traced{}
	p.reconciliation.now, p.reconciliation.touched = &reading{first: true, since: 10}, map[uint64]struct{}{}
	for _, c := range []struct {
		at    uint64
		early bool
	}{{12, false}, {9, true}, {12, true}} {
		p.last = c.at
		if p.touch(c.at); p.reconciliation.early != c.early {
			t.Errorf("after an event at %d there were early ones: %t", c.at, p.reconciliation.early)
		}
	}
}

// What else can happen to buffers and devices, each in a process of its own.
func TestWhatProcessesDo(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name  string
		build fixture.Build
		env   []string
		test  func(t *testing.T, tr *trace, p *fixture.Process, l *ledger)
	}{
		{"allocations that fail change nothing", fixture.LayoutB, nil, failedAllocations},
		{"a buffer without a reservation", fixture.LayoutA, nil, noReservation},
		{"reservations that cannot be seen", fixture.WithFlags("-O2 -DBARE_BANKS"), nil, reservationsUnknown},
		{"hooked buffers, layout A", fixture.LayoutA, nil, hookedBuffers},
		{"hooked buffers, layout B", fixture.LayoutB, nil, hookedBuffers},
		{"frees of unknown buffers", fixture.LayoutB, nil, unknownFrees},
		{"unreadable buffers, layout A", fixture.LayoutA, nil, unreadableBuffers},
		{"unreadable buffers, layout B", fixture.LayoutB, nil, unreadableBuffers},
		{"a buffer at the address of another", fixture.LayoutB, nil, replacedBuffer},
		{"all buffers freed", fixture.LayoutA, nil, allocatorGone("deallocate")},
		{"allocator destroyed", fixture.LayoutB, nil, allocatorGone("destroy")},
		{"device closed", fixture.LayoutB, nil, closedDevice},
		{"device reopened after a close", fixture.LayoutB, nil, reopenedDevice("close 0", "deallocate 0", "destroy 0")},
		{"device reopened after its allocator's end", fixture.LayoutA, nil, reopenedDevice("destroy 0")},
		{"device reopened after an end that went unseen", fixture.LayoutB, nil, reopenedDevice()},
		{"devices opened after the attach are not late", fixture.LayoutA, nil, notLate},
		{"circular buffers", fixture.LayoutB, nil, circularBuffers},
		{"a program laid out again after it threw", fixture.LayoutB, nil, layoutThrows},
		{"a program destroyed on another thread", fixture.LayoutA, nil, destroyedElsewhere},
		{"dataflow buffers", fixture.LayoutB, nil, dataflowBuffersOf(2, 1)},
		{"dataflow buffers by allocator", byAllocator, nil, dataflowBuffersOf(2, 2)},
		{"dataflow buffers on cores that overlap", byAllocator, nil, ambiguousCores},
		{"scratchpads", fixture.LayoutB, nil, scratchpadsOf},
		{"replays of traces", fixture.LayoutB, nil, replaysOf},
		{"buffers under a trace", fixture.LayoutB, nil, unsafeOf},
		{"kernel-config rings", fixture.LayoutB, nil, ringsOf},
		{"private numbering of chips", fixture.LayoutB, []string{"TT_VISIBLE_DEVICES=2,3"}, privateNumbering},
		{"private numbering that a process sets itself", fixture.LayoutB, nil, ownNumbering},
	}
	var processes []*fixture.Process
	var pids []uint32
	for _, test := range tests {
		p := fixture.User(t, test.build, test.env...)
		processes, pids = append(processes, p), append(pids, p.PID)
	}
	tr := start(t, Options{PIDs: pids})
	for i, test := range tests {
		t.Run(test.name, func(t *testing.T) { test.test(t, tr, processes[i], keep(t, tr, processes[i])) })
	}
	tr.noticed("not known exactly", "it has no address yet")
}

func failedAllocations(t *testing.T, tr *trace, p *fixture.Process, l *ledger) {
	l.device(0, 1)
	l.alloc(0, aggregator.DRAM, 1)
	// Inside the probed function, and after it.
	for _, perBank := range []int{0, 4096} {
		if _, err := p.Do("throw %d", perBank); err == nil {
			t.Error("nothing was thrown")
		}
	}
	l.compare()
	l.alloc(0, aggregator.L1, 1)
	l.compare()
	l.free()
	l.compare()
}

func noReservation(t *testing.T, tr *trace, p *fixture.Process, l *ledger) {
	before := tr.counters()
	fixture.Do(t, p, "device 0 1")
	fixture.Do(t, p, "alloc 0 0 0 0 4096 1024 64")
	s := tr.process(p.PID)
	if u := s.Chips[0].Memory[aggregator.DRAM]; u.Requested != 4096 || u.Reserved != 0 || u.Unreserved != 1 {
		t.Errorf("%+v", u)
	}
	if c := tr.counters(); c.Unreserved != before.Unreserved+1 {
		t.Errorf("counters %+v, before %+v", c, before)
	}
}

// Without the point that shows reservations everything else is right.
func reservationsUnknown(t *testing.T, tr *trace, p *fixture.Process, l *ledger) {
	fixture.Do(t, p, "device 0 1")
	fixture.Do(t, p, "alloc 100 0 0 0 4096 1024 64")
	if u := tr.process(p.PID).Chips[0].Memory[aggregator.DRAM]; u.Requested != 4096 || u.Reserved != 0 || u.Unreserved != 1 {
		t.Errorf("%+v", u)
	}
}

func hookedBuffers(t *testing.T, tr *trace, p *fixture.Process, l *ledger) {
	before := tr.counters()
	l.device(0, 1)
	l.alloc(0, aggregator.L1, 1)
	hooked := fixture.Do(t, p, "hooked 0 0 0 4096 1024 64")
	l.compare()
	fixture.Do(t, p, "free %s", hooked)
	l.compare()
	if c := tr.counters(); c.Hooked != before.Hooked+1 {
		t.Errorf("counters %+v, before %+v", c, before)
	}
}

func unknownFrees(t *testing.T, tr *trace, p *fixture.Process, l *ledger) {
	l.device(0, 1)
	l.alloc(0, aggregator.L1, 1)
	for range 3 {
		fixture.Do(t, p, "orphan 0 1 0 4096 1024 64")
	}
	if c := l.compare().Counters; c.UnmatchedFrees != 3 {
		t.Errorf("counters %+v", c)
	}
}

func unreadableBuffers(t *testing.T, tr *trace, p *fixture.Process, l *ledger) {
	before := tr.counters()
	l.device(0, 1)
	l.alloc(0, aggregator.L1, 1)
	fixture.Do(t, p, "unreadable")
	l.compare()
	after := tr.counters()
	if k := bpf.MemtraceTtKindTT_ALLOC; after.Unread[k] != before.Unread[k]+1 {
		t.Errorf("counters %+v, before %+v", after, before)
	}
}

func replacedBuffer(t *testing.T, tr *trace, p *fixture.Process, l *ledger) {
	fixture.Do(t, p, "device 0 1")
	b := fixture.Do(t, p, "alloc 100 0 0 0 4096 1024 64")
	fixture.Do(t, p, "again %s 0 1 0 8192 1024 64", b)
	s := tr.process(p.PID)
	if s.Buffers != 1 || s.Counters.Replaced != 1 || s.Counters.Allocs != 2 || s.Counters.ImplicitFrees != 1 {
		t.Errorf("%d buffers, counters %+v", s.Buffers, s.Counters)
	}
	if d, l1 := s.Memory[aggregator.DRAM], s.Memory[aggregator.L1]; d.Requested != 0 || d.Reserved != 0 || l1.Requested != 8192 {
		t.Errorf("DRAM %+v, L1 %+v", d, l1)
	}
}

// What an allocator frees as a whole is free, and only that.
func allocatorGone(how string) func(*testing.T, *trace, *fixture.Process, *ledger) {
	return func(t *testing.T, tr *trace, p *fixture.Process, l *ledger) {
		other := keep(t, tr, p)
		l.device(0, 1)
		l.device(1, 1)
		for range 20 {
			l.alloc(0, aggregator.Memory(l.next(5)), 1)
		}
		other.alloc(1, aggregator.Trace, 1)
		fixture.Do(t, p, "%s 0", how)
		l.implicit()
		l.live, l.allocs = other.live, l.allocs+1
		l.compare()
	}
}

// A closed device is shown until its last buffer is gone.
func closedDevice(t *testing.T, tr *trace, p *fixture.Process, l *ledger) {
	l.device(0, 1)
	l.device(1, 4, 5)
	l.alloc(0, aggregator.DRAM, 1)
	l.alloc(1, aggregator.DRAM, 4, 5)
	fixture.Do(t, p, "close 0")
	if s := l.compare(); len(s.Chips) != 3 {
		t.Errorf("chips %+v", s.Chips)
	}
	fixture.Do(t, p, "deallocate 0")
	fixture.Do(t, p, "destroy 0")
	s := tr.process(p.PID)
	if len(s.Chips) != 2 || s.Chips[0].Chip.Number != 4 || s.Buffers != 1 || s.Counters.ImplicitFrees != 1 {
		t.Errorf("chips %+v, counters %+v", s.Chips, s.Counters)
	}
}

// Objects are known by their addresses, which are used again: by a device with
// other chips.
func reopenedDevice(end ...string) func(*testing.T, *trace, *fixture.Process, *ledger) {
	return func(t *testing.T, tr *trace, p *fixture.Process, l *ledger) {
		l.device(0, 1)
		l.alloc(0, aggregator.DRAM, 1)
		l.compare()
		for _, c := range end {
			fixture.Do(t, p, "%s", c)
		}
		l.implicit()
		l.device(0, 2, 3)
		l.alloc(0, aggregator.L1, 2, 3)
		l.compare()
		l.implicit()
		l.device(0, 4)
		l.alloc(0, aggregator.L1Small, 4)
		l.compare()
	}
}

// Late are devices, not processes: one that opens after the attach hides nothing.
func notLate(t *testing.T, tr *trace, p *fixture.Process, l *ledger) {
	l.device(0, 6)
	l.alloc(0, aggregator.DRAM, 6)
	if s := l.compare(); s.Late {
		t.Error("it is taken for late")
	}
}

// A circular buffer arrives whole, however many core ranges it has, up to more
// than any chip could need.
func circularBuffers(t *testing.T, tr *trace, p *fixture.Process, l *ledger) {
	before := tr.counters()
	device := fixture.Number(t, p, "device 0 1")
	program := fixture.Number(t, p, "program")
	fixture.Do(t, p, "layout %#x 0", program)
	sizes := []int{0, 1, 2, 16, 17, 40, 64, 500, 1024, 1025}
	for i, n := range sizes {
		var ranges strings.Builder
		for k := range n {
			fmt.Fprintf(&ranges, " %d %d %d %d", k%200, k/200, k%200+1, k/200+2)
		}
		fixture.Do(t, p, "cb 0 %d %d %d%s", 4096*(i+1), 100+i, i%2, ranges.String())
	}
	tr.sync()
	tr.mu.Lock()
	placed := slices.DeleteFunc(slices.Clone(tr.placed), func(e aggregator.Event) bool { return e.PID != p.PID })
	tr.mu.Unlock()
	if len(placed) != len(sizes) {
		t.Fatalf("%d were placed, want %d", len(placed), len(sizes))
	}
	for i, e := range placed {
		cb := e.CB
		if e.Device != device || e.Program != program || cb.Address != uint64(4096*(i+1)) || cb.Size != uint64(100+i) {
			t.Errorf("%d: %+v, %+v", i, e, cb)
		}
		if want := min(sizes[i], 1024); len(cb.Ranges) != want {
			t.Errorf("%d: %d ranges, want %d", i, len(cb.Ranges), want)
		}
		for k, r := range cb.Ranges {
			x, y := uint16(k%200), uint16(k/200)
			if r != (aggregator.CoreRange{X0: x, Y0: y, X1: x + 1, Y1: y + 2}) {
				t.Errorf("%d: range %d is %+v", i, k, r)
			}
		}
	}
	if c := tr.counters(); c.Truncated != before.Truncated+1 || c.Unread != before.Unread {
		t.Errorf("counters %+v, before %+v", c, before)
	}
	fixture.Do(t, p, "unload %#x", program)
	tr.process(p.PID)
}

// byAllocator is a build in which the cores of dataflow buffers are not known beforehand.
var byAllocator = fixture.WithFlags("-DLAYOUT_B -DMARKED")

// placedBy are the buffers that a program has, each with its first core range.
func (tr *trace) placedBy(pid uint32, program uint64) (list []string) {
	tr.sync()
	tr.mu.Lock()
	defer tr.mu.Unlock()
	for _, p := range tr.accounts.Programs(pid) {
		if p.ID != program {
			continue
		}
		for _, cb := range p.Placed {
			list = append(list, fmt.Sprintf("%d on %d: %d+%d %d", cb.Kind, cb.Chip.Number, cb.Address, cb.Size, cb.Ranges))
		}
	}
	return list
}

func (tr *trace) expectPlaced(p *fixture.Process, program uint64, want ...string) {
	tr.t.Helper()
	if got := tr.placedBy(p.PID, program); !slices.Equal(got, want) {
		tr.t.Errorf("placed are %q, not %q", got, want)
	}
}

// What a layout placed before it threw stays, as in the runtime, until the next
// one, which replaces it.
func layoutThrows(t *testing.T, tr *trace, p *fixture.Process, l *ledger) {
	fixture.Do(t, p, "mesh 0 1 2")
	program := fixture.Number(t, p, "program")
	for range 3 {
		if _, err := p.Do("place %#x 0 1 4096 8192", program); err == nil {
			t.Fatal("nothing was thrown")
		}
		tr.expectPlaced(p, program,
			"0 on 1: 4096+1024 [{0 0 1 1}]", "0 on 1: 8192+1024 [{0 0 1 1}]", "0 on 2: 4096+1024 [{0 0 1 1}]", "0 on 2: 8192+1024 [{0 0 1 1}]")
	}
	fixture.Do(t, p, "place %#x 0 0 16384", program)
	tr.expectPlaced(p, program, "0 on 1: 16384+1024 [{0 0 1 1}]", "0 on 2: 16384+1024 [{0 0 1 1}]")
	for _, c := range tr.process(p.PID).Chips {
		if c.CB.Physical != 4096 || c.CB.Logical != 4096 || c.CB.Programs != 1 {
			t.Errorf("chip %d: %+v", c.Chip.Number, c.CB)
		}
	}
	fixture.Do(t, p, "unload %#x", program)
	tr.expectPlaced(p, program)
}

func destroyedElsewhere(t *testing.T, tr *trace, p *fixture.Process, l *ledger) {
	fixture.Do(t, p, "device 0 1")
	for range 20 {
		program := fixture.Number(t, p, "program")
		fixture.Do(t, p, "place %#x 0 0 4096", program)
		tr.expectPlaced(p, program, "0 on 1: 4096+1024 [{0 0 1 1}]")
		fixture.Do(t, p, "unload_elsewhere %#x", program)
		tr.expectPlaced(p, program)
		if u := tr.process(p.PID).CB; u.Physical != 0 || u.Logical != 0 || u.Programs != 0 {
			t.Errorf("%+v", u)
		}
	}
}

// dataflowBuffersOf places a buffer on two core ranges, which counts as so many.
func dataflowBuffersOf(ranges, count uint64) func(*testing.T, *trace, *fixture.Process, *ledger) {
	return func(t *testing.T, tr *trace, p *fixture.Process, l *ledger) {
		fixture.Do(t, p, "mesh 0 1 2")
		program := fixture.Number(t, p, "program")
		for _, address := range []int{4096, 8192} { // laid out again
			fixture.Do(t, p, "dfb %#x 0 %d 100 0 0 1 1 4 4 4 4", program, address)
			want := fmt.Sprintf("2 on 1: %d+100 [{0 0 1 1} {4 4 4 4}]", address)
			if count == ranges {
				want = fmt.Sprintf("2 on 1: %d+100 [{0 0 1 1}]", address)
			}
			if got := tr.placedBy(p.PID, program); uint64(len(got)) != 2*count || got[0] != want {
				t.Errorf("placed are %q", got)
			}
		}
		for _, c := range tr.process(p.PID).Chips {
			if c.CB.Physical != 500 || c.CB.Logical != 500 || c.CB.Dataflow != count {
				t.Errorf("chip %d: %+v", c.Chip.Number, c.CB)
			}
		}
		fixture.Do(t, p, "unload %#x", program)
		tr.expectPlaced(p, program)
	}
}

// A notice says when a buffer's cores are unknown.
func ambiguousCores(t *testing.T, tr *trace, p *fixture.Process, l *ledger) {
	fixture.Do(t, p, "device 0 1")
	program := fixture.Number(t, p, "program")
	fixture.Do(t, p, "dfb %#x 0 4096 100 0 0 3 3 1 1 1 1", program)
	if u := tr.process(p.PID).CB; u.Physical != 1600 {
		t.Errorf("%+v", u)
	}
	tr.await("a notice", func() bool { return tr.says("not known exactly") })
}

func scratchpadsOf(t *testing.T, tr *trace, p *fixture.Process, l *ledger) {
	fixture.Do(t, p, "mesh 0 1 2")
	program := fixture.Number(t, p, "program")
	kernel := fixture.Number(t, p, "kernel %#x 0", program)
	fixture.Do(t, p, "scratchpad %#x 0 %#x 4096 64 2 3 4 5", program, kernel)
	tr.expectPlaced(p, program, "3 on 1: 4096+64 [{2 3 4 5}]", "3 on 2: 4096+64 [{2 3 4 5}]")
	fixture.Do(t, p, "scratchpad %#x 0 %#x 8192 128 2 3 4 5", program, kernel)
	for _, c := range tr.process(p.PID).Chips {
		if c.CB.Scratchpads != 2 || c.CB.Physical != 9*192 || c.CB.Programs != 1 {
			t.Errorf("chip %d: %+v", c.Chip.Number, c.CB)
		}
	}
	// One of a program that is gone by the time that it is looked at.
	other := fixture.Number(t, p, "program")
	fixture.Do(t, p, "scratchpad %#x 0 %#x 8192 128 2 3 4 5", other, fixture.Number(t, p, "kernel %#x 0", other))
	fixture.Do(t, p, "unload %#x", other)
	fixture.Do(t, p, "unload %#x", program)
	tr.expectPlaced(p, program)
	if u := tr.process(p.PID).CB; u.Physical != 0 || u.Scratchpads != 0 {
		t.Errorf("%+v", u)
	}
	// One that takes its time is asked for again.
	slow := fixture.Number(t, p, "program")
	kernel = fixture.Number(t, p, "kernel %#x 0", slow)
	fixture.Do(t, p, "scratchpad %#x 0 %#x 0 128 2 3 4 5", slow, kernel)
	tr.expectPlaced(p, slow)
	fixture.Do(t, p, "argument %#x 0 4096", kernel)
	tr.expectPlaced(p, slow, "3 on 1: 4096+128 [{2 3 4 5}]", "3 on 2: 4096+128 [{2 3 4 5}]")
	fixture.Do(t, p, "unload %#x", slow)
	// One that has no address is not guessed at.
	bad := fixture.Number(t, p, "program")
	fixture.Do(t, p, "scratchpad %#x 0 %#x 0 128 0 0 0 0", bad, fixture.Number(t, p, "kernel %#x 0", bad))
	tr.expectPlaced(p, bad)
	tr.await("a notice", func() bool { return tr.says("it has no address yet") })
}

func replaysOf(t *testing.T, tr *trace, p *fixture.Process, l *ledger) {
	fixture.Do(t, p, "mesh 0 1 2")
	queue := fixture.Number(t, p, "queue 0")
	fixture.Do(t, p, "replay %#x 0 3", queue)
	fixture.Do(t, p, "replay %#x 7 1000", queue)
	replays := func() []aggregator.TraceSnapshot {
		tr.sync()
		tr.mu.Lock()
		defer tr.mu.Unlock()
		return tr.accounts.Traces(p.PID)
	}
	list := replays()
	if len(list) != 2 || list[0].Trace != 0 || list[0].Count != 3 || list[1].Trace != 7 || list[1].Count != 1000 ||
		len(list[1].Chips) != 2 || list[1].Last <= list[0].Last {
		t.Errorf("%+v", list)
	}
	fixture.Do(t, p, "replay %#x 0 1", queue)
	if list := replays(); list[0].Count != 4 {
		t.Errorf("%+v", list)
	}
	if n := tr.process(p.PID).Counters; n.Replays != 1004 || n.UnknownLaunches != 0 {
		t.Errorf("%+v", n)
	}
	fixture.Do(t, p, "close 0")
	if list := replays(); len(list) != 0 {
		t.Errorf("%+v", list)
	}
}

// What is allocated after a capture and alive at the replay is unsafe, and known to lie where
// the capture had buffers; what is freed before is not.
func unsafeOf(t *testing.T, tr *trace, p *fixture.Process, l *ledger) {
	fixture.Do(t, p, "mesh 0 1 2")
	queue := fixture.Number(t, p, "queue 0")
	alloc := func(address int) uint64 {
		return fixture.Number(t, p, "alloc 1024 0 0 0 4096 1024 %d", address)
	}
	unsafe := func() map[uint64]aggregator.Unsafe {
		tr.sync()
		tr.mu.Lock()
		defer tr.mu.Unlock()
		found := map[uint64]aggregator.Unsafe{}
		for _, b := range tr.accounts.Buffers(p.PID) {
			if b.Unsafe.Found {
				found[b.ID] = b.Unsafe
			}
		}
		return found
	}
	alloc(0) // from before
	fixture.Do(t, p, "capture %#x 5", queue)
	fixture.Do(t, p, "free %#x", alloc(4096))
	fixture.Do(t, p, "captured %#x", queue)
	overlapping, apart, freed := alloc(4096), alloc(8192), alloc(16384)
	fixture.Do(t, p, "free %#x", freed)
	if found := unsafe(); len(found) != 0 {
		t.Errorf("before a replay: %+v", found)
	}
	fixture.Do(t, p, "replay %#x 5 2", queue)
	if found := unsafe(); len(found) != 2 || found[overlapping] != (aggregator.Unsafe{Found: true, Trace: 5, Overlaps: true}) ||
		found[apart] != (aggregator.Unsafe{Found: true, Trace: 5}) {
		t.Errorf("%+v", found)
	}
	// What the program marks as corruptible is none: allocated in a scope of its allocator, or acknowledged
	// afterwards. A scope of another allocator marks nothing, nor does one that ended.
	fixture.Do(t, p, "device 1 3")
	fixture.Do(t, p, "track")
	fixture.Do(t, p, "scope 0")
	fixture.Do(t, p, "scope 1")
	alloc(4096)
	fixture.Do(t, p, "end_scope")
	alloc(4096)
	fixture.Do(t, p, "end_scope")
	fixture.Do(t, p, "scope 1")
	other := alloc(4096)
	fixture.Do(t, p, "end_scope")
	fixture.Do(t, p, "acknowledge %#x", alloc(4096))
	fixture.Do(t, p, "acknowledge %#x", apart) // allocated before it was tracked: not known
	after := alloc(1 << 20)
	fixture.Do(t, p, "replay %#x 5 1", queue)
	if found := unsafe(); len(found) != 4 || !found[other].Found || !found[after].Found {
		t.Errorf("with marks: %+v, of which %#x and %#x are marked by nothing", found, other, after)
	}
	// One that is unsafe already is not any more when it is acknowledged.
	fixture.Do(t, p, "acknowledge %#x", other)
	fixture.Do(t, p, "acknowledge %#x", after)
	if found := unsafe(); len(found) != 2 {
		t.Errorf("with all acknowledged: %+v", found)
	}
	fixture.Do(t, p, "release 5")
	safe := alloc(32768)
	fixture.Do(t, p, "replay %#x 5 1", queue)
	if found := unsafe(); len(found) != 2 || found[safe].Found {
		t.Errorf("after the release: %+v", found)
	}
	s := tr.process(p.PID)
	if s.Unsafe.Buffers != 2 || s.Unsafe.Overlapping != 1 || s.Unsafe.Bytes != 8192 || s.Counters.Replays != 4 {
		t.Errorf("%+v", s)
	}
	if !s.Exact() {
		t.Errorf("%+v", s.Reasons)
	}
}

// A kernel-config ring as the runtime tracks it: places are given out in turn, and given
// up when a newer one needs the room or all that ran before is waited for.
func ringsOf(t *testing.T, tr *trace, p *fixture.Process, l *ledger) {
	fixture.Do(t, p, "mesh 0 1 2")
	queue := fixture.Number(t, p, "queue 0")
	ring := fixture.Number(t, p, "ring %#x 1000 100", queue)
	workloads := map[string]uint64{}
	enqueue := func(workload string, status, size int) {
		if workloads[workload] == 0 {
			w, program := fixture.Number(t, p, "workload"), fixture.Number(t, p, "program")
			fixture.Do(t, p, "kernel %#x 0", program)
			fixture.Do(t, p, "join %#x %#x", w, program)
			fixture.Do(t, p, "config %#x %d", program, size)
			workloads[workload] = w
		}
		fixture.Do(t, p, "enqueue %#x %#x %d %d", queue, workloads[workload], status, size)
	}
	expect := func(want aggregator.ConfigRing) {
		t.Helper()
		if want.Places > 0 {
			want.ID, want.Base, want.Capacity = ring, 1000, 100
		}
		for _, c := range tr.process(p.PID).Chips {
			if c.ConfigRing != want {
				t.Errorf("chip %d: %+v, not %+v", c.Chip.Number, c.ConfigRing, want)
			}
		}
	}
	const inFlight, committed = 1, 2
	expect(aggregator.ConfigRing{})
	enqueue("a", inFlight, 40)
	expect(aggregator.ConfigRing{Used: 40, Places: 1})
	enqueue("a", committed, 40)
	expect(aggregator.ConfigRing{Used: 80, Places: 2})
	enqueue("b", committed, 30) // behind these is too little: the first gives way
	expect(aggregator.ConfigRing{Used: 70, Places: 2})
	enqueue("c", inFlight, 10) // all before it is done
	expect(aggregator.ConfigRing{Used: 10, Places: 1})
	for range 20 { // no more than 7 places
		enqueue("d", committed, 1)
	}
	expect(aggregator.ConfigRing{Used: 7, Places: 7})
	fixture.Do(t, p, "replay %#x 1 1", queue)
	expect(aggregator.ConfigRing{Used: 100, Places: 1, Replayed: true})
	enqueue("e", committed, 90)
	expect(aggregator.ConfigRing{Used: 90, Places: 1})
	tr.mu.Lock()
	sizes := map[uint64]bool{}
	for _, program := range tr.accounts.Programs(p.PID) {
		sizes[program.Config] = true
	}
	tr.mu.Unlock()
	if want := map[uint64]bool{40: true, 30: true, 10: true, 1: true, 90: true}; !maps.Equal(sizes, want) {
		t.Errorf("programs take %v of the ring, not %v", sizes, want)
	}
	// One that was used before is known to a tracer that starts later.
	late := start(t, Options{PIDs: []uint32{p.PID}})
	late.await("the process's ring", func() bool {
		s, ok := late.lookup(p.PID)
		return ok && slices.ContainsFunc(s.Chips, func(c aggregator.ChipSnapshot) bool { return c.ConfigRing.ID == ring })
	})
	for _, c := range late.process(p.PID).Chips {
		if want := (aggregator.ConfigRing{ID: ring, Base: 1000, Capacity: 100, Used: 90, Places: 1}); c.ConfigRing != want {
			t.Errorf("attached late, chip %d: %+v, not %+v", c.Chip.Number, c.ConfigRing, want)
		}
	}
	fixture.Do(t, p, "close 0")
	tr.sync()
	for _, c := range tr.snapshot().Chips {
		if c.ConfigRing.ID == ring {
			t.Errorf("chip %d still has %+v", c.Chip.Number, c.ConfigRing)
		}
	}
}

// Of a library that does not show how a ring is read it is unknown, which is said.
func TestRingsThatAreNotUnderstood(t *testing.T) {
	build := fixture.Build{Flags: []string{"-O2"}, Strip: true, Hide: []string{"_ZN2tt8tt_metal21WorkerConfigBufferMgr5allocEj"}}
	p := fixture.User(t, build)
	tr := start(t, Options{PIDs: []uint32{p.PID}})
	fixture.Do(t, p, "mesh 0 1 2")
	queue := fixture.Number(t, p, "queue 0")
	fixture.Do(t, p, "ring %#x 1000 100", queue)
	w, program := fixture.Number(t, p, "workload"), fixture.Number(t, p, "program")
	fixture.Do(t, p, "join %#x %#x", w, program)
	fixture.Do(t, p, "enqueue %#x %#x 1 40", queue, w)
	for _, c := range tr.process(p.PID).Chips {
		if c.ConfigRing.Capacity != 0 || !c.ConfigRing.Unread {
			t.Errorf("chip %d: %+v", c.Chip.Number, c.ConfigRing)
		}
	}
	if got := tr.reasons(p.PID); len(got) > 0 {
		t.Errorf("its other numbers are marked: %v", got)
	}
	tr.noticed("kernel-config rings are not shown")
}

func privateNumbering(t *testing.T, tr *trace, p *fixture.Process, l *ledger) {
	l.private = true
	l.device(0, 0, 1)
	l.alloc(0, aggregator.DRAM, 0, 1)
	l.compare()
}

// What a process puts into its environment is not where the host kernel shows what it began with.
func ownNumbering(t *testing.T, tr *trace, p *fixture.Process, l *ledger) {
	fixture.Do(t, p, "setenv TT_VISIBLE_DEVICES 2,3")
	privateNumbering(t, tr, p, l)
}

// What a process held before is in the accounts, and its free is an ordinary one.
func TestAttachedLate(t *testing.T) {
	t.Parallel()
	p := fixture.User(t, fixture.LayoutB)
	fixture.Do(t, p, "mesh 0 1 2")
	before := fixture.Do(t, p, "alloc 100 0 0 0 4096 1024 64")
	fixture.Do(t, p, "alloc 100 0 1 0 8192 1024 128")
	tr := start(t, Options{PIDs: []uint32{p.PID}})
	s := tr.process(p.PID)
	if s.Late || s.Buffers != 2 || len(s.Chips) != 2 || s.Agreement.Found != 2 {
		t.Fatalf("at the attach: %+v", s)
	}
	for _, c := range s.Chips {
		if c.Memory[aggregator.DRAM].Requested != 4096 || c.Memory[aggregator.L1].Requested != 8192 {
			t.Errorf("on chip %d: %+v", c.Chip.Number, c.Memory)
		}
	}
	fixture.Do(t, p, "alloc 100 0 0 0 2048 1024 256")
	fixture.Do(t, p, "free %s", before)
	s = tr.process(p.PID)
	if s.Counters.UnmatchedFrees != 0 || s.Counters.Frees != 1 || s.Chips[0].Memory[aggregator.DRAM].Requested != 2048 {
		t.Errorf("after one was freed and one allocated: %+v", s)
	}
}

// A forked child has copies of its parent's objects; they are not its own until it
// is the only one to have them.
func TestForkedChildHoldsNothingOfItsParents(t *testing.T) {
	t.Parallel()
	p := fixture.User(t, fixture.LayoutB)
	fixture.Do(t, p, "device 0 1")
	fixture.Do(t, p, "alloc 100 0 0 0 4096 1024 64")
	child := uint32(fixture.Number(t, p, "fork"))
	tr := start(t, Options{PIDs: []uint32{p.PID, child}})
	if s := tr.process(p.PID); s.Buffers != 1 {
		t.Errorf("the parent: %+v", s)
	}
	if s := tr.process(child); s.Buffers != 0 || s.Late {
		t.Errorf("the child: %+v", s)
	}
	fixture.Do(t, p, "child 0 outlive")
	t.Cleanup(func() { syscall.Kill(int(child), syscall.SIGKILL) })
	p.Kill()
	tr.await("the child's copies are its own", func() bool {
		s, ok := tr.lookup(child)
		return ok && s.Buffers == 1 && s.Memory[aggregator.DRAM].Requested == 4096 && !s.Late && len(s.Chips) == 1
	})
	tr.noticed()
}

// Accounts that lack something, or have too much, are made right from the
// process's own allocators as soon as they are suspect.
func TestAccountsAreCorrected(t *testing.T) {
	t.Parallel()
	p := fixture.User(t, fixture.LayoutB)
	tr := start(t, Options{PIDs: []uint32{p.PID}})
	fixture.Do(t, p, "device 0 1")
	fixture.Do(t, p, "alloc 100 0 0 0 8192 1024 128")
	lost := fixture.Number(t, p, "alloc 100 0 0 0 4096 1024 64")
	if s := tr.process(p.PID); s.Buffers != 2 {
		t.Fatalf("%+v", s)
	}
	// As if the records of an allocation and of a free had been lost.
	tr.mu.Lock()
	stale := tr.allocated
	stale.Buffer, stale.Size = stale.Buffer+8, 64
	tr.accounts.Apply(&aggregator.Event{Kind: aggregator.Free, PID: p.PID, Buffer: lost})
	tr.accounts.Apply(&stale)
	tr.mu.Unlock()
	if s := tr.process(p.PID); s.Memory[aggregator.DRAM].Requested != 8192+64 {
		t.Fatalf("%+v", s)
	}
	tr.tracer.Reconcile(p.PID)
	tr.await("the accounts are right again", func() bool {
		s, _ := tr.lookup(p.PID)
		return s.Memory[aggregator.DRAM].Requested == 4096+8192 && s.Agreement.Repaired == 2
	})
}

func TestPIDNamedBeforeItsLibraryIsLoaded(t *testing.T) {
	t.Parallel()
	p := fixture.Launch(t)
	tr := start(t, Options{PIDs: []uint32{p.PID}})
	fixture.Do(t, p, "open %s", fixture.LibraryOf(t, fixture.LayoutB))
	tr.awaitProcess(p.PID)
	l := keep(t, tr, p)
	l.device(0, 1)
	l.alloc(0, aggregator.DRAM, 1)
	if s := l.compare(); s.Late {
		t.Error("it is taken for late")
	}
	tr.noticed()
}

// Each process's buffers are read by its own library's layout.
func TestTwoBuildsAtOnce(t *testing.T) {
	for _, byPID := range []bool{true, false} {
		t.Run(fmt.Sprintf("by PID: %v", byPID), func(t *testing.T) {
			a, b := fixture.User(t, fixture.LayoutA), fixture.User(t, fixture.LayoutB)
			var o Options
			if byPID {
				o.PIDs = []uint32{a.PID, b.PID}
			}
			tr := start(t, o)
			la, lb := keep(t, tr, a), keep(t, tr, b)
			la.device(0, 1)
			lb.device(0, 1)
			for range 50 {
				la.alloc(0, aggregator.Memory(la.next(5)), 1)
				lb.alloc(0, aggregator.Memory(lb.next(5)), 1)
			}
			sa, sb := la.compare(), lb.compare()
			if sa.Info.BuildID == sb.Info.BuildID || sa.Info.BuildID == "" {
				t.Errorf("build-ids %q and %q", sa.Info.BuildID, sb.Info.BuildID)
			}
			tr.stop()
		})
	}
}

// The file that a process has mapped is the one that is read and probed, also
// where its name leads elsewhere by now.
func TestLibraryReplacedOnDisk(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name    string
		replace func(path string) error
	}{
		{"deleted", os.Remove},
		{"another in its place", func(path string) error {
			other := fixture.Read(t, fixture.LibraryOf(t, fixture.LayoutA))
			if err := os.WriteFile(path+".new", other, 0o644); err != nil {
				return err
			}
			return os.Rename(path+".new", path)
		}},
		{"a folder in its place", func(path string) error {
			if err := os.Remove(path); err != nil {
				return err
			}
			return os.Mkdir(path, 0o755)
		}},
	}
	var processes []*fixture.Process
	var paths []string
	var pids []uint32
	for _, test := range tests {
		path := fixture.Write(t, fixture.Read(t, fixture.LibraryOf(t, fixture.LayoutB)))
		p := fixture.Launch(t)
		fixture.Do(t, p, "open %s", path)
		if err := test.replace(path); err != nil {
			t.Fatal(err)
		}
		processes, paths, pids = append(processes, p), append(paths, path), append(pids, p.PID)
	}
	tr := start(t, Options{PIDs: pids})
	for i, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			l := keep(t, tr, processes[i])
			l.device(0, 1)
			l.alloc(0, aggregator.DRAM, 1)
			if s := l.compare(); s.Info.Library != paths[i] {
				t.Errorf("library %q", s.Info.Library)
			}
		})
	}
	tr.noticed()
}

func TestLibraryOfAnotherName(t *testing.T) {
	t.Parallel()
	build := fixture.Build{Name: "libmine.so", Flags: fixture.LayoutB.Flags}
	p := fixture.User(t, build)
	tr := start(t, Options{PIDs: []uint32{p.PID}, Libraries: []string{fixture.LibraryOf(t, build)}})
	l := keep(t, tr, p)
	l.device(0, 1)
	l.alloc(0, aggregator.DRAM, 1)
	l.compare()
	tr.noticed()
}

// A library that cannot be traced is left alone, with one line that says why.
func TestUnsupportedLibraryIsLeftAlone(t *testing.T) {
	t.Parallel()
	const destroyAllocator = "_ZN2tt8tt_metal13AllocatorImplD2Ev"
	var processes []*fixture.Process
	var pids []uint32
	for _, b := range []fixture.Build{
		fixture.WithFlags("-DLAYOUT_B -DTWO_POINTERS"),
		fixture.WithFlags("-O2 -DBARE_FREED"),
		{Hide: []string{destroyAllocator}, Strip: true},
		// Not the runtime, but a library that uses it: nothing to say.
		{Hide: metal.RuntimeSymbols, Strip: true},
	} {
		p := fixture.User(t, b)
		processes, pids = append(processes, p), append(pids, p.PID)
	}
	tr := start(t, Options{PIDs: pids})
	for _, p := range processes {
		fixture.Do(t, p, "device 0 1")
		fixture.Do(t, p, "alloc 100 0 0 0 4096 1024 64")
	}
	tr.sync()
	if list := tr.snapshot().Processes; len(list) > 0 {
		t.Errorf("accounts of %+v", list)
	}
	if seen, _ := buffersSeen(tr.counters()); seen != 0 {
		t.Errorf("%d probes hit", seen)
	}
	// Those that are refused are those that are there now.
	refused := func(want int) {
		t.Helper()
		tr.sync()
		if n := tr.tracer.Refused(); n != want {
			t.Errorf("%d libraries are refused, want %d", n, want)
		}
	}
	refused(3)
	tr.untraced(pids[:3]...)
	processes[0].Kill()
	refused(2)
	tr.untraced(pids[1:3]...)
	fixture.Do(t, processes[1], "exec")
	refused(1)
	tr.untraced(pids[2])
	tr.noticed("two pointers", "single-step", destroyAllocator)
}

func TestForkWithoutExec(t *testing.T) {
	t.Run("by PID", func(t *testing.T) {
		p := fixture.User(t, fixture.LayoutB)
		tr := start(t, Options{PIDs: []uint32{p.PID}})
		l := keep(t, tr, p)
		l.device(0, 1)
		l.alloc(0, aggregator.DRAM, 1)
		child := uint32(fixture.Number(t, p, "fork"))
		before, _ := buffersSeen(tr.counters())
		b := fixture.Do(t, p, "child 0 alloc 100 0 0 0 4096 1024 64")
		fixture.Do(t, p, "child 0 free %s", b)
		l.compare()
		if after, _ := buffersSeen(tr.counters()); after != before {
			t.Errorf("%d events of a process that was not asked for", after-before)
		}
		if _, ok := tr.lookup(child); ok {
			t.Error("the child is in the accounts")
		}
		fixture.Do(t, p, "child 0 exit")
		l.alloc(0, aggregator.DRAM, 1)
		l.compare()
		tr.stop()
	})
	t.Run("all processes", func(t *testing.T) {
		p := fixture.User(t, fixture.LayoutB)
		tr := start(t, Options{})
		l := keep(t, tr, p)
		l.device(0, 1)
		l.alloc(0, aggregator.DRAM, 1)
		for now := proc.Ticks(); proc.Ticks() == now; { // else its child may have begun before the probes were in
		}
		child := uint32(fixture.Number(t, p, "fork"))
		fixture.Do(t, p, "child 0 alloc 100 0 1 0 4096 1024 64")
		fixture.Do(t, p, "child 0 orphan 0 1 0 4096 1024 64")
		s := tr.process(child)
		if s.Counters.Allocs != 1 || s.Counters.UnmatchedFrees != 1 || s.Memory[aggregator.L1].Requested != 4096 || s.Buffers != 1 {
			t.Errorf("the child's accounts are %+v", s)
		}
		l.compare()
		fixture.Do(t, p, "child 0 exit")
		tr.await("the child's accounts end", func() bool { _, ok := tr.lookup(child); return !ok })
		l.compare()
		tr.stop()
	})
}

// A process that executes another program before its first use of a device is known has what
// the new program holds alone, whether discovery or the reader finds it first; and a program ends in the
// accounts once, one that never used the runtime not at all.
func TestExecBeforeItIsFound(t *testing.T) {
	library := fixture.LibraryOf(t, fixture.LayoutB)
	use := func(t *testing.T, p *fixture.Process, prefix string, size int) {
		t.Helper()
		for _, command := range []string{"open " + library, "device 0 1", fmt.Sprintf("alloc 100 0 0 0 %d 1024 64", size)} {
			fixture.Do(t, p, "%s%s", prefix, command)
		}
	}
	const before, after = 4096, 512
	for _, name := range []string{"discovery is first", "the reader is first", "a fork that allocates", "a fork that does nothing"} {
		t.Run(name, func(t *testing.T) {
			tr := start(t, Options{})
			known := fixture.User(t, fixture.LayoutB)
			tr.awaitProcess(known.PID)
			fixture.Do(t, known, "device 0 2")
			tr.sync()
			p, pid, prefix, programs := fixture.Launch(t), uint32(0), "", 1
			pid = p.PID
			forks, nothing := strings.HasPrefix(name, "a fork"), name == "a fork that does nothing"
			if forks {
				use(t, p, "", after)
				if nothing {
					tr.awaitProcess(pid) // so its forks are watched
				}
				child, err := strconv.ParseUint(fixture.Do(t, p, "fork"), 10, 32)
				if err != nil {
					t.Fatal(err)
				}
				pid, prefix = uint32(child), "child 0 "
				tr.sync()
			}
			release := tr.hold(func() { fixture.Do(t, known, "alloc 100 0 0 0 4096 1024 64") })
			defer release()
			tr.tracer.mu.Lock() // discovery waits for it
			discovers := sync.OnceFunc(tr.tracer.mu.Unlock)
			defer discovers()
			switch {
			case nothing:
				programs = 0
			case !forks:
				use(t, p, prefix, before)
			default:
				fixture.Do(t, p, "%salloc 100 0 0 0 %d 1024 64", prefix, before)
			}
			fixture.Do(t, p, "%sexec", prefix)
			use(t, p, prefix, after)
			announced := func() bool {
				tr.tracer.inboxMu.Lock()
				defer tr.tracer.inboxMu.Unlock()
				return slices.ContainsFunc(tr.tracer.announced, func(a announcement) bool { return a.mapping.PID == pid })
			}
			if name == "the reader is first" {
				release()
			}
			discovers()
			for late := time.Now().Add(patience); (name == "discovery is first" || nothing) && !announced(); {
				if time.Now().After(late) {
					t.Fatal("it is not found")
				}
			}
			release()
			s := tr.process(pid)
			if s.Exact() && (s.Buffers != 1 || s.Memory[aggregator.DRAM].Requested != after) {
				t.Errorf("%d buffers of %d bytes, and nothing is marked", s.Buffers, s.Memory[aggregator.DRAM].Requested)
			}
			tr.await("what the new program holds is known", func() bool {
				s, _ := tr.lookup(pid)
				return s.Exact() && s.Buffers == 1 && s.Memory[aggregator.DRAM].Requested == after
			})
			ended := func(what string, want int) {
				t.Helper()
				tr.mu.Lock()
				defer tr.mu.Unlock()
				if tr.ended[pid] != want {
					t.Errorf("%s %d programs ended in the accounts, not %d", what, tr.ended[pid], want)
				}
			}
			ended("after the exec", programs)
			if forks {
				fixture.Do(t, p, "%sexit", prefix)
			} else if err := p.Exit(); err != nil {
				t.Error(err)
			}
			tr.await("it is gone", func() bool { _, there := tr.lookup(pid); return !there })
			tr.sync()
			ended("at its end", programs+1)
		})
	}
}

func TestExecDropsTheAccounts(t *testing.T) {
	for _, all := range []bool{false, true} {
		p := fixture.User(t, fixture.LayoutB)
		var o Options
		if !all {
			o.PIDs = []uint32{p.PID}
		}
		tr := start(t, o)
		l := keep(t, tr, p)
		l.device(0, 1)
		l.alloc(0, aggregator.DRAM, 1)
		l.compare()
		// The answer is the new program's.
		fixture.Do(t, p, "exec")
		tr.sync()
		if s, ok := tr.lookup(p.PID); ok {
			t.Errorf("the accounts go on: %+v", s)
		}
		fixture.Do(t, p, "open %s", fixture.LibraryOf(t, fixture.LayoutB))
		tr.awaitProcess(p.PID)
		l = keep(t, tr, p)
		l.device(0, 9)
		l.alloc(0, aggregator.L1, 9)
		if s := l.compare(); s.Late || s.Info.Command != "fixture-again answer" {
			t.Errorf("late %t, command %q", s.Late, s.Info.Command)
		}
		tr.stop()
	}
}

// A process that was not asked for makes no events, whether it is probed or not.
func TestOtherProcessesMakeNoEvents(t *testing.T) {
	t.Parallel()
	// With probes of their own, and with more than have them.
	for _, n := range []int{1, maxOwnProbes + 1} {
		other := fixture.User(t, fixture.LayoutB)
		var pids []uint32
		var all []*fixture.Process
		for range n {
			p := fixture.User(t, fixture.LayoutB)
			all, pids = append(all, p), append(pids, p.PID)
		}
		tr := start(t, Options{PIDs: pids})
		var ledgers []*ledger
		for _, p := range all {
			l := keep(t, tr, p)
			l.device(0, 1)
			l.alloc(0, aggregator.DRAM, 1)
			l.compare()
			ledgers = append(ledgers, l)
		}
		before := tr.counters()
		fixture.Do(t, other, "device 0 1")
		fixture.Do(t, other, "storm 0 2 1000 0")
		tr.sync()
		if after := tr.counters(); after != before {
			t.Errorf("counters %+v, before %+v", after, before)
		}
		if _, ok := tr.lookup(other.PID); ok {
			t.Error("it is in the accounts")
		}
		for _, l := range ledgers {
			l.alloc(0, aggregator.DRAM, 1)
			l.compare()
		}
		if links := tr.links(); !tr.tracer.lacks.MultiUprobes && links != 1 {
			t.Errorf("%d processes have %d links", n, links)
		}
		tr.stop()
	}
}

// links are how many there are to probes.
func (tr *trace) links() (n int) {
	tr.tracer.mu.Lock()
	defer tr.tracer.mu.Unlock()
	for _, s := range tr.tracer.sets() {
		for _, links := range s.links {
			n += len(links)
		}
	}
	return n
}

func TestFollowTracesChildrenOnly(t *testing.T) {
	needRights(t)
	fixture.LibraryOf(t, fixture.LayoutA)
	fixture.LibraryOf(t, fixture.LayoutB)
	unrelated := fixture.Launch(t)
	tr := start(t, Options{Follow: uint32(os.Getpid())})
	child := fixture.Launch(t)
	fixture.Do(t, child, "open %s", fixture.LibraryOf(t, fixture.LayoutB))
	tr.awaitProcess(child.PID)
	fixture.Do(t, unrelated, "open %s", fixture.LibraryOf(t, fixture.LayoutB))
	fixture.Do(t, unrelated, "device 0 1")
	fixture.Do(t, unrelated, "storm 0 1 100 0")
	l := keep(t, tr, child)
	l.device(0, 1)
	l.alloc(0, aggregator.DRAM, 1)
	l.compare()

	// A grandchild that goes on with what it inherits, and one that is a new program.
	forked := uint32(fixture.Number(t, child, "fork"))
	fixture.Do(t, child, "child 0 alloc 100 0 1 0 4096 1024 64")
	if s := tr.process(forked); s.Memory[aggregator.L1].Requested != 4096 || s.Late {
		t.Errorf("the grandchild's accounts are %+v", s)
	}
	grandchild := uint32(fixture.Number(t, child, "fork"))
	fixture.Do(t, child, "child 1 exec")
	fixture.Do(t, child, "child 1 open %s", fixture.LibraryOf(t, fixture.LayoutA))
	tr.awaitProcess(grandchild)
	fixture.Do(t, child, "child 1 device 0 7")
	fixture.Do(t, child, "child 1 alloc 100 0 1 0 8192 1024 64")
	if s := tr.process(grandchild); s.Memory[aggregator.L1].Requested != 8192 || s.Late {
		t.Errorf("the new program's accounts are %+v", s)
	}
	l.compare()
	if _, ok := tr.lookup(unrelated.PID); ok {
		t.Error("a process that is no child is in the accounts")
	}
	if n := len(tr.snapshot().Processes); n != 3 {
		t.Errorf("%d processes, want 3", n)
	}
	tr.noticed()
}

// With PIDs given, the last one's end is the tracer's; what it held is shown as it was.
func TestRunEndsWithItsLastProcess(t *testing.T) {
	t.Parallel()
	a, b := fixture.User(t, fixture.LayoutA), fixture.User(t, fixture.LayoutB)
	tr := start(t, Options{PIDs: []uint32{a.PID, b.PID}})
	for _, p := range []*fixture.Process{a, b} {
		l := keep(t, tr, p)
		l.device(0, 1)
		l.alloc(0, aggregator.DRAM, 1)
		l.compare()
	}
	a.Kill()
	tr.await("the first process is gone", func() bool { _, ok := tr.lookup(a.PID); return !ok })
	if err := b.Exit(); err != nil {
		t.Error(err)
	}
	select {
	case err := <-tr.done:
		tr.done <- err
	case <-time.After(patience):
		t.Fatal("it goes on")
	}
	s := tr.snapshot()
	if len(s.Processes) != 0 || len(s.Ended) != 2 || s.Ended[0].Buffers != 1 || s.Ended[1].Buffers != 1 {
		t.Errorf("processes %+v, ended %+v", s.Processes, s.Ended)
	}
	for _, c := range s.Chips {
		if u := c.Memory[aggregator.DRAM]; u.Requested != 0 || u.Buffers != 0 {
			t.Errorf("chip %v holds %+v", c.Chip, u)
		}
	}
}

// own is a library of a name that other tracers on this machine do not look for.
var own = fixture.Build{Name: "libown.so", Flags: fixture.LayoutB.Flags}

// entries are the first bytes of the probed instructions in a live process.
func entries(t *testing.T, p *fixture.Process) (live, file []byte) {
	t.Helper()
	l, err := metal.OpenLibrary(fixture.LibraryOf(t, own))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := l.Cover()
	if err != nil {
		t.Fatal(err)
	}
	list, err := discover.NewFinder(l.ID).Mappings(p.PID)
	if err != nil || len(list) != 1 {
		t.Fatalf("mappings %+v: %v", list, err)
	}
	mem, err := os.Open(fmt.Sprintf("/proc/%d/mem", p.PID))
	if err != nil {
		t.Fatal(err)
	}
	defer mem.Close()
	for _, probe := range c.Probes {
		var is [1]byte
		if _, err := mem.ReadAt(is[:], int64(list[0].Base+probe.Address+probe.Skipped)); err != nil {
			t.Fatal(err)
		}
		was, err := l.Code(probe.Address+probe.Skipped, 1)
		if err != nil {
			t.Fatal(err)
		}
		live, file = append(live, is[0]), append(file, was[0])
	}
	return live, file
}

const int3 = 0xcc

func attached(t *testing.T, p *fixture.Process) {
	t.Helper()
	if live, _ := entries(t, p); !bytes.Equal(live, bytes.Repeat([]byte{int3}, len(live))) {
		t.Errorf("while attached the points begin with % x", live)
	}
}

func detached(t *testing.T, p *fixture.Process) {
	t.Helper()
	if live, file := entries(t, p); !bytes.Equal(live, file) {
		t.Errorf("the points begin with % x, in the file with % x", live, file)
	}
}

// Nothing stays in a traced process, and it goes on.
func TestDetach(t *testing.T) {
	for _, all := range []bool{false, true} {
		p := fixture.User(t, own)
		fixture.Do(t, p, "device 0 1")
		detached(t, p)
		o := Options{Libraries: []string{fixture.LibraryOf(t, own)}}
		if !all {
			o.PIDs = []uint32{p.PID}
		}
		tr := start(t, o)
		attached(t, p)
		tr.stop()
		detached(t, p)
		fixture.Do(t, p, "storm 0 2 100 0")
	}
}

func TestKilledTracerLeavesNothing(t *testing.T) {
	t.Parallel()
	attachAndKill(t, nil)
}

// attachAndKill traces by a process of its own, started in this way.
func attachAndKill(t *testing.T, how *syscall.SysProcAttr) {
	t.Helper()
	p := fixture.User(t, own)
	lacking(t)
	needRights(t)
	fixture.Do(t, p, "device 0 1")
	cmd := helper("attach", fmt.Sprint(p.PID), fixture.LibraryOf(t, own))
	cmd.SysProcAttr = how
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err == nil && line == "ready\n" {
		attached(t, p)
		fixture.Do(t, p, "alloc 100 0 1 0 8192 1024 64")
	} else {
		t.Errorf("the tracer said %q: %v", line, err)
	}
	cmd.Process.Kill()
	cmd.Wait()
	detached(t, p)
	fixture.Do(t, p, "storm 0 2 100 0")
}

// helpAttach traces a process with a library until it is killed.
func helpAttach(args []string) error {
	pid, err := strconv.ParseUint(args[0], 10, 32)
	if err != nil {
		return err
	}
	tr, err := New(Options{PIDs: []uint32{uint32(pid)}, Libraries: args[1:], Lacks: lacks(os.Getenv(lacksEnv)),
		Notice: func(s string) { fmt.Fprintln(os.Stderr, s) }})
	if err != nil {
		return err
	}
	return tr.Run(context.Background(), func() { fmt.Println("ready") }, func([]aggregator.Event) {})
}

// New refuses what it cannot do before it attaches to anything.
func TestNewRefuses(t *testing.T) {
	needRights(t)
	bad := fixture.Write(t, []byte("not a library"))
	if _, err := New(Options{Libraries: []string{bad}}); err == nil {
		t.Error("a library that is none is taken")
	} else if !errors.Is(err, metal.ErrUnsupported) || !strings.Contains(err.Error(), bad) {
		t.Errorf("the error is %v", err)
	}
	if _, err := New(Options{Libraries: []string{filepath.Join(t.TempDir(), "none")}}); err == nil {
		t.Error("a library that is not there is taken")
	}
	if _, err := New(Options{RingBytes: 3}); err == nil {
		t.Error("a ring of 3 bytes is taken")
	}
}
