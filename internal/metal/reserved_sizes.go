package metal

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math/bits"
	"slices"
	"strings"
	"sync"

	"tt-memtrace/internal/x86eval"
)

// A buffer's size in each bank follows from what the probe of its allocation sees, and from four constant numbers of
// its allocator's memory. The library's own functions compute it.

// Bank has the numbers of an allocator's memory that decide a buffer's size in each bank.
type Bank struct {
	// Banks of that memory, and the alignment of pages, bytes.
	Banks, PageAlignment uint32
	// A list of blocks (FreeListOpt) gives at least MinBlock bytes, and multiples of BlockAlignment.
	MinBlock, BlockAlignment uint64
}

// Shape is everything about a buffer that decides its size in each bank. Buffers with equal Shapes take the same.
type Shape struct {
	Memory, Layout uint32
	Size, PageSize uint64
	// sharded has the bytes of its fields that only sharded buffers need, length of them.
	sharded [maxSharded]byte
	length  uint8
	// ranges is the number of its list of core ranges, 0 if unknown.
	ranges uint32
}

// maxSharded bounds the bytes of a Shape that only sharded buffers need: up to 0.81.1 they are 69.
const maxSharded = 96

// MaxShardedSpan and MaxRanges are TT_SHARDED and TT_SHARDED_RANGES of events.h, bytes.
const (
	MaxShardedSpan = 512
	MaxRanges      = 512
)

// maxRangeLists bounds how many lists of core ranges are distinguished.
const maxRangeLists = 1 << 14

// ReservedSizes computes what buffers take of each bank, for one library.
type ReservedSizes struct {
	mu sync.Mutex
	// MinBlock and BlockAlignment are the offsets of these numbers in a list of blocks, 8 bytes each.
	MinBlock, BlockAlignment uint32
	// Span is how many bytes of a sharded buffer's fields are needed, from their base; 0 if its size is not computed.
	Span uint32
	// Ranges is the offset in the fields of a std::vector of core ranges whose elements are needed too; 0 if there is
	// none.
	Ranges uint32

	image    *x86eval.Image
	names    map[uint64]string
	function uint64
	layout   *Layout
	code     *x86eval.Code
	// sharded are the pieces of the fields that only sharded buffers need, in order. vectors are the offsets of
	// std::vectors of which only the length counts.
	sharded []piece
	vectors []uint32
	// lists are the lists of core ranges, and numbers maps them to their numbers, from 1 on.
	lists   []string
	numbers map[string]uint32
}

// String describes what was found.
func (s *ReservedSizes) String() string {
	return fmt.Sprintf("rounded by what is at %#x and %#x of a list of blocks; of a sharded buffer %v, core ranges at %#x, other vectors at %#x", s.MinBlock, s.BlockAlignment, s.sharded, s.Ranges, s.vectors)
}

// piece is a range of a buffer's fields, bytes from the base.
type piece struct{ from, to uint32 }

// onceReservedSizes finds out once how a library computes reserved sizes.
type onceReservedSizes struct {
	sync.Once
	sizes *ReservedSizes
	err   error
}

// ReservedSizes returns how the library computes a buffer's size in each bank. The error wraps ErrUnsupported if its
// functions do not show that this follows from what a probe sees.
func (l *Library) ReservedSizes() (*ReservedSizes, error) {
	o := &l.reservedSizes
	o.Do(func() {
		if o.sizes, o.err = l.findReservedSizes(); o.err != nil {
			o.err = fmt.Errorf("reserved sizes cannot be computed: %w: %w", o.err, ErrUnsupported)
		}
	})
	return o.sizes, o.err
}

func (l *Library) findReservedSizes() (*ReservedSizes, error) {
	image, err := l.Image()
	if err != nil {
		return nil, err
	}
	function, ok := l.symbols[sizePerBank]
	if !ok {
		return nil, fmt.Errorf("there is no %s", sizePerBank)
	}
	for _, names := range [][]string{NumBanks, BankAlignment, Statistics, {BlockStatistics}} {
		if !slices.ContainsFunc(names, l.Defines) {
			return nil, fmt.Errorf("there is no %s", names[0])
		}
	}
	s := &ReservedSizes{image: image, names: l.functions(), function: function.Value, code: x86eval.NewCode(), numbers: map[string]uint32{}}
	if s.layout, err = l.Layout(); err != nil {
		return nil, err
	}
	if err := l.findRounding(s); err != nil {
		return nil, err
	}
	// For an interleaved buffer it may need only what every record has.
	bank := Bank{Banks: 12, PageAlignment: 64, MinBlock: 64, BlockAlignment: 64}
	for _, m := range []uint32{0, 1} {
		if _, err := s.asked(bank, s.known(&Shape{Memory: m, Size: 0x9000, PageSize: 0x900})); err != nil {
			return nil, err
		}
	}
	s.findSharded()
	return s, nil
}

