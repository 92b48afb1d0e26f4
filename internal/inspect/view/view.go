// Package view reads the objects of one live process by evaluating the runtime's own functions outside of the process,
// over its memory, which it only reads.
package view

import (
	"path/filepath"
	"strings"
	"sync"
	"time"

	"tt-memtrace/internal/memory"
	"tt-memtrace/internal/metal"
	"tt-memtrace/internal/proc"
	"tt-memtrace/internal/x86eval"
)

// Process is a process with a library of the runtime that it maps.
type Process struct {
	Lib *metal.Library
	// Base is where the process has the library.
	Base uint64
	Mem  *memory.Process
	// Opener opens the process's files.
	Opener *memory.Process
	// Facts caches what never changes while the process runs. Each fact has a key of its own type.
	Facts *sync.Map
	// standard loads the process's C++ library when it is first needed.
	standard func() (*x86eval.Image, uint64)
}

// ProcessOf returns the process that maps a library, as its memory is read by mem.
func ProcessOf(mem *memory.Process, lib *metal.Library, m proc.Mapping) *Process {
	files := mem.Files()
	standard := sync.OnceValues(func() (*x86eval.Image, uint64) { return standardOf(lib, files) })
	return &Process{
		Lib: lib, Base: lib.LoadedAt(m), Mem: mem, Opener: files, Facts: &sync.Map{}, standard: standard,
	}
}

// Elsewhere returns another process that maps the same library at the same place.
func (p *Process) Elsewhere(pid uint32) *Process {
	other := *p
	other.Mem = p.Mem.Beside(pid)
	return &other
}

// Files returns the process for opening its files.
func (p *Process) Files() *memory.Process { return p.Mem.Files() }

// Unanswered grows with each read that gets no answer.
func (p *Process) Unanswered() uint64 { return p.Mem.Unanswered() + p.Opener.Unanswered() }

// Hung reports whether the process's memory did not answer.
func (p *Process) Hung() bool { return p.Mem.Hung() }

// Interrupt ends all reads of the process.
func (p *Process) Interrupt() {
	p.Mem.Interrupt()
	p.Opener.Interrupt()
}

// Limit bounds work in CPU time, of this program and of the helper processes that read for it.
func (p *Process) Limit(of time.Duration) *proc.Limit { return proc.NewLimit(of, p.Mem.ReaderTime) }

// Vptr returns the first word of a class's objects: it points behind the vtable's offset-to-top and type info. It is 0
// if the library lacks the class.
func (p *Process) Vptr(vtable string) uint64 {
	at, ok := p.Lib.Lookup(vtable)
	if !ok {
		return 0
	}
	return p.Base + at + 16
}

// AddressOf returns the address in the process of a symbol that the library defines.
func (p *Process) AddressOf(name string) uint64 {
	at, _ := p.Lib.Lookup(name)
	return p.Base + at
}

// Fresh returns the process's memory as it is from now on.
func (p *Process) Fresh() *memory.Pages { return memory.NewPages(p.Mem) }

// View is a process's memory as one goroutine sees it: each page as it was first read, until Forget. What many objects
// have in common is read once, and their code is decoded once. A view is made for one question or one part of a scan,
// and dropped after it.
type View struct {
	*Process
	code *x86eval.Code
	data *memory.Pages
	// targets are where calls through pointers lead.
	targets map[uint64]slotTarget
	// results are what Memo keeps.
	results map[any]any
}

// View returns a view that has read nothing yet.
func (p *Process) View() *View {
	v := &View{Process: p, code: x86eval.NewCode(), targets: map[uint64]slotTarget{}}
	v.Forget()
	return v
}

// Anew returns a view that shares the decoded code and has an empty page cache. Both must stay on one goroutine.
func (v *View) Anew() *View {
	c := *v
	c.Forget()
	return &c
}

// Memo returns what compute returned for a key, whose type no other caller has, since the view forgot.
func Memo[K comparable, R any](v *View, key K, compute func() (R, error)) (R, error) {
	if r, known := v.results[key]; known {
		return r.(R), nil
	}
	r, err := compute()
	if err == nil {
		v.results[key] = r
	}
	return r, err
}

// Forget forgets the memory that was read, and what Memo keeps.
func (v *View) Forget() { v.data, v.results = v.Fresh(), map[any]any{} }

// Pages returns the memory of the view.
func (v *View) Pages() *memory.Pages { return v.data }

// ReadAt reads the library's code from its file, because the process's copy has breakpoints, and everything else from
// the memory of the view.
func (v *View) ReadAt(p []byte, address uint64) error {
	if address >= v.Base && v.Lib.ReadCode(p, address-v.Base) {
		return nil
	}
	return v.data.ReadAt(p, address)
}

// standardOf returns the C++ library that a process has loaded, and where; or nil.
func standardOf(lib *metal.Library, mem *memory.Process) (*x86eval.Image, uint64) {
	files, _ := mem.Loaded(func(path string, _ proc.FileID) bool {
		return strings.HasPrefix(filepath.Base(path), "libstdc++.so")
	})
	if len(files) == 0 {
		return nil, 0
	}
	f, err := mem.Open(files[0])
	if err != nil {
		return nil, 0
	}
	defer f.Close()
	return lib.Standard(memory.ProcName(f), files[0])
}
