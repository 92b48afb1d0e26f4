package proc

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// Image is what runs in a process from one exec to the next, or to the process's end.
type Image struct{ pagemap *os.File }

// OpenImage returns what runs in a process now. It needs the right to read the process's memory.
func OpenImage(pid uint32) (*Image, error) {
	f, err := Open(pid, "pagemap")
	if err != nil {
		return nil, err
	}
	return &Image{f}, nil
}

// Runs reports whether it still runs. The open file belongs to the memory that the process had when it was opened. While
// that exists, the kernel refuses to read part of an entry; afterwards it finds the end of the file. It takes no
// lock of the process's mappings for that, so nobody can make the caller wait.
func (i *Image) Runs() bool {
	n, err := unix.Pread(int(i.pagemap.Fd()), make([]byte, 1), 0)
	return n != 0 || err != nil && !errors.Is(err, unix.ESRCH)
}

func (i *Image) Close() error { return i.pagemap.Close() }
