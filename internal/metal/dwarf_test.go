package metal

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"tt-memtrace/internal/proc"
	"tt-memtrace/test/fixture"
)

// Debug information of any compiler and version is a witness for every field,
// beside the code.
func TestDWARFIsAWitness(t *testing.T) {
	for _, test := range []struct{ compiler, flags string }{
		{"g++", "-O2 -gdwarf-4"},
		{"g++", "-O2 -gdwarf-5 -DLAYOUT_B -fcf-protection=full"},
		{"g++", "-O0 -gdwarf-5 -gdwarf64 -gz"},
		{"g++", "-O2 -g -ffunction-sections -DLAYOUT_B -DIMPL"},
		{"clang++", "-O2 -gdwarf-4 -DLAYOUT_B -fcf-protection=full"},
		{"clang++", "-O2 -gdwarf-5 -fstandalone-debug"},
	} {
		t.Run(test.compiler+" "+test.flags, func(t *testing.T) {
			t.Parallel()
			layout, err := open(t, fixture.StillOf(t, fixture.Build{Compiler: test.compiler, Flags: strings.Fields(test.flags)})).Layout()
			if err != nil {
				t.Fatal(err)
			}
			if layout.Debug == nil || layout.Debug.Err != nil {
				t.Errorf("debug information: %+v", layout.Debug)
			}
			for i, f := range layout.Fields {
				want := DWARF | Table
				if f.Name != "hooked" || strings.Contains(test.flags, "IMPL") { // what no getter shows
					want |= Decoded
				}
				if f.Proof != want || f.Offset != fieldTable[i].offset {
					t.Errorf("%s at %#x: %v", f.Name, f.Offset, f.Proof)
				}
			}
		})
	}
}

// With DWARF as a second witness, fields that one getter shows need not be where
// they have always been; what only DWARF shows must.
func TestDWARFProvesMovedFields(t *testing.T) {
	t.Parallel()
	layout, err := open(t, fixture.StillOf(t, fixture.WithFlags("-g -DLAYOUT_B -DGROW=8"))).Layout()
	if err != nil {
		t.Fatal(err)
	}
	if f := layout.Fields[slices.IndexFunc(layout.Fields, func(f Field) bool { return f.Name == "address" })]; f.Offset != 0x48 || f.Proof != Decoded|DWARF {
		t.Errorf("%+v", f)
	}
	_, err = open(t, fixture.StillOf(t, fixture.WithFlags("-g -DSWAP_FLAGS"))).Layout()
	refused(t, err, "only DWARF of tt::tt_metal::BufferImpl::hooked_allocation_ shows", "status at 0x39")
}

