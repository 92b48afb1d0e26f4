package aggregator

import (
	"cmp"

	"tt-memtrace/aggregator/exact"
)

// Site is a call site of a process in one memory. Buffers without a stack form a site for each size.
type Site struct {
	Memory Memory
	// Name is the call site, empty for buffers without a stack: they have Size bytes each.
	Name string
	Size uint64
	// Peak is the most that its live buffers had at any event, bytes on all chips: reserved or, where that is unknown,
	// requested. It is a lower bound if events are missing or sizes were unknown.
	Peak exact.Quantity
}

// siteAccount counts the buffers of a site.
type siteAccount struct {
	Site
	bytes, peak uint64
	// bound is how far the peak can be trusted.
	bound exact.Bound
}

// maxSites bounds the sites of a process. Beyond it, buffers count for one more site of each memory, manySites.
const (
	maxSites  = 16 << 10
	manySites = Ellipsis
)

// sites are those of a process.
type sites struct {
	all map[siteKey]*siteAccount
	// known finds a site without naming the stack, which takes longer.
	known map[allocatedBy]*siteAccount
	// bound is how far all peaks can be trusted: events may be missing.
	bound exact.Bound
}

type siteKey struct {
	memory Memory
	name   string
	size   uint64
}

type allocatedBy struct {
	stack  *Stack
	size   uint64
	memory Memory
}

// FollowSites keeps the sites of all buffers from now on, with their peaks. name returns a one-line name of the
// user's code on a stack; equal stacks must give equal names.
func (a *Aggregator) FollowSites(name func(*Stack) string) { a.callSite = name }

// Sites returns the sites at which a process has allocated, unordered; none without FollowSites.
func (a *Aggregator) Sites(pid uint32) []Site {
	p := a.processes[pid]
	if p == nil {
		return nil
	}
	bound := p.sites.bound
	if p.info.Source == Sampled || p.info.Late || Affected(p.reasons.list, exact.AffectsBuffers|exact.AffectsFrees|exact.AffectsPlaces) {
		bound = exact.AtLeast
	}
	list := make([]Site, 0, len(p.sites.all))
	for _, s := range p.sites.all {
		site := s.Site
		site.Peak = exact.Bounded(s.peak, s.bound.And(bound))
		list = append(list, site)
	}
	return list
}

// site returns the site of a buffer, nil without FollowSites.
func (a *Aggregator) site(p *process, b *buffer) *siteAccount {
	if a.callSite == nil {
		return nil
	}
	by := allocatedBy{b.stack, b.size, b.memory}
	if b.stack != nil {
		by.size = 0
	}
	if s := p.sites.known[by]; s != nil {
		return s
	}
	key := siteKey{memory: b.memory, size: by.size}
	if b.stack != nil {
		key.name = cmp.Or(a.callSite(b.stack), "unknown")
	}
	s := p.sites.all[key]
	if s == nil && len(p.sites.all) >= maxSites {
		key = siteKey{memory: b.memory, name: manySites}
		s = p.sites.all[key]
	}
	if s == nil {
		s = &siteAccount{Site: Site{Memory: b.memory, Name: key.name, Size: key.size}}
		if p.sites.all == nil {
			p.sites.all = map[siteKey]*siteAccount{}
		}
		p.sites.all[key] = s
	}
	if p.sites.known == nil || len(p.sites.known) >= maxSites {
		p.sites.known = map[allocatedBy]*siteAccount{} // a recording has new stacks in each block
	}
	p.sites.known[by] = s
	return s
}

// bytes returns how much a buffer counts at its site.
func (b *buffer) bytes() uint64 {
	return cmp.Or(b.reserved(), b.size) * uint64(max(len(b.device.shares), 1))
}

// add counts a buffer.
func (s *siteAccount) add(b *buffer) {
	if s == nil {
		return
	}
	s.bytes += b.bytes()
	s.peak = max(s.peak, s.bytes)
	if b.size != 0 && b.reserved() == 0 {
		s.bound = exact.AtLeast
	}
}

// sub takes a buffer off again.
func (s *siteAccount) sub(b *buffer) {
	if s != nil {
		s.bytes -= b.bytes()
	}
}
