package metal

import (
	"bytes"
	"debug/elf"
	"fmt"
	"sync"

	"tt-memtrace/tracer/proc"
)

// maxDriver bounds the size of a driver library, bytes.
const maxDriver = 64 << 20

// dynamicSymbols are those that were found: to read a C library for each process takes milliseconds.
var dynamicSymbols struct {
	sync.Mutex
	values map[dynamicSymbol]uint64
}

type dynamicSymbol struct {
	file proc.FileVersion
	name string
}

// maxDynamicSymbols are kept.
const maxDynamicSymbols = 1024

// DynamicSymbol is how far behind its beginning in memory a library or executable has something that it exports. It is
// known by a path, and opened by another name.
func DynamicSymbol(opened, path, name string) (value uint64, err error) {
	f, st, err := openRegular(opened)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	defer func() {
		if r := recover(); r != nil { // as in OpenLibrary
			err = fmt.Errorf("reading %s: damaged ELF file (%v)", path, r)
		}
	}()
	key := dynamicSymbol{proc.VersionOf(&st), name}
	dynamicSymbols.Lock()
	value, known := dynamicSymbols.values[key]
	dynamicSymbols.Unlock()
	if known {
		return value, nil
	}
	if st.Size > maxDriver {
		return 0, fmt.Errorf("reading %s: %d bytes, more than %d", path, st.Size, maxDriver)
	}
	b := make([]byte, st.Size)
	if _, err := f.ReadAt(b, 0); err != nil {
		return 0, fmt.Errorf("reading %s: %w", path, err)
	}
	e, err := elf.NewFile(bytes.NewReader(b))
	if err != nil {
		return 0, fmt.Errorf("reading %s: %w", path, err)
	}
	symbols, err := e.DynamicSymbols()
	if err != nil {
		return 0, fmt.Errorf("reading %s: %w", path, err)
	}
	for _, s := range symbols {
		if s.Name == name && s.Section != elf.SHN_UNDEF {
			value = s.Value - loadAddress(e)
			dynamicSymbols.Lock()
			defer dynamicSymbols.Unlock()
			if dynamicSymbols.values == nil || len(dynamicSymbols.values) >= maxDynamicSymbols {
				dynamicSymbols.values = map[dynamicSymbol]uint64{}
			}
			dynamicSymbols.values[key] = value
			return value, nil
		}
	}
	return 0, fmt.Errorf("reading %s: it lacks %s", path, name)
}

// loadAddress is the address that a file's beginning is linked for: not 0 in executables that are not
// position-independent.
func loadAddress(e *elf.File) uint64 {
	for _, p := range e.Progs {
		if p.Type == elf.PT_LOAD {
			return p.Vaddr - p.Off
		}
	}
	return 0
}