// split builds a library and puts beside it, as its own, the debug information of
// a build with other flags.
func split(t *testing.T, library, debug string, link bool) string {
	t.Helper()
	const id = " -g -Wl,--build-id=0x00112233445566778899aabbccddeeff"
	dir := t.TempDir()
	path, apart := filepath.Join(dir, "libtt_metal.so"), filepath.Join(dir, "libtt_metal.so.debug")
	run := func(args ...string) {
		t.Helper()
		if out, err := exec.Command("objcopy", args...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	run("--only-keep-debug", fixture.StillOf(t, fixture.WithFlags(debug+id)), apart)
	args := []string{"--strip-debug", fixture.StillOf(t, fixture.WithFlags(library+id)), path}
	if link {
		args = append([]string{"--add-gnu-debuglink=" + apart}, args...)
	}
	run(args...)
	return path
}

// Debug information in another file is found, if the library names it.
func TestDWARFApart(t *testing.T) {
	path := split(t, "-DLAYOUT_B", "-DLAYOUT_B", true)
	layout, err := open(t, path).Layout()
	if err != nil {
		t.Fatal(err)
	}
	if layout.Debug == nil || layout.Debug.Err != nil || layout.Debug.Path != path+".debug" || layout.Fields[0].Proof&DWARF == 0 {
		t.Errorf("%+v, %+v", layout.Debug, layout.Fields[0])
	}
	if layout, err = open(t, split(t, "-DLAYOUT_B", "-DLAYOUT_B", false)).Layout(); err != nil || layout.Debug != nil {
		t.Errorf("%+v, %v", layout, err)
	}
}

// A library whose debug information and code disagree is refused, and the error names both.
func TestDWARFThatDisagreesIsRefused(t *testing.T) {
	for _, test := range []struct {
		library, debug string
		says           []string
	}{
		{"", "-DSWAP_SIZES", []string{"disagree", "page_size", "_ZNK2tt8tt_metal6Buffer9page_sizeEv shows it at +0x58", "DWARF of tt::tt_metal::BufferImpl::page_size_ at +0x18"}},
		{"-DLAYOUT_B", "-DLAYOUT_B -DSHIFT=8", []string{"two pointers", "0x10", "0x18", "DWARF of"}},
		{"-DLAYOUT_B", "", []string{"disagree", "shows it at +0x10 → +0x38", "DWARF of tt::tt_metal::BufferImpl::allocation_status_ at +0x48"}},
	} {
		l := open(t, split(t, test.library, test.debug, true))
		layout, err := l.Layout()
		if layout != nil {
			t.Errorf("%q with the DWARF of %q: %+v", test.library, test.debug, layout)
		}
		refused(t, err, append(test.says, l.Path, l.BuildID)...)
	}
}

// Debug information that is not this library's, or cannot be used, is said to be
// there, and does not keep the library from being traced.
func TestUselessDWARF(t *testing.T) {
	own := fixture.Read(t, fixture.StillOf(t, fixture.WithFlags("-g")))
	apart := split(t, "", "", true)
	for _, test := range []struct {
		name, says string
		path       func(t *testing.T) string
	}{
		{"another build-id", "not this library's", func(t *testing.T) string {
			data := image(fixture.Read(t, apart+".debug"))
			at := int(binary.LittleEndian.Uint64(data[data.section(t, ".note.gnu.build-id")+shOffset:]))
			data[at+16] ^= 0xff
			return beside(t, fixture.Read(t, apart), data)
		}},
		{"a text", "magic", func(t *testing.T) string { return beside(t, fixture.Read(t, apart), []byte("no debug information\n")) }},
		{"cut short", "", func(t *testing.T) string {
			return beside(t, fixture.Read(t, apart), fixture.Read(t, apart+".debug")[:4096])
		}},
		{"outside of the file", "outside", func(t *testing.T) string {
			e := image(bytes.Clone(own))
			e.put(e.section(t, ".debug_info")+shOffset, 8, 1<<40)
			return fixture.Write(t, e)
		}},
		{"zeros", "damaged", func(t *testing.T) string {
			e := image(bytes.Clone(own))
			at := int(binary.LittleEndian.Uint64(e[e.section(t, ".debug_info")+shOffset:]))
			clear(e[at : at+4096])
			return fixture.Write(t, e)
		}},
		{"too many addresses", "too large", func(t *testing.T) string {
			e := image(bytes.Clone(own))
			at := e.section(t, ".debug_rnglists")
			e.put(at+shOffset, 8, uint64(len(e)))
			e.put(at+shSize, 8, maxAddresses+1)
			path := fixture.Write(t, e)
			if err := os.Truncate(path, int64(len(e))+maxAddresses+1); err != nil {
				t.Fatal(err)
			}
			return path
		}},
		{"type units", "does not define", func(t *testing.T) string { return fixture.StillOf(t, fixture.WithFlags("-g -fdebug-types-section")) }},
	} {
		t.Run(test.name, func(t *testing.T) {
			layout, err := open(t, test.path(t)).Layout()
			if err != nil {
				t.Fatal(err)
			}
			if layout.Debug == nil || layout.Debug.Err == nil || !strings.Contains(layout.Debug.Err.Error(), test.says) {
				t.Errorf("%+v", layout.Debug)
			}
			for _, f := range layout.Fields {
				if f.Proof&DWARF != 0 {
					t.Errorf("%s: %v", f.Name, f.Proof)
				}
			}
		})
	}
}

// beside writes a library and its debug information.
func beside(t *testing.T, library, debug []byte) string {
	t.Helper()
	path := fixture.Write(t, library)
	if err := os.WriteFile(path+".debug", debug, 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// A library of gigabytes is looked at like a small one.
func TestLargeDWARF(t *testing.T) {
	path := fixture.Write(t, fixture.Read(t, fixture.StillOf(t, fixture.WithFlags("-g"))))
	if err := os.Truncate(path, 8<<30); err != nil {
		t.Fatal(err)
	}
	layout, err := open(t, path).Layout()
	if err != nil || layout.Debug == nil || layout.Debug.Err != nil {
		t.Errorf("%+v, %v", layout, err)
	}
}

// A file that becomes shorter while it is looked at is an error, not the end.
func TestDWARFThatGoesAway(t *testing.T) {
	path := fixture.Write(t, fixture.Read(t, fixture.StillOf(t, fixture.WithFlags("-g"))))
	l := open(t, path)
	d, err := l.openDebug()
	if err != nil {
		t.Fatal(err)
	}
	defer d.close()
	if err := os.Truncate(path, 4096); err != nil {
		t.Fatal(err)
	}
	if found, err := d.classes(l.bufferFunctions()); err == nil || !strings.Contains(err.Error(), "damaged") {
		t.Errorf("%v, %v", found, err)
	}
}

// Entries of debug information, as assembled here.
const (
	anyRoot = iota + 1
	anyNamespace
	anyClass
	anyMember
	anyBlock
	anyType
)

// abbreviated are the abbreviations of these entries.
var abbreviated = []byte{
	anyRoot, 0x11, 1, 0x11, 0x01, 0x12, 0x07, 0, 0, // compile unit: low_pc addr, high_pc data8
	anyNamespace, 0x39, 1, 0x03, 0x08, 0, 0, // name string
	anyClass, 0x02, 1, 0x03, 0x08, 0x0b, 0x0b, 0, 0, // name string, byte_size data1
	anyMember, 0x0d, 0, 0x03, 0x08, 0x38, 0x0b, 0x49, 0x13, 0, 0, // name string, location data1, type ref4
	anyBlock, 0x0b, 1, 0, 0,
	anyType, 0x24, 0, 0x0b, 0x0b, 0, 0, // base type: byte_size data1
	0,
}

// unitOf is a unit with these entries, which compiled all functions.
func unitOf(entries ...any) []byte {
	b := []byte{0, 0, 0, 0, 4, 0, 0, 0, 0, 0, 8, anyRoot}
	b = binary.LittleEndian.AppendUint64(b, 0)
	b = binary.LittleEndian.AppendUint64(b, 1<<40)
	b = append(b, anyType, 8) // at 28
	for _, e := range entries {
		switch e := e.(type) {
		case int:
			b = append(b, byte(e))
		case string:
			b = append(append(b, e...), 0)
		case []byte:
			b = append(b, e...)
		}
	}
	binary.LittleEndian.PutUint32(b, uint32(len(b)-4))
	return b
}

// smallUnit declares a Buffer with one field.
func smallUnit(nested []byte) []byte {
	return unitOf(nested, anyNamespace, "tt", anyNamespace, "tt_metal", anyClass, "Buffer", 64,
		anyMember, "size_", 24, []byte{28, 0, 0, 0}, 0, 0, 0, 0)
}

func TestAssembledDWARF(t *testing.T) {
	const depth = 1 << 20
	deep := append(bytes.Repeat([]byte{anyBlock}, depth), make([]byte, depth)...)
	long := bytes.Repeat(append([]byte{8, 0, 0, 0}, make([]byte, 8)...), 1<<16)
	for _, test := range []struct {
		name  string
		info  []byte
		limit time.Duration
		says  string
	}{
		{"small", smallUnit(nil), time.Hour, ""},
		{"behind another unit", append(unitOf(0), smallUnit(nil)...), time.Hour, ""},
		{"deep", smallUnit(deep), time.Hour, ""},
		{"behind many units", append(long, smallUnit(nil)...), time.Hour, ""},
		{"too long", smallUnit(nil), -time.Second, "took more than"},
		{"cut", smallUnit(nil)[:40], time.Hour, "outside"},
		{"none", nil, time.Hour, "does not define"},
	} {
		d := &debugFile{sections: map[string][]byte{"info": test.info, "abbrev": abbreviated}, limit: proc.NewLimit(test.limit, nil)}
		found, err := d.classes([]uint64{4096})
		if test.says != "" {
			if err == nil || !strings.Contains(err.Error(), test.says) {
				t.Errorf("%s: %v", test.name, err)
			}
			continue
		}
		if m := found[bufferClass]["size_"]; err != nil || m != (member{offset: 24, size: 8}) {
			t.Errorf("%s: %+v, %v", test.name, found, err)
		}
	}
}

// Nothing that debug information says is more than a witness, or an error.
func FuzzDWARF(f *testing.F) {
	f.Add(smallUnit(nil), abbreviated)
	f.Add(append(unitOf(0), smallUnit([]byte{anyBlock, anyBlock, 0, 0})...), abbreviated)
	wide := append([]byte{0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0, 5, 0, 1, 8, 0, 0, 0, 0, 0, 0, 0, 0}, smallUnit(nil)[11:]...)
	binary.LittleEndian.PutUint64(wide[4:], uint64(len(wide)-12))
	f.Add(wide, abbreviated)
	f.Fuzz(func(t *testing.T, info, abbrev []byte) {
		d := &debugFile{sections: map[string][]byte{"info": info, "abbrev": abbrev}, limit: proc.NewLimit(maxDebugTime, nil)}
		found, err := d.classes([]uint64{4096})
		if err != nil && strings.Contains(err.Error(), "runtime error") {
			t.Error(err)
		}
		for _, row := range fieldTable {
			declaration(found, row.member)
		}
	})
}

// Without debug information nothing is mapped.
func TestNoDWARF(t *testing.T) {
	l := open(t, fixture.StillOf(t, fixture.LayoutA))
	if l.elf.Section(".debug_info") != nil || l.elf.SectionByType(elf.SHT_SYMTAB) == nil {
		t.Fatal("not the library that is meant")
	}
	if list, info := l.declared(); list != nil || info != nil {
		t.Errorf("%v, %v", list, info)
	}
}
