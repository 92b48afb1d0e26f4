package tracer

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"tt-memtrace/aggregator"
	"tt-memtrace/tracer/eval"
)

// What a program had placed before it was traced is asked of the function that
// placed it: evaluated once more, over the live program but outside of the
// process, it calls the same functions with the same values as when the probes
// see it. Nothing has to be known of how a program is laid out.

// heldProgram is a program that was there before.
type heldProgram struct {
	id uint64
	// devices that it runs on.
	devices []uint64
	placed  []placedBuffer
	kernels []heldKernel
}

// placedBuffer is a circular or dataflow buffer on a device.
type placedBuffer struct {
	device uint64
	cb     aggregator.CircularBuffer
}

// heldKernel is a kernel, and the files that its binaries were read from.
type heldKernel struct {
	id    uint64
	files []string
}

const (
	programImpl   = "_ZN2tt8tt_metal6detail11ProgramImpl"
	programVtable = "_ZTVSt23_Sp_counted_ptr_inplaceIN2tt8tt_metal6detail11ProgramImplE"

	forgetCircular  = programImpl + "37invalidate_circular_buffer_allocationEv"
	forgetDataflow  = programImpl + "37invalidate_dataflow_buffer_allocationEv"
	placeCircular   = programImpl + "25allocate_circular_buffersEPKNS0_7IDeviceE"
	placeDataflow   = programImpl + "25allocate_dataflow_buffersEPKNS0_7IDeviceE"
	reserveLocal    = programImpl + "24reserve_program_local_l1EPKNS0_7IDeviceERKNS0_12CoreRangeSetE"
	markAddress     = programImpl + "23CircularBufferAllocator12mark_addressEmmm"
	circularList    = "_ZNK2tt8tt_metal6detail11ProgramImpl16circular_buffersEv"
	circularAddress = "_ZNK2tt8tt_metal18CircularBufferImpl7addressEv"
	perChip         = "_ZN2tt8tt_metal6Device16register_programEPNS0_6detail11ProgramImplE"
	kernelsOf       = programImpl + "11get_kernelsEj"

	// A program on its cores keeps others out of L1 below it, by a count that all share.
	sealCores   = "_ZN2tt8tt_metal17PersistentL1Arena4sealERKNS0_12CoreRangeSetE"
	unsealCores = "_ZN2tt8tt_metal17PersistentL1Arena4SealD1Ev"

	ownAccount    = "_ZN2tt8tt_metal25SharedMemoryStatsProvider"
	trackCircular = "_ZN2tt8tt_metal12GraphTracker17track_allocate_cb"
	readBinary    = "_ZN2tt4llrt15get_risc_binary"
	onDisk        = "_ZNK2tt8tt_metal6Kernel22binaries_exist_on_disk"
	buildEnv      = "_ZN2tt8tt_metal15BuildEnvManager20get_device_build_envEi"
)

// buildEnvs gives the BuildEnvManager; its argument, a context's number, is 0 by default.
var buildEnvs = []string{
	"_ZN2tt8tt_metal15BuildEnvManager12get_instanceEN4ttsl10StrongTypeIiNS0_12ContextIdTagEEE",
	"_ZN2tt8tt_metal15BuildEnvManager12get_instanceEv",
}

// programSteps bounds the evaluation of one function of a program, in instructions.
const programSteps = 10_000_000

// maxKernels bounds what is believed of a program.
const maxKernels = 4096

// programVptr is what the control block of a shared ProgramImpl begins with.
func (in *inspector) programVptr() uint64 {
	for name := range in.lib.symbols {
		if strings.HasPrefix(name, programVtable) && !strings.Contains(name, "$") {
			return in.vptr(name)
		}
	}
	return 0
}

// programs are those that live: std::make_shared put each behind two words, of
// which the second counts its owners.
func (in *inspector) programs(blocks []uint64) (list []uint64) {
	for _, at := range blocks {
		if owners, err := in.pages().u64(at + 8); err == nil && uint32(owners) > 0 && uint32(owners) < 1<<20 {
			list = append(list, at+16)
		}
	}
	return list
}

// evaluation is a machine over a program, which notes calls of some of the
// library's functions.
type evaluation struct {
	in *inspector
	*eval.Machine
}