// findRounding lets the library make a list of blocks and allocate some. The new list shows where its two rounding
// numbers are; changing them shows that they alone decide.
func (l *Library) findRounding(s *ReservedSizes) error {
	const listSize, room, offset, minBlock, alignment = 1024, 1 << 30, 0x11000, 0x3c0, 0x80
	const otherMin, otherAlignment = 0x1a40, 0x400
	const first = 1 // SearchPolicy
	making, giving := l.symbols[makeBlocks], l.symbols[giveBlock]
	if making.Value == 0 || giving.Value == 0 {
		return errors.New("its lists of blocks have no functions that make one and give a block")
	}
	const steps = 2_000_000
	m := x86eval.New(s.image, x86eval.WithSlots(s.image.SlotFunc(x86eval.Libc)), x86eval.WithStepLimit(steps), x86eval.WithCode(s.code))
	list, err := m.Alloc(listSize)
	if err == nil {
		_, err = m.Call(making.Value, list, room, offset, minBlock, alignment, first)
	}
	if err != nil {
		return fmt.Errorf("making a list of blocks: %w", err)
	}
	var atMin, atAlignment []uint32
	for i := range listSize / 8 {
		switch v, err := m.ReadU64(list + 8*uint64(i)); {
		case err != nil:
			return err
		case v == minBlock:
			atMin = append(atMin, uint32(8*i))
		case v == alignment:
			atAlignment = append(atAlignment, uint32(8*i))
		}
	}
	if len(atMin) != 1 || len(atAlignment) != 1 {
		return fmt.Errorf("a list of blocks has the numbers that it rounds by at %#x and %#x", atMin, atAlignment)
	}
	s.MinBlock, s.BlockAlignment = atMin[0], atAlignment[0]
	next := uint64(offset) // blocks are given from the bottom up
	for _, b := range []Bank{{MinBlock: minBlock, BlockAlignment: alignment}, {MinBlock: otherMin, BlockAlignment: otherAlignment}} {
		if err = m.WriteU64(list+uint64(s.MinBlock), b.MinBlock); err == nil {
			err = m.WriteU64(list+uint64(s.BlockAlignment), b.BlockAlignment)
		}
		for _, size := range []uint64{1, b.MinBlock - 1, b.MinBlock, b.MinBlock + 1, 9*b.BlockAlignment - 1, 9 * b.BlockAlignment, 9*b.BlockAlignment + 1, 0x123457} {
			if err != nil {
				return err
			}
			var at uint64
			const bottomUp, limit = 1, 0
			if at, err = m.Call(giving.Value, list, size, bottomUp, limit); err == nil && (m.Regs[x86eval.RDX]&1 == 0 || at != next) {
				err = fmt.Errorf("a list that rounds by %#x and %#x gives %#x bytes at %#x, not %#x", b.MinBlock, b.BlockAlignment, size, at, next)
			}
			next += b.block(size)
		}
	}
	return err
}

// block returns the size of the block that a list of blocks gives for a request.
func (b *Bank) block(size uint64) uint64 {
	size = max(size, b.MinBlock)
	return (size + b.BlockAlignment - 1) &^ (b.BlockAlignment - 1)
}

// Valid reports whether these can be the numbers of a memory.
func (b *Bank) Valid() bool {
	const most = 1 << 32
	pow2 := func(v uint64) bool { return bits.OnesCount64(v) == 1 && v < most }
	return b.Banks > 0 && pow2(uint64(b.PageAlignment)) && pow2(b.BlockAlignment) && b.MinBlock < most
}

// PerBank evaluates a buffer's size in each bank, in bytes.
func (s *ReservedSizes) PerBank(bank Bank, shape *Shape) (uint64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	size, err := s.asked(bank, s.known(shape))
	if err != nil {
		return 0, err
	}
	const most = 1 << 48
	if size >= most {
		return 0, fmt.Errorf("a buffer asks each bank for %#x bytes", size)
	}
	return bank.block(size), nil
}

