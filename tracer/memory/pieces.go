package memory

import (
	"bytes"
	"cmp"
	"slices"

	"golang.org/x/sys/unix"
)

// Piece is a part of a process's memory; bytes.
type Piece struct {
	Address uint64
	Size    int
}

// Pieces are read again and again, all at once: a request for many small ones costs less than
// the pages that they are in, or than a request each.
type Pieces struct {
	mem   *Process
	parts []unix.RemoteIovec
	at    []int // where each piece is in b
	b     []byte
	// was is what b was before the last Reread.
	was []byte
}

// mergeGap is how far apart pieces may be that are read as one: copying that much costs no more
// than another part of a request.
const mergeGap = 512

// NewPieces prepares to read some; nothing is read yet. Their numbers are those of the list.
func NewPieces(mem *Process, list []Piece) *Pieces {
	p := &Pieces{mem: mem}
	p.place(list)
	return p
}

// Add adds some, with their bytes as they were read already, and returns the number of the first.
func (p *Pieces) Add(list []Piece, read [][]byte) int {
	first := len(p.at)
	p.place(list)
	for i, b := range read {
		copy(p.b[p.at[first+i]:], b)
	}
	return first
}

// place puts some behind the others: those that lie close together become one part.
func (p *Pieces) place(list []Piece) {
	order := make([]int, len(list))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int { return cmp.Compare(list[a].Address, list[b].Address) })
	pieces, parts, size := len(p.at), len(p.parts), len(p.b)
	p.at = append(p.at, make([]int, len(list))...)
	for _, i := range order {
		from, to := list[i].Address, list[i].Address+uint64(list[i].Size)
		if n := len(p.parts); n > parts {
			last := &p.parts[n-1]
			if start, end := uint64(last.Base), uint64(last.Base)+uint64(last.Len); from <= end+mergeGap && to-start <= maxBytes {
				more := int(max(end, to) - end)
				p.at[pieces+i] = size - int(end-from) // also behind the end
				last.Len += more
				size += more
				continue
			}
		}
		p.parts = append(p.parts, unix.RemoteIovec{Base: uintptr(from), Len: list[i].Size})
		p.at[pieces+i] = size
		size += list[i].Size
	}
	p.b = append(p.b, make([]byte, size-len(p.b))...)
}

// Read reads all of them, or fails.
func (p *Pieces) Read() error {
	b := p.b
	for from := 0; from < len(p.parts); {
		size, to := 0, from
		for to < len(p.parts) && to-from < maxParts && size+p.parts[to].Len <= maxBytes {
			size += p.parts[to].Len
			to++
		}
		if err := p.mem.read(b[:size], p.parts[from:to]); err != nil {
			return err
		}
		b, from = b[size:], to
	}
	return nil
}

// Reread reads all of them once more, and says whether they are as they were.
func (p *Pieces) Reread() (same bool, err error) {
	p.b, p.was = slices.Grow(p.was[:0], len(p.b))[:len(p.b)], p.b
	if err := p.Read(); err != nil {
		return false, err
	}
	return bytes.Equal(p.b, p.was), nil
}

// Bytes are those of a piece, from its begin on, until the next call of Add, Read or Reread.
func (p *Pieces) Bytes(piece int) []byte { return p.b[p.at[piece]:] }
