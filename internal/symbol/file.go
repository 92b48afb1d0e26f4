package symbol

import (
	"bufio"
	"cmp"
	"debug/dwarf"
	"debug/elf"
	"encoding/binary"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"

	"github.com/ianlancetaylor/demangle"

	"tt-memtrace/internal/elffile"
)

// Limits of what a worker opens and reads. Sizes are in bytes.
const (
	maxFiles = 4096
	// maxParsed limits what was parsed of all files together. Above it, the worker drops everything, and reads it again as needed.
	maxParsed  = 256 << 20
	maxSymbols = 32 << 20 // a symbol table
	maxIndex   = 64 << 20 // .eh_frame_hdr
	// maxDebug and maxInflated limit a file's debug information: all of it, and compressed sections inflated. Larger
	// debug information is not read.
	maxDebug    = 128 << 20
	maxInflated = 32 << 20
	maxName     = 4096 // a mangled name
	// maxFunction limits a demangled name to 2 to the power of this, characters.
	maxFunction = 12
)

// librarian answers questions in a worker. It reads files that any user may have made.
type librarian struct {
	files map[fileID]*file // open files; nil for one that cannot be read
	perfs map[uint32]*perfMap
	// parsed is the memory that the parsed parts of the files take, bytes.
	parsed uint64
}

type fileID struct{ dev, inode uint64 }

func newLibrarian() *librarian {
	return &librarian{files: map[fileID]*file{}, perfs: map[uint32]*perfMap{}}
}

// answer answers a question. If it cannot, also because a parser panics, it returns an answer that is not Known.
func (l *librarian) answer(q *question) (a answer) {
	defer func() {
		if recover() != nil {
			a = answer{} // debug/elf or debug/dwarf may panic on a file made for that
		}
	}()
	switch q.Kind {
	case askOpen:
		for _, m := range q.Files {
			l.open(q.PID, m)
		}
	case askPerf:
		a.Function, a.Later = l.perfName(q.PID, q.Address)
		a.Known = a.Function != ""
	case askPython:
		if f := l.open(q.PID, q.Files[0]); f != nil {
			a.Address, a.Known = f.pythonRuntime(q.Address)
		}
	case askRule, askName:
		if len(q.Files) != 1 {
			return a
		}
		f := l.open(q.PID, q.Files[0])
		if f == nil {
			return a
		}
		address, ok := f.virtual(q.Address)
		if !ok {
			return a
		}
		if q.Kind == askRule {
			a.Rule, a.Known = f.rule(address)
		} else {
			a.Known = true
			a.Function = f.function(address)
			a.File, a.Line = f.line(address)
		}
	}
	if l.parsed > maxParsed {
		l.forget()
	}
	return a
}

// open returns a file that a process maps, and opens it if it is not open yet. It returns nil if the file cannot be read.
func (l *librarian) open(pid uint32, m mappedFile) *file {
	id := fileID{m.Dev, m.Inode}
	if f, ok := l.files[id]; ok {
		return f
	}
	if len(l.files) >= maxFiles {
		for _, f := range l.files {
			f.close()
		}
		clear(l.files)
		l.parsed = 0
	}
	f, err := openFile(fmt.Sprintf("/proc/%d/root%s", pid, m.Path), m.Inode)
	if err != nil {
		f = nil
	} else {
		f.parsed = &l.parsed
	}
	l.files[id] = f
	return f
}

// forget drops what was parsed of all files.
func (l *librarian) forget() {
	for _, f := range l.files {
		if f != nil {
			f.forget()
		}
	}
	l.parsed = 0
}

// file is an ELF file with code.
type file struct {
	file io.Closer
	elf  *elf.File
	// parsed counts the memory that parsed parts take, bytes, for all files of the librarian.
	parsed *uint64
	// symbols, unwinder and dwarf are read when they are first needed. Then hasNames, hasTables and hasDebug are set, even if
	// the file lacks them. Symbols are functions, by address.
	symbols   []symbol
	unwinder  *unwinder
	dwarf     *dwarf.Data
	hasNames  bool
	hasTables bool
	hasDebug  bool
}

// symbol is a function in a symbol table.
type symbol struct {
	address, size uint64
	name          uint32 // its offset in the section of names
	table         uint32 // the index of the section of names
}

// openFile opens the file with this path and, unless it is 0, this inode number.
func openFile(name string, inode uint64) (*file, error) {
	f, st, err := elffile.OpenRegular(name)
	if err != nil {
		return nil, err
	}
	if inode != 0 && st.Ino != inode {
		err = fmt.Errorf("opening %s: the file was replaced after it was mapped", name)
	}
	var read *file
	if err == nil {
		read, err = newFile(io.NewSectionReader(f, 0, st.Size))
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("reading %s: %w", name, err)
	}
	read.file = f
	return read, nil
}

