package symbol

import (
	"debug/elf"
	"encoding/binary"
	"sort"
)

// DWARF numbers of registers on x86-64.
const (
	regBX = 3
	regBP = 6
	regSP = 7
	regRA = 16
)

// recovered is how the caller's value of a register is found.
type recovered struct {
	kind   byte  // 0: unchanged; 'o': stored at the canonical frame address (CFA) + offset; '?': unknown
	offset int64 // bytes
}

// rule is how to get from a frame to its caller's.
type rule struct {
	// The CFA is the value of a register plus an offset in bytes.
	register uint64
	offset   int64
	saved    [17]recovered // by register
	// plt means the frame of a linkage stub (PLT), whose size depends on the address.
	plt bool
	// last means that there is no caller.
	last bool
}

// at returns the register with a DWARF number; nil if it is not followed.
func (r *Registers) at(n uint64) *uint64 {
	switch n {
	case regBX:
		return &r.BX
	case regBP:
		return &r.BP
	case regSP:
		return &r.SP
	case 12:
		return &r.R12
	case 13:
		return &r.R13
	case 14:
		return &r.R14
	case 15:
		return &r.R15
	}
	return nil
}

// apply returns the caller's registers; false if one cannot be found. word reads the stack.
func (u *rule) apply(r Registers, word func(uint64) (uint64, bool)) (Registers, bool) {
	base := r.at(u.register)
	if base == nil {
		return r, false
	}
	cfa := *base + uint64(u.offset)
	if u.plt {
		cfa = r.SP + 8
		if r.IP&15 >= 11 {
			cfa += 8
		}
	}
	next := r
	for _, n := range []uint64{regBX, regBP, 12, 13, 14, 15} {
		switch s := u.saved[n]; s.kind {
		case 'o':
			v, ok := word(cfa + uint64(s.offset))
			if !ok {
				return r, false
			}
			*next.at(n) = v
		case '?':
			*next.at(n) = 0
		}
	}
	ra := u.saved[regRA]
	if ra.kind != 'o' {
		return r, false
	}
	ip, ok := word(cfa + uint64(ra.offset))
	next.IP, next.SP = ip, cfa
	return next, ok
}

// unwinder reads a file's unwind table (.eh_frame) through its index (.eh_frame_hdr).
type unwinder struct {
	frames  *elf.Section
	index   []byte // pairs of int32: the addresses of a function and of its entry, relative to base
	base    uint64
	entries int
}

// newUnwinder returns nil if the file has no unwind table with an index of the usual form.
func newUnwinder(e *elf.File) *unwinder {
	hdr, frames := e.Section(".eh_frame_hdr"), e.Section(".eh_frame")
	if hdr == nil || frames == nil || frames.ReaderAt == nil || hdr.ReaderAt == nil || hdr.Size < 12 || hdr.Size > maxIndex {
		return nil
	}
	b, err := hdr.Data()
	// All linkers write this form: version 1, a 4-byte pointer relative to its place, a 4-byte count, and a table of 4-byte
	// addresses relative to the section.
	if err != nil || len(b) < 12 || b[0] != 1 || b[1] != 0x1b || b[2] != 0x03 || b[3] != 0x3b {
		return nil
	}
	n := min(int(binary.LittleEndian.Uint32(b[8:])), (len(b)-12)/8)
	return &unwinder{frames: frames, index: b[12 : 12+8*n], base: hdr.Addr, entries: n}
}

// function returns the address of the function of index entry i.
func (u *unwinder) function(i int) uint64 {
	return u.base + uint64(int64(int32(binary.LittleEndian.Uint32(u.index[8*i:]))))
}

