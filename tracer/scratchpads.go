package tracer

import (
	"cmp"
	"fmt"
	"slices"

	"tt-memtrace/aggregator"
)

// due reads the scratchpads of the programs that are due or, with now, of all.
func (ps *programs) due(now bool) {
	for pid, rel := range ps.processes.related() {
		left := rel.placing[:0]
		for _, at := range rel.placing {
			if !at.due(now) || ps.place(pid, rel, &at) {
				left = append(left, at)
			}
		}
		rel.placing = left
	}
}

// place reads a program's scratchpads and emits them if they changed. It reports whether they must be read again.
func (ps *programs) place(pid uint32, rel *relations, at *placing) (again bool) {
	p, known := ps.processes.traced(pid)
	c := rel.programs[at.program]
	if !known || c == nil {
		return false // it is destroyed, or its kernels are from before tracing began
	}
	if _, closed := p.devices.closed[at.device]; closed {
		return false
	}
	var list []*aggregator.CircularBuffer
	var failed error
	for _, k := range c.kernels {
		of, err := p.Scratchpads(k)
		failed = cmp.Or(failed, err)
		list = append(list, of...)
	}
	if failed != nil && at.soon(placingPace) {
		return true
	}
	if failed != nil {
		p.noticeOnce(ps.core, fmt.Errorf("the scratchpads of a kernel are unknown: %w", failed))
	}
	if len(list) > 0 && !slices.EqualFunc(list, c.scratchpads[at.device], samePlace) {
		from, device, program := origin{pid: pid, time: at.since}, at.device, at.program
		ps.devices.device(p, from, device)
		rel.calls++
		for _, cb := range list {
			cb.Call = rel.calls
		}
		ps.onChips(p, from, device, program, func() {
			devices := ps.spread(p, from, program, device, 0)
			for _, cb := range list {
				for _, d := range devices {
					ps.emit(from, aggregator.Event{Kind: aggregator.CBPlaced, Device: d, Program: program, CB: cb})
				}
			}
		})
		if c.scratchpads == nil {
			c.scratchpads = map[uint64][]*aggregator.CircularBuffer{}
		}
		c.scratchpads[at.device] = list
	}
	return len(list) > 0 && at.again(placingPace) && at.age() < placingPace.longest
}

// samePlace compares the places of scratchpads of the same kernels.
func samePlace(a, b *aggregator.CircularBuffer) bool {
	return a.Address == b.Address && a.Size == b.Size && slices.Equal(a.Ranges, b.Ranges)
}
