package tracer

import (
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"tt-memtrace/bpf"
)

func TestCheckPIDTakesProcesses(t *testing.T) {
	for _, pid := range []int{os.Getpid(), os.Getppid(), int(launch(t).PID)} {
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

// Who may not trace a process of another user is told whose it is and what it takes.
func TestCheckPIDOfAnotherUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can become another user")
	}
	const nobody = 65534
	cmd := helper("checkpid", fmt.Sprint(launch(t).PID))
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	if err := cmd.Run(); err != nil {
		t.Error(err)
	}
}

// helpCheckPID is without any rights.
func helpCheckPID(args []string) error {
	pid, err := strconv.ParseUint(args[0], 10, 32)
	if err != nil {
		return err
	}
	err = CheckPID(uint32(pid))
	if !errors.Is(err, ErrPermission) || !strings.Contains(err.Error(), "user 0") || !strings.Contains(err.Error(), "cap_sys_ptrace") {
		return fmt.Errorf("CheckPID of root's process: %v", err)
	}
	if err := CheckPID(uint32(os.Getpid())); err != nil {
		return fmt.Errorf("CheckPID of one's own process: %w", err)
	}
	if err := CheckRights(); !errors.Is(err, ErrPermission) || !strings.Contains(err.Error(), "setcap") {
		return fmt.Errorf("CheckRights: %v", err)
	}
	if _, err := New(Options{PIDs: []uint32{uint32(pid)}}); !errors.Is(err, ErrPermission) {
		return fmt.Errorf("New: %v", err)
	}
	if list, err := mappings(uint32(pid), nil); err == nil {
		return fmt.Errorf("it sees the mappings %v of root's process", list)
	}
	var b [8]byte
	if err := processMemory(pid).ReadAt(b[:], 0x400000); err == nil {
		return errors.New("it can read the memory of root's process")
	}
	return nil
}

func TestRenumbered(t *testing.T) {
	for _, test := range []struct {
		name string
		env  []string
		want bool
	}{
		{"not set", nil, false},
		{"empty", []string{"TT_VISIBLE_DEVICES="}, false},
		{"one chip", []string{"TT_VISIBLE_DEVICES=3"}, true},
		{"several", []string{"A=b", "TT_VISIBLE_DEVICES=0,1", "C=d"}, true},
		{"a longer name", []string{"TT_VISIBLE_DEVICES_X=1", "X_TT_VISIBLE_DEVICES=1"}, false},
		{"in another's value", []string{"X=TT_VISIBLE_DEVICES=1"}, false},
	} {
		pid := launch(t, test.env...).PID
		// A program that was just started gets its environment a moment later.
		for deadline := time.Now().Add(10 * time.Second); ; {
			env, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
			if err != nil || time.Now().After(deadline) {
				t.Fatalf("%s: no environment: %v", test.name, err)
			}
			if len(env) > 0 {
				break
			}
		}
		if got := renumbered(pid); got != test.want {
			t.Errorf("%s: %t", test.name, got)
		}
	}
	if renumbered(math.MaxUint32) {
		t.Error("a process that is not there is renumbered")
	}
}

func TestMappingsListTheRuntimeOnce(t *testing.T) {
	p := launch(t)
	if list, err := mappings(p.PID, nil); err != nil || len(list) != 0 {
		t.Errorf("before it is loaded: %+v, %v", list, err)
	}
	path := library(t, layoutB)
	do(t, p, "open %s", path)
	list, err := mappings(p.PID, nil)
	if err != nil || len(list) != 1 || list[0].Path != path || list[0].PID != p.PID || list[0].Base == 0 || list[0].Base%4096 != 0 {
		t.Fatalf("%+v, %v", list, err)
	}
	if id := open(t, path).ID; list[0].ID.Inode != id.Inode {
		t.Errorf("it maps %+v, the file is %+v", list[0].ID, id)
	}
	if _, err := mappings(math.MaxUint32, nil); err == nil {
		t.Error("a process that is not there has mappings")
	}
	if _, ok := Users()[p.PID]; !ok {
		t.Error("it is not among the users of the runtime")
	}
}

func TestProcessMemory(t *testing.T) {
	p := user(t, layoutA)
	list, err := mappings(p.PID, nil)
	if err != nil {
		t.Fatal(err)
	}
	m := processMemory(p.PID)
	b := make([]byte, 4)
	if err := m.ReadAt(b, list[0].Base); err != nil || string(b) != "\x7fELF" {
		t.Errorf("% x, %v", b, err)
	}
	if err := m.ReadAt(nil, 0); err != nil {
		t.Error(err)
	}
	for _, bad := range []uint64{0, 4096, 1 << 47, math.MaxUint64} {
		if err := m.ReadAt(b, bad); err == nil {
			t.Errorf("it read % x at %#x", b, bad)
		}
	}
	p.Kill()
	if err := m.ReadAt(b, list[0].Base); err == nil {
		t.Error("it read memory of a process that is gone")
	}
}

// An exec that is read after the new program was found is older than it.
func TestExecEndsOnlyWhatWasBeforeIt(t *testing.T) {
	const pid = 7
	r := &run{t: &Tracer{}, processes: map[uint32]*traced{pid: {at: 10}}}
	r.object(&bpf.MemtraceTtHead{Kind: uint8(bpf.MemtraceTtKindTT_EXEC), Pid: pid, Time: 9}, 0)
	if r.processes[pid] == nil || len(r.batch) > 0 {
		t.Errorf("it ended: %v", r.batch)
	}
}
