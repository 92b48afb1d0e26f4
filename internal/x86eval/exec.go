package x86eval

import "math/bits"

// exec executes a decoded instruction; m.rip already points behind it.
func (m *Machine) exec(in *inst) error {
	switch {
	case in.opMap == map1Byte:
		return m.exec1(in)
	case in.opMap == map0F && !in.vex:
		if done, err := m.exec0F(in); done || err != nil {
			return err
		}
	case in.opMap == map0F38 && !in.vex && in.op&^1 == 0xf0 && in.pp <= pp66:
		return m.movbe(in)
	case in.vex:
		if done, err := m.execBMI(in); done || err != nil {
			return err
		}
	}
	return m.execVec(in)
}

func (in *inst) unknown() error {
	if in.hasModRM {
		return unsupported("opcode %d:%02x/%d prefix %d vex %t", in.opMap, in.op, in.digit, in.pp, in.vex)
	}
	return unsupported("opcode %d:%02x prefix %d vex %t", in.opMap, in.op, in.pp, in.vex)
}

// near refuses the operand size prefix where processors disagree about it, as
// they do for branches, or where it would misalign the stack.
func (in *inst) near() error {
	if in.opsize && !in.w {
		return unsupported("16-bit branch or stack operation")
	}
	return nil
}

// exec1 executes the one-byte opcodes.
func (m *Machine) exec1(in *inst) error {
	op := in.op
	switch {
	case op < 0x40:
		return m.execArith(in, op>>3, op&7)
	case op&0xf8 == 0x50:
		if err := in.near(); err != nil {
			return err
		}
		return m.push(m.Regs[in.rm])
	case op&0xf8 == 0x58:
		if err := in.near(); err != nil {
			return err
		}
		v, err := m.pop()
		if err == nil {
			m.Regs[in.rm] = v
		}
		return err
	case op&0xf0 == 0x70:
		return m.branchIf(in)
	case op&0xf8 == 0xb0:
		m.setReg(in, in.rm, 1, uint64(in.imm))
		return nil
	case op&0xf8 == 0xb8:
		m.setReg(in, in.rm, in.width(), uint64(in.imm))
		return nil
	case op&0xf8 == 0x90:
		// 90 is nop (f3: pause) unless REX.B makes it an exchange with r8. The
		// 32-bit form of an exchange clears upper halves, but nop does not.
		if in.rm == RAX {
			return nil
		}
		size := in.width()
		a, b := m.getReg(in, RAX, size), m.getReg(in, in.rm, size)
		m.setReg(in, RAX, size, b)
		m.setReg(in, in.rm, size, a)
		return nil
	}

	switch op {
	case 0x63: // movsxd
		size := in.width()
		if size == 2 {
			return in.unknown()
		}
		v, err := m.getRM(in, 4)
		if err == nil {
			m.setReg(in, in.reg, size, signExtend(v, 4))
		}
		return err
	case 0x68, 0x6a:
		if err := in.near(); err != nil {
			return err
		}
		return m.push(uint64(in.imm))
	case 0x69, 0x6b:
		size := in.width()
		v, err := m.getRM(in, size)
		if err == nil {
			m.setReg(in, in.reg, size, m.imul(v, uint64(in.imm)&mask(size), size))
		}
		return err
	case 0x80, 0x81, 0x83:
		return m.modify(in, in.widthB(), func(v uint64, size int) (uint64, bool, error) {
			return m.arith(in.digit, v, uint64(in.imm), size)
		})
	case 0x84, 0x85:
		size := in.widthB()
		v, err := m.getRM(in, size)
		if err == nil {
			m.logic(v&m.getReg(in, in.reg, size), size)
		}
		return err
	case 0x86, 0x87:
		return m.modify(in, in.widthB(), func(v uint64, size int) (uint64, bool, error) {
			r := m.getReg(in, in.reg, size)
			m.setReg(in, in.reg, size, v)
			return r, true, nil
		})
	case 0x88, 0x89:
		size := in.widthB()
		return m.setRM(in, size, m.getReg(in, in.reg, size))
	case 0x8a, 0x8b:
		size := in.widthB()
		v, err := m.getRM(in, size)
		if err == nil {
			m.setReg(in, in.reg, size, v)
		}
		return err
	case 0x8d:
		if !in.mem {
			return in.unknown()
		}
		m.setReg(in, in.reg, in.width(), m.offset(in))
		return nil
	case 0x8f:
		if err := in.near(); err != nil {
			return err
		}
		if in.digit != 0 {
			return in.unknown()
		}
		v, err := m.pop() // before the address, which may depend on rsp
		if err != nil {
			return err
		}
		return m.setRM(in, 8, v)
	case 0x98:
		size := in.width()
		m.setReg(in, RAX, size, signExtend(m.Regs[RAX]&mask(size/2), size/2))
		return nil
	case 0x99:
		size := in.width()
		m.setReg(in, RDX, size, uint64(int64(signExtend(m.Regs[RAX], size))>>63))
		return nil
	case 0xa4, 0xa5, 0xaa, 0xab:
		return m.execString(in)
	case 0xa8, 0xa9:
		size := in.widthB()
		m.logic(m.getReg(in, RAX, size)&uint64(in.imm), size)
		return nil
	case 0xc0, 0xc1, 0xd0, 0xd1, 0xd2, 0xd3:
		count := uint64(in.imm)
		switch op &^ 1 {
		case 0xd0:
			count = 1
		case 0xd2:
			count = m.Regs[RCX]
		}
		return m.modify(in, in.widthB(), func(v uint64, size int) (uint64, bool, error) {
			r, err := m.shift(in.digit, v, count&0xff, size)
			return r, true, err
		})
	case 0xc2, 0xc3:
		if err := in.near(); err != nil {
			return err
		}
		if err := m.ret(); err != nil {
			return err
		}
		m.Regs[RSP] += uint64(uint16(in.imm))
		return nil
	case 0xc6, 0xc7:
		if in.digit != 0 {
			return in.unknown()
		}
		return m.setRM(in, in.widthB(), uint64(in.imm))
	case 0xc9: // leave
		if err := in.near(); err != nil {
			return err
		}
		v, err := m.readUint(m.Regs[RBP], 8)
		if err == nil {
			m.Regs[RSP] = m.Regs[RBP] + 8
			m.Regs[RBP] = v
		}
		return err
	case 0xcc:
		return trap("int3")
	case 0xe8:
		if err := in.near(); err != nil {
			return err
		}
		if err := m.enter(in.next); err != nil {
			return err
		}
		return m.branch(in)
	case 0xe9, 0xeb:
		if err := in.near(); err != nil {
			return err
		}
		return m.branch(in)
	case 0xf4:
		return trap("hlt")
	case 0xf5: // cmc
		c, err := m.carry()
		m.setFlags(flagC, (c^1)*flagC, 0)
		return err
	case 0xf6, 0xf7:
		return m.execGroup3(in)
	case 0xf8:
		m.setFlags(flagC, 0, 0)
		return nil
	case 0xf9:
		m.setFlags(flagC, flagC, 0)
		return nil
	case 0xfc: // cld: the direction is never anything else
		return nil
	case 0xfe, 0xff:
		return m.execGroup5(in)
	}
	return in.unknown()
}

