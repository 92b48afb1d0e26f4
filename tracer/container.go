package tracer

import (
	"fmt"
	"io"
	"os"

	"github.com/prometheus/procfs"

	"tt-memtrace/aggregator"
	"tt-memtrace/cgroup"
)

// Describe reads what can be said of a process without a look at its memory. Its
// words are the process's own and untrusted.
func Describe(pid uint32) (aggregator.Process, error) {
	command, started, err := describe(pid)
	if err != nil {
		return aggregator.Process{}, err
	}
	p := aggregator.Process{Started: started, Command: command}
	p.Container, p.InnerPID = placed(pid)
	return p, nil
}

// placed says which container a process is in, and its PID inside its own PID
// namespace; empty and 0 where it is in none that is known, or in ours.
func placed(pid uint32) (container string, inner uint32) {
	if f, err := os.Open(fmt.Sprintf("/proc/%d/cgroup", pid)); err == nil {
		// A path has 4096 bytes at most, but version 1 has a line a controller.
		b, _ := io.ReadAll(io.LimitReader(f, 64<<10))
		f.Close()
		container = cgroup.Parse(string(b)).String()
	}
	if p, err := procfs.NewProc(int(pid)); err == nil {
		if st, err := p.NewStatus(); err == nil && len(st.NSpids) > 1 {
			inner = uint32(st.NSpids[len(st.NSpids)-1])
		}
	}
	return container, inner
}
