package memory

import (
	"os"

	"golang.org/x/sys/unix"

	"tt-memtrace/internal/proc"
)

// Source is a process as it is read, if that is not a live one: an image that was recorded of it.
type Source interface {
	// ReadAt fills b from the process's memory at address. It fails if a byte of that is missing.
	ReadAt(b []byte, address uint64) error
	// Pieces visits the mapped pieces of files while visit returns true, as proc.Pieces does.
	Pieces(visit func(proc.Mapping, proc.Permissions) (more bool)) error
	// FindShared does what Process.FindShared does.
	FindShared(block uint64, vptrs ...uint64) (Objects, []uint64, error)
	// Open opens a mapped file.
	Open(m proc.Mapping) (*os.File, error)
	// Beside returns another process as it was then.
	Beside(pid uint32) Source
}

// From returns a process that is read from a source.
func From(pid uint32, s Source) *Process { return &Process{pid: pid, source: s} }

// Beside returns another process: as it was then, if this one is read from a source.
func (p *Process) Beside(pid uint32) *Process {
	if p.source != nil {
		return From(pid, p.source.Beside(pid))
	}
	return Of(pid)
}

// Live reports whether the process is read itself.
func (p *Process) Live() bool { return p.source == nil }

// Pieces visits the mapped pieces of files while visit returns true.
func (p *Process) Pieces(visit func(proc.Mapping, proc.Permissions) (more bool)) error {
	if p.source != nil {
		return p.source.Pieces(visit)
	}
	return proc.Pieces(p.pid, visit)
}

// Loaded lists the wanted files from which the process runs code, as proc.Loaded does.
func (p *Process) Loaded(want func(path string, id proc.FileID) bool) ([]proc.Mapping, error) {
	return proc.LoadedOf(p.Pieces, want)
}

// readSource reads parts up to the first that is missing.
func (p *Process) readSource(b []byte, parts []unix.RemoteIovec) (n int, err error) {
	for _, part := range parts {
		if err := p.source.ReadAt(b[n:n+part.Len], uint64(part.Base)); err != nil && n == 0 {
			return 0, err
		} else if err != nil {
			break
		}
		n += part.Len
	}
	return n, nil
}
