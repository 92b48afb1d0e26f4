package tracer

import (
	"time"

	"tt-memtrace/aggregator"
	"tt-memtrace/aggregator/exact"
	"tt-memtrace/bpf"
)

// traces are the records of traces of commands.
type traces struct {
	*core
	devices *devices
	// allocsLost is the span of time in which the last lost allocations were lost.
	allocsLost span
}

func (ts *traces) records() []recordKind {
	trace := takes(bpf.MemtraceTtKindTT_TRACE, ts.trace)
	trace.missed = func(span) { ts.raiseOnAll(exact.ReasonTracesMissed) }
	trace.unread = func(rec record) { ts.raise(rec.origin, exact.ReasonTracesMissed) }
	return []recordKind{trace}
}

// trace turns a record about a trace of commands into an event.
func (ts *traces) trace(rec record, record *bpf.MemtraceTtTrace) {
	from := rec.origin
	rel := ts.relations(from.pid)
	e := aggregator.Event{Trace: record.Number}
	step := bpf.MemtraceTtTraceStep(record.Step)
	if step != bpf.MemtraceTtTraceStepTT_TRACE_RELEASED { // the record of a release has only the number
		e.Device = ts.tracedOn(from, record.Queue)
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
		if c.begun <= ts.allocsLost.to && from.time >= ts.allocsLost.from {
			ts.raise(from, exact.ReasonTracesMissed)
		}
		e.Kind, e.Trace = aggregator.TraceCaptured, c.number
	case bpf.MemtraceTtTraceStepTT_TRACE_REPLAYED:
		e.Kind, e.Count = aggregator.Replayed, 1
	case bpf.MemtraceTtTraceStepTT_TRACE_RELEASED:
		e.Kind = aggregator.TraceReleased
	}
	ts.emit(from, e)
}

// tracedOn returns the device of a command queue that records or replays a trace, and describes the device if
// necessary. If it is unknown, tracedOn marks the process and returns 0.
func (ts *traces) tracedOn(from origin, queue uint64) uint64 {
	rel := ts.relations(from.pid)
	q := rel.queues[queue]
	if p, known := ts.processes.traced(from.pid); known {
		if device, err := p.DeviceOfQueue(queue); err == nil {
			ts.devices.device(p, origin{from.pid, from.pid, from.time}, device)
			q.device = device
		} else if q.device == 0 {
			q.device = p.onlyMesh() // the device has closed, with the queue
		}
	}
	if q.device == 0 { // otherwise it is known from before; the process may have crashed in this replay
		ts.raise(from, exact.ReasonTracesMissed)
		return 0
	}
	q.traced = from.time
	if len(rel.queues) < maxCapturing {
		rel.queues[queue] = q
	}
	return q.device
}

// deviceClosed forgets the command queues of a device. A trace that was recorded or replayed on it after it began to
// close belongs to the device that opened next at this address, and is lost with this one.
func (ts *traces) deviceClosed(_ *traced, rel *relations, from origin, device, began uint64) {
	for queue, q := range rel.queues {
		if q.device == device {
			delete(rel.queues, queue)
			if q.traced > began {
				ts.raise(from, exact.ReasonTracesMissed)
			}
		}
	}
}

// onlyMesh returns the process's only open mesh, as of the records handled so far; 0 if it has none or several.
func (p *traced) onlyMesh() (one uint64) {
	for _, d := range p.devices.unsized() {
		if len(d.chips) == 0 {
			return 0 // this device may be a mesh
		}
	}
	for address, d := range p.devices.described() {
		if d.mesh && one != 0 {
			return 0
		}
		if d.mesh {
			one = address
		}
	}
	return one
}

// maxCapturing is more command queues than a process has.
const maxCapturing = 4096

// lossesApart is longer than a record of a capture waits in the BPF ring buffer.
const lossesApart = 10 * time.Second

// missedAllocs handles that allocations of unknown processes were lost in a span of time. It marks processes that
// were capturing a trace then: a buffer that was allocated and freed during a capture shows nowhere else, but a
// replay writes there.
func (ts *traces) missedAllocs(in span) {
	if ts.allocsLost.to+uint64(lossesApart) >= in.from && ts.allocsLost.to > 0 {
		in.from = ts.allocsLost.from // records of captures from then may still be in the ring
	}
	ts.allocsLost = in
	for pid, rel := range ts.processes.related() {
		if len(rel.capturing) > 0 || rel.captured > 0 && rel.captured >= in.from {
			ts.raise(nowOf(pid), exact.ReasonTracesMissed)
		}
	}
}

// scanned adds to the first scan of a process whether buffers may be younger than traces from before. It settles
// nothing if no scan raised that: the accounts raise it too, for a replay of such a trace.
func (ts *traces) scanned(rd *reading, _ origin, scan *aggregator.Scan) {
	b := &rd.of.reconciliation
	if !rd.first || rd.traces == nil && !b.tracesBefore {
		return
	}
	b.tracesBefore = rd.traces != nil
	scan.Settles = append(scan.Settles, exact.ReasonTracesBeforeAttach)
	if rd.traces != nil {
		why := aggregator.Reason{Code: exact.ReasonTracesBeforeAttach, Detail: rd.traces.Error()}
		scan.Reasons = append(scan.Reasons, why)
	}
}
