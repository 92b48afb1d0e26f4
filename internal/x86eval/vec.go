package x86eval

import "encoding/binary"

// vec is a ymm register, lowest quadword first.
type vec [4]uint64

// lane is half of one. AVX and AVX2 do in each half what SSE does in a register.
type lane [2]uint64

func (v vec) lane(i int) lane { return lane{v[2*i], v[2*i+1]} }

func (v *vec) setLane(i int, l lane) { v[2*i], v[2*i+1] = l[0], l[1] }

// elem is the i-th element of size bytes.
func (l lane) elem(i, size int) uint64 {
	per := 8 / size
	return l[i/per] >> (8 * uint(size) * uint(i%per)) & mask(size)
}

func (l *lane) setElem(i, size int, v uint64) {
	per := 8 / size
	shift := 8 * uint(size) * uint(i%per)
	l[i/per] = l[i/per]&^(mask(size)<<shift) | v&mask(size)<<shift
}

// vkey identifies a vector instruction whichever way it is encoded.
func vkey(opMap, pp, op uint32) uint32 { return opMap<<16 | pp<<8 | op }

func (in *inst) key() uint32 {
	return vkey(uint32(in.opMap), uint32(in.pp), uint32(in.op))
}

// vsize is the operand size of a vector instruction.
func (in *inst) vsize() int {
	if in.l256 {
		return 32
	}
	return 16
}

// setVec writes a register. VEX-encoded instructions clear the rest of it, others
// leave that alone.
func (m *Machine) setVec(in *inst, reg uint8, v vec) {
	switch {
	case !in.vex:
		m.vec[reg][0], m.vec[reg][1] = v[0], v[1]
	case !in.l256:
		m.vec[reg] = vec{v[0], v[1]}
	default:
		m.vec[reg] = v
	}
}

// setLow writes the lowest 64 bits and clears the rest of an xmm register.
func (m *Machine) setLow(in *inst, reg uint8, v uint64) {
	m.setVec(in, reg, vec{v})
}

// first is the first source operand: vvvv, or the destination without VEX.
func (m *Machine) first(in *inst) vec {
	if in.vex {
		return m.vec[in.vvvv]
	}
	return m.vec[in.reg]
}

func aligned(addr uint64, size int) error {
	if addr%uint64(size) != 0 {
		return trap("misaligned vector access")
	}
	return nil
}

// loadVec reads size bytes, the rest of the result is zero.
func (m *Machine) loadVec(in *inst, size int, align bool) (vec, error) {
	var v vec
	addr, err := m.address(in)
	if err != nil {
		return v, err
	}
	if align {
		if err := aligned(addr, size); err != nil {
			return v, err
		}
	}
	var b [32]byte
	if err := m.read(b[:size], addr); err != nil {
		return v, err
	}
	for i := range v {
		v[i] = binary.LittleEndian.Uint64(b[8*i:])
	}
	return v, nil
}

func (m *Machine) storeVec(in *inst, v vec, size int, align bool) error {
	addr, err := m.address(in)
	if err != nil {
		return err
	}
	if align {
		if err := aligned(addr, size); err != nil {
			return err
		}
	}
	var b [32]byte
	for i := range v {
		binary.LittleEndian.PutUint64(b[8*i:], v[i])
	}
	return m.write(addr, b[:size])
}

// getVec is the r/m operand of an arithmetic instruction, of which memory need
// only be aligned without VEX.
func (m *Machine) getVec(in *inst, size int) (vec, error) {
	if in.mem {
		return m.loadVec(in, size, !in.vex && size == 16)
	}
	return m.vec[in.rm], nil
}

// execVec executes the vector instructions.
func (m *Machine) execVec(in *inst) error {
	if in.opMap == map1Byte {
		return in.unknown()
	}
	for _, f := range []func(*Machine, *inst) (bool, error){
		(*Machine).execMove, (*Machine).execLow, (*Machine).execScalar, (*Machine).execPacked, (*Machine).execInsert,
		(*Machine).execShuffle, (*Machine).execBlend, (*Machine).execShift, (*Machine).execLanes,
	} {
		if done, err := f(m, in); done || err != nil {
			return err
		}
	}
	return in.unknown()
}

