package metal

import (
	"fmt"
	"slices"
	"strings"

	"tt-memtrace/tracer/eval"
)

// symbolicObject is a Buffer that is not there, for one function to be evaluated over:
// the values that it reads, passes on and writes show where the fields are.
type symbolicObject struct {
	image   *eval.Image
	symbols map[uint64]string // of the library's functions, by address
	// status and pointer are where earlier functions have shown the status to be,
	// and the pointer to what holds the fields; nil as long as none has.
	status  *eval.Path
	pointer *int64
	// inner: the function is one of what holds the fields, not of the Buffer.
	inner bool

	probe *eval.SymbolicMemory
	// buffer is the Buffer, fields what holds its fields: itself, or what it points to.
	buffer, fields uint64
	// answers are the results of functions that are not evaluated, by a part of
	// the name; "" is for virtual ones. All others return an object that is not there.
	answers map[string]uint64
	calls   []call
	machine *eval.Machine
}

// call is one of a function that is not evaluated.
type call struct {
	// name of the function; empty for a virtual one.
	name string
	// slot is where a virtual function's address is read.
	slot eval.Path
	args [2]uint64
	// loads from objects before it.
	loads int
}

// symbolicSteps bounds an evaluation, in instructions. What shows a field does so
// within some hundred.
const symbolicSteps = 4000

// reset makes the Buffer new. Its status is that of an allocated one.
func (g *symbolicObject) reset(allocated bool) {
	g.probe = eval.NewSymbolicMemory(g.image)
	g.buffer = g.probe.Root()
	g.fields = g.buffer
	// Devices say yes to all they are asked, hooks of a graph capture take no buffer.
	g.answers, g.calls = map[string]uint64{"": 1, "hook_": 0}, nil
	if g.pointer != nil {
		g.fields = g.probe.Child(g.buffer + uint64(*g.pointer))
	}
	if g.status != nil && allocated {
		g.set(*g.status, StatusAllocated)
	}
}

// learn keeps what a function has shown that helps with the next ones.
func (g *symbolicObject) learn(field string, path eval.Path) {
	if g.status == nil && field == "status" {
		g.status = &path
	}
	if g.pointer == nil && len(path.Offsets) == 1 {
		g.pointer = &path.Offsets[0]
	}
}

// StatusAllocated is the runtime's AllocationStatus::ALLOCATED.
const StatusAllocated = 1

// at is the address that a way from the Buffer leads to.
func (g *symbolicObject) at(p eval.Path) uint64 {
	object := g.buffer
	for _, o := range p.Offsets {
		object = g.probe.Child(object + uint64(o))
	}
	return object + uint64(p.Tail)
}

func (g *symbolicObject) set(p eval.Path, b ...byte) { g.probe.Set(g.at(p), b...) }

// evaluate calls a function of the library with everything that it calls.
func (g *symbolicObject) evaluate(function uint64) (uint64, error) {
	g.machine = eval.New(g.probe, eval.WithSlots(g.image.SlotFunc(eval.Libc)), eval.WithStepLimit(symbolicSteps))
	return g.call(function)
}

// follow calls a function of the library, and notes what it calls of other
// objects: that is not evaluated.
func (g *symbolicObject) follow(function uint64) error {
	g.machine = eval.New(g.probe, eval.WithSlots(g.slot), eval.WithResolver(g.resolve), eval.WithStepLimit(symbolicSteps))
	_, err := g.call(function)
	return err
}

func (g *symbolicObject) call(function uint64) (uint64, error) {
	if g.inner {
		return g.machine.Call(function, g.fields, g.buffer)
	}
	return g.machine.Call(function, g.buffer, g.probe.Root()) // is_valid_region takes a region
}

// slot takes calls through a pointer: of the PLT, or in a symbolic object's vtable.
func (g *symbolicObject) slot(address uint64) (uint64, eval.Hook, bool) {
	if name, ok := g.image.Slots()[address]; ok {
		if hook := g.hook(name); hook != nil {
			return 0, hook, true
		}
		target, ok := g.image.Symbol(name)
		return target, nil, ok
	}
	if path, ok := g.probe.Path(address); ok {
		return 0, g.note(call{slot: path}), true
	}
	return 0, nil, false
}

// resolve takes calls of an address: of a function of the library, or one read
// from a symbolic object's vtable before.
func (g *symbolicObject) resolve(address uint64) (eval.Hook, bool) {
	if name, ok := g.symbols[address]; ok {
		hook := g.hook(name)
		return hook, hook != nil
	}
	if path, ok := g.probe.Path(address); ok && len(path.Offsets) > 0 && path.Tail == 0 {
		n := len(path.Offsets) - 1
		return g.note(call{slot: eval.Path{Root: path.Root, Offsets: path.Offsets[:n], Tail: path.Offsets[n]}}), true
	}
	return nil, false
}

// hook is nil for functions that are evaluated: the Buffer's own, and the C++
// library's that the file has itself.
func (g *symbolicObject) hook(name string) eval.Hook {
	if hook, ok := eval.Libc(name); ok {
		return hook
	}
	if strings.Contains(name, "throw") {
		return eval.Throw(name)
	}
	isBuffers := strings.Contains(name, "N"+ofBuffer) || strings.Contains(name, "NK"+ofBuffer) ||
		strings.Contains(name, ofBufferImpl)
	ofStandard := strings.HasPrefix(name, "_ZNSt") || strings.HasPrefix(name, "_ZNKSt") || strings.HasPrefix(name, "_ZNRSt")
	if isBuffers || ofStandard {
		if _, ok := g.image.Symbol(name); ok {
			return nil
		}
	}
	return g.note(call{name: name})
}

func (g *symbolicObject) note(c call) eval.Hook {
	return func(m *eval.Machine) error {
		c.args = [2]uint64{m.Arg(0), m.Arg(1)}
		c.loads = len(g.probe.Loads())
		g.calls = append(g.calls, c)
		for part, v := range g.answers {
			if part == c.name || part != "" && strings.Contains(c.name, part) {
				m.Regs[eval.RAX] = v
				return nil
			}
		}
		m.Regs[eval.RAX] = g.probe.Root()
		return nil
	}
}

// find is the first call of a function.
func (g *symbolicObject) find(part string) (call, error) {
	for _, c := range g.calls {
		if strings.Contains(c.name, part) {
			return c, nil
		}
	}
	return call{}, fmt.Errorf("it does not call %s", part)
}

// loads are those from the Buffer and what it points to.
func (g *symbolicObject) loads(from int) []eval.Load {
	return slices.DeleteFunc(slices.Clone(g.probe.Loads()[from:]), func(l eval.Load) bool { return l.Path.Root != g.buffer })
}
