package inspect

import (
	"errors"
	"fmt"
	"hash/fnv"
	"slices"
	"strings"

	"tt-memtrace/aggregator"
	"tt-memtrace/internal/memory"
	"tt-memtrace/internal/metal"
	"tt-memtrace/internal/x86eval"
)

// To find out what a program placed before it was traced, the tracer evaluates the function that placed it once more,
// over the live program but outside of the process. The function makes the same calls with the same values as the
// probes would see. So nothing has to be known about a program's object layout.

// Program is a program that existed when the process was read.
type Program struct {
	ID uint64
	// Devices that it runs on; none if it was not placed. State is then its state at that time.
	Devices []uint64
	State   uint64
	// Range is the range of mesh coordinates that a workload's program is for. ChipsUnknown is why it may be on only
	// some of Devices.
	Range        MeshRange
	ChipsUnknown error
	Placed       []PlacedBuffer
	Kernels      []Kernel
	// Copies are the copies of its kernels in DRAM, from which they are loaded.
	Copies []KernelCopy
}

// KernelCopy is the place of a copy of a program's kernels in a device's DRAM, and its buffer.
type KernelCopy struct{ Device, Address, Buffer uint64 }

// PlacedBuffer is a circular or dataflow buffer on a device.
type PlacedBuffer struct {
	Device uint64
	CB     aggregator.CircularBuffer
}

// Kernel is a kernel, and the files that its binaries were read from.
type Kernel struct {
	ID    uint64
	Files []string
	// Cores is the number of cores that it runs on, 0 if unknown.
	Cores uint64
}

// ProgramNumber returns the runtime's number of a program; another program at the same address has another one. It is
// 0 if it cannot be read.
func (in *Inspector) ProgramNumber(program uint64) uint64 {
	n, err := in.call(metal.ProgramNumber, program)
	if err != nil {
		return 0
	}
	return n
}

// programSteps bounds the evaluation of one function of a program, in instructions.
const programSteps = 10_000_000

// maxKernels bounds the kernels that a program can claim.
const maxKernels = 4096

// programVptr returns the vptr of a shared ProgramImpl's control block.
func (in *Inspector) programVptr() uint64 {
	name := in.lib.ProgramBlock()
	if name == "" {
		return 0
	}
	return in.vptr(name)
}

// FindsPrograms reports whether the library shows which programs a process has.
func (in *Inspector) FindsPrograms() bool { return in.programVptr() != 0 }

// programs returns the live ones: std::make_shared puts each behind two words, the second of which counts its owners.
// With errUnread there may be more.
func (in *Inspector) programs(blocks []uint64) (list []uint64, err error) {
	p, failed := in.pages(), in.mem.Failed()
	p.Ahead(blocks, 16)
	for _, at := range blocks {
		if owners, err := p.U64(at + 8); err == nil && uint32(owners) > 0 && uint32(owners) < 1<<20 {
			list = append(list, at+16)
		}
	}
	if in.mem.Failed() != failed {
		err = errUnread
	}
	return list, err
}

// evaluation is a machine over a program that hooks calls of some of the library's functions.
type evaluation struct {
	in *Inspector
	*x86eval.Machine
}

// evaluate makes a machine that asks hook, by name, about each call of the library's functions.
func (in *Inspector) evaluate(hook func(name string) x86eval.Hook) *evaluation {
	functions := in.lib.Functions()
	inner := hook
	hook = func(name string) x86eval.Hook {
		switch {
		case strings.Contains(name, "tt_throw"):
			// The runtime's function first takes a backtrace, with system calls.
			return x86eval.Throw(name)
		case name == "getpid":
			return x86eval.Return(uint64(in.mem.PID()))
		case strings.HasPrefix(name, metal.OwnAccount):
			return x86eval.Return(0) // the runtime's account in shared memory is not needed here
		}
		return inner(name)
	}
	named := func(address uint64) (x86eval.Hook, bool) {
		name, is := functions[address-in.base]
		if !is {
			return nil, false
		}
		h := hook(strings.TrimSuffix(name, "$plt"))
		return h, h != nil
	}
	isFunction := func(address uint64) bool {
		_, is := functions[address-in.base]
		return is
	}
	slots := map[uint64]slotTarget{} // the same slots are called again and again
	m := in.machine(x86eval.WithStepLimit(programSteps), x86eval.WithResolver(named), x86eval.WithEntries(isFunction), x86eval.WithSlots(func(slot uint64) (uint64, x86eval.Hook, bool) {
		t, asked := slots[slot]
		if !asked {
			t = in.targetOf(slot)
			if h := hook(t.name); h != nil {
				t = slotTarget{hook: h, ok: true}
			}
			slots[slot] = t
		}
		return t.address, t.hook, t.ok
	}))
	return &evaluation{in, m}
}

