package x86eval

import "math/bits"

// Flags, where rflags has them. The auxiliary carry is not modelled: only the
// decimal instructions, which 64-bit mode lacks, and pushf and lahf see it.
const (
	flagC = 1 << 0
	flagP = 1 << 2
	flagZ = 1 << 6
	flagS = 1 << 7
	flagO = 1 << 11

	flagsAll = flagC | flagP | flagZ | flagS | flagO
)

func b2u(b bool) uint64 {
	if b {
		return 1
	}
	return 0
}

// setFlags gives the flags in which new values, and marks those of undef as
// having none.
func (m *Machine) setFlags(which, values, undef uint64) {
	m.flags = m.flags&^which | values&which
	m.undef = m.undef&^which | undef
}

// flag reads a flag. A flag without a defined value must not steer anything.
func (m *Machine) flag(f uint64) (bool, error) {
	if m.undef&f != 0 {
		return false, unsupported("use of an undefined flag")
	}
	return m.flags&f != 0, nil
}

func (m *Machine) carry() (uint64, error) {
	c, err := m.flag(flagC)
	return b2u(c), err
}

// cond evaluates a condition code as encoded in jcc, setcc and cmovcc.
func (m *Machine) cond(cc uint8) (bool, error) {
	var need uint64
	switch cc >> 1 & 7 {
	case 0:
		need = flagO
	case 1:
		need = flagC
	case 2:
		need = flagZ
	case 3:
		need = flagC | flagZ
	case 4:
		need = flagS
	case 5:
		need = flagP
	case 6:
		need = flagS | flagO
	case 7:
		need = flagS | flagO | flagZ
	}
	if m.undef&need != 0 {
		return false, unsupported("use of an undefined flag")
	}
	less := (m.flags&flagS != 0) != (m.flags&flagO != 0)
	var v bool
	switch cc >> 1 & 7 {
	case 6:
		v = less
	case 7:
		v = less || m.flags&flagZ != 0
	default:
		v = m.flags&need != 0
	}
	return v != (cc&1 != 0), nil
}

// resultFlags are zero, sign and parity of a result.
func resultFlags(v uint64, size int) uint64 {
	v &= mask(size)
	return b2u(v == 0)*flagZ | b2u(v&signBit(size) != 0)*flagS |
		b2u(bits.OnesCount8(uint8(v))%2 == 0)*flagP
}

func (m *Machine) add(a, b, carry uint64, size int) uint64 {
	a, b = a&mask(size), b&mask(size)
	sum, c := bits.Add64(a, b, carry)
	r := sum & mask(size)
	if size < 8 {
		c = b2u(sum > mask(size))
	}
	o := b2u((a^r)&(b^r)&signBit(size) != 0)
	m.setFlags(flagsAll, resultFlags(r, size)|c*flagC|o*flagO, 0)
	return r
}

func (m *Machine) sub(a, b, borrow uint64, size int) uint64 {
	a, b = a&mask(size), b&mask(size)
	diff, c := bits.Sub64(a, b, borrow)
	r := diff & mask(size)
	o := b2u((a^b)&(a^r)&signBit(size) != 0)
	m.setFlags(flagsAll, resultFlags(r, size)|c*flagC|o*flagO, 0)
	return r
}

func (m *Machine) logic(r uint64, size int) uint64 {
	m.setFlags(flagsAll, resultFlags(r, size), 0)
	return r & mask(size)
}

// incDec adds 1 or -1, which leaves the carry alone.
func (m *Machine) incDec(a uint64, dec bool, size int) uint64 {
	flags, undef := m.flags, m.undef
	var r uint64
	if dec {
		r = m.sub(a, 1, 0, size)
	} else {
		r = m.add(a, 1, 0, size)
	}
	m.flags = m.flags&^flagC | flags&flagC
	m.undef |= undef & flagC
	return r
}

