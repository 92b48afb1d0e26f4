package proc

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// Image is what runs in a process from one exec to the next, or to the process's end.
type Image struct{ memory *os.File }

// OpenImage returns what runs in a process now. It needs the right to read the process's memory.
func OpenImage(pid uint32) (*Image, error) {
	f, err := Open(pid, "mem")
	if err != nil {
		return nil, err
	}
	return &Image{f}, nil
}

// nowhere is an address at which no process can map anything.
const nowhere = 1 << 62

// Runs reports whether it still runs. The open file belongs to the memory that the process had when it was opened:
// while that exists, a read of an address where nothing is mapped fails, and afterwards it finds the end of the file.
func (i *Image) Runs() bool {
	n, err := unix.Pread(int(i.memory.Fd()), make([]byte, 1), nowhere)
	return n != 0 || err != nil && !errors.Is(err, unix.ESRCH)
}

func (i *Image) Close() error { return i.memory.Close() }
