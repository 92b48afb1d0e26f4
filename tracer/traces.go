package tracer

import (
	"time"

	"tt-memtrace/aggregator"
	"tt-memtrace/aggregator/exact"
	"tt-memtrace/bpf"
)

func (r *run) recordsOfTraces() []recordKind {
	trace := takes(bpf.MemtraceTtKindTT_TRACE, r.trace)
	trace.missed = func(span) { r.raiseOnAll(exact.ReasonTracesMissed) }
	trace.unread = func(rec record) { r.raiseFor(rec, exact.ReasonTracesMissed) }
	return []recordKind{trace}
}

// trace turns a record about a trace of commands into an event.
func (r *run) trace(rec record, record *bpf.MemtraceTtTrace) {
	from := rec.origin
	rel := r.relations(from.pid)
	e := aggregator.Event{PID: from.pid, TID: from.tid, Time: from.time, Trace: record.Number}
	step := bpf.MemtraceTtTraceStep(record.Step)
	if step != bpf.MemtraceTtTraceStepTT_TRACE_RELEASED { // the record of a release has only the number
		e.Device = r.tracedOn(from, record.Queue)
	}
	switch step {
	case bpf.MemtraceTtTraceStepTT_TRACE_BEGUN:
		e.Kind = aggregator.TraceBegun
		if len(rel.capturing) < maxCapturing {
			rel.capturing[record.Queue] = capture{record.Number, from.time}
		}
	case bpf.MemtraceTtTraceStepTT_TRACE_CAPTURED:
		c, known := rel.capturing[record.Queue]
		if !known {
			return // it began before tracing, or the record of its beginning was lost
		}
		delete(rel.capturing, record.Queue)
		rel.captured = from.time
		if c.begun <= r.allocsLost.to && from.time >= r.allocsLost.from {
			r.raise(from.pid, exact.ReasonTracesMissed)
		}
		e.Kind, e.Trace = aggregator.TraceCaptured, c.number
	case bpf.MemtraceTtTraceStepTT_TRACE_REPLAYED:
		e.Kind, e.Count = aggregator.Replayed, 1
	case bpf.MemtraceTtTraceStepTT_TRACE_RELEASED:
		e.Kind = aggregator.TraceReleased
	}
	r.emit(e)
}

// tracedOn returns the device of a command queue that records or replays a trace, and describes the device if
// necessary. If it is unknown, tracedOn marks the process and returns 0.
func (r *run) tracedOn(from origin, queue uint64) uint64 {
	rel := r.relations(from.pid)
	q := rel.queues[queue]
	if p, known := r.processes.traced(from.pid); known {
		if device, err := p.DeviceOfQueue(queue); err == nil {
			r.device(p, origin{from.pid, from.pid, from.time}, device)
			q.device = device
		} else if q.device == 0 {
			q.device = p.onlyMesh() // the device has closed, with the queue
		}
	}
	if q.device == 0 { // otherwise it is known from before; the process may have crashed in this replay
		r.raise(from.pid, exact.ReasonTracesMissed)
		return 0
	}
	q.traced = from.time
	if len(rel.queues) < maxCapturing {
		rel.queues[queue] = q
	}
	return q.device
}

// onlyMesh returns the process's only open mesh, as of the records handled so far; 0 if it has none or several.
func (p *traced) onlyMesh() (one uint64) {
	for device := range p.unsized {
		if len(p.devices[device]) == 0 {
			return 0 // this device may be a mesh
		}
	}
	if len(p.meshes) == 1 {
		for one = range p.meshes {
		}
	}
	return one
}

// tracedQueue is a command queue's device, and when it last recorded or replayed a trace (CLOCK_MONOTONIC, ns).
type tracedQueue struct{ device, traced uint64 }

// maxCapturing is more command queues than a process has.
const maxCapturing = 4096

// capture is the number of a trace being captured, and when that began.
type capture struct {
	number uint32
	begun  uint64
}

// span is a span of time, CLOCK_MONOTONIC ns; both ends are 0 if there is none.
type span struct{ from, to uint64 }

// lossesApart is longer than a record of a capture waits in the BPF ring buffer.
const lossesApart = 10 * time.Second

// missedAllocs handles that allocations of unknown processes were lost in a span of time. It marks processes that
// were capturing a trace then: a buffer that was allocated and freed during a capture shows nowhere else, but a
// replay writes there.
func (r *run) missedAllocs(in span) {
	if r.allocsLost.to+uint64(lossesApart) >= in.from && r.allocsLost.to > 0 {
		in.from = r.allocsLost.from // records of captures from then may still be in the ring
	}
	r.allocsLost = in
	for pid, rel := range r.processes.related() {
		if len(rel.capturing) > 0 || rel.captured > 0 && rel.captured >= in.from {
			r.raise(pid, exact.ReasonTracesMissed)
		}
	}
}
