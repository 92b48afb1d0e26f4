package tracer

import (
	"time"
	"unsafe"

	"tt-memtrace/aggregator"
	"tt-memtrace/bpf"
)

// trace turns what happened to a trace of commands into an event.
func (r *run) trace(from origin, b []byte) {
	record := (*bpf.MemtraceTtTrace)(unsafe.Pointer(&b[0]))
	rel := r.relations(from.pid)
	e := aggregator.Event{PID: from.pid, TID: from.tid, Time: from.time, Trace: record.Number}
	step := bpf.MemtraceTtTraceStep(record.Step)
	if step != bpf.MemtraceTtTraceStepTT_TRACE_RELEASED { // its record has the number only
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
			return // it began before tracing did, or its beginning was lost
		}
		delete(rel.capturing, record.Queue)
		rel.captured = from.time
		if c.begun <= r.allocsLost.to && from.time >= r.allocsLost.from {
			r.raise(from.pid, aggregator.ReasonTracesMissed)
		}
		e.Kind, e.Trace = aggregator.TraceCaptured, c.number
	case bpf.MemtraceTtTraceStepTT_TRACE_REPLAYED:
		e.Kind, e.Count = aggregator.Replayed, 1
	case bpf.MemtraceTtTraceStepTT_TRACE_RELEASED:
		e.Kind = aggregator.TraceReleased
	}
	r.emit(e)
}

// tracedOn is the device of a command queue that records or replays a trace, which it describes if that was not done yet; 0, and
// the process is marked, where it is unknown.
func (r *run) tracedOn(from origin, queue uint64) uint64 {
	rel := r.relations(from.pid)
	q := rel.queues[queue]
	if p, known := r.processes[from.pid]; known {
		if device, err := p.DeviceOfQueue(queue); err == nil {
			r.device(p, origin{from.pid, from.pid, from.time}, device)
			q.device = device
		} else if q.device == 0 {
			q.device = p.onlyMesh() // it closed by now, with the queue
		}
	}
	if q.device == 0 { // else it is known from before: the process crashes in a replay, say
		r.raise(from.pid, aggregator.ReasonTracesMissed)
		return 0
	}
	q.traced = from.time
	if len(rel.queues) < maxCapturing {
		rel.queues[queue] = q
	}
	return q.device
}

// onlyMesh is the mesh that a process had open, as of the records that were handled, where that was one; else 0.
func (p *traced) onlyMesh() (one uint64) {
	for device := range p.unsized {
		if len(p.devices[device]) == 0 {
			return 0 // it may be a mesh
		}
	}
	if len(p.meshes) == 1 {
		for one = range p.meshes {
		}
	}
	return one
}

// tracedQueue is a command queue's device, and when it recorded or replayed a trace last, CLOCK_MONOTONIC ns.
type tracedQueue struct{ device, traced uint64 }

// maxCapturing is more than a process has command queues.
const maxCapturing = 4096

// capture is that of a trace, and when it began.
type capture struct {
	number uint32
	begun  uint64
}

// span is from one time to another, CLOCK_MONOTONIC ns; both are 0 where there is none.
type span struct{ from, to uint64 }

// lossesApart are further apart than a record of a capture waits in the BPF ring buffer.
const lossesApart = 10 * time.Second

// missedAllocs handles that allocations were lost, of any process, in a span of time: a buffer that was allocated and
// freed again while a trace was captured shows nowhere else, and a replay writes there.
func (r *run) missedAllocs(in span) {
	if r.allocsLost.to+uint64(lossesApart) >= in.from && r.allocsLost.to > 0 {
		in.from = r.allocsLost.from // the records of captures from then can be in the ring still
	}
	r.allocsLost = in
	for pid, rel := range r.related {
		if len(rel.capturing) > 0 || rel.captured > 0 && rel.captured >= in.from {
			r.raise(pid, aggregator.ReasonTracesMissed)
		}
	}
}
