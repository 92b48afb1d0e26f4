package tracer

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"tt-memtrace/aggregator"
	"tt-memtrace/internal/proc"
)

// placing is a program whose scratchpads are being placed on a device.
type placing struct {
	program, device uint64
	time            uint64
	// next is the age at which its kernels are read next.
	next time.Duration
}

// No probe is hit when a program's scratchpads get their places. So the program's kernels are read soon, again until
// each has an address, and once more later: the first answer may be from an earlier placement.
const (
	firstAsked = 2 * time.Millisecond
	lastAsked  = 200 * time.Millisecond
	// placingTime is how long to keep trying.
	placingTime = 3 * time.Second
)

// due reads the scratchpads of the programs that are due or, with now, of all.
func (ps *programs) due(now bool) {
	for pid, rel := range ps.processes.related() {
		left := rel.placing[:0]
		for _, at := range rel.placing {
			age := proc.Monotonic() - time.Duration(at.time)
			if !now && age < at.next || ps.place(pid, rel, &at, age) {
				left = append(left, at)
			}
		}
		rel.placing = left
	}
}

// place reads a program's scratchpads and emits them if they changed. It reports whether they must be read again.
func (ps *programs) place(pid uint32, rel *relations, at *placing, age time.Duration) (again bool) {
	p, known := ps.processes.traced(pid)
	c := rel.programs[at.program]
	if !known || c == nil {
		return false // it is destroyed, or its kernels are from before tracing began
	}
	var list []*aggregator.CircularBuffer
	var failed error
	for _, k := range c.kernels {
		of, err := p.Scratchpads(k)
		failed = cmp.Or(failed, err)
		list = append(list, of...)
	}
	if failed != nil && age < placingTime {
		return true
	}
	if failed != nil {
		p.noticeOnce(ps.core, fmt.Errorf("the scratchpads of a kernel are unknown: %w", failed))
	}
	if len(list) > 0 && !slices.EqualFunc(list, c.scratchpads[at.device], samePlace) {
		from, device, program := origin{pid, pid, at.time}, at.device, at.program
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
	at.next = lastAsked
	return len(list) > 0 && age < lastAsked
}

// samePlace compares the places of scratchpads of the same kernels.
func samePlace(a, b *aggregator.CircularBuffer) bool {
	return a.Address == b.Address && a.Size == b.Size && slices.Equal(a.Ranges, b.Ranges)
}
