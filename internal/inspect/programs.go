package inspect

import (
	"cmp"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"tt-memtrace/aggregator"
	"tt-memtrace/internal/inspect/view"
	"tt-memtrace/internal/memory"
	"tt-memtrace/internal/metal"
	"tt-memtrace/internal/x86eval"
)

// To find out what a program placed before it was traced, the tracer evaluates the function that placed it once more,
// over the live program but outside of the process. The function makes the same calls with the same values as the
// probes would see. So nothing has to be known about a program's object layout.

var (
	errNotLaunched = errors.New("it was never launched, so whether its chips still hold it is unknown")
	errWhichMesh   = errors.New("it was never launched, so which open mesh holds it is unknown")
	errMeshClosed  = errors.New("the mesh on which it was placed is closed")
	errOpening     = errors.New("whether its chips still hold it is unknown: their mesh is being opened or closed")
	errOrphan      = errors.New("whether its chips still hold it is unknown: a submesh outlives its mesh")
)

// lastManager is the number of the last manager that a program was launched with, where it was launched.
func lastManager(v *view.View, program, next uint64) (last uint64, launched bool, err error) {
	if !v.Lib.Defines(metal.MeshManager) || !v.Lib.Defines(metal.ProgramCommands) {
		return 0, false, nil
	}
	p := v.Pages()
	for _, commands := range []string{metal.ProgramCommands, metal.TracedCommands} {
		if !v.Lib.Defines(commands) {
			continue
		}
		table, err := v.Call(commands, program)
		if err != nil {
			return 0, false, err
		}
		node, err := p.U64(table + metal.SetFirst)
		for n := 0; err == nil && node != 0 && n < maxManagers; n++ {
			var number uint64
			if number, err = p.U64(node + metal.NodeValue); err == nil {
				last, launched = max(last, number), true
				node, err = p.U64(node)
			}
		}
		if err != nil {
			return 0, false, err
		}
	}
	if next > 0 && launched && last >= next {
		return 0, false, fmt.Errorf("a program has commands for the sub-device manager %d of %d", last, next)
	}
	return last, launched, nil
}

// maxManagers bounds the managers that a program can claim.
const maxManagers = 1 << 16

// placedOn returns the open devices on which a program is placed. unknown is why it may be on only some of their
// chips.
func placedOn(v *view.View, program uint64, o *openDevices) (list []uint64, unknown, err error) {
	if on, owned := o.owned[program]; owned {
		return on, nil, nil
	}
	list = devicesOf(v, program, o.allocators)
	if len(list) == 0 && (v.Lib.Defines(metal.PerChip) || !isPlaced(v, program)) {
		return nil, nil, nil
	}
	last, launched, err := lastManager(v, program, o.next)
	if err != nil {
		return nil, nil, err
	}
	if len(list) == 0 {
		return meshOf(v, o, last, launched)
	}
	if !launched {
		for _, d := range list {
			if first, err := o.since(d); err != nil || first > 0 {
				return nil, nil, cmp.Or(err, errNotLaunched)
			}
		}
		return list, nil, nil
	}
	list, err = o.openSince(list, last)
	return list, nil, err
}

// meshOf does what placedOn does, for releases up to 0.69. They place a program on a mesh as a whole, and only the
// manager shows on which.
func meshOf(v *view.View, o *openDevices, last uint64, launched bool) (list []uint64, unknown, err error) {
	meshes := slices.Sorted(maps.Keys(o.managers))
	if !launched {
		switch {
		case len(meshes) > 1:
			return nil, nil, errWhichMesh
		case len(meshes) == 1 && o.managers[meshes[0]] > 0:
			return nil, nil, errNotLaunched
		}
		return meshes, nil, nil
	}
	chips, known := o.own(0), false
	for _, mesh := range meshes {
		_, open := o.allocators[mesh]
		active, err := v.Call(metal.ActiveManager, mesh)
		switch {
		case last != o.managers[mesh] && (!open || err != nil || last != active):
		case open:
			return []uint64{mesh}, nil, nil
		default:
			chips, known = o.own(mesh), true
		}
	}
	// Its mesh closed, but some of its chips may have stayed open.
	if list, err = o.openSince(chips, last); len(list) > 1 && !known {
		unknown = errMeshClosed
	}
	return list, unknown, err
}

