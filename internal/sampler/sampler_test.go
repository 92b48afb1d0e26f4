package sampler

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"tt-memtrace/aggregator"
	"tt-memtrace/aggregator/exact"
	"tt-memtrace/internal/discover"
	"tt-memtrace/internal/inspect"
	"tt-memtrace/internal/memory"
	"tt-memtrace/internal/proc"
	"tt-memtrace/test/fixture"
)

func TestMain(m *testing.M) { os.Exit(fixture.Main(m)) }

const testPatience = 3 * time.Minute

// sampling is a source and its accounts.
type sampling struct {
	t      *testing.T
	source *Source
	// stop ends it, and says how long that took.
	stop func() time.Duration

	mu       sync.Mutex
	accounts *aggregator.Aggregator
	kinds    map[aggregator.Kind]int
	notices  []string
}

func sample(t *testing.T, o Options) *sampling {
	t.Helper()
	s := &sampling{t: t, accounts: aggregator.New(), kinds: map[aggregator.Kind]int{}}
	o.Notice = func(text string) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.notices = append(s.notices, text)
	}
	var err error
	if s.source, err = New(o); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ready, done := make(chan struct{}), make(chan error, 1)
	s.stop = sync.OnceValue(func() time.Duration {
		began := time.Now()
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		return time.Since(began)
	})
	go func() {
		done <- s.source.Run(ctx, func() { close(ready) }, func(events []aggregator.Event) {
			s.mu.Lock()
			defer s.mu.Unlock()
			aggregator.Expand(s.accounts, events, func(list []aggregator.Event) {
				for i := range list {
					s.kinds[list[i].Kind]++
					s.accounts.Apply(&list[i])
				}
			})
		})
	}()
	t.Cleanup(func() { s.stop() })
	select {
	case <-ready:
	case <-time.After(testPatience):
		t.Fatal("the first look did not end")
	}
	return s
}

// process is one after a look that began now.
func (s *sampling) process(pid uint32) (aggregator.ProcessSnapshot, bool) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), testPatience)
	defer cancel()
	if err := s.source.Sync(ctx); err != nil {
		s.t.Fatal(err)
	}
	return s.now(pid)
}

// Looks show what changed between them, buffers at the address of others that
// went included, until the process ends.
func TestLooks(t *testing.T) {
	p := fixture.User(t, fixture.LayoutA)
	fixture.Do(t, p, "mesh 0 1 2")
	var buffers []string
	for i := range 300 {
		buffers = append(buffers, fixture.Do(t, p, "alloc 64 0 0 0 4096 1024 %d", 64*i))
	}
	s := sample(t, Options{PIDs: []uint32{p.PID}, Interval: 20 * time.Millisecond})
	check := func(what string, buffers, dram, l1 uint64) {
		t.Helper()
		got, ok := s.process(p.PID)
		if !ok || got.Buffers.WithoutBound() != buffers || !got.Memory[aggregator.DRAM].Requested.Is(dram) || !got.Memory[aggregator.L1].Requested.Is(l1) {
			t.Fatalf("%s: %t, %d buffers, %+v", what, ok, got.Buffers, got.Memory)
		}
		if got.Info.Source != aggregator.Sampled {
			t.Errorf("%s: it is %v", what, got.Info.Source)
		}
	}
	check("at first", 300, 2*300*4096, 0)
	for _, b := range buffers[:100] {
		fixture.Do(t, p, "free %s", b)
	}
	check("after 100 were freed", 200, 2*200*4096, 0)
	for i := range 100 {
		fixture.Do(t, p, "alloc 64 0 1 0 8192 1024 %d", 64*i)
	}
	check("after 100 others came", 300, 2*200*4096, 2*100*8192)
	// The same object again, with another size.
	fixture.Do(t, p, "again %s 0 0 0 2048 1024 %d", buffers[299], 64*299)
	check("after one was made again", 300, 2*(199*4096+2048), 2*100*8192)
	check("without a change", 300, 2*(199*4096+2048), 2*100*8192)
	fixture.Do(t, p, "close 0")
	p.Kill()
	if got, ok := s.process(p.PID); ok {
		t.Errorf("it ended and is shown: %+v", got)
	}
	if n := s.kinds[aggregator.Free]; n != 101 {
		t.Errorf("%d frees were reported, want 101", n)
	}
}

// A process whose look takes too long is marked until any look at it ends well.
func TestLookThatTookTooLong(t *testing.T) {
	accounts := aggregator.New()
	source, err := New(Options{})
	if err != nil {
		t.Fatal(err)
	}
	p := &process{pid: uint32(os.Getpid()), memory: memoryOf(uint32(os.Getpid())), shown: true}
	r := &run{Source: source, processes: map[uint32]*process{p.pid: p}, users: map[uint32]*user{}, deliver: func(events []aggregator.Event) {
		for i := range events {
			accounts.Apply(&events[i])
		}
	}}
	accounts.Apply(&aggregator.Event{Kind: aggregator.ProcessStart, PID: p.pid, Time: 1, Process: &aggregator.Process{Source: aggregator.Sampled}})
	marked := func() bool {
		return slices.ContainsFunc(accounts.Snapshot().Processes[0].Reasons, func(r aggregator.Reason) bool { return r.Code == exact.ReasonScanFailed })
	}
	l := &look{p: p, waited: patience, scan: &inspect.ProcessScan{}}
	l.thread.Store(int32(os.Getpid()))
	p.busy, p.look = true, l
	r.gather(t.Context())
	if !p.hangs || !marked() {
		t.Fatalf("it hangs: %t, and is marked: %t", p.hangs, marked())
	}
	l.at = proc.Now()
	r.take(l)
	if marked() {
		t.Error("it was read, and is marked")
	}
}

