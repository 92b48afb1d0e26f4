package x86eval

// laneOp computes one lane of a result from the lanes of both sources. The
// number of the lane matters to the few that take different immediate bits for
// each.
type laneOp func(a, b lane, imm uint8, i int) lane

// each applies f to pairs of elements.
func each(size int, f func(a, b uint64) uint64) laneOp {
	return func(a, b lane, _ uint8, _ int) (r lane) {
		for i := range 16 / size {
			r.setElem(i, size, f(a.elem(i, size), b.elem(i, size)))
		}
		return r
	}
}

func signed(size int, f func(a, b int64) bool) func(a, b uint64) bool {
	return func(a, b uint64) bool {
		return f(int64(signExtend(a, size)), int64(signExtend(b, size)))
	}
}

func add(a, b uint64) uint64 { return a + b }
func sub(a, b uint64) uint64 { return a - b }

// when gives all ones where f holds.
func when(f func(a, b uint64) bool) func(a, b uint64) uint64 {
	return func(a, b uint64) uint64 { return -b2u(f(a, b)) }
}

// choose takes a where f holds and b elsewhere.
func choose(f func(a, b uint64) bool) func(a, b uint64) uint64 {
	return func(a, b uint64) uint64 {
		if f(a, b) {
			return a
		}
		return b
	}
}

func equal(a, b uint64) bool  { return a == b }
func less(a, b uint64) bool   { return a < b }
func more(a, b uint64) bool   { return a > b }
func sLess(a, b int64) bool   { return a < b }
func sMore(a, b int64) bool   { return a > b }
func and(a, b uint64) uint64  { return a & b }
func andn(a, b uint64) uint64 { return ^a & b }
func or(a, b uint64) uint64   { return a | b }
func xor(a, b uint64) uint64  { return a ^ b }

// interleave takes elements of a and b in turn, from the lower or upper halves.
func interleave(size int, high bool) laneOp {
	return func(a, b lane, _ uint8, _ int) (r lane) {
		n := 16 / size
		from := 0
		if high {
			from = n / 2
		}
		for i := range n / 2 {
			r.setElem(2*i, size, a.elem(from+i, size))
			r.setElem(2*i+1, size, b.elem(from+i, size))
		}
		return r
	}
}

// pack narrows the elements of a, then b, with signed saturation of the source
// to the range of the result.
func pack(size int, toSigned bool) laneOp {
	return func(a, b lane, _ uint8, _ int) (r lane) {
		lo, hi := int64(0), int64(mask(size/2))
		if toSigned {
			hi >>= 1
			lo = ^hi
		}
		n := 16 / size
		for i := range 2 * n {
			src := a
			if i >= n {
				src = b
			}
			e := int64(signExtend(src.elem(i%n, size), size))
			r.setElem(i, size/2, uint64(min(max(e, lo), hi)))
		}
		return r
	}
}

// shuffleWords permutes four of the eight words of b.
func shuffleWords(half int) laneOp {
	return func(_, b lane, imm uint8, _ int) lane {
		r := b
		for i := range 4 {
			r.setElem(4*half+i, 2, b.elem(4*half+int(imm>>(2*i)&3), 2))
		}
		return r
	}
}

func shuffleBytes(a, b lane, _ uint8, _ int) (r lane) {
	for i := range 16 {
		if sel := b.elem(i, 1); sel < 0x80 {
			r.setElem(i, 1, a.elem(int(sel&15), 1))
		}
	}
	return r
}

// alignBytes shifts a:b right by bytes.
func alignBytes(a, b lane, imm uint8, _ int) (r lane) {
	for i := range 16 {
		switch from := i + int(imm); {
		case from < 16:
			r.setElem(i, 1, b.elem(from, 1))
		case from < 32:
			r.setElem(i, 1, a.elem(from-16, 1))
		}
	}
	return r
}

// blend takes the elements of b whose immediate bit is set; the bits of the upper
// lane follow those of the lower unless both use the same.
func blend(size int, shared bool) laneOp {
	return func(a, b lane, imm uint8, lane int) lane {
		n := 16 / size
		if !shared {
			imm >>= n * lane
		}
		for i := range n {
			if imm>>i&1 != 0 {
				a.setElem(i, size, b.elem(i, size))
			}
		}
		return a
	}
}

// execLanes executes what treats each lane alike.
func (m *Machine) execLanes(in *inst) (bool, error) {
	f, unary := laneOpFor(in.key())
	if f == nil {
		return false, nil
	}
	if unary {
		if err := in.plain(true); err != nil {
			return true, err
		}
	}
	switch in.key() {
	case vkey(map0F3A, pp66, 0x02), vkey(map0F3A, pp66, 0x04), vkey(map0F3A, pp66, 0x05):
		if !in.vex || in.w { // the only ones here to be that particular
			return true, in.unknown()
		}
	}
	b, err := m.getVec(in, in.vsize())
	if err != nil {
		return true, err
	}
	a := m.first(in)
	var r vec
	for i := range in.vsize() / 16 {
		r.setLane(i, f(a.lane(i), b.lane(i), uint8(in.imm), i))
	}
	m.setVec(in, in.reg, r)
	return true, nil
}

