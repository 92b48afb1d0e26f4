// Package metal reads one file of the TT-Metal runtime: its symbols, probe points, object layouts and getters. It
// knows nothing of processes.
package metal

import (
	"bytes"
	"debug/elf"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"tt-memtrace/internal/elffile"
	"tt-memtrace/internal/proc"
	"tt-memtrace/internal/x86eval"
)

// ErrUnsupported is wrapped by errors that say why a library is not traced.
var ErrUnsupported = errors.New("library not supported")

// maxLibrary bounds the size of a file that claims to be the runtime, bytes. Most of a large one is debug
// information; what is read of it has bounds of its own.
const maxLibrary = 64 << 30

// Library is one build of the runtime's library.
type Library struct {
	// Path as it was opened.
	Path string
	ID   proc.FileID
	// BuildID is the GNU build-id in hex, or empty.
	BuildID string
	// Release is the version of the Python package around it, or empty.
	Release string

	// Beside, if set, opens a file at a path beside the library's, in another process's root.
	Beside func(path string) (*os.File, error)

	file *os.File
	// code is what Code reads: the file.
	code   io.ReaderAt
	blocks *fileBlocks // of that file
	// standardReads, unless nil, notes what is read of the C++ library, by path.
	standardReads func(f *os.File, path string) io.ReaderAt
	elf           *elf.File
	symbols       map[string]elfSymbol
	// prefixed are the symbols by the prefixes of the probe table.
	prefixed map[string][]elfSymbol
	segments []elf.ProgHeader
	image    func() (*x86eval.Image, error)
	// Computed on first use: functions maps addresses to names, allocatorSet is where an allocator keeps its set of
	// buffers, blockArrays where a list of blocks keeps these, uniqueID where a buffer keeps its number, and readers
	// maps a kernel class's vtable to the function that reads the kernel's binaries.
	functions    func() map[uint64]string
	allocatorSet func() (uint64, error)
	blockArrays  func() (BlockArrays, error)
	uniqueID     func() (UniqueID, error)
	// unknownMemory are its functions that may hand out memory and are not known.
	unknownMemory func() []string
	readers       func() map[uint64]string
	configRing    onceConfigRing
	// reservedSizes is how it computes reserved sizes.
	reservedSizes onceReservedSizes
	perCore       oncePerCore
	persistentL1  oncePersistentL1
	// layout is that of its buffers.
	layout func() (*Layout, error)
	// standardImage is the C++ library that was last read for it.
	standardImage atomic.Pointer[standardLibrary]
}

// elfSymbol is the part of an elf.Symbol that is kept, because there are many.
type elfSymbol struct {
	Name        string
	Value, Size uint64
	Info        byte
}

// OpenLibrary reads the library's headers and the symbols that tracing needs. The error wraps ErrUnsupported if the
// file cannot be traced. The file stays open until Close.
func OpenLibrary(path string) (lib *Library, err error) {
	if lib, err = OpenFile(path, path); err == nil {
		lib.Release = proc.Release("", path)
	}
	return lib, err
}

// OpenFile does what OpenLibrary does, for a file that is opened under another name than its path. It does not look
// for the release.
func OpenFile(name, path string) (lib *Library, err error) {
	f, st, err := openRegular(name)
	if err != nil {
		return nil, err
	}
	defer func() {
		// debug/elf is careful, but the file is anybody's.
		if r := recover(); r != nil {
			err = fmt.Errorf("reading %s: damaged ELF file (%v): %w", path, r, ErrUnsupported)
		}
		if err != nil {
			f.Close()
		}
	}()
	if err := elffile.CheckHeaders(io.NewSectionReader(f, 0, st.Size)); err != nil {
		return nil, fmt.Errorf("reading %s: %w: %w", path, err, ErrUnsupported)
	}
	e, err := elf.NewFile(io.NewSectionReader(f, 0, st.Size))
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w: %w", path, err, ErrUnsupported)
	}
	if e.Machine != elf.EM_X86_64 || e.Class != elf.ELFCLASS64 {
		return nil, fmt.Errorf("reading %s: made for %v, not for x86-64: %w", path, e.Machine, ErrUnsupported)
	}
	blocks := &fileBlocks{file: f}
	image := sync.OnceValues(func() (*x86eval.Image, error) { return x86eval.NewImage(blocks, 0) })
	l := &Library{Path: path, image: image, ID: proc.FileID{Device: st.Dev, Inode: st.Ino}, file: f, code: f, blocks: blocks, elf: e,
		symbols: map[string]elfSymbol{}, prefixed: map[string][]elfSymbol{}}
	l.functions, l.allocatorSet, l.readers = sync.OnceValue(l.functionNames), sync.OnceValues(l.setOffset), sync.OnceValue(l.binaryReaders)
	l.layout, l.blockArrays = sync.OnceValues(l.findLayout), sync.OnceValues(l.findBlockArrays)
	l.uniqueID = sync.OnceValues(l.findUniqueID)
	l.unknownMemory = sync.OnceValue(l.findUnknownMemory)
	l.segments = elffile.Loads(e)
	if err := l.readSymbols(); err != nil {
		return nil, err
	}
	l.findHidden()
	l.BuildID = buildID(e)
	return l, nil
}

