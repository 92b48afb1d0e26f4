package inspect

import (
	"fmt"
	"io"

	"github.com/prometheus/procfs"

	"tt-memtrace/aggregator"
	"tt-memtrace/internal/cgroup"
	"tt-memtrace/internal/memory"
	"tt-memtrace/internal/proc"
)

// Describe describes a process without a look at its memory's objects. Its texts are the process's own and untrusted.
func Describe(pid uint32) (aggregator.Process, error) { return DescribeFrom(memory.FilesOf(pid)) }

// DescribeFrom does what Describe does, for a process whose files are read in this way.
func DescribeFrom(files *memory.Process) (aggregator.Process, error) {
	command, started, err := files.Command()
	if err != nil {
		return aggregator.Process{}, err
	}
	p := aggregator.Process{Started: started, Command: command}
	p.Container, p.InnerPID = ContainerOf(files.PID())
	return p, nil
}

// container returns a process's container, from its control groups.
func container(pid uint32) (c cgroup.Container) {
	if f, err := proc.Open(pid, "cgroup"); err == nil {
		// A path has at most 4096 bytes, but version 1 has a line for each controller.
		b, _ := io.ReadAll(io.LimitReader(f, 64<<10))
		f.Close()
		c = cgroup.Parse(string(b))
	}
	return c
}

// Root is the Tenant of root's processes outside of containers.
const Root = "user 0"

// Tenant returns who is charged for a process's use of shared resources: its container or its user. If only a user
// claims that it is a container, it is that user.
func Tenant(pid uint32) string {
	if t := container(pid).Tenant(); t != "" {
		return t
	}
	if p, err := procfs.NewProc(int(pid)); err == nil {
		if st, err := p.NewStatus(); err == nil {
			return fmt.Sprintf("user %v", st.UIDs[0])
		}
	}
	return "nobody"
}

// ContainerOf returns a process's container, and its PID inside its own PID namespace; "" and 0 if it is in no known
// container, or in the tracer's PID namespace.
func ContainerOf(pid uint32) (name string, inner uint32) {
	return container(pid).String(), proc.InnerPID(pid)
}
