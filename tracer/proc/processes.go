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
)

// Name is how the host kernel calls a process, of 15 bytes at most, and when it started, in ticks since
// the boot. The name is the process's own and untrusted.
func Name(pid uint32) (name string, started uint64, err error) {
	s, err := stat(pid)
	return s.command, s.started, err
}

// maxArguments is how much of a command line is shown, bytes: one can have megabytes.
const maxArguments = 4096

// Arguments of a process, its own and untrusted words; of a longer command line the beginning, and an ellipsis. They lie in its
// memory: the calling thread waits for as long as a page does, see memory.Process.
func Arguments(pid uint32) ([]string, error) {
	f, err := os.Open(fmt.Sprintf("/proc/%d/cmdline", pid))
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

// maxEnvironment bounds how much of a process's environment is read, bytes: the host kernel
// lets a program begin with less, but a process can claim that its own is larger.
const maxEnvironment = 8 << 20

// Environment is the value of a variable in the environment that a process began with, "" where it is not set. It lies in
// its memory, as Arguments do.
func Environment(pid uint32, name string) string {
	f, err := os.Open(fmt.Sprintf("/proc/%d/environ", pid))
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

// exiting is the kernel's PF_EXITING: the task has begun to end. The tracepoint of
// its end comes later.
const exiting = 4

// Alive says whether a process has not begun to end: a thread of it has not, mostly
// the first one, which others can outlive.
func Alive(pid uint32) bool {
	first, err := stat(pid)
	return err == nil && (first.flags&exiting == 0 || heir(pid, first) != 0)
}

// Heir is a thread of a process whose main thread has ended, by which the host kernel shows its memory still; 0 where that has not
// ended, or no other goes on.
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

// Uninterruptible says whether a thread of this process waits for what the host kernel does, such as
// fetching a page: not for a processor, nor for another thread.
func Uninterruptible(tid int) bool { return threadState(tid) == "D" }

// Runs says whether a thread of this process runs, or waits for a processor.
func Runs(tid int) bool { return threadState(tid) == "R" }

// threadState is the state of a thread of this process, as in /proc, or empty.
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

// ResidentMemory is what a process has in the host's memory, bytes: pages shared with others
// count in full. It is false where there is no such process.
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