// rule returns how to unwind from a virtual address of the file; false if its table does not say.
func (f *file) rule(address uint64) (rule, bool) {
	if !f.hasTables {
		f.hasTables = true
		if f.unwinder = newUnwinder(f.elf); f.unwinder != nil {
			*f.parsed += uint64(len(f.unwinder.index))
		}
	}
	u := f.unwinder
	if u == nil {
		return rule{}, false
	}
	i := sort.Search(u.entries, func(i int) bool { return u.function(i) > address }) - 1
	if i < 0 {
		return rule{}, false
	}
	at := u.base + uint64(int64(int32(binary.LittleEndian.Uint32(u.index[8*i+4:]))))
	entry, ok := u.entry(at)
	if !ok {
		return rule{}, false
	}
	back := uint64(binary.LittleEndian.Uint32(entry)) // the distance back to its CIE
	common, ok := u.entry(at + 4 - back)
	if !ok || len(entry) < 12 {
		return rule{}, false
	}
	c, ok := parseCommon(common)
	if !ok {
		return rule{}, false
	}
	return c.run(entry, at+4, address)
}

// maxEntry is the longest entry that is read, bytes.
const maxEntry = 1 << 16

// entry returns the entry (CIE or FDE) at an address, without its length.
func (u *unwinder) entry(at uint64) ([]byte, bool) {
	var head [4]byte
	if at < u.frames.Addr || at-u.frames.Addr > u.frames.Size {
		return nil, false
	}
	off := int64(at - u.frames.Addr)
	if _, err := u.frames.ReadAt(head[:], off); err != nil {
		return nil, false
	}
	n := binary.LittleEndian.Uint32(head[:])
	if n < 4 || n > maxEntry {
		return nil, false
	}
	b := make([]byte, n)
	if _, err := u.frames.ReadAt(b, off+4); err != nil {
		return nil, false
	}
	return b, true
}

// common is a CIE: what several entries of functions (FDE) share.
type common struct {
	codeAlign    uint64
	dataAlign    int64
	pointers     byte // the encoding of addresses
	augmented    bool
	instructions []byte
}

// reader reads numbers from bytes. It sets bad, and returns 0, if there are too few.
type reader struct {
	b   []byte
	bad bool
}

func (r *reader) byte() byte {
	if len(r.b) == 0 {
		r.bad = true
		return 0
	}
	v := r.b[0]
	r.b = r.b[1:]
	return v
}

func (r *reader) skip(n uint64) []byte {
	if n > uint64(len(r.b)) {
		r.bad, r.b = true, nil
		return nil
	}
	v := r.b[:n]
	r.b = r.b[n:]
	return v
}

func (r *reader) fixed(n uint64) uint64 {
	var v uint64
	for i, b := range r.skip(n) {
		v |= uint64(b) << (8 * i)
	}
	return v
}

func (r *reader) unsigned() uint64 {
	v, n := binary.Uvarint(r.b)
	if n <= 0 {
		r.bad, r.b = true, nil
		return 0
	}
	r.b = r.b[n:]
	return v
}

func (r *reader) signed() int64 {
	var v int64
	for shift := uint(0); ; shift += 7 {
		b := r.byte()
		if r.bad || shift > 63 {
			r.bad = true
			return 0
		}
		v |= int64(b&0x7f) << shift
		if b&0x80 == 0 {
			if b&0x40 != 0 && shift < 57 {
				v |= -1 << (shift + 7)
			}
			return v
		}
	}
}

func parseCommon(b []byte) (c common, ok bool) {
	r := &reader{b: b}
	if r.fixed(4) != 0 {
		return c, false
	}
	if version := r.byte(); version != 1 {
		return c, false
	}
	var augmentation []byte
	for b := r.byte(); b != 0 && !r.bad; b = r.byte() {
		augmentation = append(augmentation, b)
	}
	c.codeAlign, c.dataAlign = r.unsigned(), r.signed()
	if r.byte() != regRA {
		return c, false
	}
	c.pointers = 0x1b
	if len(augmentation) > 0 {
		if augmentation[0] != 'z' {
			return c, false
		}
		c.augmented = true
		inner := &reader{b: r.skip(r.unsigned())}
		for _, a := range augmentation[1:] {
			switch a {
			case 'R':
				c.pointers = inner.byte()
			case 'P':
				inner.skip(pointerSize(inner.byte()))
			case 'L':
				inner.byte()
			case 'S': // a signal's frame
			default:
				return c, false
			}
		}
	}
	c.instructions = r.b
	return c, !r.bad && (c.pointers == 0x1b || c.pointers == 0x1c)
}

