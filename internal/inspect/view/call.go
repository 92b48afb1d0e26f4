package view

import (
	"errors"
	"fmt"
	"strings"

	"tt-memtrace/aggregator"
	"tt-memtrace/internal/metal"
	"tt-memtrace/internal/x86eval"
)

// Machine returns a machine that reads the memory of the view.
func (v *View) Machine(options ...x86eval.Option) *x86eval.Machine {
	return v.MachineOver(v, options...)
}

// MachineOver returns a machine that reads the process's memory through memory.
func (v *View) MachineOver(memory x86eval.Memory, options ...x86eval.Option) *x86eval.Machine {
	standard := []x86eval.Option{x86eval.WithSlots(v.slot), x86eval.WithCode(v.code)}
	return x86eval.New(memory, append(standard, options...)...)
}

// slot resolves a call to another function by name: the pointer may be unbound, or lead to a function that must not
// be evaluated, such as a lock.
func (v *View) slot(address uint64) (uint64, x86eval.Hook, bool) {
	image, err := v.Lib.Image()
	if err != nil {
		return 0, nil, false
	}
	return slotOf(image, v.Base, address)
}

// standardSlot resolves, by name, a call that the C++ library makes. The C library has several variants of a
// function; the process uses the one that is fastest on this machine, with instructions that the evaluator does not
// know.
func (v *View) standardSlot(address uint64) (uint64, x86eval.Hook, bool) {
	image, base := v.standard()
	if image == nil {
		return 0, nil, false
	}
	return slotOf(image, base, address)
}

// slotOf resolves a call that a library makes, which is loaded at base.
func slotOf(image *x86eval.Image, base, address uint64) (uint64, x86eval.Hook, bool) {
	target, hook, ok := image.SlotFunc(x86eval.Libc)(address - base)
	if target != 0 {
		target += base
	}
	return target, hook, ok
}

// slotTarget is where a call through a pointer leads: the name, and the hook or the address if known.
type slotTarget struct {
	name    string
	address uint64
	hook    x86eval.Hook
	ok      bool
}

// targetOf returns where a call of the library or of the C++ library leads.
func (v *View) targetOf(slot uint64) slotTarget {
	t, known := v.targets[slot]
	if known {
		return t
	}
	if image, err := v.Lib.Image(); err == nil {
		t.name = image.Slots()[slot-v.Base]
	}
	if t.address, t.hook, t.ok = v.slot(slot); !t.ok {
		t.address, t.hook, t.ok = v.standardSlot(slot)
	}
	v.targets[slot] = t
	return t
}

// CallFirst evaluates the first of these functions that the library has.
func (v *View) CallFirst(names []string, args ...uint64) (uint64, error) {
	return v.Call(v.Lib.First(names), args...)
}

// Call evaluates a function of the library.
func (v *View) Call(name string, args ...uint64) (uint64, error) {
	m := v.Machine()
	defer m.Free()
	return v.CallOn(m, name, args...)
}

// CallOn evaluates a function of the library on a machine.
func (v *View) CallOn(m *x86eval.Machine, name string, args ...uint64) (uint64, error) {
	at, ok := v.Lib.Lookup(name)
	if !ok {
		return 0, fmt.Errorf("evaluating %s: the library lacks it", name)
	}
	result, err := m.Call(v.Base+at, args...)
	if err != nil {
		return 0, fmt.Errorf("evaluating %s: %w", name, err)
	}
	return result, nil
}

// OfMemory evaluates a getter with a const BufferType& parameter.
func (v *View) OfMemory(names []string, this uint64, memory aggregator.Memory) (uint64, error) {
	m := v.Machine()
	defer m.Free()
	arg, err := m.Alloc(4)
	if err == nil {
		err = m.WriteU32(arg, uint32(memory))
	}
	if err != nil {
		return 0, err
	}
	return v.CallOn(m, v.Lib.First(names), this, arg)
}

// programSteps bounds an evaluation with hooks, in instructions.
const programSteps = 10_000_000

// Evaluation is a machine that hooks calls of some of the library's functions.
type Evaluation struct {
	*x86eval.Machine
	view *View
}

// Evaluate makes a machine that asks hook, by name, about each call of the library's functions.
func (v *View) Evaluate(hook func(name string) x86eval.Hook) *Evaluation {
	functions := v.Lib.Functions()
	inner := hook
	hook = func(name string) x86eval.Hook {
		switch {
		case strings.Contains(name, "tt_throw"):
			// The runtime's function first takes a backtrace, with system calls.
			return x86eval.Throw(name)
		case name == "getpid":
			return x86eval.Return(uint64(v.Mem.PID()))
		case strings.HasPrefix(name, metal.OwnAccount):
			return x86eval.Return(0) // the runtime's account in shared memory is not needed here
		}
		return inner(name)
	}
	named := func(address uint64) (x86eval.Hook, bool) {
		name, is := functions[address-v.Base]
		if !is {
			return nil, false
		}
		h := hook(strings.TrimSuffix(name, "$plt"))
		return h, h != nil
	}
	isFunction := func(address uint64) bool {
		_, is := functions[address-v.Base]
		return is
	}
	slots := map[uint64]slotTarget{} // the same slots are called again and again
	throughSlot := func(slot uint64) (uint64, x86eval.Hook, bool) {
		t, asked := slots[slot]
		if !asked {
			t = v.targetOf(slot)
			if h := hook(t.name); h != nil {
				t = slotTarget{hook: h, ok: true}
			}
			slots[slot] = t
		}
		return t.address, t.hook, t.ok
	}
	m := v.Machine(x86eval.WithStepLimit(programSteps), x86eval.WithResolver(named), x86eval.WithEntries(isFunction),
		x86eval.WithSlots(throughSlot))
	return &Evaluation{m, v}
}

// Run evaluates a function of the library.
func (e *Evaluation) Run(name string, args ...uint64) (uint64, error) {
	return e.view.CallOn(e.Machine, name, args...)
}

// Errors of evaluations and reads.
var (
	// ErrCaught ends an evaluation that has served its purpose.
	ErrCaught = errors.New("caught")
	// ErrChanging means that each time, the process changed what was read.
	ErrChanging = errors.New("it changes faster than it can be read")
)
