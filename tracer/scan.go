package tracer

import (
	"encoding/binary"
	"fmt"
	"slices"
	"unsafe"
)

// objects are the addresses of a process's objects, by what their first word
// points to: the vtable of their class.
type objects map[uint64][]uint64

// find looks for objects by their vptrs. It reads all of the process's private
// writable memory, about a tenth of a second for 250 MB, and nothing else. What
// was destroyed is found too, where its memory was not used again.
func (in *inspector) find(vptrs ...uint64) (objects, error) {
	regions, err := writable(uint32(in.mem))
	if err != nil {
		return nil, fmt.Errorf("looking for objects: %w", err)
	}
	// Vtables stand close together, so that one comparison sorts out nearly all.
	low, high := slices.Min(vptrs), slices.Max(vptrs)
	found := objects{}
	words := make([]uint64, 1<<17)
	bytes := unsafe.Slice((*byte)(unsafe.Pointer(&words[0])), 8*len(words))
	for _, r := range regions {
		for at := r.start; at < r.end; at += uint64(len(bytes)) {
			b := bytes[:min(uint64(len(bytes)), r.end-at)]
			if in.mem.ReadAt(b, at) != nil {
				continue // unmapped by now, or not to be read
			}
			for i, w := range words[:len(b)/8] {
				if w-low <= high-low && slices.Contains(vptrs, w) {
					found[w] = append(found[w], at+8*uint64(i))
				}
			}
		}
	}
	return found, nil
}

// pages reads a process's memory by whole pages, each once: what hangs together
// in it is read as fast as it can be, so that little of it changes meanwhile.
type pages struct {
	mem   processMemory
	known map[uint64]*[pageBytes]byte
}

const pageBytes = 4096

func (in *inspector) pages() *pages { return &pages{in.mem, map[uint64]*[pageBytes]byte{}} }

// ReadAt reads what lies in one page or more.
func (p *pages) ReadAt(b []byte, address uint64) error {
	for len(b) > 0 {
		page, err := p.page(address)
		if err != nil {
			return err
		}
		n := copy(b, page[address%pageBytes:])
		b, address = b[n:], address+uint64(n)
	}
	return nil
}

func (p *pages) page(address uint64) (*[pageBytes]byte, error) {
	page := p.known[address/pageBytes]
	if page == nil {
		page = new([pageBytes]byte)
		if err := p.mem.ReadAt(page[:], address&^(pageBytes-1)); err != nil {
			return nil, err
		}
		p.known[address/pageBytes] = page
	}
	return page, nil
}

// u64 reads an aligned word.
func (p *pages) u64(address uint64) (uint64, error) {
	if address%8 != 0 {
		return 0, fmt.Errorf("reading a word at %#x: not aligned", address)
	}
	page, err := p.page(address)
	if err != nil {
		return 0, err
	}
	return binary.LittleEndian.Uint64(page[address%pageBytes:]), nil
}
