package x86eval

import "math"

// Floating point is here because the hash tables of the C++ library decide by a
// load factor when to grow. The rounding mode is the default, to nearest.
// What NaN an operation yields is not modelled, so none may.

// execScalar executes scalar floating-point arithmetic, comparison and conversion.
func (m *Machine) execScalar(in *inst) (bool, error) {
	if key := in.key(); key == vkey(map0F3A, pp66, 0x0a) || key == vkey(map0F3A, pp66, 0x0b) {
		return true, m.roundScalar(in, 4<<(in.op&1))
	}
	if in.opMap != map0F {
		return false, nil
	}
	switch in.op {
	case 0x2e, 0x2f: // ucomis, comis
		if in.pp > pp66 {
			return false, nil
		}
		return true, m.compareScalar(in, 4<<in.pp)
	}
	if in.pp < ppF3 {
		return false, nil
	}
	size := 4
	if in.pp == ppF2 {
		size = 8
	}
	switch in.op {
	case 0x2a: // cvtsi2s
		v, err := m.getRM(in, in.intWidth())
		if err != nil {
			return true, err
		}
		i := int64(signExtend(v, in.intWidth()))
		if size == 4 {
			m.setScalar(in, size, uint64(math.Float32bits(float32(i))))
		} else {
			m.setScalar(in, size, math.Float64bits(float64(i)))
		}
		return true, nil
	case 0x2c, 0x2d: // cvtts2si, cvts2si
		if in.vex && in.vvvv != 0 {
			return true, in.unknown()
		}
		v, err := m.getVec(in, size)
		if err != nil {
			return true, err
		}
		x := toFloat(v[0], size)
		if in.op == 0x2c {
			x = math.Trunc(x)
		} else {
			x = math.RoundToEven(x)
		}
		width := in.intWidth()
		r := signBit(width) // for whatever does not fit, as for NaN
		if top := float64(signBit(width)); x >= -top && x < top {
			r = uint64(int64(x))
		}
		m.setReg(in, in.reg, width, r)
		return true, nil
	case 0x51, 0x58, 0x59, 0x5a, 0x5c, 0x5d, 0x5e, 0x5f, 0xc2:
	default:
		return false, nil
	}

	v, err := m.getVec(in, size)
	if err != nil {
		return true, err
	}
	lo, b := m.first(in)[0]&mask(size), v[0]&mask(size)
	var r uint64
	switch in.op {
	case 0x5a: // cvtss2sd, cvtsd2ss
		size = 12 - size
		r, err = fromFloat(toFloat(b, 12-size), size)
	case 0xc2: // cmpss, cmpsd
		var yes bool
		yes, err = compare(uint8(in.imm), toFloat(lo, size), toFloat(b, size))
		r = -b2u(yes)
	default:
		r, err = arithFloat(in.op, lo, b, size)
	}
	if err == nil {
		m.setScalar(in, size, r)
	}
	return true, err
}

// execPacked executes arithmetic on all elements. Compilers convert unsigned
// integers with it.
func (m *Machine) execPacked(in *inst) (bool, error) {
	if in.opMap != map0F || in.pp > pp66 {
		return false, nil
	}
	switch in.op {
	case 0x51:
		if err := in.plain(true); err != nil {
			return true, err
		}
	case 0x58, 0x59, 0x5c, 0x5d, 0x5e, 0x5f:
	default:
		return false, nil
	}
	size := 4 << in.pp
	b, err := m.getVec(in, in.vsize())
	if err != nil {
		return true, err
	}
	r := m.first(in)
	for i := range in.vsize() / 16 {
		l, from := r.lane(i), b.lane(i)
		for j := range 16 / size {
			e, err := arithFloat(in.op, l.elem(j, size), from.elem(j, size), size)
			if err != nil {
				return true, err
			}
			l.setElem(j, size, e)
		}
		r.setLane(i, l)
	}
	m.setVec(in, in.reg, r)
	return true, nil
}

// arithFloat does what the opcode says to floating-point numbers of a size.
func arithFloat(op uint8, a, b uint64, size int) (uint64, error) {
	x, y := toFloat(a, size), toFloat(b, size)
	switch op {
	case 0x51:
		return fromFloat(math.Sqrt(y), size)
	case 0x58:
		return fromFloat(x+y, size)
	case 0x59:
		return fromFloat(x*y, size)
	case 0x5c:
		return fromFloat(x-y, size)
	case 0x5e:
		return fromFloat(x/y, size)
	case 0x5d: // min: the second unless the first is truly less
		if x < y {
			return a, nil
		}
	case 0x5f: // max
		if x > y {
			return a, nil
		}
	}
	return b, nil
}

// fromFloat rounds. Single precision results computed in double precision and
// rounded again are exact for the operations here: twice 24 bits and 2 more fit
// into 53.
func fromFloat(x float64, size int) (uint64, error) {
	if math.IsNaN(x) {
		return 0, unsupported("operation yields NaN")
	}
	if size == 4 {
		return uint64(math.Float32bits(float32(x))), nil
	}
	return math.Float64bits(x), nil
}

// intWidth is the size of the integer of a conversion.
func (in *inst) intWidth() int {
	if in.w {
		return 8
	}
	return 4
}

func toFloat(v uint64, size int) float64 {
	if size == 4 {
		return float64(math.Float32frombits(uint32(v)))
	}
	return math.Float64frombits(v)
}

// setScalar writes the lowest element; the rest of the xmm register is that of
// the first source.
func (m *Machine) setScalar(in *inst, size int, v uint64) {
	r := m.first(in)
	r[0] = r[0]&^mask(size) | v&mask(size)
	if in.vex {
		r[2], r[3] = 0, 0
	}
	m.vec[in.reg] = r
}

func (m *Machine) compareScalar(in *inst, size int) error {
	if in.vex && in.vvvv != 0 {
		return in.unknown()
	}
	v, err := m.getVec(in, size)
	if err != nil {
		return err
	}
	a, b := toFloat(m.vec[in.reg][0], size), toFloat(v[0], size)
	var flags uint64
	switch {
	case a > b:
	case a < b:
		flags = flagC
	case a == b:
		flags = flagZ
	default: // unordered
		flags = flagC | flagZ | flagP
	}
	m.setFlags(flagsAll, flags, 0)
	return nil
}

// roundScalar executes roundss and roundsd.
func (m *Machine) roundScalar(in *inst, size int) error {
	v, err := m.getVec(in, size)
	if err != nil {
		return err
	}
	round := math.RoundToEven
	switch in.imm & 7 {
	case 1:
		round = math.Floor
	case 2:
		round = math.Ceil
	case 3:
		round = math.Trunc
	}
	r, err := fromFloat(round(toFloat(v[0], size)), size)
	if err == nil {
		m.setScalar(in, size, r)
	}
	return err
}

// compare evaluates the predicate of cmpss and cmpsd.
func compare(predicate uint8, a, b float64) (bool, error) {
	var yes bool
	switch predicate & 3 {
	case 0:
		yes = a == b
	case 1:
		yes = a < b
	case 2:
		yes = a <= b
	case 3:
		yes = a != a || b != b
	}
	if predicate > 7 {
		return false, unsupported("comparison predicate %d", predicate)
	}
	return yes != (predicate&4 != 0), nil
}
