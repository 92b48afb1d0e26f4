package program

import (
	"slices"

	"github.com/prometheus/procfs"
)

// WithChildren are a process and those of its children that live.
func WithChildren(pid int) ([]procfs.Proc, error) {
	all, err := procfs.AllProcs()
	return slices.DeleteFunc(all, func(p procfs.Proc) bool {
		st, err := p.Stat()
		return err != nil || p.PID != pid && st.PPID != pid
	}), err
}
