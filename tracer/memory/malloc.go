package memory

import "tt-memtrace/tracer/proc"

// The C library's malloc (glibc) keeps with each piece of memory how large it is, in
// the word before it. An object of the runtime has a piece of its own, at whose
// beginning it lies, so that of a large piece, an array, the rest is not read. What does
// not have these shapes, such as another allocator's memory, is read whole.
const (
	chunkHeader = 16
	leastChunk  = 32

	previousInUse = 1 << 0 // else the first word is the size of the chunk before
	ownMapping    = 1 << 1
	otherArena    = 1 << 2
	chunkFlags    = previousInUse | ownMapping | otherArena

	// arenaBytes is the alignment of the heap of an arena, and its greatest size.
	arenaBytes = 64 << 20
	// mappedChunk is the least size of a chunk in a mapping of its own that is passed
	// over: what malloc's threshold is by default.
	mappedChunk = 128 << 10
	// longChunk is the least size of another chunk that is passed over, but for its head.
	longChunk = 1 << 10
	chunkHead = 512
)

// mappedChunkEnd is the end of a chunk that has a mapping of its own, or 0. First are the first
// two words of a page at an address.
func mappedChunkEnd(at, end, zero, size uint64) uint64 {
	if n := size &^ chunkFlags; zero == 0 && size&chunkFlags == ownMapping && n >= mappedChunk && n%proc.PageBytes == 0 && n <= end-at {
		return at + n
	}
	return 0
}

// arenaEnds are the end of the chunks in a heap of an arena, and of what it has made
// accessible, by the first words of a page at an address; 0 where it is not one.
func arenaEnds(at, end uint64, words []uint64) (chunks, accessible uint64) {
	if at%arenaBytes != 0 || len(words) < 4 {
		return 0, 0
	}
	state, previous, size, writable := words[0], words[1], words[2], words[3]
	if state%16 != 0 || state == 0 || previous%arenaBytes != 0 || size < proc.PageBytes || size > writable ||
		writable > arenaBytes || writable%proc.PageBytes != 0 || size > end-at {
		return 0, 0
	}
	return at + size, at + min(writable, end-at)
}

// chunkSize is what a chunk's header says that its size is; 0 where it makes no sense.
func chunkSize(at, end, header, flag uint64) uint64 {
	size := header &^ chunkFlags
	if header&(ownMapping|otherArena) != flag || size < leastChunk || size%16 != 0 || size > end-at {
		return 0
	}
	return size
}

// chunks searches a heap, which has an end, by its chunks, from one of them on, and until one is at an address or
// behind it, or the heap ends: reached is where that is. It is false where they do not follow each other so far: then
// what lies behind reached is to be searched whole.
func (s *search) chunks(first, until, end, flag uint64) (reached uint64, whole bool) {
	// The process runs on: a chunk that was just joined with the next one leads astray,
	// and is read again.
	const tries, back = 3, 16
	var last [back]uint64
	verified := first
	for range tries {
		s.forget()
		for i := range last {
			last[i] = verified
		}
		at, before, size := verified, uint64(0), uint64(0)
		for n := 0; ; n++ {
			// What ends a heap: two headers of nothing, where another one follows.
			if end-at < 4*chunkHeader {
				return end, true
			}
			if at >= until {
				return at, true
			}
			words := s.load(at, chunkHeader)
			if len(words) < 2 || size > 0 && words[1]&previousInUse == 0 && words[0] != size {
				break
			}
			before, size = at, chunkSize(at, end, words[1], flag)
			if size == 0 {
				break
			}
			part := size
			if size >= longChunk {
				part = chunkHead
			}
			s.load(at, part)
			s.look(at, at+part)
			if s.overdue() {
				return before, false
			}
			verified = last[n%back]
			last[n%back] = at
			at += size
		}
	}
	return verified, false
}

// firstChunk finds where the chunks of an arena's heap begin: behind what describes it,
// of which releases of the C library differ.
func (s *search) firstChunk(heap, end uint64) uint64 {
	words := s.load(heap, proc.PageBytes)
	for i := 4; i+2 <= len(words); i += 2 {
		at, steps := heap+8*uint64(i), 0
		for ; steps < 4 && end-at >= 4*chunkHeader; steps++ {
			w := s.load(at, chunkHeader)
			size := uint64(0)
			if len(w) >= 2 {
				size = chunkSize(at, end, w[1], otherArena)
			}
			if size == 0 || steps == 0 && w[1]&previousInUse == 0 {
				break
			}
			at += size
		}
		if steps == 4 || steps > 0 && end-at < 4*chunkHeader {
			return heap + 8*uint64(i)
		}
		words = s.load(heap, proc.PageBytes)
	}
	return 0
}