// laneOpFor finds the operation; unary ones use only the second source.
func laneOpFor(key uint32) (f laneOp, unary bool) {
	bitwise := func(f func(a, b uint64) uint64) (laneOp, bool) { return each(8, f), false }
	binary := func(size int, f func(a, b uint64) uint64) (laneOp, bool) { return each(size, f), false }
	switch key {
	case vkey(map0F, ppNone, 0x54), vkey(map0F, pp66, 0x54), vkey(map0F, pp66, 0xdb):
		return bitwise(and)
	case vkey(map0F, ppNone, 0x55), vkey(map0F, pp66, 0x55), vkey(map0F, pp66, 0xdf):
		return bitwise(andn)
	case vkey(map0F, ppNone, 0x56), vkey(map0F, pp66, 0x56), vkey(map0F, pp66, 0xeb):
		return bitwise(or)
	case vkey(map0F, ppNone, 0x57), vkey(map0F, pp66, 0x57), vkey(map0F, pp66, 0xef):
		return bitwise(xor)

	case vkey(map0F, pp66, 0xfc):
		return binary(1, add)
	case vkey(map0F, pp66, 0xfd):
		return binary(2, add)
	case vkey(map0F, pp66, 0xfe):
		return binary(4, add)
	case vkey(map0F, pp66, 0xd4):
		return binary(8, add)
	case vkey(map0F, pp66, 0xf8):
		return binary(1, sub)
	case vkey(map0F, pp66, 0xf9):
		return binary(2, sub)
	case vkey(map0F, pp66, 0xfa):
		return binary(4, sub)
	case vkey(map0F, pp66, 0xfb):
		return binary(8, sub)

	case vkey(map0F, pp66, 0xd5): // pmullw
		return binary(2, func(a, b uint64) uint64 { return a * b })
	case vkey(map0F38, pp66, 0x40): // pmulld
		return binary(4, func(a, b uint64) uint64 { return a * b })
	case vkey(map0F, pp66, 0xf4): // pmuludq
		return binary(8, func(a, b uint64) uint64 { return a & mask(4) * (b & mask(4)) })
	case vkey(map0F38, pp66, 0x28): // pmuldq
		return binary(8, func(a, b uint64) uint64 { return signExtend(a, 4) * signExtend(b, 4) })

	case vkey(map0F, pp66, 0xe4): // pmulhuw
		return binary(2, func(a, b uint64) uint64 { return a * b >> 16 })
	case vkey(map0F, pp66, 0xe5): // pmulhw
		return binary(2, func(a, b uint64) uint64 { return signExtend(a, 2) * signExtend(b, 2) >> 16 })
	case vkey(map0F, pp66, 0xf5): // pmaddwd
		return binary(4, func(a, b uint64) uint64 {
			lo := signExtend(a&mask(2), 2) * signExtend(b&mask(2), 2)
			return lo + signExtend(a>>16, 2)*signExtend(b>>16, 2)
		})
	case vkey(map0F, pp66, 0xf6): // psadbw
		return binary(8, func(a, b uint64) (sum uint64) {
			for i := range 8 {
				x, y := a>>(8*i)&0xff, b>>(8*i)&0xff
				sum += max(x, y) - min(x, y)
			}
			return sum
		})

	case vkey(map0F, pp66, 0x74):
		return binary(1, when(equal))
	case vkey(map0F, pp66, 0x75):
		return binary(2, when(equal))
	case vkey(map0F, pp66, 0x76):
		return binary(4, when(equal))
	case vkey(map0F38, pp66, 0x29):
		return binary(8, when(equal))
	case vkey(map0F, pp66, 0x64):
		return binary(1, when(signed(1, sMore)))
	case vkey(map0F, pp66, 0x65):
		return binary(2, when(signed(2, sMore)))
	case vkey(map0F, pp66, 0x66):
		return binary(4, when(signed(4, sMore)))
	case vkey(map0F38, pp66, 0x37):
		return binary(8, when(signed(8, sMore)))

	case vkey(map0F38, pp66, 0x38): // pminsb
		return binary(1, choose(signed(1, sLess)))
	case vkey(map0F, pp66, 0xea): // pminsw
		return binary(2, choose(signed(2, sLess)))
	case vkey(map0F38, pp66, 0x39): // pminsd
		return binary(4, choose(signed(4, sLess)))
	case vkey(map0F, pp66, 0xda): // pminub
		return binary(1, choose(less))
	case vkey(map0F38, pp66, 0x3a): // pminuw
		return binary(2, choose(less))
	case vkey(map0F38, pp66, 0x3b): // pminud
		return binary(4, choose(less))
	case vkey(map0F38, pp66, 0x3c): // pmaxsb
		return binary(1, choose(signed(1, sMore)))
	case vkey(map0F, pp66, 0xee): // pmaxsw
		return binary(2, choose(signed(2, sMore)))
	case vkey(map0F38, pp66, 0x3d): // pmaxsd
		return binary(4, choose(signed(4, sMore)))
	case vkey(map0F, pp66, 0xde): // pmaxub
		return binary(1, choose(more))
	case vkey(map0F38, pp66, 0x3e): // pmaxuw
		return binary(2, choose(more))
	case vkey(map0F38, pp66, 0x3f): // pmaxud
		return binary(4, choose(more))

	case vkey(map0F38, pp66, 0x1c), vkey(map0F38, pp66, 0x1d), vkey(map0F38, pp66, 0x1e): // pabsb, w, d
		size := 1 << (key & 3)
		return each(size, func(_, b uint64) uint64 {
			if b&signBit(size) != 0 {
				return -b
			}
			return b
		}), true

	case vkey(map0F, pp66, 0x60):
		return interleave(1, false), false
	case vkey(map0F, pp66, 0x61):
		return interleave(2, false), false
	case vkey(map0F, pp66, 0x62), vkey(map0F, ppNone, 0x14):
		return interleave(4, false), false
	case vkey(map0F, pp66, 0x6c), vkey(map0F, pp66, 0x14):
		return interleave(8, false), false
	case vkey(map0F, pp66, 0x68):
		return interleave(1, true), false
	case vkey(map0F, pp66, 0x69):
		return interleave(2, true), false
	case vkey(map0F, pp66, 0x6a), vkey(map0F, ppNone, 0x15):
		return interleave(4, true), false
	case vkey(map0F, pp66, 0x6d), vkey(map0F, pp66, 0x15):
		return interleave(8, true), false

	case vkey(map0F, pp66, 0x63):
		return pack(2, true), false
	case vkey(map0F, pp66, 0x67):
		return pack(2, false), false
	case vkey(map0F, pp66, 0x6b):
		return pack(4, true), false
	case vkey(map0F38, pp66, 0x2b):
		return pack(4, false), false

	case vkey(map0F, pp66, 0x70), vkey(map0F3A, pp66, 0x04): // pshufd, vpermilps
		return func(_, b lane, imm uint8, _ int) (r lane) {
			for i := range 4 {
				r.setElem(i, 4, b.elem(int(imm>>(2*i)&3), 4))
			}
			return r
		}, true
	case vkey(map0F, ppF3, 0x70):
		return shuffleWords(1), true
	case vkey(map0F, ppF2, 0x70):
		return shuffleWords(0), true
	case vkey(map0F, ppNone, 0xc6): // shufps
		return func(a, b lane, imm uint8, _ int) (r lane) {
			for i := range 4 {
				src := a
				if i >= 2 {
					src = b
				}
				r.setElem(i, 4, src.elem(int(imm>>(2*i)&3), 4))
			}
			return r
		}, false
	case vkey(map0F, pp66, 0xc6): // shufpd: two bits for each lane
		return func(a, b lane, imm uint8, i int) lane {
			imm >>= 2 * i
			return lane{a[imm&1], b[imm>>1&1]}
		}, false
	case vkey(map0F3A, pp66, 0x05): // vpermilpd
		return func(_, b lane, imm uint8, i int) lane {
			imm >>= 2 * i
			return lane{b[imm&1], b[imm>>1&1]}
		}, true
	case vkey(map0F38, pp66, 0x00):
		return shuffleBytes, false
	case vkey(map0F3A, pp66, 0x0f):
		return alignBytes, false
	case vkey(map0F3A, pp66, 0x02), vkey(map0F3A, pp66, 0x0c): // vpblendd, blendps
		return blend(4, false), false
	case vkey(map0F3A, pp66, 0x0d): // blendpd
		return blend(8, false), false
	case vkey(map0F3A, pp66, 0x0e): // pblendw
		return blend(2, true), false
	case vkey(map0F, ppF3, 0x12), vkey(map0F, ppF3, 0x16): // movsldup, movshdup
		odd := int(key >> 2 & 1)
		return func(_, b lane, _ uint8, _ int) (r lane) {
			for i := range 4 {
				r.setElem(i, 4, b.elem(i&^1+odd, 4))
			}
			return r
		}, true
	}
	return nil, false
}

