package metal

import (
	"fmt"
	"slices"
	"strings"

	"tt-memtrace/internal/x86eval"
)

// symbolicObject is a symbolic Buffer over which one function is evaluated: the values that the function reads,
// passes on and writes show where the fields are.
type symbolicObject struct {
	image   *x86eval.Image
	symbols map[uint64]string // of the library's functions, by address
	// status and pointer are where earlier functions showed the status, and the pointer to the object that holds the
	// fields; nil if none did so far.
	status  *x86eval.Path
	pointer *int64
	// inner: the function belongs to the object that holds the fields, not to the Buffer.
	inner bool

	probe *x86eval.SymbolicMemory
	// buffer is the Buffer; fields is the object that holds its fields: the Buffer itself, or what it points to.
	buffer, fields uint64
	// answers are the results of functions that are not evaluated, by a part of the name; "" is for virtual ones. All
	// other functions return a symbolic object.
	answers map[string]uint64
	calls   []call
	machine *x86eval.Machine
}

// call is a call of a function that is not evaluated.
type call struct {
	// name of the function; empty for a virtual one.
	name string
	// slot is where a virtual function's address is read.
	slot x86eval.Path
	args [2]uint64
	// loads is the number of loads from objects before it.
	loads int
}

// symbolicSteps bounds an evaluation, in instructions. Functions that show a field do so within some hundred.
const symbolicSteps = 4000

// reset makes a new Buffer, with the status of an allocated one or not.
func (g *symbolicObject) reset(allocated bool) {
	g.probe = x86eval.NewSymbolicMemory(g.image)
	g.buffer = g.probe.Root()
	g.fields = g.buffer
	// Devices answer 1 to everything; hooks of a graph capture take no buffer.
	g.answers, g.calls = map[string]uint64{"": 1, "hook_": 0}, nil
	if g.pointer != nil {
		g.fields = g.probe.Child(g.buffer + uint64(*g.pointer))
	}
	if g.status != nil && allocated {
		g.set(*g.status, StatusAllocated)
	}
}

// learn keeps what a function showed, for the next functions.
func (g *symbolicObject) learn(field string, path x86eval.Path) {
	if g.status == nil && field == "status" {
		g.status = &path
	}
	if g.pointer == nil && len(path.Offsets) == 1 {
		g.pointer = &path.Offsets[0]
	}
}

// StatusAllocated is the runtime's AllocationStatus::ALLOCATED.
const StatusAllocated = 1

// at returns the address to which a path from the Buffer leads.
func (g *symbolicObject) at(p x86eval.Path) uint64 {
	object := g.buffer
	for _, o := range p.Offsets {
		object = g.probe.Child(object + uint64(o))
	}
	return object + uint64(p.Tail)
}

func (g *symbolicObject) set(p x86eval.Path, b ...byte) { g.probe.Set(g.at(p), b...) }

// evaluate calls a function of the library, and evaluates everything that it calls.
func (g *symbolicObject) evaluate(function uint64) (uint64, error) {
	g.machine = x86eval.New(g.probe, x86eval.WithSlots(g.image.SlotFunc(x86eval.Libc)), x86eval.WithStepLimit(symbolicSteps))
	return g.call(function)
}

// follow calls a function of the library. It records, but does not evaluate, calls on other objects.
func (g *symbolicObject) follow(function uint64) error {
	g.machine = x86eval.New(g.probe, x86eval.WithSlots(g.slot), x86eval.WithResolver(g.resolve), x86eval.WithStepLimit(symbolicSteps))
	_, err := g.call(function)
	return err
}

func (g *symbolicObject) call(function uint64) (uint64, error) {
	if g.inner {
		return g.machine.Call(function, g.fields, g.buffer)
	}
	return g.machine.Call(function, g.buffer, g.probe.Root()) // is_valid_region takes a region
}

// slot handles calls through a pointer: of the PLT, or in a symbolic object's vtable.
func (g *symbolicObject) slot(address uint64) (uint64, x86eval.Hook, bool) {
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

// resolve handles calls of an address: a function of the library, or one read earlier from a symbolic object's
// vtable.
func (g *symbolicObject) resolve(address uint64) (x86eval.Hook, bool) {
	if name, ok := g.symbols[address]; ok {
		hook := g.hook(name)
		return hook, hook != nil
	}
	if path, ok := g.probe.Path(address); ok && len(path.Offsets) > 0 && path.Tail == 0 {
		n := len(path.Offsets) - 1
		return g.note(call{slot: x86eval.Path{Root: path.Root, Offsets: path.Offsets[:n], Tail: path.Offsets[n]}}), true
	}
	return nil, false
}

// hook returns nil for functions to evaluate: the Buffer's own, and those of the C++ library that are in this file.
func (g *symbolicObject) hook(name string) x86eval.Hook {
	if hook, ok := x86eval.Libc(name); ok {
		return hook
	}
	if strings.Contains(name, "throw") {
		return x86eval.Throw(name)
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

func (g *symbolicObject) note(c call) x86eval.Hook {
	return func(m *x86eval.Machine) error {
		c.args = [2]uint64{m.Arg(0), m.Arg(1)}
		c.loads = len(g.probe.Loads())
		g.calls = append(g.calls, c)
		for part, v := range g.answers {
			if part == c.name || part != "" && strings.Contains(c.name, part) {
				m.Regs[x86eval.RAX] = v
				return nil
			}
		}
		m.Regs[x86eval.RAX] = g.probe.Root()
		return nil
	}
}

// find returns the first recorded call of a function.
func (g *symbolicObject) find(part string) (call, error) {
	for _, c := range g.calls {
		if strings.Contains(c.name, part) {
			return c, nil
		}
	}
	return call{}, fmt.Errorf("it does not call %s", part)
}

// loads returns the loads from the Buffer and from what it points to.
func (g *symbolicObject) loads(from int) []x86eval.Load {
	return slices.DeleteFunc(slices.Clone(g.probe.Loads()[from:]), func(l x86eval.Load) bool { return l.Path.Root != g.buffer })
}
