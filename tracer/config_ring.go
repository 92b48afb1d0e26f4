package tracer

import (
	"errors"
	"fmt"

	"tt-memtrace/aggregator"
	"tt-memtrace/tracer/memory"
	"tt-memtrace/tracer/metal"
	"tt-memtrace/tracer/proc"
)

// rings reads the kernel-config rings of processes that were read as a whole since: nothing
// tells what was launched before.
func (r *run) rings() {
	for pid, p := range r.processes {
		if rel := r.relations(pid); rel.ringsDue {
			r.configRings(p)
		}
	}
}

// configRings emits what the kernel-config rings of a process hold, where that changed. What
// cannot be read is tried again with the next launch: a device may open or close just now.
func (r *run) configRings(p *traced) {
	pid := p.mapping.PID
	rel := r.relations(pid)
	rel.ringsDue, rel.ringsRead = false, r.launchedAt
	for device, chips := range p.devices {
		if len(chips) == 0 {
			rel.ringsDue = true // it is looked at again
		}
		if len(chips) == 0 || p.closing[device] != nil {
			continue
		}
		list, err := p.ConfigRings(device)
		if errors.Is(err, metal.ErrUnsupported) && !rel.ringsNoticed {
			rel.ringsNoticed = true
			r.t.opts.Notice(fmt.Sprintf("process %d: kernel-config rings are not shown: %v", pid, err))
		}
		if errors.Is(err, memory.ErrLater) {
			rel.ringsDue = true
		}
		if err != nil {
			continue
		}
		for _, shown := range rel.rings.Changed(device, list) {
			r.emit(aggregator.Event{Kind: aggregator.ConfigRingUsed, PID: pid, Time: uint64(proc.Monotonic()), Device: device, ConfigRing: shown})
		}
	}
}

// queueDevice finds the device of a command queue, and describes it if that was
// not done yet.
func (r *run) queueDevice(pid uint32, queue, now uint64) (uint64, bool) {
	p, known := r.processes[pid]
	if !known || queue == 0 {
		return 0, false
	}
	before := p.Late()
	device, err := p.DeviceOfQueue(queue)
	if err != nil && p.Late() != before {
		r.emit(aggregator.Event{Kind: aggregator.ReasonRaised, PID: pid, Time: now, Reason: &aggregator.Reason{Code: aggregator.ReasonTracesMissed}})
	}
	if err != nil {
		return 0, false
	}
	r.device(p, origin{pid, pid, now}, device)
	return device, true
}
