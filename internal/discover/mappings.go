package discover

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"tt-memtrace/internal/memory"
	"tt-memtrace/internal/metal"
	"tt-memtrace/internal/proc"
)

// LibraryNames begin the name of the file that contains the runtime's code; it differs between releases.
var LibraryNames = [...]string{"libtt_metal.so", "_ttnncpp.so"}

// Candidate reports whether a file with this path may be the runtime, by its name.
func Candidate(path string) bool {
	name := filepath.Base(path)
	for _, n := range LibraryNames {
		if strings.HasPrefix(name, n) {
			return true
		}
	}
	return false
}

// Open opens the very file that a process maps as a library, in whatever mount namespace, even if the path names another
// file by now. It also sets the library's Release.
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

// OpenFile opens the very file that a process maps, for Library. Its errors say what the user can do.
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

// Library reads the headers and symbols of an open file that a process maps. It does not set Release.
func Library(mem *memory.Process, m proc.Mapping, f *os.File) (*metal.Library, error) {
	lib, err := metal.OpenFile(memory.ProcName(f), m.Path)
	if err != nil {
		return nil, err
	}
	lib.Beside = mem.OpenPath
	return lib, nil
}
