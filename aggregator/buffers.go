package aggregator

import (
	"iter"
	"math/bits"
	"math/rand/v2"
)

// buffers are the live buffers of a process by ID, in blocks that never move, with
// an index. A Go map would take twice the memory.
type buffers struct {
	live   int
	blocks []*[blockSize]buffer
	// used is the number of places in use or freed. vacant is a list of the freed
	// ones: the first place plus 1, each place has the next as its id; 0 ends it.
	used, vacant uint32
	// index is a hash table with linear probing, at most three quarters full.
	index []slot
	// seed of the hash, so that a process cannot choose colliding ids.
	seed uint64
}

// blockSize is the number of buffers per block: it fills whole pages.
const blockSize = 512

// slot is a part of an id's hash, and the buffer's place plus 1; place 0 is empty.
type slot struct{ hash, place uint32 }

func newBuffers() buffers { return buffers{index: make([]slot, 16), seed: rand.Uint64()} }

func (s *buffers) at(place uint32) *buffer { return &s.blocks[place/blockSize][place%blockSize] }

// all yields every buffer, in an order that depends only on the events.
func (s *buffers) all() iter.Seq[*buffer] {
	return func(yield func(*buffer) bool) {
		for place := range s.used {
			if b := s.at(place); b.device != nil && !yield(b) {
				return
			}
		}
	}
}

// get returns the buffer with an id, or nil. The buffer stays in place until it is removed.
func (s *buffers) get(id uint64) *buffer {
	b, _ := s.lookup(id)
	return b
}

// lookup returns the buffer with an id and its place, or nil.
func (s *buffers) lookup(id uint64) (b *buffer, place uint32) {
	if found := s.index[s.find(id, s.hash(id))]; found.place != 0 {
		return s.at(found.place - 1), found.place - 1
	}
	return nil, 0
}

// add stores a new buffer, which must have a device.
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

// remove removes a buffer, which must be there.
func (s *buffers) remove(id uint64) {
	gap := s.find(id, s.hash(id))
	place := s.index[gap].place - 1
	// Entries behind the gap move into it, unless that is before their own slot.
	mask := uint32(len(s.index) - 1)
	for next := (gap + 1) & mask; s.index[next].place != 0; next = (next + 1) & mask {
		if (next-s.index[next].hash)&mask >= (next-gap)&mask {
			s.index[gap] = s.index[next]
			gap = next
		}
	}
	s.index[gap] = slot{}
	if s.live--; s.live == 0 && s.used > blockSize {
		*s = newBuffers() // frees the blocks
		return
	}
	*s.at(place) = buffer{id: uint64(s.vacant)}
	s.vacant = place + 1
}

// find returns the index of an id's slot, or of the empty slot where it belongs.
func (s *buffers) find(id uint64, hash uint32) uint32 {
	mask := uint32(len(s.index) - 1)
	for i := hash & mask; ; i = (i + 1) & mask {
		if found := s.index[i]; found.place == 0 || found.hash == hash && s.at(found.place-1).id == id {
			return i
		}
	}
}

// hash xors the halves of the 128-bit product of the seeded id and an odd constant.
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