// A process that was asked for is marked for as long as its mappings do not answer, or no file can be opened; one of many that
// need not use the runtime in the latter case alone.
func TestProcessThatCannotBeLookedAt(t *testing.T) {
	noDescriptors := &os.PathError{Op: "open", Path: "/proc/1/maps", Err: unix.EMFILE}
	for _, c := range []struct {
		err           error
		named, marked bool
	}{
		{proc.ErrMapsBusy, true, true},
		{proc.ErrMapsBusy, false, false},
		{noDescriptors, true, true},
		{noDescriptors, false, true},
		{discover.ErrNoRuntime, true, false},
		{&os.PathError{Op: "open", Path: "/proc/1/maps", Err: unix.ENOENT}, true, false},
		{&os.PathError{Op: "read", Path: "/proc/1/maps", Err: unix.ESRCH}, true, false},
	} {
		accounts, pid := aggregator.New(), uint32(os.Getpid())
		source, err := New(Options{PIDs: []uint32{pid}})
		if err != nil {
			t.Fatal(err)
		}
		r := &run{Source: source, others: map[uint32]*other{pid: {}}, users: map[uint32]*user{}, budget: newBudget(time.Now()), deliver: func(events []aggregator.Event) {
			for i := range events {
				accounts.Apply(&events[i])
			}
		}}
		check := func(what string, marked bool) {
			t.Helper()
			r.finishRound()
			if list := accounts.Snapshot().Reasons; len(list) > 0 != marked || marked && (list[0].Code != exact.ReasonNotTraced || list[0].Detail != c.err.Error() || !strings.HasPrefix(list[0].String(), "it may use the runtime")) {
				t.Errorf("%v, asked for: %t, %s: %+v", c.err, c.named, what, list)
			}
			if waits := len(source.Waiting()) > 0; waits == marked {
				t.Errorf("%v, asked for: %t, %s: it waits for the runtime: %t", c.err, c.named, what, waits)
			}
		}
		x := &examination{pid: pid, named: c.named}
		x.classify(c.err)
		r.takeIn(x)
		check("at first", c.marked)
		r.takeIn(&examination{pid: pid, named: c.named})
		check("when it was looked at", false)
	}
}

// While there are processes that may not be read nothing is exact, as they may use the same chips; one that was asked for is marked itself.
func TestProcessThatMayNotBeRead(t *testing.T) {
	for _, asked := range []bool{false, true} {
		accounts, pid := aggregator.New(), uint32(os.Getpid())
		targets := map[uint32]uint64{}
		if asked {
			targets[pid] = processStarted(t, pid)
		}
		r := &run{Source: &Source{opts: Options{Notice: func(string) {}}}, others: map[uint32]*other{pid: {}}, users: map[uint32]*user{}, targets: targets,
			budget: newBudget(time.Now()), deliver: func(events []aggregator.Event) {
				for i := range events {
					accounts.Apply(&events[i])
				}
			}}
		for range 2 {
			x := &examination{pid: pid, named: asked}
			x.classify(&os.PathError{Op: "open", Path: "/proc/1/maps", Err: unix.EACCES})
			r.takeIn(x)
		}
		want := aggregator.Reason{Code: exact.ReasonOtherUsers}
		if asked {
			want = aggregator.Reason{Code: exact.ReasonNotTraced, PID: pid}
		}
		if list := accounts.Snapshot().Reasons; len(list) != 1 || list[0].Code != want.Code || list[0].PID != want.PID || list[0].Unsure != asked {
			t.Errorf("asked for: %t: %+v", asked, list)
		}
	}
}

// A process that there is no time to search is marked at every look until it was searched whole. What was found
// before is shown as it is now, also that a device was closed.
func TestSearchThatTakesTooLong(t *testing.T) {
	p := fixture.User(t, fixture.LayoutA)
	for place := range 2 {
		fixture.Do(t, p, "device %d %[1]d", place)
		fixture.Do(t, p, "alloc 64 %d 0 0 4096 1024 64", place)
	}
	s := sample(t, Options{PIDs: []uint32{p.PID}, Interval: time.Hour}) // it looks when asked
	check := func(what string, dram uint64, chips int, late bool) {
		t.Helper()
		got, _ := s.process(p.PID)
		marked := slices.ContainsFunc(got.Reasons, func(r aggregator.Reason) bool { return r.Code == exact.ReasonScanTimeout })
		if !got.Memory[aggregator.DRAM].Requested.Is(dram) || len(got.Chips) != chips || marked != late {
			t.Errorf("%s: %d chips, %+v, reasons %+v", what, len(got.Chips), got.Memory[aggregator.DRAM], got.Reasons)
		}
	}
	check("at first", 2*4096, 2, false)
	enough := memory.SearchTime
	t.Cleanup(func() { memory.SearchTime = enough })
	memory.SearchTime = time.Nanosecond
	fixture.Do(t, p, "alloc 64 0 0 0 8192 1024 8192")
	for range 3 {
		check("without time", 2*4096+8192, 2, true)
	}
	fixture.Do(t, p, "close 1")
	check("without one device", 4096+8192, 1, true)
	memory.SearchTime = enough
	check("with time", 4096+8192, 1, false)
}

