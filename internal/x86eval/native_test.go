package x86eval

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os/exec"
	"path/filepath"
	"testing"
)

// The tests compile C with gcc and compare with what the processor does. A
// machine without gcc or AVX2 cannot check this package, so that is a failure.

func compile(t testing.TB, out string, args ...string) {
	t.Helper()
	if _, err := exec.LookPath("gcc"); err != nil {
		t.Fatalf("this test compiles C and needs gcc: %v", err)
	}
	args = append(args, "-o", out)
	if msg, err := exec.Command("gcc", args...).CombinedOutput(); err != nil {
		t.Fatalf("compiling: gcc %v: %v\n%s", args, err, msg)
	}
}

// record is what testdata/native.c reads and writes.
type record struct {
	GPR    [16]uint64
	Flags  uint64
	Status uint64
	Vec    [16][4]uint64
	Mem    [256]byte
	Code   [16]byte
}

const (
	nativeData = 0x1000_0000
	nativeCode = 0x2000_0000
)

// form describes the encodings of one instruction to try.
type form struct {
	name  string
	opMap uint8
	pp    uint8
	op    uint8
	digit int  // opcode extension, or -1 for a register
	imm   int  // size of the immediate; immZ for one that grows
	flags uint // what varies
}

const (
	fW      = 1 << iota // W 0 and 1
	fW1                 // W 1 only
	f66                 // operand size prefix
	fVEX                // VEX instead of legacy
	fBoth               // both
	fVVVV               // VEX has a first source
	fL                  // VEX.L 0 and 1
	fL1                 // VEX.L 1 only
	fMem                // memory only
	fReg                // registers only
	fPlus               // register in opcode, no ModRM
	fNone               // no operands
	fLock               // lock prefix with memory
	fPrefix             // pp is a legacy prefix to emit even in the one-byte map
	immZ    = -1
)

