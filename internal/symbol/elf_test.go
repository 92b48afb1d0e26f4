package symbol

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// section is one of a file that a test makes. Its content ends with zeros up to size,
// which are not written.
type section struct {
	name    string
	kind    elf.SectionType
	flags   elf.SectionFlag
	address uint64
	content []byte
	size    uint64
	link    uint32
}

// codeAt is where the code of made files is, in the file and in memory.
const codeAt, codeSize = 0x1000, 0x1000

// makeELF writes a file with code and these sections, of which the first is number 1.
func makeELF(t testing.TB, sections ...section) string {
	t.Helper()
	names := []byte{0}
	headers := []elf.Section64{{}}
	path := filepath.Join(t.TempDir(), "lib.so")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	at := uint64(codeAt + codeSize)
	sections = append(sections, section{name: ".shstrtab", kind: elf.SHT_STRTAB})
	for i, s := range sections {
		h := elf.Section64{Name: uint32(len(names)), Type: uint32(s.kind), Flags: uint64(s.flags), Addr: s.address, Off: at, Link: s.link, Addralign: 1}
		names = append(append(names, s.name...), 0)
		if i == len(sections)-1 {
			s.content = names
		}
		h.Size = max(s.size, uint64(len(s.content)))
		if s.kind == elf.SHT_SYMTAB || s.kind == elf.SHT_DYNSYM {
			h.Entsize = elf.Sym64Size
		}
		if _, err := f.WriteAt(s.content, int64(at)); err != nil {
			t.Fatal(err)
		}
		at += h.Size
		headers = append(headers, h)
	}
	var b bytes.Buffer
	put := func(v any) {
		if err := binary.Write(&b, binary.LittleEndian, v); err != nil {
			t.Fatal(err)
		}
	}
	put(elf.Header64{
		Ident: [16]byte{0x7f, 'E', 'L', 'F', byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB), 1}, Type: uint16(elf.ET_DYN), Machine: uint16(elf.EM_X86_64), Version: 1,
		Phoff: 64, Shoff: at, Ehsize: 64, Phentsize: 56, Phnum: 1, Shentsize: 64, Shnum: uint16(len(headers)), Shstrndx: uint16(len(headers) - 1),
	})
	put(elf.Prog64{Type: uint32(elf.PT_LOAD), Flags: uint32(elf.PF_X | elf.PF_R), Off: codeAt, Vaddr: codeAt, Filesz: codeSize, Memsz: codeSize})
	if _, err := f.WriteAt(b.Bytes(), 0); err != nil {
		t.Fatal(err)
	}
	b.Reset()
	put(headers)
	if _, err := f.WriteAt(b.Bytes(), int64(at)); err != nil {
		t.Fatal(err)
	}
	return path
}

// function is a symbol of a made file.
type function struct {
	name          string
	address, size uint64
	kind          elf.SymType
}

// symtab are the sections of symbols, of which the first will be number at.
func symtab(kind elf.SectionType, at uint32, list ...function) []section {
	names, table := []byte{0}, make([]byte, elf.Sym64Size)
	for _, f := range list {
		var b bytes.Buffer
		_ = binary.Write(&b, binary.LittleEndian, elf.Sym64{Name: uint32(len(names)), Info: byte(f.kind), Shndx: 1, Value: f.address, Size: f.size})
		table = append(table, b.Bytes()...)
		names = append(append(names, f.name...), 0)
	}
	return []section{{name: ".symbols", kind: kind, content: table, link: at + 1}, {name: ".names", kind: elf.SHT_STRTAB, content: names}}
}

// mapped is a file as a process maps it that sees what the test sees.
func mapped(t testing.TB, path string) mappedFile {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		t.Fatal(err)
	}
	return mappedFile{path, st.Dev, st.Ino}
}

// about asks a librarian, in this process, about code of a file.
func about(t testing.TB, l *librarian, what questionKind, path string, offset uint64) answer {
	return l.answer(&question{Kind: what, PID: uint32(os.Getpid()), Files: []mappedFile{mapped(t, path)}, Address: offset})
}