// plain refuses a VEX encoding that the processor refuses: with a first source
// that the instruction does not have, or 256 bits where there are only 128.
func (in *inst) plain(allow256 bool) error {
	if in.vex && (in.vvvv != 0 || in.l256 && !allow256) {
		return in.unknown()
	}
	return nil
}

// execMove executes moves of whole registers.
func (m *Machine) execMove(in *inst) (bool, error) {
	align, store, memOnly := false, false, false
	switch in.key() {
	case vkey(map0F, ppNone, 0x10), vkey(map0F, pp66, 0x10), vkey(map0F, ppF3, 0x6f): // movups, movupd, movdqu
	case vkey(map0F, ppNone, 0x11), vkey(map0F, pp66, 0x11), vkey(map0F, ppF3, 0x7f):
		store = true
	case vkey(map0F, ppNone, 0x28), vkey(map0F, pp66, 0x28), vkey(map0F, pp66, 0x6f): // movaps, movapd, movdqa
		align = true
	case vkey(map0F, ppNone, 0x29), vkey(map0F, pp66, 0x29), vkey(map0F, pp66, 0x7f):
		align, store = true, true
	case vkey(map0F, ppNone, 0x2b), vkey(map0F, pp66, 0x2b), vkey(map0F, pp66, 0xe7): // movntps, movntpd, movntdq
		align, store, memOnly = true, true, true
	case vkey(map0F, ppF2, 0xf0): // lddqu
		memOnly = true
	case vkey(map0F38, pp66, 0x2a): // movntdqa
		align, memOnly = true, true
	case vkey(map0F, ppNone, 0x77): // vzeroupper, vzeroall; emms without VEX
		if !in.vex || in.vvvv != 0 {
			return true, in.unknown()
		}
		for i := range m.vec {
			if in.l256 {
				m.vec[i] = vec{}
			} else {
				m.vec[i][2], m.vec[i][3] = 0, 0
			}
		}
		return true, nil
	default:
		return false, nil
	}
	if err := in.plain(true); err != nil {
		return true, err
	}
	if memOnly && !in.mem {
		return true, in.unknown()
	}
	size := in.vsize()
	switch {
	case store && in.mem:
		return true, m.storeVec(in, m.vec[in.reg], size, align)
	case store:
		m.setVec(in, in.rm, m.vec[in.reg])
		return true, nil
	case in.mem:
		v, err := m.loadVec(in, size, align)
		if err == nil {
			m.setVec(in, in.reg, v)
		}
		return true, err
	}
	m.setVec(in, in.reg, m.vec[in.rm])
	return true, nil
}