// evaluate makes a machine whose calls of the library's functions are asked for
// in hooks: by the name, and by how it begins.
func (in *inspector) evaluate(hook func(name string) eval.Hook) *evaluation {
	functions := in.lib.names()
	inner := hook
	hook = func(name string) eval.Hook {
		switch {
		case strings.Contains(name, "tt_throw"):
			// The runtime's own takes a backtrace first, by system calls.
			return eval.Throw(name)
		case name == "getpid":
			return eval.Return(uint64(in.mem))
		case strings.HasPrefix(name, ownAccount):
			return eval.Return(0) // its book in shared memory, which nobody asked for
		}
		return inner(name)
	}
	named := func(address uint64) (eval.Hook, bool) {
		h := hook(strings.TrimSuffix(functions[address-in.base], "$plt"))
		return h, h != nil
	}
	m := in.machine(eval.WithStepLimit(programSteps), eval.WithResolver(named), eval.WithSlots(func(slot uint64) (uint64, eval.Hook, bool) {
		if image, err := in.lib.Image(); err == nil {
			if h := hook(image.Slots()[slot-in.base]); h != nil {
				return 0, h, true
			}
		}
		if target, h, ok := in.slot(slot); ok {
			return target, h, true
		}
		return in.standardSlot(slot)
	}))
	return &evaluation{in, m}
}

// has says whether the library has a function.
func (e *evaluation) has(name string) bool { return e.in.lib.Defines(name) }

func (e *evaluation) call(name string, args ...uint64) (uint64, error) {
	return e.in.callOn(e.Machine, name, args...)
}

// programSize is more than any release's ProgramImpl has, bytes.
const programSize = 0xc00

// setLoad is where a std::unordered_set has its greatest load, and fullLoad what
// that is unless it was changed: 1 as a float.
const (
	setLoad  = 32
	fullLoad = 0x3f800000
)

// devicesOf are the devices that a program has its buffers on. It keeps them in
// a std::unordered_set, which is known by its elements: all are open devices.
func (in *inspector) devicesOf(program uint64, open map[uint64]uint64) (list []uint64) {
	p := in.pages()
	for at := program; at < program+programSize; at += 8 {
		load, err := p.u64(at + setLoad)
		if err != nil {
			break
		}
		count, err := p.u64(at + setCount)
		if err != nil || uint32(load) != fullLoad || count == 0 || count > uint64(len(open)) {
			continue
		}
		var found []uint64
		node, err := p.u64(at + setFirst)
		for ; err == nil && node != 0 && uint64(len(found)) <= count; node, err = p.u64(node) {
			device, err := p.u64(node + nodeValue)
			if _, ok := open[device]; err != nil || !ok {
				break
			}
			found = append(found, device)
		}
		if err != nil || uint64(len(found)) != count || node != 0 {
			continue
		}
		for _, d := range found {
			if !slices.Contains(list, d) {
				list = append(list, d)
			}
		}
	}
	slices.Sort(list)
	return list
}

// placed are the circular and dataflow buffers of a program, on each of the devices.
func (in *inspector) placed(program uint64, devices []uint64) (list []placedBuffer, err error) {
	var e *evaluation
	var cores, device uint64
	through := "" // the function that was noted, and is evaluated now
	pass := func(m *eval.Machine, name string, args ...uint64) error {
		through = name
		v, err := e.call(name, args...)
		m.Regs[eval.RAX] = v
		return err
	}
	add := func(m *eval.Machine, kind aggregator.CBKind, cores, address, size, device uint64) error {
		ranges, err := coreRanges(m, cores)
		if err == nil {
			list = append(list, placedBuffer{device, aggregator.CircularBuffer{Address: address, Size: size, Kind: kind, Ranges: ranges}})
		}
		return err
	}
	e = in.evaluate(func(name string) eval.Hook {
		switch {
		case name == through:
			through = ""
		case name == sealCores, name == unsealCores:
			// Other threads change what that counts in, and no address depends on it.
			return func(m *eval.Machine) error {
				m.Regs[eval.RAX] = m.Arg(0)
				return nil
			}
		case strings.HasPrefix(name, trackCircular):
			return func(m *eval.Machine) error {
				kind := aggregator.Circular
				if m.Arg(4)&0xff != 0 {
					kind = aggregator.GlobalCircular
				}
				return add(m, kind, m.Arg(1), m.Arg(2), m.Arg(3), m.Arg(5))
			}
		case name == reserveLocal:
			return func(m *eval.Machine) error {
				program, on, set := m.Arg(0), m.Arg(1), m.Arg(2)
				if set < m.Regs[eval.RSP] || set-m.Regs[eval.RSP] > 64<<10 {
					cores = set // not one that lives on the stack: see l1_reserved
				}
				return pass(m, name, program, on, set)
			}
		case name == markAddress:
			return func(m *eval.Machine) error {
				self, address, size, base, set := m.Arg(0), m.Arg(1), m.Arg(2), m.Arg(3), cores
				cores = 0
				if set == 0 && !e.has(reserveLocal) {
					// An allocator begins with its range: see dfb_placed.
					var err error
					if set, err = vectorOf(m, self, 32); err != nil {
						return err
					}
				}
				if set != 0 && device != 0 {
					if err := add(m, aggregator.Dataflow, set, address, size, device); err != nil {
						return err
					}
				}
				return pass(m, name, self, address, size, base)
			}
		}
		return nil
	})
	if _, err := e.call(forgetCircular, program); err != nil {
		return nil, err
	}
	if e.has(forgetDataflow) {
		if _, err := e.call(forgetDataflow, program); err != nil {
			return nil, err
		}
	}
	// It is asked for one: on the others it is the same.
	first := devices[0]
	_, err = e.call(placeCircular, program, first)
	if err == nil && e.has(placeDataflow) {
		device, cores = first, 0
		_, err = e.call(placeDataflow, program, first)
	}
	// Where it threw when it was placed, it does so again: what it had placed by
	// then is placed until it goes.
	if err != nil && !errors.Is(err, eval.ErrThrow) {
		return nil, err
	}
	for _, b := range slices.Clone(list) {
		for _, d := range devices[1:] {
			list = append(list, placedBuffer{d, b.cb})
		}
	}
	return list, nil
}

