package shm

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"
)

// errBlank means that a process is still creating the file.
var errBlank = errors.New("not written yet")

// fileID identifies a file independently of its path.
type fileID struct {
	device, inode uint64
}

// read reads and decodes a chip's file, which is untrusted. Of entries with the same PID it keeps the first.
func read(dir, name string) (*Account, fileID, error) {
	path := filepath.Join(dir, name)
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, fileID{}, &os.PathError{Op: "reading", Path: path, Err: err}
	}
	f := os.NewFile(uintptr(fd), path)
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, fileID{}, &os.PathError{Op: "reading", Path: path, Err: err}
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil, fileID{}, fmt.Errorf("reading %s: not a regular file", path)
	}
	b := make([]byte, Size)
	n, err := unix.Pread(fd, b, 0)
	if err != nil {
		return nil, fileID{}, &os.PathError{Op: "reading", Path: path, Err: err}
	}
	if b = b[:n]; n == 0 || n >= 4 && b[0]|b[1]|b[2]|b[3] == 0 {
		return nil, fileID{}, errBlank
	}
	a, err := Parse(b)
	if err != nil {
		return nil, fileID{}, fmt.Errorf("%s: %w", path, err)
	}
	if unique, ok := UniqueOf(name); !ok || unique != a.ID {
		return nil, fileID{}, fmt.Errorf("reading %s: it belongs to another chip, %d", path, a.ID)
	}
	seen := map[uint32]bool{}
	a.Processes = slices.DeleteFunc(a.Processes, func(p Process) bool {
		again := seen[p.PID]
		seen[p.PID] = true
		return again
	})
	return a, fileID{st.Dev, st.Ino}, nil
}
