// Package session connects a source of events with the accounts and with everything
// that shows, records or forwards them:
//
//	Source ──► Session ──► aggregator.Aggregator ──► Sinks
//
// # The lock
//
// A session has one lock. It guards the accounts, and it is held while a batch of
// events is applied and while sinks are called, so that sinks see the events of all
// sources in one order, and the accounts as each event left them.
//
// It is taken in two places only: when a source delivers a batch, and when a reader asks
// (Snapshot, Buffers, Programs, View). From this follow the rules:
//
//   - A source may hold locks of its own while it delivers, but none that its Reconcile
//     takes: the session calls Reconcile in the delivering goroutine, before deliver returns.
//   - A sink does not call the session: the lock is held already. It reads the accounts
//     with Accounts. It may take locks of its own, which no one holds while calling
//     the session.
//   - A sink does not block: sources would wait for it, and their buffers overflow.
//
// # Feedback
//
// Applying an event can show that a process's accounts are wrong. The session then asks
// the sources that can read the process again (Reconciler). It does so after the batch,
// without the lock. So no lock of a source is ever taken while the session's is held.
package session

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"tt-memtrace/aggregator"
	"tt-memtrace/aggregator/exact"
)

// Source yields events: traced processes, clients of a socket, a recording.
type Source interface {
	// Run delivers events in batches until ctx ends or there are no more events; then it returns nil. It calls ready once,
	// when it listens: everything that happens after that is delivered. A batch is valid only during the call of deliver.
	// Calls of deliver do not overlap, and there is none after Run has returned.
	Run(ctx context.Context, ready func(), deliver func([]aggregator.Event)) error
	// Close frees what the source holds. It is called once, after Run or in its place.
	Close() error
}

// Reconciler is a Source that can read the state of a process from the process itself.
type Reconciler interface {
	// Reconcile asks the source to read the process again soon, because its accounts cannot be right. It returns immediately;
	// the result arrives as an event (aggregator.Scanned). The source ignores PIDs that it does not trace.
	Reconcile(pid uint32)
}

// Lagging is a Source whose events wait in a buffer until it reads them.
type Lagging interface {
	// Behind returns for how long events have waited to be read; 0 if none waits. It never blocks.
	Behind() time.Duration
	// Stuck returns for how long events have waited while none at all was read. It never blocks.
	Stuck() time.Duration
}

// Sink receives events and changes. Callbacks that are nil are skipped. The session calls all but Close under its lock, so they
// must not block and must not call the session. Their arguments are valid only during the call.
//
// For a batch, the order is: Events, then for each event the callbacks for its changes and Event, then Batch once. A
// scan (aggregator.Scanned) is replaced by the events that merge it, which come one by one: then Events is called for
// each part of the batch between scans, and for each event of a merge. No sink sees a scan.
type Sink struct {
	// Events receives events before they are applied.
	Events func([]aggregator.Event)
	// Event receives each event after it has been applied, before the next one is.
	Event func(*aggregator.Event)
	// Change receives each buffer that was allocated or freed.
	Change func(aggregator.Change)
	// Learned receives each live buffer whose chips or reserved size became known after its allocation.
	Learned func(aggregator.Change)
	// CB receives each circular or dataflow buffer, or scratchpad, that was placed or removed.
	CB func(aggregator.CBChange)
	// Kernel receives each kernel binary that was loaded or unloaded.
	Kernel func(aggregator.KernelChange)
	// Unsafe receives each live buffer that a replay of a trace may have overwritten.
	Unsafe func(aggregator.Change)
	// AllocationFailed receives each allocation that failed.
	AllocationFailed func(*aggregator.Event)
	// Batch is called when a batch has been applied.
	Batch func()
	// Close is called once, without the lock, after the last batch. It may block.
	Close func() error
}

// Clock is the clock of the events.
type Clock struct {
	// Now returns the present: CLOCK_MONOTONIC, in ns, of the host where the events happen.
	Now func() uint64
	// Wall converts a time of an event into the time of day.
	Wall func(uint64) time.Time
}

