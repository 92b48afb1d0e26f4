package memory

import (
	"encoding/binary"
	"math/rand/v2"
	"os"
	"slices"
	"testing"

	"tt-memtrace/internal/proc"
)

// The parts of a heap that others search give what one search from its beginning does: a part that begins in an array,
// where what it has looks like chunks, is not believed, and where chunks do not follow each other all the rest is read.
func TestPartsOfAHeapAreJoined(t *testing.T) {
	const pages, partBytes, vptr = 4096, 1 << 20, 0x7f65_4321_0ab0
	for name, damagedAt := range map[string]int{"whole": pages * proc.PageBytes, "damaged": pages * proc.PageBytes / 2} {
		t.Run(name, func(t *testing.T) {
			damaged := false
			block, start := room(t, pages)
			word := func(at int, w uint64) { binary.LittleEndian.PutUint64(block[at:], w) }
			random := rand.New(rand.NewPCG(1, 2))
			var want []uint64
			chunk := map[uint64]bool{}
			const end = pages*proc.PageBytes - 4*chunkHeader
			for at, n := 0, 0; at < end; n++ {
				size := (32 + random.IntN(2000)) &^ 15
				switch n % 4 {
				case 1:
					size *= 50
				case 2:
					size *= 20
				}
				if size = min(size, end-at+2*chunkHeader); end-at-size < leastChunk {
					size = end - at + 2*chunkHeader
				}
				chunk[start+uint64(at)] = true
				word(at+8, uint64(size)|previousInUse)
				if size >= 4*longChunk && n%4 == 1 {
					// An array of what look like chunks with objects.
					for in := 2 * chunkHead; in+64 < size; in += 48 {
						word(at+in+8, 48|previousInUse)
						word(at+in+16, vptr)
					}
				} else if size >= 48 {
					word(at+chunkHeader, vptr)
					want = append(want, start+uint64(at)+chunkHeader)
				}
				if !damaged && at > damagedAt {
					damaged = true
					word(at+8, 7)
				}
				at += size
			}
			s := newSearch(Direct(uint32(os.Getpid())), []uint64{vptr}, func() bool { return false })
			var err error
			if s.resident, err = proc.OpenResident(uint32(os.Getpid()), false); err != nil {
				t.Fatal(err)
			}
			defer s.resident.Close()
			parts := s.divide(proc.Region{Start: start, End: start + pages*proc.PageBytes}, partBytes)
			begun, wrong := 0, 0
			for i := range parts.list {
				s.heapPart(parts, i)
				if begun++; !chunk[parts.list[i].start] {
					wrong++
				}
			}
			if begun < 8 || wrong == 0 || begun-wrong < 2 {
				t.Fatalf("%d of %d parts begin where no chunk does: that is no test", wrong, begun)
			}
			s.join(parts)
			found := slices.Sorted(slices.Values(s.objects[vptr]))
			missing := slices.DeleteFunc(slices.Clone(want), func(at uint64) bool { return slices.Contains(found, at) })
			if len(missing) > 0 {
				t.Errorf("of %d objects %d were not found, the first at %#x", len(want), len(missing), missing[0]-start)
			}
			if more := len(slices.Compact(found)) - len(want); !damaged && (more != 0 || s.count != len(want)) {
				t.Errorf("%d more were found than the %d, and %d counted", more, len(want), s.count)
			}
		})
	}
}
