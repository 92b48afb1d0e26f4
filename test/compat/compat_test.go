package compat

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"tt-memtrace/internal/metal"
)

// releases and builds are how many there are; more, as more are published.
const releases, builds = 82, 59

func libraries(t testing.TB) map[string]*Sparse {
	t.Helper()
	set, err := Libraries()
	if err != nil {
		t.Fatal(err)
	}
	return set
}

// memoryFile is the path of an empty file that lies in memory.
func memoryFile(t testing.TB) string {
	t.Helper()
	fd, err := unix.MemfdCreate("libtt_metal.so", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	return fmt.Sprintf("/proc/self/fd/%d", fd)
}

func inspect(t testing.TB, s *Sparse) *metal.Report {
	t.Helper()
	path := memoryFile(t)
	if err := s.WriteFile(path); err != nil {
		t.Fatal(err)
	}
	r, err := metal.Examine(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Library.Close() })
	return r
}

// checkReservedSizes compares what a library computes for interleaved buffers with the same by another way.
func checkReservedSizes(t *testing.T, l *metal.Library) {
	t.Helper()
	sizes, err := l.ReservedSizes()
	if err != nil {
		t.Fatal(err)
	}
	if sizes.Span == 0 || sizes.Ranges == 0 {
		t.Errorf("of sharded buffers it needs %d bytes, and core ranges at %#x", sizes.Span, sizes.Ranges)
	}
	up := func(v, to uint64) uint64 { return (v + to - 1) / to * to }
	for _, b := range []metal.Bank{{Banks: 12, PageAlignment: 32, MinBlock: 32, BlockAlignment: 32}, {Banks: 7, PageAlignment: 64, MinBlock: 0x900, BlockAlignment: 128}} {
		for _, pages := range []uint64{1, 7, 11, 12, 13, 1000} {
			for _, page := range []uint64{4, 32, 100, 2048} {
				shape := metal.Shape{Memory: 1, Size: pages * page, PageSize: page}
				banks := uint64(b.Banks)
				want := up(max(up(pages, banks)/banks*up(page, uint64(b.PageAlignment)), b.MinBlock), b.BlockAlignment)
				if got, err := sizes.PerBank(b, &shape); err != nil || got != want {
					t.Errorf("%d pages of %d bytes over %+v: %d, not %d: %v", pages, page, b, got, want, err)
				}
			}
		}
	}
}

// checkWitness checks that what confirms an allocator's buffers, and what shows which of two is the newer one, is found:
// lists of blocks show what they gave out from 0.64 on. Since then, too, the runtime throws by functions whose names have
// the types of their arguments, and each failure is seen.
func checkWitness(t *testing.T, l *metal.Library) {
	t.Helper()
	if id, err := l.UniqueID(); err != nil || id.Offset == 0 {
		t.Errorf("unique IDs of buffers: %+v, %v", id, err)
	}
	if offset, err := l.PersistentL1(); err != nil || (offset > 0) != l.Defines(metal.PersistentTop) {
		t.Errorf("the arena of persistent L1: at %#x, %v", offset, err)
	}
	arrays, err := l.BlockArrays()
	if lists := l.Defines(metal.AllocatedBlocks); lists != (err == nil) || lists && len(arrays.Flags) != 2 {
		t.Errorf("lists of blocks: %+v, %v", arrays, err)
	} else if missing := metal.MissingFailurePoints(l.FailureProbes()); lists && len(missing) > 0 {
		t.Errorf("%d kinds of failures are not seen", len(missing))
	}
}

