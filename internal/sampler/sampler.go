// Package sampler reads the memory of processes that use the runtime at intervals, and yields the differences as events.
// It needs no probes, only the right to read the processes' memory. Ordinary users have that for their own processes.
//
// After each sample the accounts equal what the process's own allocators held at one moment of the last interval. Buffers
// that are allocated and freed between two samples are missed, so counts of allocations and frees, and peaks, are lower
// bounds. Launches, failed allocations and stacks are unknown.
//
// A round is a look at every process. A look reads the buffers of known allocators; a search is a look that also finds new
// devices, allocators and programs in the process's memory, and costs more. Each process is read by a goroutine of its own, so
// one that hangs delays no other. Looks and searches take at most 1/Share of one CPU; if looks alone would take more, the
// interval grows.
package sampler

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"runtime"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"tt-memtrace/aggregator"
	"tt-memtrace/aggregator/exact"
	"tt-memtrace/internal/discover"
	"tt-memtrace/internal/inspect"
	"tt-memtrace/internal/memory"
	"tt-memtrace/internal/proc"
)

// Options say what to sample.
type Options struct {
	// PIDs to sample; if empty, all processes that may be read.
	PIDs []uint32
	// Follow samples only the descendants of this process.
	Follow uint32
	// Libraries are files that contain the runtime under another name than its own.
	Libraries []string
	// Interval between two rounds; 0 for DefaultInterval.
	Interval time.Duration
	// Notice receives one line that the user should know. It may be called from any goroutine.
	Notice func(string)
}

const (
	DefaultInterval = time.Second
	LeastInterval   = 10 * time.Millisecond
	// Share limits the cost of sampling to 1/Share of one CPU.
	Share = 100
)

// Source samples processes. It is a session.Source.
type Source struct {
	opts   Options
	finder *discover.Finder

	// mu guards the fields below.
	mu       sync.Mutex
	interval time.Duration   // between rounds, now
	using    map[uint32]bool // PIDs that use the runtime, or may
	syncs    []chan struct{} // calls of Sync that the next round completes

	wake  chan struct{} // holds an element to request a round immediately
	ended chan struct{} // closed when Run returns
}

// New returns a source. It reads no process yet.
func New(o Options) (*Source, error) {
	if o.Interval == 0 {
		o.Interval = DefaultInterval
	}
	if o.Interval < LeastInterval {
		return nil, fmt.Errorf("sampling every %v: the minimum is %v", o.Interval, LeastInterval)
	}
	if o.Notice == nil {
		o.Notice = func(string) {}
	}
	if err := proc.CheckMounted(); err != nil {
		return nil, err
	}
	s := &Source{opts: o, interval: o.Interval, using: map[uint32]bool{}, wake: make(chan struct{}, 1), ended: make(chan struct{})}
	var err error
	if s.finder, err = discover.FinderOf(o.Libraries); err != nil {
		return nil, err
	}
	return s, nil
}

// Close does nothing. Libraries stay open, because a process that hangs may still be being read.
func (s *Source) Close() error { return nil }

// Interval returns the current interval between two rounds.
func (s *Source) Interval() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.interval
}

// Waiting lists those of Options.PIDs that do not use the runtime yet.
func (s *Source) Waiting() (list []uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, pid := range s.opts.PIDs {
		if !s.using[pid] {
			list = append(list, pid)
		}
	}
	return list
}

