package program

import (
	"slices"

	"github.com/prometheus/procfs"
)

// WithChildren returns a process and its live children.
func WithChildren(pid int) ([]procfs.Proc, error) {
	all, err := procfs.AllProcs()
	return slices.DeleteFunc(all, func(p procfs.Proc) bool {
		st, err := p.Stat()
		return err != nil || p.PID != pid && st.PPID != pid
	}), err
}