// Sharded adds to a shape what only sharded buffers need: from Span bytes of the fields, from their base, and from
// the elements of the vector at Ranges.
func (s *ReservedSizes) Sharded(shape *Shape, fields, ranges []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.Span == 0 || len(fields) < int(s.Span) {
		return
	}
	n := 0
	for _, p := range s.sharded {
		n += copy(shape.sharded[n:], fields[p.from:p.to])
	}
	shape.length = uint8(n)
	for _, v := range s.vectors {
		s.move(shape, v, itsElements)
	}
	if s.Ranges > 0 && s.move(shape, s.Ranges, itsRanges) == uint64(len(ranges)) {
		shape.ranges = s.number(ranges)
	}
}

// move sets the beginning of a vector of a shape, and returns the length of its elements in bytes.
func (s *ReservedSizes) move(shape *Shape, vector uint32, to uint64) (length uint64) {
	words := shape.sharded[s.packed(vector):]
	length = binary.LittleEndian.Uint64(words[8:]) - binary.LittleEndian.Uint64(words)
	binary.LittleEndian.PutUint64(words, to)
	binary.LittleEndian.PutUint64(words[8:], to+length)
	return length
}

// number returns the number of a list of core ranges; 0 if there are too many.
func (s *ReservedSizes) number(ranges []byte) uint32 {
	n, known := s.numbers[string(ranges)]
	if !known && len(s.lists) < maxRangeLists {
		s.lists = append(s.lists, string(ranges))
		n = uint32(len(s.lists))
		s.numbers[string(ranges)] = n
	}
	return n
}

// packed returns where a Shape has the byte at an offset of the fields, which is in one of the pieces.
func (s *ReservedSizes) packed(offset uint32) (at uint32) {
	for _, p := range s.sharded {
		if offset < p.to {
			return at + offset - p.from
		}
		at += p.to - p.from
	}
	return at
}

// known returns the fields of a buffer that its shape has.
func (s *ReservedSizes) known(shape *Shape) *knownFields {
	k := &knownFields{of: s}
	k.put(s.layout.Offset("type"), binary.LittleEndian.AppendUint32(nil, shape.Memory))
	k.put(s.layout.Offset("layout"), binary.LittleEndian.AppendUint32(nil, shape.Layout))
	k.put(s.layout.Offset("size"), binary.LittleEndian.AppendUint64(nil, shape.Size))
	k.put(s.layout.Offset("page_size"), binary.LittleEndian.AppendUint64(nil, shape.PageSize))
	k.put(s.layout.Offset("allocator"), binary.LittleEndian.AppendUint64(nil, itsAllocator))
	if shape.length > 0 {
		at := uint32(0)
		for _, p := range s.sharded {
			k.put(p.from, shape.sharded[at:at+p.to-p.from])
			at += p.to - p.from
		}
	}
	if shape.ranges > 0 {
		list := s.lists[shape.ranges-1]
		k.elements = func(p []byte, offset uint64) bool {
			return offset <= uint64(len(list)) && copy(p, list[offset:]) == len(p)
		}
	}
	return k
}

// Addresses of the symbolic objects. Elements of vectors cannot be read, except core ranges.
const (
	itsBuffer    = 0x5b00_0000_0000
	itsFields    = 0x5b00_0010_0000
	itsAllocator = 0x5b00_0020_0000
	itsElements  = 0x5b00_0030_0000
	itsRanges    = 0x5b00_0040_0000
	itsEnd       = 0x5b00_0050_0000
)

// knownFields is the memory of a Buffer of which some bytes are known. Reading others is an error.
type knownFields struct {
	of    *ReservedSizes
	bytes [MaxShardedSpan]byte
	known [MaxShardedSpan]bool
	// unknown, if not nil, makes up bytes that are not known, and returns them.
	unknown func(offset uint32, size int) []byte
	// elements, if not nil, reads core ranges, or fails.
	elements func(p []byte, offset uint64) bool
}

func (k *knownFields) put(offset uint32, b []byte) {
	copy(k.bytes[offset:], b)
	for i := range b {
		k.known[int(offset)+i] = true
	}
}

