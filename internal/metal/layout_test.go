package metal

import (
	"fmt"
	"strings"
	"testing"

	"tt-memtrace/test/fixture"
)

// getter is the symbol of one of Buffer's.
func getter(name string) string {
	return fmt.Sprintf("_ZNK2tt8tt_metal6Buffer%d%sEv", len(name), name)
}

func TestLayoutIsProved(t *testing.T) {
	for _, test := range []struct {
		name     string
		build    fixture.Build
		base     uint32
		indirect bool
		// table are the fields that no getter shows.
		table string
		// address is how many bytes of the address are read, 4 unless set.
		address int
	}{
		{"A", fixture.LayoutA, 0x10, false, "hooked", 0},
		{"B", fixture.LayoutB, 0x10, true, "hooked", 0},
		{"A not optimized", fixture.WithFlags("-O0"), 0x10, false, "hooked", 8},
		{"B not optimized", fixture.WithFlags("-O0 -DLAYOUT_B"), 0x10, true, "hooked", 8},
		{"A optimized", fixture.WithFlags("-O2"), 0x10, false, "hooked", 0},
		{"B optimized", fixture.WithFlags("-O3 -DLAYOUT_B"), 0x10, true, "hooked", 0},
		{"A for this processor", fixture.WithFlags("-O3 -march=x86-64-v3"), 0x10, false, "hooked", 0},
		{"A by clang", fixture.Build{Compiler: "clang++", Flags: []string{"-O2"}}, 0x10, false, "hooked", 0},
		{"B by clang", fixture.Build{Compiler: "clang++", Flags: []string{"-O2", "-DLAYOUT_B"}}, 0x10, true, "hooked", 0},
		{"A by clang, not optimized", fixture.Build{Compiler: "clang++", Flags: []string{"-O0"}}, 0x10, false, "hooked", 8},
		{"A with a stack protector", fixture.WithFlags("-O2 -fstack-protector-all"), 0x10, false, "hooked", 0},
		{"A with endbr64", fixture.WithFlags("-O2 -fcf-protection=full"), 0x10, false, "hooked", 0},
		{"A with packed relocations", fixture.WithFlags("-Wl,-z,pack-relative-relocs"), 0x10, false, "hooked", 0},
		{"A moved", fixture.WithFlags("-DSHIFT=8"), 0x18, false, "hooked", 0},
		{"A moved far", fixture.WithFlags("-DSHIFT=256"), 0x110, false, "hooked", 0},
		{"B with its pointer moved", fixture.WithFlags("-DLAYOUT_B -DSHIFT=8"), 0x18, true, "hooked", 0},
		{"A without device()", fixture.Build{Hide: []string{getter("device")}, Strip: true}, 0x10, false, "device hooked", 0},
		{"A without size()", fixture.Build{Hide: []string{getter("size")}, Strip: true}, 0x10, false, "hooked", 0},
		{"A without buffer_type()", fixture.Build{Hide: []string{getter("buffer_type")}, Strip: true}, 0x10, false, "hooked", 0},
		{"A with all functions", fixture.WithFlags("-O2 -DIMPL"), 0x10, false, "", 0},
		{"B with all functions", fixture.WithFlags("-O2 -DIMPL -DLAYOUT_B"), 0x10, true, "", 0},
		{"A without page_size()", fixture.Build{Hide: []string{getter("page_size")}, Strip: true}, 0x10, false, "hooked", 0},
		{"B without allocator() and buffer_layout()", fixture.Build{Flags: fixture.LayoutB.Flags,
			Hide: []string{getter("allocator"), getter("buffer_layout"), getter("num_cores")}, Strip: true}, 0x10, true, "layout allocator hooked", 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			layout, err := open(t, fixture.StillOf(t, test.build)).Layout()
			if err != nil {
				t.Fatal(err)
			}
			if layout.Base != test.base || layout.Indirect != test.indirect {
				t.Errorf("base %#x, indirect %t; want %#x, %t", layout.Base, layout.Indirect, test.base, test.indirect)
			}
			var table []string
			for i, f := range layout.Fields {
				if want := fieldTable[i]; f.Name != want.name || f.Offset != want.offset || f.Size != want.size && f.Size != test.address {
					t.Errorf("field %+v, want %+v", f, want)
				}
				if f.Proof == Table {
					table = append(table, f.Name)
				}
			}
			if got := strings.Join(table, " "); got != test.table {
				t.Errorf("not decoded are %q, want %q", got, test.table)
			}
		})
	}
}