// A ring whose page is not there is unknown, and its process is marked, until it is read again.
func TestRingOnAPageThatIsNotThere(t *testing.T) {
	p := fixture.User(t, fixture.LayoutB)
	fixture.Do(t, p, "mesh 0 1 2")
	queue := fixture.Number(t, p, "queue_apart 0")
	ring := fixture.Number(t, p, "ring %#x 1000 100", queue)
	fixture.Do(t, p, "take_place %#x 40", queue)
	s := sample(t, Options{PIDs: []uint32{p.PID}, Interval: 20 * time.Millisecond})
	check := func(what string, want aggregator.ConfigRing, marked bool) {
		t.Helper()
		want.ID, want.Base, want.Capacity = ring, 1000, 100
		got, _ := s.process(p.PID)
		for _, c := range got.Chips {
			if c.ConfigRing != want.Usage() {
				t.Errorf("%s: chip %d: %+v, not %+v", what, c.Chip.Number, c.ConfigRing, want)
			}
		}
		if len(got.Chips) != 2 || marked != slices.ContainsFunc(got.Reasons, func(r aggregator.Reason) bool { return r.Code == exact.ReasonConfigRingUnread }) {
			t.Errorf("%s: %d chips, reasons %+v", what, len(got.Chips), got.Reasons)
		}
	}
	check("at first", aggregator.ConfigRing{Used: 40, Places: 1}, false)
	fixture.Do(t, p, "take_place %#x 30", queue)
	fixture.Do(t, p, "hide %#x", queue)
	check("its page is not there", aggregator.ConfigRing{Unread: true}, true)
	check("once more", aggregator.ConfigRing{Unread: true}, true)
	fixture.Do(t, p, "show %#x", queue)
	check("its page is there again", aggregator.ConfigRing{Used: 70, Places: 2}, false)
}

// A process that holds a device is sampled whatever its library is called. If it has no symbols, a
// reason says so, as long as the process lives.
func TestHoldersOfDevices(t *testing.T) {
	renamed, hidden := fixture.Holder(t, &fixture.Renamed), fixture.Holder(t, &fixture.Hidden)
	for _, p := range []*fixture.Process{renamed, hidden} {
		fixture.Do(t, p, "map %s", fixture.Device)
	}
	fixture.Do(t, renamed, "device 0 3")
	fixture.Do(t, renamed, "alloc 64 0 0 0 4096 1024 64")
	s := sample(t, Options{Follow: uint32(os.Getpid()), Interval: 20 * time.Millisecond})
	if got, ok := s.process(renamed.PID); !ok || !got.Memory[aggregator.DRAM].Requested.Is(4096) {
		t.Errorf("%t %+v", ok, got)
	}
	reasons := func() []aggregator.Reason {
		s.process(hidden.PID)
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.accounts.Snapshot().Reasons
	}
	if got := reasons(); len(got) != 1 || got[0].PID != hidden.PID || got[0].Code != exact.ReasonNotTraced || !strings.HasPrefix(got[0].String(), "it uses the runtime") ||
		!strings.Contains(got[0].Detail, "libhidden.so has the runtime's code, but not its symbols") {
		t.Errorf("%+v", got)
	}
	hidden.Kill()
	if got := reasons(); len(got) != 0 {
		t.Errorf("it ended: %+v", got)
	}
}

// Looks that take more than their share come more rarely, and a notice says so.
func TestIntervalGrows(t *testing.T) {
	now := time.Unix(1000, 0)
	b := newBudget(now)
	const asked = 100 * time.Millisecond
	b.spend(now, 20*time.Millisecond, true)
	if got := b.interval(asked); got != asked {
		t.Errorf("the first look, which reads what no other has to, makes others %v apart", got)
	}
	b = newBudget(now)
	for range 2 {
		if got := b.interval(asked); got != asked {
			t.Errorf("looks that cost nothing are %v apart", got)
		}
	}
	var got time.Duration
	for range 50 {
		now = now.Add(asked)
		b.spend(now, 20*time.Millisecond, true)
		got = b.interval(asked)
	}
	if got < 20*time.Millisecond*Share || got > 2*20*time.Millisecond*Share {
		t.Errorf("looks of 20 ms are %v apart", got)
	}
	if b.owed != maxOwed {
		t.Errorf("looks of more than their share owe %v", b.owed)
	}
	for range 2000 {
		now = now.Add(got)
		b.spend(now, time.Millisecond/10, true)
		got = b.interval(asked)
	}
	if got != asked || b.credit != maxCredit || b.owed != 0 {
		t.Errorf("when they take less they are %v apart and owe %v, and %v are left for searches", got, b.owed, b.credit)
	}

	var notices []string
	s, err := New(Options{Interval: asked, Notice: func(text string) { notices = append(notices, text) }})
	if err != nil {
		t.Fatal(err)
	}
	r := &run{Source: s, budget: newBudget(now)}
	for i := range 20 {
		r.budget.spend(now.Add(time.Duration(i)*asked), 20*time.Millisecond, true)
		r.adapt()
	}
	if s.Interval() < 2*time.Second || len(notices) == 0 || !strings.Contains(notices[0], fmt.Sprintf("sampling every %v", s.Interval())) {
		t.Errorf("every %v: %q", s.Interval(), notices)
	}
	for i := range 200 {
		if i%40 < 20 {
			r.budget.spend(now.Add(time.Minute), 20*time.Millisecond, true)
		}
		r.adapt()
	}
	if len(notices) != 1 {
		t.Errorf("if the interval comes and goes, the notice is repeated: %q", notices)
	}
}

