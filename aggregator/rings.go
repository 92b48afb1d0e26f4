package aggregator

import (
	"cmp"
	"slices"

	"tt-memtrace/aggregator/exact"
)

// ConfigRing is a kernel-config ring: a piece of L1, the same in each of its worker cores, from which these run
// programs. A launch gives its program a place in it, for arguments, semaphores, the configuration of buffers, and
// the kernels' binaries. Places are given in turn, so programs stay until newer ones need their places.
type ConfigRing struct {
	// ID is the address of the runtime's object in its process; with Unread in an event, of the device.
	ID uint64 `rec:"ID"`
	// Base is its address in L1, and Capacity its size in each core, bytes. Both are 0 in the event of a ring that is
	// gone, or that can be read again.
	Base     uint64 `rec:"Base"`
	Capacity uint64 `rec:"Capacity"`
	// Used is the bytes, in each core, of places that are not released yet: up to 7, because the runtime tracks no
	// more.
	Used uint64 `rec:"Used"`
	// Places is the number of those places, one for each launch. Old recordings have 0 here, and instead the number
	// of programs in these places.
	Places   uint64 `rec:"Places"`
	Programs uint64 `rec:"Programs"`
	// Replayed: a trace was replayed after the newest place was given. The runtime gives a replay all of the ring,
	// and what it left there is unknown.
	Replayed bool `rec:"Replayed"`
	// Unread: a ring of the device could not be read last time, so its contents are unknown. Capacity is 0 if it is
	// unknown too.
	Unread bool `rec:"Unread"`
}

// RingUsage is what is known of a ConfigRing. Base is its address in L1; its ID is 0 if there is none.
type RingUsage struct {
	ID, Base uint64
	Capacity exact.Quantity
	// Used and Places are unknown if the ring could not be read, or a trace was Replayed.
	Used, Places exact.Quantity
	Replayed     bool
}

// Usage returns what is known of the ring.
func (r ConfigRing) Usage() RingUsage {
	known := !r.Unread && !r.Replayed && r.Capacity > 0
	return RingUsage{
		ID: r.ID, Base: r.Base, Replayed: r.Replayed, Capacity: exact.Of(r.Capacity).Unseen(true),
		Used: exact.Sum(r.Used, known), Places: exact.Sum(r.Places, known),
	}
}

// fuller reports whether to show a ring rather than another.
func (r *ConfigRing) fuller(o *ConfigRing) bool {
	if r.Unread != o.Unread {
		return r.Unread
	}
	if r.ID == 0 || o.ID == 0 {
		return r.ID != 0
	}
	return cmp.Or(cmp.Compare(r.Used, o.Used), cmp.Compare(r.Capacity, o.Capacity), cmp.Compare(o.ID, r.ID)) > 0
}

// ring is a ring, and the device whose cores it is in.
type ring struct {
	ConfigRing
	device uint64
}

const (
	// maxRing is more than any core has of L1, bytes.
	maxRing = maxCB
	// maxRings bounds the memory that a process can make this one use.
	maxRings = 1 << 10
)

// useRing replaces the state of a ring.
func (a *Aggregator) useRing(p *process, e *Event) {
	r := e.ConfigRing
	if r == nil || r.Base > maxRing || r.Capacity > maxRing || r.Used > r.Capacity || p.rings[r.ID] == nil && len(p.rings) >= maxRings {
		p.odd(e)
		return
	}
	if d := p.devices[e.Device]; d == nil || d.closed {
		return // the device closed before its rings were read
	}
	if r.Capacity == 0 && !r.Unread {
		delete(p.rings, r.ID)
		return
	}
	p.rings[r.ID] = &ring{*r, e.Device}
}

// ringOn returns the fullest of a process's rings on one chip. If a ring could not be read, the fullest one, and its
// contents, are unknown.
func (p *process) ringOn(s *share) (shown ConfigRing) {
	unread := false
	for _, r := range p.rings {
		if d := p.devices[r.device]; d == nil || !slices.Contains(d.shares, s) {
			continue
		}
		now := r.ConfigRing
		unread, now.Unread = unread || now.Unread, false
		if now.fuller(&shown) {
			shown = now
		}
	}
	if unread {
		shown = ConfigRing{ID: shown.ID, Base: shown.Base, Capacity: shown.Capacity, Unread: true}
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
