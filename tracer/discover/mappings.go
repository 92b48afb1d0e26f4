package discover

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

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

// Mappings lists what a process has mapped that could be the runtime, each file once.
func Mappings(pid uint32, extra []proc.FileID) ([]proc.Mapping, error) {
	return proc.Files(pid, func(path string, id proc.FileID) bool { return Candidate(path) || slices.Contains(extra, id) })
}

// openMapFile opens a mapped file by its mapping, which works when its name is
// gone too. It takes more rights than opening it by name.
func openMapFile(m proc.Mapping) (*metal.Library, error) {
	path := fmt.Sprintf("/proc/%d/map_files/%x-%x", m.PID, m.Region.Start, m.Region.End)
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return nil, err
	} else if st.Ino != m.ID.Inode {
		return nil, os.ErrNotExist
	}
	return metal.OpenLibrary(path)
}

// Open opens the very file that a process has mapped, in whatever mount
// namespace, also where its name leads elsewhere by now.
func Open(m proc.Mapping) (*metal.Library, error) {
	lib, err := metal.OpenLibrary(m.FileName())
	if err == nil && lib.ID.Inode == m.ID.Inode {
		return lib, nil
	}
	if err == nil {
		lib.Close()
		err = fmt.Errorf("opening %s: the file was replaced after it was mapped", m.Path)
	}
	if deleted, e := openMapFile(m); e == nil {
		return deleted, nil
	}
	return nil, err
}