// openRegular opens a file that may be the runtime, if it is a regular file.
func openRegular(path string) (*os.File, unix.Stat_t, error) {
	var st unix.Stat_t
	// O_NONBLOCK, so that a FIFO in the library's place does not block.
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, st, &os.PathError{Op: "opening library", Path: path, Err: err}
	}
	f := os.NewFile(uintptr(fd), path)
	if st, err = statRegular(f, path); err != nil {
		f.Close()
		return nil, st, err
	}
	return f, st, nil
}

// statRegular returns the stat of an open file, which must be regular. path is its name in errors.
func statRegular(f *os.File, path string) (st unix.Stat_t, err error) {
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return st, &os.PathError{Op: "reading library", Path: path, Err: err}
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		err = fmt.Errorf("reading %s: not a regular file: %w", path, ErrUnsupported)
	} else if st.Size > maxLibrary {
		err = fmt.Errorf("reading %s: %d bytes, more than %d: %w", path, st.Size, int64(maxLibrary), ErrUnsupported)
	}
	return st, err
}

// Image returns the library as if loaded at address 0, for evaluating its code.
func (l *Library) Image() (*x86eval.Image, error) { return l.image() }

// Close releases the file.
func (l *Library) Close() error { return l.file.Close() }

// readSymbols keeps the defined functions in the runtime's own namespace. .symtab has everything, .dynsym survives a
// strip.
func (l *Library) readSymbols() error {
	found := false
	prefixes := pointPrefixes()
	for _, kind := range []elf.SectionType{elf.SHT_SYMTAB, elf.SHT_DYNSYM} {
		table := l.elf.SectionByType(kind)
		if table == nil {
			continue
		}
		if len(l.symbols) == 0 {
			l.symbols = make(map[string]elfSymbol, min(table.Size/elf.Sym64Size/5, 1<<16)) // a guess
		}
		err := elffile.EachSymbol(l.elf, table, func(name string, s elf.Sym64) {
			if elf.SectionIndex(s.Shndx) == elf.SHN_UNDEF || s.Value == 0 {
				return
			}
			if strings.Contains(name, nameSpace) {
				found = true
			} else if !strings.HasPrefix(name, ofCluster) && !strings.HasPrefix(name, getRiscBinary) && !strings.HasPrefix(name, ofAssert) {
				return // only these are looked at
			}
			if _, ok := l.symbols[name]; ok {
				return
			}
			one := elfSymbol{strings.Clone(name), s.Value, s.Size, s.Info} // one of a few
			l.symbols[one.Name] = one
			for _, p := range prefixes {
				if strings.HasPrefix(name, p) {
					l.prefixed[p] = append(l.prefixed[p], one)
				}
			}
		})
		if err != nil {
			return fmt.Errorf("reading symbols of %s: %w: %w", l.Path, err, ErrUnsupported)
		}
	}
	if !found {
		return fmt.Errorf("reading %s: it is not libtt_metal.so, or lacks its symbols: it defines no function of tt::tt_metal: %w", l.Path, ErrUnsupported)
	}
	return nil
}

