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

	"tt-memtrace/elffile"
)

// Limits of what a worker opens and reads, bytes where they are of sizes.
const (
	maxFiles = 4096
	// maxParsed of all files together: then all of it is forgotten, to be read again.
	maxParsed  = 256 << 20
	maxSymbols = 32 << 20
	maxIndex   = 64 << 20
	// maxDebug is how large debug information may be to be read, as a whole, and
	// maxInflated what of it is compressed.
	maxDebug    = 128 << 20
	maxInflated = 32 << 20
	maxName     = 4096
	maxFunction = 12 // a power of 2: characters
)

// librarian answers the questions of a worker's. It reads, of files that anybody may have made.
type librarian struct {
	files map[fileID]*file
	perfs map[uint32]*perfMap
	// parsed is the memory that the files take, bytes.
	parsed uint64
}

type fileID struct{ dev, inode uint64 }

func newLibrarian() *librarian {
	return &librarian{files: map[fileID]*file{}, perfs: map[uint32]*perfMap{}}
}

// answer never fails worse than by not knowing.
func (l *librarian) answer(q *question) (a answer) {
	defer func() {
		if recover() != nil {
			a = answer{} // debug/elf and debug/dwarf are careful, but the file is anybody's
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

// open finds or opens a file that a process maps; nil where it is none that can be read.
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
	// parsed counts the bytes of memory that it takes.
	parsed *uint64
	// Read when they are asked for: functions by address, and the others.
	symbols   []symbol
	unwinder  *unwinder
	dwarf     *dwarf.Data
	hasNames  bool
	hasTables bool
	hasDebug  bool
}

type symbol struct {
	address, size uint64
	name          uint32
	table         uint32 // the section of the names
}

func openFile(name string, inode uint64) (*file, error) {
	f, st, err := elffile.OpenRegular(name)
	if err != nil {
		return nil, err
	}
	if inode != 0 && st.Ino != inode {
		err = fmt.Errorf("opening %s: it is another file by now", name)
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

func (f *file) forget() {
	f.symbols, f.unwinder, f.dwarf = nil, nil, nil
	f.hasNames, f.hasTables, f.hasDebug = false, false, false
}

// virtual turns an offset in the file into an address of the file's own.
func (f *file) virtual(offset uint64) (uint64, bool) {
	for _, p := range f.elf.Progs {
		if p.Type == elf.PT_LOAD && p.Flags&elf.PF_X != 0 && offset >= p.Off && offset-p.Off < p.Filesz {
			return offset - p.Off + p.Vaddr, true
		}
	}
	return 0, false
}

// readSymbols lists the functions of .symtab or, where that was stripped, .dynsym.
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

// function is the name of the function at an address, demangled, or empty.
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

// readDebug reads debug information. What of it makes debug/dwarf take more than the worker
// may have ends the worker, and then the file is not asked about again.
func (f *file) readDebug() {
	if f.hasDebug {
		return
	}
	f.hasDebug = true
	var size, inflated uint64
	for _, s := range f.elf.Sections {
		switch {
		case strings.HasPrefix(s.Name, ".zdebug_"):
			return // their sizes are only known when they are read
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

// line is where in the source an address is, where the file has debug information.
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

// sourceName is the name of a source file of a unit. In DWARF 5 a line table has the unit's own
// file under the name that the compiler was called with, and debug/dwarf puts the compiler's
// directory before it, also where it begins at the root.
func sourceName(unit *dwarf.Entry, name string) string {
	own, _ := unit.Val(dwarf.AttrName).(string)
	dir, _ := unit.Val(dwarf.AttrCompDir).(string)
	if path.IsAbs(own) && name == path.Join(dir, own) {
		return own
	}
	return name
}
