package x86eval

// Operand sizes are in bytes throughout.

func mask(size int) uint64 { return ^uint64(0) >> (64 - 8*uint(size)) }

func signBit(size int) uint64 { return 1 << (8*uint(size) - 1) }

func signExtend(v uint64, size int) uint64 {
	shift := 64 - 8*uint(size)
	return uint64(int64(v<<shift) >> shift)
}

// width is the operand size of an instruction that has no byte form, or of the
// non-byte form of one.
func (in *inst) width() int {
	switch {
	case in.w:
		return 8
	case in.opsize:
		return 2
	}
	return 4
}

// widthB is the operand size where the opcode's lowest bit selects the byte form.
func (in *inst) widthB() int {
	if in.op&1 == 0 {
		return 1
	}
	return in.width()
}

// high reports whether a byte register is one of ah, ch, dh and bh.
func (in *inst) high(reg uint8, size int) bool {
	return size == 1 && !in.rex && reg >= 4 && reg < 8
}

func (m *Machine) getReg(in *inst, reg uint8, size int) uint64 {
	if in.high(reg, size) {
		return m.Regs[reg-4] >> 8 & 0xff
	}
	return m.Regs[reg] & mask(size)
}

// setReg writes a register: 32-bit writes clear the upper half, shorter ones
// leave the rest alone.
func (m *Machine) setReg(in *inst, reg uint8, size int, v uint64) {
	switch {
	case in.high(reg, size):
		m.Regs[reg-4] = m.Regs[reg-4]&^0xff00 | v&0xff<<8
	case size >= 4:
		m.Regs[reg] = v & mask(size)
	default:
		m.Regs[reg] = m.Regs[reg]&^mask(size) | v&mask(size)
	}
}

// offset is the effective address without its segment, as lea has it.
func (m *Machine) offset(in *inst) uint64 {
	addr := uint64(in.disp)
	if in.ripRel {
		addr += in.next
	}
	if in.base != noReg {
		addr += m.Regs[in.base]
	}
	if in.index != noReg {
		addr += m.Regs[in.index] << in.scale
	}
	if in.addr32 {
		addr &= mask(4)
	}
	return addr
}

// address is the address of the memory operand.
func (m *Machine) address(in *inst) (uint64, error) {
	addr := m.offset(in)
	switch in.seg {
	case 0x64:
		addr += m.threadPointer()
	case 0x65:
		return 0, unsupported("gs segment")
	}
	return addr, nil
}

func (m *Machine) getRM(in *inst, size int) (uint64, error) {
	if !in.mem {
		return m.getReg(in, in.rm, size), nil
	}
	addr, err := m.address(in)
	if err != nil {
		return 0, err
	}
	return m.readUint(addr, size)
}

func (m *Machine) setRM(in *inst, size int, v uint64) error {
	if !in.mem {
		m.setReg(in, in.rm, size, v)
		return nil
	}
	addr, err := m.address(in)
	if err != nil {
		return err
	}
	return m.writeUint(addr, size, v)
}
