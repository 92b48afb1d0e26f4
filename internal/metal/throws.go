package metal

import (
	"bytes"
	"encoding/binary"
	"slices"
	"strings"

	"github.com/ianlancetaylor/demangle"
)

// ArgumentType is what an argument of a message is. The BPF programs have the same numbers (enum tt_type).
type ArgumentType uint8

// The types that are shown: a Text is a std::string or a std::string_view.
const (
	OtherArgument ArgumentType = iota
	Unsigned64
	Unsigned32
	Text
)

// Arguments are the types of a message's arguments, the first in the lowest bits, and behind them which are texts:
// their indexes, 0 in unused places.
type Arguments uint64

const (
	maxArguments = 16
	typeBits     = 2
	maxTexts     = 4
	indexBits    = 4
)

// At returns the type of one argument.
func (a Arguments) At(i int) ArgumentType {
	if i >= maxArguments {
		return OtherArgument
	}
	return ArgumentType(a >> (typeBits * i) & (1<<typeBits - 1))
}

func packArguments(list []ArgumentType) (a Arguments) {
	texts := 0
	for i, t := range list[:min(len(list), maxArguments)] {
		if t == Text && texts == maxTexts {
			t = OtherArgument
		}
		if t == Text {
			a |= Arguments(i) << (typeBits*maxArguments + indexBits*texts)
			texts++
		}
		a |= Arguments(t) << (typeBits * i)
	}
	return a
}

// argumentsOf returns the types of an instance's arguments, in the order of the message.
func argumentsOf(symbol string) (list []ArgumentType) {
	ast, err := demangle.ToAST(symbol, demangle.NoParams)
	if err != nil {
		return nil
	}
	var types []demangle.AST
	ast.Traverse(func(a demangle.AST) bool {
		if t, ok := a.(*demangle.Template); ok && types == nil {
			types = t.Args
		}
		return types == nil
	})
	if len(types) == 1 {
		if pack, ok := types[0].(*demangle.ArgumentPack); ok {
			types = pack.Args
		}
	}
	for _, t := range types[min(1, len(types)):] { // the first is the format's
		list = append(list, argumentOf(demangle.ASTToString(t)))
	}
	return list
}

func argumentOf(name string) ArgumentType {
	switch {
	case name == "unsigned long" || name == "unsigned long long":
		return Unsigned64
	case name == "unsigned int":
		return Unsigned32
	case strings.HasPrefix(name, "std::basic_string_view<char") || strings.HasPrefix(name, "std::__cxx11::basic_string<char"):
		return Text
	}
	return OtherArgument
}

// isNumber reports whether an argument is a number.
func (t ArgumentType) isNumber() bool { return t == Unsigned64 || t == Unsigned32 }

// begins reports whether a list of types begins with these.
func begins(list []ArgumentType, with ...func(ArgumentType) bool) bool {
	return len(list) >= len(with) && !slices.ContainsFunc(with, func(is func(ArgumentType) bool) bool {
		t := list[0]
		list = list[1:]
		return !is(t)
	})
}

func is(want ArgumentType) func(ArgumentType) bool {
	return func(t ArgumentType) bool { return t == want }
}

// FailurePoints are where an allocation or a program fails: the instances of the throwing function for the arguments
// of known messages, and those that the functions which find no room call. Little else hits them. They are no part of
// the accounts, so a library without is traced as well; what fails in it is not seen.
var FailurePoints = []Point{
	{
		Name: "out of memory", Need: Degrades, BPFProgram: failed, Phase: Fails,
		Without: "allocations that fail are not seen",
		// The bytes, the memory, then banks and bytes of one.
		throws: func(list []ArgumentType) bool { return begins(list, is(Unsigned64), is(Text), is(Unsigned32)) },
	},
	{
		Name: "circular buffers clash", Need: Degrades, BPFProgram: failed, Phase: Fails,
		Without: "clashes of circular buffers with L1 buffers are not seen",
		// The program, its cores, the L1 buffer and the end of the circular buffers.
		throws: func(list []ArgumentType) bool {
			return begins(list, is(Unsigned64), is(Text), ArgumentType.isNumber, ArgumentType.isNumber)
		},
	},
	{
		Name: "circular buffers beyond L1", Need: Degrades, BPFProgram: failed, Phase: Fails,
		Without: "circular buffers that are larger than L1 are not seen",
		// The cores, the end of the circular buffers, and that of L1.
		throws: func(list []ArgumentType) bool { return begins(list, is(Text), is(Unsigned64), ArgumentType.isNumber) },
	},
	{
		Name: "program too large", Need: Degrades, BPFProgram: failed, Phase: Fails,
		Without: "programs that are too large for the kernel-config ring are not seen",
		// The program's bytes, those of the ring, and the kind of core.
		throws: func(list []ArgumentType) bool { return begins(list, ArgumentType.isNumber, is(Unsigned64), is(Text)) },
	},
}

