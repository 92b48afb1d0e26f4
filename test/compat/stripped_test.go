package compat

import (
	"debug/elf"
	"encoding/binary"
	"fmt"
	"slices"
	"testing"

	"tt-memtrace/internal/metal"
)

// withoutSymtab is a library as `strip --strip-unneeded` leaves it: without .symtab.
func withoutSymtab(t *testing.T, s *Sparse) *Sparse {
	t.Helper()
	c := s.Clone()
	header := make([]byte, elfHeaderSize)
	if _, err := c.ReadAt(header, 0); err != nil {
		t.Fatal(err)
	}
	sections := int64(binary.LittleEndian.Uint64(header[0x28:]))
	kind := make([]byte, 4)
	for i := range int64(binary.LittleEndian.Uint16(header[0x3c:])) {
		at := sections + i*sectionSize + 4
		if _, err := c.ReadAt(kind, at); err != nil {
			t.Fatal(err)
		}
		if elf.SectionType(binary.LittleEndian.Uint32(kind)) == elf.SHT_SYMTAB {
			c.put(at, binary.LittleEndian.AppendUint32(nil, uint32(elf.SHT_NULL)))
			return c
		}
	}
	return c // it has none
}

// Every published build can be traced when it is stripped: what is probed, except what is reported as
// missing, where fields lie and what getters show is in the dynamic symbols, or is found by them: Device::id() const by
// the vtables.
func TestStripped(t *testing.T) {
	for id, library := range libraries(t) {
		t.Run(id, func(t *testing.T) {
			t.Parallel()
			whole, stripped := inspect(t, library), inspect(t, withoutSymtab(t, library))
			if stripped.Err != nil {
				t.Fatal(stripped.Err)
			}
			places := map[string]bool{}
			for _, p := range stripped.Coverage.Probes {
				places[fmt.Sprintf("%s at %#x", p.Point.Name, p.Offset)] = true
			}
			for _, p := range whole.Coverage.Probes {
				// What is not there is reported as missing.
				if place := fmt.Sprintf("%s at %#x", p.Point.Name, p.Offset); !places[place] &&
					!slices.ContainsFunc(stripped.Coverage.Missing, func(m *metal.Point) bool { return m.Name == p.Point.Name }) {
					t.Errorf("without %s, which nothing says", place)
				}
			}
			if len(stripped.Ways) != len(whole.Ways) {
				t.Errorf("%d ways, stripped %d", len(whole.Ways), len(stripped.Ways))
			}
			for i, f := range whole.Layout.Fields {
				if s := stripped.Layout.Fields[i]; s.Name != f.Name || s.Offset != f.Offset {
					t.Errorf("%+v, stripped %+v", f, s)
				}
			}
			for i, g := range whole.Getters {
				if s := stripped.Getters[i]; s.Found != g.Found || fmt.Sprint(s.Shows) != fmt.Sprint(g.Shows) {
					t.Errorf("%s: %+v\nstripped %+v", g.Symbol, g, s)
				}
			}
		})
	}
}
