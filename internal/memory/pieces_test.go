package memory

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"os"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

// Pieces that overlap, touch, lie close together or far apart, and are more than one request
// takes, are each as they were when they were read.
func TestPieces(t *testing.T) {
	b := pages(t, 4<<20)
	fill := func(with uint64) {
		for at := 0; at < len(b); at += 8 {
			binary.NativeEndian.PutUint64(b[at:], with+uint64(at))
		}
	}
	random := rand.New(rand.NewPCG(1, 2))
	for _, mem := range []*Process{self(t), Direct(uint32(os.Getpid()))} {
		var at []uint64
		var list []Piece
		add := func(offset uint64) {
			at = append(at, offset)
			list = append(list, Piece{address(b) + offset, 16 + 8*random.IntN(20)})
		}
		for range 3000 {
			add(8 * random.Uint64N(uint64(len(b))/8-100))
		}
		for i := range uint64(200) {
			add(i * 16)
			add(1<<20 + i*(200+i)&^7)
		}
		p := NewPieces(mem, list[:3000])
		next := 3000
		for some := range slices.Chunk(list[3000:], 3) {
			read := make([][]byte, len(some))
			for i, piece := range some {
				read[i] = bytes.Repeat([]byte{byte(next + i)}, piece.Size)
			}
			if n := p.Add(some, read); n != next {
				t.Fatalf("piece %d has the number %d", next, n)
			}
			// One that overlaps another one has the bytes of the last.
			if i := len(some) - 1; !bytes.Equal(p.Bytes(next + i)[:some[i].Size], read[i]) {
				t.Fatalf("piece %d does not have what was read", next+i)
			}
			next += len(some)
		}
		all := NewPieces(mem, list)
		for round := range uint64(3) {
			fill(round)
			for _, p := range []*Pieces{p, all} {
				if err := p.Read(); err != nil {
					t.Fatal(err)
				}
				for i := range list {
					for k := 0; k < list[i].Size; k += 8 {
						if got := binary.NativeEndian.Uint64(p.Bytes(i)[k:]); got != round+at[i]+uint64(k) {
							t.Fatalf("piece %d of %d bytes at %#x has %d behind %d bytes", i, list[i].Size, at[i], got, k)
						}
					}
				}
			}
		}
		for i := range list {
			if i%100 > 0 {
				continue
			}
			for _, as := range []bool{false, true} {
				if !as {
					b[at[i]]++
				}
				if same, err := p.Reread(); err != nil || same != as || p.Bytes(i)[0] != b[at[i]] {
					t.Fatalf("piece %d has %d, is %d, and is reported unchanged: %v, %v", i, p.Bytes(i)[0], b[at[i]], same, err)
				}
			}
		}
		if err := unix.Mprotect(b[1<<20:1<<20+4096], unix.PROT_NONE); err != nil {
			t.Fatal(err)
		}
		if err := all.Read(); err == nil {
			t.Error("a page of it cannot be read")
		}
		if err := unix.Mprotect(b[1<<20:1<<20+4096], unix.PROT_READ|unix.PROT_WRITE); err != nil {
			t.Fatal(err)
		}
	}
}