func newFile(r io.ReaderAt) (*file, error) {
	if err := elffile.CheckHeaders(r); err != nil {
		return nil, err
	}
	e, err := elf.NewFile(r)
	if err != nil {
		return nil, err
	}
	return &file{elf: e, parsed: new(uint64)}, nil
}

func (f *file) close() {
	if f != nil {
		f.file.Close()
	}
}

// forget drops what was parsed.
func (f *file) forget() {
	f.symbols, f.unwinder, f.dwarf = nil, nil, nil
	f.hasNames, f.hasTables, f.hasDebug = false, false, false
}

// virtual converts an offset in the file into the virtual address in its program headers; false if no code is there.
func (f *file) virtual(offset uint64) (uint64, bool) {
	for _, p := range f.elf.Progs {
		if p.Type == elf.PT_LOAD && p.Flags&elf.PF_X != 0 && offset >= p.Off && offset-p.Off < p.Filesz {
			return offset - p.Off + p.Vaddr, true
		}
	}
	return 0, false
}

// readSymbols reads the functions in .symtab and .dynsym, once.
func (f *file) readSymbols() {
	if f.hasNames {
		return
	}
	f.hasNames = true
	var list []symbol
	for _, kind := range []elf.SectionType{elf.SHT_SYMTAB, elf.SHT_DYNSYM} {
		table := f.elf.SectionByType(kind)
		if table == nil || table.Size > maxSymbols || int(table.Link) >= len(f.elf.Sections) || f.elf.Sections[table.Link].ReaderAt == nil {
			continue
		}
		r := bufio.NewReaderSize(table.Open(), 64<<10)
		var b [elf.Sym64Size]byte
		for n := table.Size / elf.Sym64Size; n > 0; n-- {
			if _, err := io.ReadFull(r, b[:]); err != nil {
				break
			}
			if elf.ST_TYPE(b[4]) != elf.STT_FUNC || binary.LittleEndian.Uint16(b[6:]) == 0 {
				continue
			}
			list = append(list, symbol{binary.LittleEndian.Uint64(b[8:]), binary.LittleEndian.Uint64(b[16:]), binary.LittleEndian.Uint32(b[:]), table.Link})
		}
	}
	slices.SortStableFunc(list, func(a, b symbol) int { return cmp.Compare(a.address, b.address) })
	f.symbols = list
	*f.parsed += uint64(cap(list)) * elf.Sym64Size
}

// function returns the demangled name of the function at an address, or "".
func (f *file) function(address uint64) string {
	f.readSymbols()
	list := f.symbols
	i, _ := slices.BinarySearchFunc(list, address, func(s symbol, a uint64) int {
		if s.address <= a {
			return -1
		}
		return 1
	})
	for n := i - 1; n >= 0 && n > i-8; n-- {
		if s := list[n]; address-s.address < s.size {
			var b [maxName]byte
			got, _ := f.elf.Sections[s.table].ReadAt(b[:], int64(s.name))
			if end := slices.Index(b[:got], 0); end > 0 {
				return demangle.Filter(string(b[:end]), demangle.NoParams, demangle.NoEnclosingParams, demangle.MaxLength(maxFunction))
			}
		}
	}
	return ""
}

// readDebug reads the debug information, once. If debug/dwarf needs more memory for it than the worker may have, the worker ends,
// and its parent asks no more about this file.
func (f *file) readDebug() {
	if f.hasDebug {
		return
	}
	f.hasDebug = true
	var size, inflated uint64
	for _, s := range f.elf.Sections {
		switch {
		case strings.HasPrefix(s.Name, ".zdebug_"):
			return // the headers do not have the inflated sizes of these
		case !strings.HasPrefix(s.Name, ".debug_"):
		case s.Flags&elf.SHF_COMPRESSED != 0:
			inflated += min(s.Size, maxDebug)
			fallthrough
		default:
			size += min(s.Size, maxDebug+1)
		}
	}
	if size == 0 || size > maxDebug || inflated > maxInflated {
		return
	}
	d, err := f.elf.DWARF()
	if err == nil {
		f.dwarf = d
		*f.parsed += size
	}
}

// line returns the source file and line of an address; "" and 0 if the file has no debug information about it.
func (f *file) line(address uint64) (string, uint32) {
	f.readDebug()
	d := f.dwarf
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
	return sourceName(unit, e.File.Name), uint32(e.Line)
}

// sourceName returns the name of a source file of a unit. In DWARF 5 the line table has the unit's own file by the name in the
// compiler's command line. debug/dwarf joins that to the compiler's directory even if it is absolute; this undoes it.
func sourceName(unit *dwarf.Entry, name string) string {
	own, _ := unit.Val(dwarf.AttrName).(string)
	dir, _ := unit.Val(dwarf.AttrCompDir).(string)
	if path.IsAbs(own) && name == path.Join(dir, own) {
		return own
	}
	return name
}
