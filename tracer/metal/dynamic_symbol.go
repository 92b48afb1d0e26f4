package metal

import (
	"bytes"
	"debug/elf"
	"fmt"
)

// maxDriver bounds the size of a driver library, bytes.
const maxDriver = 64 << 20

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
			return s.Value - loadAddress(e), nil
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
