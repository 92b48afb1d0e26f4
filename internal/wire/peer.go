package wire

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strings"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"
)

// credentials are who is at the other end of a connection: for a client who
// connected, for a server who listened. The PID is 0 where it is not of this
// namespace.
func credentials(c *net.UnixConn) (*unix.Ucred, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return nil, err
	}
	var cred *unix.Ucred
	if e := raw.Control(func(fd uintptr) {
		cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); e != nil {
		return nil, e
	}
	return cred, err
}

// peer is a client.
type peer struct {
	// pid is its process, 0 where that is not of this PID namespace.
	pid int32
	uid uint32
	// trusted: it may report for processes of all users.
	trusted bool
}

// innerPID is a process's PID in its own PID namespace.
func innerPID(pid int32) int32 {
	if s, err := status(pid); err == nil && len(s.NSpids) > 0 {
		return int32(s.NSpids[len(s.NSpids)-1])
	}
	return pid
}

func status(pid int32) (procfs.ProcStatus, error) {
	p, err := procfs.NewProc(int(pid))
	if err != nil {
		return procfs.ProcStatus{}, err
	}
	return p.NewStatus()
}

// realUID returns the user who started a process, and whether that is known.
func realUID(pid int32) (uid uint32, known bool) {
	s, err := status(pid)
	if err != nil {
		return 0, false
	}
	return uint32(s.UIDs[0]), true
}

// started is when a process was started, in clock ticks since boot, 0 where that
// cannot be read, and whether it is there. A process of another user is alive too.
func started(pid int32) (ticks uint64, alive bool) {
	if pid <= 0 {
		return 0, true
	}
	if err := unix.Kill(int(pid), 0); errors.Is(err, unix.ESRCH) {
		return 0, false
	}
	p, err := procfs.NewProc(int(pid))
	if err != nil {
		return 0, true
	}
	if stat, err := p.Stat(); err == nil {
		return stat.Starttime, true
	}
	return 0, true
}

// command returns a process's name, or "". For trusted processes it adds the arguments: these are read from the
// process's memory, and its owner could make that wait for ever.
func command(pid int32, trusted bool) string {
	if pid <= 0 {
		return ""
	}
	p, err := procfs.NewProc(int(pid))
	if err != nil {
		return ""
	}
	var args []string
	if trusted {
		args, _ = p.CmdLine()
	}
	if len(args) == 0 {
		name, _ := p.Comm()
		return name
	}
	return strings.Join(args, " ")
}

// serverInstance names a running server by its process, or by its socket where that
// is in another PID namespace.
func serverInstance(c *net.UnixConn, path string) (string, error) {
	cred, err := credentials(c)
	if err != nil {
		return "", err
	}
	if cred.Pid > 0 {
		ticks, _ := started(cred.Pid)
		return fmt.Sprintf("process %d started %d boot %s", cred.Pid, ticks, bootID()), nil
	}
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return "", err
	}
	return fmt.Sprintf("socket %d of %d changed %d.%09d boot %s", st.Ino, st.Dev, st.Ctim.Sec, st.Ctim.Nsec, bootID()), nil
}

// bootID changes with each boot.
func bootID() string {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}