// Every published release can be traced: each required point is there and
// is at an instruction that the kernel emulates, each offset is shown by at
// least two functions of the library, and the getters of devices and capacities
// are there.
func TestMatrix(t *testing.T) {
	set := libraries(t)
	list := Releases()
	if len(list) < releases || len(set) < builds {
		t.Errorf("%d releases and %d builds, there were %d and %d", len(list), len(set), releases, builds)
	}
	resolved := map[string]bool{}
	t.Run("builds", func(t *testing.T) {
		for id, library := range set {
			t.Run(id, func(t *testing.T) {
				r := inspect(t, library)
				if r.Err != nil {
					t.Fatal(r.Err)
				}
				if r.Library.BuildID != id {
					t.Errorf("it has the build-id %s", r.Library.BuildID)
				}
				for _, c := range r.Ways {
					for _, p := range c.Probes {
						if !p.Emulated {
							t.Errorf("%s would be single-stepped at %s", p.Point.Name, p.Instruction)
						}
					}
				}
				// By the graph tracker; where that did not report buffers, by the allocator.
				if len(r.Ways) != 2 || r.Ways[0].Way != metal.ByGraphTracker || r.Ways[1].Way != metal.ByAllocator {
					t.Errorf("it can be traced in the ways %v", r.Ways)
				}
				// An allocation and its free are two hits: reserved sizes are computed, of sharded buffers too.
				if c := r.Coverage; len(c.Spare) != 1 || slices.ContainsFunc(c.Probes, func(p metal.Probe) bool { return p.Point == c.Spare[0].Point }) {
					t.Errorf("spare points: %v", c.Spare)
				}
				checkReservedSizes(t, r.Library)
				checkWitness(t, r.Library)
				sources := map[string]int{}
				for _, e := range r.Layout.Evidence {
					if e.Err != nil {
						t.Errorf("%s does not show the %s: %v", e.Source, e.Field, e.Err)
					} else {
						sources[e.Field]++
					}
				}
				for _, f := range r.Layout.Fields {
					if f.Proof != metal.Decoded|metal.Table || sources[f.Name] < 2 {
						t.Errorf("%s: %s, shown by %d functions", f.Name, f.Proof, sources[f.Name])
					}
				}
				for _, g := range r.Getters {
					// Up to 0.62.2 it is inlined; the document has which releases lack it.
					if !g.Found && g.Value != "a program's commands" {
						t.Errorf("%s is missing", g.Symbol)
					}
					switch g.Value {
					case "a chip's number", "number of banks", "bytes of a bank", "address of a bank":
						if g.Err != nil || len(g.Shows) == 0 {
							t.Errorf("%s: %q, %v", g.Symbol, g.Shows, g.Err)
						}
					}
				}
				resolved[id] = !t.Failed()
			})
		}
	})
	n := 0
	for _, r := range list {
		if resolved[r.BuildID] {
			n++
		} else {
			t.Errorf("%s is not resolved", r.Version)
		}
	}
	t.Logf("%d of %d releases, %d builds", n, len(list), len(set))
}

// The documentation is what the set says now.
func TestDocument(t *testing.T) {
	var want bytes.Buffer
	if err := Document(&want); err != nil {
		t.Fatal(err)
	}
	have, err := os.ReadFile(filepath.Join("..", "..", "docs", "compatibility.md"))
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(have, want.Bytes()) {
		t.Error("docs/compatibility.md is stale: run go generate ./test/compat")
	}
}

// What is written is read back.
func TestPack(t *testing.T) {
	s := &Sparse{Size: 1 << 20}
	s.put(100, []byte("abc"))
	s.put(5000, []byte("def"))
	s.put(103, []byte("d"))
	s.put(1<<20-3, []byte("end"))
	s.put(101, []byte("B"))
	var z bytes.Buffer
	if err := s.encode(&z); err != nil {
		t.Fatal(err)
	}
	again, err := decode(&z)
	if err != nil {
		t.Fatal(err)
	}
	for _, one := range []*Sparse{s, again, s.Clone()} {
		if len(one.parts) != 3 || one.Size != s.Size {
			t.Errorf("%d parts of %d bytes", len(one.parts), one.Size)
		}
		b := make([]byte, 8)
		if _, err := one.ReadAt(b, 98); err != nil || string(b) != "\x00\x00aBcd\x00\x00" {
			t.Errorf("%q, %v", b, err)
		}
	}
	if _, err := decode(strings.NewReader("\x05\x03\x04abcd")); err == nil {
		t.Error("a part outside of the file is read")
	}
}
