package ui

import (
	"math/rand/v2"
	"testing"
)

func taken(pieces ...uint64) []block {
	var out []block
	for i := 0; i+1 < len(pieces); i += 2 {
		out = append(out, block{from: pieces[i], to: pieces[i+1], kind: bufferBlock, buffer: &bufferRow{}})
	}
	return out
}

func cb(from, to uint64) []block { return []block{{from: from, to: to, kind: circularBlock}} }

func TestWhatIsFree(t *testing.T) {
	for name, c := range map[string]struct {
		buffers, others []block
		bytes           uint64
		core            bool
		free            uint64
		least, most     uint64
		holes, clashes  int
		gap             uint64
	}{
		"nothing lies there":        {bytes: 100, free: 100, least: 100, most: 100, holes: 1},
		"full":                      {buffers: taken(10, 110), bytes: 100},
		"a hole is certain":         {buffers: taken(10, 20, 90, 110), bytes: 100, free: 70, least: 70, most: 70, holes: 1},
		"the rest may be in halves": {buffers: taken(50, 60), bytes: 100, free: 90, least: 45, most: 90, holes: 1},
		"it begins at 0 at best":    {buffers: taken(10, 20), bytes: 100, free: 90, least: 80, most: 90, holes: 1},
		"from the top, above CBs":   {buffers: taken(90, 110), others: cb(10, 20), bytes: 100, core: true, free: 80, least: 80, most: 80, holes: 1, gap: 70},
		"a buffer lies on another":  {buffers: taken(10, 30, 20, 40), bytes: 100, free: 70, least: 60, most: 70, holes: 1, clashes: 1},
		"CBs run into a buffer":     {buffers: taken(50, 110), others: cb(10, 60), bytes: 100, core: true, free: 40, least: 40, most: 40, holes: 1, clashes: 1},
	} {
		s := newSpace(c.buffers, c.others, c.bytes, true, c.core)
		if s.free != c.free || s.largestLeast != c.least || s.largestMost != c.most || s.holes != c.holes || s.clashes != c.clashes || s.gap != c.gap {
			t.Errorf("%s: %+v", name, s)
		}
	}
}

// Whatever an allocator hands out, and wherever its memory begins: the largest free block is
// between the bounds, and the blocks cover the space without a gap.
func TestTheLargestFreeBlockIsWithinItsBounds(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 5000 {
		base, bytes := random.Uint64N(50), 1+random.Uint64N(200)
		used := make([]bool, bytes)
		var buffers []block
		for range random.IntN(12) {
			at, n := random.Uint64N(bytes), 1+random.Uint64N(20)
			free := at+n <= bytes
			for i := at; free && i < at+n; i++ {
				free = !used[i]
			}
			if !free {
				continue
			}
			for i := at; i < at+n; i++ {
				used[i] = true
			}
			buffers = append(buffers, taken(base+at, base+at+n)...)
		}
		var free, run, largest uint64
		pieces := 0
		for _, u := range used {
			if u {
				run = 0
				continue
			}
			free++
			if run++; run == 1 {
				pieces++
			}
			largest = max(largest, run)
		}
		core := random.IntN(2) == 0
		var others []block
		if core && random.IntN(2) == 0 {
			others = cb(base, base+1) // the lowest of them is where the memory begins
		}
		s := newSpace(buffers, others, bytes, true, core)
		if s.free != free || s.largestLeast > largest || s.largestMost < largest {
			t.Fatalf("base %d, %d bytes, %d buffers: free %d, largest %d, got %+v", base, bytes, len(buffers), free, largest, s)
		}
		if most := s.holes + map[bool]int{true: 1}[s.split]; pieces < s.holes || pieces > most {
			t.Fatalf("base %d, %d bytes, %d buffers: in %d pieces, got %+v", base, bytes, len(buffers), pieces, s)
		}
		if s.holes == 1 && !s.split && (s.largestLeast != free || s.largestMost != free) {
			t.Fatalf("the only piece of %d is of %d to %d", free, s.largestLeast, s.largestMost)
		}
		at := s.from
		if base < at && len(others) == 0 {
			t.Fatalf("it begins at %d, the memory at %d", at, base)
		}
		for _, b := range s.blocks {
			if b.from > at {
				t.Fatalf("a gap at %d: %+v", at, s.blocks)
			}
			at = max(at, b.to)
		}
		if at < s.to {
			t.Fatalf("it ends at %d of %d", at, s.to)
		}
	}
}
