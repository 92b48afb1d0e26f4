package memory

import (
	"bytes"
	"cmp"
	"slices"

	"golang.org/x/sys/unix"
)

// Piece is a range of a process's memory, in bytes.
type Piece struct {
	Address uint64
	Size    int
}

// Pieces are small ranges that are read again and again, all together: one request for many of them costs less than
// reading their pages, or than a request each.
type Pieces struct {
	mem   *Process
	parts []unix.RemoteIovec
	at    []int // where each piece is in b
	b     []byte
	// was is b before the last Reread.
	was []byte
}

// mergeGap is the largest gap between two pieces that are read as one: copying the gap costs no more than another
// part of a request.
const mergeGap = 512

// NewPieces prepares to read pieces; it reads nothing yet. A piece's number is its index in the list.
func NewPieces(mem *Process, list []Piece) *Pieces {
	p := &Pieces{mem: mem}
	p.place(list)
	return p
}

// Add adds pieces with bytes that were read already, and returns the number of the first.
func (p *Pieces) Add(list []Piece, read [][]byte) int {
	first := len(p.at)
	p.place(list)
	for i, b := range read {
		copy(p.b[p.at[first+i]:], b)
	}
	return first
}

// place appends pieces; those that lie close together become one part of the request.
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
				p.at[pieces+i] = size - int(end-from) // may be behind the part's end
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

// Read reads all pieces, or fails.
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

// Reread reads all pieces again, and reports whether they are unchanged.
func (p *Pieces) Reread() (same bool, err error) {
	p.b, p.was = slices.Grow(p.was[:0], len(p.b))[:len(p.b)], p.b
	if err := p.Read(); err != nil {
		return false, err
	}
	return bytes.Equal(p.b, p.was), nil
}

// Bytes returns the bytes from a piece's beginning on; valid until the next Add, Read or Reread.
func (p *Pieces) Bytes(piece int) []byte { return p.b[p.at[piece]:] }
