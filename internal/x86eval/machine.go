// Package eval evaluates functions of an x86-64 program outside of it: it
// interprets their machine code over memory that it only reads. So a getter that
// the program exports gives a value or an offset, and no table of offsets is needed.
//
// What it promises:
//
//   - It never writes to the target. Stores go to an overlay of the Machine, in
//     which they shadow the target's memory for the rest of the Machine's life.
//   - It ends. Steps, call depth, scratch memory and stores are bounded.
//   - It does not guess. An instruction that is not modelled, a branch on a flag
//     which the architecture leaves undefined, or memory that cannot be read is
//     an error, never a value.
//
// What it cannot promise is that a live target holds still: a mutex that the
// code takes is not taken in the target, and a value read while the target
// changes it may be torn. Thread-local variables read as zero.
//
// Supported are the general-purpose instructions that compilers emit, BMI1 and
// BMI2, and the moves, logic, integer arithmetic, comparisons and shuffles of
// SSE to SSE4.1, AVX and AVX2, and the basic floating-point arithmetic as long as
// it yields no NaN. FMA, x87, MMX and AVX-512 are not.
package x86eval

import (
	"encoding/binary"
	"fmt"
	"maps"
)

// Indexes into Machine.Regs, which are the hardware's register numbers.
const (
	RAX = iota
	RCX
	RDX
	RBX
	RSP
	RBP
	RSI
	RDI
	R8
	R9
	R10
	R11
	R12
	R13
	R14
	R15
)

const (
	defaultSteps = 100_000
	maxDepth     = 256
	maxCached    = 1 << 14
)

// Hook stands in for a function that must not or cannot be interpreted. It runs
// as if it had just been called: arguments in their registers, the return
// address on top of the stack. It leaves its result in Regs[RAX]; the Machine
// then returns to the caller. An error ends the evaluation.
type Hook func(m *Machine) error

// SlotFunc resolves an indirect call or jump through the pointer at slot, without
// the pointer being read: to a hook, else to a target address. If not ok, the
// pointer is read as usual.
type SlotFunc func(slot uint64) (target uint64, hook Hook, ok bool)

// Machine is a processor with private memory. It is not safe for concurrent use.
type Machine struct {
	Regs [16]uint64

	rip   uint64
	flags uint64
	undef uint64 // flags whose value the architecture does not define
	vec   [16]vec

	overlay
	hooks    map[uint64]Hook
	resolve  func(addr uint64) (Hook, bool)
	entry    func(addr uint64) bool
	slots    SlotFunc
	maxSteps int
	steps    int
	depth    int
	active   int   // nested Calls
	before   *inst // what was executed last, or nil
}

// Option changes a new Machine.
type Option func(*Machine)

// WithHooks replaces the functions at the given addresses.
func WithHooks(hooks map[uint64]Hook) Option {
	return func(m *Machine) {
		if m.hooks == nil {
			m.hooks = map[uint64]Hook{}
		}
		maps.Copy(m.hooks, hooks)
	}
}

// WithResolver asks f for a hook at the target of each call and each taken jump
// for which WithHooks has none.
func WithResolver(f func(addr uint64) (Hook, bool)) Option {
	return func(m *Machine) { m.resolve = f }
}

// WithEntries limits the addresses that may have a hook: f is called once for each decoded jump or call with a
// constant target, and must be the same for all Machines that share the code. Without it, any address may have one.
func WithEntries(f func(addr uint64) bool) Option {
	return func(m *Machine) { m.entry = f }
}

// WithSlots asks f about each call and jump through a pointer in memory. With it,
// the stubs of a procedure linkage table can be resolved by symbol name,
// whether or not the dynamic linker has bound them already. See Image.SlotFunc.
func WithSlots(f SlotFunc) Option {
	return func(m *Machine) { m.slots = f }
}

// Code caches decoded instructions for machines that run the same code, one after another.
type Code struct {
	decoded map[uint64]*inst
	// recent caches the last fetched ones, by a hash of their addresses.
	recent [512]*inst
	// spare are zeroed pages of freed machines.
	spare []*page
}

// maxSpare is how many pages are kept: more than most machines use.
const maxSpare = 64

// NewCode returns an empty Code.
func NewCode() *Code { return &Code{decoded: map[uint64]*inst{}} }

// WithCode makes a Machine use, and add to, shared decoded code. The code at an address must not change.
func WithCode(c *Code) Option {
	return func(m *Machine) { m.code = c }
}

// WithStepLimit bounds the instructions of one outermost Call. The default is
// 100,000.
func WithStepLimit(n int) Option {
	return func(m *Machine) { m.maxSteps = n }
}