// Fields that are nowhere in the table are found where all of them are shown twice.
func TestUnknownLayoutsAreDecoded(t *testing.T) {
	for _, test := range []struct {
		build fixture.Build
		want  map[string]uint32
	}{
		{fixture.WithFlags("-O2 -DIMPL -DSWAP_SIZES"), map[string]uint32{"size": 0x48, "page_size": 0x08}},
		{fixture.WithFlags("-O2 -DIMPL -DLAYOUT_B -DSWAP_SIZES"), map[string]uint32{"size": 0x48, "page_size": 0x08}},
		{fixture.WithFlags("-O2 -DIMPL -DSWAP_FLAGS"), map[string]uint32{"status": 0x39, "hooked": 0x38}},
		{fixture.WithFlags("-O2 -DIMPL -DGROW=16"), map[string]uint32{"address": 0x50, "page_size": 0x58}},
		{fixture.WithFlags("-O1 -DIMPL -DLAYOUT_B -DGROW=24 -DSHIFT=8 -DSWAP_FLAGS -DSWAP_SIZES"),
			map[string]uint32{"status": 0x39, "hooked": 0x38, "address": 0x58, "page_size": 0x08, "size": 0x60}},
	} {
		t.Run(strings.Join(test.build.Flags, " "), func(t *testing.T) {
			t.Parallel()
			layout, err := open(t, fixture.StillOf(t, test.build)).Layout()
			if err != nil {
				t.Fatal(err)
			}
			for _, f := range fieldTable {
				want, moved := test.want[f.name]
				if !moved {
					want = f.offset
				}
				if got := layout.Offset(f.name); got != want {
					t.Errorf("%s at %#x, want %#x", f.name, got, want)
				}
			}
		})
	}
}

func TestLayoutIsRefusedWhereItIsNotProved(t *testing.T) {
	for _, test := range []struct {
		name  string
		build fixture.Build
		says  []string
	}{
		{"sizes swapped", fixture.WithFlags("-DSWAP_SIZES"), []string{"hooked", "page_size at 0x8", "size at 0x48"}},
		{"sizes swapped behind a pointer", fixture.WithFlags("-DLAYOUT_B -DSWAP_SIZES"), []string{"hooked", "page_size at 0x8", "size at 0x48"}},
		{"flags swapped", fixture.WithFlags("-DSWAP_FLAGS"), []string{"hooked", "status at 0x39"}},
		{"a field grown", fixture.WithFlags("-DGROW=8"), []string{"hooked", "address at 0x48", "page_size at 0x50"}},
		{"two pointers", fixture.WithFlags("-DLAYOUT_B -DTWO_POINTERS"), []string{"two pointers", "0x10", "0x18"}},
		{"a field beside the pointer", fixture.WithFlags("-DLAYOUT_B -DMIXED"), []string{"behind a pointer and some do not"}},
		{"no page_size() and num_pages()", fixture.Build{Hide: []string{getter("page_size"), getter("num_pages")}, Strip: true}, []string{"page_size"}},
		{"no address()", fixture.Build{Hide: []string{getter("address")}, Strip: true}, []string{"address"}},
		{"no is_allocated()", fixture.Build{Hide: []string{getter("is_allocated")}, Strip: true}, nil},
		{"no size() and num_pages()", fixture.Build{Hide: []string{getter("size"), getter("num_pages")}, Strip: true}, []string{"its size"}},
		{"no buffer_type() and is_dram()", fixture.Build{Hide: []string{getter("buffer_type"), getter("is_dram")}, Strip: true}, []string{"its type"}},
		{"no getters", fixture.Build{Hide: []string{"_ZNK2tt8tt_metal6Buffer*"}, Strip: true}, []string{"nothing shows"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			l := open(t, fixture.StillOf(t, test.build))
			layout, err := l.Layout()
			if layout != nil {
				t.Errorf("it found %+v", layout)
			}
			refused(t, err, append(test.says, l.Path, l.BuildID)...)
		})
	}
}

// The window that the kernel reads has to hold every field, and the masks of
// the BPF program must not move any.
func TestFieldsLieWhereTheProbesCanReadThem(t *testing.T) {
	for _, f := range fieldTable {
		if int(f.offset)+f.size > WindowSize || int(f.offset)%f.size != 0 {
			t.Errorf("%s at %#x, %d bytes", f.name, f.offset, f.size)
		}
	}
}

func TestDirectBase(t *testing.T) {
	at := func(shift uint32, names ...string) (list []Field) {
		for _, f := range fieldTable {
			for _, n := range names {
				if n == f.name {
					list = append(list, Field{f.name, f.offset + shift, f.size, Decoded})
				}
			}
		}
		return list
	}
	for _, test := range []struct {
		name   string
		fields []Field
		want   uint32
	}{
		{"none", nil, 0},
		{"as ever", at(0x10, "status", "device", "size"), 0x10},
		{"moved", at(0x58, "status", "address"), 0x58},
		{"one moved", append(at(0x10, "size"), Field{"address", 0x60, 4, Decoded}), 0x18},
		{"before the object", []Field{{"size", 0, 8, Decoded}}, 0},
	} {
		got := directBase(test.fields)
		for _, f := range test.fields {
			if got > f.Offset {
				t.Errorf("%s: base %#x lies behind %s at %#x", test.name, got, f.Name, f.Offset)
			}
		}
		if test.name != "none" && got != test.want {
			t.Errorf("%s: base %#x, want %#x", test.name, got, test.want)
		}
	}
}
