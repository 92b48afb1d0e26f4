package inspect

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"tt-memtrace/internal/inspect/view"
	"tt-memtrace/internal/memory"
	"tt-memtrace/internal/metal"
)

// A workload of a mesh has a program for each of several ranges of mesh coordinates. The runtime places each program
// on all of the mesh's chips, but runs it only on those in its range, and there it takes L1. The mesh's own function,
// evaluated with the range, shows which chips these are.

// MeshRange is a range of mesh coordinates: its address in the runtime, now or earlier, and the bytes there.
type MeshRange struct {
	At    uint64
	Bytes []byte
}

// String lists the range's words, for reports of a failure; words that point into the range itself show as offsets.
func (of MeshRange) String() string {
	var words []string
	of.eachWord(func(_ int, word uint64, offset bool) {
		if offset {
			words = append(words, fmt.Sprintf("+%d", word))
		} else {
			words = append(words, fmt.Sprintf("%#x", word))
		}
	})
	return strings.Join(words, " ")
}

// eachWord visits its words and their places; words that point into the range itself are passed as offsets.
func (of MeshRange) eachWord(see func(at int, word uint64, offset bool)) {
	for at := 0; at+8 <= len(of.Bytes); at += 8 {
		word := binary.LittleEndian.Uint64(of.Bytes[at:])
		if offset := word - of.At; offset < uint64(len(of.Bytes)) {
			see(at, offset, true)
		} else {
			see(at, word, false)
		}
	}
}

// rangeBytes is more than any release's MeshCoordinateRange.
const rangeBytes = 256

// rangeOfMesh is a mesh and a range. Words that point into the range count from its beginning.
type rangeOfMesh struct {
	mesh  uint64
	words string
}

func (of MeshRange) within(mesh uint64) rangeOfMesh {
	b := bytes.Clone(of.Bytes)
	of.eachWord(func(at int, word uint64, _ bool) { binary.LittleEndian.PutUint64(b[at:], word) })
	return rangeOfMesh{mesh, string(b)}
}

// devicesInRange returns the devices of a mesh that a range covers.
func devicesInRange(v *view.View, mesh uint64, of MeshRange) (list []uint64, err error) {
	if len(of.Bytes) == 0 {
		return nil, errors.New("the coordinates of a program could not be read")
	}
	list, err = view.Memo(v, of.within(mesh), func() ([]uint64, error) { return evaluateInRange(v, mesh, of) })
	return slices.Clone(list), err
}

func evaluateInRange(v *view.View, mesh uint64, of MeshRange) ([]uint64, error) {
	shape, err := v.Call(metal.MeshView, mesh)
	if err != nil {
		return nil, err
	}
	m := v.Machine()
	defer m.Free()
	// Its words point into itself, so it must be at its original address.
	if err := m.Write(of.At, of.Bytes); err != nil {
		return nil, err
	}
	result, err := m.Alloc(24)
	if err == nil {
		_, err = v.CallOn(m, metal.DevicesInRange, result, shape, of.At)
	}
	if err != nil {
		return nil, err
	}
	begin, count, err := view.ReadVector(m, result, 8, maxChips)
	if err == nil && count == 0 {
		err = errors.New("a program is on no chip")
	}
	if err != nil {
		return nil, fmt.Errorf("evaluating %s: it returned %w", metal.DevicesInRange, err)
	}
	list := make([]uint64, count)
	for i := range list {
		if list[i], err = m.ReadU64(begin + 8*uint64(i)); err != nil {
			return nil, err
		}
	}
	return list, nil
}

// nodesOf finds, among all std::shared_ptrs to programs, where workloads keep them, and returns each program's ranges;
// with several workloads, those of all.
//
// A workload has a std::unordered_map from ranges to programs. A node of it is a malloc chunk: the next node, the
// range, and the pointers to the program and to its control block. The chunk's size shows where it begins.
func nodesOf(p *view.Process, held map[uint64]uint64) map[uint64][]MeshRange {
	nodes := map[uint64][]MeshRange{}
	pages := p.Fresh()
	pointers := slices.Sorted(maps.Keys(held))
	pages.Ahead(pointers, 16)
	for _, at := range pointers {
		if key, ok := keyBefore(pages, at); ok {
			bytes := make([]byte, at-key)
			if pages.ReadAt(bytes, key) == nil {
				nodes[held[at]] = append(nodes[held[at]], MeshRange{key, bytes})
			}
		}
	}
	return nodes
}

