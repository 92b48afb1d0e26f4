package x86eval

// Most instructions of compiled code have one of a few forms, of 4 or 8 bytes and without prefixes that matter.
// Decoding finds an instruction's form. The functions here execute these forms as exec does, but with fewer checks.
const (
	quickNone  = iota
	quickLoad  // mov register, register or memory
	quickStore // mov register or memory, register
	quickAddress
	quickJump // jcc
	quickInto // arithmetic of a register and what is in a register or memory
	quickFrom // of a register or, where only flags come out, memory, and a register
	quickImmediate
	quickTest // of registers
	quickPush
	quickPop
)

// quickForm says which form an instruction has.
func quickForm(in *inst) uint8 {
	if in.vex || in.opsize || in.addr32 || in.lock || in.seg != 0 {
		return quickNone
	}
	op := in.op
	if in.opMap == map0F && op&0xf0 == 0x80 {
		return quickJump
	}
	if in.opMap != map1Byte {
		return quickNone
	}
	const compare = 7
	switch {
	case op == 0x8b:
		return quickLoad
	case op == 0x89:
		return quickStore
	case op == 0x8d && in.mem:
		return quickAddress
	case op&0xf0 == 0x70:
		return quickJump
	case op < 0x40 && op&7 == 3:
		return quickInto
	case op < 0x40 && op&7 == 1 && (!in.mem || op>>3 == compare):
		return quickFrom
	case (op == 0x81 || op == 0x83) && (!in.mem || in.digit == compare):
		return quickImmediate
	case op == 0x85 && !in.mem:
		return quickTest
	case op&0xf8 == 0x50:
		return quickPush
	case op&0xf8 == 0x58:
		return quickPop
	}
	return quickNone
}

// execQuick executes an instruction that has a quick form; m.rip already points behind it.
func (m *Machine) execQuick(in *inst) error {
	size := 4
	if in.w {
		size = 8
	}
	switch in.quick {
	case quickLoad:
		v, err := m.quickRM(in, size)
		if err == nil {
			m.Regs[in.reg] = v
		}
		return err
	case quickStore:
		if in.mem {
			return m.writeUint(m.offset(in), size, m.Regs[in.reg])
		}
		m.Regs[in.rm] = m.Regs[in.reg] & mask(size)
	case quickAddress:
		m.Regs[in.reg] = m.offset(in) & mask(size)
	case quickJump:
		return m.branchIf(in)
	case quickInto:
		b, err := m.quickRM(in, size)
		if err != nil {
			return err
		}
		r, ok, err := m.arith(in.op>>3, m.Regs[in.reg]&mask(size), b, size)
		if ok && err == nil {
			m.Regs[in.reg] = r
		}
		return err
	case quickFrom, quickImmediate:
		kind, b := in.digit, uint64(in.imm)
		if in.quick == quickFrom {
			kind, b = in.op>>3, m.Regs[in.reg]&mask(size)
		}
		a, err := m.quickRM(in, size)
		if err != nil {
			return err
		}
		r, ok, err := m.arith(kind, a, b, size)
		if ok && err == nil {
			m.Regs[in.rm] = r
		}
		return err
	case quickTest:
		m.logic(m.Regs[in.rm]&m.Regs[in.reg], size)
	case quickPush:
		return m.push(m.Regs[in.rm])
	case quickPop:
		v, err := m.pop()
		if err == nil {
			m.Regs[in.rm] = v
		}
		return err
	}
	return nil
}

// quickRM is getRM for quick forms.
func (m *Machine) quickRM(in *inst, size int) (uint64, error) {
	if in.mem {
		return m.readUint(m.offset(in), size)
	}
	return m.Regs[in.rm] & mask(size), nil
}