// listPrograms lists the live programs among those with a control block.
func listPrograms(p *view.Process, b *ProcessScan, blocks []uint64) {
	list, err := livePrograms(p, blocks)
	if b.Scan.Programs, b.Scan.ProgramsRead = list, err == nil; err != nil {
		b.Unsearched = cmp.Or(b.Unsearched, err)
	}
}

// programTime bounds how long the programs of a process are read.
const programTime = 15 * time.Second

// readPrograms reads the unknown programs that have a control block and to which pointers lead. A library that keeps
// programs in another way shows none, and the scan says so.
func readPrograms(v *view.View, b *ProcessScan, blocks, pointers []uint64, known map[uint64]bool) {
	if programVptr(v.Process) == 0 {
		return
	}
	listPrograms(v.Process, b, blocks)
	unknown := slices.DeleteFunc(slices.Clone(b.Scan.Programs), func(id uint64) bool { return known[id] })
	open := openDevicesOf(v, b.Devices, b.orphans)
	b.Managers = open.managers
	builder, err := builderOf(v, open, open.own(0)) // a workload's kernels are the same for all chips
	if err != nil {
		builder.device = 0
	}
	var ranges map[uint64][]MeshRange
	if len(unknown) > 0 {
		held := heldPrograms(v.Process, unknown, pointers)
		open.owned = ownedPrograms(v, open, held)
		if len(open.chips) > 1 {
			// Without ranges, the programs of a mesh with several chips have unknown chips.
			ranges = nodesOf(v.Process, held)
		}
	}
	read := readEach(v.Process, unknown, func(v *view.View, cores coreLists, id uint64) *programRead {
		p, r := &programRead{}, programReader{v, open, builder, cores}
		p.Program, p.err = r.describe(id, ranges[id])
		if p.err != nil {
			// It may just have been in the making.
			v.Forget()
			p.Program, p.err = r.describe(id, ranges[id])
		}
		if p.err != nil {
			v.Forget()
			// It may just have been destroyed.
			live, err := livePrograms(v.Process, []uint64{id - 16})
			p.gone = err == nil && len(live) == 0
		}
		return p
	})
	for i, p := range read {
		switch {
		case p == nil:
			b.UnreadPrograms = append(b.UnreadPrograms, unknown[i])
			b.Why = fmt.Errorf("reading them took more than %v", programTime)
			b.Unfinished = len(b.Programs) > 0 // the unread ones come first next time
			continue
		case p.gone:
			continue
		case p.err != nil:
			b.UnreadPrograms, b.Why = append(b.UnreadPrograms, unknown[i]), p.err
		}
		b.Programs = append(b.Programs, p.Program)
	}
	b.findCopies()
}

// A quarter of the CPUs read programs in parallel, at least two and at most programReaders goroutines, programsEach
// programs at a time: while one waits for the process's memory, another evaluates. Each keeps decoded code and the
// pages that programs share. It reads pages again after pagesKept: changes in that time have events or, when sampling,
// show as another state the next time.
const (
	programReaders = 4
	programsEach   = 16
	pagesKept      = 100 * time.Millisecond
)

// readEach reads programs in parallel; nil means that time ran out.
func readEach(
	of *view.Process, programs []uint64, one func(v *view.View, cores coreLists, id uint64) *programRead,
) []*programRead {
	limit := of.Limit(programTime)
	read := make([]*programRead, len(programs))
	parts := slices.Collect(slices.Chunk(programs, programsEach))
	var next atomic.Int64
	readSome := func() {
		v, cores, since := of.View(), coreLists{}, time.Now()
		for part := int(next.Add(1)) - 1; part < len(parts); part = int(next.Add(1)) - 1 {
			if time.Since(since) > pagesKept {
				v.Forget()
				since = time.Now()
			}
			readAhead(v, parts[part])
			for i, id := range parts[part] {
				if limit.Over() {
					return
				}
				read[part*programsEach+i] = one(v, cores, id)
			}
		}
	}
	var readers sync.WaitGroup
	for range min(max(2, runtime.GOMAXPROCS(0)/4), programReaders, len(parts)) {
		readers.Go(func() { of.Mem.Charged(readSome) })
	}
	readers.Wait()
	return read
}

