package tracer

import (
	"errors"
	"fmt"

	"tt-memtrace/aggregator"
	"tt-memtrace/aggregator/exact"
	"tt-memtrace/internal/metal"
	"tt-memtrace/internal/proc"
)

// rings reads the kernel-config rings of processes that ran since the last read: no probe is hit when a launch or a
// replay gets its place in one.
func (r *run) rings() {
	for pid, p := range r.processes.each() {
		if rel := r.relations(pid); !rel.ringsRead.Equal(r.launchedAt) && rel.ringsDue(pid) {
			r.configRings(p)
		}
	}
}

// ringsDue reports whether a process's rings may have changed since they were last read.
func (rel *relations) ringsDue(pid uint32) bool {
	ran, ok := proc.ProcessorTime(pid)
	return !ok || rel.ringsRan != ran || rel.ringsAgain
}

// configRings emits the contents of a process's kernel-config rings that changed. A ring that cannot be read is
// unknown, and is read again in the next round.
func (r *run) configRings(p *traced) {
	pid := p.mapping.PID
	rel := r.relations(pid)
	rel.ringsRead, rel.ringsAgain = r.launchedAt, !proc.FineClock()
	rel.ringsRan, _ = proc.ProcessorTime(pid)
	var failed error
	var unread []aggregator.Chip
	for device, chips := range p.devices {
		if p.closing[device] != nil {
			rel.ringsAgain = true // the close may fail
		}
		if len(chips) == 0 || p.closing[device] != nil {
			continue
		}
		list, err := p.ConfigRings(device)
		var changed []*aggregator.ConfigRing
		switch {
		case err == nil:
			changed = rel.rings.Changed(device, list)
		case errors.Is(err, metal.ErrUnsupported):
			if !rel.ringsNoticed {
				rel.ringsNoticed = true
				r.t.opts.Notice(fmt.Sprintf("process %d: kernel-config rings are not shown: %v", pid, err))
			}
			changed = rel.rings.Unread(device)
		case p.IsClosed(device) || !proc.Alive(pid):
			rel.ringsAgain = true // it is just opening or closing, or the process ends
			continue
		default:
			failed, rel.ringsAgain = err, true
			unread = append(unread, chips...)
			changed = rel.rings.Unread(device)
		}
		for _, shown := range changed {
			r.emit(aggregator.Event{Kind: aggregator.ConfigRingUsed, PID: pid, Time: uint64(proc.Monotonic()), Device: device, ConfigRing: shown})
		}
	}
	why := aggregator.Reason{Code: exact.ReasonConfigRingUnread, Chips: unread}
	switch at := uint64(proc.Monotonic()); {
	case failed != nil:
		why.Detail = failed.Error()
		r.emit(aggregator.Event{Kind: aggregator.ReasonRaised, PID: pid, Time: at, Reason: &why})
	case rel.ringsUnread:
		r.emit(aggregator.Event{Kind: aggregator.ReasonLifted, PID: pid, Time: at, Reason: &why})
	}
	rel.ringsUnread = failed != nil
}
