package tracer

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"

	"tt-memtrace/internal/proc"
)

// CheckPID returns why a process cannot be traced, or nil.
func CheckPID(pid uint32) error {
	if pid == 0 {
		return errors.New("tracing PID 0: no process has this PID")
	}
	st, err := os.Stat(fmt.Sprintf("/proc/%d", pid))
	if errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("tracing PID %d: no such process", pid)
	}
	if err != nil {
		return fmt.Errorf("tracing PID %d: %w", pid, err)
	}
	if tgid := proc.ThreadGroup(pid); tgid != 0 && tgid != pid {
		return fmt.Errorf("tracing PID %d: it is a thread of process %d", pid, tgid)
	}
	f, err := os.Open(fmt.Sprintf("/proc/%d/environ", pid))
	f.Close()
	if errors.Is(err, os.ErrPermission) {
		owner := "another user"
		if s, ok := st.Sys().(*syscall.Stat_t); ok {
			owner = fmt.Sprintf("user %d", s.Uid)
			if s.Uid == uint32(os.Geteuid()) {
				owner = "this user, but is not dumpable or has capabilities"
			}
		}
		return deniedError(pid, owner, holdsToRead(Rights()), userNamespace())
	}
	return nil
}

// toRead are the capabilities needed to read another user's process.
var toRead = []string{"cap_sys_ptrace", "cap_dac_read_search"}

// holdsToRead reports whether these rights suffice to read other users' processes.
func holdsToRead(rights []Right) bool {
	return !slices.ContainsFunc(rights, func(r Right) bool { return !r.Held && slices.Contains(toRead, r.Capability) })
}

// deniedError says why this process may not read another one. held: it has the capabilities toRead. namespace is its
// user namespace.
func deniedError(pid uint32, owner string, held bool, namespace uint64) error {
	needs := strings.Join(toRead, " and ")
	denied := fmt.Sprintf("tracing PID %d, which belongs to %s", pid, owner)
	switch {
	case held && namespace != initialUserNamespace:
		return fmt.Errorf("%s: %w: %s count only in this user namespace and the process is in another, or a security module forbids it\nrun it on the host", denied, proc.ErrPermission, needs)
	case held:
		return fmt.Errorf("%s: %w in spite of %s: a security module, such as AppArmor or SELinux, forbids it\n"+
			"run it unconfined: in a container with --security-opt apparmor=unconfined, or label=disable for SELinux", denied, proc.ErrPermission, needs)
	}
	return fmt.Errorf("%s: %w: this needs %s\nrun it as root, or grant them once: %s", denied, proc.ErrPermission, needs, GrantLine())
}
