package tracer

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/features"
	"golang.org/x/sys/unix"

	"tt-memtrace/internal/proc"
)

// ErrUserNamespace means that this program runs in a user namespace that does not let it use BPF.
var ErrUserNamespace = errors.New("this user namespace is not the host's, as in a rootless container: capabilities in it allow no BPF programs")

// initialUserNamespace is the inode of the host's user namespace, a constant of Linux (PROC_USER_INIT_INO).
const initialUserNamespace = 0xeffffffd

// userNamespace returns the inode of this process's user namespace; the host's if there are no user namespaces.
func userNamespace() uint64 {
	inode, err := proc.Namespace("user")
	if err != nil {
		return initialUserNamespace // no user namespaces, or no /proc, which other checks report
	}
	return inode
}

// InHostNamespaces reports whether this process is in the host's user and PID namespaces, so that it can find all of
// the host's processes and its capabilities count for them.
func InHostNamespaces() bool {
	return userNamespace() == initialUserNamespace && checkPIDNamespace() == nil
}

// checkUserNamespace returns an error if this process's capabilities count only in a user namespace of its own. It
// tries to create a BPF map, because a host can delegate BPF to a namespace (BPF tokens).
func checkUserNamespace() error {
	namespace := userNamespace()
	if namespace == initialUserNamespace {
		return nil // no need to try
	}
	return userNamespaceError(namespace, features.HaveMapType(ebpf.RingBuf))
}

// userNamespaceError is checkUserNamespace for a given namespace and the result of creating a BPF ring buffer.
func userNamespaceError(namespace uint64, creating error) error {
	if namespace == initialUserNamespace || !errors.Is(creating, unix.EPERM) {
		return nil
	}
	return fmt.Errorf("%w: %w\n"+
		"run it on the host, or as root in a container of the host's user namespace: docker or sudo podman run --userns=host, in Kubernetes hostUsers: true",
		proc.ErrPermission, ErrUserNamespace)
}

// describeUserNamespace is the check that doctor prints.
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
