// Package image has images of processes: what the tracer reads of a process that holds something, and what the runtime
// said of itself then. Tests read them in place of the process, without rights and in milliseconds. The images have
// parts of ttnn's libraries (Apache-2.0) and of the C++ library (GPL-3.0 with the GCC Runtime Library Exception).
package image

import (
	"bytes"
	"debug/elf"
	_ "embed"
	"encoding/gob"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"sync"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"

	"tt-memtrace/internal/inspect"
	"tt-memtrace/internal/memory"
	"tt-memtrace/internal/metal"
	"tt-memtrace/internal/proc"
	"tt-memtrace/test/compat"
	"tt-memtrace/test/rig"
)

// Image is the recording of a process at a rest point.
type Image struct {
	// Release of the runtime, Cluster of mock chips, and what ran on it.
	Release, Cluster, Ran string

	PID     uint32
	Library proc.Mapping
	// Pages are the pages that the recorded scan read, by address.
	Pages  map[uint64][]byte
	Mapped []Piece
	// Found is what searches found, by vptr, and Pointers those to shared objects.
	Found    memory.Objects
	Pointers []uint64
	// Files is what was read of files, by path.
	Files map[string]*compat.Sparse
	// Rest is what the runtime said of itself.
	Rest []byte
	// Parent is the process from which this one was forked, if it was. Copies: all that this one has are copies of the
	// parent's objects, and Rest is the parent's.
	Parent *Image
	Copies bool

	// missing are the pages that cannot be read in a copy, by address.
	missing map[uint64]bool
}

// Piece is a mapped piece of a file.
type Piece struct {
	Mapping     proc.Mapping
	Permissions proc.Permissions
}

const page = proc.PageBytes

// errMissing is not EFAULT: that means that nothing is mapped there, so that what was there is gone.
var errMissing = errors.New("the page cannot be read")

// Without returns the image with pages that cannot be read, though they are mapped.
func (i *Image) Without(pages ...uint64) *Image {
	c := *i
	c.missing = map[uint64]bool{}
	for _, p := range pages {
		c.missing[p] = true
	}
	return &c
}

// ReadAt implements memory.Source.
func (i *Image) ReadAt(b []byte, address uint64) error {
	for len(b) > 0 {
		at := address &^ (page - 1)
		p := i.Pages[at]
		switch {
		case i.missing[at]:
			return errMissing
		case p == nil:
			return unix.EFAULT
		}
		n := copy(b, p[address-at:])
		b, address = b[n:], address+uint64(n)
	}
	return nil
}

// Pieces implements memory.Source.
func (i *Image) Pieces(visit func(proc.Mapping, proc.Permissions) (more bool)) error {
	for _, p := range i.Mapped {
		if !visit(p.Mapping, p.Permissions) {
			break
		}
	}
	return nil
}

// FindShared implements memory.Source.
func (i *Image) FindShared(_ uint64, vptrs ...uint64) (memory.Objects, []uint64, error) {
	found := memory.Objects{}
	for _, v := range vptrs {
		if list := i.Found[v]; len(list) > 0 {
			found[v] = slices.Clone(list)
		}
	}
	return found, slices.Clone(i.Pointers), nil
}

// Open implements memory.Source.
func (i *Image) Open(m proc.Mapping) (*os.File, error) {
	kept, ok := i.Files[m.Path]
	if !ok {
		return nil, os.ErrNotExist
	}
	f, err := inMemory(filepath.Base(m.Path))
	if err != nil {
		return nil, err
	}
	return f, kept.WriteFile(memory.ProcName(f))
}

// Beside implements memory.Source. It knows the parent alone.
func (i *Image) Beside(pid uint32) memory.Source {
	if i.Parent != nil && i.Parent.PID == pid {
		return i.Parent
	}
	return &Image{PID: pid}
}

// Fork describes the fork for a scan; nil if there was none.
func (i *Image) Fork() *inspect.Fork {
	if i.Parent == nil {
		return nil
	}
	none := func() (devices map[uint64]bool, all bool, err error) { return nil, false, nil }
	return &inspect.Fork{From: i.Parent.PID, Unfreed: true, Opened: none}
}

// Message is what the runtime said of itself.
func (i *Image) Message() (m rig.Message, err error) { return m, json.Unmarshal(i.Rest, &m) }

// OpenLibrary opens the recorded parts of the library.
func (i *Image) OpenLibrary() (*metal.Library, error) {
	f, err := i.Open(i.Library)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return metal.OpenLibrary(memory.ProcName(f))
}

func inMemory(name string) (*os.File, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), name), nil
}

//go:embed images.zst
var images []byte

// All are the images, by name.
func All() (map[string]*Image, error) { return read(bytes.NewReader(images)) }

func read(r io.Reader) (set map[string]*Image, err error) {
	z, err := zstd.NewReader(r, zstd.WithDecoderMaxWindow(window))
	if err != nil {
		return nil, err
	}
	defer z.Close()
	return set, gob.NewDecoder(z).Decode(&set)
}

// window is so large that what images share takes room once.
const window = 128 << 20

// Write writes a set of images.
func Write(w io.Writer, set map[string]*Image) error {
	z, err := zstd.NewWriter(w, zstd.WithEncoderLevel(zstd.SpeedBestCompression), zstd.WithWindowSize(window))
	if err != nil {
		return err
	}
	return errors.Join(gob.NewEncoder(z).Encode(set), z.Close())
}

