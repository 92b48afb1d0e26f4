package tracer

import (
	"errors"
	"fmt"
	"os"
	"syscall"

	"tt-memtrace/tracer/proc"
)

// ErrPIDNamespace says that this program runs in a PID namespace of its own.
var ErrPIDNamespace = errors.New("this is a PID namespace of its own, in which the host's processes cannot be found")

// initialPIDNamespace is the inode of the host's PID namespace: the host kernel
// gives it that number for good (PROC_PID_INIT_INO).
const initialPIDNamespace = 0xeffffffc

// checkPIDNamespace says why processes could not be found by their PIDs, or nil. The
// BPF programs name processes by the PIDs of the host, and /proc of a container that
// has a PID namespace of its own has others: all that is traced would be in no account.
func checkPIDNamespace() error {
	inode, err := namespace("pid")
	if err != nil {
		return fmt.Errorf("finding the PID namespace: %w", err)
	}
	if inode != initialPIDNamespace {
		return fmt.Errorf("%w: %w\n"+
			"start the container with the host's: docker or podman run --pid=host, in Kubernetes hostPID: true", proc.ErrPermission, ErrPIDNamespace)
	}
	return nil
}

// namespace is the inode of this process's namespace of a kind.
func namespace(kind string) (inode uint64, err error) {
	st, err := os.Stat("/proc/self/ns/" + kind)
	if err != nil {
		return 0, err
	}
	return st.Sys().(*syscall.Stat_t).Ino, nil
}
