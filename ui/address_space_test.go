package ui

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"tt-memtrace/aggregator"
)

func taken(pieces ...uint64) []block {
	var out []block
	for i := 0; i+1 < len(pieces); i += 2 {
		out = append(out, block{from: pieces[i], to: pieces[i+1], kind: bufferBlock, buffer: &bufferRow{}})
	}
	return out
}

func cb(from, to uint64) []block { return []block{{from: from, to: to, kind: circularBlock}} }

func ringAt(from, to uint64) []block { return []block{{from: from, to: to, kind: ringBlock}} }

// What is below the allocator's memory is not shown as free, with or without circular buffers.
func TestWhatIsBelowTheMemoryOfACore(t *testing.T) {
	banks := aggregator.Banks{Known: true, Count: 1, Bytes: 100}
	based := aggregator.Banks{Known: true, Count: 1, Bytes: 100, Base: 10, Based: true}
	for name, c := range map[string]struct {
		buffers, others []block
		banks           aggregator.Banks
		want            string
	}{
		"read":                      {banks: based, want: "0-10 not the allocator's, 10-110 free"},
		"read, with a ring":         {others: ringAt(4, 10), banks: based, want: "0-4 not the allocator's, 4-10 kernel-config ring, 10-110 free"},
		"read, with buffers":        {buffers: taken(100, 105), banks: based, want: "0-10 not the allocator's, 10-100 free, 100-105 buffer, 105-110 free"},
		"nothing known":             {banks: banks, want: "0-100 free or reserved"},
		"a ring":                    {others: ringAt(4, 10), banks: banks, want: "0-4 not the allocator's, 4-10 kernel-config ring, 10-110 free or reserved"},
		"buffers":                   {buffers: taken(100, 105), banks: banks, want: "0-5 not the allocator's, 5-100 free or reserved, 100-105 buffer"},
		"a ring and buffers":        {buffers: taken(100, 105), others: ringAt(4, 10), banks: banks, want: "0-4 not the allocator's, 4-10 kernel-config ring, 10-100 free or reserved, 100-105 buffer, 105-110 free"},
		"circular buffers":          {others: cb(10, 20), banks: banks, want: "0-10 not the allocator's, 10-20 circular, 20-110 free"},
		"circular buffers and more": {buffers: taken(100, 105), others: cb(10, 20), banks: banks, want: "0-10 not the allocator's, 10-20 circular, 20-100 free, 100-105 buffer, 105-110 free"},
	} {
		var got []string
		for _, b := range newSpace(c.buffers, c.others, c.banks, true).blocks {
			got = append(got, fmt.Sprintf("%d-%d %s", b.from, b.to, b.kind))
		}
		if got := strings.Join(got, ", "); got != c.want {
			t.Errorf("%s: %s, not %s", name, got, c.want)
		}
	}
}

func TestWhatIsFree(t *testing.T) {
	for name, c := range map[string]struct {
		buffers, others []block
		bytes, base     uint64
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
		"where it begins is known":  {buffers: taken(50, 60), bytes: 100, base: 10, free: 90, least: 50, most: 50, holes: 2},
		"and it is that of a core":  {buffers: taken(90, 110), bytes: 100, base: 10, core: true, free: 80, least: 80, most: 80, holes: 1},
		"above the ring at least":   {buffers: taken(90, 105), others: ringAt(2, 10), bytes: 100, core: true, free: 85, least: 43, most: 85, holes: 1},
		"a buffer lies on another":  {buffers: taken(10, 30, 20, 40), bytes: 100, free: 70, least: 60, most: 70, holes: 1, clashes: 1},
		"CBs run into a buffer":     {buffers: taken(50, 110), others: cb(10, 60), bytes: 100, core: true, free: 40, least: 40, most: 40, holes: 1, clashes: 1},
	} {
		s := newSpace(c.buffers, c.others, aggregator.Banks{Known: true, Count: 1, Bytes: c.bytes, Base: c.base, Based: c.base > 0}, c.core)
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
		banks := aggregator.Banks{Known: true, Count: 1, Bytes: bytes}
		if random.IntN(3) == 0 {
			banks.Base, banks.Based = base, true
		}
		s := newSpace(buffers, others, banks, core)
		if banks.Based && (s.largestLeast != largest || s.largestMost != largest || s.holes != pieces || s.split) {
			t.Fatalf("base %d, %d bytes: largest %d in %d pieces, got %+v", base, bytes, largest, pieces, s)
		}
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
