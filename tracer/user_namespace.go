package tracer

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/features"
	"golang.org/x/sys/unix"

	"tt-memtrace/tracer/proc"
)

// ErrUserNamespace says that this program runs in a user namespace of its own, which does not let it use BPF.
var ErrUserNamespace = errors.New("this is a user namespace of its own, as of a rootless container, and capabilities in it allow no BPF programs")

// initialUserNamespace is the inode of the host's user namespace: the host kernel
// gives it that number for good (PROC_USER_INIT_INO).
const initialUserNamespace = 0xeffffffd

// userNamespace is the inode of this process's user namespace, or the host's where there is none.
func userNamespace() uint64 {
	inode, err := proc.Namespace("user")
	if err != nil {
		return initialUserNamespace // the host kernel has none, or there is no /proc: other checks say so
	}
	return inode
}

// InHostNamespaces is whether this process is in the host's user and PID namespaces, so that it can find, and
// its capabilities count for, all of the host's processes.
func InHostNamespaces() bool {
	return userNamespace() == initialUserNamespace && checkPIDNamespace() == nil
}

// checkUserNamespace says that the capabilities of this process count only in a user namespace of its
// own, or nil. Whether they do is tried, as a host can delegate BPF to a namespace (BPF tokens).
func checkUserNamespace() error {
	namespace := userNamespace()
	if namespace == initialUserNamespace {
		return nil // nothing is tried for it
	}
	return userNamespaceError(namespace, features.HaveMapType(ebpf.RingBuf))
}

// userNamespaceError is checkUserNamespace in this namespace, where creating a ring buffer ended so.
func userNamespaceError(namespace uint64, creating error) error {
	if namespace == initialUserNamespace || !errors.Is(creating, unix.EPERM) {
		return nil
	}
	return fmt.Errorf("%w: %w\n"+
		"run it on the host, or as root in a container of the host's user namespace: docker or sudo podman run --userns=host, in Kubernetes hostUsers: true",
		proc.ErrPermission, ErrUserNamespace)
}

// describeUserNamespace is the check of doctor.
func describeUserNamespace(namespace uint64, problem error) Check {
	c := Check{Name: "user namespace", OK: problem == nil, Detail: "the host's"}
	switch {
	case problem != nil:
		c.Detail = "not the host's: the capabilities below count only in it, and allow no BPF programs"
	case namespace != initialUserNamespace:
		c.Detail = "not the host's, but it allows BPF programs"
	}
	return c
}
