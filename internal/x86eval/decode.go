package x86eval

import "encoding/binary"

// Mandatory prefixes, numbered as in a VEX prefix.
const (
	ppNone = iota
	pp66
	ppF3
	ppF2
)

// Opcode maps: the one-byte opcodes and those behind 0f, 0f 38 and 0f 3a.
const (
	map1Byte = iota
	map0F
	map0F38
	map0F3A
)

const maxInst = 15

const noReg = 0xff

// What a jump leads to: another place of its function, or where one begins.
const (
	leadsUnknown = iota
	leadsInside
	leadsToEntry
)

// inst is a decoded instruction. Decoding only takes it apart: whether it means
// anything is for the execution to say, which refuses what it does not know.
type inst struct {
	addr, next uint64
	// then comes after it, and taken is where it led to the last time, so that they are mostly found without a search.
	then, taken *inst
	// leads says what a jump or call leads to, where it is always the same.
	leads uint8
	quick uint8 // its quick form
	raw   [maxInst]byte
	size  int // bytes of raw in use

	opMap  uint8
	op     uint8
	pp     uint8 // last of f3/f2, else 66; for VEX the encoded one
	opsize bool  // 66 seen
	addr32 bool  // 67 seen
	lock   bool
	rex    bool  // any REX prefix, which turns ah..bh into spl..dil
	w      bool  // REX.W or VEX.W
	seg    uint8 // 0x64, 0x65 or 0

	vex  bool
	l256 bool
	vvvv uint8

	hasModRM bool
	mem      bool  // the r/m operand is memory
	reg, rm  uint8 // extended by REX or VEX; rm only if !mem
	digit    uint8 // reg without extension: the opcode extension
	ripRel   bool
	base     uint8 // or noReg
	index    uint8 // or noReg
	scale    uint8 // shift
	disp     int64
	imm      int64 // sign-extended
}

// reader takes bytes off an instruction. Running out is remembered, and
// reported later.
type reader struct {
	b     []byte
	n     int
	short bool
}

func (r *reader) u8() uint8 {
	if r.n >= len(r.b) {
		r.short = true
		return 0
	}
	r.n++
	return r.b[r.n-1]
}

// signed takes a little-endian number of n bytes.
func (r *reader) signed(n int) int64 {
	if len(r.b)-r.n < n {
		r.short = true
		r.n = len(r.b)
		return 0
	}
	b := r.b[r.n:]
	r.n += n
	switch n {
	case 1:
		return int64(int8(b[0]))
	case 2:
		return int64(int16(binary.LittleEndian.Uint16(b)))
	case 4:
		return int64(int32(binary.LittleEndian.Uint32(b)))
	}
	return int64(binary.LittleEndian.Uint64(b))
}

// decode takes the instruction at the start of code apart. A general-purpose
// disassembler would do for most of it, but not for VEX (lost RIP-relative
// bases, instructions with a segment prefix) nor for endbr64.
func decode(code []byte, addr uint64) (*inst, error) {
	in := &inst{addr: addr, base: noReg, index: noReg}
	in.size = copy(in.raw[:], code)
	r := &reader{b: in.raw[:in.size]}
	var rex uint8

prefixes:
	for !r.short {
		b := r.u8()
		switch b {
		case 0x66:
			in.opsize = true
		case 0x67:
			in.addr32 = true
		case 0xf0:
			in.lock = true
		case 0xf2:
			in.pp = ppF2
		case 0xf3:
			in.pp = ppF3
		case 0x64, 0x65:
			in.seg = b
		case 0x26, 0x2e, 0x36, 0x3e: // without effect in 64-bit mode
		default:
			if b&0xf0 == 0x40 {
				rex = b
				in.rex = true
				in.w = b&8 != 0
				b = r.u8()
			}
			if err := in.opcode(r, b, rex); err != nil {
				return in, err
			}
			break prefixes
		}
	}
	if r.short {
		return in, unsupported("truncated or too long")
	}
	in.size = r.n
	in.next = addr + uint64(r.n)
	in.quick = quickForm(in)
	return in, nil
}

// opcode decodes all that follows the legacy prefixes.
func (in *inst) opcode(r *reader, b, rex uint8) error {
	ext := func(bit uint8) uint8 { return rex >> bit & 1 << 3 }
	regExt, indexExt, baseExt := ext(2), ext(1), ext(0)
	switch {
	case b == 0xc4 || b == 0xc5:
		if in.rex || in.opsize || in.lock || in.pp != ppNone {
			return unsupported("VEX behind another prefix")
		}
		in.vex = true
		p := r.u8()
		regExt = ^p >> 7 << 3
		in.opMap = map0F
		if b == 0xc4 {
			indexExt = ^p >> 6 & 1 << 3
			baseExt = ^p >> 5 & 1 << 3
			in.opMap = p & 0x1f
			p = r.u8()
			in.w = p&0x80 != 0
		}
		in.vvvv = ^p >> 3 & 0xf
		in.l256 = p&4 != 0
		in.pp = p & 3
		in.op = r.u8()
		if in.opMap < map0F || in.opMap > map0F3A {
			return unsupported("VEX map %d", in.opMap)
		}
	case b == 0x62:
		return unsupported("EVEX")
	case b == 0x0f:
		in.opMap = map0F
		in.op = r.u8()
		switch in.op {
		case 0x38:
			in.opMap, in.op = map0F38, r.u8()
		case 0x3a:
			in.opMap, in.op = map0F3A, r.u8()
		}
		if in.pp == ppNone && in.opsize {
			in.pp = pp66
		}
	default:
		in.op = b
	}

	modrm, imm, ok := in.layout()
	if !ok {
		return unsupported("opcode %d:%02x", in.opMap, in.op)
	}
	if modrm {
		in.modRM(r, regExt, indexExt, baseExt)
		// test is the only member of its group to have an immediate.
		if in.opMap == map1Byte && in.op&^1 == 0xf6 && in.digit < 2 {
			imm = 1
			if in.op == 0xf7 {
				imm = in.immZ()
			}
		}
	} else {
		in.rm = in.op&7 | baseExt
	}
	if imm > 0 {
		in.imm = r.signed(imm)
	}
	if in.lock && !in.lockable() {
		return unsupported("lock prefix")
	}
	return nil
}