// vectorOf makes a std::vector over what lies at an address.
func vectorOf(m *eval.Machine, at, size uint64) (uint64, error) {
	v, err := m.Alloc(24)
	if err == nil {
		err = errors.Join(m.WriteU64(v, at), m.WriteU64(v+8, at+size), m.WriteU64(v+16, at+size))
	}
	return v, err
}

// maxRanges bounds the core ranges of one buffer, as in the kernel.
const maxRanges = 1024

// coreRanges reads a CoreRangeSet: it begins with a vector of ranges, each two
// corners of two words.
func coreRanges(m *eval.Machine, set uint64) ([]aggregator.CoreRange, error) {
	begin, count, err := readVector(m, set, 32, maxRanges)
	if err != nil {
		return nil, fmt.Errorf("core ranges: %w", err)
	}
	var list []aggregator.CoreRange
	for at := begin; at < begin+32*count; at += 32 {
		var c [4]uint64
		for i := range c {
			if c[i], err = m.ReadU64(at + 8*uint64(i)); err != nil {
				return nil, err
			}
		}
		list = append(list, aggregator.CoreRange{X0: clampCore(c[0]), Y0: clampCore(c[1]), X1: clampCore(c[2]), Y1: clampCore(c[3])})
	}
	return list, nil
}

// The parts of a node of a std::unordered_map from a number to a std::shared_ptr.
const nodeShared = 16

// kernels lists the kernels of a program, of all kinds of cores.
func (in *inspector) kernels(program uint64) (list []uint64) {
	const kinds = 8
	for kind := range uint64(kinds) {
		e := in.evaluate(func(string) eval.Hook { return nil })
		table, err := e.call(kernelsOf, program, kind)
		if err != nil {
			break // there are no more kinds
		}
		p := in.pages()
		node, err := p.u64(table + setFirst)
		for ; err == nil && node != 0 && len(list) < maxKernels; node, err = p.u64(node) {
			if k, err := p.u64(node + nodeShared); err == nil {
				list = append(list, k)
			}
		}
	}
	return list
}

// files are those that a kernel's binaries are read from, for a device.
func (in *inspector) files(kernel, device uint64, root string) (list []string, err error) {
	vptr, err := in.pages().u64(kernel)
	if err != nil {
		return nil, err
	}
	reader := in.lib.readers()[vptr-in.base]
	if reader == "" {
		return nil, fmt.Errorf("a kernel of an unknown kind at %#x", kernel)
	}
	e := in.evaluate(func(name string) eval.Hook {
		switch {
		case strings.HasPrefix(name, onDisk):
			return eval.Return(1)
		case strings.HasPrefix(name, readBinary):
			return func(m *eval.Machine) error {
				file, err := readString(m, m.Arg(0))
				if err != nil {
					return err
				}
				list = append(list, file)
				const enough = 4096 // for a binary of nothing
				m.Regs[eval.RAX], err = m.Alloc(enough)
				return err
			}
		}
		return nil
	})
	path, err := e.Alloc(32)
	if err == nil {
		err = writeString(e.Machine, path, root)
	}
	if err == nil {
		_, err = e.call(reader, kernel, device, path)
	}
	if len(list) > 0 {
		err = nil // what it does with them afterwards does not matter
	}
	return list, err
}