func intForms() []form {
	var fs []form
	add := func(f form) { fs = append(fs, f) }
	for k := range uint8(8) {
		for form8 := range uint8(4) {
			fl := uint(fW | f66)
			if form8 < 2 && k < 7 {
				fl |= fLock
			}
			add(form{"arith", 0, 0, k<<3 | form8, -1, 0, fl})
		}
		add(form{"arith al", 0, 0, k<<3 | 4, -1, 1, fNone | fW | f66})
		add(form{"arith ax", 0, 0, k<<3 | 5, -1, immZ, fNone | fW | f66})
		add(form{"grp1", 0, 0, 0x80, int(k), 1, fW | f66})
		add(form{"grp1", 0, 0, 0x81, int(k), immZ, fW | f66})
		add(form{"grp1", 0, 0, 0x83, int(k), 1, fW | f66})
		for _, op := range []uint8{0xc0, 0xc1} {
			add(form{"shift imm", 0, 0, op, int(k), 1, fW | f66})
		}
		for _, op := range []uint8{0xd0, 0xd1, 0xd2, 0xd3} {
			add(form{"shift", 0, 0, op, int(k), 0, fW | f66})
		}
		add(form{"xchg ax", 0, 0, 0x90 + k, -1, 0, fPlus | fW | f66})
		add(form{"mov imm8", 0, 0, 0xb0 + k, -1, 1, fPlus})
		add(form{"mov imm", 0, 0, 0xb8 + k, -1, immZ, fPlus | f66})
		add(form{"mov imm64", 0, 0, 0xb8 + k, -1, 8, fPlus | fW1})
		add(form{"bswap", 1, 0, 0xc8 + k, -1, 0, fPlus | fW})
	}
	for k := range 8 {
		imm8, immW := 0, 0
		if k < 2 {
			imm8, immW = 1, immZ
		}
		add(form{"grp3", 0, 0, 0xf6, k, imm8, 0})
		add(form{"grp3", 0, 0, 0xf7, k, immW, fW | f66})
	}
	for _, op := range []uint8{0xfe, 0xff} {
		add(form{"inc", 0, 0, op, 0, 0, fW | f66 | fLock})
		add(form{"dec", 0, 0, op, 1, 0, fW | f66 | fLock})
	}
	for _, op := range []uint8{0x84, 0x85, 0x86, 0x87, 0x88, 0x89, 0x8a, 0x8b} {
		add(form{"mov test xchg", 0, 0, op, -1, 0, fW | f66})
	}
	add(form{"mov imm", 0, 0, 0xc6, 0, 1, 0})
	add(form{"mov imm", 0, 0, 0xc7, 0, immZ, fW | f66})
	add(form{"lea", 0, 0, 0x8d, -1, 0, fMem | fW | f66})
	add(form{"movsxd", 0, 0, 0x63, -1, 0, fW})
	add(form{"imul", 0, 0, 0x69, -1, immZ, fW | f66})
	add(form{"imul", 0, 0, 0x6b, -1, 1, fW | f66})
	add(form{"imul", 1, 0, 0xaf, -1, 0, fW | f66})
	for _, op := range []uint8{0x98, 0x99, 0xf5, 0xf8, 0xf9, 0xfc} {
		add(form{"cdq etc", 0, 0, op, -1, 0, fNone | fW | f66})
	}
	add(form{"test al", 0, 0, 0xa8, -1, 1, fNone})
	add(form{"test ax", 0, 0, 0xa9, -1, immZ, fNone | fW | f66})
	for cc := range uint8(16) {
		add(form{"cmov", 1, 0, 0x40 + cc, -1, 0, fW | f66})
		add(form{"setcc", 1, 0, 0x90 + cc, 0, 0, 0})
	}
	for i, op := range []uint8{0xa3, 0xab, 0xb3, 0xbb} {
		add(form{"bt reg", 1, 0, op, -1, 0, fW | f66 | fReg})
		add(form{"bt mem", 1, 0, op, -1, 0, fW | f66 | fMem})
		add(form{"bt imm", 1, 0, 0xba, 4 + i, 1, fW | f66})
	}
	for _, op := range []uint8{0xa4, 0xac} {
		add(form{"shxd", 1, 0, op, -1, 1, fW | f66})
		add(form{"shxd cl", 1, 0, op + 1, -1, 0, fW | f66})
	}
	for _, op := range []uint8{0xb0, 0xb1, 0xc0, 0xc1} {
		add(form{"cmpxchg xadd", 1, 0, op, -1, 0, fW | f66 | fLock})
	}
	for _, op := range []uint8{0xb6, 0xb7, 0xbe, 0xbf} {
		add(form{"movx", 1, 0, op, -1, 0, fW | f66})
	}
	for _, op := range []uint8{0xbc, 0xbd} {
		add(form{"bsf", 1, 0, op, -1, 0, fW | f66})
		add(form{"tzcnt", 1, ppF3, op, -1, 0, fW | f66})
	}
	add(form{"popcnt", 1, ppF3, 0xb8, -1, 0, fW | f66})
	add(form{"movnti", 1, 0, 0xc3, -1, 0, fW | fMem})
	add(form{"nop", 1, 0, 0x1f, 0, 0, fW | f66})
	add(form{"movbe", 2, 0, 0xf0, -1, 0, fMem | fW | f66})
	add(form{"movbe", 2, 0, 0xf1, -1, 0, fMem | fW | f66})
	for _, op := range []uint8{0xa4, 0xa5, 0xaa, 0xab} {
		add(form{"string", 0, 0, op, -1, 0, fNone | fW | f66})
		add(form{"rep string", 0, ppF3, op, -1, 0, fNone | fW | f66 | fPrefix})
	}
	// BMI
	add(form{"andn", 2, 0, 0xf2, -1, 0, fVEX | fW | fVVVV})
	for k := 1; k < 4; k++ {
		add(form{"blsx", 2, 0, 0xf3, k, 0, fVEX | fW | fVVVV})
	}
	add(form{"bzhi", 2, 0, 0xf5, -1, 0, fVEX | fW | fVVVV})
	add(form{"pext", 2, ppF3, 0xf5, -1, 0, fVEX | fW | fVVVV})
	add(form{"pdep", 2, ppF2, 0xf5, -1, 0, fVEX | fW | fVVVV})
	add(form{"mulx", 2, ppF2, 0xf6, -1, 0, fVEX | fW | fVVVV})
	for _, pp := range []uint8{0, pp66, ppF3, ppF2} {
		add(form{"bextr shx", 2, pp, 0xf7, -1, 0, fVEX | fW | fVVVV})
	}
	add(form{"rorx", 3, ppF2, 0xf0, -1, 1, fVEX | fW})
	return fs
}