// searching is a process that is due to be searched all the time, by a clock of its own.
type searching struct {
	rests bool
	cost  time.Duration
	last  time.Time
	// times it was searched, at most longest apart.
	times   int
	longest time.Duration
}

// searchesOf are those that a budget permits in so long, with looks each of which takes a time, some time after the last.
func searchesOf(list []*searching, look, apart, during time.Duration) (took time.Duration) {
	now := time.Unix(1000, 0)
	b, end := newBudget(now), now.Add(during)
	for _, s := range list {
		s.last = now
	}
	for ; now.Before(end); now = now.Add(apart) {
		b.spend(now, look, true)
		for _, s := range list {
			ago := now.Sub(s.last)
			s.longest = max(s.longest, ago)
			if b.permits(s.cost, s.rests, ago) {
				b.spend(now, s.cost, false)
				took += s.cost
				s.last = now
				s.times++
			}
		}
	}
	return took
}

// Looks that are asked for without a pause leave searches their part, of a process too that never rests: in 0.66.0 a thread
// of the runtime runs each millisecond.
func TestLooksLeaveTimeForSearches(t *testing.T) {
	one := &searching{cost: 15 * time.Millisecond}
	const during = 10 * time.Minute
	took := searchesOf([]*searching{one}, 700*time.Microsecond, time.Millisecond, during)
	if one.longest > searchWait {
		t.Errorf("it was searched %d times, once not for %v", one.times, one.longest)
	}
	if most := during/Share/searchPart + maxCredit; took > most {
		t.Errorf("its searches took %v, want %v at most", took, most)
	}
}

// A process that never rests is searched though others, each time that they come to rest, take what they may. All
// together keep to their share.
func TestSearchesOfWhoNeverRests(t *testing.T) {
	const during = 10 * time.Minute
	for _, c := range []struct{ resting, running int }{{0, 1}, {1, 1}, {3, 1}, {1, 100}, {0, 100}} {
		var list []*searching
		for range c.resting {
			list = append(list, &searching{cost: 10 * time.Millisecond, rests: true})
		}
		for range c.running {
			list = append(list, &searching{cost: 40 * time.Millisecond})
		}
		took := searchesOf(list, time.Millisecond, time.Second, during)
		if most := during/Share + maxCredit - maxDebt + 40*time.Millisecond; took > most {
			t.Errorf("%+v: searches took %v, want %v at most", c, took, most)
		}
		if last := list[len(list)-1]; c.running == 1 && last.longest > searchWait+5*time.Second {
			t.Errorf("%+v: the one that never rests was searched %d times, once not for %v", c, last.times, last.longest)
		}
	}
}

// A process of which a search takes more than can be saved is searched nevertheless, and soon after the first one,
// which reads what no later one has to.
func TestSearchesThatTakeLong(t *testing.T) {
	const cost, during = 3 * time.Second, time.Hour
	one := &searching{cost: cost, rests: true}
	took := searchesOf([]*searching{one}, time.Millisecond, time.Second, during)
	if most := during/Share + cost + maxCredit; one.times < 5 || took > most {
		t.Errorf("it was searched %d times, in %v of %v", one.times, took, most)
	}

	now := time.Unix(1000, 0)
	b := newBudget(now)
	b.spendFirst(now, cost)
	if b.permits(0, true, 0) {
		t.Error("it is searched again without a pause")
	}
	now = now.Add(time.Second)
	b.spend(now, 0, true)
	if !b.permits(0, true, time.Second) {
		t.Errorf("a second after the first search, it is not searched again: the credit is %v", b.credit)
	}
	b.spend(now, cost, false)
	debt := b.credit
	if b.spendFirst(now, cost); b.credit != debt {
		t.Errorf("a first search changes a debt of %v to %v", debt, b.credit)
	}
}

// A process that did nothing is not read again, though a search is due. What that one has to clear up is not cleared up by this.
func TestIdleBeforeItsSearch(t *testing.T) {
	p := &process{pid: 1, shown: true, whole: true, did: proc.Activity{Time: 5}}
	for _, c := range []struct {
		searched    time.Duration
		buffersOnly bool
	}{{4, true}, {5, false}} {
		p.searched.Time = c.searched
		list := p.events(&look{p: p, idle: true, did: proc.Activity{Time: 5}}, nil, nil)
		if len(list) != 1 || list[0].Comparison == nil || list[0].Comparison.BuffersOnly != c.buffersOnly {
			t.Errorf("searched at %d: %+v", c.searched, list)
		}
	}
}