// immZ is the size of an immediate that grows with the operand, up to 4.
func (in *inst) immZ() int {
	if in.opsize && !in.w {
		return 2
	}
	return 4
}

// layout says whether a ModRM byte follows the opcode and how long the immediate
// is; not ok for one-byte opcodes that are not supported anyway.
func (in *inst) layout() (modrm bool, imm int, ok bool) {
	op := in.op
	switch in.opMap {
	case map0F:
		switch {
		case op&0xf0 == 0x80:
			return false, 4, true
		case op == 0x05, op == 0x0b, op == 0x77, op&0xf8 == 0xc8, op&0xf8 == 0x30, op == 0xa2:
			return false, 0, true
		case op >= 0x70 && op <= 0x73, op == 0xa4, op == 0xac, op == 0xba,
			op == 0xc2, op >= 0xc4 && op <= 0xc6:
			return true, 1, true
		}
		return true, 0, true
	case map0F38:
		return true, 0, true
	case map0F3A:
		return true, 1, true
	}
	switch {
	case op < 0x40:
		switch op & 7 {
		case 0, 1, 2, 3:
			return true, 0, true
		case 4:
			return false, 1, true
		case 5:
			return false, in.immZ(), true
		}
	case op&0xf0 == 0x50, op&0xf8 == 0x90: // push, pop, xchg
		return false, 0, true
	case op == 0x63, op >= 0x84 && op <= 0x8b, op == 0x8d, op == 0x8f,
		op >= 0xd0 && op <= 0xd3, op == 0xf6, op == 0xf7, op == 0xfe, op == 0xff:
		return true, 0, true
	case op == 0x68:
		return false, in.immZ(), true
	case op == 0x69, op == 0x81, op == 0xc7:
		return true, in.immZ(), true
	case op == 0x6a, op&0xf0 == 0x70, op == 0xa8, op&0xf8 == 0xb0, op == 0xeb:
		return false, 1, true
	case op == 0x6b, op == 0x80, op == 0x83, op == 0xc0, op == 0xc1, op == 0xc6:
		return true, 1, true
	case op == 0x98, op == 0x99, op == 0xa4, op == 0xa5, op == 0xaa, op == 0xab,
		op == 0xc3, op == 0xc9, op == 0xcc, op == 0xf4, op == 0xf5, op == 0xf8, op == 0xf9, op == 0xfc:
		return false, 0, true
	case op == 0xa9:
		return false, in.immZ(), true
	case op&0xf8 == 0xb8:
		if in.w {
			return false, 8, true
		}
		return false, in.immZ(), true
	case op == 0xc2:
		return false, 2, true
	case op == 0xe8, op == 0xe9:
		return false, 4, true
	}
	return false, 0, false
}

func (in *inst) modRM(r *reader, regExt, indexExt, baseExt uint8) {
	b := r.u8()
	in.hasModRM = true
	mod := b >> 6
	in.digit = b >> 3 & 7
	in.reg = in.digit | regExt
	rm := b & 7
	if mod == 3 {
		in.rm = rm | baseExt
		return
	}
	in.mem = true
	dispSize := [3]int{0, 1, 4}[mod]
	switch {
	case rm == 4:
		sib := r.u8()
		in.scale = sib >> 6
		if index := sib>>3&7 | indexExt; index != 4 {
			in.index = index
		}
		if sib&7 == 5 && mod == 0 {
			dispSize = 4
		} else {
			in.base = sib&7 | baseExt
		}
	case rm == 5 && mod == 0:
		in.ripRel = true
		dispSize = 4
	default:
		in.base = rm | baseExt
	}
	if dispSize > 0 {
		in.disp = r.signed(dispSize)
	}
}

// lockable reports whether the processor accepts a lock prefix here.
func (in *inst) lockable() bool {
	if !in.mem || in.vex {
		return false
	}
	switch in.opMap {
	case map1Byte:
		switch {
		case in.op < 0x38:
			return in.op&7 < 2
		case in.op == 0x80, in.op == 0x81, in.op == 0x83:
			return in.digit != 7
		case in.op == 0x86, in.op == 0x87:
			return true
		case in.op&^1 == 0xf6:
			return in.digit == 2 || in.digit == 3
		case in.op&^1 == 0xfe:
			return in.digit < 2
		}
	case map0F:
		switch in.op {
		case 0xab, 0xb3, 0xbb, 0xb0, 0xb1, 0xc0, 0xc1:
			return true
		case 0xba:
			return in.digit > 4
		}
	}
	return false
}