// KnowsRuntime reports, within a few milliseconds, whether a file's dynamic symbols contain a name that makes it the
// runtime. A library that merely uses the runtime is as large and is mapped first; reading all of it would delay
// reading the runtime.
func KnowsRuntime(path string) bool { return knows(path, RuntimeSymbols) }

// KnowsThrows reports, as quickly, whether they contain a function by which the runtime throws.
func KnowsThrows(path string) bool { return knows(path, []string{throwImplementation}) }

// knows reports whether a file's dynamic symbols contain one of these names, or one that begins so.
func knows(path string, symbols []string) (knows bool) {
	// If this fails, reading the file will say why.
	defer func() {
		if recover() != nil {
			knows = true
		}
	}()
	f, st, err := openRegular(path)
	if err != nil {
		return true
	}
	defer f.Close()
	file := io.NewSectionReader(f, 0, st.Size)
	if elffile.CheckHeaders(file) != nil {
		return true
	}
	e, err := elf.NewFile(file)
	if err != nil {
		return true
	}
	names := e.Section(".dynstr")
	if names == nil || names.Type != elf.SHT_STRTAB || names.FileSize > maxLibrary {
		return true
	}
	const most = 64 << 20
	b := make([]byte, min(names.FileSize, most))
	if _, err := names.ReadAt(b, 0); err != nil || names.FileSize > most {
		return true
	}
	return namesAny(b, symbols)
}

// namesRuntime reports whether names contain one that makes a file the runtime.
func namesRuntime(names []byte) bool { return namesAny(names, RuntimeSymbols) }

// namesAny reports whether names contain one of the symbols.
func namesAny(names []byte, symbols []string) bool {
	return slices.ContainsFunc(symbols, func(s string) bool { return containsName(names, s) })
}

// containsName is bytes.Contains for a mangled name. It searches from the name's rarest byte, because all names begin
// alike.
func containsName(names []byte, name string) bool {
	var counts [256]int
	for _, c := range names[:min(len(names), 64<<10)] {
		counts[c]++
	}
	rarest := 0
	for i := range name {
		if counts[name[i]] < counts[name[rarest]] {
			rarest = i
		}
	}
	begin, end := []byte(name[:rarest]), []byte(name[rarest:])
	for at := 0; ; at++ {
		i := bytes.Index(names[at:], end)
		if i < 0 {
			return false
		}
		if at += i; bytes.HasSuffix(names[:at], begin) {
			return true
		}
	}
}

// Defines reports whether the library has the named symbol itself.
func (l *Library) Defines(name string) bool {
	_, ok := l.symbols[name]
	return ok
}

// Lookup returns the address of a symbol, with the library loaded at address 0.
func (l *Library) Lookup(name string) (address uint64, ok bool) {
	s, ok := l.symbols[name]
	return s.Value, ok
}

// Functions returns the names of the library's functions, by address.
func (l *Library) Functions() map[uint64]string { return l.functions() }

// AllocatorSet returns the offset of an allocator's set of buffers.
func (l *Library) AllocatorSet() (uint64, error) { return l.allocatorSet() }

// BinaryReaders returns the functions that read a kernel's binaries, by the vptr of the kernel's class.
func (l *Library) BinaryReaders() map[uint64]string { return l.readers() }

// LoadedAt returns the load bias: the distance from the library's link addresses to where a process has it.
func (l *Library) LoadedAt(m proc.Mapping) uint64 { return loadedAt(l.segments, m) }

// LoadedAlike reports whether two mapped pieces belong to the same load of this library. Several segments can have
// code, each at another distance in memory than in the file. Data segments can be executable too, in a process with
// READ_IMPLIES_EXEC.
func (l *Library) LoadedAlike(m, o proc.Mapping) bool {
	at := mayBeLoadedAt(l.segments, m)
	return slices.ContainsFunc(mayBeLoadedAt(l.segments, o), func(a uint64) bool { return slices.Contains(at, a) })
}