// unknownFailure is a point where a function that finds no room throws a message that no point of FailurePoints knows.
var unknownFailure = Point{Name: "allocation or placement fails", Need: Degrades, BPFProgram: failed, Phase: Fails}

// failed is the BPF program of all these points.
const failed = "failed"

// Roomless are parts of the names of the roomless functions, as a stack has them.
var Roomless = []string{
	"BankManager::allocate_buffer", "ProgramImpl::validate_circular_buffer_region", "ProgramImpl::validate_dataflow_buffer_region",
	"ProgramImpl::finalize_program_offsets", "PersistentL1Arena::allocate",
}

// FailureProbes returns the points of a library at which an allocation or a program fails.
func (l *Library) FailureProbes() []Probe {
	var list []Probe
	add := func(p *Point, s elfSymbol, arguments []ArgumentType) {
		if slices.ContainsFunc(list, func(o Probe) bool { return o.Address == s.Value }) {
			return
		}
		if probe, err := l.probe(p, s); err == nil {
			probe.Arguments = packArguments(arguments)
			list = append(list, probe)
		}
	}
	for _, s := range l.match([]string{throwImplementation + "*"}, true) {
		arguments := argumentsOf(s.Name)
		for i := range FailurePoints {
			if FailurePoints[i].throws(arguments) {
				add(&FailurePoints[i], s, arguments)
			}
		}
	}
	for _, name := range l.thrownBy(roomless) {
		if s, ok := l.symbols[name]; ok {
			add(&unknownFailure, s, argumentsOf(name))
		}
	}
	return list
}

// Again returns the probe at a file's own instance of the function that a probe of another file is at.
func (l *Library) Again(p Probe) (Probe, bool) {
	s, ok := l.symbols[p.Symbol]
	if !ok {
		return Probe{}, false
	}
	again, err := l.probe(p.Point, s)
	again.Arguments = p.Arguments
	return again, err == nil
}

// thrownBy returns the throwing functions that these functions, known by how their names begin, call. A call that a
// compiler has put into a part of its own (f.cold) is not found.
func (l *Library) thrownBy(functions []string) (names []string) {
	image, err := l.Image()
	if err != nil {
		return nil
	}
	for _, f := range functions {
		for _, s := range l.match([]string{f + "*"}, true) {
			for _, called := range l.callees(image.Slots(), s) {
				switch {
				case strings.HasPrefix(called, throwImplementation):
					names = append(names, called)
				case strings.HasPrefix(called, throwFunction):
					names = append(names, slices.DeleteFunc(l.callees(image.Slots(), l.symbols[called]), func(name string) bool {
						return !strings.HasPrefix(name, throwImplementation)
					})...)
				}
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// maxFunctionBytes bounds the code of a function that is searched for calls.
const maxFunctionBytes = 64 << 10

// callees returns the names of the functions that a function calls or jumps to, directly or through the PLT, whose
// slots are given. Bytes that only look like a call of a named function add its name.
func (l *Library) callees(slots map[uint64]string, s elfSymbol) (names []string) {
	code, err := l.Code(s.Value, int(min(s.Size, maxFunctionBytes)))
	if err != nil {
		return nil
	}
	for i := 0; i+5 <= len(code); i++ {
		if code[i] != 0xe8 && code[i] != 0xe9 {
			continue
		}
		target := s.Value + uint64(i) + 5 + uint64(int64(int32(binary.LittleEndian.Uint32(code[i+1:]))))
		name, ok := l.Functions()[target]
		if !ok || strings.HasSuffix(name, "$plt") {
			name = l.stub(slots, target)
		}
		if name != "" {
			names = append(names, name)
		}
	}
	return names
}

// stub returns the name of the function that a PLT entry at an address jumps to, or "".
func (l *Library) stub(slots map[uint64]string, address uint64) string {
	const entry = 16
	code, err := l.Code(address, entry)
	if err != nil {
		return ""
	}
	jump := bytes.Index(code, []byte{0xff, 0x25}) // jmp *distance(%rip), behind what depends on the linker
	if jump < 0 || jump+6 > len(code) {
		return ""
	}
	return slots[address+uint64(jump)+6+uint64(int64(int32(binary.LittleEndian.Uint32(code[jump+2:]))))]
}

// MissingFailurePoints are the points of FailurePoints at which none of these probes is.
func MissingFailurePoints(probes []Probe) (missing []*Point) {
	for i := range FailurePoints {
		p := &FailurePoints[i]
		if !slices.ContainsFunc(probes, func(o Probe) bool { return o.Point == p }) {
			missing = append(missing, p)
		}
	}
	return missing
}