// ReadAt reads the fields, or the library.
func (k *knownFields) ReadAt(p []byte, address uint64) error {
	layout := k.of.layout
	if layout.Indirect && address == itsBuffer+uint64(layout.Base) && len(p) == 8 {
		binary.LittleEndian.PutUint64(p, itsFields)
		return nil
	}
	if k.of.image.Contains(address) {
		return k.of.image.ReadAt(p, address)
	}
	if k.elements != nil && address >= itsRanges && address < itsEnd && k.elements(p, address-itsRanges) {
		return nil
	}
	base := uint64(itsBuffer) + uint64(layout.Base)
	if layout.Indirect {
		base = itsFields
	}
	offset := address - base
	if address < base || offset+uint64(len(p)) > uint64(len(k.bytes)) {
		return fmt.Errorf("it reads %d bytes at %#x", len(p), address)
	}
	if slices.Contains(k.known[offset:offset+uint64(len(p))], false) {
		if k.unknown == nil {
			return fmt.Errorf("it reads %d bytes at %#x of a buffer's fields", len(p), offset)
		}
		copy(p, k.unknown(uint32(offset), len(p)))
		return nil
	}
	copy(p, k.bytes[offset:])
	return nil
}

// asked evaluates how much a buffer requests from each bank.
func (s *ReservedSizes) asked(bank Bank, fields *knownFields) (uint64, error) {
	memory := binary.LittleEndian.Uint32(fields.bytes[s.layout.Offset("type"):])
	hook := func(name string) x86eval.Hook {
		name = strings.TrimSuffix(name, "$plt")
		switch {
		case slices.Contains(NumBanks, name): // of a const BufferType&
			return func(m *x86eval.Machine) error {
				if of, err := m.ReadU32(m.Arg(1)); err != nil || of != memory || m.Arg(0) != itsAllocator {
					return fmt.Errorf("it asks for the banks of memory %d of %#x: %w", of, m.Arg(0), errors.Join(err, ErrUnsupported))
				}
				m.Regs[x86eval.RAX] = uint64(bank.Banks)
				return nil
			}
		case slices.Contains(BankAlignment, name): // of a BufferType
			return func(m *x86eval.Machine) error {
				if uint32(m.Arg(1)) != memory || m.Arg(0) != itsAllocator {
					return fmt.Errorf("it asks for the alignment of memory %d of %#x: %w", uint32(m.Arg(1)), m.Arg(0), ErrUnsupported)
				}
				m.Regs[x86eval.RAX] = uint64(bank.PageAlignment)
				return nil
			}
		}
		return nil
	}
	const steps = 2000
	slots := s.image.Slots()
	m := x86eval.New(fields, x86eval.WithCode(s.code), x86eval.WithStepLimit(steps), x86eval.WithResolver(func(address uint64) (x86eval.Hook, bool) {
		h := hook(s.names[address])
		return h, h != nil
	}), x86eval.WithSlots(func(slot uint64) (uint64, x86eval.Hook, bool) {
		if h := hook(slots[slot]); h != nil {
			return 0, h, true
		}
		return s.image.SlotFunc(x86eval.Libc)(slot)
	}))
	v, err := m.Call(s.function, itsBuffer)
	if err != nil {
		return 0, fmt.Errorf("evaluating %s: %w", sizePerBank, err)
	}
	return v, nil
}

// findSharded finds out what the size of sharded buffers is computed from, by evaluating the computation over made-up
// fields: single bytes say whether an optional part is there. If it needs more than fields and core ranges, sharded
// sizes are not computed.
func (s *ReservedSizes) findSharded() {
	const most = 64
	var todo, computed []*madeUp
	const firstSharded, lastLayout = 2, 5
	for l := uint32(firstSharded); l <= lastLayout; l++ {
		todo = append(todo, &madeUp{layout: l, flags: map[uint32]byte{}, word: vectorWord})
	}
	var pieces []piece
	var lists []uint32
	for n := 0; len(todo) > 0; n++ {
		if n == most {
			return
		}
		c := todo[0]
		todo = todo[1:]
		_, err := s.over(c)
		if i := slices.IndexFunc(c.read, func(p piece) bool { _, chosen := c.flags[p.from]; return p.to == p.from+1 && !chosen }); i >= 0 {
			for b := range byte(2) {
				flags := maps.Clone(c.flags)
				flags[c.read[i].from] = b
				todo = append(todo, &madeUp{layout: c.layout, flags: flags, word: vectorWord})
			}
		} else if err == nil && !slices.ContainsFunc(computed, func(o *madeUp) bool { return maps.Equal(o.flags, c.flags) && slices.Equal(o.read, c.read) }) {
			computed, pieces, lists = append(computed, c), append(pieces, c.read...), append(lists, c.lists...)
		}
	}
	pieces = joined(pieces)
	length := uint32(0)
	for _, p := range pieces {
		length += p.to - p.from
	}
	slices.Sort(lists)
	if lists = slices.Compact(lists); length == 0 || length > maxSharded || len(lists) > 1 {
		return
	}
	for _, p := range pieces {
		for at := (p.from + 7) &^ 7; at+16 <= p.to; at += 8 {
			switch only, matters := s.onlyLength(at, computed); {
			case only && slices.Contains(lists, at):
				s.Ranges = at
			case only && matters:
				s.vectors = append(s.vectors, at)
			}
		}
	}
	if len(lists) > 0 && s.Ranges == 0 {
		return
	}
	s.sharded, s.Span = pieces, pieces[len(pieces)-1].to
}

