package report

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// Blocks in pieces are those of one ordered slice, also where several are equal, and a clone is apart.
func TestBlocksAreInOrder(t *testing.T) {
	for seed := range uint64(10) {
		r := rand.New(rand.NewPCG(seed, 7))
		var l blocks
		var want []block
		check := func(l *blocks, want []block, what string) {
			t.Helper()
			if got := slices.Collect(l.all()); !slices.Equal(got, want) || l.count != len(want) {
				t.Fatalf("seed %d, %s: %d blocks of %d, or in another order", seed, what, len(got), len(want))
			}
		}
		span := 1 + r.Uint64N(5000)
		for i := range 6000 {
			b := block{r.Uint64N(span), span + r.Uint64N(3)}
			at, there := slices.BinarySearchFunc(want, b, compareBlocks)
			if grows := i < 3000; r.IntN(4) == 0 == grows {
				if l.remove(b); there {
					want = slices.Delete(want, at, at+1)
				}
			} else {
				l.add(b)
				want = slices.Insert(want, at, b)
			}
		}
		check(&l, want, "after all")
		before, c := slices.Clone(want), l.clone()
		for _, b := range before {
			l.remove(b)
		}
		check(&l, nil, "emptied")
		check(&c, before, "the clone")
		l.add(block{1, 2})
		check(&l, []block{{1, 2}}, "filled again")
	}
}