// arith does one of the eight operations that share an encoding. Not ok for cmp,
// which has no result.
func (m *Machine) arith(kind uint8, a, b uint64, size int) (r uint64, ok bool, err error) {
	var c uint64
	switch kind {
	case 0:
		return m.add(a, b, 0, size), true, nil
	case 1:
		return m.logic(a|b, size), true, nil
	case 2:
		if c, err = m.carry(); err != nil {
			return 0, false, err
		}
		return m.add(a, b, c, size), true, nil
	case 3:
		if c, err = m.carry(); err != nil {
			return 0, false, err
		}
		return m.sub(a, b, c, size), true, nil
	case 4:
		return m.logic(a&b, size), true, nil
	case 5:
		return m.sub(a, b, 0, size), true, nil
	case 6:
		return m.logic(a^b, size), true, nil
	}
	m.sub(a, b, 0, size)
	return 0, false, nil
}

// shift does rol, ror, rcl, rcr, shl, shr, shl and sar, as the opcode extension
// numbers them.
func (m *Machine) shift(kind uint8, v, count uint64, size int) (uint64, error) {
	width := uint64(8 * size)
	if size == 8 {
		count &= 63
	} else {
		count &= 31
	}
	if count == 0 {
		return v, nil
	}
	top := signBit(size)
	var r, c, o uint64
	var undef uint64
	if count != 1 {
		undef = flagO
	}
	switch kind {
	case 0: // rol
		k := count % width
		r = (v<<k | v>>(width-k)) & mask(size)
		c = r & 1
		o = c ^ b2u(r&top != 0)
	case 1: // ror
		k := count % width
		r = (v>>k | v<<(width-k)) & mask(size)
		c = b2u(r&top != 0)
		o = c ^ b2u(r&(top>>1) != 0)
	case 2, 3: // rcl, rcr
		var err error
		if c, err = m.carry(); err != nil {
			return 0, err
		}
		r = v
		for range count {
			if kind == 2 {
				r, c = (r<<1|c)&mask(size), b2u(r&top != 0)
			} else {
				r, c = r>>1|c*top, r&1
			}
		}
		if kind == 2 {
			o = c ^ b2u(r&top != 0)
		} else {
			o = b2u(r&top != 0) ^ b2u(r&(top>>1) != 0)
		}
	case 4, 6: // shl
		r = v << count & mask(size)
		c = v >> (width - count) & 1
		o = c ^ b2u(r&top != 0)
	case 5: // shr
		r = v >> count
		c = v >> (count - 1) & 1
		o = b2u(v&top != 0)
	case 7: // sar
		s := signExtend(v, size)
		r = uint64(int64(s)>>count) & mask(size)
		c = uint64(int64(s)>>(count-1)) & 1
	}
	if kind < 4 {
		m.setFlags(flagC|flagO, c*flagC|o*flagO, undef)
		return r, nil
	}
	if kind != 7 && count >= width {
		undef |= flagC
	}
	m.setFlags(flagsAll, resultFlags(r, size)|c*flagC|o*flagO, undef)
	return r, nil
}

// double does shld and shrd.
func (m *Machine) double(right bool, v, fill, count uint64, size int) (uint64, error) {
	width := uint64(8 * size)
	if size == 8 {
		count &= 63
	} else {
		count &= 31
	}
	if count == 0 {
		return v, nil
	}
	if count > width {
		return 0, unsupported("undefined double shift")
	}
	var r, c uint64
	if right {
		r = (v>>count | fill<<(width-count)) & mask(size)
		c = v >> (count - 1) & 1
	} else {
		r = (v<<count | fill>>(width-count)) & mask(size)
		c = v >> (width - count) & 1
	}
	o := b2u((v^r)&signBit(size) != 0)
	var undef uint64
	if count != 1 {
		undef = flagO
	}
	m.setFlags(flagsAll, resultFlags(r, size)|c*flagC|o*flagO, undef)
	return r, nil
}

// mulFlags sets carry and overflow, all that a multiplication defines.
func (m *Machine) mulFlags(overflow bool) {
	m.setFlags(flagsAll, b2u(overflow)*(flagC|flagO), flagZ|flagS|flagP)
}

// imul multiplies to a result as wide as the operands.
func (m *Machine) imul(a, b uint64, size int) uint64 {
	lo, hi := mulSigned(signExtend(a, size), signExtend(b, size))
	r := lo & mask(size)
	// The product fits if extending the result's sign gives all of it back.
	ext := signExtend(r, size)
	m.mulFlags(lo != ext || hi != uint64(int64(ext)>>63))
	return r
}

