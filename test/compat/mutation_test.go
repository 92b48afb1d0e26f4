package compat

import (
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"testing"

	"tt-memtrace/internal/metal"
)

// maxMemory is the most that looking at one file may allocate, bytes.
const maxMemory = 200 << 20

// specimens are builds of all the shapes that there are: with the code in
// _ttnncpp.so, and with the fields in the Buffer and behind a pointer. Two are
// enough for what does not depend on the shape.
var (
	specimens    = []string{"0.59.0rc58", "0.66.0", "0.78.0", "0.79.0", "0.81.1"}
	twoSpecimens = []string{"0.66.0", "0.81.1"}
)

// specimen is a library of the set, to be damaged.
type specimen struct {
	*Sparse
	t    testing.TB
	good *metal.Report
	path string
}

// each runs a test on each specimen.
func each(t *testing.T, versions []string, f func(t *testing.T, s *specimen)) {
	set := libraries(t)
	for _, r := range Releases() {
		if slices.Contains(versions, r.Version) {
			t.Run(r.Version, func(t *testing.T) {
				f(t, newSpecimen(t, set[r.BuildID]))
			})
		}
	}
}

func newSpecimen(t testing.TB, library *Sparse) *specimen {
	return &specimen{library, t, inspect(t, library), memoryFile(t)}
}

func (s *specimen) clone() *specimen {
	c := *s
	c.Sparse = s.Clone()
	return &c
}

func (s *specimen) elf() *elf.File {
	e, err := elf.NewFile(s)
	if err != nil {
		s.t.Fatal(err)
	}
	return e
}

// symbol calls f with each entry of the tables that has the name. What f
// changes is put back.
func (s *specimen) symbol(name string, f func(entry []byte)) {
	s.t.Helper()
	if s.entries(name, f) == 0 {
		s.t.Fatalf("there is no symbol %s", name)
	}
}

func (s *specimen) has(name string) bool { return s.entries(name, func([]byte) {}) > 0 }

func (s *specimen) entries(name string, f func(entry []byte)) (n int) {
	s.t.Helper()
	e := s.elf()
	for _, table := range e.Sections {
		if table.Type != elf.SHT_SYMTAB && table.Type != elf.SHT_DYNSYM {
			continue
		}
		data, err := table.Data()
		if err != nil {
			s.t.Fatal(err)
		}
		names, err := e.Sections[table.Link].Data()
		if err != nil {
			s.t.Fatal(err)
		}
		for i := 0; i+symbolSize <= len(data); i += symbolSize {
			at := int(binary.LittleEndian.Uint32(data[i:]))
			if at+len(name) < len(names) && string(names[at:at+len(name)]) == name && names[at+len(name)] == 0 {
				n++
				f(data[i : i+symbolSize])
				s.put(int64(table.Offset)+int64(i), data[i:i+symbolSize])
			}
		}
	}
	return n
}

func (s *specimen) drop(name string) { s.symbol(name, func(entry []byte) { clear(entry[6:]) }) }

func (s *specimen) value(name string) (v uint64) {
	s.symbol(name, func(entry []byte) { v = binary.LittleEndian.Uint64(entry[8:]) })
	return v
}

// offset in the file of an address.
func (s *specimen) offset(address uint64) int64 {
	for _, p := range s.elf().Progs {
		if p.Type == elf.PT_LOAD && address >= p.Vaddr && address-p.Vaddr < p.Filesz {
			return int64(address - p.Vaddr + p.Off)
		}
	}
	s.t.Fatalf("%#x is not in the file", address)
	return 0
}

// flip changes a byte.
func (s *specimen) flip(offset int64, bits byte) {
	var b [1]byte
	s.ReadAt(b[:], offset)
	b[0] ^= bits
	s.put(offset, b[:])
}

// cut shortens the file.
func (s *specimen) cut(size int64) {
	s.Size = size
	s.parts = slices.DeleteFunc(s.parts, func(p part) bool { return p.offset >= size })
	for i := range s.parts {
		p := &s.parts[i]
		p.data = p.data[:min(int64(len(p.data)), size-p.offset)]
	}
}

