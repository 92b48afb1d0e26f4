package memory

import (
	"encoding/binary"
	"fmt"
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"

	"tt-memtrace/tracer/proc"
)

// Pages reads a process's memory by whole pages, each once: what hangs together
// in it is read as fast as it can be, so that little of it changes meanwhile.
type Pages struct {
	mem   *Process
	known map[uint64]*page
	// ahead is how many pages, aligned to as many, come with the one that is wanted.
	ahead uint64
	room  []page
}

type page [proc.PageBytes]byte

const (
	// apart is ahead where a request takes longer than reading some pages: objects that are made
	// together lie together.
	apart = 4
	// maxPages are kept at a time.
	maxPages = 1 << 16
	// maxAnew are read at once, and their room is kept.
	maxAnew = 1 << 13
)

// NewPages begins to read a process's memory.
func NewPages(mem *Process) *Pages {
	p := &Pages{mem: mem, known: map[uint64]*page{}, ahead: 1}
	if mem.user != nil {
		p.ahead = apart
	}
	return p
}

// Anew forgets what was read, and reads what lies at addresses, of a size each, at once. What of
// it cannot be read, or is too much, is read when it is wanted.
func (p *Pages) Anew(addresses []uint64, size uint64) {
	clear(p.known)
	list := make([]uint64, 0, len(addresses))
	for _, a := range addresses {
		for n := a / proc.PageBytes; n <= (a+size-1)/proc.PageBytes; n++ {
			if len(list) == 0 || list[len(list)-1] != n {
				list = append(list, n)
			}
		}
	}
	slices.Sort(list)
	list = slices.Compact(list)
	list = list[:min(len(list), maxAnew)]
	if cap(p.room) < len(list) {
		p.room = make([]page, len(list)+len(list)/4)
	}
	room := p.room[:len(list)]
	parts := make([]unix.RemoteIovec, 0, maxParts)
	for from := 0; from < len(list); {
		parts = parts[:0]
		to := from
		for ; to < len(list) && to-from < maxBytes/proc.PageBytes; to++ {
			if to > from && list[to] == list[to-1]+1 {
				parts[len(parts)-1].Len += proc.PageBytes
			} else {
				parts = append(parts, unix.RemoteIovec{Base: uintptr(list[to] * proc.PageBytes), Len: proc.PageBytes})
			}
		}
		b := unsafe.Slice(&room[from][0], (to-from)*proc.PageBytes)
		if p.mem.read(b, parts) == nil {
			for i := from; i < to; i++ {
				p.known[list[i]] = &room[i]
			}
		}
		from = to
	}
}

// ReadAt reads what lies in one page or more.
func (p *Pages) ReadAt(b []byte, address uint64) error {
	for len(b) > 0 {
		page, err := p.page(address)
		if err != nil {
			return err
		}
		n := copy(b, page[address%proc.PageBytes:])
		b, address = b[n:], address+uint64(n)
	}
	return nil
}

func (p *Pages) page(address uint64) (*page, error) {
	number := address / proc.PageBytes
	if known := p.known[number]; known != nil {
		return known, nil
	}
	if len(p.known) >= maxPages {
		clear(p.known)
	}
	if p.ahead > 1 {
		first := number &^ (p.ahead - 1)
		several := make([]page, p.ahead)
		if p.mem.ReadAt(unsafe.Slice(&several[0][0], len(several)*proc.PageBytes), first*proc.PageBytes) == nil {
			for i := range several {
				if n := first + uint64(i); p.known[n] == nil {
					p.known[n] = &several[i]
				}
			}
			return p.known[number], nil
		}
	}
	read := new(page)
	if err := p.mem.ReadAt(read[:], number*proc.PageBytes); err != nil {
		return nil, err
	}
	p.known[number] = read
	return read, nil
}

// U64 reads an aligned word.
func (p *Pages) U64(address uint64) (uint64, error) {
	if address%8 != 0 {
		return 0, fmt.Errorf("reading a word at %#x: not aligned", address)
	}
	page, err := p.page(address)
	if err != nil {
		return 0, err
	}
	return binary.LittleEndian.Uint64(page[address%proc.PageBytes:]), nil
}