// programRead is a program that was read, or why it could not be.
type programRead struct {
	Program
	err  error
	gone bool
}

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

// programNumber returns the runtime's number of a program; another program at the same address has another one. It is
// 0 if it cannot be read.
func programNumber(v *view.View, program uint64) uint64 {
	n, err := v.Call(metal.ProgramNumber, program)
	if err != nil {
		return 0
	}
	return n
}

// maxKernels bounds the kernels that a program can claim.
const maxKernels = 4096

// programVptr returns the vptr of a shared ProgramImpl's control block.
func programVptr(p *view.Process) uint64 {
	name := p.Lib.ProgramBlock()
	if name == "" {
		return 0
	}
	return p.Vptr(name)
}

// livePrograms returns the live ones: std::make_shared puts each behind two words, the second of which counts its owners.
// With errUnread there may be more.
func livePrograms(of *view.Process, blocks []uint64) (list []uint64, err error) {
	p, failed := of.Fresh(), of.Mem.Failed()
	p.Ahead(blocks, 16)
	for _, at := range blocks {
		if owners, err := p.U64(at + 8); err == nil && uint32(owners) > 0 && uint32(owners) < 1<<20 {
			list = append(list, at+16)
		}
	}
	if of.Mem.Failed() != failed {
		err = errUnread
	}
	return list, err
}

// programSize exceeds any release's ProgramImpl; beforeProgram is what malloc and std::make_shared put before it.
// Bytes.
const (
	programSize   = 0xc00
	beforeProgram = 24
)

