package aggregator

import (
	"cmp"
	"slices"
)

// ConfigRing is a kernel-config ring: the piece of L1, the same in each of the worker
// cores that it is for, from which these run programs. A launch gives its program
// a place in it: for arguments, semaphores, the configuration of buffers and the
// kernels' binaries. Places are given out in turn, so that programs stay until
// newer ones need theirs.
type ConfigRing struct {
	// ID is the address of the runtime's object in its process; with Unread in an event, of the device.
	ID uint64 `rec:"ID"`
	// Base is its address in L1, and Capacity its size in each core, bytes: 0 in the event of one that
	// is gone, or can be read again.
	Base     uint64 `rec:"Base"`
	Capacity uint64 `rec:"Capacity"`
	// Used are the bytes, in each core, of the places that were not released yet: up
	// to 7, as the runtime keeps track of no more.
	Used uint64 `rec:"Used"`
	// Places are those places: one for each launch. 0 also in recordings made before, which have
	// the number of programs in these places in its stead.
	Places   uint64 `rec:"Places"`
	Programs uint64 `rec:"Programs"`
	// Replayed: a trace was replayed since the newest place was given out. The runtime gives it
	// all of the ring, and what it left there is not known.
	Replayed bool `rec:"Replayed"`
	// Unread: one that its device has could not be read last, so what it holds is not known. Capacity
	// is 0 where that is not known either.
	Unread bool `rec:"Unread"`
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
		return // closed before its rings were read
	}
	if r.Capacity == 0 && !r.Unread {
		delete(p.rings, r.ID)
		return
	}
	p.rings[r.ID] = &ring{*r, e.Device}
}

// ringOn is the fullest of a process's rings on one chip. Where one could not be read, which is the
// fullest is not known, nor what it holds.
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