// modify replaces the r/m operand by f of it, unless f says not to. The address is
// computed before f, which may change the registers it is made of.
func (m *Machine) modify(in *inst, size int, f func(v uint64, size int) (uint64, bool, error)) error {
	if !in.mem {
		r, store, err := f(m.getReg(in, in.rm, size), size)
		if err == nil && store {
			m.setReg(in, in.rm, size, r)
		}
		return err
	}
	addr, err := m.address(in)
	if err != nil {
		return err
	}
	v, err := m.readUint(addr, size)
	if err != nil {
		return err
	}
	r, store, err := f(v, size)
	if err != nil || !store {
		return err
	}
	return m.writeUint(addr, size, r)
}

// execArith executes the first 64 opcodes: eight operations in six forms.
func (m *Machine) execArith(in *inst, kind, form uint8) error {
	size := in.widthB()
	switch form {
	case 0, 1:
		return m.modify(in, size, func(v uint64, size int) (uint64, bool, error) {
			return m.arith(kind, v, m.getReg(in, in.reg, size), size)
		})
	case 2, 3:
		b, err := m.getRM(in, size)
		if err != nil {
			return err
		}
		r, ok, err := m.arith(kind, m.getReg(in, in.reg, size), b, size)
		if err == nil && ok {
			m.setReg(in, in.reg, size, r)
		}
		return err
	case 4, 5:
		r, ok, err := m.arith(kind, m.getReg(in, RAX, size), uint64(in.imm), size)
		if err == nil && ok {
			m.setReg(in, RAX, size, r)
		}
		return err
	}
	return in.unknown()
}

// branchIf executes jcc.
func (m *Machine) branchIf(in *inst) error {
	if err := in.near(); err != nil {
		return err
	}
	taken, err := m.cond(in.op)
	if err != nil || !taken {
		return err
	}
	return m.branch(in)
}

