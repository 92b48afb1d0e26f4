package proc

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"
	"syscall"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"
)

// initialPIDNamespace is the inode of the host's PID namespace, a constant of Linux (PROC_PID_INIT_INO).
const initialPIDNamespace = 0xeffffffc

// Namespace returns the inode of this process's namespace of a kind.
func Namespace(kind string) (inode uint64, err error) {
	st, err := os.Stat("/proc/self/ns/" + kind)
	if err != nil {
		return 0, err
	}
	return st.Sys().(*syscall.Stat_t).Ino, nil
}

var ownPIDNamespace = sync.OnceValues(func() (uint64, error) { return Namespace("pid") })

// InnerPID returns a process's PID inside its own PID namespace, or 0 if that is this process's namespace.
func InnerPID(pid uint32) uint32 {
	// This is asked for each process that is found, and the kernel takes long to write a status.
	var st unix.Stat_t
	own, err := ownPIDNamespace()
	if err == nil && unix.Stat(fmt.Sprintf("/proc/%d/ns/pid", pid), &st) == nil && st.Ino == own {
		return 0
	}
	p, err := procfs.NewProc(int(pid))
	if err != nil {
		return 0
	}
	status, err := p.NewStatus()
	if err != nil || len(status.NSpids) <= 1 {
		return 0
	}
	return uint32(status.NSpids[len(status.NSpids)-1])
}

// InHostPIDNamespace reports whether this process is in the host's PID namespace. In another one it finds only the
// processes of that namespace.
func InHostPIDNamespace() (bool, error) {
	inode, err := Namespace("pid")
	if err != nil {
		return false, fmt.Errorf("finding the PID namespace: %w", err)
	}
	return inode == initialPIDNamespace, nil
}

// ErrNotMounted means that processes cannot be found.
var ErrNotMounted = errors.New("/proc is not mounted, or shows another PID namespace: run 'mount -t proc proc /proc'")

// CheckMounted returns an error if /proc does not show processes by the PIDs that system calls use here.
func CheckMounted() error {
	if self, err := os.Readlink("/proc/self"); err != nil || self != strconv.Itoa(os.Getpid()) {
		return ErrNotMounted
	}
	return nil
}