func vecForms() []form {
	var fs []form
	add := func(name string, opMap, pp uint8, imm int, flags uint, ops ...uint8) {
		for _, op := range ops {
			fs = append(fs, form{name, opMap, pp, op, -1, imm, flags})
		}
	}
	add("mov", 1, 0, 0, fBoth|fL, 0x10, 0x11, 0x28, 0x29)
	add("mov", 1, pp66, 0, fBoth|fL, 0x10, 0x11, 0x28, 0x29, 0x6f, 0x7f)
	add("movdqu", 1, ppF3, 0, fBoth|fL, 0x6f, 0x7f)
	add("movnt", 1, 0, 0, fBoth|fL|fMem, 0x2b)
	add("movnt", 1, pp66, 0, fBoth|fL|fMem, 0x2b, 0xe7)
	add("lddqu", 1, ppF2, 0, fBoth|fL|fMem, 0xf0)
	add("movntdqa", 2, pp66, 0, fBoth|fL|fMem, 0x2a)
	for _, pp := range []uint8{ppF3, ppF2} {
		add("movs mem", 1, pp, 0, fBoth|fMem, 0x10, 0x11)
		add("movs reg", 1, pp, 0, fBoth|fReg|fVVVV, 0x10, 0x11)
	}
	for _, pp := range []uint8{ppF3, ppF2} {
		add("cvtsi2s", 1, pp, 0, fBoth|fVVVV|fW, 0x2a)
		add("cvts2si", 1, pp, 0, fBoth|fW, 0x2c, 0x2d)
		add("scalar", 1, pp, 0, fBoth|fVVVV, 0x51, 0x58, 0x59, 0x5a, 0x5c, 0x5d, 0x5e, 0x5f)
		add("scalar cmp", 1, pp, 1, fBoth|fVVVV, 0xc2)
	}
	for _, pp := range []uint8{0, pp66} {
		add("packed", 1, pp, 0, fBoth|fL|fVVVV, 0x58, 0x59, 0x5c, 0x5d, 0x5e, 0x5f)
		add("packed", 1, pp, 0, fBoth|fL, 0x51)
		add("comis", 1, pp, 0, fBoth, 0x2e, 0x2f)
	}
	add("movlps", 1, 0, 0, fBoth|fVVVV, 0x12, 0x16)
	add("movlpd", 1, pp66, 0, fBoth|fVVVV|fMem, 0x12, 0x16)
	add("movlps st", 1, 0, 0, fBoth|fMem, 0x13, 0x17)
	add("movlpd st", 1, pp66, 0, fBoth|fMem, 0x13, 0x17)
	add("movddup", 1, ppF2, 0, fBoth|fL, 0x12)
	add("movsldup", 1, ppF3, 0, fBoth|fL, 0x12, 0x16)
	add("movd", 1, pp66, 0, fBoth|fW, 0x6e, 0x7e)
	add("movq", 1, ppF3, 0, fBoth, 0x7e)
	add("movq", 1, pp66, 0, fBoth, 0xd6)
	add("movmsk", 1, pp66, 0, fBoth|fL|fReg, 0xd7, 0x50)
	add("movmsk", 1, 0, 0, fBoth|fL|fReg, 0x50)
	add("ptest", 2, pp66, 0, fBoth|fL, 0x17)
	add("logic", 1, 0, 0, fBoth|fL|fVVVV, 0x54, 0x55, 0x56, 0x57, 0x14, 0x15)
	add("binary", 1, pp66, 0, fBoth|fL|fVVVV, 0x54, 0x55, 0x56, 0x57, 0x14, 0x15,
		0xdb, 0xdf, 0xeb, 0xef, 0xfc, 0xfd, 0xfe, 0xd4, 0xf8, 0xf9, 0xfa, 0xfb, 0xd5, 0xf4, 0xe4, 0xe5, 0xf5, 0xf6,
		0x74, 0x75, 0x76, 0x64, 0x65, 0x66, 0xea, 0xda, 0xee, 0xde,
		0x60, 0x61, 0x62, 0x6c, 0x68, 0x69, 0x6a, 0x6d, 0x63, 0x67, 0x6b,
		0xd1, 0xd2, 0xd3, 0xe1, 0xe2, 0xf1, 0xf2, 0xf3)
	add("binary", 2, pp66, 0, fBoth|fL|fVVVV, 0x00, 0x40, 0x28, 0x29, 0x37,
		0x38, 0x39, 0x3a, 0x3b, 0x3c, 0x3d, 0x3e, 0x3f, 0x2b)
	add("pabs", 2, pp66, 0, fBoth|fL, 0x1c, 0x1d, 0x1e)
	add("pmovx", 2, pp66, 0, fBoth|fL, 0x20, 0x21, 0x22, 0x23, 0x24, 0x25, 0x30, 0x31, 0x32, 0x33, 0x34, 0x35)
	for _, pp := range []uint8{pp66, ppF3, ppF2} {
		add("pshuf", 1, pp, 1, fBoth|fL, 0x70)
	}
	add("shufp", 1, 0, 1, fBoth|fL|fVVVV, 0xc6)
	add("shufp", 1, pp66, 1, fBoth|fL|fVVVV, 0xc6)
	add("palignr blend", 3, pp66, 1, fBoth|fL|fVVVV, 0x0f, 0x0c, 0x0d, 0x0e)
	add("vblendv", 3, pp66, 1, fVEX|fL|fVVVV, 0x4a, 0x4b, 0x4c)
	add("blendv", 2, pp66, 0, 0, 0x10, 0x14, 0x15)
	add("round", 3, pp66, 1, fBoth|fVVVV, 0x0a, 0x0b)
	add("vpermil", 3, pp66, 1, fVEX|fL, 0x04, 0x05)
	add("vpblendd", 3, pp66, 1, fVEX|fL|fVVVV, 0x02)
	add("pinsrw", 1, pp66, 1, fBoth|fVVVV, 0xc4)
	add("pinsr", 3, pp66, 1, fBoth|fVVVV|fW, 0x22)
	add("pinsrb", 3, pp66, 1, fBoth|fVVVV, 0x20)
	add("pextrw", 1, pp66, 1, fBoth|fReg, 0xc5)
	add("pextr", 3, pp66, 1, fBoth, 0x14, 0x15, 0x17)
	add("pextrd", 3, pp66, 1, fBoth|fW, 0x16)
	add("vinsert", 3, pp66, 1, fVEX|fL1|fVVVV, 0x18, 0x38)
	add("vextract", 3, pp66, 1, fVEX|fL1, 0x19, 0x39)
	add("vperm2", 3, pp66, 1, fVEX|fL1|fVVVV, 0x06, 0x46)
	add("vpermq", 3, pp66, 1, fVEX|fL1|fW1, 0x00, 0x01)
	add("vpermd", 2, pp66, 0, fVEX|fL1|fVVVV, 0x36, 0x16)
	add("vbroadcast", 2, pp66, 0, fVEX|fL, 0x18, 0x58, 0x59, 0x78, 0x79)
	add("vbroadcastsd", 2, pp66, 0, fVEX|fL1, 0x19)
	add("vbroadcast128", 2, pp66, 0, fVEX|fL1|fMem, 0x1a, 0x5a)
	add("vpshiftv", 2, pp66, 0, fVEX|fL|fVVVV|fW, 0x45, 0x47)
	add("vpsravd", 2, pp66, 0, fVEX|fL|fVVVV, 0x46)
	for _, s := range []struct {
		op     uint8
		digits []int
	}{{0x71, []int{2, 4, 6}}, {0x72, []int{2, 4, 6}}, {0x73, []int{2, 3, 6, 7}}} {
		for _, d := range s.digits {
			fs = append(fs, form{"pshift imm", 1, pp66, s.op, d, 1, fBoth | fL | fVVVV | fReg})
		}
	}
	fs = append(fs,
		form{"vzero", 1, 0, 0x77, -1, 0, fVEX | fL | fNone},
		form{"fence", 1, 0, 0xae, 5, 0, fReg}, form{"fence", 1, 0, 0xae, 6, 0, fReg})
	return fs
}