// madeUp are the made-up fields of a sharded buffer.
type madeUp struct {
	layout uint32
	// flags are the single bytes, and word makes up 8 bytes.
	flags map[uint32]byte
	word  func(offset uint32) uint64
	// read are the made-up pieces that were read, including elements of vectors of ranges.
	read  []piece
	lists []uint32
}

// vectorWord makes any two successive words a vector of vectorBytes.
func vectorWord(offset uint32) uint64 { return itsRanges + vectorBytes/8*uint64(offset) }

const vectorBytes = 256

// over evaluates how much a made-up buffer requests from each bank.
func (s *ReservedSizes) over(c *madeUp) (uint64, error) {
	fields := s.known(&Shape{Memory: 1, Layout: c.layout, Size: 0x9000, PageSize: 0x900})
	fields.unknown = func(offset uint32, size int) (b []byte) {
		c.read = append(c.read, piece{offset, offset + uint32(size)})
		for i := 0; i < size; i += 8 {
			switch size {
			case 1:
				b = append(b, c.flags[offset])
			case 4:
				b = binary.LittleEndian.AppendUint32(b, 2)
			default:
				b = binary.LittleEndian.AppendUint64(b, c.word(offset+uint32(i)))
			}
		}
		return b
	}
	fields.elements = func(p []byte, offset uint64) bool {
		c.lists = append(c.lists, uint32(offset/vectorBytes*8))
		for i := range p {
			p[i] = 0
			if at := (offset + uint64(i)) % rangeBytes; at >= rangeBytes/2 && at%8 == 0 {
				p[i] = 1 // from 0, 0 to 1, 1
			}
		}
		return true
	}
	bank := Bank{Banks: 12, PageAlignment: 64, MinBlock: 64, BlockAlignment: 64}
	return s.asked(bank, fields)
}

// rangeBytes is the size of a CoreRange.
const rangeBytes = 32

// onlyLength reports whether two words are a vector of which only the length matters: then moving both by the same
// distance changes nothing. matters reports whether it matters at all: moving only the second word changes something.
func (s *ReservedSizes) onlyLength(at uint32, computed []*madeUp) (only, matters bool) {
	for _, c := range computed {
		for _, bytes := range []uint64{rangeBytes, 3 * rangeBytes, vectorBytes} {
			failed := false
			with := func(begin, end uint64) uint64 {
				v, err := s.over(&madeUp{layout: c.layout, flags: c.flags, word: func(offset uint32) uint64 {
					switch offset {
					case at:
						return begin
					case at + 8:
						return end
					}
					return vectorWord(offset)
				}})
				failed = failed || err != nil
				return v
			}
			const here, there = itsRanges, itsRanges + 0x12300
			is := with(here, here+bytes)
			if is != with(there, there+bytes) || failed {
				return false, false
			}
			matters = matters || is != with(here, here+2*bytes)
		}
	}
	return true, matters
}

// joined sorts pieces and joins those that touch.
func joined(pieces []piece) (list []piece) {
	slices.SortFunc(pieces, func(a, b piece) int { return int(a.from) - int(b.from) })
	for _, p := range pieces {
		if n := len(list); n > 0 && p.from <= list[n-1].to {
			list[n-1].to = max(list[n-1].to, p.to)
		} else {
			list = append(list, p)
		}
	}
	return list
}