// execLow executes moves of parts of registers, and to and from general-purpose
// registers.
func (m *Machine) execLow(in *inst) (bool, error) {
	key := in.key()
	switch key {
	case vkey(map0F, ppF3, 0x10), vkey(map0F, ppF2, 0x10), vkey(map0F, ppF3, 0x11), vkey(map0F, ppF2, 0x11):
		return true, m.moveScalar(in)

	case vkey(map0F, ppNone, 0x12), vkey(map0F, pp66, 0x12), vkey(map0F, ppNone, 0x16), vkey(map0F, pp66, 0x16):
		// movlps, movlpd, movhps, movhpd; movhlps and movlhps between registers
		if in.l256 || !in.mem && in.pp == pp66 {
			return true, in.unknown()
		}
		half := int(in.op >> 2 & 1)
		v := m.first(in)
		if in.mem {
			src, err := m.loadVec(in, 8, false)
			if err != nil {
				return true, err
			}
			v[half] = src[0]
		} else {
			v[half] = m.vec[in.rm][1-half]
		}
		m.setVec(in, in.reg, v)
		return true, nil

	case vkey(map0F, ppNone, 0x13), vkey(map0F, pp66, 0x13), vkey(map0F, ppNone, 0x17), vkey(map0F, pp66, 0x17):
		if err := in.plain(false); err != nil || !in.mem {
			return true, in.unknown()
		}
		return true, m.storeVec(in, vec{m.vec[in.reg][in.op>>2&1]}, 8, false)

	case vkey(map0F, pp66, 0x6e), vkey(map0F, pp66, 0x7e): // movd, movq
		if err := in.plain(false); err != nil {
			return true, err
		}
		size := 4
		if in.w {
			size = 8
		}
		if in.op == 0x7e {
			return true, m.setRM(in, size, m.vec[in.reg][0])
		}
		v, err := m.getRM(in, size)
		if err == nil {
			m.setLow(in, in.reg, v)
		}
		return true, err

	case vkey(map0F, ppF3, 0x7e): // movq
		if err := in.plain(false); err != nil {
			return true, err
		}
		v, err := m.getVec(in, 8)
		if err == nil {
			m.setLow(in, in.reg, v[0])
		}
		return true, err

	case vkey(map0F, pp66, 0xd6): // movq
		if err := in.plain(false); err != nil {
			return true, err
		}
		if in.mem {
			return true, m.storeVec(in, m.vec[in.reg], 8, false)
		}
		m.setLow(in, in.rm, m.vec[in.reg][0])
		return true, nil

	case vkey(map0F, pp66, 0xd7), vkey(map0F, ppNone, 0x50), vkey(map0F, pp66, 0x50):
		// pmovmskb, movmskps, movmskpd
		if err := in.plain(true); err != nil || in.mem {
			return true, in.unknown()
		}
		size := 1
		if in.op == 0x50 {
			size = 4 << in.pp
		}
		var r uint64
		for i := range in.vsize() / size {
			per := 16 / size
			e := m.vec[in.rm].lane(i/per).elem(i%per, size)
			r |= b2u(e&signBit(size) != 0) << i
		}
		m.Regs[in.reg] = r
		return true, nil

	case vkey(map0F38, pp66, 0x17): // ptest
		if err := in.plain(true); err != nil {
			return true, err
		}
		b, err := m.getVec(in, in.vsize())
		if err != nil {
			return true, err
		}
		var and, andn uint64
		for i := range in.vsize() / 8 {
			and |= m.vec[in.reg][i] & b[i]
			andn |= ^m.vec[in.reg][i] & b[i]
		}
		m.setFlags(flagsAll, b2u(and == 0)*flagZ|b2u(andn == 0)*flagC, 0)
		return true, nil
	}
	return false, nil
}

// moveScalar executes movss and movsd.
func (m *Machine) moveScalar(in *inst) error {
	size := 4
	if in.pp == ppF2 {
		size = 8
	}
	store := in.op == 0x11
	if in.mem {
		// The length bit is ignored; treat all as the 128-bit form it is.
		if in.vex && in.vvvv != 0 {
			return in.unknown()
		}
		if store {
			return m.storeVec(in, m.vec[in.reg], size, false)
		}
		v, err := m.loadVec(in, size, false)
		if err != nil {
			return err
		}
		if in.vex {
			m.vec[in.reg] = v
		} else {
			m.setVec(in, in.reg, v)
		}
		return nil
	}
	dst, src := in.reg, in.rm
	if store {
		dst, src = src, dst
	}
	v := m.vec[dst]
	if in.vex {
		v = m.vec[in.vvvv]
		v[2], v[3] = 0, 0
	}
	v[0] = v[0]&^mask(size) | m.vec[src][0]&mask(size)
	m.vec[dst] = v
	return nil
}