func TestFunctionsOfAFile(t *testing.T) {
	list := []function{
		{"_ZN2tt8tt_metal6BufferD1Ev", 0x1000, 0x20, elf.STT_FUNC}, {"outer", 0x1100, 0x80, elf.STT_FUNC}, {"inner", 0x1110, 0x10, elf.STT_FUNC},
		{"data", 0x1200, 0x20, elf.STT_OBJECT}, {"empty", 0x1300, 0, elf.STT_FUNC},
	}
	for name, kind := range map[string]elf.SectionType{"with all symbols": elf.SHT_SYMTAB, "stripped": elf.SHT_DYNSYM} {
		path := makeELF(t, symtab(kind, 1, list...)...)
		l := newLibrarian()
		for offset, want := range map[uint64]string{
			0x1000: "tt::tt_metal::Buffer::~Buffer", 0x101f: "tt::tt_metal::Buffer::~Buffer", 0x1020: "", 0x1108: "outer", 0x1110: "inner", 0x111f: "inner",
			0x1120: "outer", 0x1180: "", 0x1210: "", 0x1300: "",
		} {
			if a := about(t, l, askName, path, offset); a.Function != want || !a.Known || a.Line != 0 {
				t.Errorf("%s: %#x is %+v, not %s", name, offset, a, want)
			}
		}
		for _, offset := range []uint64{0, codeAt - 1, codeAt + codeSize, 1 << 63} {
			if a := about(t, l, askName, path, offset); a.Known {
				t.Errorf("%s: %#x is no code, but %+v", name, offset, a)
			}
		}
	}
}

// Names of a hostile length are cut, however they expand.
func TestLongNames(t *testing.T) {
	bomb := "_Z1f" + "I1a" // f<a, S_S_...>: each substitution doubles
	for i := range 30 {
		bomb += "St4pairIS" + string("_0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"[i]) + "_S_E"
	}
	for _, name := range []string{bomb, "x" + string(bytes.Repeat([]byte("y"), 100_000))} {
		path := makeELF(t, symtab(elf.SHT_SYMTAB, 1, function{name, 0x1000, 0x20, elf.STT_FUNC})...)
		if a := about(t, newLibrarian(), askName, path, 0x1000); len(a.Function) > maxName {
			t.Errorf("%d characters", len(a.Function))
		}
	}
}

func TestPythonsRuntimeInAFile(t *testing.T) {
	path := makeELF(t, symtab(elf.SHT_DYNSYM, 1, function{"_PyRuntime2", 0x5000, 8, elf.STT_OBJECT}, function{"_PyRuntime", 0x6000, 8, elf.STT_FUNC}, function{"_PyRuntime", 0x7000, 8, elf.STT_OBJECT})...)
	if a := about(t, newLibrarian(), askPython, path, codeAt); !a.Known || a.Address != 0x7000-codeAt {
		t.Errorf("%+v", a)
	}
	if a := about(t, newLibrarian(), askPython, makeELF(t), codeAt); a.Known {
		t.Errorf("%+v", a)
	}
}

// FuzzELF gives a librarian files that are no good. What debug/dwarf makes of
// them is bounded by the worker alone, and not tried here.
func FuzzELF(f *testing.F) {
	for _, path := range []string{makeELF(f), makeELF(f, symtab(elf.SHT_SYMTAB, 1, function{"f", 0x1000, 0x20, elf.STT_FUNC})...),
		makeELF(f, section{name: ".eh_frame_hdr", kind: elf.SHT_PROGBITS, content: []byte{1, 0x1b, 3, 0x3b, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}},
			section{name: ".eh_frame", kind: elf.SHT_PROGBITS, content: make([]byte, 64)})} {
		b, err := os.ReadFile(path)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b, uint64(0x1000))
	}
	f.Fuzz(func(t *testing.T, b []byte, at uint64) {
		file, err := newFile(bytes.NewReader(b))
		if err != nil {
			return
		}
		file.virtual(at)
		file.rule(at)
		file.function(at)
		file.object("_PyRuntime")
		file.pythonRuntime(at)
	})
}