type randomizer struct{ *rand.Rand }

func newRand(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 0)) }

func (r randomizer) bool() bool { return r.Uint32()&1 != 0 }

// value prefers numbers at which something happens.
func (r randomizer) value() uint64 {
	switch r.IntN(8) {
	case 0:
		return uint64(r.IntN(4))
	case 1:
		return -uint64(r.IntN(4))
	case 2:
		return 1 << r.IntN(64)
	case 3:
		return 1<<r.IntN(64) - 1
	case 4:
		return uint64(r.IntN(256))
	}
	return r.Uint64()
}

// instance fills in a record with one encoding of an instruction.
func (r randomizer) instance(f form, rec *record) {
	for i := range rec.GPR {
		rec.GPR[i] = r.value()
	}
	rec.GPR[RSP] = 0
	for i := range rec.Vec {
		for j := range rec.Vec[i] {
			rec.Vec[i][j] = r.value()
			if r.IntN(4) == 0 && i > 0 {
				rec.Vec[i][j] = rec.Vec[i-1][j] // for comparisons
			}
		}
	}
	for i := range rec.Mem {
		rec.Mem[i] = byte(r.value())
	}
	if (f.opMap == map0F || f.name == "round") && r.bool() { // or few conversions would fit
		for i := range rec.Vec {
			rec.Vec[i][0] = math.Float64bits(r.NormFloat64() * 1000)
			if r.bool() {
				rec.Vec[i][0] = uint64(math.Float32bits(float32(r.NormFloat64()) * 1000))
			}
		}
	}
	rec.Flags = r.Uint64()&flagsAll | 2
	switch f.name {
	case "string", "rep string":
		rec.GPR[RSI] = nativeData + uint64(r.IntN(64))
		rec.GPR[RDI] = nativeData + 64 + uint64(r.IntN(64))
		rec.GPR[RCX] = uint64(r.IntN(12))
	case "cmpxchg xadd":
		if b := byte(r.value()); r.bool() { // or few comparisons would succeed
			for i := range rec.Mem {
				rec.Mem[i] = b
			}
			rec.GPR[RAX] = uint64(b) * 0x0101_0101_0101_0101
			if r.bool() {
				rec.GPR[RAX] ^= 1 << 40
			}
		}
	case "grp3":
		switch r.IntN(4) { // or few divisions would succeed
		case 0:
			rec.GPR[RDX] = 0
		case 1:
			rec.GPR[RDX] = uint64(int64(rec.GPR[RAX]) >> 63)
		case 2:
			rec.GPR[RAX] &= 0xff
		}
	}

	w := f.flags&fW1 != 0 || f.flags&fW != 0 && r.bool()
	l := f.flags&fL1 != 0 || f.flags&fL != 0 && r.bool()
	vex := f.flags&fVEX != 0 || f.flags&fBoth != 0 && r.bool()
	l = l && vex
	mem := f.flags&fMem != 0 || f.flags&(fReg|fPlus|fNone) == 0 && r.bool()
	var code []byte
	opsize := f.flags&f66 != 0 && r.IntN(3) == 0
	if f.flags&fLock != 0 && mem && r.bool() {
		code = append(code, 0xf0)
	}
	if opsize || !vex && f.opMap > 0 && f.pp == pp66 {
		code = append(code, 0x66)
	}
	if !vex && (f.opMap > 0 || f.flags&fPrefix != 0) {
		switch f.pp {
		case ppF3:
			code = append(code, 0xf3)
		case ppF2:
			code = append(code, 0xf2)
		}
	}

	reg, rm, index := uint8(r.IntN(16)), uint8(r.IntN(16)), uint8(r.IntN(16))
	if f.digit >= 0 {
		reg = uint8(f.digit)
	}
	rexNeeded := w || reg > 7 || rm > 7 || index > 7 || r.bool()
	if f.digit < 0 && reg == RSP && (rexNeeded || vex || !f.byteOp()) {
		reg = RBX
	}
	if rm == RSP && (mem || rexNeeded || vex || !f.byteOp()) {
		rm = RBX
	}
	// A bit number in a register reaches anywhere, and must not be the address too.
	if f.name == "bt mem" {
		if reg == rm {
			reg, rm = RBX, RBP
		}
		rec.GPR[reg] = uint64(r.IntN(128)) - 64
	}
	vvvv := uint8(0)
	if f.flags&fVVVV != 0 {
		if vvvv = uint8(r.IntN(16)); vvvv == RSP {
			vvvv = RBX
		}
	}

	// ModRM and what follows.
	var tail []byte
	var ripDisp bool
	useIndex := false
	switch {
	case f.flags&(fPlus|fNone) != 0:
		reg = 0
		if f.flags&fNone != 0 {
			rm = 0
		}
	case !mem:
		tail = []byte{0xc0 | reg&7<<3 | rm&7}
	default:
		addr := uint64(nativeData + 96 + r.IntN(64))
		if r.bool() {
			addr &^= 31
		}
		scale := r.IntN(4)
		kind := r.IntN(5)
		if kind == 2 && (index == RSP || index == rm || index == reg) {
			kind = 1
		}
		switch kind {
		case 0, 1: // base, disp8 or disp32
			disp := int64(r.IntN(200)) - 100
			rec.GPR[rm] = addr - uint64(disp)
			mod := byte(1 + kind)
			tail = append(tail, mod<<6|reg&7<<3|rm&7)
			if rm&7 == 4 {
				tail = append(tail, 0x24)
			}
			if kind == 0 {
				tail = append(tail, byte(disp))
			} else {
				tail = binary.LittleEndian.AppendUint32(tail, uint32(disp))
			}
		case 2: // base, index, disp8
			useIndex = true
			disp := int64(r.IntN(200)) - 100
			rec.GPR[index] = uint64(int64(r.IntN(100)) - 50)
			rec.GPR[rm] = addr - uint64(disp) - rec.GPR[index]<<scale
			tail = append(tail, 1<<6|reg&7<<3|4, byte(scale<<6)|index&7<<3|rm&7, byte(disp))
		case 3: // absolute
			rm = 0
			tail = append(tail, reg&7<<3|4, 0x25)
			tail = binary.LittleEndian.AppendUint32(tail, uint32(addr))
		case 4: // relative to the next instruction
			rm = 0
			ripDisp = true
			tail = append(tail, reg&7<<3|5)
			tail = binary.LittleEndian.AppendUint32(tail, uint32(addr))
		}
	}
	if !useIndex {
		index = 0
	}
	dispAt := len(tail) - 4
	imm := f.imm
	if imm == immZ {
		imm = 4
		if opsize && !w {
			imm = 2
		}
	}
	for range imm {
		tail = append(tail, byte(r.value()))
	}

	if vex {
		p := byte(0)
		if w {
			p |= 0x80
		}
		if l {
			p |= 4
		}
		p |= ^vvvv & 15 << 3
		p |= f.pp
		if f.opMap == 1 && !w && rm < 8 && index < 8 && r.bool() {
			code = append(code, 0xc5, p&0x7f|^reg>>3&1<<7)
		} else {
			code = append(code, 0xc4, ^reg>>3&1<<7|^index>>3&1<<6|^rm>>3&1<<5|f.opMap, p)
		}
		code = append(code, f.op)
	} else {
		rex := byte(0x40) | reg>>3<<2 | index>>3<<1 | rm>>3
		if w {
			rex |= 8
		}
		if rex != 0x40 || rexNeeded {
			code = append(code, rex)
		}
		code = append(code, [][]byte{{}, {0x0f}, {0x0f, 0x38}, {0x0f, 0x3a}}[f.opMap]...)
		op := f.op
		if f.flags&fPlus != 0 {
			op = op&^7 | rm&7
		}
		code = append(code, op)
	}
	at := len(code) + dispAt
	code = append(code, tail...)
	if ripDisp {
		target := binary.LittleEndian.Uint32(code[at:])
		binary.LittleEndian.PutUint32(code[at:], target-nativeCode-uint32(len(code)))
	}
	for i := range rec.Code {
		rec.Code[i] = 0xc3
	}
	copy(rec.Code[:], code)
}

