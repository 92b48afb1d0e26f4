package tracer

import (
	"errors"
	"fmt"

	"tt-memtrace/tracer/proc"
)

// ErrPIDNamespace says that this program runs in a PID namespace of its own.
var ErrPIDNamespace = errors.New("this is a PID namespace of its own, in which the host's processes cannot be found")

// checkPIDNamespace says why processes could not be found by their PIDs, or nil. The
// BPF programs name processes by the PIDs of the host, and /proc of a container that
// has a PID namespace of its own has others: all that is traced would be in no account.
func checkPIDNamespace() error {
	switch host, err := proc.InHostPIDNamespace(); {
	case err == nil && !host:
		return fmt.Errorf("%w: %w\n"+
			"start the container with the host's: docker or podman run --pid=host, in Kubernetes hostPID: true", proc.ErrPermission, ErrPIDNamespace)
	case proc.CheckMounted() != nil:
		return proc.ErrNotMounted
	default:
		return err
	}
}
