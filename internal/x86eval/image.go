package x86eval

import (
	"cmp"
	"debug/elf"
	"encoding/binary"
	"fmt"
	"io"
	"slices"

	"tt-memtrace/internal/elffile"
)

// Image is an ELF file as the dynamic linker would have loaded it: a Memory of
// its segments in which pointers into the file itself are relocated. Pointers
// into other files are not resolved, and reading one is an error. The file is
// only ever read from.
type Image struct {
	base    uint64
	progs   []*elf.Prog
	relocs  []reloc  // by offset
	missing []string // symbols, and relocations that only a process can do
	slots   map[uint64]string
	symbols map[string]uint64
}

// reloc is the pointer at an offset or, from 1 on, which of the missing it would take to know it. The later
// in the file replaces another one at its offset.
type reloc struct {
	offset, value  uint64
	order, missing uint32
}

// Loads are the headers of its segments.
func (img *Image) Loads() (list []elf.ProgHeader) {
	for _, p := range img.progs {
		list = append(list, p.ProgHeader)
	}
	return list
}

// NewImage reads an ELF file, which stays the caller's, and has to stay open. The base is where its address zero lies:
// the start of a mapping minus the segment's address, rounded down to a page.
func NewImage(r io.ReaderAt, base uint64) (*Image, error) {
	f, err := elf.NewFile(r)
	if err != nil {
		return nil, fmt.Errorf("reading ELF headers: %w", err)
	}
	if f.Machine != elf.EM_X86_64 || f.Class != elf.ELFCLASS64 || f.Data != elf.ELFDATA2LSB {
		return nil, fmt.Errorf("reading ELF headers: %v %v is not x86-64", f.Class, f.Machine)
	}
	img := &Image{base: base, slots: map[uint64]string{}}
	for _, p := range f.Progs {
		if p.Type == elf.PT_LOAD {
			img.progs = append(img.progs, p)
		}
	}
	symbols, err := img.readSymbols(f)
	if err != nil {
		return nil, fmt.Errorf("reading symbols: %w", err)
	}
	for _, s := range f.Sections {
		if s.Flags&elf.SHF_ALLOC == 0 {
			continue
		}
		switch s.Type {
		case elf.SHT_RELA:
			err = img.addRela(s, symbols)
		case shtRelr:
			err = img.addRelr(s)
		}
		if err != nil {
			return nil, fmt.Errorf("reading relocations: %w", err)
		}
	}
	for i := range img.relocs {
		img.relocs[i].order = uint32(i)
	}
	slices.SortFunc(img.relocs, func(a, b reloc) int {
		return cmp.Or(cmp.Compare(a.offset, b.offset), cmp.Compare(a.order, b.order))
	})
	return img, nil
}

// shtRelr is the type of a section of packed relative relocations.
const shtRelr elf.SectionType = 19

// symbol is one of those that relocations name.
type symbol struct {
	name    string
	value   uint64
	defined bool // it has an address in this file
}

// readSymbols are those for the dynamic linker, in the order of the file.
func (img *Image) readSymbols(f *elf.File) (symbols []symbol, err error) {
	table := f.SectionByType(elf.SHT_DYNSYM)
	if table == nil {
		return nil, nil
	}
	symbols = make([]symbol, 0, min(table.Size/elf.Sym64Size, 1<<16)) // what it says it has, within reason
	img.symbols = make(map[string]uint64, cap(symbols))
	return symbols, elffile.EachSymbol(f, table, func(name string, s elf.Sym64) {
		one := symbol{name: name, value: s.Value}
		switch elf.ST_TYPE(s.Info) {
		case elf.STT_NOTYPE, elf.STT_FUNC, elf.STT_OBJECT: // not a function that is chosen at load time
			section := elf.SectionIndex(s.Shndx)
			one.defined = section != elf.SHN_UNDEF && section != elf.SHN_ABS
		}
		if symbols = append(symbols, one); one.defined {
			img.symbols[name] = img.base + s.Value
		}
	})
}

func (img *Image) addRela(s *elf.Section, symbols []symbol) error {
	data, err := s.Data()
	if err != nil {
		return err
	}
	const size = 24
	img.relocs = slices.Grow(img.relocs, len(data)/size)
	for ; len(data) >= size; data = data[size:] {
		info := binary.LittleEndian.Uint64(data[8:])
		addend := binary.LittleEndian.Uint64(data[16:])
		r := reloc{offset: binary.LittleEndian.Uint64(data)}
		var sym symbol
		if i := uint64(elf.R_SYM64(info)); i < uint64(len(symbols)) {
			sym = symbols[i]
		}
		switch typ := elf.R_X86_64(elf.R_TYPE64(info)); {
		case typ == elf.R_X86_64_NONE:
			continue
		case typ == elf.R_X86_64_RELATIVE:
			r.value = img.base + addend
		case typ == elf.R_X86_64_JMP_SLOT || typ == elf.R_X86_64_GLOB_DAT || typ == elf.R_X86_64_64:
			if typ != elf.R_X86_64_64 {
				addend = 0
				img.slots[img.base+r.offset] = sym.name
			}
			if sym.defined {
				r.value = img.base + sym.value + addend
			} else {
				r.missing = img.lacks(sym.name)
			}
		default:
			r.missing = img.lacks(typ.String())
		}
		img.relocs = append(img.relocs, r)
	}
	return nil
}