// execInsert executes what moves single elements or whole lanes.
func (m *Machine) execInsert(in *inst) (bool, error) {
	imm := int(uint8(in.imm))
	wide := 4
	if in.w {
		wide = 8
	}
	insert := func(size int) error {
		if in.l256 {
			return in.unknown()
		}
		e, err := m.getRM32(in, size)
		if err != nil {
			return err
		}
		v := m.first(in)
		l := v.lane(0)
		l.setElem(imm%(16/size), size, e)
		v.setLane(0, l)
		m.setVec(in, in.reg, v)
		return nil
	}
	extract := func(size int) error {
		if err := in.plain(false); err != nil {
			return err
		}
		e := m.vec[in.reg].lane(0).elem(imm%(16/size), size)
		if in.mem {
			return m.setRM(in, size, e)
		}
		m.Regs[in.rm] = e
		return nil
	}
	switch in.key() {
	case vkey(map0F, pp66, 0xc4): // pinsrw
		return true, insert(2)
	case vkey(map0F3A, pp66, 0x20): // pinsrb
		return true, insert(1)
	case vkey(map0F3A, pp66, 0x22): // pinsrd, pinsrq
		return true, insert(wide)
	case vkey(map0F, pp66, 0xc5): // pextrw, with its registers the other way round
		if err := in.plain(false); err != nil || in.mem {
			return true, in.unknown()
		}
		m.Regs[in.reg] = m.vec[in.rm].lane(0).elem(imm%8, 2)
		return true, nil
	case vkey(map0F3A, pp66, 0x14): // pextrb
		return true, extract(1)
	case vkey(map0F3A, pp66, 0x15): // pextrw
		return true, extract(2)
	case vkey(map0F3A, pp66, 0x16): // pextrd, pextrq
		return true, extract(wide)
	case vkey(map0F3A, pp66, 0x17): // extractps
		return true, extract(4)

	case vkey(map0F3A, pp66, 0x18), vkey(map0F3A, pp66, 0x38): // vinsertf128, vinserti128
		if !in.vex || !in.l256 || in.w {
			return true, in.unknown()
		}
		b, err := m.getVec(in, 16)
		if err != nil {
			return true, err
		}
		v := m.vec[in.vvvv]
		v.setLane(imm&1, b.lane(0))
		m.setVec(in, in.reg, v)
		return true, nil

	case vkey(map0F3A, pp66, 0x19), vkey(map0F3A, pp66, 0x39): // vextractf128, vextracti128
		if !in.vex || !in.l256 || in.w || in.vvvv != 0 {
			return true, in.unknown()
		}
		l := m.vec[in.reg].lane(imm & 1)
		v := vec{l[0], l[1]}
		if in.mem {
			return true, m.storeVec(in, v, 16, false)
		}
		m.vec[in.rm] = v
		return true, nil

	case vkey(map0F3A, pp66, 0x06), vkey(map0F3A, pp66, 0x46): // vperm2f128, vperm2i128
		if !in.vex || !in.l256 || in.w {
			return true, in.unknown()
		}
		b, err := m.getVec(in, 32)
		if err != nil {
			return true, err
		}
		a := m.vec[in.vvvv]
		pick := func(sel int) lane {
			switch {
			case sel&8 != 0:
				return lane{}
			case sel&2 != 0:
				return b.lane(sel & 1)
			}
			return a.lane(sel & 1)
		}
		var r vec
		r.setLane(0, pick(imm))
		r.setLane(1, pick(imm>>4))
		m.setVec(in, in.reg, r)
		return true, nil
	}
	return false, nil
}

// getRM32 is getRM for operands that are 32-bit registers when they are not
// memory: there is no high byte among them.
func (m *Machine) getRM32(in *inst, size int) (uint64, error) {
	if !in.mem {
		return m.Regs[in.rm] & mask(size), nil
	}
	return m.getRM(in, size)
}