// has reports whether the library has a function.
func (e *evaluation) has(name string) bool { return e.in.lib.Defines(name) }

func (e *evaluation) call(name string, args ...uint64) (uint64, error) {
	return e.in.callOn(e.Machine, name, args...)
}

// programSize exceeds any release's ProgramImpl; beforeProgram is what malloc and std::make_shared put before it.
// Bytes.
const (
	programSize   = 0xc00
	beforeProgram = 24
)

// readAhead reads the memory of some programs into the cache, if there is one.
func (in *Inspector) readAhead(programs []uint64) {
	if in.data == nil {
		return
	}
	begins := make([]uint64, len(programs))
	for i, p := range programs {
		begins[i] = p - beforeProgram
	}
	in.data.Ahead(begins, beforeProgram+programSize)
}

// endOf returns an upper bound of a program's end: another program may follow.
func endOf(p *memory.Pages, program uint64) uint64 {
	return endOfChunk(p, program-beforeProgram, program+programSize)
}

// endOfChunk returns the end of a malloc chunk, and at most end: the word at size is the chunk's size, with flags in
// the lowest bits.
func endOfChunk(p *memory.Pages, size, end uint64) uint64 {
	const flags, least = 7, 0x100 // bits, bytes
	if bytes, err := p.U64(size); err == nil && bytes >= least {
		end = min(end, size+bytes&^flags)
	}
	return end
}