// A program that was not placed is read again when it changed, or its devices did, and not at every search; and a process with
// one is searched again after its devices changed.
func TestUnplacedIsReadAgain(t *testing.T) {
	was := unplaced{number: 3, state: 7, devices: []uint64{1, 2}}
	for _, c := range []struct {
		what          string
		number, state uint64
		devices       []uint64
		remains       bool
	}{
		{"nothing changed", 3, 7, []uint64{1, 2}, true},
		{"another program is there", 4, 7, []uint64{1, 2}, false},
		{"it changed", 3, 8, []uint64{1, 2}, false},
		{"it cannot be read", 3, 0, []uint64{1, 2}, false},
		{"a device was closed", 3, 7, []uint64{1}, false},
	} {
		if got := was.remains(c.number, c.state, c.devices); got != c.remains {
			t.Errorf("%s: it remains as it was: %t", c.what, got)
		}
	}
	if (unplaced{number: 3, devices: []uint64{1}}).remains(3, 0, []uint64{1}) {
		t.Error("what could never be read remains as it was")
	}

	p := &process{pid: 1, devices: map[uint64]uint64{1: 0}, programs: map[uint64]program{}, buffers: map[uint64]*held{}}
	scan := func(device uint64, programs []inspect.Program, remained ...uint64) {
		p.devices = map[uint64]uint64{device: 0}
		l := &look{p: p, search: true, unplaced: remained, numbers: map[uint64]uint64{16: 3}, scan: &inspect.ProcessScan{Programs: programs, Devices: p.devices}}
		l.scan.Scan.Programs, l.scan.Scan.ProgramsRead = []uint64{16}, true
		p.programsFound(l, &l.scan.Scan)
	}
	scan(1, []inspect.Program{{ID: 16, State: 7}})
	if u := p.unplaced[16]; !u.remains(3, 7, []uint64{1}) || p.awaitsPlaces() {
		t.Errorf("read, and not placed: %+v", p.unplaced)
	}
	scan(1, nil, 16)
	if u := p.unplaced[16]; !u.remains(3, 7, []uint64{1}) || p.awaitsPlaces() {
		t.Errorf("not read again: %+v", p.unplaced)
	}
	scan(2, nil, 16)
	if !p.awaitsPlaces() {
		t.Error("with another device it is not read again")
	}
	scan(2, []inspect.Program{{ID: 16, State: 7, Devices: []uint64{2}}})
	if len(p.unplaced) > 0 || !p.programs[16].placed {
		t.Errorf("placed: %+v %+v", p.unplaced, p.programs)
	}
}

func TestFamily(t *testing.T) {
	p := fixture.Launch(t)
	child := uint32(fixture.Number(t, p, "fork"))
	f := newFamily(uint32(os.Getpid()))
	members := f.members()
	has := func(pid uint32) bool {
		for _, m := range members {
			if m == pid {
				return true
			}
		}
		return false
	}
	if !has(p.PID) || !has(child) || has(uint32(os.Getpid())) || has(1) {
		t.Errorf("the descendants of %d are %v; want %d and %d", os.Getpid(), members, p.PID, child)
	}
}

// A look that waits for a page, or takes much of a processor, is not waited for; one that gets no
// processor is.
func TestOverdue(t *testing.T) {
	page, release := fixture.HangingPage(t)
	self := memory.Direct(uint32(os.Getpid()))
	look := &look{p: &process{memory: self}}
	idle, done := make(chan struct{}), make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		look.spent = look.used(unix.Gettid())
		look.thread.Store(int32(unix.Gettid()))
		<-idle
		done <- self.ReadAt(make([]byte, 8), uint64(uintptr(unsafe.Pointer(&page[0]))))
	}()
	for look.thread.Load() == 0 {
		runtime.Gosched()
	}
	for range 2 * patience / lookEvery {
		if look.overdue() > 0 {
			t.Fatalf("it does nothing, and the look waited %v for a page", look.waited)
		}
	}
	look.spent -= patience
	if after := look.overdue(); after > 0 {
		t.Errorf("it is looked at for the first time, and not waited for after %v", after)
	}
	look.p.shown = true
	if after := look.overdue(); after != patience {
		t.Errorf("it used that much of a processor, and is given up after %v", after)
	}
	look.p.shown = false
	look.spent -= firstPatience
	if after := look.overdue(); after != firstPatience {
		t.Errorf("it used as much as it might the first time, and is given up after %v", after)
	}
	look.spent += patience + firstPatience
	close(idle)
	for until := time.Now().Add(testPatience); look.overdue() == 0; {
		if time.Now().After(until) {
			t.Fatal("it waits for a page that never comes, and is waited for")
		}
	}
	if look.waited != patience {
		t.Errorf("it is given up after %v, want %v", look.waited, patience)
	}
	release()
	<-done
}

