package tracer

import (
	"errors"
	"fmt"
	"time"

	"tt-memtrace/aggregator"
	"tt-memtrace/aggregator/exact"
	"tt-memtrace/internal/metal"
	"tt-memtrace/internal/proc"
)

// rings reads the kernel-config rings.
type rings struct {
	*core
	// round is the read of launches that the rings are read with.
	round time.Time
}

// read reads the kernel-config rings of processes that ran since the last read: no probe is hit when a launch or a
// replay gets its place in one.
func (rs *rings) read() {
	for pid, p := range rs.processes.each() {
		if rel := rs.relations(pid); !rel.ringsRead.Equal(rs.round) && rel.ringsDue(pid) {
			rs.configRings(p)
		}
	}
}

// deviceClosed forgets the rings of a device.
func (rs *rings) deviceClosed(_ *traced, rel *relations, _ origin, device, _ uint64) {
	rel.rings.Drop(device)
}

// ringsDue reports whether a process's rings may have changed since they were last read.
func (rel *relations) ringsDue(pid uint32) bool {
	ran, ok := proc.ProcessorTime(pid)
	return !ok || rel.ringsRan != ran || rel.ringsAgain
}

// configRings emits the contents of a process's kernel-config rings that changed. A ring that cannot be read is
// unknown, and is read again in the next round.
func (rs *rings) configRings(p *traced) {
	pid := p.mapping.PID
	rel := rs.relations(pid)
	rel.ringsRead, rel.ringsAgain = rs.round, !proc.FineClock()
	rel.ringsRan, _ = proc.ProcessorTime(pid)
	var failed error
	var unread []aggregator.Chip
	for device, d := range p.devices.described() {
		if d.closing != nil {
			rel.ringsAgain = true // the close may fail
		}
		if len(d.chips) == 0 || d.closing != nil {
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
				rs.opts.Notice(fmt.Sprintf("process %d: kernel-config rings are not shown: %v", pid, err))
			}
			changed = rel.rings.Unread(device)
		case p.IsClosed(device) || !proc.Alive(pid):
			rel.ringsAgain = true // it is just opening or closing, or the process ends
			continue
		default:
			failed, rel.ringsAgain = err, true
			unread = append(unread, d.chips...)
			changed = rel.rings.Unread(device)
		}
		for _, shown := range changed {
			rs.emit(nowOf(pid), aggregator.Event{Kind: aggregator.ConfigRingUsed, Device: device, ConfigRing: shown})
		}
	}
	why := aggregator.Reason{Code: exact.ReasonConfigRingUnread, Chips: unread}
	switch at := proc.Now(); {
	case failed != nil:
		why.Detail = failed.Error()
		rs.raiseWhy(origin{pid: pid, time: at}, why)
	case rel.ringsUnread:
		rs.lift(origin{pid: pid, time: at}, why)
	}
	rel.ringsUnread = failed != nil
}
