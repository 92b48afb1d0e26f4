package elffile

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// headers are those of a file with these sections behind the empty one.
func headers(change func(*elf.Header64), sections ...elf.Section64) []byte {
	h := elf.Header64{
		Ident: [16]byte{0x7f, 'E', 'L', 'F', byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB), 1}, Phentsize: 56, Shoff: 64, Shentsize: 64,
		Shnum: uint16(len(sections) + 1), Shstrndx: 1,
	}
	if change != nil {
		change(&h)
	}
	var b bytes.Buffer
	_ = binary.Write(&b, binary.LittleEndian, h)
	_ = binary.Write(&b, binary.LittleEndian, append([]elf.Section64{{}}, sections...))
	return b.Bytes()
}

func TestCheckHeaders(t *testing.T) {
	names := elf.Section64{Type: uint32(elf.SHT_STRTAB), Size: 100}
	of := func(kind elf.SectionType, size uint64, link uint32) elf.Section64 {
		return elf.Section64{Type: uint32(kind), Size: size, Link: link}
	}
	packed := of(elf.SHT_STRTAB, 10, 0)
	packed.Flags = uint64(elf.SHF_COMPRESSED)
	for name, c := range map[string]struct {
		file []byte
		why  string
	}{
		"none":                        {nil, "bad magic"},
		"a text":                      {[]byte(strings.Repeat("hello ", 20)), "bad magic"},
		"of 32 bits":                  {headers(func(h *elf.Header64) { h.Ident[elf.EI_CLASS] = byte(elf.ELFCLASS32) }, names), "not for x86-64"},
		"big endian":                  {headers(func(h *elf.Header64) { h.Ident[elf.EI_DATA] = byte(elf.ELFDATA2MSB) }, names), "not for x86-64"},
		"headers beyond the end":      {headers(func(h *elf.Header64) { h.Shoff = 1 << 40 }, names), "EOF"},
		"headers before the start":    {headers(func(h *elf.Header64) { h.Shoff = 1 << 63 }, names), "a negative offset"},
		"headers of another size":     {headers(func(h *elf.Header64) { h.Shentsize = 1 }, names), "odd number or size"},
		"their number elsewhere":      {headers(func(h *elf.Header64) { h.Shnum = 0 }, names), "odd number or size"},
		"good":                        {headers(nil, names, of(elf.SHT_SYMTAB, maxSymbolTables, 1), of(elf.SHT_PROGBITS, 1<<40, 0)), ""},
		"without sections":            {headers(func(h *elf.Header64) { h.Shoff = 0 }), ""},
		"symbols without names":       {headers(nil, names, of(elf.SHT_SYMTAB, 24, 0)), "section 2 has no table of names"},
		"names beyond all":            {headers(nil, names, of(elf.SHT_DYNSYM, 24, 9)), "section 2 has no table of names"},
		"symbols of a large table":    {headers(nil, names, of(elf.SHT_SYMTAB, maxSymbolTables+1, 1)), "too large"},
		"of two together":             {headers(nil, names, of(elf.SHT_SYMTAB, maxSymbolTables, 1), of(elf.SHT_SYMTAB, 1, 1)), "too large"},
		"relocations":                 {headers(nil, names, of(elf.SHT_RELA, maxRelocations+1, 0)), "too large"},
		"names":                       {headers(nil, names, of(elf.SHT_STRTAB, maxStrings+1, 0)), "too large"},
		"compressed names":            {headers(nil, names, packed), "too large or compressed"},
		"large names of sections":     {headers(nil, of(elf.SHT_STRTAB, maxSectionNames+1, 0)), "names of its sections"},
		"which are counted elsewhere": {headers(func(h *elf.Header64) { h.Shstrndx = uint16(elf.SHN_XINDEX) }, of(elf.SHT_STRTAB, 1, 0)), ""},
	} {
		err := CheckHeaders(bytes.NewReader(c.file))
		if c.why == "" && err != nil || c.why != "" && (err == nil || !strings.Contains(err.Error(), c.why)) {
			t.Errorf("%s: %v, not %q", name, err, c.why)
		}
	}
}

func TestOpenRegular(t *testing.T) {
	dir := t.TempDir()
	file, fifo, link := filepath.Join(dir, "file"), filepath.Join(dir, "fifo"), filepath.Join(dir, "link")
	if err := os.WriteFile(file, []byte("abc"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mkfifo(fifo, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(file, link); err != nil {
		t.Fatal(err)
	}
	for path, ok := range map[string]bool{file: true, link: true, fifo: false, dir: false, "/dev/null": false, filepath.Join(dir, "none"): false} {
		f, st, err := OpenRegular(path)
		if (err == nil) != ok || ok && st.Size != 3 {
			t.Errorf("%s: %v", path, err)
		}
		if f != nil {
			f.Close()
		}
	}
}

// FuzzHeaders: what passes makes debug/elf neither panic nor take memory without bounds.
func FuzzHeaders(f *testing.F) {
	f.Add(headers(nil, elf.Section64{Type: uint32(elf.SHT_STRTAB), Size: 1}))
	f.Add(headers(nil, elf.Section64{Type: uint32(elf.SHT_STRTAB), Size: 10}, elf.Section64{Type: uint32(elf.SHT_SYMTAB), Size: 48, Link: 1}))
	f.Fuzz(func(t *testing.T, b []byte) {
		r := bytes.NewReader(b)
		if CheckHeaders(r) != nil {
			return
		}
		e, err := elf.NewFile(r)
		if err != nil {
			return
		}
		for _, s := range e.Sections {
			if s.Type == elf.SHT_SYMTAB || s.Type == elf.SHT_DYNSYM {
				_ = EachSymbol(e, s, func(string, elf.Sym64) {})
			}
		}
	})
}
