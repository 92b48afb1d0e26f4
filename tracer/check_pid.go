package tracer

import (
	"errors"
	"fmt"
	"os"
	"syscall"

	"tt-memtrace/tracer/proc"
)

// CheckPID says why a process cannot be traced, or nil.
func CheckPID(pid uint32) error {
	if pid == 0 {
		return errors.New("tracing PID 0: that is no process")
	}
	st, err := os.Stat(fmt.Sprintf("/proc/%d", pid))
	if errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("tracing PID %d: no such process", pid)
	}
	if err != nil {
		return fmt.Errorf("tracing PID %d: %w", pid, err)
	}
	if tgid := proc.ThreadGroup(pid); tgid != 0 && tgid != pid {
		return fmt.Errorf("tracing PID %d: that is a thread of process %d", pid, tgid)
	}
	f, err := os.Open(fmt.Sprintf("/proc/%d/environ", pid))
	f.Close()
	if errors.Is(err, os.ErrPermission) {
		owner := "another user"
		if s, ok := st.Sys().(*syscall.Stat_t); ok {
			owner = fmt.Sprintf("user %d", s.Uid)
		}
		return fmt.Errorf("tracing PID %d, which belongs to %s: %w: this needs cap_sys_ptrace and cap_dac_read_search\nrun it as root, or grant it once: %s",
			pid, owner, proc.ErrPermission, GrantLine())
	}
	return nil
}