// keyBefore returns where the range begins in the node that has its program's pointer at an address.
func keyBefore(pages *memory.Pages, program uint64) (key uint64, ok bool) {
	const header, pointers, flags = 8, 16, 7 // bytes, bytes, bits
	for node := (program - 16) &^ 15; node+8+rangeBytes >= program; node -= 16 {
		size, err := pages.U64(node - header)
		if err != nil {
			return 0, false
		}
		if rest := size&^flags + node - header; rest < program+pointers || rest >= program+pointers+16+8 {
			continue
		}
		if isRange(pages, node+8, program) {
			return node + 8, true
		}
	}
	return 0, false
}

// isRange reports whether a range can lie between two addresses: its two coordinates have equally many dimensions,
// and their first words point into them. (Unused words of the first coordinate can look like the size of a chunk that
// begins there.)
func isRange(pages *memory.Pages, from, to uint64) bool {
	first, err := pages.U64(from)
	if err != nil || first <= from || first >= to {
		return false
	}
	for at := first + 8; at+8 < to; at += 8 {
		if word, err := pages.U64(at); err == nil && word-at == first-from && word < to && alike(pages, from+8, at+8, first-from-8) {
			return true
		}
	}
	return false
}

// alike reports whether two coordinates begin with the same counts, none of them 0.
func alike(pages *memory.Pages, one, other, bytes uint64) bool {
	for at := uint64(0); at < bytes; at += 8 {
		a, err := pages.U64(one + at)
		b, err2 := pages.U64(other + at)
		if err != nil || err2 != nil || a != b || a == 0 {
			return false
		}
	}
	return true
}

// ChipTries is how often a program with unknown chips is read for them, while its process does nothing or events
// report all that it does. Its workload can be half made, even while the process waits (for a compiler, for example),
// or the process may not answer immediately.
const ChipTries = 4

// narrow returns those of the devices on which a program was placed (all chips of a mesh, or the mesh) that it is
// really on. If that is unknown, it fails and returns all.
func narrow(v *view.View, devices []uint64, ranges []MeshRange, chips map[uint64][]uint32) ([]uint64, MeshRange, error) {
	var placed []uint32
	for _, d := range devices {
		for _, c := range chips[d] {
			if !slices.Contains(placed, c) {
				placed = append(placed, c)
			}
		}
	}
	slices.Sort(placed)
	if len(placed) < 2 {
		return devices, MeshRange{}, nil
	}
	var of []uint64
	var by MeshRange
	why := errors.New("no workload was found that contains it")
	if len(ranges) > 0 {
		why = errors.New("no open mesh has the chips on which it was placed")
	}
	for mesh, list := range chips {
		if !slices.Equal(list, placed) {
			continue
		}
		for _, r := range ranges {
			on, err := devicesInRange(v, mesh, r)
			if err != nil {
				why = fmt.Errorf("its range (%v) of a mesh of %d chips: %w", r, len(list), err)
				continue
			}
			slices.Sort(on)
			if of != nil && !slices.Equal(of, on) {
				return devices, MeshRange{}, errors.New("several workloads place it on different parts of the mesh")
			}
			of, by = on, r
		}
	}
	switch {
	case of == nil:
		return devices, by, why
	case len(of) == len(placed):
		return devices, by, nil
	}
	return of, by, nil
}

// programsOfWorkload returns the known programs of a workload, which keeps them in the nodes of a list.
func programsOfWorkload(p *view.Process, workload uint64, known func(program uint64) bool) (list []uint64) {
	const head, node, most = 0x200, 0x180, 1024 // bytes, bytes, programs
	memory := p.Fresh()
	inNode := func(at uint64) uint64 {
		for o := uint64(0); o < node; o += 8 {
			if v, err := memory.U64(at + o); err != nil {
				return 0
			} else if known(v) {
				return v
			}
		}
		return 0
	}
	for o := uint64(0); o < head; o += 8 {
		first, err := memory.U64(workload + o)
		if err != nil {
			return nil
		}
		if first == 0 || first%8 != 0 || inNode(first) == 0 {
			continue
		}
		for at, n := first, 0; at != 0 && n < most; n++ {
			id := inNode(at)
			if id == 0 {
				break
			}
			list = append(list, id)
			if at, err = memory.U64(at); err != nil {
				break
			}
		}
		return list
	}
	return nil
}