// byteOp says whether registers 4 to 7 may be ah to bh.
func (f form) byteOp() bool {
	if f.opMap == 1 {
		return f.op&0xf0 == 0x90 || f.op == 0xb0 || f.op == 0xc0
	}
	return f.opMap == 0 && (f.op < 0x40 && f.op&1 == 0 || f.op >= 0x80 && f.op < 0x8b && f.op&1 == 0 ||
		f.op&0xf8 == 0xb0 || f.op >= 0xc0 && f.op&1 == 0)
}

// interpret does to a record what the processor does.
func interpret(rec *record) (undef uint64, err error) {
	mem := MemoryFunc(func(p []byte, addr uint64) error {
		switch {
		case addr >= nativeData && addr+uint64(len(p)) <= nativeData+256:
			copy(p, rec.Mem[addr-nativeData:])
		case addr >= nativeCode && addr+uint64(len(p)) <= nativeCode+16:
			copy(p, rec.Code[addr-nativeCode:])
		default:
			return errors.New("unmapped")
		}
		return nil
	})
	m := New(mem)
	m.Regs = rec.GPR
	m.flags = rec.Flags & flagsAll
	for i := range rec.Vec {
		m.vec[i] = rec.Vec[i]
	}
	m.rip = nativeCode
	if err := m.step(); err != nil {
		return 0, err
	}
	rec.GPR = m.Regs
	rec.Flags = m.flags
	for i := range rec.Vec {
		rec.Vec[i] = m.vec[i]
	}
	var after [256]byte
	if err := m.Read(nativeData, after[:]); err != nil {
		return 0, err
	}
	rec.Mem = after
	return m.undef, nil
}

