package x86eval

import "math/bits"

// execBMI executes the BMI1 and BMI2 instructions, which are VEX-encoded but work
// on general-purpose registers. Not done if the instruction is another.
func (m *Machine) execBMI(in *inst) (done bool, err error) {
	size := 4
	if in.w {
		size = 8
	}
	width := uint64(8 * size)
	key := in.key()
	switch key {
	case vkey(map0F38, ppNone, 0xf2), vkey(map0F38, ppNone, 0xf3), vkey(map0F38, ppNone, 0xf5),
		vkey(map0F38, ppF3, 0xf5), vkey(map0F38, ppF2, 0xf5), vkey(map0F38, ppF2, 0xf6),
		vkey(map0F38, ppNone, 0xf7), vkey(map0F38, pp66, 0xf7), vkey(map0F38, ppF3, 0xf7),
		vkey(map0F38, ppF2, 0xf7), vkey(map0F3A, ppF2, 0xf0):
	default:
		return false, nil
	}
	if in.l256 || in.opMap == map0F3A && in.vvvv != 0 {
		return true, in.unknown()
	}
	v, err := m.getRM(in, size)
	if err != nil {
		return true, err
	}
	other := m.Regs[in.vvvv] & mask(size)
	var r uint64
	switch key {
	case vkey(map0F38, ppNone, 0xf2): // andn
		m.setReg(in, in.reg, size, m.logicUndefParity(^other&v, size))
	case vkey(map0F38, ppNone, 0xf3):
		var c bool
		switch in.digit {
		case 1: // blsr
			r, c = v&(v-1), v == 0
		case 2: // blsmsk
			r, c = v^(v-1), v == 0
		case 3: // blsi
			r, c = v&-v, v != 0
		default:
			return true, in.unknown()
		}
		r = m.logicUndefParity(r, size)
		m.setFlags(flagC, b2u(c)*flagC, 0)
		m.setReg(in, in.vvvv, size, r)
	case vkey(map0F38, ppNone, 0xf5): // bzhi
		n := other & 0xff
		r = v
		if n < width {
			r &= 1<<n - 1
		}
		r = m.logicUndefParity(r, size)
		m.setFlags(flagC, b2u(n >= width)*flagC, 0)
		m.setReg(in, in.reg, size, r)
	case vkey(map0F38, ppF3, 0xf5): // pext
		for k := 0; v != 0; k++ {
			low := v & -v
			r |= b2u(other&low != 0) << k
			v &^= low
		}
		m.setReg(in, in.reg, size, r)
	case vkey(map0F38, ppF2, 0xf5): // pdep
		for k := 0; v != 0; k++ {
			low := v & -v
			r |= other >> k & 1 * low
			v &^= low
		}
		m.setReg(in, in.reg, size, r)
	case vkey(map0F38, ppF2, 0xf6): // mulx: the high half is written last
		hi, lo := bits.Mul64(m.Regs[RDX]&mask(size), v)
		if size == 4 {
			hi = lo >> 32
		}
		m.setReg(in, in.vvvv, size, lo)
		m.setReg(in, in.reg, size, hi)
	case vkey(map0F38, ppNone, 0xf7): // bextr
		r = v >> (other & 0xff)
		if n := other >> 8 & 0xff; n < 64 {
			r &= 1<<n - 1
		}
		m.setFlags(flagsAll, b2u(r == 0)*flagZ, flagS|flagP)
		m.setReg(in, in.reg, size, r)
	case vkey(map0F38, pp66, 0xf7): // shlx
		m.setReg(in, in.reg, size, v<<(other%width))
	case vkey(map0F38, ppF3, 0xf7): // sarx
		m.setReg(in, in.reg, size, uint64(int64(signExtend(v, size))>>(other%width)))
	case vkey(map0F38, ppF2, 0xf7): // shrx
		m.setReg(in, in.reg, size, v>>(other%width))
	case vkey(map0F3A, ppF2, 0xf0): // rorx
		n := uint64(in.imm) % width
		m.setReg(in, in.reg, size, v>>n|v<<(width-n))
	}
	return true, nil
}

// logicUndefParity is logic for the instructions that leave the parity undefined.
func (m *Machine) logicUndefParity(r uint64, size int) uint64 {
	r = m.logic(r, size)
	m.undef |= flagP
	return r
}