// readAhead reads the memory of some programs into the cache, if there is one.
func readAhead(v *view.View, programs []uint64) {
	begins := make([]uint64, len(programs))
	for i, p := range programs {
		begins[i] = p - beforeProgram
	}
	v.Pages().Ahead(begins, beforeProgram+programSize)
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
func devicesOf(v *view.View, program uint64, open map[uint64]uint64) (list []uint64) {
	p := v.Pages()
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

// programState is a checksum of a program's own bytes, 0 if they cannot be read. It changes when the program is
// placed.
func programState(v *view.View, program uint64) uint64 {
	p := v.Pages()
	b := make([]byte, (endOf(p, program)-program)&^7)
	if p.ReadAt(b, program) != nil {
		return 0
	}
	h := fnv.New64a()
	_, _ = h.Write(b)
	return max(h.Sum64(), 1)
}

// placedBuffers returns the circular and dataflow buffers of a program, on each of the devices.
// arenas are the chips' arenas of persistent L1: what a program has begins above them. The runtime asks
// the arena of the mesh on which it placed the program, and not that of a chip.
func placedBuffers(
	v *view.View, known coreLists, program uint64, devices, arenas []uint64,
) (list []PlacedBuffer, err error) {
	var e *view.Evaluation
	var cores, device uint64
	through := "" // the hooked function that is being evaluated now
	pass := func(m *x86eval.Machine, name string, args ...uint64) error {
		through = name
		v, err := e.Run(name, args...)
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
	e = v.Evaluate(func(name string) x86eval.Hook {
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
				return known.list(m, func(result, set, limit, byRow uint64) error { return pass(m, name, result, set, limit, byRow) })
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
				if set == 0 && !v.Lib.Defines(metal.ReserveLocal) {
					// An allocator object begins with its range: see dfb_placed.
					var err error
					if set, err = view.VectorOf(m, self, 32); err != nil {
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
	if _, err := e.Run(metal.ForgetCircular, program); err != nil {
		return nil, err
	}
	if v.Lib.Defines(metal.ForgetDataflow) {
		if _, err := e.Run(metal.ForgetDataflow, program); err != nil {
			return nil, err
		}
	}
	// Evaluate one device: the result is the same for the others.
	first := devices[0]
	_, err = e.Run(metal.PlaceCircular, program, first)
	if !slices.ContainsFunc(list, func(b PlacedBuffer) bool { return b.CB.Kind != aggregator.GlobalCircular }) {
		list = nil // the runtime places none if all lie in buffers: nothing of its own would need a place
	}
	if v.Lib.Defines(metal.PersistentTop) {
		keepPlaces(v, program, list)
	}
	if err == nil && v.Lib.Defines(metal.PlaceDataflow) {
		device, cores = first, 0
		_, err = e.Run(metal.PlaceDataflow, program, first)
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
func keepPlaces(v *view.View, program uint64, list []PlacedBuffer) {
	own := slices.IndexFunc(list, func(b PlacedBuffer) bool { return b.CB.Kind == aggregator.Circular })
	if own < 0 {
		return
	}
	// Releases with this arena return a std::span of std::shared_ptr: where it begins, and its length.
	m := v.Machine()
	defer m.Free()
	first, err := v.CallOn(m, metal.CircularList, program)
	if err != nil || m.Regs[x86eval.RDX] != uint64(len(list)) {
		return
	}
	p := v.Pages()
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
		address, err := v.Call(metal.CircularAddress, buffer)
		if address &= 1<<32 - 1; err != nil || i == own && address == list[i].CB.Address {
			return // the first one's place shows those of the others
		}
		kept[i].CB.Address = address
	}
	copy(list, kept)
}

// kernelCopies returns the copies of a program's kernels in DRAM. Slow dispatch makes none.
func kernelCopies(v *view.View, program uint64, devices []uint64) (list []KernelCopy, err error) {
	if !v.Lib.Defines(metal.KernelCopy) {
		return nil, nil
	}
	e := v.Evaluate(func(string) x86eval.Hook { return nil })
	defer e.Free()
	shared, err := e.Alloc(16) // a std::shared_ptr is returned
	if err != nil {
		return nil, err
	}
	for _, device := range devices {
		if _, err = e.Run(metal.KernelCopy, shared, program, device); err != nil {
			return nil, err
		}
		buffer, err := e.ReadU64(shared)
		if err != nil {
			return nil, err
		}
		if buffer == 0 {
			continue
		}
		address, err := e.Run(metal.BufferAddress, buffer)
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

// isPlaced reports whether a program's circular buffers have addresses. It is for releases up to 0.69 (see placedOn),
// which return a reference to a std::vector; later ones return a std::span, as keepPlaces reads it.
func isPlaced(v *view.View, program uint64) bool {
	list, err := v.Call(metal.CircularList, program)
	if err != nil {
		return false
	}
	p := v.Pages()
	first, err := p.U64(list)
	if err != nil {
		return false
	}
	if last, err := p.U64(list + 8); err != nil || first == last {
		return err == nil
	}
	cb, err := p.U64(first)
	if err == nil {
		_, err = v.Call(metal.CircularAddress, cb)
	}
	return err == nil
}

// programReader reads programs on one goroutine.
type programReader struct {
	*view.View
	open    *openDevices
	builder builder
	cores   coreLists
}

// describe reads one program, which has ranges in workloads of meshes.
func (r *programReader) describe(program uint64, ranges []MeshRange) (h Program, err error) {
	v, o, b := r.View, r.open, r.builder
	h.ID = program
	if h.Devices, h.ChipsUnknown, err = placedOn(v, program, o); err != nil {
		return h, err
	}
	if len(h.Devices) == 0 {
		// It was not placed yet, or on chips that closed since. Its kernels may be compiled and loaded later; from
		// now on they are read from the cache.
		h.State = programState(v, program)
		for _, k := range kernelsOf(v, program) {
			h.Kernels = append(h.Kernels, Kernel{ID: k, Cores: coresOfKernel(v, k)})
		}
		return h, nil
	}
	// A mesh has one copy for all of its chips.
	if h.Copies, err = kernelCopies(v, program, o.with(h.Devices)); err != nil {
		return h, err
	}
	if h.ChipsUnknown == nil {
		h.Devices, h.Range, h.ChipsUnknown = narrow(v, h.Devices, ranges, o.chips)
	}
	if h.Placed, err = placedBuffers(v, r.cores, program, h.Devices, arenasOf(v, h.Devices, o)); err != nil {
		return h, err
	}
	if on := o.owned[program]; len(on) > 0 {
		if b, err = builderOf(v, o, on); err != nil {
			return h, err
		}
	}
	for _, k := range kernelsOf(v, program) {
		held := Kernel{ID: k, Cores: coresOfKernel(v, k)}
		if b.root != "" {
			var e error
			held.Files, e = filesOfKernel(v, k, b.device, b.root)
			err = errors.Join(err, e)
		}
		h.Kernels = append(h.Kernels, held)
		pads, err := scratchpadsOf(v, k)
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
