package aggregator

import (
	"iter"
	"math/bits"
	"math/rand/v2"
)

// buffers are the live buffers of a process, by their ids. They lie in blocks and
// stay where they are; an index finds them. A map of Go's would take twice the
// memory.
type buffers struct {
	live   int
	blocks []*[blockSize]buffer
	// vacant are the places below used that were given up: the first one, each of
	// them has the next as its id, plus 1, so that 0 ends the list.
	used, vacant uint32
	// index is a hash table with linear probing, at most three quarters full.
	index []slot
	// seed, so that no process can choose ids that collide.
	seed uint64
}

// blockSize is how many buffers memory is taken for at once: whole pages, which Go
// hands out without a rest.
const blockSize = 512

// slot names a buffer by a part of its id's hash and by its place, plus 1, so that
// 0 is none.
type slot struct{ hash, place uint32 }

func newBuffers() buffers { return buffers{index: make([]slot, 16), seed: rand.Uint64()} }

func (s *buffers) at(place uint32) *buffer { return &s.blocks[place/blockSize][place%blockSize] }

// all yields every buffer, in an order that the events alone decide.
func (s *buffers) all() iter.Seq[*buffer] {
	return func(yield func(*buffer) bool) {
		for place := range s.used {
			if b := s.at(place); b.device != nil && !yield(b) {
				return
			}
		}
	}
}

// get is the buffer of an id, or nil. It stays in its place until it is removed.
func (s *buffers) get(id uint64) *buffer {
	if found := s.index[s.find(id, s.hash(id))]; found.place != 0 {
		return s.at(found.place - 1)
	}
	return nil
}

// add takes in a buffer, which has a device, and whose id is not there.
func (s *buffers) add(b *buffer) *buffer {
	if 4*(s.live+1) > 3*len(s.index) {
		s.grow()
	}
	place := s.used
	switch {
	case s.vacant != 0:
		place = s.vacant - 1
		s.vacant = uint32(s.at(place).id)
	case int(s.used) == len(s.blocks)*blockSize:
		s.blocks = append(s.blocks, new([blockSize]buffer))
		fallthrough
	default:
		s.used++
	}
	s.live++
	hash := s.hash(b.id)
	s.index[s.find(b.id, hash)] = slot{hash, place + 1}
	at := s.at(place)
	*at = *b
	return at
}

// remove takes out a buffer that is there.
func (s *buffers) remove(id uint64) {
	gap := s.find(id, s.hash(id))
	place := s.index[gap].place - 1
	// What was pushed beyond the gap moves up, unless it would stand before its own place.
	mask := uint32(len(s.index) - 1)
	for next := (gap + 1) & mask; s.index[next].place != 0; next = (next + 1) & mask {
		if (next-s.index[next].hash)&mask >= (next-gap)&mask {
			s.index[gap] = s.index[next]
			gap = next
		}
	}
	s.index[gap] = slot{}
	if s.live--; s.live == 0 && s.used > blockSize {
		*s = newBuffers() // the memory of many is given back
		return
	}
	*s.at(place) = buffer{id: uint64(s.vacant)}
	s.vacant = place + 1
}

// find is where in the index an id is, or where it belongs.
func (s *buffers) find(id uint64, hash uint32) uint32 {
	mask := uint32(len(s.index) - 1)
	for i := hash & mask; ; i = (i + 1) & mask {
		if found := s.index[i]; found.place == 0 || found.hash == hash && s.at(found.place-1).id == id {
			return i
		}
	}
}

// hash mixes the bits of an id: the two halves of a product with an odd number.
func (s *buffers) hash(id uint64) uint32 {
	high, low := bits.Mul64(id^s.seed, 0x9e37_79b9_7f4a_7c15)
	return uint32(high ^ low)
}

func (s *buffers) grow() {
	old := s.index
	s.index = make([]slot, 2*len(old))
	mask := uint32(len(s.index) - 1)
	for _, one := range old {
		if one.place == 0 {
			continue
		}
		i := one.hash & mask
		for s.index[i].place != 0 {
			i = (i + 1) & mask
		}
		s.index[i] = one
	}
}
