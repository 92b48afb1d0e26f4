package metal

import (
	"debug/elf"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/arch/x86/x86asm"
)

// Probe is a Point found in a library.
type Probe struct {
	Point *Point
	// Symbol is the name under which it was found.
	Symbol string
	// Address is the symbol's; Offset is the probe's place in the file.
	Address, Offset uint64
	// Skipped is the number of bytes between the symbol and the probe.
	Skipped uint64
	// Instruction is the instruction at the probe, for people to read.
	Instruction string
	// Emulated: the kernel emulates the instruction (about half a microsecond) instead of single-stepping it
	// (twenty or more).
	Emulated bool
	// Arguments are those of the message, if the probe is where the runtime throws.
	Arguments Arguments
}

// Coverage says which points of the table were found in a library.
type Coverage struct {
	// Way in which buffers are seen.
	Way    Way
	Probes []Probe
	// Spare are probes that are attached only if what they would send cannot be computed.
	Spare []Probe
	// Missing points, with their Need and what is lost.
	Missing []*Point
}

// Cover looks up every point of the table for the best way. If in each way a required point is missing or cannot be
// probed cheaply, the error wraps ErrUnsupported and says what the first way lacks.
func (l *Library) Cover() (first *Coverage, why error) {
	if !l.IsRuntime() {
		// It may be linked into the file without symbols.
		name := fmt.Sprintf("/proc/self/fd/%d", l.file.Fd())
		if c, err := Search(name, l.Path, func() bool { return false }); err == nil && c == HiddenCode {
			return &Coverage{}, fmt.Errorf("%s (build-id %s) %s: %w", l.Path, orUnknown(l.BuildID), HiddenText, ErrUnsupported)
		}
	}
	for _, w := range Ways {
		c, err := l.coverBy(w)
		if err == nil {
			return c, nil
		}
		if first == nil {
			first, why = c, err
		}
	}
	return first, why
}

// coverBy does what Cover does, for one way.
func (l *Library) coverBy(w Way) (*Coverage, error) {
	c := &Coverage{Way: w}
	var lacking []string
	for i := range Points {
		p := &Points[i]
		if p.Way != 0 && p.Way&w == 0 || p.Where != nil && !slices.ContainsFunc(p.Where, l.Defines) {
			continue
		}
		var usable []Probe
		why := "no symbol " + strings.Join(p.Symbols, " or ")
		for _, s := range l.match(p.Symbols, p.All) {
			probe, err := l.probe(p, s)
			if err == nil && p.Check != nil {
				err = p.Check(l, s.Name)
			}
			if err != nil {
				why = err.Error()
				continue
			}
			usable = append(usable, probe)
		}
		if len(usable) == 0 {
			c.Missing = append(c.Missing, p)
			if p.Need == Required {
				lacking = append(lacking, fmt.Sprintf("%s (%s)", p.Name, why))
			}
			continue
		}
		if p.Computed != nil && p.Computed(l) == nil {
			c.Spare = append(c.Spare, usable...)
		} else {
			c.Probes = append(c.Probes, usable...)
		}
	}
	if !l.IsRuntime() {
		lacking = []string{lacking[0] + ", which identifies the runtime: its code is in libtt_metal.so, up to 0.60.1 in _ttnncpp.so"}
	}
	if len(lacking) > 0 {
		return c, fmt.Errorf("%s (build-id %s) lacks the required %s: %w",
			l.Path, orUnknown(l.BuildID), strings.Join(lacking, "; "), ErrUnsupported)
	}
	return c, nil
}

// NotCovered names what the accounts of a library with this coverage lack, each once.
func (c *Coverage) NotCovered() []string {
	var list []string
	for _, p := range c.Missing {
		if p.Covers != "" && !slices.Contains(list, p.Covers) {
			list = append(list, p.Covers)
		}
	}
	return list
}

var endbr64 = []byte{0xf3, 0x0f, 0x1e, 0xfa}

// entryBytes is how much of a function's code the probe decision reads.
const entryBytes = 32

// probe decides where at a function's entry a probe can be placed.
func (l *Library) probe(p *Point, s elfSymbol) (Probe, error) {
	code, err := l.Code(s.Value, entryBytes)
	if err != nil {
		return Probe{}, err
	}
	probe := Probe{Point: p, Symbol: s.Name, Address: s.Value}
	// The decoder treats endbr64 as a one-byte prefix. Stepping over it changes no argument.
	if len(code) >= 4 && slices.Equal(code[:4], endbr64) {
		probe.Skipped = 4
		code = code[4:]
	}
	inst, err := x86asm.Decode(code, 64)
	if err != nil {
		return Probe{}, fmt.Errorf("decoding %s: %w", s.Name, err)
	}
	probe.Instruction = x86asm.GNUSyntax(inst, s.Value+probe.Skipped, nil)
	probe.Emulated = emulated(inst)
	offset, ok := l.fileOffset(s.Value + probe.Skipped)
	if !ok {
		return Probe{}, fmt.Errorf("%s is not in an executable segment", s.Name)
	}
	probe.Offset = offset
	if !probe.Emulated {
		return probe, fmt.Errorf("%s begins with %q, which the kernel would single-step", s.Name, probe.Instruction)
	}
	return probe, nil
}

// emulated reports whether the kernel's x86 uprobes emulate an instruction: see push_setup_xol_ops and
// branch_setup_xol_ops in arch/x86/kernel/uprobes.c.
func emulated(i x86asm.Inst) bool {
	for _, p := range i.Prefix {
		if p&0xff == 0x66 || p&0xff == 0xf2 || p&0xff == 0xf3 {
			return false
		}
	}
	switch i.Op {
	case x86asm.PUSH:
		// Only as compilers write it: 50 to 57, or 41 and 50 to 57.
		if op := i.Opcode >> 24; op < 0x50 || op > 0x57 {
			return false
		}
		return i.Len == 1 || i.Len == 2 && i.Prefix[0]&0xff == 0x41
	case x86asm.NOP:
		// The long forms only in newer kernels.
		return i.Len == 1
	case x86asm.JMP, x86asm.CALL:
		_, ok := i.Args[0].(x86asm.Rel)
		return ok
	}
	return false
}

func orUnknown(s string) string {
	if s == "" {
		return "unknown"
	}
	return s
}

// Unprobed returns a function that could have a probe, but has none of these.
func (l *Library) Unprobed(probes []Probe) (Probe, bool) {
	for _, s := range l.symbols {
		if elf.ST_TYPE(s.Info) != elf.STT_FUNC || s.Size == 0 {
			continue
		}
		p, err := l.probe(probes[0].Point, s)
		if err == nil && !slices.ContainsFunc(probes, func(o Probe) bool { return o.Offset == p.Offset }) {
			return p, true
		}
	}
	return Probe{}, false
}
