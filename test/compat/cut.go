package compat

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"

	"tt-memtrace/internal/metal"
)

// kept are the symbols that stay in a cut library beside those that its report
// rests on: those of the classes that are, or could be, probed or asked.
var kept = regexp.MustCompile(`^_ZT?V?NK?2tt(7Cluster|8tt_metal(6Buffer|10BufferImpl|12GraphTracker|9Inspector|9Allocator|13AllocatorImpl|` +
	`9allocator11FreeListOpt|11BankManager|17PersistentL1Arena|21WorkerConfigBufferMgr|6Device|12MetalContext|14HWCommandQueue|13slow_dispatch|` +
	`6detail11ProgramImpl|11distributed(10MeshDevice|14MeshDeviceImpl|14MeshDeviceView|18MeshDeviceViewImpl|19MeshCoordinateRange|16MeshWorkloadImpl|18FDMeshCommandQueue|19EnqueueMeshWorkload)))` +
	`([0-9CDE].{0,120})?$|` +
	`^_ZNK?2tt8tt_metal6Kernel(34process_scratchpad_binding_handles.*|24common_runtime_args_dataEv|18logical_corerangesEv)$|` +
	`^_ZN2tt8tt_metal3[23](push|pop)_corruptible_allocation_scopeE[^$]*$`)

// Cut keeps of a library what metal.Examine rests on: headers, the code and
// data that it reads, and the symbols and relocations that it looks up.
func Cut(path string) (*Sparse, error) {
	report, extents, err := metal.ExamineExtents(path)
	if err != nil {
		return nil, err
	}
	report.Library.Close()
	return CutParts(path, extents)
}

// CutParts keeps of a library these parts, and what Cut keeps beside them.
func CutParts(path string, extents []metal.Extent) (*Sparse, error) {
	file, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	e, err := elf.NewFile(bytes.NewReader(file))
	if err != nil {
		return nil, fmt.Errorf("cutting %s: %w", path, err)
	}
	c := &cutter{file: file, elf: e, out: &Sparse{Size: int64(len(file))}}
	for _, x := range extents {
		c.keep(x.Offset, x.Length)
	}
	if err := c.entries(); err != nil {
		return nil, fmt.Errorf("cutting %s: %w", path, err)
	}
	if err := c.tables(); err != nil {
		return nil, fmt.Errorf("cutting %s: %w", path, err)
	}
	return c.out, nil
}

type cutter struct {
	file []byte
	elf  *elf.File
	out  *Sparse
}

func (c *cutter) keep(offset, length int64) {
	end := min(offset+length, int64(len(c.file)))
	if offset < end {
		c.out.put(offset, c.file[offset:end])
	}
}

// entries keeps how each function begins that a point could be made of.
func (c *cutter) entries() error {
	list, err := c.elf.Symbols()
	if err != nil && !errors.Is(err, elf.ErrNoSymbols) {
		return err
	}
	for _, s := range list {
		if elf.ST_TYPE(s.Info) != elf.STT_FUNC || !kept.MatchString(s.Name) {
			continue
		}
		for _, p := range c.elf.Progs {
			if p.Type == elf.PT_LOAD && s.Value >= p.Vaddr && s.Value-p.Vaddr < p.Filesz {
				const entry = 32 // bytes
				c.keep(int64(s.Value-p.Vaddr+p.Off), entry)
			}
		}
	}
	return nil
}

// read says whether any of the bytes at an address is kept.
func (c *cutter) read(address, length uint64) bool {
	for _, p := range c.elf.Progs {
		if p.Type != elf.PT_LOAD || address < p.Vaddr || address-p.Vaddr >= p.Filesz {
			continue
		}
		offset := int64(address - p.Vaddr + p.Off)
		return slices.ContainsFunc(c.out.parts, func(k part) bool {
			return offset < k.offset+int64(len(k.data)) && k.offset < offset+int64(length)
		})
	}
	return false
}

// called are the targets that the kept code calls or jumps to by a distance (e8, e9), and
// the pointers that it calls or jumps through (ff 15, ff 25). Bytes that only
// look like that do no harm.
func (c *cutter) called() (functions, slots map[uint64]bool) {
	functions, slots = map[uint64]bool{}, map[uint64]bool{}
	for _, p := range c.elf.Progs {
		if p.Type != elf.PT_LOAD || p.Flags&elf.PF_X == 0 {
			continue
		}
		for _, k := range c.out.parts {
			if k.offset < int64(p.Off) || k.offset >= int64(p.Off+p.Filesz) {
				continue
			}
			address := uint64(k.offset) - p.Off + p.Vaddr
			target := func(at int) uint64 {
				return address + uint64(at) + 4 + uint64(int64(int32(binary.LittleEndian.Uint32(k.data[at:]))))
			}
			for i := 0; i+6 <= len(k.data); i++ {
				switch b := k.data[i:]; {
				case b[0] == 0xe8 || b[0] == 0xe9:
					functions[target(i+1)] = true
				case b[0] == 0xff && (b[1] == 0x15 || b[1] == 0x25):
					slots[target(i+2)] = true
				}
			}
		}
	}
	return functions, slots
}

