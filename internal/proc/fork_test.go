package proc

import (
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestParseStat(t *testing.T) {
	const rest = " S 7 1 1 0 -1 4194368 1 2 3 4 5 6 7 8 20 0 1 0 99 1000 10 18446744073709551615 4096 8192 12288 0 0"
	for _, command := range []string{"(sh)", "(a b)", "(x) S 1 1)", "(\xff()"} {
		got, err := parseStat("12 " + command + rest)
		want := statFields{command: command[1 : len(command)-1], parent: 7, flags: 4194368, started: 99, code: 4096, stack: 12288, threads: 1}
		if err != nil || got != want {
			t.Errorf("%q: %+v, %v", command, got, err)
		}
	}
	for _, bad := range []string{"", "12 sh" + rest, "12 )(" + rest, "12 (sh)", "12 (sh) S x", "12 (sh) S 7 1 1 0 -1 4194368"} {
		if got, err := parseStat(bad); err == nil {
			t.Errorf("%q: %+v", bad, got)
		}
	}
}

func FuzzParseStat(f *testing.F) {
	f.Add("12 (sh) S 7 1 1 0 -1 4194368 1 2 3 4 5 6 7 8 20 0 1 0 99 1000 10 18446744073709551615 4096 8192 12288 0 0")
	f.Fuzz(func(t *testing.T, line string) { parseStat(line) })
}

// says starts a command that says a PID first, and reads what it is then sent.
func says(t *testing.T, name string, args ...string) (c *exec.Cmd, in io.WriteCloser, pid uint32) {
	t.Helper()
	c = exec.Command(name, args...)
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
	if _, err := fmt.Fscan(out, &pid); err != nil {
		t.Fatal(err)
	}
	return c, in, pid
}

// What a shell runs in a subshell has not called exec; what it runs as a command has.
func TestForked(t *testing.T) {
	for script, want := range map[string]bool{"exec 3<&0; (read x <&3; :) & echo $!; wait": true, "sleep 60 & echo $!; read x; kill $!": false} {
		c, in, pid := says(t, "sh", "-c", script)
		for !want && Forked(pid) && Alive(pid) {
			runtime.Gosched() // it is between its fork and its exec
		}
		if got := Forked(pid); got != want {
			t.Errorf("%s: %v", script, got)
		}
		in.Close() // with its input the shell ends, and what it started
		if err := c.Wait(); err != nil {
			t.Error(err)
		}
		for late := time.Now().Add(20 * time.Second); Alive(pid); runtime.Gosched() { // it may not have died of its signal yet
			if time.Now().After(late) {
				t.Fatalf("%s: process %d is left", script, pid)
			}
		}
	}
}

// Without address randomization a program that was executed has its libraries where its
// parent has them. It is no fork.
func TestForkedFromIsNotTheParentOfAProgram(t *testing.T) {
	if _, err := exec.LookPath("setarch"); err != nil {
		t.Skip(err)
	}
	for script, forked := range map[string]bool{"exec 3<&0; (read x <&3; :) & echo $!; wait": true, "sh -c 'echo $$; read x; :'; :": false} {
		c, in, pid := says(t, "setarch", "-R", "sh", "-c", script)
		list, err := Loaded(pid, func(path string, _ FileID) bool { return strings.Contains(filepath.Base(path), "libc.so") })
		if err != nil || len(list) != 1 {
			t.Fatalf("%+v, %v", list, err)
		}
		parent := uint32(c.Process.Pid)
		if alike, err := MapsAlike(parent, list[0]); err != nil || !alike {
			t.Errorf("%s: it does not map libc where its parent does: %v", script, err)
		}
		want := uint32(0)
		if forked {
			want = parent
		}
		if got := ForkedFrom(list[0]); got != want {
			t.Errorf("%s: forked from %d, want %d", script, got, want)
		}
		in.Close()
		c.Process.Kill()
		c.Wait()
	}
}

// The kernel's threads have flags as forks have, and no memory.
func TestKernelThreadsAreNoForks(t *testing.T) {
	const kthreadd = 2
	s, err := stat(kthreadd)
	if err != nil || s.flags&kernelThread == 0 {
		t.Skip("no thread of the kernel is seen here")
	}
	if Forked(kthreadd) {
		t.Error("a thread of the kernel counts as a fork")
	}
}

// Processes that are no forks are not asked again, by the number of their folder, and forks are until they call exec.
func TestForksAmong(t *testing.T) {
	c, in, child := says(t, "sh", "-c", "exec 3<&0; (read x <&3; exec sleep 60) & echo $!; wait")
	t.Cleanup(func() {
		_ = unix.Kill(int(child), unix.SIGKILL)
		_ = c.Wait()
	})
	shell := uint32(c.Process.Pid)
	var f Forks
	if got := f.Among([]uint32{shell, child}); !slices.Equal(got, []uint32{child}) {
		t.Errorf("forks are %v, want %d", got, child)
	}
	if f.others[shell] == 0 || f.others[child] != 0 {
		t.Errorf("no forks are %v", f.others)
	}
	f.others[child] = f.others[shell] // of who had its PID before
	if got := f.Among([]uint32{shell, child}); !slices.Equal(got, []uint32{child}) {
		t.Errorf("again, forks are %v, want %d", got, child)
	}
	fmt.Fprintln(in)
	for Forked(child) {
		runtime.Gosched() // until it executes another program
	}
	if got := f.Among([]uint32{child}); len(got) != 0 || f.others[child] == 0 || f.others[shell] != 0 {
		t.Errorf("after its exec, forks are %v, no forks %v", got, f.others)
	}
}
