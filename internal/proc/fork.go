package proc

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// forkNoExec is the kernel's PF_FORKNOEXEC: the task was forked and has not called
// exec since. Its memory began as a copy of its parent's.
const forkNoExec = 0x40

// kernelThread is its PF_KTHREAD: a kernel thread has no memory that could be a copy, and never calls exec.
const kernelThread = 0x200000

// statFields are the fields read from /proc/PID/stat.
type statFields struct {
	// command is the process's own, untrusted text.
	command string
	parent  uint32
	flags   uint64
	// threads is the number of threads, including a main thread that ended before the others.
	threads uint64
	// started is in clock ticks since the boot.
	started uint64
	// code and stack are the addresses of the program's code and stack, which forks share; 1 or 0 if they may not be
	// read.
	code, stack uint64
}

// stat reads /proc/PID/stat.
func stat(pid uint32) (s statFields, err error) {
	path := fmt.Sprintf("/proc/%d/stat", pid)
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return s, &os.PathError{Op: "open", Path: path, Err: err}
	}
	defer unix.Close(fd)
	// A line is shorter, and the kernel returns it with one read. This is done for all processes of a host, and
	// an os.File would take twice as many system calls.
	var line [2048]byte
	n, err := unix.Read(fd, line[:])
	if err != nil {
		return s, &os.PathError{Op: "read", Path: path, Err: err}
	}
	return parseStat(string(line[:n]))
}

// parseStat parses a line of /proc/PID/stat. The command in it can contain anything but a newline.
func parseStat(line string) (s statFields, err error) {
	begin, end := strings.IndexByte(line, '('), strings.LastIndexByte(line, ')')
	if begin < 0 || end < begin {
		return s, errors.New("reading stat: it has no command")
	}
	s.command = line[begin+1 : end]
	fields := strings.Fields(line[end+1:])
	const first = 3 // number of the first field after the command
	number := func(n int) (v uint64) {
		if err == nil && n-first >= len(fields) {
			err = fmt.Errorf("reading stat: it has no field %d", n)
		}
		if err == nil {
			v, err = strconv.ParseUint(fields[n-first], 10, 64)
		}
		return v
	}
	s.parent, s.flags, s.started = uint32(number(4)), number(9), number(22)
	s.threads = number(20)
	s.code, s.stack = number(26), number(28)
	return s, err
}

// Forked reports whether a process was forked and has not called exec since.
func Forked(pid uint32) bool {
	is, _ := forked(pid)
	return is
}

func forked(pid uint32) (bool, error) {
	s, err := stat(pid)
	return err == nil && s.flags&(forkNoExec|kernelThread) == forkNoExec, err
}

// ForkParent returns the parent of a process that was forked and has not called exec since; 0 of any other.
func ForkParent(pid uint32) uint32 {
	s, err := stat(pid)
	if err != nil || s.flags&forkNoExec == 0 || s.parent <= 1 {
		return 0
	}
	return s.parent
}

// Folder returns the inode number of a process's /proc folder, or 0 if it is gone. The next process with the PID has
// another one.
func Folder(pid uint32) uint64 {
	var st unix.Stat_t
	if unix.Stat(fmt.Sprintf("/proc/%d", pid), &st) != nil {
		return 0
	}
	return st.Ino
}

// OfKernel reports whether a process is a kernel thread.
func OfKernel(pid uint32) bool {
	s, err := stat(pid)
	return err == nil && s.flags&kernelThread != 0
}

// Forks finds processes that were forked and have not called exec since. A process that has called exec stays so, and
// is checked only once. One goroutine at a time may use it.
type Forks struct {
	// others are processes that are no forks, with the inode number of their /proc folder, which shows if a PID is
	// reused.
	others map[uint32]uint64
}

// Among returns the forks among processes. It forgets processes that are not in the list.
func (f *Forks) Among(pids []uint32) (forks []uint32) {
	before := f.others
	f.others = make(map[uint32]uint64, len(pids))
	for _, pid := range pids {
		now := Folder(pid)
		if now == 0 {
			continue // gone
		}
		if folder, known := before[pid]; !known || folder != now {
			is, err := forked(pid)
			if is {
				forks = append(forks, pid)
			}
			if is || err != nil {
				continue
			}
		}
		f.others[pid] = now
	}
	return forks
}

// ForkedFrom returns the process of whose objects a forked process's memory may have copies, at the same addresses:
// its parent or, if that ended, another process that it was forked from and that maps the library at the same place.
// It returns 0 if there is none, or if the process has called exec.
func ForkedFrom(m Mapping) uint32 {
	own, err := stat(m.PID)
	if err != nil || own.flags&forkNoExec == 0 {
		return 0
	}
	if own.parent > 1 {
		if there, err := MapsAlike(own.parent, m); err == nil && there {
			return own.parent
		}
	}
	if own.code <= 1 || own.stack <= 1 {
		return 0
	}
	pids, err := PIDs()
	if err != nil {
		return 0
	}
	oldest, since := uint32(0), own.started
	for _, pid := range pids {
		s, err := stat(pid)
		if err != nil || pid == m.PID || s.code != own.code || s.stack != own.stack || s.started > since ||
			s.started == since && pid > m.PID {
			continue
		}
		if there, err := MapsAlike(pid, m); err == nil && there {
			oldest, since = pid, s.started
		}
	}
	return oldest
}
