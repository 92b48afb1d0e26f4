package report

import (
	"cmp"
	"iter"
	"slices"
)

// block is the address range of a buffer in each bank.
type block struct{ start, end uint64 }

func compareBlocks(x, y block) int {
	return cmp.Or(cmp.Compare(x.start, y.start), cmp.Compare(x.end, y.end))
}

// blocks are blocks in order. They are in pieces, because to insert one into a slice of
// fifty thousand moves them all.
type blocks struct {
	pieces [][]block // none is empty
	count  int
}

// maxPiece is how many blocks a piece has at most.
const maxPiece = 256

// piece returns the index of the piece that has a block, or to which it belongs.
func (l *blocks) piece(b block) int {
	i, _ := slices.BinarySearchFunc(l.pieces, b, func(p []block, b block) int { return compareBlocks(p[len(p)-1], b) })
	return min(i, max(len(l.pieces)-1, 0))
}

func (l *blocks) add(b block) {
	l.count++
	if len(l.pieces) == 0 {
		l.pieces = [][]block{{b}}
		return
	}
	i := l.piece(b)
	at, _ := slices.BinarySearchFunc(l.pieces[i], b, compareBlocks)
	p := slices.Insert(l.pieces[i], at, b)
	if l.pieces[i] = p; len(p) > maxPiece {
		l.pieces[i] = p[:maxPiece/2]
		l.pieces = slices.Insert(l.pieces, i+1, slices.Clone(p[maxPiece/2:]))
	}
}

// remove removes a block if it is there.
func (l *blocks) remove(b block) {
	if l.count == 0 {
		return
	}
	i := l.piece(b)
	at, ok := slices.BinarySearchFunc(l.pieces[i], b, compareBlocks)
	if !ok {
		return
	}
	l.count--
	if l.pieces[i] = slices.Delete(l.pieces[i], at, at+1); len(l.pieces[i]) == 0 {
		l.pieces = slices.Delete(l.pieces, i, i+1)
	}
}

func (l *blocks) all() iter.Seq[block] {
	return func(yield func(block) bool) {
		for _, p := range l.pieces {
			for _, b := range p {
				if !yield(b) {
					return
				}
			}
		}
	}
}

func (l *blocks) clone() blocks {
	c := blocks{pieces: make([][]block, len(l.pieces)), count: l.count}
	for i, p := range l.pieces {
		c.pieces[i] = slices.Clone(p)
	}
	return c
}