// execBlend executes the blends that are controlled by a register: xmm0 without
// VEX, else one that the immediate names.
func (m *Machine) execBlend(in *inst) (bool, error) {
	var size int
	sel := m.vec[0]
	switch in.key() {
	case vkey(map0F38, pp66, 0x10), vkey(map0F3A, pp66, 0x4c): // pblendvb
		size = 1
	case vkey(map0F38, pp66, 0x14), vkey(map0F3A, pp66, 0x4a): // blendvps
		size = 4
	case vkey(map0F38, pp66, 0x15), vkey(map0F3A, pp66, 0x4b): // blendvpd
		size = 8
	default:
		return false, nil
	}
	if in.vex != (in.opMap == map0F3A) || in.w {
		return true, in.unknown()
	}
	if in.vex {
		sel = m.vec[uint8(in.imm)>>4]
	}
	b, err := m.getVec(in, in.vsize())
	if err != nil {
		return true, err
	}
	r := m.first(in)
	for i := range in.vsize() / 16 {
		l, from, control := r.lane(i), b.lane(i), sel.lane(i)
		for j := range 16 / size {
			if control.elem(j, size)&signBit(size) != 0 {
				l.setElem(j, size, from.elem(j, size))
			}
		}
		r.setLane(i, l)
	}
	m.setVec(in, in.reg, r)
	return true, nil
}