// judge looks at a damaged library. It may be refused; otherwise the report
// must be right. The error is the refusal.
func (s *specimen) judge(what string) (*metal.Report, error) {
	s.t.Helper()
	if err := s.WriteFile(s.path); err != nil {
		s.t.Fatal(err)
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	r, err := metal.Examine(s.path)
	runtime.ReadMemStats(&after)
	if used := after.TotalAlloc - before.TotalAlloc; used > maxMemory {
		s.t.Errorf("%s: %d bytes were allocated", what, used)
	}
	if err == nil {
		r.Library.Close()
		err = r.Err
	}
	if err != nil {
		if !errors.Is(err, metal.ErrUnsupported) {
			s.t.Errorf("%s: the error is not ErrUnsupported: %v", what, err)
		}
		return r, err
	}
	good := s.good
	if r.Layout.Base != good.Layout.Base || r.Layout.Indirect != good.Layout.Indirect ||
		!slices.EqualFunc(r.Layout.Fields, good.Layout.Fields, func(a, b metal.Field) bool {
			return a.Name == b.Name && a.Offset == b.Offset
		}) {
		s.t.Errorf("%s: a wrong layout: %+v", what, r.Layout.Fields)
	}
	for _, p := range r.Coverage.Probes {
		right := slices.ContainsFunc(good.Ways, func(c *metal.Coverage) bool {
			return slices.ContainsFunc(slices.Concat(c.Probes, c.Spare), func(g metal.Probe) bool {
				return g.Point == p.Point && g.Offset == p.Offset && g.Skipped == p.Skipped && g.Emulated == p.Emulated
			})
		})
		if !right {
			s.t.Errorf("%s: a wrong point: %+v", what, p)
		}
	}
	if len(r.Coverage.Spare) > 0 {
		computed, err := r.Library.ReservedSizes()
		// Of what is damaged less may be computed.
		if right, _ := good.Library.ReservedSizes(); err != nil || computed.MinBlock != right.MinBlock || computed.BlockAlignment != right.BlockAlignment {
			s.t.Errorf("%s: wrong reserved sizes: %v, %v", what, computed, err)
		}
	}
	return r, nil
}

func says(t testing.TB, what string, err error, words ...string) {
	t.Helper()
	for _, w := range words {
		if err == nil || !strings.Contains(err.Error(), w) {
			t.Errorf("%s: the error does not say %q: %v", what, w, err)
		}
	}
}

// Without a required symbol the library is refused, and the error names the
// point, its symbol and the build, unless there is another way. Without another one the
// point is missing.
func TestDroppedPoint(t *testing.T) {
	each(t, specimens, func(t *testing.T, s *specimen) {
		for i := range metal.Points {
			point := &metal.Points[i]
			d := s.clone()
			found := false
			for _, p := range slices.Concat(s.good.Coverage.Probes, s.good.Coverage.Spare) {
				if p.Point == point {
					found = true
					d.drop(p.Symbol)
				}
			}
			if !found {
				continue // this release has none, or needs none
			}
			for _, name := range point.Symbols {
				if d.has(name) {
					d.drop(name)
				}
			}
			r, err := d.judge(point.Name)
			if point.Need == metal.Required && point.Way != 0 {
				if err != nil || r.Coverage.Way != metal.ByAllocator {
					t.Errorf("without %s: %v", point.Name, err)
				}
			} else if point.Need == metal.Required {
				says(t, point.Name, err, "lacks the required "+point.Name, point.Symbols[0], s.good.Library.BuildID)
			} else if err != nil || !slices.Contains(r.Coverage.Missing, point) {
				t.Errorf("without %s: %v", point.Name, err)
			}
		}
	})
}

// Without any one of the functions that compute reserved sizes, these are probed.
func TestDroppedComputation(t *testing.T) {
	each(t, twoSpecimens, func(t *testing.T, s *specimen) {
		for _, name := range []string{"_ZNK2tt8tt_metal6Buffer21aligned_size_per_bankEv", "_ZN2tt8tt_metal9allocator11FreeListOptC1EmmmmNS2_12SearchPolicyE", "_ZN2tt8tt_metal9allocator11FreeListOpt8allocateEmbm"} {
			d := s.clone()
			d.drop(name)
			r, err := d.judge(name)
			if err != nil || len(r.Coverage.Spare) > 0 || !slices.ContainsFunc(r.Coverage.Probes, func(p metal.Probe) bool { return p.Point == s.good.Coverage.Spare[0].Point }) {
				t.Errorf("without %s: %v, spare %v", name, err, r.Coverage.Spare)
			}
		}
	})
}

// Without any one function that shows a field, another one does.
func TestDroppedGetter(t *testing.T) {
	each(t, specimens, func(t *testing.T, s *specimen) {
		seen := map[string]bool{}
		for _, e := range s.good.Layout.Evidence {
			if seen[e.Source] {
				continue
			}
			seen[e.Source] = true
			d := s.clone()
			d.drop(e.Source)
			if _, err := d.judge(e.Source); err != nil {
				t.Errorf("without %s: %v", e.Source, err)
			}
		}
		t.Logf("%d functions", len(seen))
	})
}

// Without all functions that show a field, the table replaces only those
// fields that need not be shown.
func TestDroppedField(t *testing.T) {
	required := []string{"status", "page_size", "size", "type", "address"}
	each(t, specimens, func(t *testing.T, s *specimen) {
		for _, f := range s.good.Layout.Fields {
			d := s.clone()
			for _, e := range s.good.Layout.Evidence {
				if e.Field == f.Name {
					d.drop(e.Source)
				}
			}
			r, err := d.judge(f.Name)
			if slices.Contains(required, f.Name) {
				says(t, f.Name, err, "nothing shows where a buffer keeps its", s.good.Library.BuildID)
			} else if err == nil && !slices.ContainsFunc(r.Layout.Fields, func(g metal.Field) bool {
				return g.Name == f.Name && g.Proof == metal.Table
			}) {
				t.Errorf("%s is not said to be from the table", f.Name)
			}
		}
	})
}

// A getter that reads another place disagrees with the other functions, and
// the refusal names both.
func TestMovedField(t *testing.T) {
	each(t, specimens, func(t *testing.T, s *specimen) {
		for _, e := range s.good.Layout.Evidence {
			if !strings.HasPrefix(e.Source, "_ZNK") {
				continue
			}
			_, last, _ := strings.Cut(e.Shows(), " → ")
			if last == "" {
				last = e.Shows()
			}
			var displacement byte
			fmt.Sscanf(last, "%v", &displacement)
			at := s.offset(s.value(e.Source))
			var code [48]byte
			s.ReadAt(code[:], at)
			moved := 0
			for i, b := range code {
				if b != displacement || b == 0 {
					continue
				}
				d := s.clone()
				d.flip(at+int64(i), 0x20)
				if _, err := d.judge(fmt.Sprintf("%s, byte %d", e.Source, i)); err != nil && strings.Contains(err.Error(), "disagree") {
					says(t, e.Source, err, e.Source, " shows it at ")
					moved++
				}
			}
			if moved == 0 && displacement != 0 {
				t.Logf("%s: no byte moves the %s alone", e.Source, e.Field)
			}
		}
	})
}

// Two getters that have changed places are found out.
func TestSwappedGetters(t *testing.T) {
	getters := []string{"size", "page_size", "num_pages", "address", "device", "allocator", "is_allocated", "is_dram", "buffer_layout", "buffer_type", "num_cores", "num_dev_pages"}
	each(t, twoSpecimens, func(t *testing.T, s *specimen) {
		var there []string
		for _, g := range getters {
			name := fmt.Sprintf("_ZNK2tt8tt_metal6Buffer%d%sEv", len(g), g)
			if slices.ContainsFunc(s.good.Layout.Evidence, func(e metal.Evidence) bool { return e.Source == name }) {
				there = append(there, name)
			}
		}
		refused := 0
		for i, a := range there {
			for _, b := range there[i+1:] {
				d := s.clone()
				va, vb := s.value(a), s.value(b)
				d.symbol(a, func(entry []byte) { binary.LittleEndian.PutUint64(entry[8:], vb) })
				d.symbol(b, func(entry []byte) { binary.LittleEndian.PutUint64(entry[8:], va) })
				if _, err := d.judge(a + " and " + b); err != nil {
					refused++
				}
			}
		}
		if refused == 0 {
			t.Error("none was refused")
		}
		t.Logf("%d getters, %d pairs refused", len(there), refused)
	})
}

// Any changed byte of the code that shows fields ends in what is right or in a refusal.
func TestChangedCode(t *testing.T) {
	each(t, specimens, func(t *testing.T, s *specimen) {
		random := rand.New(rand.NewPCG(1, 2))
		refused, seen := 0, map[string]bool{}
		for _, e := range s.good.Layout.Evidence {
			if seen[e.Source] {
				continue
			}
			seen[e.Source] = true
			at := s.offset(s.value(e.Source))
			for range 12 {
				d := s.clone()
				i, bits := random.Int64N(64), byte(1+random.IntN(255))
				d.flip(at+i, bits)
				if _, err := d.judge(fmt.Sprintf("%s, byte %d changed by %#x", e.Source, i, bits)); err != nil {
					refused++
				}
			}
		}
		t.Logf("%d functions, refused %d times", len(seen), refused)
	})
}

// header is where a section's header is.
func (s *specimen) header(section int) int64 {
	var b [8]byte
	s.ReadAt(b[:], 0x28)
	return int64(binary.LittleEndian.Uint64(b[:])) + int64(section)*sectionSize
}

// Nothing depends on knowing a build-id.
func TestChangedBuildID(t *testing.T) {
	each(t, specimens, func(t *testing.T, s *specimen) {
		note := s.elf().Section(".note.gnu.build-id")
		d := s.clone()
		d.flip(int64(note.Offset)+16, 0xff)
		if r, err := d.judge("build-id"); err != nil || r.Library.BuildID == s.good.Library.BuildID {
			t.Errorf("build-id %s, %v", r.Library.BuildID, err)
		}
		d.put(int64(note.Offset)+4, []byte{0xff, 0xff, 0xff, 0x7f}) // its length
		if r, err := d.judge("build-id"); err != nil || r.Library.BuildID != "" {
			t.Errorf("build-id %s, %v", r.Library.BuildID, err)
		}
	})
}

// A file that ends early, as one that is still being copied, is refused.
func TestTruncated(t *testing.T) {
	each(t, twoSpecimens, func(t *testing.T, s *specimen) {
		random := rand.New(rand.NewPCG(5, 6))
		var sizes []int64
		for size := int64(1); size < s.Size; size *= 2 {
			sizes = append(sizes, size, s.Size-size)
		}
		for range 100 {
			p := s.parts[random.IntN(len(s.parts))]
			sizes = append(sizes, p.offset+random.Int64N(int64(len(p.data))+1))
		}
		for _, size := range append(sizes, 0) {
			d := s.clone()
			d.cut(size)
			if _, err := d.judge(fmt.Sprintf("%d of %d bytes", size, s.Size)); err == nil && size < s.Size/2 {
				t.Errorf("%d of %d bytes are enough", size, s.Size)
			}
		}
		t.Logf("%d lengths", len(sizes))
	})
}

// Headers that lie end in what is right or in a refusal.
func TestDamagedHeaders(t *testing.T) {
	each(t, twoSpecimens, func(t *testing.T, s *specimen) {
		e := s.elf()
		var phoff [8]byte
		s.ReadAt(phoff[:], 0x20)
		var fields []int64
		for i := int64(0); i < elfHeaderSize; i += 4 {
			fields = append(fields, i)
		}
		for i := int64(0); i < int64(len(e.Progs))*progSize; i += 4 {
			fields = append(fields, int64(binary.LittleEndian.Uint64(phoff[:]))+i)
		}
		for i := range e.Sections {
			for j := int64(0); j < sectionSize; j += 4 {
				fields = append(fields, s.header(i)+j)
			}
		}
		random := rand.New(rand.NewPCG(3, 4))
		random.Shuffle(len(fields), func(i, j int) { fields[i], fields[j] = fields[j], fields[i] })
		fields = fields[:len(fields)/3]
		refused := 0
		for _, field := range fields {
			value := []uint32{0, ^uint32(0), random.Uint32() >> random.IntN(32)}[random.IntN(3)]
			d := s.clone()
			d.put(field, binary.LittleEndian.AppendUint32(nil, value))
			if _, err := d.judge(fmt.Sprintf("%#x at %#x", value, field)); err != nil {
				refused++
			}
		}
		t.Logf("%d fields, refused %d times", len(fields), refused)
	})
}
