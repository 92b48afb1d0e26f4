package report

import (
	"cmp"
	"maps"
	"slices"

	"tt-memtrace/aggregator"
)

// space is the use of one memory over time, of one chip or of several that have been equal so far, such as those of a
// mesh: work for a mesh then takes no longer than for a chip.
type space struct {
	chips  []aggregator.Chip
	memory aggregator.Memory
	banks  aggregator.Banks
	used   tally
	bySite map[*site]tally
	// peak is the highest use so far. Its holders are captured at the first free after it.
	peak      tally
	peakAt    uint64
	peakBanks aggregator.Banks
	holders   map[*site]tally
	peakOpen  bool

	// blocks by address; none once there were too many. unsized: the block of some
	// buffer is unknown.
	blocks        blocks
	many, unsized bool
	// low and high are the lowest and highest address of any block so far, since the banks
	// have their size: with another one, they begin elsewhere. widest is the widest of those before.
	low, high uint64
	widest    span
	// found: the first of these were not seen when they were allocated, so others can have lain beyond.
	found bool

	line       timeline
	fragmented *freeBytes
}

// chipSpace is the space of one of its chips.
type chipSpace struct {
	*space
	chip aggregator.Chip
}

// split moves the chips that an event concerns into a space of their own.
func (s *space) split(part []aggregator.Chip) *space {
	of := func(c aggregator.Chip) bool { return slices.Contains(part, c) }
	other := *s
	other.chips = slices.Clone(part)
	s.chips = slices.DeleteFunc(slices.Clone(s.chips), of)
	other.bySite, other.blocks = maps.Clone(s.bySite), s.blocks.clone()
	other.line.list, other.line.since = slices.Clone(s.line.list), maps.Clone(s.line.since)
	return &other // the holders of a peak, and where it was in pieces, are never changed
}

// freeBytes is the free bytes of a bank and its largest free block.
type freeBytes struct{ at, free, largest uint64 }

const maxBlocks = 50_000

func (s *space) add(at uint64, st *site, bytes uint64, of []block, found bool) {
	s.line.advance(at, s)
	s.used.add(bytes)
	t := s.bySite[st]
	s.line.changes(st, t.bytes)
	t.add(bytes)
	s.bySite[st] = t
	if s.used.bytes > s.peak.bytes {
		s.peak, s.peakAt, s.peakBanks, s.peakOpen = s.used, at, s.banks, true
	}
	s.line.use(s.used.bytes)
	if len(of) == 0 {
		s.unsized = s.unsized || bytes > 0
	}
	for _, b := range of {
		s.take(b, found)
	}
}

// take adds a block.
func (s *space) take(b block, found bool) {
	if s.blocks.count >= maxBlocks {
		s.many, s.blocks = true, blocks{}
	}
	if !s.many {
		s.blocks.add(b)
	}
	s.found = s.found || found && s.high == 0
	if s.high == 0 || b.start < s.low {
		s.low = b.start
	}
	s.high = max(s.high, b.end)
}

func (s *space) sub(at uint64, st *site, bytes uint64, of []block) {
	s.line.advance(at, s)
	s.capture()
	s.used.sub(bytes)
	t := s.bySite[st]
	s.line.changes(st, t.bytes)
	if t.sub(bytes); t.buffers == 0 {
		delete(s.bySite, st)
	} else {
		s.bySite[st] = t
	}
	for _, b := range of {
		s.blocks.remove(b)
	}
}

// capture copies the holders if the use is at its peak.
func (s *space) capture() {
	if !s.peakOpen {
		return
	}
	s.peakOpen = false
	s.holders = map[*site]tally{}
	for st, t := range s.bySite {
		s.holders[st] = t
	}
}

// span returns the distance from the lowest to the highest address that was allocated in the banks.
type span struct {
	bytes uint64
	banks aggregator.Banks
}

// span is the widest so far.
func (s *space) span() span {
	if now := (span{s.high - s.low, s.banks}); now.bytes >= s.widest.bytes {
		return now
	}
	return s.widest
}

// sized sets the size of the banks, which can change when a device is opened again.
func (s *space) sized(at uint64, banks aggregator.Banks) {
	if s.banks == banks {
		return
	}
	if s.banks.Known && s.high > 0 {
		s.line.advance(at, s)
		s.widest = s.span()
		s.low, s.high, s.found = 0, 0, false
		// What others hold there lies as the size before had it.
		s.unsized = s.unsized || s.used.buffers > 0
	}
	if s.banks = banks; !s.peakBanks.Known {
		s.peakBanks = banks
	}
}

