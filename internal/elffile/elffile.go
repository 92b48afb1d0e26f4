// Package elffile reads untrusted ELF files: it bounds how much of them is read into
// memory, and opens only regular files.
package elffile

import (
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A library is anybody's file, and can claim to hold far more than it does: in
// holes, in compressed sections, in tables that overlap. These bound what is
// read of it into memory; each is several times what a large build needs.
const (
	maxSymbolTables = 32 << 20  // bytes
	maxRelocations  = 32 << 20  // bytes
	maxPacked       = 256 << 10 // bytes; each describes up to eight relocations
	maxStrings      = 256 << 20 // bytes, of one table and of all names together
	maxSectionNames = 4 << 20   // bytes
)

// CheckHeaders refuses what would make debug/elf use memory without bounds.
func CheckHeaders(r io.ReaderAt) error {
	var ident [elf.EI_NIDENT]byte
	if err := ReadAt(r, 0, &ident); err != nil || string(ident[:4]) != elf.ELFMAG {
		return errors.New("not an ELF file: bad magic number")
	}
	class, order := elf.Class(ident[elf.EI_CLASS]), elf.Data(ident[elf.EI_DATA])
	if class != elf.ELFCLASS64 || order != elf.ELFDATA2LSB {
		return fmt.Errorf("made for a machine with %v and %v, not for x86-64", class, order)
	}
	var h elf.Header64
	if err := ReadAt(r, 0, &h); err != nil {
		return err
	}
	if h.Shoff != 0 && (h.Shnum == 0 || int(h.Shentsize) != binary.Size(elf.Section64{})) ||
		h.Phnum != 0 && int(h.Phentsize) != binary.Size(elf.Prog64{}) {
		return errors.New("damaged ELF file: headers of an odd number or size")
	}
	if h.Shoff == 0 {
		return nil
	}
	sections := make([]elf.Section64, h.Shnum)
	if err := ReadAt(r, int64(h.Shoff), sections); err != nil {
		return err
	}
	names := int(h.Shstrndx)
	if elf.SectionIndex(names) == elf.SHN_XINDEX {
		names = int(sections[0].Link)
	}
	left := map[elf.SectionType]uint64{elf.SHT_SYMTAB: maxSymbolTables, elf.SHT_RELA: maxRelocations, shtRelr: maxPacked}
	for i, s := range sections {
		kind := elf.SectionType(s.Type)
		switch kind {
		case elf.SHT_NULL, elf.SHT_PROGBITS, elf.SHT_NOBITS:
			continue // code and data: not read as a whole
		case elf.SHT_SYMTAB, elf.SHT_DYNSYM, elf.SHT_GNU_VERNEED, elf.SHT_GNU_VERDEF:
			if int(s.Link) >= len(sections) || elf.SectionType(sections[s.Link].Type) != elf.SHT_STRTAB {
				return fmt.Errorf("damaged ELF file: section %d has no table of names", i)
			}
		}
		if i == names && s.Size > maxSectionNames {
			return fmt.Errorf("the names of its sections take %d bytes", s.Size)
		}
		bound, counted := left[kind]
		if !counted {
			bound = maxStrings
		}
		if s.Size > bound || elf.SectionFlag(s.Flags)&elf.SHF_COMPRESSED != 0 {
			return fmt.Errorf("its section %d (%v, %d bytes) is too large or compressed", i, kind, s.Size)
		}
		if counted {
			left[kind] -= s.Size
		}
	}
	return nil
}

// Loads are the segments of a file that are loaded into memory.
func Loads(f *elf.File) (list []elf.ProgHeader) {
	for _, p := range f.Progs {
		if p.Type == elf.PT_LOAD {
			list = append(list, p.ProgHeader)
		}
	}
	return list
}

// AddressOf is the address that a byte of a file's code is linked for, by its offset in the file. False where that is not in a
// segment with code, or in the rest of its first page.
func AddressOf(loads []elf.ProgHeader, offset uint64) (uint64, bool) {
	for _, p := range loads {
		if p.Flags&elf.PF_X != 0 && offset >= p.Off&^4095 && offset < p.Off+p.Filesz {
			return offset - p.Off + p.Vaddr, true
		}
	}
	return 0, false
}

// shtRelr is the type of a section of packed relative relocations.
const shtRelr elf.SectionType = 19

// ReadAt reads a value of fixed size, in little endian.
func ReadAt(r io.ReaderAt, offset int64, into any) error {
	if offset < 0 {
		return errors.New("damaged ELF file: a negative offset of a header")
	}
	return binary.Read(io.NewSectionReader(r, offset, int64(binary.Size(into))), binary.LittleEndian, into)
}

// EachSymbol reads a symbol table, its first entry, which is none, included. A name is a part of all of them, which
// whoever keeps it keeps; it is empty where it is damaged.
func EachSymbol(f *elf.File, table *elf.Section, see func(name string, s elf.Sym64)) error {
	data, err := table.Data()
	if err != nil {
		return err
	}
	if uint64(table.Link) >= uint64(len(f.Sections)) {
		return errors.New("damaged ELF file: symbols without names")
	}
	bytes, err := f.Sections[table.Link].Data()
	if err != nil {
		return err
	}
	names := unsafe.String(unsafe.SliceData(bytes), len(bytes)) // they are this function's own, and stay as they are
	const size = elf.Sym64Size
	if len(data)%size != 0 {
		return errors.New("damaged ELF file: a truncated symbol")
	}
	total := 0
	for ; len(data) > 0; data = data[size:] {
		s := elf.Sym64{
			Name: binary.LittleEndian.Uint32(data), Info: data[4], Other: data[5],
			Shndx: binary.LittleEndian.Uint16(data[6:]),
			Value: binary.LittleEndian.Uint64(data[8:]), Size: binary.LittleEndian.Uint64(data[16:]),
		}
		name := ""
		if uint64(s.Name) < uint64(len(names)) {
			name = names[s.Name:]
			name = name[:max(0, strings.IndexByte(name, 0))]
		}
		if total += len(name); total > maxStrings {
			return errors.New("the names of its symbols are too long")
		}
		see(name, s)
	}
	return nil
}

// OpenRegular opens a file to read, if it is a regular one. A FIFO or a device in its
// place is not waited for.
func OpenRegular(name string) (*os.File, unix.Stat_t, error) {
	var st unix.Stat_t
	fd, err := unix.Open(name, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, st, &os.PathError{Op: "open", Path: name, Err: err}
	}
	f := os.NewFile(uintptr(fd), name)
	if err = unix.Fstat(fd, &st); err == nil && st.Mode&unix.S_IFMT != unix.S_IFREG {
		err = errors.New("not a regular file")
	}
	if err != nil {
		f.Close()
		return nil, st, &os.PathError{Op: "open", Path: name, Err: err}
	}
	return f, st, nil
}
