package tracer

import (
	"errors"
	"fmt"

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