// Session runs sources, keeps the accounts, and calls sinks. Add sources and sinks first; then call Run, then Close. Readers may
// call Snapshot, Buffers, Programs, View and Reconcile at any time, from any goroutine.
type Session struct {
	// Clock is set before Run.
	Clock
	// NoArguments removes the arguments of commands from all events; set it before Run.
	NoArguments bool
	// Lacks names what the sources cannot show of any process; set it before Run.
	Lacks []string

	sources []Source
	sinks   []Sink
	// event calls the Event of all sinks; nil if no sink has one.
	event func(*aggregator.Event)
	ready chan struct{}
	ended chan struct{}
	// endedAt is when the session ended, by Clock.Now. It is set before ended is closed.
	endedAt uint64
	ran     bool

	// mu is the lock of the package comment. It guards the fields below.
	mu       sync.Mutex
	accounts *aggregator.Aggregator
	lost     Lost
	// suspects are the processes to reconcile after the batch.
	suspects []uint32
}

// New returns a session with empty accounts.
func New(clock Clock) *Session {
	s := &Session{Clock: clock, accounts: aggregator.New(), ready: make(chan struct{}), ended: make(chan struct{})}
	s.accounts.OnSuspect = func(pid uint32) {
		if !slices.Contains(s.suspects, pid) {
			s.suspects = append(s.suspects, pid)
		}
	}
	return s
}

// AddSource adds a source. All sources run until one of them ends.
func (s *Session) AddSource(source Source) { s.sources = append(s.sources, source) }

// AddSink adds a sink; sinks are called in the order in which they were added.
func (s *Session) AddSink(k Sink) {
	s.sinks = append(s.sinks, k)
	s.event = both(s.event, k.Event)
	s.accounts.OnChange = both(s.accounts.OnChange, k.Change)
	s.accounts.OnLearned = both(s.accounts.OnLearned, k.Learned)
	s.accounts.OnCBChange = both(s.accounts.OnCBChange, k.CB)
	s.accounts.OnKernelChange = both(s.accounts.OnKernelChange, k.Kernel)
	s.accounts.OnUnsafe = both(s.accounts.OnUnsafe, k.Unsafe)
	s.accounts.OnAllocationFailed = both(s.accounts.OnAllocationFailed, k.AllocationFailed)
}

// both returns a function that calls both functions in order; one of them, if the other is nil.
func both[T any](first, second func(T)) func(T) {
	switch {
	case first == nil:
		return second
	case second == nil:
		return first
	}
	return func(v T) { first(v); second(v) }
}

// Accounts returns the session's accounts. Sinks may use them during their callbacks, which hold the lock.
func (s *Session) Accounts() *aggregator.Aggregator { return s.accounts }

// Ready returns a channel that is closed when all sources listen.
func (s *Session) Ready() <-chan struct{} { return s.ready }

// Ended returns a channel that is closed at the end of Close. After that the accounts do not change.
func (s *Session) Ended() <-chan struct{} { return s.ended }

// Run runs the sources until ctx or one of them ends, and returns their errors. When all listen, it calls ready, in the goroutine
// of the last one, and then closes the channel that Ready returns.
func (s *Session) Run(ctx context.Context, ready func()) error {
	s.ran = true
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var running sync.WaitGroup
	var pending atomic.Int64
	pending.Store(int64(len(s.sources)))
	errs := make([]error, len(s.sources))
	for i, source := range s.sources {
		running.Go(func() {
			defer cancel()
			var once sync.Once
			errs[i] = source.Run(ctx, func() {
				once.Do(func() {
					if pending.Add(-1) == 0 {
						ready()
						close(s.ready)
					}
				})
			}, s.deliver)
		})
	}
	running.Wait()
	return errors.Join(errs...)
}

// Close closes the sources and then, if the session ran, the sinks.
func (s *Session) Close() error {
	defer func() {
		s.endedAt = s.Now()
		close(s.ended)
	}()
	var errs []error
	for _, source := range s.sources {
		errs = append(errs, source.Close())
	}
	for _, k := range s.sinks {
		if s.ran && k.Close != nil {
			errs = append(errs, k.Close())
		}
	}
	return errors.Join(errs...)
}

// deliver applies a batch, and asks the sources to reconcile the processes that it showed to be wrong.
func (s *Session) deliver(events []aggregator.Event) {
	for _, pid := range s.apply(events) {
		s.Reconcile(pid)
	}
}

// apply applies a batch under the lock, and returns the processes to reconcile.
func (s *Session) apply(events []aggregator.Event) (suspects []uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.NoArguments {
		for i := range events {
			redact(&events[i])
		}
	}
	aggregator.Expand(s.accounts, events, s.applyPart)
	for _, k := range s.sinks {
		if k.Batch != nil {
			k.Batch()
		}
	}
	suspects, s.suspects = s.suspects, nil
	return suspects
}

