package memory

import (
	"tt-memtrace/internal/proc"
)

// The chunks of a heap can only be followed one by one, and a large heap has tens of thousands. So the heap is
// divided for several searchers: a part begins where several chunks seem to follow each other, and its result counts
// only if the part before it ends exactly there.

// heapParts are the parts of the process's heap.
type heapParts struct {
	region proc.Region
	list   []heapPart
}

// heapPart is the part that one searcher searches.
type heapPart struct {
	// start is its first chunk. The part should lead to the start of the next one.
	start uint64
	// reached and whole are the results of search.chunks.
	reached uint64
	whole   bool
	finds
}

const (
	// heapPartBytes is the least size of a part, maxHeapParts the largest number of parts.
	heapPartBytes = 16 << 20
	maxHeapParts  = 32
	// startBytes is how far to look for the beginning of a part. There, startChunks chunks must follow each other.
	startBytes  = 256 << 10
	startChunks = 16
)

// divide divides the heap into parts of at least this many bytes.
func (s *search) divide(r proc.Region, bytes uint64) *heapParts {
	parts := &heapParts{region: r, list: []heapPart{{start: r.Start}}}
	s.in(r)
	n := min((r.End-r.Start)/bytes, maxHeapParts)
	for i := uint64(1); i < n; i++ {
		at := (r.Start + (r.End-r.Start)/n*i) &^ 15
		if start := s.someChunk(at, r.End); start > parts.list[len(parts.list)-1].start {
			parts.list = append(parts.list, heapPart{start: start})
		}
	}
	return parts
}

// until returns where a part should lead.
func (p *heapParts) until(i int) uint64 {
	if i+1 < len(p.list) {
		return p.list[i+1].start
	}
	return p.region.End
}

// someChunk finds a chunk behind an address, or returns 0.
func (s *search) someChunk(from, end uint64) uint64 {
	for at := from; at < min(from+startBytes, end-4*chunkHeader) && !s.overdue(); {
		words := s.load(at, chunkHeader)
		if len(words) < 2 {
			return 0 // an array that was never touched
		}
		// The size rules out nearly all words.
		i := 0
		for i+1 < len(words) && words[i+1]-leastChunk >= arenaBytes {
			i += 2
		}
		if i > 0 {
			at += 8 * uint64(i)
			continue
		}
		if size := chunkSize(at, end, words[1], 0); size != 0 && size < arenaBytes && s.follow(at, end) {
			return at
		}
		at += 16
	}
	return 0
}

// follow reports whether several chunks follow each other from an address on, the first of them behind a chunk in
// use.
func (s *search) follow(at, end uint64) bool {
	size := uint64(0)
	for n := range startChunks {
		if end-at < 4*chunkHeader {
			return n > 1
		}
		words := s.load(at, chunkHeader)
		if len(words) < 2 || words[1]&previousInUse == 0 && (n == 0 || words[0] != size) {
			return false
		}
		if size = chunkSize(at, end, words[1], 0); size == 0 {
			return false
		}
		at += size
	}
	return true
}

// heapPart searches one part.
func (s *search) heapPart(parts *heapParts, i int) {
	p := &parts.list[i]
	others := s.finds
	s.finds = finds{objects: Objects{}}
	s.in(parts.region)
	p.reached, p.whole = s.chunks(p.start, parts.until(i), parts.region.End, 0)
	p.finds, s.finds = s.finds, others
}

// join merges the results of parts that lead to each other, and searches the rest of the heap again.
func (s *search) join(parts *heapParts) {
	s.in(parts.region)
	at, whole := parts.region.Start, true
	for i := range parts.list {
		p := &parts.list[i]
		switch {
		case s.late, whole && p.start == at:
			s.take(p.finds)
			at, whole = p.reached, p.whole
		case whole && at < parts.until(i):
			// The previous part leads past this one's start, which is no chunk, or not any more.
			at, whole = s.chunks(at, parts.until(i), parts.region.End, 0)
		}
	}
	if !whole && !s.late {
		s.forget()
		s.all(at, parts.region.End)
	}
}