// mulSigned is the signed product of 64 by 64 bits.
func mulSigned(a, b uint64) (lo, hi uint64) {
	hi, lo = bits.Mul64(a, b)
	if int64(a) < 0 {
		hi -= b
	}
	if int64(b) < 0 {
		hi -= a
	}
	return lo, hi
}

// mulWide does the one-operand mul and imul, into rdx:rax or ax.
func (m *Machine) mulWide(in *inst, v uint64, size int, signed bool) {
	a := m.Regs[RAX] & mask(size)
	var lo, hi uint64
	if signed {
		lo, hi = mulSigned(signExtend(a, size), signExtend(v, size))
		ext := signExtend(lo, size)
		m.mulFlags(lo != ext || hi != uint64(int64(ext)>>63))
	} else {
		hi, lo = bits.Mul64(a, v)
		m.mulFlags(hi != 0 || lo&^mask(size) != 0)
	}
	switch size {
	case 1:
		m.setReg(in, RAX, 2, lo)
	case 8:
		m.Regs[RAX], m.Regs[RDX] = lo, hi
	default:
		m.setReg(in, RAX, size, lo)
		m.setReg(in, RDX, size, lo>>(8*uint(size)))
	}
}

// divWide does div and idiv.
func (m *Machine) divWide(in *inst, d uint64, size int, signed bool) error {
	var lo, hi uint64
	switch size {
	case 1:
		lo = m.Regs[RAX] & 0xffff
		if signed {
			lo = signExtend(lo, 2)
		}
	case 8:
		lo, hi = m.Regs[RAX], m.Regs[RDX]
	default:
		lo = m.Regs[RDX]&mask(size)<<(8*uint(size)) | m.Regs[RAX]&mask(size)
		if signed {
			lo = signExtend(lo, 2*size)
		}
	}
	if signed && size < 8 {
		hi = uint64(int64(lo) >> 63)
	}
	if signed {
		d = signExtend(d, size)
	}

	// Divide magnitudes; the remainder takes the dividend's sign.
	negRem, negQuo := false, false
	if signed {
		if int64(hi) < 0 {
			var borrow uint64
			lo, borrow = bits.Sub64(0, lo, 0)
			hi, _ = bits.Sub64(0, hi, borrow)
			negRem, negQuo = true, true
		}
		if int64(d) < 0 {
			d = -d
			negQuo = !negQuo
		}
	}
	if hi >= d { // also covers d == 0
		return trap("division error")
	}
	q, r := bits.Div64(hi, lo, d)
	most := mask(size)
	if signed {
		most = signBit(size) - 1
		if negQuo {
			most++
		}
	}
	if q > most {
		return trap("division error")
	}
	if negQuo {
		q = -q
	}
	if negRem {
		r = -r
	}
	if size == 1 {
		m.setReg(in, RAX, 2, r&0xff<<8|q&0xff)
	} else {
		m.setReg(in, RAX, size, q)
		m.setReg(in, RDX, size, r)
	}
	m.setFlags(flagsAll, 0, flagsAll)
	return nil
}

// scan does bsf and bsr. With nothing to find, the destination stays: that is
// what processors do and compilers rely on, but whether the upper half of a
// 64-bit register survives then differs.
func (m *Machine) scan(in *inst, v uint64, size int, reverse bool) error {
	if v == 0 {
		if size == 4 && m.Regs[in.reg]>>32 != 0 {
			return unsupported("undefined bit scan")
		}
		m.setFlags(flagsAll, flagZ, flagsAll&^flagZ)
		return nil
	}
	r := bits.TrailingZeros64(v)
	if reverse {
		r = bits.Len64(v) - 1
	}
	m.setReg(in, in.reg, size, uint64(r))
	m.setFlags(flagsAll, 0, flagsAll&^flagZ)
	return nil
}

// count does tzcnt, lzcnt.
func (m *Machine) count(in *inst, v uint64, size int, leading bool) {
	width := 8 * size
	r := min(bits.TrailingZeros64(v), width)
	if leading {
		r = width - bits.Len64(v)
	}
	m.setReg(in, in.reg, size, uint64(r))
	m.setFlags(flagsAll, b2u(v == 0)*flagC|b2u(r == 0)*flagZ, flagO|flagS|flagP)
}
