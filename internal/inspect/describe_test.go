package inspect

import (
	"fmt"
	"math"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"tt-memtrace/internal/inspect/view"
	"tt-memtrace/internal/memory"
	"tt-memtrace/test/fixture"
)

// A process in our PID namespace has no other PID; one in another has both.
func TestInnerPID(t *testing.T) {
	if _, inner := ContainerOf(uint32(os.Getpid())); inner != 0 {
		t.Errorf("our own is %d", inner)
	}
	c := exec.Command("sleep", "60")
	c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}
	if err := c.Start(); err != nil {
		t.Skipf("no PID namespaces here: %v", err)
	}
	defer c.Wait()
	defer c.Process.Kill()
	if p, err := Describe(uint32(c.Process.Pid)); err != nil || p.InnerPID != 1 || p.Started == 0 {
		t.Errorf("%+v, %v", p, err)
	}
	if _, err := Describe(1<<22 + 1); err == nil {
		t.Error("a process that is not there is described")
	}
}

func TestBeganPrivate(t *testing.T) {
	private := func(pid uint32) bool {
		return NewChips(&Inspector{Process: &view.Process{Mem: memory.Of(pid), Opener: memory.Of(pid)}}, pid).beganPrivate()
	}
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
		pid := fixture.Launch(t, test.env...).PID
		// A program that was just started gets its environment a moment later.
		for deadline := time.Now().Add(time.Minute); ; {
			env, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
			if err != nil || time.Now().After(deadline) {
				t.Fatalf("%s: no environment: %v", test.name, err)
			}
			if len(env) > 0 {
				break
			}
		}
		if got := private(pid); got != test.want {
			t.Errorf("%s: %t", test.name, got)
		}
	}
	if private(math.MaxUint32) {
		t.Error("a process that is not there numbers chips in its own way")
	}
}

func TestMain(m *testing.M) { os.Exit(fixture.Main(m)) }
