// Package sampler reads processes that use the runtime once an interval, and yields
// the differences as events. It needs no probes, and no right except to read the
// processes' memory, which an ordinary user has for his own.
//
// Its events were true at one moment of the last interval, as the process's own
// allocators have it. Buffers that are allocated and freed between two samples are
// missed: counts of allocations and frees, and peaks, are lower bounds. Launches, failed
// allocations and stacks are unknown.
//
// Each process is read by a goroutine of its own, and nothing waits for one that
// hangs. Reading takes at most one part in Share of a processor, or the interval grows.
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
	"tt-memtrace/tracer/discover"
	"tt-memtrace/tracer/inspect"
	"tt-memtrace/tracer/memory"
	"tt-memtrace/tracer/proc"
)

// Options say what to sample.
type Options struct {
	// PIDs to sample; with none, all processes that may be read.
	PIDs []uint32
	// Follow this process's descendants, and nothing else.
	Follow uint32
	// Libraries that hold the runtime's code under names of their own.
	Libraries []string
	// Interval between two looks; 0 for DefaultInterval.
	Interval time.Duration
	// Notice receives, in one line, what a user should know. It may be called from
	// any goroutine.
	Notice func(string)
}

const (
	DefaultInterval = time.Second
	LeastInterval   = 10 * time.Millisecond
	// Share is what part of a processor looking may take: one in so many.
	Share = 100
)

// Source samples processes. It is a session.Source.
type Source struct {
	opts   Options
	finder *discover.Finder

	mu       sync.Mutex
	interval time.Duration
	using    map[uint32]bool
	syncs    []chan struct{}

	wake  chan struct{} // has an element when somebody waits for a look
	ended chan struct{}
}

// New prepares a source. Nothing is read yet.
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

// Close frees what the source holds. Libraries stay open while a process that hangs is
// still being read.
func (s *Source) Close() error { return nil }

// Interval is that between two looks now.
func (s *Source) Interval() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.interval
}

// Waiting are the processes that were asked for and do not use the runtime yet.
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

// Sync returns when looks that began after the call have been delivered, or when the
// context ends.
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

// Reconcile has the processes looked at soon.
func (s *Source) Reconcile(uint32) { s.hurry() }

func (s *Source) hurry() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// Run looks at the processes until the context ends or, where PIDs were asked for, the
// last of them has ended. Ready is called after the first look.
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
		// Others may use the same chips.
		deliver([]aggregator.Event{{Kind: aggregator.ReasonRaised, Time: proc.Now(), Reason: &aggregator.Reason{Code: aggregator.ReasonPIDNamespace}}})
	}
	return r.loop(ctx, ready)
}

// interrupt ends the looks that are under way: nobody wants to know any more.
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

// run is the state of a source that runs; one goroutine has it.
type run struct {
	*Source
	deliver   func([]aggregator.Event)
	processes map[uint32]*process
	others    map[uint32]*other
	libraries *libraries
	names     inspect.ChipNames
	family    *family
	// targets are the PIDs of Options whose processes live, with the time at which each started: another process can get the PID.
	targets map[uint32]uint64
	looks   chan *look
	// found has what processes that are not sampled were found to map, and examined of whom that is being found out.
	found    chan *examination
	examined map[uint32]*examination
	users    map[uint32]*user
	quit     chan struct{}
	budget   budget
	// noticedInterval is the interval that the last notice gave: one that is not much longer is shown, without a notice.
	noticedInterval time.Duration
	// waiting are the syncs that end with the round, in which every process is looked at once.
	waiting []chan struct{}
	noticed map[string]bool
	// sampledAny: some process was sampled.
	sampledAny bool
	// otherUsers: it was said that some processes may not be read, of which nobody knows whether they use the runtime.
	otherUsers bool
}

// patience is how much of processors, or how long for pages, a look may take before nothing waits
// for it any more; the first one, which reads all that a process has, may take firstPatience of processors.
// Time in which it waits for a processor does not count.
const (
	patience      = 2 * time.Second
	firstPatience = 5 * patience
	lookEvery     = patience / 20
)

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

