package proc

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"syscall"
)

// initialPIDNamespace is the inode of the host's PID namespace: the host kernel
// gives it that number for good (PROC_PID_INIT_INO).
const initialPIDNamespace = 0xeffffffc

// Namespace is the inode of this process's namespace of a kind.
func Namespace(kind string) (inode uint64, err error) {
	st, err := os.Stat("/proc/self/ns/" + kind)
	if err != nil {
		return 0, err
	}
	return st.Sys().(*syscall.Stat_t).Ino, nil
}

// InHostPIDNamespace says whether this process is in the host's PID namespace. In another one it finds only the
// processes of that.
func InHostPIDNamespace() (bool, error) {
	inode, err := Namespace("pid")
	if err != nil {
		return false, fmt.Errorf("finding the PID namespace: %w", err)
	}
	return inode == initialPIDNamespace, nil
}

// ErrNotMounted says that processes cannot be found.
var ErrNotMounted = errors.New("/proc is not mounted, or shows another PID namespace than this one: mount it, as with 'mount -t proc proc /proc'")

// CheckMounted says why /proc does not show processes by the PIDs that system calls take here, or nil.
func CheckMounted() error {
	if self, err := os.Readlink("/proc/self"); err != nil || self != strconv.Itoa(os.Getpid()) {
		return ErrNotMounted
	}
	return nil
}
