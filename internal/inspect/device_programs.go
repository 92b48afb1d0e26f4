package inspect

import (
	"maps"
	"slices"

	"tt-memtrace/internal/inspect/view"
	"tt-memtrace/internal/memory"
	"tt-memtrace/internal/metal"
)

// The kernels for dispatch and for the fabric are programs of one chip, which its Device object owns: those for
// dispatch in a std::vector of std::unique_ptrs to Program objects, that for the fabric by a std::unique_ptr. No
// workload has them, and no sub-device manager launches them. The devices that such a program says it is placed on are
// no help: they are all chips of the mesh, or none.

// deviceSize exceeds any release's Device; maxOwned bounds the programs in a vector of it.
const (
	deviceSize = 0x800 // bytes
	maxOwned   = 64
)

// heldPrograms returns the programs to which std::shared_ptrs point, by the address of these, among all pointers to
// programs. A Program object is such a std::shared_ptr.
func heldPrograms(of *view.Process, programs, pointers []uint64) map[uint64]uint64 {
	wanted := make(map[uint64]bool, len(programs))
	for _, program := range programs {
		wanted[program] = true
	}
	held := map[uint64]uint64{}
	p := of.Fresh()
	p.Ahead(pointers, 16)
	for _, at := range pointers {
		program, err := p.U64(at)
		if err != nil || !wanted[program] {
			continue
		}
		if block, err := p.U64(at + 8); err == nil && block == program-16 {
			held[at] = program
		}
	}
	return held
}

// ownedPrograms returns, for each program that a single-chip device owns, the device on which it is: none if it is on
// none. It leaves out a program that several seem to own.
func ownedPrograms(v *view.View, o *openDevices, held map[uint64]uint64) map[uint64][]uint64 {
	if len(held) == 0 {
		return nil
	}
	uses, err := usesFabric(v)
	p, owned, several := v.Fresh(), map[uint64][]uint64{}, map[uint64]bool{}
	for _, device := range o.own(0) {
		dispatch, fabric := ownedBy(p, device, held)
		if err != nil {
			fabric = nil
		}
		for _, program := range slices.Concat(dispatch, fabric) {
			_, other := owned[program]
			several[program] = several[program] || other
			if owned[program] = nil; uses || slices.Contains(dispatch, program) {
				owned[program] = []uint64{device}
			}
		}
	}
	maps.DeleteFunc(owned, func(program uint64, _ []uint64) bool { return several[program] })
	return owned
}

// usesFabric reports whether the process uses the fabric. A device that is opened again without it keeps its program
// from before.
func usesFabric(v *view.View) (bool, error) {
	const disabled = 0
	context, err := v.CallFirst(metal.ContextInstance, 0)
	if err != nil {
		return false, err
	}
	config, err := v.Call(metal.FabricConfig, context)
	return uint32(config) != disabled, err
}

// ownedBy returns the programs in the Program objects to which a device points: by a vector, and directly.
func ownedBy(p *memory.Pages, device uint64, held map[uint64]uint64) (listed, direct []uint64) {
	for at, end := device, endOfChunk(p, device-8, device+deviceSize); at+16 <= end; at += 8 {
		first, err := p.U64(at)
		last, err2 := p.U64(at + 8)
		if err != nil || err2 != nil {
			break
		}
		switch {
		case held[first] != 0:
			direct = append(direct, held[first])
		case first < last && last-first <= 8*maxOwned:
			for ; first < last; first += 8 {
				program, err := p.U64(first)
				if err != nil || held[program] == 0 {
					break
				}
				listed = append(listed, held[program])
			}
		}
	}
	return listed, direct
}
