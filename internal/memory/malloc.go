package memory

import "tt-memtrace/internal/proc"

// glibc's malloc keeps the size of each chunk in the word before it. An object of the runtime lies at the beginning
// of a chunk of its own, so of a large chunk (an array) only the head is read. Memory without this structure, such as
// another allocator's, is read whole.
const (
	chunkHeader = 16
	leastChunk  = 32

	previousInUse = 1 << 0 // if clear, the first word is the size of the chunk before
	ownMapping    = 1 << 1
	otherArena    = 1 << 2
	chunkFlags    = previousInUse | ownMapping | otherArena

	// arenaBytes is the alignment of an arena's heap, and its largest size.
	arenaBytes = 64 << 20
	// mappedChunk is the least size of a chunk with its own mapping that is skipped: malloc's default mmap threshold.
	mappedChunk = 128 << 10
	// longChunk is the least size of any other chunk that is skipped except for its first chunkHead bytes.
	longChunk = 1 << 10
	chunkHead = 512
)

// mappedChunkEnd returns the end of a chunk that has its own mapping, or 0. zero and size are the first two words of
// the page at the address.
func mappedChunkEnd(at, end, zero, size uint64) uint64 {
	if n := size &^ chunkFlags; zero == 0 && size&chunkFlags == ownMapping && n >= mappedChunk && n%proc.PageBytes == 0 && n <= end-at {
		return at + n
	}
	return 0
}

// arenaEnds returns, from the first words of a page, the end of the chunks in an arena's heap and the end of its
// accessible memory; 0 if it is no such heap.
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

// chunkSize returns the size in a chunk's header; 0 if it is implausible.
func chunkSize(at, end, header, flag uint64) uint64 {
	size := header &^ chunkFlags
	if header&(ownMapping|otherArena) != flag || size < leastChunk || size%16 != 0 || size > end-at {
		return 0
	}
	return size
}

// chunks searches a heap chunk by chunk, from first until a chunk is at or behind until, or the heap ends; it returns
// where that is. whole is false if the chunks do not follow each other so far; then what lies behind reached must be
// searched whole.
func (s *search) chunks(first, until, end, flag uint64) (reached uint64, whole bool) {
	// The process keeps running: a chunk that was just merged with its neighbour leads astray, so it is read again.
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
			// A heap that is followed by another one ends with two empty headers.
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

// firstChunk finds the first chunk of an arena's heap, behind the heap's description, whose size depends on the
// release of glibc.
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