// markAtEnd marks the live processes whose last look gave nothing: what they did since the one before is not known.
// So it does those of which nobody could say for a while whether they use the runtime. Where no process of a command was
// seen to, one may have come and gone between two samples.
func (r *run) markAtEnd() {
	if r.family != nil && !r.sampledAny {
		r.deliver([]aggregator.Event{raised(0, aggregator.ReasonSampled, whyUnseen)})
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

// pause waits for the next round: for the interval, until somebody waits for a look, or the end.
// Looks that were given up may come back meanwhile.
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

// begin begins a round: a look at every process that is not being looked at still.
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
	// The budget may permit but one search in a round.
	longest := slices.SortedFunc(maps.Values(r.processes), func(a, b *process) int { return a.lastSearch.Compare(b.lastSearch) })
	for _, p := range longest {
		if !p.busy {
			r.look(p)
		}
	}
}

// look begins to look at a process. A search is charged for with what the last one took until it ends.
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

// lastLook is how long looks may still take when the source is to end.
const lastLook = time.Second

// gather collects the looks of a round, and marks those that take too long.
func (r *run) gather(ctx context.Context) {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	ends := ctx.Done()
	var enough <-chan time.Time
	for r.looking() || r.examining() {
		select {
		case l := <-r.looks:
			r.take(l)
			if p := l.p; ctx.Err() != nil && p.failed > 0 && p.failed < notRead && r.processes[p.pid] == p {
				r.look(p) // no round comes that would
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
					r.opts.Notice(fmt.Sprintf("process %d: reading its memory takes more than %v: tt-memtrace does not wait for it", p.pid, after))
					r.markUnread(p, fmt.Sprintf("reading it takes more than %v", after))
				}
			}
		}
	}
}

// looking says whether a look is under way that is waited for.
func (r *run) looking() bool {
	for _, p := range r.processes {
		if p.busy && !p.hangs && r.user(p.user).allowed.Left() > 0 {
			return true
		}
	}
	return false
}

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
		if o.refused { // it does, or may
			using[pid] = true
		}
	}
	r.mu.Lock()
	r.using = using
	r.mu.Unlock()
}

// take delivers what a look has found.
func (r *run) take(l *look) {
	p := l.p
	p.busy, p.hangs = false, false
	if !p.shown { // which is a search
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
	if p.twice && !p.twiceSaid && !l.gone {
		p.twiceSaid = true
		events = append(events, p.raised(aggregator.ReasonNotTraced, whyTwice))
	}
	if len(events) > 0 {
		r.deliver(events)
	}
}

// whyTwice is what may be missing of a process that has loaded two copies of the runtime, or another that cannot be opened.
const whyTwice = "it has loaded the runtime more than once, and one copy is sampled"

// uses says whether a process that lives has a chip of a unique id.
func (r *run) uses(unique uint64) bool {
	for _, p := range r.processes {
		if p.chips.Uses(unique) {
			return true
		}
	}
	return false
}

// adapt changes the interval to what looking costs.
func (r *run) adapt() {
	r.mu.Lock()
	defer r.mu.Unlock()
	next := r.budget.interval(r.opts.Interval)
	if next == r.interval {
		return
	}
	if next > r.opts.Interval && next > 2*r.noticedInterval {
		r.noticedInterval = next
		r.opts.Notice(fmt.Sprintf("sampling every %v, not %v: a sample takes %v, and more would take over 1/%d of a processor",
			next, r.opts.Interval, r.budget.look.Round(100*time.Microsecond), Share))
	}
	r.interval = next
}

// other is a process that does not use the runtime, as far as is known.
type other struct {
	// next is when it is looked at again, and wait how long it was until then.
	next time.Time
	wait time.Duration
	// refused: it is said not to be sampled.
	refused bool
}

// lookAgain bounds how long a process is not looked at that might map the runtime.
const lookAgain = 8 * time.Second

// asked says whether a process was asked for by its PID.
func (r *run) asked(pid uint32) bool {
	_, is := r.targets[pid]
	return is
}

// targetsEnd drops the processes that were asked for, once they end.
func (r *run) targetsEnd() {
	for pid, was := range r.targets {
		if _, started, err := proc.Name(pid); r.processes[pid] == nil && (err == nil && was != 0 && started != was || !proc.Alive(pid)) {
			delete(r.targets, pid)
		}
	}
}

// find looks for processes that map the runtime.
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
			o.wait = 0 // these are few
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

const whyUnseen = "none was seen to use the runtime; what ends between two samples is not seen"

var errExamined = discover.NotSeen(errors.New("what it maps was still being looked at when sampling ended"))

// notSampled says that a process uses the runtime, or may, and is not sampled.
func (r *run) notSampled(pid uint32, why error) {
	r.notice(noticeOf(pid, why))
	r.others[pid].refused = true
	e := raised(pid, aggregator.ReasonNotTraced, why.Error())
	e.Reason.Unsure = r.processes[pid] == nil && errors.As(why, new(discover.Unsure))
	r.deliver([]aggregator.Event{e})
}

// notice gives each notice once.
func (r *run) notice(text string) {
	if r.noticed == nil {
		r.noticed = map[string]bool{}
	}
	if !r.noticed[text] && len(r.noticed) < 1000 {
		r.noticed[text] = true
		r.opts.Notice(text)
	}
}
