package discover

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
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

// mapFile is a mapped file by its mapping, which works when its name is gone too. It takes more
// rights than opening it by name.
func mapFile(m proc.Mapping) (string, error) {
	path := fmt.Sprintf("/proc/%d/map_files/%x-%x", m.PID, m.Region.Start, m.Region.End)
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return "", err
	} else if st.Ino != m.ID.Inode {
		return "", os.ErrNotExist
	}
	return path, nil
}

// nameOf is a name under which the very file that a process has mapped can be opened.
func nameOf(m proc.Mapping) (string, error) {
	var st unix.Stat_t
	name := m.FileName()
	err := unix.Stat(name, &st)
	if err == nil && st.Ino == m.ID.Inode {
		return name, nil
	}
	if path, e := mapFile(m); e == nil {
		return path, nil
	}
	if err == nil {
		err = errors.New("the file was replaced after it was mapped")
	}
	return "", err
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
	if path, e := mapFile(m); e == nil {
		if deleted, e := metal.OpenLibrary(path); e == nil {
			return deleted, nil
		}
	}
	return nil, err
}