func (img *Image) lacks(what string) uint32 {
	img.missing = append(img.missing, what)
	return uint32(len(img.missing))
}

// addRelr reads packed relative relocations: an even entry is the offset of a
// pointer, an odd one a bitmap of which of the next 63 words are pointers too.
func (img *Image) addRelr(s *elf.Section) error {
	data, err := s.Data()
	if err != nil {
		return err
	}
	var next uint64
	add := func(offset uint64) error {
		var p [8]byte
		if err := img.raw(p[:], offset); err != nil {
			return err
		}
		value := img.base + binary.LittleEndian.Uint64(p[:])
		img.relocs = append(img.relocs, reloc{offset: offset, value: value})
		return nil
	}
	for ; len(data) >= 8; data = data[8:] {
		entry := binary.LittleEndian.Uint64(data)
		if entry&1 == 0 {
			if err := add(entry); err != nil {
				return err
			}
			next = entry + 8
			continue
		}
		for i, set := uint64(0), entry>>1; set != 0; i, set = i+1, set>>1 {
			if set&1 != 0 {
				if err := add(next + 8*i); err != nil {
					return err
				}
			}
		}
		next += 63 * 8
	}
	return nil
}

// Of is the image of a file with the same contents.
func (img *Image) Of(f *elf.File) *Image {
	same := *img
	same.progs = nil
	for _, p := range f.Progs {
		if p.Type == elf.PT_LOAD {
			same.progs = append(same.progs, p)
		}
	}
	return &same
}

// Contains reports whether addr lies in one of the segments.
func (img *Image) Contains(addr uint64) bool {
	at := addr - img.base
	for _, p := range img.progs {
		if at >= p.Vaddr && at-p.Vaddr < p.Memsz {
			return true
		}
	}
	return false
}

// raw reads the file's bytes at an address, without relocations.
func (img *Image) raw(p []byte, at uint64) error {
	for _, prog := range img.progs {
		off := at - prog.Vaddr
		if at < prog.Vaddr || off > prog.Memsz || uint64(len(p)) > prog.Memsz-off {
			continue
		}
		n := 0
		if off < prog.Filesz {
			n = int(min(uint64(len(p)), prog.Filesz-off))
			if got, err := prog.ReadAt(p[:n], int64(off)); got < n {
				return fmt.Errorf("reading segment: %w", err)
			}
		}
		clear(p[n:])
		return nil
	}
	return fmt.Errorf("reading image: %#x is not in it", img.base+at)
}

// ReadAt reads relocated memory at a loaded address.
func (img *Image) ReadAt(p []byte, addr uint64) error {
	at := addr - img.base
	if err := img.raw(p, at); err != nil {
		return err
	}
	end := at + uint64(len(p))
	const size = 8
	i, _ := slices.BinarySearchFunc(img.relocs, at, func(r reloc, at uint64) int {
		return cmp.Compare(r.offset+size-1, at)
	})
	for ; i < len(img.relocs) && img.relocs[i].offset < end; i++ {
		r := img.relocs[i]
		if r.missing > 0 {
			return fmt.Errorf("reading image: %#x needs %q, which is not in it", addr, img.missing[r.missing-1])
		}
		var word [size]byte
		binary.LittleEndian.PutUint64(word[:], r.value)
		for j, b := range word {
			if k := r.offset + uint64(j) - at; k < uint64(len(p)) {
				p[k] = b
			}
		}
	}
	return nil
}

// Symbol returns the address of a symbol that the file exports.
func (img *Image) Symbol(name string) (uint64, bool) {
	addr, ok := img.symbols[name]
	return addr, ok
}

// Slots are the addresses of the pointers through which the file's code calls
// functions by name, its own exported ones among them.
func (img *Image) Slots() map[uint64]string { return img.slots }

// SlotFunc resolves the slots of the file by name: to what hooks has, else to the
// file's own definition. The result is for WithSlots. It leaves slots of other
// files' functions alone, so that a live target's own binding is followed.
func (img *Image) SlotFunc(hooks func(symbol string) (Hook, bool)) SlotFunc {
	return func(slot uint64) (uint64, Hook, bool) {
		name, ok := img.slots[slot]
		if !ok {
			return 0, nil, false
		}
		if hooks != nil {
			if hook, ok := hooks(name); ok {
				return 0, hook, true
			}
		}
		target, ok := img.symbols[name]
		return target, nil, ok
	}
}
