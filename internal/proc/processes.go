package proc

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"
)

// Name returns the kernel's name of a process, at most 15 bytes, and its start time in ticks since boot. The
// name is the process's own and untrusted.
func Name(pid uint32) (name string, started uint64, err error) {
	s, err := stat(pid)
	return s.command, s.started, err
}

// Open opens a file of a process in /proc for reading. os.Open takes five system calls more, to find out that the file
// cannot be polled.
func Open(pid uint32, name string) (*os.File, error) {
	path := fmt.Sprintf("/proc/%d/%s", pid, name)
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	return os.NewFile(uintptr(fd), path), nil
}

// maxArguments bounds the shown command line, bytes: it can have megabytes.
const maxArguments = 4096

// Arguments returns a process's arguments, which are untrusted. A long command line is cut and ends in an ellipsis.
// They lie in the process's memory, so the calling thread waits as long as a page takes: see memory.Process.
func Arguments(pid uint32) ([]string, error) {
	f, err := Open(pid, "cmdline")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxArguments+1))
	if err != nil || len(b) == 0 {
		return nil, err
	}
	args := strings.Split(strings.TrimRight(string(b[:min(len(b), maxArguments)]), "\x00"), "\x00")
	if len(b) > maxArguments {
		args[len(args)-1] += "…"
	}
	return args, nil
}

// maxEnvironment bounds the part of an environment that is read, bytes. The kernel lets a program start with
// less, but a process can claim more.
const maxEnvironment = 8 << 20

// Environment returns a variable's value in the environment that a process began with, "" if it is not set. It lies
// in the process's memory, as Arguments do.
func Environment(pid uint32, name string) string {
	f, err := Open(pid, "environ")
	if err != nil {
		return ""
	}
	defer f.Close()
	r := bufio.NewReaderSize(io.LimitReader(f, maxEnvironment), 4096)
	for begins := true; ; {
		one, err := r.ReadSlice(0)
		if value, ok := bytes.CutPrefix(one, []byte(name+"=")); ok && begins {
			return string(bytes.TrimSuffix(value, []byte{0}))
		}
		if begins = err == nil; err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return ""
		}
	}
}

// exiting is the kernel's PF_EXITING: the task has begun to end. Its exit tracepoint comes later.
const exiting = 4

// Alive reports whether a process has not begun to end: some thread has not. That is mostly the main thread, but
// others can outlive it. A process that cannot be asked now, as when this process may open no more files, counts as
// alive.
func Alive(pid uint32) bool {
	first, err := stat(pid)
	if err != nil {
		return !IsGone(err)
	}
	return first.flags&exiting == 0 || heir(pid, first) != 0
}

// IsGone reports whether an error of reading a process's files in /proc says that there is no such process.
func IsGone(err error) bool { return errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH) }

// Heir returns a live thread of a process whose main thread has ended; the kernel still shows the process's
// memory under that thread. It is 0 if the main thread lives, or no other does.
func Heir(pid uint32) uint32 {
	first, err := stat(pid)
	if err != nil || first.flags&exiting == 0 {
		return 0
	}
	return heir(pid, first)
}

func heir(pid uint32, first statFields) uint32 {
	if first.threads <= 1 {
		return 0
	}
	threads, err := procfs.AllThreads(int(pid))
	if err != nil {
		return 0
	}
	for _, p := range threads {
		if st, err := p.Stat(); err == nil && st.Flags&exiting == 0 {
			return uint32(p.PID)
		}
	}
	return 0
}

// Uninterruptible reports whether a thread of this process waits inside the kernel, for a page for example: not
// for a CPU, nor for another thread.
func Uninterruptible(tid int) bool { return threadState(tid) == "D" }

// Runs reports whether a thread of this process runs, or waits for a CPU.
func Runs(tid int) bool { return threadState(tid) == "R" }

// threadState returns the state of a thread of this process as in /proc, or "".
func threadState(tid int) string {
	self, err := procfs.Self()
	if err != nil {
		return ""
	}
	t, err := self.Thread(tid)
	if err != nil {
		return ""
	}
	st, err := t.Stat()
	if err != nil {
		return ""
	}
	return st.State
}

// ResidentMemory returns a process's resident memory in bytes; shared pages count in full. It returns false if there
// is no such process.
func ResidentMemory(pid uint32) (uint64, bool) {
	p, err := procfs.NewProc(int(pid))
	if err != nil {
		return 0, false
	}
	s, err := p.Stat()
	if err != nil || s.ResidentMemory() <= 0 {
		return 0, false // a zombie has none
	}
	return uint64(s.ResidentMemory()), true
}

// PIDs lists the host's processes.
func PIDs() ([]uint32, error) {
	d, err := os.Open("/proc")
	if err != nil {
		return nil, err
	}
	defer d.Close()
	names, err := d.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	var list []uint32
	for _, n := range names {
		if pid, err := strconv.ParseUint(n, 10, 32); err == nil {
			list = append(list, uint32(pid))
		}
	}
	return list, nil
}

func ThreadGroup(pid uint32) uint32 {
	p, err := procfs.NewProc(int(pid))
	if err != nil {
		return 0
	}
	st, err := p.NewStatus()
	if err != nil {
		return 0
	}
	return uint32(st.TGID)
}
