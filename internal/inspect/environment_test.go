package inspect

import (
	"bufio"
	"io"
	"os/exec"
	"strings"
	"testing"

	"tt-memtrace/internal/inspect/view"
	"tt-memtrace/internal/memory"
	"tt-memtrace/test/fixture"
)

// What a process sets itself is found, also where its executable has the variable that points to it instead of
// the C library, as Python's often has.
func TestEnvironmentThatAProcessSets(t *testing.T) {
	sets := func(pid uint32) bool {
		t.Helper()
		in := &Inspector{Process: &view.Process{Mem: memory.Of(pid), Opener: memory.FilesOf(pid)}}
		set, err := NewChips(in, pid).renumbers(in.View())
		if err != nil {
			t.Error(err)
		}
		return set
	}
	p := fixture.Launch(t)
	for _, test := range []struct {
		command string
		want    bool
	}{
		{"setenv X TT_VISIBLE_DEVICES=1", false},
		{"setenv TT_VISIBLE_DEVICES_X 1", false},
		{"setenv TT_VISIBLE_DEVICES ", false},
		{"setenv TT_VISIBLE_DEVICES 2,3", true},
	} {
		fixture.Do(t, p, "%s", test.command)
		if got := sets(p.PID); got != test.want {
			t.Errorf("after %s: %t", test.command, got)
		}
	}
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("no python3")
	}
	c := exec.Command(python, "-c", `
import os
os.environ["TT_VISIBLE_DEVICES"] = "2"
print("set", flush=True)
input()
del os.environ["TT_VISIBLE_DEVICES"]
print("gone", flush=True)
input()
`)
	in, err := c.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	defer c.Wait()
	defer in.Close()
	lines := bufio.NewReader(out)
	for _, want := range []string{"set", "gone"} {
		if said, err := lines.ReadString('\n'); strings.TrimSpace(said) != want {
			t.Fatalf("it said %q: %v", said, err)
		}
		if got := sets(uint32(c.Process.Pid)); got != (want == "set") {
			t.Errorf("%s: %t", want, got)
		}
		io.WriteString(in, "\n")
	}
}
