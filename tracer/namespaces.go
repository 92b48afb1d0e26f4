package tracer

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/features"
	"golang.org/x/sys/unix"

	"tt-memtrace/internal/proc"
)

// ErrPIDNamespace means that this program runs in a PID namespace other than the host's.
var ErrPIDNamespace = errors.New("this PID namespace is not the host's, so the host's processes cannot be found")

// checkPIDNamespace returns why processes cannot be found by their PIDs, or nil. The BPF programs use the host's
// PIDs, but /proc of a container with its own PID namespace has others, so every traced process would be in no
// account.
func checkPIDNamespace() error {
	switch host, err := proc.InHostPIDNamespace(); {
	case err == nil && !host:
		return fmt.Errorf("%w: %w\n"+
			"start the container in the host's: docker or podman run --pid=host, in Kubernetes hostPID: true", proc.ErrPermission, ErrPIDNamespace)
	case proc.CheckMounted() != nil:
		return proc.ErrNotMounted
	default:
		return err
	}
}

// ErrTimeNamespace means that this program's clock differs from the clock that dates events.
var ErrTimeNamespace = errors.New("this time namespace is not the host's, whose clock dates events: " +
	"start it in the host's; --sample works in this one")

// initialTimeNamespace is the inode of the host's time namespace, a constant of Linux (PROC_TIME_INIT_INO).
const initialTimeNamespace = 0xeffffffa

// checkTimeNamespace returns an error if this process's clock differs from the clock that dates events.
func checkTimeNamespace() error {
	inode, err := proc.Namespace("time")
	if err != nil || inode == initialTimeNamespace {
		return nil // no time namespaces, or no /proc, which other checks report
	}
	b, err := os.ReadFile("/proc/self/timens_offsets")
	if err != nil {
		return ErrTimeNamespace
	}
	for line := range strings.Lines(string(b)) {
		if words := strings.Fields(line); len(words) != 3 || words[1] != "0" || words[2] != "0" {
			return ErrTimeNamespace
		}
	}
	return nil
}

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
