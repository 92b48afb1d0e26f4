package tracer

import (
	"encoding/binary"
	"fmt"
	"io"
	"iter"
	"os"
	"slices"
	"unsafe"
)

// objects are the addresses of a process's objects, by what their first word
// points to: the vtable of their class.
type objects map[uint64][]uint64

// maxObjects bounds what a process can make the tracer look at.
const maxObjects = 1 << 18

// find looks for objects by their vptrs. It reads all of the process's private
// writable memory, and nothing else. What was destroyed is found too, where its
// memory was not used again.
func (in *inspector) find(vptrs ...uint64) (objects, error) {
	regions, err := writable(uint32(in.mem))
	if err != nil {
		return nil, fmt.Errorf("looking for objects: %w", err)
	}
	pagemap, err := os.Open(fmt.Sprintf("/proc/%d/pagemap", uint32(in.mem)))
	if err != nil {
		return nil, fmt.Errorf("looking for objects: %w", err)
	}
	defer pagemap.Close()
	// Vtables stand close together, so that one comparison sorts out nearly all.
	low, high := slices.Min(vptrs), slices.Max(vptrs)
	found := objects{}
	words, count := make([]uint64, 1<<17), 0
	bytes := unsafe.Slice((*byte)(unsafe.Pointer(&words[0])), 8*len(words))
	for part := range used(pagemap, regions, uint64(len(bytes))) {
		b := bytes[:part.end-part.start]
		if in.mem.ReadAt(b, part.start) != nil {
			continue // unmapped by now, or not to be read
		}
		if count > maxObjects {
			return nil, fmt.Errorf("looking for objects: there seem to be more than %d", maxObjects)
		}
		for i, w := range words[:len(b)/8] {
			if w-low <= high-low && slices.Contains(vptrs, w) {
				found[w] = append(found[w], part.start+8*uint64(i))
				count++
			}
		}
	}
	return found, nil
}

// used yields the parts of regions whose pages are there, each of most bytes at
// most. A stack or a heap is mostly room that was never touched: to read it would
// take long, and would make the process's page tables as large as all of it.
func used(pagemap io.ReaderAt, regions []region, most uint64) iter.Seq[region] {
	const there = 3 << 62 // present, or swapped out
	return func(yield func(region) bool) {
		entries := make([]byte, 8*most/pageBytes)
		for _, r := range regions {
			for at := r.start; at < r.end; at += most {
				end := min(at+most, r.end)
				b := entries[:8*(end-at)/pageBytes]
				if n, err := pagemap.ReadAt(b, int64(8*at/pageBytes)); err != nil && err != io.EOF {
					return // it ended
				} else {
					b = b[:n]
				}
				part := region{at, at}
				for ; len(b) >= 8; b = b[8:] {
					if binary.LittleEndian.Uint64(b)&there != 0 {
						part.end += pageBytes
						continue
					}
					if part.end > part.start && !yield(part) {
						return
					}
					part = region{part.end + pageBytes, part.end + pageBytes}
				}
				if part.end > part.start && !yield(part) {
					return
				}
			}
		}
	}
}

// pages reads a process's memory by whole pages, each once: what hangs together
// in it is read as fast as it can be, so that little of it changes meanwhile.
type pages struct {
	mem   processMemory
	known map[uint64]*[pageBytes]byte
}

const (
	pageBytes = 4096
	maxPages  = 1 << 16 // kept at a time
)

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
		if len(p.known) >= maxPages {
			clear(p.known)
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