// base is the first address of a bank. If it was not read, the first buffers show it, because the runtime allocates DRAM,
// and TRACE as a part of that, from the bottom up and L1 from the top down.
func (s *space) base() uint64 {
	if s.banks.Based {
		return s.banks.Base
	}
	if down := s.memory == aggregator.L1 || s.memory == aggregator.L1Small; down && s.high >= s.banks.Bytes && s.high-s.banks.Bytes <= s.low {
		return s.high - s.banks.Bytes
	}
	return s.low
}

// free is the free bytes of a bank and its largest free block, where known: where the first buffers were
// found, how the free bytes at the two ends are shared is not, so it must be between buffers.
func (s *space) free() (p freeBytes, ok bool) {
	if !s.banks.Known || s.banks.Count == 0 || s.many || s.unsized {
		return p, false
	}
	if s.high == 0 { // nothing was allocated yet
		return freeBytes{free: s.banks.Bytes, largest: s.banks.Bytes}, s.used.buffers == 0
	}
	at := s.base()
	end := at + s.banks.Bytes
	var below, between uint64
	empty := true
	for b := range s.blocks.all() {
		if b.start > at {
			p.free += b.start - at
			if empty {
				below = b.start - at
			} else {
				between = max(between, b.start-at)
			}
		}
		empty = false
		at = max(at, b.end) // submeshes have their own allocators: blocks can overlap
	}
	var above uint64
	if end > at {
		above = end - at
		p.free += above
	}
	p.largest = max(below, between, above)
	return p, s.banks.Based || !s.found || empty || below+above <= between
}

// points is the maximum length of a timeline.
const points = 400

// timeline divides time into equal intervals, which double whenever there are too many.
type timeline struct {
	began, step uint64
	list        []sample
	// most is the highest use in the current interval.
	most uint64
	// since, if not nil, has the bytes at that moment of the sites that changed since then.
	since map[*site]uint64
}

type sample struct {
	at, used      uint64
	free, largest uint64
	known         bool
	// sites are those that held the most when the use was highest; nil if they are not kept.
	sites []siteBytes
}

// siteBytes is a site and its bytes on a chip.
type siteBytes struct {
	site  *site
	bytes uint64
}

// sampleSites bounds the sites of a sample. The rest of its use is what other sites held.
const sampleSites = 128

// changes notes the bytes of a site before they change.
func (l *timeline) changes(st *site, bytes uint64) {
	if l.since == nil {
		return
	}
	if _, ok := l.since[st]; !ok {
		l.since[st] = bytes
	}
}

// atMost lists the sites with the most bytes when the current interval's use was highest.
func (l *timeline) atMost(s *space) []siteBytes {
	if l.since == nil {
		return nil
	}
	list := make([]siteBytes, 0, len(s.bySite))
	for st, t := range s.bySite {
		if _, changed := l.since[st]; !changed {
			list = append(list, siteBytes{st, t.bytes})
		}
	}
	for st, bytes := range l.since {
		if bytes > 0 {
			list = append(list, siteBytes{st, bytes})
		}
	}
	slices.SortFunc(list, func(x, y siteBytes) int { return cmp.Or(cmp.Compare(y.bytes, x.bytes), compareSites(x.site, y.site)) })
	return slices.Clone(list[:min(sampleSites, len(list))])
}

// advance ends the intervals before a change.
func (l *timeline) advance(at uint64, s *space) {
	if l.step == 0 {
		l.began, l.step = at, 1e6
	}
	start := l.began + uint64(len(l.list))*l.step
	if at < start+l.step || at >= 1<<62 { // no real time is that late
		return
	}
	p, ok := s.free()
	if ok && (s.fragmented == nil || p.free-p.largest > s.fragmented.free-s.fragmented.largest) {
		p.at = start + l.step
		s.fragmented = &p
	}
	sites := l.atMost(s)
	for n := 0; at >= start+l.step; n++ {
		if n == 1 && sites != nil { // nothing changes in the intervals that follow
			sites = l.atMost(s)
		}
		l.list = append(l.list, sample{start, l.most, p.free, p.largest, ok, sites})
		l.most = s.used.bytes // the use up to the change
		clear(l.since)
		if len(l.list) == points {
			l.fold()
		}
		start = l.began + uint64(len(l.list))*l.step
	}
}

// fold joins each two intervals.
func (l *timeline) fold() {
	for i := range len(l.list) / 2 {
		a, b := l.list[2*i], l.list[2*i+1]
		b.at = a.at
		if a.used > b.used {
			b.used, b.sites = a.used, a.sites
		}
		l.list[i] = b
	}
	l.list = l.list[:len(l.list)/2]
	l.step *= 2
}

func (l *timeline) use(used uint64) {
	if used > l.most {
		l.most = used
		clear(l.since)
	}
}