func TestInstructionsAgainstProcessor(t *testing.T) {
	bin := filepath.Join(t.TempDir(), "native")
	compile(t, bin, "-O1", "-mavx2", "-no-pie", "testdata/native.c")

	const seed = 20
	r := randomizer{newRand(seed)}
	perForm := 400
	if testing.Short() {
		perForm = 50
	}
	forms := append(intForms(), vecForms()...)
	var in bytes.Buffer
	records := make([]record, 0, len(forms)*perForm)
	for _, f := range forms {
		for range perForm {
			var rec record
			r.instance(f, &rec)
			records = append(records, rec)
			binary.Write(&in, binary.LittleEndian, &rec)
		}
	}
	cmd := exec.Command(bin)
	cmd.Stdin = &in
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("running instructions: %v", err)
	}
	rd := bytes.NewReader(out)
	failures := 0
	for i, f := range forms {
		same, refused := 0, 0
		for j := range perForm {
			var want record
			if err := binary.Read(rd, binary.LittleEndian, &want); err != nil {
				t.Fatalf("reading results: %v", err)
			}
			before := records[i*perForm+j]
			got := before
			undef, err := interpret(&got)
			if err != nil {
				refused++
			}
			if want.Status != 0 || err != nil {
				if want.Status != 0 && err == nil {
					t.Errorf("%s [% x]: processor signals %d, interpreter does not", f.name, before.Code, want.Status)
					failures++
				} else if want.Status == 0 && errors.Is(err, ErrMemory) {
					t.Errorf("%s [% x]: %v", f.name, before.Code, err)
					failures++
				}
				continue
			}
			if diff := difference(&got, &want, undef); diff != "" {
				t.Errorf("%s [% x]: %s", f.name, before.Code, diff)
				failures++
			} else {
				same++
			}
			if failures > 40 {
				t.Fatal("too many failures")
			}
		}
		if same < perForm/20 {
			t.Errorf("%s %d:%02x/%d prefix %d: only %d of %d executed, %d refused", f.name, f.opMap, f.op, f.digit, f.pp, same, perForm, refused)
		}
	}
	t.Logf("%d forms, %d instructions, seed %d", len(forms), len(records), seed)
}

func difference(got, want *record, undef uint64) string {
	for i := range got.GPR {
		if i != RSP && got.GPR[i] != want.GPR[i] {
			return fmt.Sprintf("register %d is %#x, want %#x", i, got.GPR[i], want.GPR[i])
		}
	}
	if d := (got.Flags ^ want.Flags) & flagsAll &^ undef; d != 0 {
		return fmt.Sprintf("flags are %#x, want %#x", got.Flags&flagsAll, want.Flags&flagsAll)
	}
	for i := range got.Vec {
		if got.Vec[i] != want.Vec[i] {
			return fmt.Sprintf("vector %d is %x, want %x", i, got.Vec[i], want.Vec[i])
		}
	}
	if got.Mem != want.Mem {
		for i := range got.Mem {
			if got.Mem[i] != want.Mem[i] {
				return fmt.Sprintf("memory %d is %#x, want %#x", i, got.Mem[i], want.Mem[i])
			}
		}
	}
	return ""
}