// tables puts the headers, and smaller tables of symbols and relocations in the
// places of the original ones.
func (c *cutter) tables() error {
	order := binary.LittleEndian
	shoff, shnum, shstrndx := order.Uint64(c.file[0x28:]), int(order.Uint16(c.file[0x3c:])), int(order.Uint16(c.file[0x3e:]))
	headers := slices.Clone(c.file[shoff : shoff+uint64(shnum)*sectionSize])
	resize := func(section int, data []byte) error {
		s := c.elf.Sections[section]
		if uint64(len(data)) > s.FileSize {
			return fmt.Errorf("the new %s is larger than the old one", s.Name)
		}
		order.PutUint64(headers[section*sectionSize+0x20:], uint64(len(data)))
		c.out.put(int64(s.Offset), data)
		return nil
	}

	functions, slots := c.called()
	var relocations []int
	var symbols []int // sections
	needed := map[uint32]bool{}
	tables := map[int][]byte{}
	for i, s := range c.elf.Sections {
		switch s.Type {
		case elf.SHT_SYMTAB, elf.SHT_DYNSYM:
			symbols = append(symbols, i)
		case elf.SHT_NOTE:
			c.keep(int64(s.Offset), int64(s.FileSize))
		case elf.SHT_RELA:
			if s.Flags&elf.SHF_ALLOC == 0 {
				continue
			}
			old, err := s.Data()
			if err != nil {
				return err
			}
			var list []byte
			for ; len(old) >= relaSize; old = old[relaSize:] {
				if at := order.Uint64(old); slots[at] || c.read(at, 8) {
					list = append(list, old[:relaSize]...)
					needed[elf.R_SYM64(order.Uint64(old[8:]))] = true
				}
			}
			relocations = append(relocations, i)
			tables[i] = list
		case elf.SHT_GNU_VERNEED, elf.SHT_GNU_VERSYM, elf.SHT_GNU_VERDEF:
			// Which version of a symbol it is does not matter here.
			order.PutUint32(headers[i*sectionSize+4:], uint32(elf.SHT_PROGBITS))
		case elf.SectionType(19): // SHT_RELR
			return errors.New("packed relocations cannot be cut yet")
		}
	}
	for _, i := range symbols {
		s := c.elf.Sections[i]
		if int(s.Link) == shstrndx {
			return errors.New("symbols and sections share their names' table")
		}
		moved, table, names, locals, err := c.symbols(i, needed, functions)
		if err != nil {
			return err
		}
		if err := errors.Join(resize(i, table), resize(int(s.Link), names)); err != nil {
			return err
		}
		order.PutUint32(headers[i*sectionSize+0x2c:], locals)
		if s.Type != elf.SHT_DYNSYM {
			continue
		}
		for _, list := range tables {
			for ; len(list) >= relaSize; list = list[relaSize:] {
				info := order.Uint64(list[8:])
				order.PutUint64(list[8:], elf.R_INFO(moved[elf.R_SYM64(info)], elf.R_TYPE64(info)))
			}
		}
	}
	for _, i := range relocations {
		if err := resize(i, tables[i]); err != nil {
			return err
		}
	}
	names := c.elf.Sections[shstrndx]
	c.keep(int64(names.Offset), int64(names.FileSize))
	c.keep(0, elfHeaderSize)
	c.keep(int64(order.Uint64(c.file[0x20:])), int64(order.Uint16(c.file[0x38:]))*progSize)
	c.out.put(int64(shoff), headers)
	return nil
}

// Sizes of ELF structures, bytes.
const (
	elfHeaderSize = 64
	progSize      = 56
	sectionSize   = 64
	relaSize      = 24
	symbolSize    = 24
)

// symbols cuts a table of symbols. Moved are the new numbers of those that are left.
func (c *cutter) symbols(section int, needed map[uint32]bool, called map[uint64]bool) (moved map[uint32]uint32, table, names []byte, locals uint32, err error) {
	s := c.elf.Sections[section]
	old, err := s.Data()
	if err != nil {
		return nil, nil, nil, 0, err
	}
	texts, err := c.elf.Sections[s.Link].Data()
	if err != nil {
		return nil, nil, nil, 0, err
	}
	moved = map[uint32]uint32{}
	table, names = make([]byte, symbolSize), []byte{0}
	locals = 1
	for i := 1; (i+1)*symbolSize <= len(old); i++ {
		one := slices.Clone(old[i*symbolSize : (i+1)*symbolSize])
		name, _, _ := bytes.Cut(texts[min(int(binary.LittleEndian.Uint32(one)), len(texts)):], []byte{0})
		value, undefined := binary.LittleEndian.Uint64(one[8:]), binary.LittleEndian.Uint16(one[6:]) == 0
		relocated := s.Type == elf.SHT_DYNSYM && needed[uint32(i)]
		looked := kept.Match(name) || elf.ST_TYPE(one[4]) == elf.STT_FUNC && (called[value] || c.read(value, 1))
		if !relocated && (undefined || !looked) {
			continue
		}
		if elf.ST_BIND(one[4]) == elf.STB_LOCAL {
			locals++
		}
		moved[uint32(i)] = uint32(len(table) / symbolSize)
		binary.LittleEndian.PutUint32(one, uint32(len(names)))
		names = append(append(names, name...), 0)
		table = append(table, one...)
	}
	return moved, table, names, locals, nil
}
