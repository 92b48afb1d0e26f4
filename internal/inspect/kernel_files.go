package inspect

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"io"
	"path"
	"strings"

	"tt-memtrace/aggregator"
	"tt-memtrace/internal/elffile"
	"tt-memtrace/internal/memory"
)

// kernelOf parses the path of a kernel's binary: …/kernels/<name>/<hash>/<processor>/<processor>.elf. If the path is
// not whole, it has only the end.
func kernelOf(file string, whole bool) (aggregator.Kernel, bool) {
	parts := strings.FieldsFunc(file, func(c rune) bool { return c == '/' })
	n := len(parts)
	if n < 4 || whole && n == 4 || n > 4 && parts[n-5] != "kernels" && (whole || n > 5) {
		return aggregator.Kernel{}, false
	}
	return aggregator.Kernel{
		Name: parts[n-4], Hash: parts[n-3], Processor: strings.TrimSuffix(parts[n-1], path.Ext(parts[n-1])),
		Type: kernelType(parts[n-4]),
	}, true
}

// KernelFiles reads the binaries of a process's kernels, and caches their sizes.
type KernelFiles struct {
	mem   *memory.Process
	sizes map[string]fileSize
}

// fileSize is a file's loadable bytes, if known.
type fileSize struct {
	bytes uint64
	known bool
}

// maxSizes bounds the cached files of a process.
const maxSizes = 1 << 16

// NewKernelFiles returns the KernelFiles of a process, see memory.FilesOf.
func NewKernelFiles(mem *memory.Process) *KernelFiles {
	return &KernelFiles{mem, map[string]fileSize{}}
}

// Kernel describes the TT kernel that is read from a file. It returns false for firmware, which belongs to no program.
// If the name is not whole, it has only the end.
func (f *KernelFiles) Kernel(id uint64, file string, whole bool) (aggregator.Kernel, bool) {
	k, ok := kernelOf(file, whole)
	if !ok {
		return k, false
	}
	k.ID = id
	if whole {
		k.Path = file
		s, ok := f.sizes[file]
		if !ok {
			n, err := Loadable(f.mem, file)
			s = fileSize{n, err == nil}
			if len(f.sizes) < maxSizes && !errors.Is(err, memory.ErrLater) {
				f.sizes[file] = s
			}
		}
		k.Bytes, k.Sized = s.bytes, s.known
	}
	return k, true
}

// kernelType goes by the names of the runtime's own kernels.
func kernelType(name string) aggregator.KernelType {
	switch {
	case strings.HasPrefix(name, "cq_"):
		return aggregator.DispatchKernel
	case strings.HasPrefix(name, "fabric_"), strings.HasPrefix(name, "tt_fabric_"):
		return aggregator.FabricKernel
	}
	return aggregator.ApplicationKernel
}

// Loadable returns how many bytes of an ELF file are loaded, from its program headers. The path is resolved in the
// process's root, and never leads out of it.
func Loadable(mem *memory.Process, file string) (uint64, error) {
	b, err := mem.ReadFile(file)
	if err != nil {
		return 0, err
	}
	return loadableBytes(bytes.NewReader(b))
}

var errNotELF = errors.New("not a little-endian ELF file")

// maxProgs is more program headers than any kernel has.
const maxProgs = 64

// loadableBytes sums the file sizes of the loadable segments.
func loadableBytes(r io.ReaderAt) (uint64, error) {
	var ident [elf.EI_NIDENT]byte
	if err := elffile.ReadAt(r, 0, &ident); err != nil || string(ident[:4]) != elf.ELFMAG || elf.Data(ident[elf.EI_DATA]) != elf.ELFDATA2LSB {
		return 0, errNotELF
	}
	var sum uint64
	switch elf.Class(ident[elf.EI_CLASS]) {
	case elf.ELFCLASS32:
		var h elf.Header32
		if err := elffile.ReadAt(r, 0, &h); err != nil {
			return 0, err
		}
		progs := make([]elf.Prog32, min(h.Phnum, maxProgs))
		if int(h.Phentsize) != binary.Size(elf.Prog32{}) || h.Phnum > maxProgs {
			return 0, errNotELF
		}
		if err := elffile.ReadAt(r, int64(h.Phoff), progs); err != nil {
			return 0, err
		}
		for _, p := range progs {
			if elf.ProgType(p.Type) == elf.PT_LOAD {
				sum += uint64(p.Filesz)
			}
		}
	case elf.ELFCLASS64:
		var h elf.Header64
		if err := elffile.ReadAt(r, 0, &h); err != nil {
			return 0, err
		}
		progs := make([]elf.Prog64, min(h.Phnum, maxProgs))
		if int(h.Phentsize) != binary.Size(elf.Prog64{}) || h.Phnum > maxProgs {
			return 0, errNotELF
		}
		if err := elffile.ReadAt(r, int64(h.Phoff), progs); err != nil {
			return 0, err
		}
		for _, p := range progs {
			if elf.ProgType(p.Type) == elf.PT_LOAD {
				sum += p.Filesz
			}
		}
	default:
		return 0, errNotELF
	}
	const most = 1 << 30 // bytes; a kernel has some thousand
	if sum > most {
		return 0, errNotELF
	}
	return sum, nil
}
