package aggregator

import (
	"cmp"
	"encoding/binary"
	"iter"
	"slices"
)

// PerCore is where a buffer lies that has its own address on each of its cores. It is empty for other buffers, which
// have one address in every bank. The same places are equal strings.
//
// Its bytes are six for each core, by row and column: the logical coordinates x and y, and the address, little endian.
type PerCore string

// CoreAddress is an address in the L1 of one core, in bytes.
type CoreAddress struct {
	Core    Core
	Address uint64
}

const coreAddressBytes = 6

// NewPerCore packs a list of one core or more. It is empty if a core occurs twice, or no chip has such a core or
// address.
func NewPerCore(list []CoreAddress) PerCore {
	list = slices.SortedFunc(slices.Values(list), func(a, b CoreAddress) int {
		return cmp.Or(cmp.Compare(a.Core.Y, b.Core.Y), cmp.Compare(a.Core.X, b.Core.X))
	})
	b := make([]byte, 0, coreAddressBytes*len(list))
	for i, c := range list {
		if c.Core.X > maxCore || c.Core.Y > maxCore || c.Address > maxCB || i > 0 && list[i-1].Core == c.Core {
			return ""
		}
		b = append(b, byte(c.Core.X), byte(c.Core.Y))
		b = binary.LittleEndian.AppendUint32(b, uint32(c.Address))
	}
	return PerCore(b)
}

// Cores is the number of cores, 0 for a buffer with one address.
func (p PerCore) Cores() int { return len(p) / coreAddressBytes }

// All yields each core with the buffer's address there.
func (p PerCore) All() iter.Seq2[Core, uint64] {
	return func(yield func(Core, uint64) bool) {
		for b := p; len(b) >= coreAddressBytes; b = b[coreAddressBytes:] {
			address := binary.LittleEndian.Uint32([]byte(b[2:coreAddressBytes]))
			if !yield(Core{uint16(b[0]), uint16(b[1])}, uint64(address)) {
				return
			}
		}
	}
}

// Lowest is the lowest address on any core.
func (p PerCore) Lowest() uint64 {
	lowest := uint64(maxCB)
	for _, address := range p.All() {
		lowest = min(lowest, address)
	}
	return lowest
}

// Addresses are the distinct addresses, ascending.
func (p PerCore) Addresses() []uint64 {
	var list []uint64
	for _, address := range p.All() {
		list = append(list, address)
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// On returns the address on a core, and whether the buffer lies on it.
func (p PerCore) On(core Core) (address uint64, ok bool) {
	for c, address := range p.All() {
		if c == core {
			return address, true
		}
	}
	return 0, false
}

// Extents are the ranges of addresses that the buffer takes in some bank, ascending: one, or several if it has an
// address on each of its cores. Of an unknown reserved size they are empty.
func (b *BufferSnapshot) Extents() []Extent {
	return extentsOf(b.Memory, b.Address, b.PerBank, b.PerCore)
}

func extentsOf(m Memory, address, perBank uint64, on PerCore) []Extent {
	if on == "" {
		return []Extent{{m, address, address + perBank}}
	}
	var list []Extent
	for _, address := range on.Addresses() {
		list = append(list, Extent{m, address, address + perBank})
	}
	return list
}

// TakesOf is the number of banks of each chip from which the buffer takes PerBank, given how many its memory has.
func (b *BufferSnapshot) TakesOf(banks uint64) uint64 {
	if n := b.PerCore.Cores(); n > 0 {
		return uint64(n)
	}
	return banks
}

// plausible reports whether NewPerCore can have made it.
func (p PerCore) plausible() bool {
	last := -1
	for c, address := range p.All() {
		at := int(c.Y)<<8 | int(c.X)
		if at <= last || address > maxCB {
			return false
		}
		last = at
	}
	return len(p)%coreAddressBytes == 0
}