// A program whose mesh closed is where it was, though that cannot be read any more; one that was not known is not.
func TestProgramOfAClosedMeshStays(t *testing.T) {
	p := &process{pid: 1, devices: map[uint64]uint64{1: 0}, programs: map[uint64]program{}, buffers: map[uint64]*held{}}
	accounts := aggregator.New()
	for _, e := range []aggregator.Event{
		{Kind: aggregator.ProcessStart, PID: 1, Process: &aggregator.Process{Source: aggregator.Sampled}},
		{Kind: aggregator.DeviceOpen, PID: 1, Device: 1, Opened: &aggregator.Opened{Chips: []aggregator.Chip{{}}}},
	} {
		accounts.Apply(&e)
	}
	scan := func(number uint64, unknown error) (kinds []aggregator.Kind) {
		now := inspect.Program{ID: 16, Devices: []uint64{1}, ChipsUnknown: unknown, Placed: []inspect.PlacedBuffer{{Device: 1}}}
		l := &look{p: p, search: true, numbers: map[uint64]uint64{16: number}, scan: &inspect.ProcessScan{Programs: []inspect.Program{now}, Devices: p.devices}}
		l.scan.Scan.Programs, l.scan.Scan.ProgramsRead = []uint64{16}, true
		p.programsFound(l, &l.scan.Scan)
		accounts.Merge(&aggregator.Event{PID: 1, Scan: &l.scan.Scan}, func(list []aggregator.Event) {
			kinds = append(kinds, list[0].Kind)
			accounts.Apply(&list[0])
		})
		return kinds[:len(kinds)-1] // the last one is Compared
	}
	if got, want := scan(3, nil), []aggregator.Kind{aggregator.CBPlaced}; !slices.Equal(got, want) {
		t.Errorf("it is new: %v, not %v", got, want)
	}
	if got := scan(3, errors.New("no open mesh")); len(got) > 0 {
		t.Errorf("its mesh closed: %v", got)
	}
	if got, want := scan(4, errors.New("no open mesh")), []aggregator.Kind{aggregator.ProgramGone, aggregator.CBPlaced, aggregator.ReasonRaised}; !slices.Equal(got, want) {
		t.Errorf("another one is there: %v, not %v", got, want)
	}
}

// Who may read all processes is not sent for the right to.
func TestUnreadableInSpiteOfTheRight(t *testing.T) {
	if !MayReadAll() || PtraceScope() > 2 {
		t.Skip("not all processes may be read")
	}
	err := unreadable(1, os.ErrPermission)
	if !errors.Is(err, os.ErrPermission) || !strings.Contains(err.Error(), "in spite of cap_sys_ptrace") || strings.Contains(err.Error(), "needs") {
		t.Error(err)
	}
}

// What a sampled child has on a copy of what its parent has open, and that one has not, is marked until it is gone, on
// the chip of its parent, also where that numbers them in its own way.
func TestSampledChildThatAllocatedOnACopy(t *testing.T) {
	t.Parallel()
	for _, own := range []bool{false, true} {
		sampledChildThatAllocatedOnACopy(t, own)
	}
}

func sampledChildThatAllocatedOnACopy(t *testing.T, ownNumbers bool) {
	var env []string
	if ownNumbers {
		env = []string{"TT_VISIBLE_DEVICES=1,2"}
	}
	p := fixture.User(t, fixture.LayoutB, env...)
	chip := aggregator.Chip{Number: 1}
	if ownNumbers {
		chip.Space = p.PID
	}
	fixture.Do(t, p, "device 0 1")
	fixture.Do(t, p, "alloc 100 0 0 0 8192 1024 64")
	child := uint32(fixture.Number(t, p, "fork"))
	s := sample(t, Options{PIDs: []uint32{child}})
	await := func(what string, detail string) {
		t.Helper()
		forked := func() (list []aggregator.Reason) {
			got, _ := s.process(child)
			return slices.DeleteFunc(slices.Clone(got.Reasons), func(r aggregator.Reason) bool { return r.Code != exact.ReasonForked })
		}
		for until := time.Now().Add(testPatience); ; {
			list := forked()
			if detail == "" && len(list) == 0 || len(list) == 1 && strings.HasPrefix(list[0].Detail, detail) && slices.Equal(list[0].Chips, []aggregator.Chip{chip}) {
				return
			}
			if time.Now().After(until) {
				t.Fatalf("%s: %+v", what, list)
			}
		}
	}
	await("copies alone", "")
	own := fixture.Do(t, p, "child 0 alloc 100 0 0 0 256 1024 192")
	await("it allocated", "1 buffer (256 bytes on each chip)")
	fixture.Do(t, p, "child 0 free %s", own)
	await("it freed", "")
}

// A command of which no process was sampled may have used the runtime between two samples.
func TestNobodySeen(t *testing.T) {
	for _, c := range []struct {
		what  string
		o     Options
		using bool
		want  int
	}{
		{"a command", Options{Follow: uint32(os.Getpid())}, false, 1},
		{"a command that is sampled", Options{Follow: uint32(os.Getpid())}, true, 0},
	} {
		var p *fixture.Process
		if c.using {
			p = fixture.User(t, fixture.LayoutA)
		}
		c.o.Interval = 20 * time.Millisecond
		s := sample(t, c.o)
		if p != nil {
			s.process(p.PID)
		}
		s.stop()
		list := s.accounts.Snapshot().Reasons
		if len(list) != c.want || c.want > 0 && list[0].String() != "processes are sampled: "+whyUnseen {
			t.Errorf("%s: %+v", c.what, list)
		}
	}
}

