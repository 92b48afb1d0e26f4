package tracer

import (
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"tt-memtrace/internal/discover"
	"tt-memtrace/internal/memory"
	"tt-memtrace/internal/proc"
	"tt-memtrace/test/fixture"
)

func TestCheckPIDTakesProcesses(t *testing.T) {
	for _, pid := range []int{os.Getpid(), os.Getppid(), int(fixture.Launch(t).PID)} {
		if err := CheckPID(uint32(pid)); err != nil {
			t.Error(err)
		}
	}
}

func TestCheckPIDRefuses(t *testing.T) {
	ended := exec.Command("true")
	if err := ended.Run(); err != nil {
		t.Fatal(err)
	}
	// A thread that is not the first of its process.
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	thread := 0
	for _, task := range tasks {
		if id, err := strconv.Atoi(task.Name()); err == nil && id != os.Getpid() {
			thread = id
		}
	}
	if thread == 0 {
		t.Fatal("the test has a single thread")
	}
	for _, test := range []struct {
		name string
		pid  uint32
		says []string
	}{
		{"zero", 0, []string{"PID 0", "no process"}},
		{"one that ended", uint32(ended.Process.Pid), []string{"no such process"}},
		{"one that cannot be", math.MaxUint32, []string{"4294967295", "no such process"}},
		{"a thread", uint32(thread), []string{"thread of process", fmt.Sprint(os.Getpid())}},
	} {
		t.Run(test.name, func(t *testing.T) {
			err := CheckPID(test.pid)
			if err == nil {
				t.Fatal("it is taken")
			}
			for _, s := range test.says {
				if !strings.Contains(err.Error(), s) {
					t.Errorf("the error %q does not say %q", err, s)
				}
			}
		})
	}
}

// The error for another user's process says whose it is and which rights it takes.
func TestCheckPIDOfAnotherUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can become another user")
	}
	const nobody = 65534
	as := &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	cmd := helper("checkpid", fmt.Sprint(fixture.Launch(t).PID), fmt.Sprint(undumpable(t, as)))
	cmd.SysProcAttr = as
	if err := cmd.Run(); err != nil {
		t.Error(err)
	}
}

// undumpable starts a process of a user who may not read its executable, and so may not read the process.
func undumpable(t *testing.T, as *syscall.SysProcAttr) int {
	dir := t.TempDir()
	for _, d := range []string{dir, filepath.Dir(dir)} {
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	path := filepath.Join(dir, "driver")
	if err := os.WriteFile(path, fixture.Read(t, fixture.SharedDriver(t)), 0o711); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(path)
	cmd.SysProcAttr = as
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		in.Close()
		cmd.Wait()
	})
	return cmd.Process.Pid
}

// helpCheckPID is without any rights.
func helpCheckPID(args []string) error {
	pid, err := strconv.ParseUint(args[0], 10, 32)
	if err != nil {
		return err
	}
	err = CheckPID(uint32(pid))
	if !errors.Is(err, proc.ErrPermission) || !strings.Contains(err.Error(), "user 0") || !strings.Contains(err.Error(), "cap_sys_ptrace") {
		return fmt.Errorf("CheckPID of root's process: %v", err)
	}
	own, err := strconv.ParseUint(args[1], 10, 32)
	if err != nil {
		return err
	}
	if err := CheckPID(uint32(own)); !errors.Is(err, proc.ErrPermission) || !strings.Contains(err.Error(), "belongs to this user, but is not dumpable") {
		return fmt.Errorf("CheckPID of a process that is not dumpable: %v", err)
	}
	if err := CheckPID(uint32(os.Getpid())); err != nil {
		return fmt.Errorf("CheckPID of one's own process: %w", err)
	}
	if err := CheckRights(); !errors.Is(err, proc.ErrPermission) || !strings.Contains(err.Error(), "setcap") {
		return fmt.Errorf("CheckRights: %v", err)
	}
	if _, err := New(Options{PIDs: []uint32{uint32(pid)}}); !errors.Is(err, proc.ErrPermission) {
		return fmt.Errorf("New: %v", err)
	}
	if list, err := discover.NewFinder().Mappings(uint32(pid)); err == nil {
		return fmt.Errorf("it sees the mappings %v of root's process", list)
	}
	var b [8]byte
	if err := memory.Of(uint32(pid)).ReadAt(b[:], 0x400000); err == nil {
		return errors.New("it can read the memory of root's process")
	}
	return nil
}

// If a user has the capabilities and is still denied, the error names the other cause and does not suggest the
// capabilities.
func TestDeniedInSpiteOfTheRights(t *testing.T) {
	all := []Right{{Capability: "cap_bpf"}, {Capability: "cap_sys_ptrace", Held: true}, {Capability: "cap_dac_read_search", Held: true}}
	if !holdsToRead(all) || holdsToRead([]Right{all[1], {Capability: "cap_dac_read_search"}}) {
		t.Error("both capabilities are needed, and no other")
	}
	for _, c := range []struct {
		held      bool
		namespace uint64
		says, not []string
	}{
		{true, initialUserNamespace, []string{"in spite of cap_sys_ptrace and cap_dac_read_search", "security module", "unconfined"}, []string{"setcap", "as root", "namespace"}},
		{true, initialUserNamespace + 1, []string{"count only in this user namespace", "run it on the host"}, []string{"setcap", "as root"}},
		{false, initialUserNamespace, []string{"this needs cap_sys_ptrace and cap_dac_read_search", "run it as root, or grant them once: sudo setcap "}, []string{"security module"}},
	} {
		err := deniedError(7, "user 12", c.held, c.namespace)
		if !errors.Is(err, proc.ErrPermission) {
			t.Errorf("%v is another error", err)
		}
		for _, want := range append(c.says, "PID 7, which belongs to user 12: not permitted") {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("no %q in %q", want, err)
			}
		}
		for _, other := range c.not {
			if strings.Contains(err.Error(), other) {
				t.Errorf("%q in %q", other, err)
			}
		}
	}
}
