package aggregator

import (
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
)

// wantBuffers compares with what a map has.
func wantBuffers(t *testing.T, s *buffers, want map[uint64]uint64) {
	t.Helper()
	got := map[uint64]uint64{}
	for b := range s.all() {
		if _, twice := got[b.id]; twice {
			t.Fatalf("%#x is listed twice", b.id)
		}
		got[b.id] = b.size
		if s.get(b.id) != b {
			t.Fatalf("%#x is listed and not found", b.id)
		}
	}
	if !maps.Equal(got, want) || s.live != len(want) {
		t.Fatalf("%d buffers of %d listed, want %d", len(got), s.live, len(want))
	}
	var slots int
	for _, one := range s.index {
		if one.place != 0 {
			slots++
		}
	}
	if slots != s.live || 4*slots > 3*len(s.index) {
		t.Fatalf("%d of %d slots taken by %d buffers", slots, len(s.index), s.live)
	}
}

func TestBuffersAreFoundAsInAMap(t *testing.T) {
	for _, ids := range []uint64{10, 1000, 20_000} {
		r := rand.New(rand.NewPCG(ids, 1))
		s, want := newBuffers(), map[uint64]uint64{}
		for range 5 {
			// Mostly coming, then mostly going, then all of them.
			for _, coming := range []uint64{9, 5, 1, 0} {
				for range 2 * ids {
					id := bufferID(int(r.Uint64N(ids)))
					size, ok := want[id]
					b := s.get(id)
					if ok != (b != nil) || ok && b.size != size {
						t.Fatalf("%#x: %+v, want %v of %d", id, b, ok, size)
					}
					switch {
					case ok && r.Uint64N(10) >= coming:
						s.remove(id)
						delete(want, id)
					case !ok && r.Uint64N(10) < coming:
						size = r.Uint64()
						if b := s.add(&buffer{id: id, device: &device{}, size: size}); b.id != id || b.size != size {
							t.Fatalf("%#x of %d became %+v", id, size, b)
						}
						want[id] = size
					}
				}
				wantBuffers(t, &s, want)
			}
			for _, id := range slices.Collect(maps.Keys(want)) {
				s.remove(id)
			}
			clear(want)
			wantBuffers(t, &s, want)
			if s.used > blockSize || len(s.blocks) > 1 {
				t.Fatalf("%d places in %d blocks are kept of none", s.used, len(s.blocks))
			}
		}
	}
}

func TestBufferSlotsAreReused(t *testing.T) {
	const live = 1000
	s := newBuffers()
	for n := range live {
		s.add(&buffer{id: bufferID(n), device: &device{}})
	}
	slots := len(s.index)
	for n := live; n < 50*live; n++ {
		s.remove(bufferID(n - live))
		s.add(&buffer{id: bufferID(n), device: &device{}})
	}
	if s.used != live || len(s.index) != slots {
		t.Errorf("%d places and %d slots for %d buffers, before there were %d slots", s.used, len(s.index), live, slots)
	}
}