// execShuffle executes what moves elements across lanes or widens them.
func (m *Machine) execShuffle(in *inst) (bool, error) {
	key := in.key()
	switch key {
	case vkey(map0F38, pp66, 0x18), vkey(map0F38, pp66, 0x19), vkey(map0F38, pp66, 0x58),
		vkey(map0F38, pp66, 0x59), vkey(map0F38, pp66, 0x78), vkey(map0F38, pp66, 0x79):
		// vbroadcastss, vbroadcastsd, vpbroadcastd, vpbroadcastq, vpbroadcastb, vpbroadcastw
		if !in.vex || in.vvvv != 0 || in.w || in.op == 0x19 && !in.l256 {
			return true, in.unknown()
		}
		size := map[uint8]int{0x18: 4, 0x19: 8, 0x58: 4, 0x59: 8, 0x78: 1, 0x79: 2}[in.op]
		b, err := m.getVec(in, size)
		if err != nil {
			return true, err
		}
		var l lane
		for i := range 16 / size {
			l.setElem(i, size, b[0])
		}
		m.setVec(in, in.reg, vec{l[0], l[1], l[0], l[1]})
		return true, nil

	case vkey(map0F, ppF2, 0x12): // movddup: the only one to load but half a lane
		if err := in.plain(true); err != nil {
			return true, err
		}
		size := 8
		if in.l256 {
			size = 32
		}
		b, err := m.getVec(in, size)
		if err == nil {
			m.setVec(in, in.reg, vec{b[0], b[0], b[2], b[2]})
		}
		return true, err

	case vkey(map0F38, pp66, 0x1a), vkey(map0F38, pp66, 0x5a): // vbroadcastf128, vbroadcasti128
		if !in.vex || in.vvvv != 0 || in.w || !in.l256 || !in.mem {
			return true, in.unknown()
		}
		b, err := m.getVec(in, 16)
		if err == nil {
			m.setVec(in, in.reg, vec{b[0], b[1], b[0], b[1]})
		}
		return true, err

	case vkey(map0F3A, pp66, 0x00), vkey(map0F3A, pp66, 0x01): // vpermq, vpermpd
		if !in.vex || in.vvvv != 0 || !in.w || !in.l256 {
			return true, in.unknown()
		}
		b, err := m.getVec(in, 32)
		if err != nil {
			return true, err
		}
		var r vec
		for i := range r {
			r[i] = b[in.imm>>(2*i)&3]
		}
		m.setVec(in, in.reg, r)
		return true, nil

	case vkey(map0F38, pp66, 0x36), vkey(map0F38, pp66, 0x16): // vpermd, vpermps
		if !in.vex || in.w || !in.l256 {
			return true, in.unknown()
		}
		b, err := m.getVec(in, 32)
		if err != nil {
			return true, err
		}
		a := m.vec[in.vvvv]
		var r vec
		for i := range 8 {
			from := int(a[i/2]>>(32*uint(i%2))) & 7
			r[i/2] |= b[from/2] >> (32 * uint(from%2)) & mask(4) << (32 * uint(i%2))
		}
		m.setVec(in, in.reg, r)
		return true, nil
	}

	if in.opMap == map0F38 && in.pp == pp66 && (in.op&0xf8 == 0x20 || in.op&0xf8 == 0x30) && in.op&7 < 6 {
		// pmovsx and pmovzx: bw bd bq wd wq dq
		if err := in.plain(true); err != nil {
			return true, err
		}
		from := [6]int{1, 1, 1, 2, 2, 4}[in.op&7]
		to := [6]int{2, 4, 8, 4, 8, 8}[in.op&7]
		n := in.vsize() / to
		b, err := m.getVec(in, n*from)
		if err != nil {
			return true, err
		}
		var r vec
		for i := range n {
			e := b.lane(0).elem(i, from)
			if in.op < 0x30 {
				e = signExtend(e, from)
			}
			per := 16 / to
			l := r.lane(i / per)
			l.setElem(i%per, to, e)
			r.setLane(i/per, l)
		}
		m.setVec(in, in.reg, r)
		return true, nil
	}
	return false, nil
}
