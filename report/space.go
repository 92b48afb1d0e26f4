package report

import (
	"cmp"
	"slices"

	"tt-memtrace/aggregator"
)

// block is a piece of each bank of a memory that a buffer took.
type block struct{ start, end uint64 }

// space is what is taken of one memory of one chip, and how that went.
type space struct {
	chip   aggregator.Chip
	memory aggregator.Memory
	banks  aggregator.Banks
	used   tally
	bySite map[*site]tally
	// peak is the most so far. What stood then is kept when something goes for the first time after.
	peak    tally
	peakAt  uint64
	holders map[*site]tally
	fresh   bool

	// blocks by address; nil from when there were too many. blurred: of some buffer
	// it is not known what it took.
	blocks        []block
	many, blurred bool
	// low and high are the lowest and the highest address of any block so far.
	low, high uint64

	line       timeline
	fragmented *pieces
}

// pieces is how much of a bank is free, and the largest piece of it.
type pieces struct{ at, free, largest uint64 }

const maxBlocks = 50_000

func (s *space) add(at uint64, st *site, bytes uint64, b block) {
	s.line.before(at, s)
	s.used.add(bytes)
	t := s.bySite[st]
	t.add(bytes)
	s.bySite[st] = t
	if s.used.bytes > s.peak.bytes {
		s.peak, s.peakAt, s.fresh = s.used, at, true
	}
	s.line.use(s.used.bytes)
	if b.end == b.start {
		s.blurred = s.blurred || bytes > 0
		return
	}
	if len(s.blocks) >= maxBlocks {
		s.many, s.blocks = true, nil
	}
	if !s.many {
		i, _ := slices.BinarySearchFunc(s.blocks, b, compareBlocks)
		s.blocks = slices.Insert(s.blocks, i, b)
	}
	if s.high == 0 || b.start < s.low {
		s.low = b.start
	}
	s.high = max(s.high, b.end)
}

func (s *space) sub(at uint64, st *site, bytes uint64, b block) {
	s.line.before(at, s)
	s.capture()
	s.used.sub(bytes)
	t := s.bySite[st]
	if t.sub(bytes); t.buffers == 0 {
		delete(s.bySite, st)
	} else {
		s.bySite[st] = t
	}
	if i, ok := slices.BinarySearchFunc(s.blocks, b, compareBlocks); ok {
		s.blocks = slices.Delete(s.blocks, i, i+1)
	}
}

// capture keeps who holds the memory, if that is the most so far.
func (s *space) capture() {
	if !s.fresh {
		return
	}
	s.fresh = false
	s.holders = map[*site]tally{}
	for st, t := range s.bySite {
		s.holders[st] = t
	}
}

func compareBlocks(x, y block) int {
	return cmp.Or(cmp.Compare(x.start, y.start), cmp.Compare(x.end, y.end))
}

// base is where a bank begins. It is not told, but DRAM, of which TRACE is a part, is handed
// out from its beginning up and L1 from its end down, so the first buffers show it.
func (s *space) base() uint64 {
	if down := s.memory == aggregator.L1 || s.memory == aggregator.L1Small; down && s.high >= s.banks.Bytes && s.high-s.banks.Bytes <= s.low {
		return s.high - s.banks.Bytes
	}
	return s.low
}

// free is how much of a bank is free, and the largest piece, if that can be told.
func (s *space) free() (p pieces, ok bool) {
	if !s.banks.Known || s.banks.Count == 0 || s.many || s.blurred {
		return p, false
	}
	if s.high == 0 { // nothing was here yet
		return pieces{free: s.banks.Bytes, largest: s.banks.Bytes}, s.used.buffers == 0
	}
	at := s.base()
	end := at + s.banks.Bytes
	for _, b := range s.blocks {
		if b.start > at {
			p.free += b.start - at
			p.largest = max(p.largest, b.start-at)
		}
		at = max(at, b.end) // submeshes have allocators of their own: blocks can overlap
	}
	if end > at {
		p.free += end - at
		p.largest = max(p.largest, end-at)
	}
	return p, true
}

// points is how long a timeline is at the most.
const points = 400

// timeline keeps a row of equal pieces of time, which become longer as time goes on.
type timeline struct {
	began, step uint64
	list        []sample
	// most is the most taken in the piece that goes on.
	most uint64
}

type sample struct {
	at, used      uint64
	free, largest uint64
	known         bool
}

// before ends the pieces that lie before a change.
func (l *timeline) before(at uint64, s *space) {
	if l.step == 0 {
		l.began, l.step = at, 1e6
	}
	start := l.began + uint64(len(l.list))*l.step
	if at < start+l.step || at >= 1<<62 { // no time of day is that late
		return
	}
	p, ok := s.free()
	if ok && (s.fragmented == nil || p.free-p.largest > s.fragmented.free-s.fragmented.largest) {
		p.at = start + l.step
		s.fragmented = &p
	}
	for at >= start+l.step {
		l.list = append(l.list, sample{start, l.most, p.free, p.largest, ok})
		l.most = s.used.bytes // what it was up to the change
		if len(l.list) == points {
			l.fold()
			// Far away, pieces are made longer at once rather than made one by one.
		}
		start = l.began + uint64(len(l.list))*l.step
	}
}

// fold makes each two pieces one.
func (l *timeline) fold() {
	for i := range len(l.list) / 2 {
		a, b := l.list[2*i], l.list[2*i+1]
		b.at, b.used = a.at, max(a.used, b.used)
		l.list[i] = b
	}
	l.list = l.list[:len(l.list)/2]
	l.step *= 2
}

func (l *timeline) use(used uint64) { l.most = max(l.most, used) }