// execGroup3 executes test, not, neg, mul, imul, div and idiv.
func (m *Machine) execGroup3(in *inst) error {
	return m.modify(in, in.widthB(), func(v uint64, size int) (uint64, bool, error) {
		switch in.digit {
		case 0, 1:
			m.logic(v&uint64(in.imm), size)
		case 2:
			return ^v, true, nil
		case 3:
			return m.sub(0, v, 0, size), true, nil
		case 4, 5:
			m.mulWide(in, v, size, in.digit == 5)
		case 6, 7:
			return 0, false, m.divWide(in, v, size, in.digit == 7)
		}
		return 0, false, nil
	})
}

// execGroup5 executes inc, dec and the indirect call, jmp and push.
func (m *Machine) execGroup5(in *inst) error {
	if in.digit < 2 {
		return m.modify(in, in.widthB(), func(v uint64, size int) (uint64, bool, error) {
			return m.incDec(v, in.digit == 1, size), true, nil
		})
	}
	if in.op == 0xfe {
		return in.unknown()
	}
	if err := in.near(); err != nil {
		return err
	}
	switch in.digit {
	case 2, 4:
		isCall := in.digit == 2
		if in.mem {
			slot, err := m.address(in)
			if err != nil {
				return err
			}
			return m.through(slot, isCall, in.next)
		}
		if isCall {
			return m.call(m.Regs[in.rm], in.next)
		}
		return m.jump(m.Regs[in.rm])
	case 6:
		v, err := m.getRM(in, 8)
		if err != nil {
			return err
		}
		return m.push(v)
	}
	return in.unknown()
}

// execString executes movs and stos. Each element counts as a step.
func (m *Machine) execString(in *inst) error {
	if in.pp == ppF2 || in.addr32 || in.seg != 0 {
		return unsupported("string instruction with prefix")
	}
	size := in.widthB()
	n := uint64(1)
	rep := in.pp == ppF3
	if rep {
		n = m.Regs[RCX]
	}
	for ; n > 0; n-- {
		if rep {
			if m.steps >= m.maxSteps {
				return limit("steps")
			}
			m.steps++
		}
		v := m.Regs[RAX]
		if in.op < 0xa8 {
			var err error
			if v, err = m.readUint(m.Regs[RSI], size); err != nil {
				return err
			}
			m.Regs[RSI] += uint64(size)
		}
		if err := m.writeUint(m.Regs[RDI], size, v); err != nil {
			return err
		}
		m.Regs[RDI] += uint64(size)
		if rep {
			m.Regs[RCX]--
		}
	}
	return nil
}

// exec0F executes the general-purpose opcodes behind 0f. Not done if the opcode
// is none of them.
func (m *Machine) exec0F(in *inst) (done bool, err error) {
	op := in.op
	repeat := in.pp >= ppF3
	switch {
	case op == 0x0b:
		return true, trap("ud2")
	case op == 0x0d && in.mem, op == 0x18 && in.mem, op >= 0x19 && op <= 0x1f:
		return true, nil // hints: prefetch, nop, endbr64
	case op&0xf0 == 0x80:
		return true, m.branchIf(in)
	case op == 0xae && in.pp == ppNone && !in.mem && in.digit >= 5:
		return true, nil // fences
	case op == 0xb8, op == 0xbc, op == 0xbd:
		return true, m.execCount(in)
	}
	integer := op&0xf0 == 0x40 || op&0xf0 == 0x90 ||
		op >= 0xa3 && op <= 0xbf && op != 0xae || op >= 0xc0 && op <= 0xc1 || op == 0xc3 || op >= 0xc8 && op <= 0xcf
	if !integer {
		return false, nil
	}
	if repeat {
		return true, in.unknown()
	}
	size := in.width()
	switch {
	case op < 0x50: // cmovcc: the load happens in any case, and so does the zeroing
		v, err := m.getRM(in, size)
		if err != nil {
			return true, err
		}
		yes, err := m.cond(op)
		if err != nil {
			return true, err
		}
		if !yes {
			v = m.getReg(in, in.reg, size)
		}
		m.setReg(in, in.reg, size, v)
		return true, nil
	case op < 0xa0: // setcc
		yes, err := m.cond(op)
		if err != nil {
			return true, err
		}
		return true, m.setRM(in, 1, b2u(yes))
	case op >= 0xc8: // bswap
		if size == 2 {
			return true, in.unknown()
		}
		v := bits.ReverseBytes64(m.Regs[in.rm])
		if size == 4 {
			v >>= 32
		}
		m.setReg(in, in.rm, size, v)
		return true, nil
	}

	switch op {
	case 0xa3, 0xab, 0xb3, 0xbb:
		return true, m.bitTest(in, op>>3&3, m.getReg(in, in.reg, size), true)
	case 0xba:
		if in.digit < 4 {
			return true, in.unknown()
		}
		return true, m.bitTest(in, in.digit&3, uint64(in.imm), false)
	case 0xa4, 0xa5, 0xac, 0xad:
		count := uint64(in.imm) & 0xff
		if op&1 != 0 {
			count = m.Regs[RCX] & 0xff
		}
		return true, m.modify(in, size, func(v uint64, size int) (uint64, bool, error) {
			r, err := m.double(op >= 0xac, v, m.getReg(in, in.reg, size), count, size)
			return r, true, err
		})
	case 0xaf:
		v, err := m.getRM(in, size)
		if err == nil {
			m.setReg(in, in.reg, size, m.imul(m.getReg(in, in.reg, size), v, size))
		}
		return true, err
	case 0xb0, 0xb1:
		return true, m.cmpxchg(in, in.widthB())
	case 0xb6, 0xb7, 0xbe, 0xbf:
		from := 1 + int(op&1)
		v, err := m.getRM(in, from)
		if err != nil {
			return true, err
		}
		if op >= 0xbe {
			v = signExtend(v, from)
		}
		m.setReg(in, in.reg, size, v)
		return true, nil
	case 0xc0, 0xc1:
		return true, m.modify(in, in.widthB(), func(v uint64, size int) (uint64, bool, error) {
			sum := m.add(v, m.getReg(in, in.reg, size), 0, size)
			m.setReg(in, in.reg, size, v)
			return sum, true, nil
		})
	case 0xc3: // movnti
		if !in.mem || in.opsize {
			return true, in.unknown()
		}
		return true, m.setRM(in, size, m.getReg(in, in.reg, size))
	}
	return true, in.unknown()
}

