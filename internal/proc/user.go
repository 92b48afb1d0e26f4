package proc

import (
	"bytes"
	"fmt"
	"strconv"

	"golang.org/x/sys/unix"
)

// User returns the user who started a process, or 0. It does not use the owner of the /proc folder: a process can
// become non-dumpable, and then root owns the folder.
func User(pid uint32) uint32 {
	// As in stat; the ninth line has it.
	fd, err := unix.Open(fmt.Sprintf("/proc/%d/status", pid), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0
	}
	defer unix.Close(fd)
	var b [2048]byte
	n, err := unix.Read(fd, b[:])
	if err != nil {
		return 0
	}
	_, rest, _ := bytes.Cut(b[:n], []byte("\nUid:\t"))
	real, _, _ := bytes.Cut(rest, []byte("\t"))
	id, _ := strconv.ParseUint(string(real), 10, 32)
	return uint32(id)
}
