package symbol

import (
	"cmp"
	"debug/dwarf"
	"debug/elf"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"

	"github.com/ianlancetaylor/demangle"
	"golang.org/x/sys/unix"
)

// Files are the mapped files of all processes, each read once.
type Files struct {
	all map[fileID]*File
}

type fileID struct{ dev, inode uint64 }

// NewFiles keeps files that Close closes.
func NewFiles() *Files { return &Files{map[fileID]*File{}} }

// Close closes the files.
func (f *Files) Close() {
	for _, file := range f.all {
		if file != nil && file.file != nil {
			file.file.Close()
		}
	}
}

// maxFiles and maxBytes bound what is opened and read.
const (
	maxFiles = 4096
	maxBytes = 1 << 30
)

// open finds or opens a file that a process maps; nil where it is none that can be read.
func (f *Files) open(pid uint32, path string, dev, inode uint64) *File {
	id := fileID{dev, inode}
	if file, ok := f.all[id]; ok || len(f.all) >= maxFiles {
		return file
	}
	file, err := openFile(fmt.Sprintf("/proc/%d/root%s", pid, path), inode)
	if err != nil {
		file = nil
	} else {
		file.path = path
		go file.symbols()
	}
	f.all[id] = file
	return file
}

// File is an ELF file with code.
type File struct {
	path string
	file *os.File
	elf  *elf.File
	// symbols by address, and the text of their names.
	symbols  func() []symbol
	unwinder func() *unwinder
	dwarf    func() *dwarf.Data
}

type symbol struct {
	address, size uint64
	name          uint32
	text          *elf.Section
}

func openFile(name string, inode uint64) (*File, error) {
	fd, err := unix.Open(name, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, err
	}
	file := os.NewFile(uintptr(fd), name)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFREG || inode != 0 && st.Ino != inode {
		file.Close()
		return nil, fmt.Errorf("opening %s: it is another file by now", name)
	}
	e, err := elf.NewFile(file)
	if err != nil {
		file.Close()
		return nil, fmt.Errorf("reading %s: %w", name, err)
	}
	f := &File{path: name, file: file, elf: e}
	f.symbols = sync.OnceValue(f.readSymbols)
	f.unwinder = sync.OnceValue(func() *unwinder { return newUnwinder(e) })
	f.dwarf = sync.OnceValue(f.readDWARF)
	return f, nil
}

// virtual turns an offset in the file into an address of the file's own.
func (f *File) virtual(offset uint64) (uint64, bool) {
	for _, p := range f.elf.Progs {
		if p.Type == elf.PT_LOAD && p.Flags&elf.PF_X != 0 && offset >= p.Off && offset-p.Off < p.Filesz {
			return offset - p.Off + p.Vaddr, true
		}
	}
	return 0, false
}

// readSymbols lists the functions of .symtab or, where that was stripped, .dynsym.
func (f *File) readSymbols() []symbol {
	var list []symbol
	for _, kind := range []elf.SectionType{elf.SHT_SYMTAB, elf.SHT_DYNSYM} {
		table := f.elf.SectionByType(kind)
		if table == nil || table.Size > maxBytes || int(table.Link) >= len(f.elf.Sections) || f.elf.Class != elf.ELFCLASS64 {
			continue
		}
		b, err := io.ReadAll(io.NewSectionReader(table, 0, int64(table.Size)))
		if err != nil {
			continue
		}
		for ; len(b) >= elf.Sym64Size; b = b[elf.Sym64Size:] {
			if elf.ST_TYPE(b[4]) != elf.STT_FUNC || binary.LittleEndian.Uint16(b[6:]) == 0 {
				continue
			}
			list = append(list, symbol{binary.LittleEndian.Uint64(b[8:]), binary.LittleEndian.Uint64(b[16:]), binary.LittleEndian.Uint32(b), f.elf.Sections[table.Link]})
		}
	}
	slices.SortStableFunc(list, func(a, b symbol) int { return cmp.Compare(a.address, b.address) })
	return list
}

// function is the name of the function at an address, demangled, or empty.
func (f *File) function(address uint64) string {
	list := f.symbols()
	i, _ := slices.BinarySearchFunc(list, address, func(s symbol, a uint64) int {
		if s.address <= a {
			return -1
		}
		return 1
	})
	for n := i - 1; n >= 0 && n > i-8; n-- {
		if s := list[n]; address-s.address < s.size {
			var b [4096]byte
			got, _ := s.text.ReadAt(b[:], int64(s.name))
			if end := slices.Index(b[:got], 0); end > 0 {
				return demangle.Filter(string(b[:end]), demangle.NoParams, demangle.NoEnclosingParams)
			}
		}
	}
	return ""
}

// maxDebug is how large debug information may be to be read, bytes.
const maxDebug = 256 << 20

func (f *File) readDWARF() *dwarf.Data {
	var size uint64
	for _, s := range f.elf.Sections {
		if len(s.Name) > 6 && s.Name[:6] == ".debug" {
			size += s.Size
		}
	}
	if size == 0 || size > maxDebug {
		return nil
	}
	d, err := f.elf.DWARF()
	if err != nil {
		return nil
	}
	return d
}

// line is where in the source an address is, where the file has debug information.
func (f *File) line(address uint64) (string, uint32) {
	d := f.dwarf()
	if d == nil {
		return "", 0
	}
	unit, err := d.Reader().SeekPC(address)
	if err != nil {
		return "", 0
	}
	lines, err := d.LineReader(unit)
	if err != nil || lines == nil {
		return "", 0
	}
	var e dwarf.LineEntry
	if err := lines.SeekPC(address, &e); err != nil || e.File == nil || e.Line < 0 {
		return "", 0
	}
	return e.File.Name, uint32(e.Line)
}