// devicesOf returns the devices on which a program has its buffers. The program keeps them in a std::unordered_set,
// which is recognized by its elements: all are open devices.
func (in *Inspector) devicesOf(program uint64, open map[uint64]uint64) (list []uint64) {
	p := in.recent()
	for at, end := program, endOf(p, program); at < end; at += 8 {
		load, err := p.U64(at + metal.SetLoad)
		if err != nil {
			break
		}
		count, err := p.U64(at + metal.SetCount)
		if err != nil || uint32(load) != metal.FullLoad || count == 0 || count > uint64(len(open)) {
			continue
		}
		var found []uint64
		node, err := p.U64(at + metal.SetFirst)
		for ; err == nil && node != 0 && uint64(len(found)) <= count; node, err = p.U64(node) {
			device, err := p.U64(node + metal.NodeValue)
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

// ProgramState is a checksum of a program's own bytes, 0 if they cannot be read. It changes when the program is
// placed.
func (in *Inspector) ProgramState(program uint64) uint64 {
	p := in.recent()
	b := make([]byte, (endOf(p, program)-program)&^7)
	if p.ReadAt(b, program) != nil {
		return 0
	}
	h := fnv.New64a()
	_, _ = h.Write(b)
	return max(h.Sum64(), 1)
}

// placed returns the circular and dataflow buffers of a program, on each of the devices.
// arenas are the chips' arenas of persistent L1: what a program has begins above them. The runtime asks
// the arena of the mesh on which it placed the program, and not that of a chip.
func (in *Inspector) placed(program uint64, devices, arenas []uint64) (list []PlacedBuffer, err error) {
	var e *evaluation
	var cores, device uint64
	through := "" // the hooked function that is being evaluated now
	pass := func(m *x86eval.Machine, name string, args ...uint64) error {
		through = name
		v, err := e.call(name, args...)
		m.Regs[x86eval.RAX] = v
		return err
	}
	add := func(m *x86eval.Machine, kind aggregator.CBKind, cores, address, size, device uint64) error {
		ranges, err := coreRanges(m, cores)
		if err == nil {
			list = append(list, PlacedBuffer{device, aggregator.CircularBuffer{Address: address, Size: size, Kind: kind, Ranges: ranges}})
		}
		return err
	}
	e = in.evaluate(func(name string) x86eval.Hook {
		switch {
		case name == through:
			through = ""
		case name == metal.SealCores, name == metal.UnsealCores:
			// Other threads change its counters, and no address depends on it.
			return func(m *x86eval.Machine) error {
				m.Regs[x86eval.RAX] = m.Arg(0)
				return nil
			}
		case name == metal.PersistentTop:
			return func(m *x86eval.Machine) error {
				cores, highest := m.Arg(1), uint64(0)
				for _, arena := range append([]uint64{m.Arg(0)}, arenas...) {
					if err := pass(m, name, arena, cores); err != nil {
						return err
					}
					highest = max(highest, m.Regs[x86eval.RAX])
				}
				m.Regs[x86eval.RAX] = highest
				return nil
			}
		case name == metal.CoresOf:
			return func(m *x86eval.Machine) error {
				return in.listCores(m, func(result, set, limit, byRow uint64) error { return pass(m, name, result, set, limit, byRow) })
			}
		case strings.HasPrefix(name, metal.TrackCircular):
			return func(m *x86eval.Machine) error {
				kind := aggregator.Circular
				if m.Arg(4)&0xff != 0 {
					kind = aggregator.GlobalCircular
				}
				return add(m, kind, m.Arg(1), m.Arg(2), m.Arg(3), m.Arg(5))
			}
		case name == metal.ReserveLocal:
			return func(m *x86eval.Machine) error {
				program, on, set := m.Arg(0), m.Arg(1), m.Arg(2)
				if set < m.Regs[x86eval.RSP] || set-m.Regs[x86eval.RSP] > 64<<10 {
					cores = set // a set that is not on the stack: see l1_reserved
				}
				return pass(m, name, program, on, set)
			}
		case name == metal.MarkAddress:
			return func(m *x86eval.Machine) error {
				self, address, size, base, set := m.Arg(0), m.Arg(1), m.Arg(2), m.Arg(3), cores
				cores = 0
				if set == 0 && !e.has(metal.ReserveLocal) {
					// An allocator object begins with its range: see dfb_placed.
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
	defer e.Free()
	if _, err := e.call(metal.ForgetCircular, program); err != nil {
		return nil, err
	}
	if e.has(metal.ForgetDataflow) {
		if _, err := e.call(metal.ForgetDataflow, program); err != nil {
			return nil, err
		}
	}
	// Evaluate one device: the result is the same for the others.
	first := devices[0]
	_, err = e.call(metal.PlaceCircular, program, first)
	if !slices.ContainsFunc(list, func(b PlacedBuffer) bool { return b.CB.Kind != aggregator.GlobalCircular }) {
		list = nil // the runtime places none if all lie in buffers: nothing of its own would need a place
	}
	if e.has(metal.PersistentTop) {
		in.keepPlaces(program, list)
	}
	if err == nil && e.has(metal.PlaceDataflow) {
		device, cores = first, 0
		_, err = e.call(metal.PlaceDataflow, program, first)
	}
	// If placing threw before, it throws again: what it had placed before that stays placed until the program ends.
	if err != nil && !errors.Is(err, x86eval.ErrThrow) {
		return nil, err
	}
	for _, b := range slices.Clone(list) {
		for _, d := range devices[1:] {
			list = append(list, PlacedBuffer{d, b.CB})
		}
	}
	return list, nil
}

// keepPlaces gives evaluated circular buffers the addresses that the program has for them. They differ if persistent L1
// below them was taken or given back since the program was placed: it keeps its places until it is placed again.
func (in *Inspector) keepPlaces(program uint64, list []PlacedBuffer) {
	own := slices.IndexFunc(list, func(b PlacedBuffer) bool { return b.CB.Kind == aggregator.Circular })
	if own < 0 {
		return
	}
	// Releases with this arena return a std::span of std::shared_ptr: where it begins, and its length.
	m := in.machine()
	defer m.Free()
	first, err := in.callOn(m, metal.CircularList, program)
	if err != nil || m.Regs[x86eval.RDX] != uint64(len(list)) {
		return
	}
	p := in.recent()
	const shared = 16 // bytes of a std::shared_ptr
	kept := slices.Clone(list)
	for i := own; i < len(list); i++ {
		if list[i].CB.Kind != aggregator.Circular {
			continue
		}
		buffer, err := p.U64(first + shared*uint64(i))
		if err != nil {
			return
		}
		address, err := in.call(metal.CircularAddress, buffer)
		if address &= 1<<32 - 1; err != nil || i == own && address == list[i].CB.Address {
			return // the first one's place shows those of the others
		}
		kept[i].CB.Address = address
	}
	copy(list, kept)
}

// vectorOf makes a std::vector whose elements are the size bytes at an address.
func vectorOf(m *x86eval.Machine, at, size uint64) (uint64, error) {
	v, err := m.Alloc(24)
	if err == nil {
		err = writeVector(m, v, at, size)
	}
	return v, err
}

// kernels lists a program's kernels, for all kinds of cores.
func (in *Inspector) kernels(program uint64) (list []uint64) {
	const kinds = 8
	e := in.evaluate(func(string) x86eval.Hook { return nil })
	defer e.Free()
	for kind := range uint64(kinds) {
		table, err := e.call(metal.KernelsOf, program, kind)
		if err != nil {
			break // no more kinds
		}
		p := in.recent()
		node, err := p.U64(table + metal.SetFirst)
		for ; err == nil && node != 0 && len(list) < maxKernels; node, err = p.U64(node) {
			if k, err := p.U64(node + metal.NodeShared); err == nil {
				list = append(list, k)
			}
		}
	}
	return list
}

// kernelCopies returns the copies of a program's kernels in DRAM. Slow dispatch makes none.
func (in *Inspector) kernelCopies(program uint64, devices []uint64) (list []KernelCopy, err error) {
	if !in.lib.Defines(metal.KernelCopy) {
		return nil, nil
	}
	e := in.evaluate(func(string) x86eval.Hook { return nil })
	defer e.Free()
	shared, err := e.Alloc(16) // a std::shared_ptr is returned
	if err != nil {
		return nil, err
	}
	for _, device := range devices {
		if _, err = e.call(metal.KernelCopy, shared, program, device); err != nil {
			return nil, err
		}
		buffer, err := e.ReadU64(shared)
		if err != nil {
			return nil, err
		}
		if buffer == 0 {
			continue
		}
		address, err := e.call(metal.BufferAddress, buffer)
		if err != nil {
			return nil, err
		}
		list = append(list, KernelCopy{Device: device, Address: address})
	}
	return list, nil
}

// findCopies finds the buffers that hold copies of kernels, and drops copies without a buffer.
func (b *ProcessScan) findCopies() {
	if !slices.ContainsFunc(b.Programs, func(p Program) bool { return len(p.Copies) > 0 }) {
		return
	}
	buffers := map[KernelCopy]uint64{}
	for _, h := range b.Scan.Buffers {
		if h.Memory == aggregator.DRAM {
			buffers[KernelCopy{Device: h.Device, Address: h.Address}] = h.Buffer
		}
	}
	for i := range b.Programs {
		copies := b.Programs[i].Copies
		for k, c := range copies {
			copies[k].Buffer = buffers[c]
		}
		b.Programs[i].Copies = slices.DeleteFunc(copies, func(c KernelCopy) bool { return c.Buffer == 0 })
	}
}

// files returns the files from which a kernel's binaries are read, for a device.
func (in *Inspector) files(kernel, device uint64, root string) (list []string, err error) {
	vptr, err := in.recent().U64(kernel)
	if err != nil {
		return nil, err
	}
	reader := in.lib.BinaryReaders()[vptr-in.base]
	if reader == "" {
		return nil, fmt.Errorf("a kernel of an unknown kind at %#x", kernel)
	}
	// The first kernel of each kind shows whether hooks find the same files with far fewer instructions.
	number, compared := in.quickPaths.Load(reader)
	if compared && number != 0 {
		if list, err := in.filesBy(reader, kernel, device, root, true); err == nil && len(list) == number {
			return list, nil
		}
	}
	list, err = in.filesBy(reader, kernel, device, root, false)
	if err == nil && !compared {
		quick, e := in.filesBy(reader, kernel, device, root, true)
		if e != nil || !slices.Equal(quick, list) {
			quick = nil
		}
		in.quickPaths.Store(reader, len(quick))
	}
	return list, err
}

// filesBy does what files does; quickly lets hooks join the paths.
func (in *Inspector) filesBy(reader string, kernel, device uint64, root string, quickly bool) (list []string, err error) {
	e := in.evaluate(func(name string) x86eval.Hook {
		switch {
		case strings.HasPrefix(name, metal.OnDisk):
			return x86eval.Return(1)
		case strings.HasPrefix(name, metal.ReadBinary):
			return func(m *x86eval.Machine) error {
				file, err := m.ReadString(m.Arg(0))
				if err != nil {
					return err
				}
				list = append(list, file)
				const enough = 4096 // for an empty binary
				m.Regs[x86eval.RAX], err = m.Alloc(enough)
				return err
			}
		}
		if hook, ok := x86eval.Paths(name); ok && quickly {
			return hook
		}
		return nil
	})
	defer e.Free()
	path, err := e.Alloc(32)
	if err == nil {
		err = e.WriteString(path, root)
	}
	if err == nil {
		_, err = e.call(reader, kernel, device, path)
	}
	if len(list) > 0 {
		err = nil // what happens to the files afterwards does not matter
	}
	return list, err
}

// buildsIn returns the directory of the kernels that the process builds for a chip, from its build environment; "" if
// there is none.
func (in *Inspector) buildsIn(chip uint32) (root string, err error) {
	manager, err := in.callFirst(metal.BuildEnvs, 0)
	if err != nil {
		return "", err
	}
	environment, err := in.call(metal.BuildEnv, manager, uint64(chip))
	if err != nil {
		return "", err
	}
	m := in.machine()
	defer m.Free()
	const most = 2048
	for at := environment; at < environment+most; at += 8 {
		if s, err := m.ReadString(at); err == nil && strings.HasPrefix(s, "/") && strings.HasSuffix(s, "/kernels/") {
			return s, nil
		}
	}
	return "", nil
}

// isPlaced reports whether a program's circular buffers have addresses. It is for releases up to 0.69 (see placedOn),
// which return a reference to a std::vector; later ones return a std::span, as keepPlaces reads it.
func (in *Inspector) isPlaced(program uint64) bool {
	list, err := in.call(metal.CircularList, program)
	if err != nil {
		return false
	}
	p := in.recent()
	first, err := p.U64(list)
	if err != nil {
		return false
	}
	if last, err := p.U64(list + 8); err != nil || first == last {
		return err == nil
	}
	cb, err := p.U64(first)
	if err == nil {
		_, err = in.call(metal.CircularAddress, cb)
	}
	return err == nil
}

// builder is a chip for which a process builds kernels, and their directory; "" if it builds none, as the mock of
// some releases does.
type builder struct {
	device uint64
	root   string
}

// builder finds one of the single-chip devices for which kernels are built.
func (in *Inspector) builder(o *openDevices, devices []uint64) (b builder, err error) {
	for _, d := range devices {
		if len(o.chips[d]) != 1 {
			continue
		}
		if b.root, err = in.buildsIn(o.chips[d][0]); err == nil {
			b.device = d
			return b, nil
		}
	}
	return b, err
}

// describeProgram reads one program.
func (in *Inspector) describeProgram(program uint64, o *openDevices, b builder, ranges []MeshRange) (h Program, err error) {
	h.ID = program
	if h.Devices, h.ChipsUnknown, err = in.placedOn(program, o); err != nil {
		return h, err
	}
	if len(h.Devices) == 0 {
		// It was not placed yet, or on chips that closed since. Its kernels may be compiled and loaded later; from
		// now on they are read from the cache.
		h.State = in.ProgramState(program)
		for _, k := range in.kernels(program) {
			h.Kernels = append(h.Kernels, Kernel{ID: k, Cores: in.Cores(k)})
		}
		return h, nil
	}
	// A mesh has one copy for all of its chips.
	if h.Copies, err = in.kernelCopies(program, o.with(h.Devices)); err != nil {
		return h, err
	}
	if h.ChipsUnknown == nil {
		h.Devices, h.Range, h.ChipsUnknown = in.narrow(h.Devices, ranges, o.chips)
	}
	if h.Placed, err = in.placed(program, h.Devices, in.arenasOf(h.Devices, o)); err != nil {
		return h, err
	}
	if on := o.owned[program]; len(on) > 0 {
		if b, err = in.builder(o, on); err != nil {
			return h, err
		}
	}
	for _, k := range in.kernels(program) {
		held := Kernel{ID: k, Cores: in.Cores(k)}
		if b.root != "" {
			var e error
			held.Files, e = in.files(k, b.device, b.root)
			err = errors.Join(err, e)
		}
		h.Kernels = append(h.Kernels, held)
		pads, err := in.Scratchpads(k)
		if err != nil {
			return h, err
		}
		for _, cb := range pads {
			for _, d := range h.Devices {
				h.Placed = append(h.Placed, PlacedBuffer{d, *cb})
			}
		}
	}
	return h, err
}