// A file in the place of another, with its number, is recognized: a package is upgraded, and the runtime has the number of
// a file that was not the runtime, or of another build.
func TestFileInThePlaceOfAnother(t *testing.T) {
	other := fixture.Launch(t)
	path := fixture.Write(t, fixture.Read(t, fixture.LibraryOf(t, fixture.Hidden)))
	s := sample(t, Options{Follow: uint32(os.Getpid()), Interval: 20 * time.Millisecond})
	fixture.Do(t, other, "open %s", path)
	if got, ok := s.process(other.PID); ok {
		t.Fatalf("what does not use the runtime is sampled: %+v", got)
	}
	other.Kill()
	for _, b := range []fixture.Build{fixture.LayoutB, fixture.LayoutA} {
		content := fixture.Read(t, fixture.LibraryOf(t, b))
		if err := os.WriteFile(path, content, 0o644); err != nil { // into the same file
			t.Fatal(err)
		}
		p := fixture.Launch(t)
		fixture.Do(t, p, "open %s", path)
		fixture.Do(t, p, "device 0 1")
		fixture.Do(t, p, "alloc 64 0 0 0 4096 1024 64")
		got, ok := s.process(p.PID)
		if !ok || !got.Memory[aggregator.DRAM].Requested.Is(4096) || len(got.Chips) != 1 || slices.ContainsFunc(got.Reasons, func(r aggregator.Reason) bool { return r.Code != exact.ReasonSampled }) {
			t.Errorf("%+v: %t, %+v", b, ok, got)
		}
		p.Kill()
	}
}