// Sync returns nil when the events of looks that began after the call are delivered, or Run has returned. It returns the
// context's error if that ends first.
func (s *Source) Sync(ctx context.Context) error {
	done := make(chan struct{})
	s.mu.Lock()
	s.syncs = append(s.syncs, done)
	s.mu.Unlock()
	s.hurry()
	select {
	case <-done:
		return nil
	case <-s.ended:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Reconcile requests a round immediately.
func (s *Source) Reconcile(uint32) { s.hurry() }

// hurry starts the next round immediately.
func (s *Source) hurry() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// Run samples the processes until the context ends or, with Options.PIDs, the last of those has ended. It calls ready after
// the first round.
func (s *Source) Run(ctx context.Context, ready func(), deliver func([]aggregator.Event)) error {
	defer close(s.ended)
	r := &run{
		Source: s, deliver: deliver, processes: map[uint32]*process{}, others: map[uint32]*other{}, libraries: &libraries{of: map[proc.FileID]*library{}},
		names: inspect.ChipNames{}, looks: make(chan *look), found: make(chan *examination), examined: map[uint32]*examination{}, users: map[uint32]*user{}, quit: make(chan struct{}), targets: map[uint32]uint64{}, budget: newBudget(time.Now()),
	}
	defer r.interrupt()
	defer close(r.quit)
	for _, pid := range s.opts.PIDs {
		_, r.targets[pid], _ = proc.Name(pid)
	}
	if s.opts.Follow != 0 {
		r.family = newFamily(s.opts.Follow)
	}
	if host, err := proc.InHostPIDNamespace(); err == nil && !host && r.family == nil && len(r.targets) == 0 {
		// Processes outside of this namespace may use the same chips.
		deliver([]aggregator.Event{{Kind: aggregator.ReasonRaised, Time: proc.Now(), Reason: &aggregator.Reason{Code: exact.ReasonPIDNamespace}}})
	}
	return r.loop(ctx, ready)
}

// interrupt ends looks and examinations that are under way: Run no longer takes their results.
func (r *run) interrupt() {
	for _, p := range r.processes {
		if p.busy {
			p.memory.Interrupt()
		}
	}
	for _, x := range r.examined {
		x.memory.Interrupt()
	}
}

// run is the state of Run. Only Run's goroutine uses it.
type run struct {
	*Source
	deliver   func([]aggregator.Event)
	processes map[uint32]*process // sampled, by PID
	others    map[uint32]*other   // those found so far, by PID; sampled ones stay until they end
	libraries *libraries
	names     inspect.ChipNames
	family    *family // with Options.Follow
	// targets are the PIDs of Options whose processes have not ended, with each one's start time (proc.Ticks): another
	// process can get the PID.
	targets map[uint32]uint64
	looks   chan *look // finished looks
	// examined are the examinations under way or waiting, by PID; found are the finished ones.
	found    chan *examination
	examined map[uint32]*examination
	users    map[uint32]*user
	quit     chan struct{} // closed when Run returns
	budget   budget
	// noticedInterval is the interval in the last notice. One less than twice as long needs no other notice.
	noticedInterval time.Duration
	// waiting are the calls of Sync that return after this round.
	waiting []chan struct{}
	noticed map[string]bool // notices that were given
	// sampledAny is set once some process was sampled.
	sampledAny bool
	// otherUsers is set once ReasonOtherUsers was raised: some processes may not be read, and may use the runtime.
	otherUsers bool
}

// A round stops waiting for a look after patience, which counts CPU time and time waiting for pages. The first look of a
// process reads everything, so its CPU time may reach firstPatience. Time waiting for a CPU does not count. The run checks
// each look every lookEvery.
const (
	patience      = 2 * time.Second
	firstPatience = 5 * patience
	lookEvery     = patience / 20
)

// loop runs rounds until Run has to return.
func (r *run) loop(ctx context.Context, ready func()) error {
	for {
		began := time.Now()
		r.begin()
		r.gather(ctx)
		r.finishRound()
		if ready != nil {
			ready()
			ready = nil
		}
		if ctx.Err() != nil || len(r.opts.PIDs) > 0 && len(r.targets) == 0 {
			r.markAtEnd()
			return nil
		}
		r.adapt()
		r.pause(ctx, began)
	}
}

// markAtEnd marks live processes whose last look failed or has not finished: what they did since the look before is
// unknown. It also marks those whose examination takes long: whether they use the runtime is unknown.
// If no process of a command was seen to use the runtime, one may have come and gone between two samples.
func (r *run) markAtEnd() {
	if r.family != nil && !r.sampledAny {
		r.deliver([]aggregator.Event{raised(0, exact.ReasonSampled, whyUnseen)})
	}
	for _, p := range r.processes {
		if !p.unread && (p.busy || p.failed > 0) && proc.Alive(p.pid) {
			r.markUnread(p, "it was still being read when sampling ended")
		}
	}
	for pid, x := range r.examined {
		if r.others[pid] != nil && time.Since(x.since) >= lastLook && proc.Alive(pid) {
			r.notSampled(pid, errExamined)
		}
	}
}

// pause waits until the interval has passed since the round began, a round is requested, or the context ends. Until then it
// takes results that the round did not wait for.
func (r *run) pause(ctx context.Context, began time.Time) {
	next := time.NewTimer(time.Until(began.Add(r.Interval())))
	defer next.Stop()
	for {
		select {
		case <-next.C:
			return
		case <-r.wake:
			return
		case l := <-r.looks:
			r.take(l)
		case x := <-r.found:
			r.takeIn(x)
		case <-ctx.Done():
			return
		}
	}
}

// begin begins a round: it looks for new processes, and begins a look at each known one whose last look has finished.
func (r *run) begin() {
	r.mu.Lock()
	r.waiting, r.syncs = append(r.waiting, r.syncs...), nil
	r.mu.Unlock()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	tid := unix.Gettid()
	before, _ := proc.ThreadTime(tid)
	r.find()
	after, _ := proc.ThreadTime(tid)
	r.budget.spend(time.Now(), after-before, true)
	// The budget may permit only one search in a round: the process that was searched longest ago comes first.
	longest := slices.SortedFunc(maps.Values(r.processes), func(a, b *process) int { return a.lastSearch.Compare(b.lastSearch) })
	for _, p := range longest {
		if !p.busy {
			r.look(p)
		}
	}
}

// look begins a look at a process. Until a search ends and its cost is known, the budget is charged the cost of the last one.
func (r *run) look(p *process) {
	now := time.Now()
	l := &look{p: p, finder: r.finder, libraries: r.libraries, search: p.searches(&r.budget, now)}
	if l.search {
		p.lastSearch, l.charged = now, p.searchCost
		r.budget.spend(now, l.charged, false)
	}
	p.busy, p.look = true, l
	go func() {
		l.run()
		select {
		case r.looks <- l:
		case <-r.quit:
		}
	}()
}

// lastLook is how long the last round waits for looks after the context has ended.
const lastLook = time.Second

// gather takes the results of a round, and marks processes whose look takes too long. After the context has ended, it waits
// for lastLook at most.
func (r *run) gather(ctx context.Context) {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	ends := ctx.Done()
	var enough <-chan time.Time
	for r.looking() || r.examining() {
		select {
		case l := <-r.looks:
			r.take(l)
			if p := l.p; ctx.Err() != nil && p.failed > 0 && p.failed < maxFailed && r.processes[p.pid] == p {
				r.look(p) // there is no next round that would try again
			}
		case x := <-r.found:
			if p := r.takeIn(x); p != nil {
				r.look(p)
			}
		case <-ends:
			ends, enough = nil, time.After(lastLook)
		case <-enough:
			return
		case <-tick.C:
			r.charge()
			for _, p := range r.processes {
				if !p.busy || p.hangs {
					continue
				}
				if after := p.look.overdue(); after > 0 {
					p.hangs = true
					r.opts.Notice(fmt.Sprintf("process %d: reading its memory takes more than %v; tt-memtrace no longer waits for it", p.pid, after))
					r.markUnread(p, fmt.Sprintf("reading it takes more than %v", after))
				}
			}
		}
	}
}

// looking reports whether the round must wait for a look.
func (r *run) looking() bool {
	for _, p := range r.processes {
		if p.busy && !p.hangs && r.user(p.user).allowed.Left() > 0 {
			return true
		}
	}
	return false
}

// finishRound lets the calls of Sync return that waited for this round, and updates what Waiting returns.
func (r *run) finishRound() {
	for _, c := range r.waiting {
		close(c)
	}
	r.waiting = nil
	using := map[uint32]bool{}
	for pid := range r.processes {
		using[pid] = true
	}
	for pid, o := range r.others {
		if o.refused { // it uses the runtime, or may
			using[pid] = true
		}
	}
	r.mu.Lock()
	r.using = using
	r.mu.Unlock()
}

// take charges the cost of a finished look, and delivers its events.
func (r *run) take(l *look) {
	p := l.p
	p.busy, p.hangs = false, false
	if !p.shown { // the first look, which is always a search
		r.budget.spendFirst(time.Now(), l.cost)
	} else {
		r.budget.spend(time.Now(), l.cost-l.charged, !l.search)
	}
	if r.processes[p.pid] != p {
		return
	}
	events := p.events(l, r.names, r.uses)
	if l.gone {
		delete(r.processes, p.pid)
		delete(r.others, p.pid)
		p.close(r.libraries)
	}
	if l.notice != "" && !p.noticed {
		p.noticed = true
		r.opts.Notice(fmt.Sprintf("process %d: %s", p.pid, l.notice))
	}
	if p.memory.Hung() && !p.hungNoticed {
		p.hungNoticed = true
		r.opts.Notice(fmt.Sprintf("process %d: %v", p.pid, memory.ErrHung))
	}
	if p.loadedTwice && !p.loadedTwiceMarked && !l.gone {
		p.loadedTwiceMarked = true
		events = append(events, p.raised(exact.ReasonNotTraced, whyTwice))
	}
	if len(events) > 0 {
		r.deliver(events)
	}
}

// whyTwice is the reason of a process that has loaded two copies of the runtime, or a second one that cannot be opened.
const whyTwice = "it has loaded the runtime more than once; only one copy is sampled"

// uses reports whether a sampled process uses the chip with this unique ID.
func (r *run) uses(unique uint64) bool {
	for _, p := range r.processes {
		if p.chips.Uses(unique) {
			return true
		}
	}
	return false
}

// adapt sets the interval from the cost of looks. If it grows much, it tells the user.
func (r *run) adapt() {
	r.mu.Lock()
	defer r.mu.Unlock()
	next := r.budget.interval(r.opts.Interval)
	if next == r.interval {
		return
	}
	if next > r.opts.Interval && next > 2*r.noticedInterval {
		r.noticedInterval = next
		r.opts.Notice(fmt.Sprintf("sampling every %v, not every %v: a sample takes %v, and more samples would use over 1/%d of a CPU",
			next, r.opts.Interval, r.budget.look.Round(100*time.Microsecond), Share))
	}
	r.interval = next
}

// other is a process that find has found. It may use the runtime or not.
type other struct {
	// next is when it is examined again; wait is the time from the last examination to then.
	next time.Time
	wait time.Duration
	// refused means that it has ReasonNotTraced: it uses the runtime, or may, and is not sampled, or not as a whole.
	refused bool
}

// lookAgain is the longest time between two examinations of a process that does not map the runtime yet.
const lookAgain = 8 * time.Second

// asked reports whether a process was asked for by its PID.
func (r *run) asked(pid uint32) bool {
	_, is := r.targets[pid]
	return is
}

// targetsEnd drops the PIDs that were asked for whose processes have ended.
func (r *run) targetsEnd() {
	for pid, was := range r.targets {
		if _, started, err := proc.Name(pid); r.processes[pid] == nil && (err == nil && was != 0 && started != was || !proc.Alive(pid)) {
			delete(r.targets, pid)
		}
	}
}

// find begins to examine the processes that are not sampled and whose next examination is due. It forgets those that have
// ended.
func (r *run) find() {
	r.targetsEnd()
	pids := slices.Sorted(maps.Keys(r.targets))
	switch {
	case r.family != nil:
		pids = r.family.members()
	case len(r.opts.PIDs) == 0:
		all, err := proc.PIDs()
		if err != nil {
			return
		}
		pids = all
	}
	now := time.Now()
	seen := make(map[uint32]bool, len(pids))
	for _, pid := range pids {
		seen[pid] = true
		if r.processes[pid] != nil || r.examined[pid] != nil || pid == uint32(os.Getpid()) {
			continue
		}
		o := r.others[pid]
		if o == nil {
			o = &other{}
			r.others[pid] = o
		}
		if now.Before(o.next) {
			continue
		}
		o.wait = min(max(2*o.wait, r.opts.Interval), lookAgain)
		if r.family != nil || len(r.opts.PIDs) > 0 {
			o.wait = 0 // they are few, so examine them in each round
		}
		o.next = now.Add(o.wait)
		r.examine(pid)
	}
	r.forgetUsers()
	for pid, o := range r.others {
		if seen[pid] {
			continue
		}
		if delete(r.others, pid); o.refused {
			r.deliver([]aggregator.Event{{Kind: aggregator.ProcessExit, PID: pid, Time: proc.Now()}})
		}
	}
}

func noticeOf(pid uint32, why error) string { return fmt.Sprintf("process %d: %v", pid, why) }

const whyUnseen = "none was seen to use the runtime; one that ends between two samples is not seen"

var errExamined = discover.NotSeen(errors.New("its mappings were still being examined when sampling ended"))

// notSampled marks a process that uses the runtime, or may, and is not sampled, and tells the user why.
func (r *run) notSampled(pid uint32, why error) {
	r.notice(noticeOf(pid, why))
	r.others[pid].refused = true
	e := raised(pid, exact.ReasonNotTraced, why.Error())
	e.Reason.Unsure = r.processes[pid] == nil && errors.As(why, new(discover.Unsure))
	r.deliver([]aggregator.Event{e})
}

// notice gives the user each notice once, and no more than 1000 different ones.
func (r *run) notice(text string) {
	if r.noticed == nil {
		r.noticed = map[string]bool{}
	}
	if !r.noticed[text] && len(r.noticed) < 1000 {
		r.noticed[text] = true
		r.opts.Notice(text)
	}
}