// applyPart applies events that are no scans, and shows them to the sinks.
func (s *Session) applyPart(events []aggregator.Event) {
	for _, k := range s.sinks {
		if k.Events != nil {
			k.Events(events)
		}
	}
	for i := range events {
		if events[i].Kind == aggregator.Lost {
			s.lost.Events, s.lost.Any = s.lost.Events+events[i].Count, true
		}
		s.accounts.Apply(&events[i])
		if s.event != nil {
			s.event(&events[i])
		}
	}
}

// redact removes the arguments of commands from an event. It copies what the event points to, because the source may use that.
func redact(e *aggregator.Event) {
	if e.Process != nil {
		p := *e.Process
		p.Command = Program(p.Command)
		e.Process = &p
	}
	if e.Totals != nil {
		t := *e.Totals
		for _, list := range []*[]aggregator.ProcessSnapshot{&t.Processes, &t.Ended} {
			*list = slices.Clone(*list)
			for i := range *list {
				info := &(*list)[i].Info
				info.Command = Program(info.Command)
			}
		}
		e.Totals = &t
	}
}

// Program returns a command line without its arguments.
func Program(command string) string {
	program, _, _ := strings.Cut(command, " ")
	return program
}

// Reconcile asks every source that is a Reconciler to read a process again.
func (s *Session) Reconcile(pid uint32) {
	for _, source := range s.sources {
		if r, ok := source.(Reconciler); ok {
			r.Reconcile(pid)
		}
	}
}

// View calls f with the accounts, under the lock. f must not keep them.
func (s *Session) View(f func(*aggregator.Aggregator)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f(s.accounts)
}

// Snapshot returns the accounts now. Its time is the present or, if the session has ended, its end: the accounts themselves have
// no clock. If the source is far behind, it adds ReasonBehind.
func (s *Session) Snapshot() (snapshot *aggregator.Snapshot) {
	s.View(func(a *aggregator.Aggregator) { snapshot = a.Snapshot() })
	snapshot.Lacks = s.Lacks
	select {
	case <-s.ended:
		snapshot.Time = max(snapshot.Time, s.endedAt)
		return snapshot
	default:
	}
	snapshot.Time = max(snapshot.Time, s.Now())
	if behind := s.Behind(); behind > maxBehind {
		snapshot.Raise(aggregator.Reason{
			Code: exact.ReasonBehind, Detail: "the newest counted event is " + behind.Round(100*time.Millisecond).String() + " old",
			Since: snapshot.Time - min(snapshot.Time, uint64(behind)), Last: snapshot.Time,
		})
	}
	return snapshot
}

// Lost counts losses since the beginning, including those whose effect on the accounts was corrected since.
type Lost struct {
	// Events is the number of lost events that is known.
	Events uint64
	// Any means that something was lost.
	Any bool
}

// Lost returns what was lost.
func (s *Session) Lost() (lost Lost) {
	s.View(func(*aggregator.Aggregator) { lost = s.lost })
	return lost
}

// maxBehind is the age of the newest event, while others wait, from which on numbers are not exact.
const maxBehind = time.Second

// Behind returns the longest Behind of all sources; 0 if none is behind.
func (s *Session) Behind() time.Duration { return s.longest(Lagging.Behind) }

// Stuck returns the longest Stuck of all sources; 0 if none is stuck.
func (s *Session) Stuck() time.Duration { return s.longest(Lagging.Stuck) }

func (s *Session) longest(of func(Lagging) time.Duration) (d time.Duration) {
	for _, source := range s.sources {
		if l, ok := source.(Lagging); ok {
			d = max(d, of(l))
		}
	}
	return d
}

// Buffers returns the live buffers of a process, oldest first.
func (s *Session) Buffers(pid uint32) (list []aggregator.BufferSnapshot) {
	s.View(func(a *aggregator.Aggregator) { list = a.Buffers(pid) })
	return list
}

// Sites returns the places in the code where a process allocated buffers, in no order. It needs FollowSites.
func (s *Session) Sites(pid uint32) (list []aggregator.Site) {
	s.View(func(a *aggregator.Aggregator) { list = a.Sites(pid) })
	return list
}

// FollowSites makes the accounts keep the sites of all buffers; see aggregator.FollowSites. Call it before Run.
func (s *Session) FollowSites(name func(*aggregator.Stack) string) { s.accounts.FollowSites(name) }

// Programs returns the programs of a process, oldest first.
func (s *Session) Programs(pid uint32) (list []aggregator.ProgramSnapshot) {
	s.View(func(a *aggregator.Aggregator) { list = a.Programs(pid) })
	return list
}
