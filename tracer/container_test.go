package tracer

import (
	"os"
	"os/exec"
	"syscall"
	"testing"
)

// A process in our PID namespace has no other PID; one in another has both.
func TestInnerPID(t *testing.T) {
	if _, inner := placed(uint32(os.Getpid())); inner != 0 {
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
