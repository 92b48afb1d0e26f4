package aggregator

import (
	"cmp"
	"slices"
)

// Ring is a kernel-config ring: the piece of L1, the same in each of the worker
// cores that it is for, from which these run programs. A launch gives its program
// a place in it: for arguments, semaphores, the configuration of buffers and the
// kernels' binaries. Places are given out in turn, so that programs stay until
// newer ones need theirs.
type Ring struct {
	// ID is the address of the runtime's object in its process.
	ID uint64
	// Base is its address in L1, and Capacity its size in each core, bytes; both 0
	// where unknown: it was made before tracing began.
	Base, Capacity uint64
	// Used are the bytes, in each core, of the places that were not given up yet: up
	// to 7, as the runtime keeps track of no more. It is 0, and so is Programs,
	// where Capacity is unknown.
	Used uint64
	// Programs, or workloads, that have these places.
	Programs uint64
	// Replayed: a trace was replayed since the newest place was given out, and
	// what it left in the ring is not known.
	Replayed bool
}

// fuller says whether a ring is to be shown rather than another one.
func (r *Ring) fuller(o *Ring) bool {
	if r.ID == 0 || o.ID == 0 {
		return r.ID != 0
	}
	return cmp.Or(cmp.Compare(r.Used, o.Used), cmp.Compare(r.Capacity, o.Capacity), cmp.Compare(o.ID, r.ID)) > 0
}

// ring is a ring, and the device whose cores it is in.
type ring struct {
	Ring
	device uint64
}

// replays is how often a trace was replayed on a device.
type replays struct {
	device      uint64
	trace       uint32
	count, last uint64
}

// ReplaySnapshot is a recorded trace that was replayed on a device.
type ReplaySnapshot struct {
	// Trace is its number in the process.
	Trace uint32
	// Chips of the device; not to be changed.
	Chips []Chip
	// Count of replays, and when the last was, CLOCK_MONOTONIC ns.
	Count, Last uint64
}

const (
	// maxRing is more than any core has of L1, bytes.
	maxRing = maxCB
	// maxRings and maxTraces bound what a process can make up.
	maxRings  = 1 << 10
	maxTraces = 1 << 14
)

// useRing takes in what a ring holds now.
func (a *Aggregator) useRing(p *process, e *Event) {
	r := e.Ring
	if r == nil || r.Base > maxRing || r.Capacity > maxRing || r.Used > r.Capacity || p.rings[r.ID] == nil && len(p.rings) >= maxRings {
		p.counters.Odd++
		return
	}
	if d := p.devices[e.Device]; d == nil || d.closed {
		return // it closed before its rings were read
	}
	p.rings[r.ID] = &ring{*r, e.Device}
}

// ringOn is the fullest of a process's rings on one chip.
func (p *process) ringOn(s *share) (shown Ring) {
	for _, r := range p.rings {
		if d := p.devices[r.device]; d != nil && slices.Contains(d.shares, s) && r.fuller(&shown) {
			shown = r.Ring
		}
	}
	return shown
}

func (p *process) dropRings(device uint64) {
	for id, r := range p.rings {
		if r.device == device {
			delete(p.rings, id)
		}
	}
}

// replay counts replays of a trace.
func (a *Aggregator) replay(p *process, e *Event) {
	p.counters.Replays += e.Count
	i := slices.IndexFunc(p.replays, func(r replays) bool { return r.device == e.Device && r.trace == e.Trace })
	if i < 0 {
		if len(p.replays) >= maxTraces {
			return
		}
		i = len(p.replays)
		p.replays = append(p.replays, replays{device: e.Device, trace: e.Trace})
	}
	r := &p.replays[i]
	r.count += e.Count
	r.last = max(r.last, e.Time)
}

func (p *process) dropReplays(device uint64) {
	p.replays = slices.DeleteFunc(p.replays, func(r replays) bool { return r.device == device })
}

// Replays lists the traces that a process replayed on devices that are open, by number.
func (a *Aggregator) Replays(pid uint32) (list []ReplaySnapshot) {
	p := a.processes[pid]
	if p == nil {
		return nil
	}
	for _, r := range p.replays {
		s := ReplaySnapshot{Trace: r.trace, Count: r.count, Last: r.last}
		if d := p.devices[r.device]; d != nil {
			s.Chips = d.opened.Chips
		}
		list = append(list, s)
	}
	slices.SortStableFunc(list, func(x, y ReplaySnapshot) int { return cmp.Compare(x.Trace, y.Trace) })
	return list
}
