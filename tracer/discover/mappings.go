package discover

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"tt-memtrace/tracer/memory"
	"tt-memtrace/tracer/metal"
	"tt-memtrace/tracer/proc"
)

// LibraryNames are how the file that holds the runtime's code has been called.
var LibraryNames = [...]string{"libtt_metal.so", "_ttnncpp.so"}

// Candidate says whether a file of this name may hold the runtime.
func Candidate(path string) bool {
	name := filepath.Base(path)
	for _, n := range LibraryNames {
		if strings.HasPrefix(name, n) {
			return true
		}
	}
	return false
}

// Open opens the very file that a process has mapped, in whatever mount
// namespace, also where its name leads elsewhere by now.
func Open(mem *memory.Process, m proc.Mapping) (*metal.Library, error) {
	f, err := OpenFile(mem, m)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	lib, err := Library(mem, m, f)
	if err == nil {
		lib.Release = mem.Release(m.Path)
	}
	return lib, err
}

// OpenFile opens a mapped file for Library.
func OpenFile(mem *memory.Process, m proc.Mapping) (*os.File, error) {
	f, err := mem.Open(m)
	switch {
	case errors.Is(err, unix.ESTALE):
		err = fmt.Errorf("opening %s: the file was replaced after it was mapped", m.Path)
	case errors.Is(err, memory.ErrServed):
		err = fmt.Errorf("%w: probes in it could stop the whole host; sample it, as its own user, with --sample", err)
	}
	return f, err
}

// Library reads the headers and symbols of a file that a process has mapped. Its Release is not looked for.
func Library(mem *memory.Process, m proc.Mapping, f *os.File) (*metal.Library, error) {
	lib, err := metal.OpenFile(memory.ProcName(f), m.Path)
	if err != nil {
		return nil, err
	}
	lib.Beside = mem.OpenPath
	return lib, nil
}