// Recorder reads a live process, and notes what is read.
type Recorder struct {
	live   *memory.Process
	opened []proc.Mapping

	mu    sync.Mutex
	image *Image
	// parent records the process from which this one was forked, if it was.
	parent *Recorder
}

// Record begins to record a process, and its parent, if that is not 0.
func Record(pid, parent uint32) *Recorder {
	r := &Recorder{live: memory.Direct(pid), image: &Image{
		PID: pid, Pages: map[uint64][]byte{}, Found: memory.Objects{}, Files: map[string]*compat.Sparse{},
	}}
	if parent != 0 {
		r.parent = Record(parent, 0)
		r.image.Parent = r.parent.image
	}
	return r
}

// Beside implements memory.Source.
func (r *Recorder) Beside(uint32) memory.Source { return r.parent }

// Fork describes the fork for a scan; nil if there was none.
func (r *Recorder) Fork() *inspect.Fork { return r.image.Fork() }

// ReadAt implements memory.Source.
func (r *Recorder) ReadAt(b []byte, address uint64) error {
	err := r.live.ReadAt(b, address)
	if err == nil {
		r.mu.Lock()
		defer r.mu.Unlock()
		for at := address &^ (page - 1); at < address+uint64(len(b)); at += page {
			r.image.Pages[at] = nil
		}
	}
	return err
}

// Pieces implements memory.Source.
func (r *Recorder) Pieces(visit func(proc.Mapping, proc.Permissions) (more bool)) error {
	return r.live.Pieces(visit)
}

// FindShared implements memory.Source.
func (r *Recorder) FindShared(block uint64, vptrs ...uint64) (memory.Objects, []uint64, error) {
	found, pointers, err := r.live.FindShared(block, vptrs...)
	r.mu.Lock()
	defer r.mu.Unlock()
	for v, list := range found {
		r.image.Found[v] = list
	}
	if block != 0 {
		r.image.Pointers = pointers
	}
	return found, pointers, err
}

// Open implements memory.Source.
func (r *Recorder) Open(m proc.Mapping) (*os.File, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.opened = append(r.opened, m)
	return r.live.Open(m)
}

// End returns the image. The process must still rest as it did when it was read. read is what was read of files.
func (r *Recorder) End(
	library proc.Mapping, read map[string][]metal.Extent, rest rig.Message,
) (*Image, error) {
	i := r.image
	i.Library, i.Rest = library, []byte(rest.Text)
	if err := r.keepPages(); err != nil {
		return nil, err
	}
	if r.parent != nil {
		if err := r.parent.keepPages(); err != nil {
			return nil, err
		}
	}
	_ = r.live.Pieces(func(m proc.Mapping, p proc.Permissions) bool {
		m.Path = string(scrub([]byte(m.Path)))
		i.Mapped = append(i.Mapped, Piece{m, p})
		return true
	})
	for _, m := range append(r.opened, library) {
		f, err := r.live.Open(m)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		if i.Files[string(scrub([]byte(m.Path)))], err = cut(f, read[m.Path]); err != nil {
			return nil, err
		}
	}
	i.Library.Path = string(scrub([]byte(library.Path)))
	return i, nil
}

// keepPages keeps the pages that were read.
func (r *Recorder) keepPages() error {
	for at := range r.image.Pages {
		b := make([]byte, page)
		if err := r.live.ReadAt(b, at); err != nil {
			return err
		}
		r.image.Pages[at] = scrub(b)
	}
	return nil
}

// Pages also have text that no scan reads, such as prose and the environment, and paths of the machine that recorded.
var (
	prose       = regexp.MustCompile(`[!-~]* [ -~]{24,}`)
	environment = regexp.MustCompile(`[A-Z_][A-Z0-9_]{2,}=[ -~]+`)
	homes       = regexp.MustCompile(`/(root|work|user)/`)
)

// scrub blanks this text and replaces these paths.
func scrub(b []byte) []byte {
	if here, err := os.Getwd(); err == nil {
		b = bytes.ReplaceAll(b, []byte(here), bytes.Repeat([]byte("/"), len(here)))
	}
	for _, text := range []*regexp.Regexp{prose, environment} {
		for _, at := range text.FindAllIndex(b, -1) {
			for i := at[0]; i < at[1]; i++ {
				b[i] = '.'
			}
		}
	}
	for _, at := range homes.FindAllIndex(b, -1) {
		copy(b[at[0]:], "/home/")
	}
	return b
}

// cut keeps what was read of a library. If it was only opened, cut keeps the symbols that are looked up in it.
func cut(f *os.File, read []metal.Extent) (*compat.Sparse, error) {
	if read == nil {
		e, err := elf.NewFile(f)
		if err != nil {
			return nil, err
		}
		list, err := e.DynamicSymbols()
		if err != nil {
			return nil, err
		}
		for _, s := range list {
			for _, p := range e.Progs {
				holds := p.Type == elf.PT_LOAD && s.Value >= p.Vaddr && s.Value-p.Vaddr < p.Filesz
				if s.Name == metal.DescriptorIDs && holds {
					read = append(read, metal.Extent{Offset: int64(s.Value - p.Vaddr + p.Off), Length: 1})
				}
			}
		}
	}
	return compat.CutParts(memory.ProcName(f), read)
}