// New returns a Machine over mem, from which both code and data are read.
func New(mem Memory, opts ...Option) *Machine {
	m := &Machine{
		overlay:  newOverlay(mem),
		maxSteps: defaultSteps,
	}
	for _, opt := range opts {
		opt(m)
	}
	if m.code == nil {
		m.code = NewCode()
	}
	m.base = m.base &^ (pageSize - 1) & (1<<47 - 1)
	// What code reads through fs directly: the thread control block's pointer
	// to itself and the stack protector's value.
	tp := m.threadPointer()
	block := m.newPage(tp)
	binary.LittleEndian.PutUint64(block[0x00:], tp)
	binary.LittleEndian.PutUint64(block[0x10:], tp)
	binary.LittleEndian.PutUint64(block[0x28:], canary)
	return m
}

// Free hands the Machine's memory to those that share its code. Do not use the Machine afterwards.
func (m *Machine) Free() {
	for _, p := range m.privatePages() {
		if len(m.code.spare) < maxSpare {
			clear(p[:])
			m.code.spare = append(m.code.spare, p)
		}
	}
	m.heapPages, m.stackPages, m.tlsPages = nil, [len(m.stackPages)]*page{}, [len(m.tlsPages)]*page{}
}

func (m *Machine) threadPointer() uint64 { return m.base + tlsOffset + tlsBelow }

// Alloc returns the address of n zeroed bytes, aligned to 16, which live as long
// as the Machine. All allocations together are bounded to heapSize.
func (m *Machine) Alloc(n uint64) (uint64, error) {
	n = max(n, 1)
	if n > heapSize || m.heap+(n+15)&^15 > heapSize {
		return 0, fmt.Errorf("allocating %d bytes: %w", n, ErrLimit)
	}
	addr := m.base + heapOffset + m.heap
	m.heap += (n + 15) &^ 15
	return addr, nil
}

// Read reads memory as the evaluated code would.
func (m *Machine) Read(addr uint64, p []byte) error { return m.read(p, addr) }

// Write writes to the overlay.
func (m *Machine) Write(addr uint64, p []byte) error { return m.write(addr, p) }

// ReadU64 reads a little-endian number.
func (m *Machine) ReadU64(addr uint64) (uint64, error) { return m.readUint(addr, 8) }

// ReadU32 reads a little-endian number.
func (m *Machine) ReadU32(addr uint64) (uint32, error) {
	v, err := m.readUint(addr, 4)
	return uint32(v), err
}

// WriteU64 writes a little-endian number to the overlay.
func (m *Machine) WriteU64(addr, v uint64) error { return m.writeUint(addr, 8, v) }

// WriteU32 writes a little-endian number to the overlay.
func (m *Machine) WriteU32(addr uint64, v uint32) error { return m.writeUint(addr, 4, uint64(v)) }

// Arg is the i-th integer argument of the function that a Hook stands in for.
// Only the first six are in registers.
func (m *Machine) Arg(i int) uint64 { return m.Regs[argRegs[i]] }

var argRegs = [6]int{RDI, RSI, RDX, RCX, R8, R9}

// Steps is the number of instructions of the last outermost Call.
func (m *Machine) Steps() int { return m.steps }

// Call calls the function at fn with up to six integer arguments by the System V
// convention and returns what it leaves in rax. Its second result, if any, is in
// Regs[RDX]. Other registers start as zero. A Hook may use it to call back; the
// registers are then as before when it returns.
//
// An error that the evaluated code caused is a *Fault.
func (m *Machine) Call(fn uint64, args ...uint64) (uint64, error) {
	if len(args) > len(argRegs) {
		return 0, fmt.Errorf("calling %#x with %d arguments: %w", fn, len(args), ErrUnsupported)
	}
	if m.active >= maxDepth {
		return 0, limit("call depth")
	}
	outermost := m.active == 0
	if outermost {
		m.Regs = [16]uint64{}
		m.vec = [16]vec{}
		m.flags, m.undef = 0, 0
		m.steps, m.depth = 0, 0
		m.Regs[RSP] = m.base + stackOffset + stackSize - 64
	} else {
		regs, rip, flags, undef, vecs, depth := m.Regs, m.rip, m.flags, m.undef, m.vec, m.depth
		defer func() {
			m.Regs, m.rip, m.flags, m.undef, m.vec, m.depth = regs, rip, flags, undef, vecs, depth
		}()
	}
	m.active++
	defer func() { m.active-- }()

	m.Regs[RSP] &^= 15
	exit := m.base + exitOffset
	bottom := m.Regs[RSP]
	for i, arg := range args {
		m.Regs[argRegs[i]] = arg
	}
	if err := m.call(fn, exit); err != nil {
		return 0, &Fault{Addr: fn, Err: err}
	}
	for m.rip != exit || m.Regs[RSP] != bottom {
		if err := m.step(); err != nil {
			return 0, err
		}
	}
	return m.Regs[RAX], nil
}