// execCount executes bsf, bsr, tzcnt, lzcnt and popcnt.
func (m *Machine) execCount(in *inst) error {
	if in.pp == ppF2 || in.op == 0xb8 && in.pp != ppF3 {
		return in.unknown()
	}
	size := in.width()
	v, err := m.getRM(in, size)
	if err != nil {
		return err
	}
	switch {
	case in.op == 0xb8:
		m.setReg(in, in.reg, size, uint64(bits.OnesCount64(v)))
		m.setFlags(flagsAll, b2u(v == 0)*flagZ, 0)
		return nil
	case in.pp == ppF3:
		m.count(in, v, size, in.op == 0xbd)
		return nil
	}
	return m.scan(in, v, size, in.op == 0xbd)
}

// bitTest executes bt, bts, btr and btc. A bit number in a register addresses
// memory beyond the operand; an immediate one does not.
func (m *Machine) bitTest(in *inst, kind uint8, bit uint64, wide bool) error {
	size := in.width()
	width := uint64(8 * size)
	if in.mem && wide {
		addr, err := m.address(in)
		if err != nil {
			return err
		}
		n := int64(signExtend(bit, size))
		addr += uint64(n>>bits.TrailingZeros64(width)) * uint64(size)
		v, err := m.readUint(addr, size)
		if err != nil {
			return err
		}
		if r, store := m.bitChange(kind, v, bit%width); store {
			return m.writeUint(addr, size, r)
		}
		return nil
	}
	return m.modify(in, size, func(v uint64, _ int) (uint64, bool, error) {
		r, store := m.bitChange(kind, v, bit%width)
		return r, store, nil
	})
}

func (m *Machine) bitChange(kind uint8, v, bit uint64) (r uint64, store bool) {
	m.setFlags(flagC, v>>bit&1*flagC, flagO|flagS|flagP)
	b := uint64(1) << bit
	switch kind {
	case 1:
		return v | b, true
	case 2:
		return v &^ b, true
	case 3:
		return v ^ b, true
	}
	return v, false
}

// cmpxchg compares and exchanges memory; what it does to the upper half of a
// register that it leaves alone is not specified.
func (m *Machine) cmpxchg(in *inst, size int) error {
	if !in.mem {
		return in.unknown()
	}
	return m.modify(in, size, func(v uint64, size int) (uint64, bool, error) {
		acc := m.getReg(in, RAX, size)
		fresh := m.getReg(in, in.reg, size)
		m.sub(acc, v, 0, size)
		if acc == v {
			return fresh, true, nil
		}
		m.setReg(in, RAX, size, v)
		return 0, false, nil
	})
}

func (m *Machine) movbe(in *inst) error {
	if !in.mem {
		return in.unknown()
	}
	size := in.width()
	shift := 64 - 8*uint(size)
	if in.op&1 != 0 {
		return m.setRM(in, size, bits.ReverseBytes64(m.getReg(in, in.reg, size)<<shift))
	}
	v, err := m.getRM(in, size)
	if err == nil {
		m.setReg(in, in.reg, size, bits.ReverseBytes64(v<<shift))
	}
	return err
}
