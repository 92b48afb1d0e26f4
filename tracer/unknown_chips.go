package tracer

import (
	"slices"
	"time"

	"tt-memtrace/aggregator"
	"tt-memtrace/aggregator/exact"
)

// What programs have on a device with unknown chips cannot be counted on a chip, so it waits until the chips are
// known. Until then the process is marked (chips_unknown).

// waiting is an action that waits for a device's chips.
type waiting struct {
	program uint64
	do      func()
}

// maxWaiting bounds the waiting actions per process.
const maxWaiting = 4096

// onChips runs do once the chips of a device are known, unless the program ends before.
func (r *run) onChips(p *traced, from origin, device, program uint64, do func()) {
	if chips, met := p.devices[device]; !met || len(chips) > 0 {
		do()
		return
	}
	n := 0
	for _, list := range p.waiting {
		n += len(list)
	}
	if n < maxWaiting {
		if p.waiting == nil {
			p.waiting = map[uint64][]waiting{}
		}
		p.waiting[device] = append(p.waiting[device], waiting{program, do})
		return
	}
	p.unread++
	p.unreadParts++
	p.reconciliation.suspect = time.Now()
	r.emit(aggregator.Event{Kind: aggregator.ReasonRaised, PID: from.pid, TID: from.tid, Time: from.time, Reason: &aggregator.Reason{Code: exact.ReasonEventsUnread}})
}

// chipsRead runs what waited for a device's chips.
func (p *traced) chipsRead(device uint64) {
	list := p.waiting[device]
	delete(p.waiting, device)
	for _, w := range list {
		w.do()
	}
}

// noProgram drops what waits for a program.
func (p *traced) noProgram(program uint64) {
	for device, list := range p.waiting {
		p.waiting[device] = slices.DeleteFunc(list, func(w waiting) bool { return w.program == program })
	}
}