// step executes one instruction.
func (m *Machine) step() error {
	in, err := (*inst)(nil), error(nil)
	if b := m.before; b == nil {
		in, err = m.fetch(m.rip)
	} else {
		then := &b.then
		if m.rip != b.next {
			then = &b.taken
		}
		if in = *then; in == nil || in.addr != m.rip {
			if in, err = m.fetch(m.rip); err == nil {
				*then = in
			}
		}
	}
	if err == nil {
		m.before = in
		if m.steps >= m.maxSteps {
			err = limit("steps")
		} else {
			m.steps++
			m.rip = in.next
			if in.quick != quickNone {
				err = m.execQuick(in)
			} else {
				err = m.exec(in)
			}
		}
	}
	if err != nil {
		f := &Fault{Addr: m.rip, Err: err}
		if in != nil {
			f.Addr, f.Code = in.addr, in.raw[:in.size]
		}
		return f
	}
	return nil
}

// fetch decodes the instruction at addr. Code comes from the Memory and never
// from the overlay: what the evaluated code has written is not executed.
func (m *Machine) fetch(addr uint64) (*inst, error) {
	// Addresses differ most in their lowest bits, and the highest of the product depend on all.
	recent := &m.code.recent[addr*0x9e37_79b9_7f4a_7c15>>55]
	if in := *recent; in != nil && in.addr == addr {
		return in, nil
	}
	if in := m.code.decoded[addr]; in != nil {
		*recent = in
		return in, nil
	}
	if in, bad := m.private(addr, maxInst); in || bad || addr > ^uint64(0)-maxInst {
		return nil, &AccessError{Op: "fetching", Addr: addr, Size: 1}
	}
	read := m.mem.ReadAt
	if code, ok := m.mem.(CodeMemory); ok {
		read = code.FetchAt
	}
	// The last instruction of a mapping is likely shorter than the longest one.
	var code [maxInst]byte
	n := maxInst
	var err error
	for ; n > 0; n-- {
		if err = read(code[:n], addr); err == nil {
			break
		}
	}
	if n == 0 {
		return nil, &AccessError{Op: "fetching", Addr: addr, Size: 1, Err: err}
	}
	in, err := decode(code[:n], addr)
	if err != nil {
		return in, err
	}
	if len(m.code.decoded) >= maxCached {
		clear(m.code.decoded)
		clear(m.code.recent[:])
		m.before = nil // what is forgotten leads to nothing that is kept
	}
	m.code.decoded[addr] = in
	return in, nil
}

func (m *Machine) push(v uint64) error {
	if err := m.writeUint(m.Regs[RSP]-8, 8, v); err != nil {
		return err
	}
	m.Regs[RSP] -= 8
	return nil
}

func (m *Machine) pop() (uint64, error) {
	v, err := m.readUint(m.Regs[RSP], 8)
	if err == nil {
		m.Regs[RSP] += 8
	}
	return v, err
}

// enter does the part of a call that precedes the jump.
func (m *Machine) enter(ret uint64) error {
	if err := m.push(ret); err != nil {
		return err
	}
	if m.depth++; m.depth > maxDepth {
		return limit("call depth")
	}
	return nil
}

// call enters the function at target, to return to ret.
func (m *Machine) call(target, ret uint64) error {
	if err := m.enter(ret); err != nil {
		return err
	}
	return m.jump(target)
}

// branch follows a jump with a constant target.
func (m *Machine) branch(in *inst) error {
	target := in.next + uint64(in.imm)
	if in.leads == leadsUnknown && m.entry != nil {
		in.leads = leadsInside
		if m.entry(target) {
			in.leads = leadsToEntry
		}
	}
	if in.leads == leadsInside && m.entry != nil {
		m.rip = target
		return nil
	}
	return m.jump(target)
}

// ret returns from a function.
func (m *Machine) ret() error {
	to, err := m.pop()
	if err != nil {
		return err
	}
	m.rip = to
	m.depth--
	return nil
}

// jump goes to target, or does what a hook there does.
func (m *Machine) jump(target uint64) error {
	hook := m.hooks[target]
	if hook == nil && m.resolve != nil {
		if h, ok := m.resolve(target); ok {
			hook = h
		}
	}
	if hook != nil {
		return m.runHook(hook)
	}
	m.rip = target
	return nil
}

func (m *Machine) runHook(hook Hook) error {
	if m.steps >= m.maxSteps {
		return limit("steps")
	}
	m.steps++
	sp := m.Regs[RSP]
	if err := hook(m); err != nil {
		return err
	}
	m.Regs[RSP] = sp
	return m.ret()
}

// through calls or jumps through the pointer in memory at slot.
func (m *Machine) through(slot uint64, call bool, ret uint64) error {
	var hook Hook
	var target uint64
	ok := false
	if m.slots != nil {
		target, hook, ok = m.slots(slot)
	}
	if !ok {
		hook = nil
		var err error
		if target, err = m.readUint(slot, 8); err != nil {
			return err
		}
	}
	if call {
		if err := m.enter(ret); err != nil {
			return err
		}
	}
	if hook != nil {
		return m.runHook(hook)
	}
	return m.jump(target)
}
