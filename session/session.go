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
//     takes: the delivering goroutine calls that before deliver returns.
//   - A sink does not call the session: the lock is held already. It reads the accounts
//     with Accounts. It may take locks of its own, which no one holds while calling
//     the session.
//   - A sink does not block: sources wait, and what they read from overflows.
//
// # Feedback
//
// Applying an event can show that a process's accounts are wrong. The source that can
// read them again (a Reconciler) is not called at that moment: the request is queued,
// and delivered after the batch, when the lock is free. So no lock of a source is ever
// taken while the session's is held.
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
)

// Source yields events: traced processes, clients of a socket, a recording.
type Source interface {
	// Run delivers events in batches until ctx ends or there are no more, and returns
	// nil then. It calls ready once, when it listens: what happens from then on is
	// delivered. A batch is valid during the call of deliver only. Calls of deliver do not overlap, and none is made after Run returned.
	Run(ctx context.Context, ready func(), deliver func([]aggregator.Event)) error
	// Close frees what the source holds. It is called once, after Run or in its place.
	Close() error
}

// Reconciler is a Source that can read the state of a process from the process itself.
type Reconciler interface {
	// Reconcile asks for the process to be read again soon, because its accounts
	// cannot be right. It returns at once; what was read arrives as an event
	// (aggregator.AllocatorsScanned). Other sources' processes are ignored.
	Reconcile(pid uint32)
}

// Lagging is a Source whose events wait in a buffer until it reads them.
type Lagging interface {
	// Behind is how old the newest event is that was read, while others wait to be; 0
	// where none waits. It answers at once, whatever the source waits for.
	Behind() time.Duration
}

// Sink receives what happens. Callbacks that are nil are skipped. The session calls
// them under its lock, so they must not block and must not call the session; what they
// are given is valid during the call only.
//
// For a batch, the order is: Events once, then for each event the changes that it makes and Event,
// then Batch once.
type Sink struct {
	// Events receives a batch before it is applied.
	Events func([]aggregator.Event)
	// Event receives each event when it has been applied: the accounts are those that it left.
	Event func(*aggregator.Event)
	// Change receives each buffer that was allocated or freed, Learned each live one whose chips or
	// reserved size become known later, CB each circular buffer, Kernel each kernel binary, Unsafe each live buffer that a replay of a trace
	// may have overwritten, and AllocationFailed each allocation that failed.
	Change           func(aggregator.Change)
	Learned          func(aggregator.Change)
	CB               func(aggregator.CBChange)
	Kernel           func(aggregator.KernelChange)
	Unsafe           func(aggregator.Change)
	AllocationFailed func(*aggregator.Event)
	// Batch is called when a batch has been applied.
	Batch func()
	// Close is called once, without the lock, after the last batch. It may block.
	Close func() error
}

// Clock is the clock of the events.
type Clock struct {
	// Now is the present, CLOCK_MONOTONIC ns on the host that the events are from.
	Now func() uint64
	// Wall converts a time of the events into the time of day.
	Wall func(uint64) time.Time
}

// Session runs sources, keeps the accounts, and feeds sinks. Sources and sinks are
// added first; then Run, then Close. Readers may call Snapshot, Buffers, Programs, View
// and Reconcile at any time, from any goroutine.
type Session struct {
	// Clock is set before Run.
	Clock
	// NoArguments leaves the arguments of commands out of all events; set before Run.
	NoArguments bool
	// Lacks says what the sources cannot know of any process; set before Run.
	Lacks []string

	sources []Source
	sinks   []Sink
	// event, where set, calls the Event of all sinks.
	event func(*aggregator.Event)
	ready chan struct{}
	ended chan struct{}
	// endedAt is when it ended, a time of the events; set before ended is closed.
	endedAt uint64
	ran     bool

	mu       sync.Mutex
	accounts *aggregator.Aggregator
	lost     Lost
	// suspects are processes to reconcile, once the lock is free.
	suspects []uint32
}

// New makes a session with empty accounts.
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

// both calls one after the other, where there are both.
func both[T any](first, second func(T)) func(T) {
	switch {
	case first == nil:
		return second
	case second == nil:
		return first
	}
	return func(v T) { first(v); second(v) }
}

// Accounts are the session's accounts, for sinks: only under the lock, which is during
// their callbacks.
func (s *Session) Accounts() *aggregator.Aggregator { return s.accounts }

// Ready is closed when all sources listen.
func (s *Session) Ready() <-chan struct{} { return s.ready }

// Ended is closed when Close is over: the accounts do not change any more.
func (s *Session) Ended() <-chan struct{} { return s.ended }

// Run runs the sources until ctx or one of them ends. It calls ready when all listen, in
// the goroutine of the one that was last, and closes the channel Ready after it.
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

// deliver applies a batch.
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
	for _, k := range s.sinks {
		if k.Batch != nil {
			k.Batch()
		}
	}
	suspects, s.suspects = s.suspects, nil
	return suspects
}

// redact leaves the arguments of commands out of an event. What it points to is the
// source's, and stays as it is.
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

// Program is a command line without its arguments.
func Program(command string) string {
	program, _, _ := strings.Cut(command, " ")
	return program
}

// Reconcile has a process read again by the sources that can.
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

// Snapshot is the state of the accounts now. The accounts have no clock: the snapshot's time is the
// present, or when the session ended, not the last event's.
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
			Code: aggregator.ReasonBehind, Detail: "the newest counted event is " + behind.Round(100*time.Millisecond).String() + " old",
			Since: snapshot.Time - min(snapshot.Time, uint64(behind)), Last: snapshot.Time,
		})
	}
	return snapshot
}

// Lost is what was lost since the beginning, also where a state has made the accounts right again since.
type Lost struct {
	// Events are those whose number is known.
	Events uint64
	// Any: something was lost.
	Any bool
}

// Lost says what was lost.
func (s *Session) Lost() (lost Lost) {
	s.View(func(*aggregator.Aggregator) { lost = s.lost })
	return lost
}

// maxBehind is how old the newest event may be, while others wait, before numbers are
// called inexact.
const maxBehind = time.Second

// Behind is how far the source that is farthest behind is, 0 where none is.
func (s *Session) Behind() (behind time.Duration) {
	for _, source := range s.sources {
		if l, ok := source.(Lagging); ok {
			behind = max(behind, l.Behind())
		}
	}
	return behind
}

// Buffers are the live buffers of a process, oldest first.
func (s *Session) Buffers(pid uint32) (list []aggregator.BufferSnapshot) {
	s.View(func(a *aggregator.Aggregator) { list = a.Buffers(pid) })
	return list
}

// Sites are where a process allocated buffers, in no order; see FollowSites.
func (s *Session) Sites(pid uint32) (list []aggregator.Site) {
	s.View(func(a *aggregator.Aggregator) { list = a.Sites(pid) })
	return list
}

// FollowSites keeps the sites of all buffers, see aggregator.FollowSites. It is called before Run.
func (s *Session) FollowSites(name func([]aggregator.Frame) string) { s.accounts.FollowSites(name) }

// Programs are the programs of a process, oldest first.
func (s *Session) Programs(pid uint32) (list []aggregator.ProgramSnapshot) {
	s.View(func(a *aggregator.Aggregator) { list = a.Programs(pid) })
	return list
}