// A process that runs another program is another process, which is read where that has the library: also where the first look
// at it found nothing.
func TestAnotherProgramInTheProcess(t *testing.T) {
	p := fixture.User(t, fixture.LayoutB)
	fixture.Do(t, p, "device 0 1")
	fixture.Do(t, p, "alloc 100 0 0 0 4096 1024 64")
	s := sample(t, Options{PIDs: []uint32{p.PID}, Interval: 20 * time.Millisecond})
	if got, ok := s.process(p.PID); !ok || !got.Buffers.Is(1) {
		t.Fatalf("%t, %+v", ok, got)
	}
	fixture.Do(t, p, "exec")
	if got, ok := s.process(p.PID); ok {
		t.Errorf("a program without the library has %d buffers", got.Buffers)
	}
	fixture.Do(t, p, "open %s", fixture.LibraryOf(t, fixture.LayoutB))
	fixture.Do(t, p, "device 1 2")
	fixture.Do(t, p, "alloc 100 1 0 0 8192 1024 64")
	fixture.Do(t, p, "alloc 100 1 0 0 8192 1024 65536")
	var got aggregator.ProcessSnapshot
	for began := time.Now(); !got.Buffers.Is(2) && time.Since(began) < testPatience; {
		got, _ = s.process(p.PID)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if ended := s.accounts.Snapshot().Ended; !got.Buffers.Is(2) || len(ended) != 1 || ended[0].Memory[aggregator.DRAM].PeakRequested != exact.Bounded(4096, exact.AtLeast) {
		t.Errorf("%d buffers, %d ended", got.Buffers, len(ended))
	}
}

// If a process has loaded the runtime twice, the copy that has devices open is read, and a reason says that the other is
// not: also if that is loaded later.
func TestTwoCopiesOfTheRuntime(t *testing.T) {
	const first, second = "", "beside "
	for _, used := range []string{first, second} {
		for _, how := range []string{"second " + fixture.LibraryOf(t, fixture.LayoutA), "twice " + fixture.LibraryOf(t, fixture.LayoutB)} {
			p := fixture.User(t, fixture.LayoutB)
			var s *sampling
			if used == first { // the other comes later
				s = sample(t, Options{PIDs: []uint32{p.PID}, Interval: 20 * time.Millisecond})
				if got, ok := s.process(p.PID); !ok || len(got.Reasons) != 1 {
					t.Errorf("%s: before: %t, marked with %+v", how, ok, got.Reasons)
				}
			}
			fixture.Do(t, p, "%s", how)
			fixture.Do(t, p, "%sdevice 0 1", used)
			fixture.Do(t, p, "%salloc 100 0 0 0 4096 1024 64", used)
			if s == nil {
				s = sample(t, Options{PIDs: []uint32{p.PID}, Interval: 20 * time.Millisecond})
			}
			marked := func(r aggregator.Reason) bool { return r.Code == exact.ReasonNotTraced && r.Detail == whyTwice }
			var got aggregator.ProcessSnapshot
			for began := time.Now(); (!got.Buffers.Is(1) || !slices.ContainsFunc(got.Reasons, marked)) && time.Since(began) < testPatience; {
				got, _ = s.process(p.PID)
			}
			if !got.Buffers.Is(1) || !slices.ContainsFunc(got.Reasons, marked) {
				t.Errorf("%s%s: %d buffers, marked with %+v", used, how, got.Buffers, got.Reasons)
			}
			s.stop()
			p.Kill()
		}
	}
}

// A process whose main thread has ended is not sampled, and has a reason.
func TestProcessWithoutItsMainThread(t *testing.T) {
	t.Parallel()
	p := fixture.User(t, fixture.LayoutB)
	fixture.Do(t, p, "device 0 1")
	fixture.Do(t, p, "leave")
	s := sample(t, Options{PIDs: []uint32{p.PID}})
	s.mu.Lock()
	defer s.mu.Unlock()
	if reasons := s.accounts.Snapshot().Reasons; len(reasons) != 1 || reasons[0].Code != exact.ReasonNotTraced || !strings.Contains(reasons[0].Detail, "its main thread has ended") {
		t.Errorf("%+v", reasons)
	}
}

// A library with two segments of code, each as far from the other as not in the file, is loaded once.
func TestTwoSegmentsOfCode(t *testing.T) {
	t.Parallel()
	p := fixture.User(t, fixture.WithFlags("-DLAYOUT_B -Wl,--section-start=.fini=0x8000000"))
	fixture.Do(t, p, "device 0 1")
	fixture.Do(t, p, "alloc 100 0 0 0 4096 1024 64")
	s := sample(t, Options{PIDs: []uint32{p.PID}, Interval: 20 * time.Millisecond})
	got, _ := s.process(p.PID)
	if len(got.Reasons) != 1 || got.Reasons[0].Code != exact.ReasonSampled || !got.Buffers.Is(1) {
		t.Errorf("%d buffers, marked with %+v", got.Buffers, got.Reasons)
	}
}

// A process that has the PID of one that ended, or that runs the same program again, is another one: also where it has the library,
// its devices and its buffers at the same addresses.
func TestAnotherProcessAtTheSameAddresses(t *testing.T) {
	for _, how := range []string{"begin", "exec"} {
		p, library := fixture.Launch(t), fixture.LibraryOf(t, fixture.LayoutB)
		pid := uint32(fixture.Number(t, p, "begin 0"))
		use := func(child, chip int, size uint64) {
			fixture.Do(t, p, "child %d open %s", child, library)
			fixture.Do(t, p, "child %d device 0 %d", child, chip)
			fixture.Do(t, p, "child %d alloc 100 0 0 0 %d 1024 64", child, size)
		}
		use(0, 1, 8192)
		s := sample(t, Options{Follow: uint32(os.Getpid()), Interval: 20 * time.Millisecond})
		before, ok := s.process(pid)
		if !ok || !before.Buffers.Is(1) {
			t.Fatalf("%t, %+v", ok, before)
		}
		child := 0
		release := s.hold()
		if how == "begin" {
			fixture.Do(t, p, "end 0")
			if again := uint32(fixture.Number(t, p, "begin %d", pid)); again != pid {
				t.Fatalf("PID %d, and then %d", pid, again)
			}
			child = 1
		} else {
			fixture.Do(t, p, "child 0 exec")
		}
		use(child, 3, 4096)
		release()
		var got aggregator.ProcessSnapshot
		for began := time.Now(); (len(got.Chips) != 1 || got.Chips[0].Chip.Number != 3) && time.Since(began) < testPatience; {
			got, _ = s.process(pid)
		}
		if d := got.Memory[aggregator.DRAM]; !got.Buffers.Is(1) || !d.Requested.Is(4096) || d.PeakRequested != exact.Bounded(4096, exact.AtLeast) || len(got.Chips) != 1 ||
			how == "begin" && got.Info.Started == before.Info.Started {
			t.Errorf("%s: %d buffers, %+v, chips %+v, started %d and %d", how, got.Buffers, d, got.Chips, before.Info.Started, got.Info.Started)
		}
		s.mu.Lock()
		if ended := s.accounts.Snapshot().Ended; len(ended) != 1 || ended[0].Memory[aggregator.DRAM].PeakRequested != exact.Bounded(8192, exact.AtLeast) {
			t.Errorf("%s: %d ended", how, len(ended))
		}
		s.mu.Unlock()
		s.stop()
		p.Kill()
	}
}

// hold keeps it from looks until release is called.
func (s *sampling) hold() (release func()) {
	s.mu.Lock() // delivering waits for it
	return s.mu.Unlock
}

// A process that has the PID of one that was asked for, and that ended, was not asked for.
func TestPIDOfAProcessThatWasAskedFor(t *testing.T) {
	p, library := fixture.Launch(t), fixture.LibraryOf(t, fixture.LayoutB)
	pid := uint32(fixture.Number(t, p, "begin 0"))
	fixture.Do(t, p, "child 0 open %s", library)
	s := sample(t, Options{PIDs: []uint32{p.PID, pid}, Interval: 20 * time.Millisecond})
	if got, ok := s.process(pid); !ok || got.Exact() {
		t.Fatalf("%t, %+v", ok, got)
	}
	release := s.hold()
	fixture.Do(t, p, "end 0")
	for at := proc.Ticks(); proc.Ticks() == at; { // start times distinguish them only then
		runtime.Gosched()
	}
	fixture.Do(t, p, "begin %d", pid)
	fixture.Do(t, p, "child 1 open %s", library)
	release()
	for range 3 {
		if got, ok := s.process(pid); ok && got.Info.Started == processStarted(t, pid) {
			t.Errorf("it is sampled: %+v", got.Info)
		}
	}
	fixture.Do(t, p, "end 1")
	if _, ok := s.process(pid); ok {
		t.Error("it is still there")
	}
	fixture.Do(t, p, "begin %d", pid)
	fixture.Do(t, p, "child 2 open %s", library)
	for range 3 {
		if got, ok := s.process(pid); ok {
			t.Errorf("another is sampled: %+v", got.Info)
		}
	}
}

func processStarted(t *testing.T, pid uint32) uint64 {
	_, started, err := proc.Name(pid)
	if err != nil {
		t.Fatal(err)
	}
	return started
}