// binaryReaders are the functions that read the binaries of a kernel, one for each
// class, by the vtable that its objects point to.
func (l *Library) binaryReaders() map[uint64]string {
	m := map[uint64]string{}
	for name := range l.symbols {
		class, rest, ok := strings.Cut(strings.TrimPrefix(name, "_ZN"), "13read_binariesE")
		if vtable, found := l.symbols["_ZTVN"+class+"E"]; ok && found && !strings.HasSuffix(rest, "$plt") {
			m[vtable.Value+16] = name
		}
	}
	return m
}

// buildsIn is the directory under which the process keeps the kernels that it
// builds for a chip, which is named in the environment that it builds them in;
// "" where it is not.
func (in *inspector) buildsIn(chip uint32) (root string, err error) {
	manager, err := in.callFirst(buildEnvs, 0)
	if err != nil {
		return "", err
	}
	environment, err := in.call(buildEnv, manager, uint64(chip))
	if err != nil {
		return "", err
	}
	m := in.machine()
	const most = 2048
	for at := environment; at < environment+most; at += 8 {
		if s, err := readString(m, at); err == nil && strings.HasPrefix(s, "/") && strings.HasSuffix(s, "/kernels/") {
			return s, nil
		}
	}
	return "", nil
}

// readString reads a std::string, shorter than any path can be.
func readString(m *eval.Machine, at uint64) (string, error) {
	begin, err := m.ReadU64(at)
	if err != nil {
		return "", err
	}
	n, err := m.ReadU64(at + 8)
	if err != nil {
		return "", err
	}
	if n == 0 || n > 4096 {
		return "", fmt.Errorf("a string of %d bytes", n)
	}
	b := make([]byte, n)
	if err := m.Read(begin, b); err != nil {
		return "", err
	}
	return string(b), nil
}

// writeString makes a std::string for the machine.
func writeString(m *eval.Machine, at uint64, s string) error {
	text, err := m.Alloc(uint64(len(s)) + 1)
	if err == nil {
		err = m.Write(text, append([]byte(s), 0))
	}
	for i, v := range []uint64{text, uint64(len(s)), uint64(len(s))} {
		if err == nil {
			err = m.WriteU64(at+8*uint64(i), v)
		}
	}
	return err
}

// onlyMesh is for releases that place a program on a mesh as a whole, up to
// 0.69, and do not keep on which: where there is but one, that, if the program
// was placed at all.
func (in *inspector) onlyMesh(program uint64, open map[uint64]uint64) (list []uint64) {
	if in.lib.Defines(perChip) || !in.isPlaced(program) {
		return nil
	}
	for d := range open {
		if _, mesh, _, err := in.device(d); err == nil && mesh {
			list = append(list, d)
		}
	}
	if len(list) != 1 {
		return nil
	}
	return list
}

// isPlaced says whether a program's circular buffers have addresses.
func (in *inspector) isPlaced(program uint64) bool {
	list, err := in.call(circularList, program)
	if err != nil {
		return false
	}
	p := in.pages()
	first, err := p.u64(list)
	if err != nil {
		return false
	}
	if last, err := p.u64(list + 8); err != nil || first == last {
		return err == nil
	}
	cb, err := p.u64(first)
	if err == nil {
		_, err = in.call(circularAddress, cb)
	}
	return err == nil
}

// builder is a chip that a process builds kernels for, and the directory under
// which it keeps them; "" where it builds none, as the mock of some releases does.
type builder struct {
	device uint64
	root   string
}

// builder finds one chip that kernels are built for; they are the same for all.
func (in *inspector) builder(open map[uint64]uint64) (b builder, err error) {
	for d := range open {
		chips, mesh, _, e := in.device(d)
		if e != nil || mesh {
			continue
		}
		if b.root, err = in.buildsIn(chips[0]); err == nil {
			b.device = d
			return b, nil
		}
	}
	return b, err
}

// hold describes a program that was there before.
func (in *inspector) hold(program uint64, open map[uint64]uint64, b builder) (h heldProgram, err error) {
	h.id = program
	h.devices = in.devicesOf(program, open)
	if len(h.devices) == 0 {
		h.devices = in.onlyMesh(program, open)
	}
	if len(h.devices) == 0 {
		return h, nil // it was not placed yet
	}
	if h.placed, err = in.placed(program, h.devices); err != nil {
		return h, err
	}
	for _, k := range in.kernels(program) {
		held := heldKernel{id: k}
		if b.root != "" {
			var e error
			held.files, e = in.files(k, b.device, b.root)
			err = errors.Join(err, e)
		}
		h.kernels = append(h.kernels, held)
		pads, err := in.scratchpadsOf(k)
		if err != nil {
			return h, err
		}
		for _, cb := range pads {
			for _, d := range h.devices {
				h.placed = append(h.placed, placedBuffer{d, *cb})
			}
		}
	}
	return h, err
}