// mayBeLoadedAt returns the possible results of loadedAt for a piece of any segment: two segments can share a page of
// the file.
func mayBeLoadedAt(loads []elf.ProgHeader, m proc.Mapping) []uint64 {
	list := []uint64{loadedAt(loads, m)}
	for _, p := range loads {
		if offset := m.Offset(); offset >= p.Off&^(proc.PageBytes-1) && offset < p.Off+p.Filesz {
			list = append(list, m.Region.Start-(offset-p.Off+p.Vaddr))
		}
	}
	return list
}

func loadedAt(loads []elf.ProgHeader, m proc.Mapping) uint64 {
	address, ok := elffile.AddressOf(loads, m.Offset())
	if !ok { // its pages are executable but have no code
		return m.Base
	}
	return m.Region.Start - address
}

// ReadCode fills p with code at an address from the file, if all of it is code.
func (l *Library) ReadCode(p []byte, address uint64) bool {
	offset, ok := l.fileOffset(address)
	if !ok {
		return false
	}
	_, err := l.blocks.ReadAt(p, int64(offset))
	return err == nil
}

// First returns the first name that the library defines or, if it defines none, the first name.
func (l *Library) First(names []string) string {
	if i := slices.IndexFunc(names, l.Defines); i >= 0 {
		return names[i]
	}
	return names[0]
}

// IsRuntime reports whether this is the file with the runtime's code, and not
// one that only uses it.
func (l *Library) IsRuntime() bool { return slices.ContainsFunc(RuntimeSymbols, l.Defines) }

// match lists the defined symbols that a row of the table names: all with all, otherwise those of the first name that
// is defined.
func (l *Library) match(names []string, all bool) []elfSymbol {
	var found []elfSymbol
	for _, name := range names {
		if prefix, ok := strings.CutSuffix(name, "*"); ok {
			for _, s := range l.prefixed[prefix] {
				// A name with a dot is a part that the compiler split off, like f.cold.
				if !strings.Contains(s.Name, ".") && elf.ST_TYPE(s.Info) == elf.STT_FUNC && s.Size > 0 {
					found = append(found, s)
				}
			}
		} else if s, ok := l.symbols[name]; ok && elf.ST_TYPE(s.Info) == elf.STT_FUNC {
			found = append(found, s)
		}
		if len(found) > 0 && !all {
			break
		}
	}
	return found
}

// fileOffset converts a virtual address of the library to a file offset.
func (l *Library) fileOffset(address uint64) (uint64, bool) {
	for _, p := range l.segments {
		if p.Flags&elf.PF_X != 0 && address >= p.Vaddr && address-p.Vaddr < p.Filesz {
			return address - p.Vaddr + p.Off, true
		}
	}
	return 0, false
}

// Code reads up to n bytes of code at a virtual address.
func (l *Library) Code(address uint64, n int) ([]byte, error) {
	offset, ok := l.fileOffset(address)
	if !ok {
		return nil, fmt.Errorf("reading code at %#x: not in an executable segment", address)
	}
	b := make([]byte, n)
	read, err := l.code.ReadAt(b, int64(offset))
	if read == 0 && err != nil {
		return nil, fmt.Errorf("reading code at %#x: %w", address, err)
	}
	return b[:read], nil
}

func buildID(e *elf.File) string {
	s := e.Section(".note.gnu.build-id")
	if s == nil || s.Size > 1024 {
		return ""
	}
	b, err := s.Data()
	if err != nil || len(b) < 16 {
		return ""
	}
	// A note: sizes of name and description, type, "GNU\0", then the description.
	n := int(e.ByteOrder.Uint32(b[4:]))
	if e.ByteOrder.Uint32(b) != 4 || n > len(b)-16 {
		return ""
	}
	return hex.EncodeToString(b[16 : 16+n])
}

// ProcName returns a path to the open file that works in any mount namespace.
func (l *Library) ProcName() string { return fmt.Sprintf("/proc/self/fd/%d", l.file.Fd()) }

// MapPage maps the page at a file offset, read-only.
func (l *Library) MapPage(offset uint64) ([]byte, error) {
	size := os.Getpagesize()
	page, err := unix.Mmap(int(l.file.Fd()), int64(offset)&^int64(size-1), size, unix.PROT_READ, unix.MAP_PRIVATE)
	if err != nil {
		return nil, fmt.Errorf("mapping a page of %s: %w", l.Path, err)
	}
	return page, nil
}