// execShift executes the vector shifts: by an immediate, by one count for all
// elements or by one for each.
func (m *Machine) execShift(in *inst) (bool, error) {
	if in.pp != pp66 {
		return false, nil
	}
	switch {
	case in.opMap == map0F && in.op >= 0x71 && in.op <= 0x73:
		return true, m.shiftImm(in)
	case in.opMap == map0F && (in.op&0xf0 >= 0xd0) && in.op&0x0f >= 1 && in.op&0x0f <= 3:
		// psrlw d1 and on, psraw e1 e2, psllw f1 and on
		kind := in.op >> 4
		if kind == 0xe && in.op&3 == 3 {
			return false, nil
		}
		b, err := m.getVec(in, 16)
		if err != nil {
			return true, err
		}
		digit := map[uint8]uint8{0xd: 2, 0xe: 4, 0xf: 6}[kind]
		m.shiftAll(in, in.reg, m.first(in), digit, 1<<(in.op&3), b[0])
		return true, nil
	case in.opMap == map0F38 && in.op >= 0x45 && in.op <= 0x47: // vpsrlv, vpsravd, vpsllv
		if !in.vex || in.op == 0x46 && in.w {
			return true, in.unknown()
		}
		size := 4
		if in.w {
			size = 8
		}
		b, err := m.getVec(in, in.vsize())
		if err != nil {
			return true, err
		}
		digit := [3]uint8{2, 4, 6}[in.op-0x45]
		f := each(size, func(a, n uint64) uint64 { return shiftElem(digit, a, n, size) })
		var r vec
		for i := range in.vsize() / 16 {
			r.setLane(i, f(m.vec[in.vvvv].lane(i), b.lane(i), 0, i))
		}
		m.setVec(in, in.reg, r)
		return true, nil
	}
	return false, nil
}

// shiftElem shifts one element, right, right with its sign, or left, as the
// opcode extension of the immediate forms says.
func shiftElem(digit uint8, v, n uint64, size int) uint64 {
	switch digit {
	case 2:
		return v >> n
	case 4:
		return uint64(int64(signExtend(v, size)) >> min(n, 63))
	}
	return v << n
}

func (m *Machine) shiftImm(in *inst) error {
	if in.mem {
		return in.unknown()
	}
	n := uint64(uint8(in.imm))
	size := 2 << (in.op - 0x71)
	dst, src := in.rm, m.vec[in.rm]
	if in.vex {
		dst = in.vvvv
	}
	if in.op == 0x73 && (in.digit == 3 || in.digit == 7) { // psrldq, pslldq
		var r vec
		for i := range in.vsize() / 16 {
			l := src.lane(i)
			if in.digit == 3 {
				r.setLane(i, alignBytes(lane{}, l, uint8(min(n, 16)), i))
			} else {
				r.setLane(i, alignBytes(l, lane{}, uint8(16-min(n, 16)), i))
			}
		}
		m.setVec(in, dst, r)
		return nil
	}
	switch in.digit {
	case 2, 6:
	case 4:
		if size == 8 {
			return in.unknown()
		}
	default:
		return in.unknown()
	}
	m.shiftAll(in, dst, src, in.digit, size, n)
	return nil
}

func (m *Machine) shiftAll(in *inst, dst uint8, src vec, digit uint8, size int, n uint64) {
	f := each(size, func(a, _ uint64) uint64 { return shiftElem(digit, a, n, size) })
	var r vec
	for i := range in.vsize() / 16 {
		r.setLane(i, f(src.lane(i), lane{}, 0, i))
	}
	m.setVec(in, dst, r)
}
