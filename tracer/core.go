package tracer

import (
	"iter"
	"sync"

	"tt-memtrace/aggregator"
	"tt-memtrace/aggregator/exact"
	"tt-memtrace/bpf"
	"tt-memtrace/internal/memory"
	"tt-memtrace/internal/proc"
	"tt-memtrace/internal/relay"
)

// core is what all features share: the processes, what is done with each kind of record, and the way of events to the
// sink. Only its run uses it.
type core struct {
	*env
	attacher *attacher
	sink     func([]aggregator.Event)
	batch    []aggregator.Event

	in *relay.Inbox[mail]
	// passed is up to which of its asks the BPF ring buffer was drained.
	passed uint64

	processes processes
	// kinds says what is done with each kind of record.
	kinds    [bpf.MemtraceTtKindTT_KINDS]recordKind
	features []any
	// raised are the reasons that were raised on all processes, and when.
	raised map[exact.ReasonCode]moment
	// background runs what reads processes and waits for them.
	background sync.WaitGroup
}

// A feature is one kind of thing that is traced, such as programs or traces of commands. It implements what it needs of
// these.
type (
	// recorder: it takes records.
	recorder interface{ records() []recordKind }
	// timed: something of it is due at times. With now, because someone waits for all that has happened, it does
	// immediately what otherwise waits for its time.
	timed interface{ due(now bool) }
	// closer: it keeps state of devices. deviceClosed is called when one has closed, with when its close began, 0 if
	// unknown.
	closer interface {
		deviceClosed(p *traced, rel *relations, from origin, device, began uint64)
	}
	// scanner: a scan of a process brings something of it, which it notes and adds to what the accounts get.
	scanner interface {
		scanned(rd *reading, from origin, scan *aggregator.Scan)
	}
)

// add adds features. What is due and what scans bring comes in this order.
func (c *core) add(features ...any) {
	c.features = features
	for f := range featuresThat[recorder](c) {
		for _, k := range f.records() {
			c.kinds[k.kind] = k
		}
	}
}

// featuresThat yields the features that implement a part of the contract.
func featuresThat[T any](c *core) iter.Seq[T] {
	return func(yield func(T) bool) {
		for _, f := range c.features {
			if f, ok := f.(T); ok && !yield(f) {
				return
			}
		}
	}
}

// raiseOnAll raises a reason on all processes, because the loss may concern any of them. That includes processes that
// are still unknown: see raiseMissed.
func (c *core) raiseOnAll(code exact.ReasonCode) {
	c.raised[code] = momentNow()
	c.history.raise(code, c.raised[code])
	for pid := range c.processes.each() {
		c.raise(nowOf(pid), code)
	}
}

// raiseMissed raises those reasons on a process that became known later, but may have had the library mapped then.
func (c *core) raiseMissed(p *traced) {
	for code, when := range c.raised {
		if p.start.Started <= when.ticks && mayPrecede(p.seen, when.at) {
			c.raise(nowOf(p.mapping.PID), code)
		}
	}
}

// raise raises a reason on a process.
func (c *core) raise(from origin, code exact.ReasonCode) {
	c.raiseWhy(from, aggregator.Reason{Code: code})
}

// raiseWhy raises a reason with its details.
func (c *core) raiseWhy(from origin, why aggregator.Reason) {
	c.emit(from, aggregator.Event{Kind: aggregator.ReasonRaised, Reason: &why})
}

// unreadEvent has a process compared soon, of which an event is missing or incomplete.
func (c *core) unreadEvent(rec record) {
	rec.p.unread++
	rec.p.doubt()
	c.raise(rec.origin, exact.ReasonEventsUnread)
}

// unreadOf counts that something of a process could not be read. It may have concerned programs, if the process has
// any.
func (c *core) unreadOf(p *traced) {
	p.unread++
	if rel := c.processes.get(p.mapping.PID).relations; rel != nil && len(rel.programs) > 0 {
		p.unreadParts++
	}
}

// mine reports whether a process belongs to this run.
func (c *core) mine(pid uint32) bool {
	in := c.attacher.runs.Of(pid)
	return in == nil || in == c.in
}

// reservedUnread marks a process whose buffer has an unknown reserved size, until a comparison finds it.
func (c *core) reservedUnread(p *traced, from origin) {
	rec := &p.reconciliation
	p.doubtOnce()
	if !rec.unreserved {
		rec.unreserved = true
		c.raiseWhy(from, aggregator.Reason{Code: exact.ReasonReservedUnknown, Detail: "they were not known when the buffers were allocated"})
	}
}

// isTraced reports whether a process was found to map a traced library.
func (c *core) isTraced(pid uint32) bool {
	_, known := c.processes.traced(pid)
	return known
}

// describe emits a process's description, at first and after each change.
func (c *core) describe(p *traced, now uint64) {
	start := p.start
	c.emit(origin{pid: p.mapping.PID, time: now}, aggregator.Event{Kind: aggregator.ProcessStart, Process: &start})
}

// processOf returns the process to which a record is attributed, if it is known.
func (c *core) processOf(from origin) (p *traced, known bool) {
	if p, known = c.processes.traced(from.pid); known {
		if p.last = from.time; p.first == 0 {
			p.first = from.time
		}
	}
	return p, known
}

// anySuspect reports whether a process must be read again soon.
func (c *core) anySuspect() bool {
	for _, p := range c.processes {
		if p.state() == stateSuspect {
			return true
		}
	}
	return false
}

// mark raises or lifts the reason that a process is not traced.
func (c *core) mark(pid uint32, v verdict) {
	from := origin{pid: pid, time: v.at}
	why := aggregator.Reason{Code: exact.ReasonNotTraced, Detail: v.why, Unsure: v.unsure && !c.isTraced(pid)}
	if v.why != "" {
		c.processes.of(pid).untraced = true
		c.raiseWhy(from, why)
	} else if p, known := c.processes.traced(pid); c.processes.get(pid).untraced && (!known || p.marked == "") {
		c.processes[pid].untraced = false
		c.processes.drop(pid)
		c.lift(from, why)
	}
}

// markForGood marks a process until it ends.
func (c *core) markForGood(p *traced, why string) {
	if p.marked == "" {
		p.marked = why
		c.mark(p.mapping.PID, verdict{why: why, at: proc.Now()})
	}
}

// relations returns a process's relations, new ones if it has none.
func (c *core) relations(pid uint32) *relations {
	if rel := c.processes.get(pid).relations; rel != nil {
		return rel
	}
	return c.processes.relate(pid, memory.FilesOf(pid))
}

func (c *core) flush() {
	if len(c.batch) > 0 {
		c.sink(c.batch)
		c.batch = c.batch[:0]
	}
}

// lift ends a reason.
func (c *core) lift(from origin, why aggregator.Reason) {
	c.emit(from, aggregator.Event{Kind: aggregator.ReasonLifted, Reason: &why})
}

// emit delivers an event of a process and a thread, at a time.
func (c *core) emit(from origin, e aggregator.Event) {
	e.PID, e.TID, e.Time = from.pid, from.tid, from.time
	c.batch = append(c.batch, e)
}
