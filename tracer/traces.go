package tracer

import (
	"unsafe"

	"tt-memtrace/aggregator"
	"tt-memtrace/bpf"
)

// trace turns what happened to a trace of commands into an event.
func (r *run) trace(from origin, b []byte) {
	record := (*bpf.MemtraceTtTrace)(unsafe.Pointer(&b[0]))
	rel := r.relations(from.pid)
	device, ok := r.queueDevice(from.pid, record.Queue, from.time)
	switch {
	case !ok:
		device = rel.queues[record.Queue] // a process that crashes in a replay cannot be asked
	case len(rel.queues) < maxCapturing:
		rel.queues[record.Queue] = device
	}
	e := aggregator.Event{PID: from.pid, TID: from.tid, Time: from.time, Device: device, Trace: record.Number}
	switch bpf.MemtraceTtTraceStep(record.Step) {
	case bpf.MemtraceTtTraceStepTT_TRACE_BEGUN:
		e.Kind = aggregator.TraceBegun
		if len(rel.capturing) < maxCapturing {
			rel.capturing[record.Queue] = record.Number
		}
	case bpf.MemtraceTtTraceStepTT_TRACE_CAPTURED:
		number, known := rel.capturing[record.Queue]
		if !known {
			return // it began before tracing did, or its beginning was lost
		}
		delete(rel.capturing, record.Queue)
		e.Kind, e.Trace = aggregator.TraceCaptured, number
	case bpf.MemtraceTtTraceStepTT_TRACE_REPLAYED:
		e.Kind, e.Count = aggregator.Replayed, 1
	case bpf.MemtraceTtTraceStepTT_TRACE_RELEASED:
		e.Kind = aggregator.TraceReleased
	}
	r.emit(e)
}

// maxCapturing is more than a process has command queues.
const maxCapturing = 4096