func pointerSize(encoding byte) uint64 {
	switch encoding & 0x0f {
	case 0x02, 0x0a:
		return 2
	case 0x03, 0x0b:
		return 4
	}
	return 8
}

// run returns the rule at an address, from the instructions of its entry; false if they are not understood.
func (c *common) run(entry []byte, at, address uint64) (rule, bool) {
	r := &reader{b: entry[4:]}
	size := pointerSize(c.pointers)
	start := r.fixed(size)
	if size == 4 {
		start = uint64(int64(int32(start)))
	}
	start += at + 4 // it is relative to its own place, 4 bytes behind the entry's first word
	length := r.fixed(size)
	if c.augmented {
		r.skip(r.unsigned())
	}
	if r.bad || address < start || address-start >= length {
		return rule{}, false
	}
	m := &machine{common: c, at: start, target: address}
	if !m.run(c.instructions, true) {
		return rule{}, false
	}
	m.initial = m.rule
	if !m.run(r.b, false) {
		return rule{}, false
	}
	m.last = m.saved[regRA].kind == '?'
	return m.rule, true
}

// machine runs the instructions of an unwind table (DW_CFA_*).
type machine struct {
	*common
	rule
	initial rule   // after the CIE's instructions
	stack   []rule // of remembered states
	at      uint64 // the address that rule holds for
	target  uint64 // the address that is asked for
}

func (m *machine) set(n uint64, r recovered) {
	if n < uint64(len(m.saved)) {
		m.saved[n] = r
	}
}

// run runs instructions until the address target; first means those of the CIE. It returns false if it does not know one.
func (m *machine) run(b []byte, first bool) bool {
	r := &reader{b: b}
	for len(r.b) > 0 && !r.bad {
		op := r.byte()
		low := uint64(op & 0x3f)
		advance := uint64(0)
		switch op >> 6 {
		case 1:
			advance = low
		case 2:
			m.set(low, recovered{'o', int64(r.unsigned()) * m.dataAlign})
			continue
		case 3:
			if low < uint64(len(m.saved)) {
				m.saved[low] = m.initial.saved[low]
			}
			continue
		default:
			switch op {
			case 0x00: // nop
			case 0x02:
				advance = r.fixed(1)
			case 0x03:
				advance = r.fixed(2)
			case 0x04:
				advance = r.fixed(4)
			case 0x05:
				n := r.unsigned()
				m.set(n, recovered{'o', int64(r.unsigned()) * m.dataAlign})
			case 0x06:
				if n := r.unsigned(); n < uint64(len(m.saved)) {
					m.saved[n] = m.initial.saved[n]
				}
			case 0x07:
				m.set(r.unsigned(), recovered{kind: '?'})
			case 0x08:
				m.set(r.unsigned(), recovered{})
			case 0x0a:
				if len(m.stack) > 64 {
					return false
				}
				m.stack = append(m.stack, m.rule)
			case 0x0b:
				if len(m.stack) == 0 {
					return false
				}
				m.rule, m.stack = m.stack[len(m.stack)-1], m.stack[:len(m.stack)-1]
			case 0x0c:
				m.register, m.offset, m.plt = r.unsigned(), int64(r.unsigned()), false
			case 0x0d:
				m.register = r.unsigned()
			case 0x0e:
				m.offset = int64(r.unsigned())
			case 0x0f:
				// Only linkage stubs have expressions for the frame address.
				r.skip(r.unsigned())
				m.register, m.plt = regSP, true
			case 0x10, 0x16:
				n := r.unsigned()
				r.skip(r.unsigned())
				m.set(n, recovered{kind: '?'})
			case 0x11:
				n := r.unsigned()
				m.set(n, recovered{'o', r.signed() * m.dataAlign})
			case 0x12:
				m.register, m.offset, m.plt = r.unsigned(), r.signed()*m.dataAlign, false
			case 0x13:
				m.offset = r.signed() * m.dataAlign
			case 0x2e:
				r.unsigned() // the size of the arguments
			default:
				return false
			}
		}
		if advance > 0 && !first {
			m.at += advance * m.codeAlign
			if m.at > m.target {
				return !r.bad
			}
		}
	}
	return !r.bad
}
