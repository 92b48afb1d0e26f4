package metal

import (
	"debug/elf"
	"fmt"
	"io"
	"os"
	"sync"

	"tt-memtrace/internal/elffile"
	"tt-memtrace/internal/proc"
)

// maxNames bounds the names of a C or driver library's symbols, bytes.
const maxNames = 64 << 20

// dynamicSymbols caches looked-up symbols, nil for missing ones: reading a C library for each process would take
// milliseconds.
var dynamicSymbols struct {
	sync.Mutex
	values map[dynamicSymbol]*linkedSymbol
}

// linkedSymbol is a symbol's link address, and its file's segments.
type linkedSymbol struct {
	value uint64
	loads []elf.ProgHeader
}

type dynamicSymbol struct {
	file proc.FileVersion
	name string
}

// maxDynamicSymbols bounds the cache.
const maxDynamicSymbols = 1024

// DynamicSymbol returns the address in a process of a symbol that a loaded library or executable, the open file f,
// exports.
func DynamicSymbol(f *os.File, m proc.Mapping, name string) (address uint64, err error) {
	path := m.Path
	st, err := statRegular(f, path)
	if err != nil {
		return 0, err
	}
	defer func() {
		if r := recover(); r != nil { // as in OpenLibrary
			err = fmt.Errorf("reading %s: damaged ELF file (%v)", path, r)
		}
	}()
	key := dynamicSymbol{proc.VersionOf(&st), name}
	dynamicSymbols.Lock()
	found, known := dynamicSymbols.values[key]
	dynamicSymbols.Unlock()
	if !known {
		if found, err = exported(f, st.Size, name); err != nil {
			return 0, fmt.Errorf("reading %s: %w", path, err)
		}
		dynamicSymbols.Lock()
		if dynamicSymbols.values == nil || len(dynamicSymbols.values) >= maxDynamicSymbols {
			dynamicSymbols.values = map[dynamicSymbol]*linkedSymbol{}
		}
		dynamicSymbols.values[key] = found
		dynamicSymbols.Unlock()
	}
	if found == nil {
		return 0, fmt.Errorf("reading %s: it lacks %s", path, name)
	}
	return found.value + loadedAt(found.loads, m), nil
}

// exported returns a symbol that a file defines, or nil.
func exported(f io.ReaderAt, size int64, name string) (found *linkedSymbol, err error) {
	file := io.NewSectionReader(f, 0, size)
	if err := elffile.CheckHeaders(file); err != nil {
		return nil, err
	}
	e, err := elf.NewFile(file)
	if err != nil {
		return nil, err
	}
	table := e.SectionByType(elf.SHT_DYNSYM)
	if table == nil {
		return nil, nil
	}
	if names := e.Sections[table.Link].Size; names > maxNames { // that there is such a section was checked
		return nil, fmt.Errorf("the names of its symbols take %d bytes, more than %d", names, maxNames)
	}
	err = elffile.EachSymbol(e, table, func(n string, s elf.Sym64) {
		if found == nil && n == name && elf.SectionIndex(s.Shndx) != elf.SHN_UNDEF {
			found = &linkedSymbol{s.Value, elffile.Loads(e)}
		}
	})
	return found, err
}
