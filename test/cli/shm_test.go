package cli

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"tt-memtrace/internal/export"
	"tt-memtrace/test/rig"
)

// powerless runs a program as this user with no capability at all.
func powerless(t *testing.T, argv ...string) (program string, args []string) {
	t.Helper()
	setpriv, err := exec.LookPath("setpriv")
	if err != nil {
		t.Skipf("setpriv is not installed (on Debian and Ubuntu: util-linux): %v", err)
	}
	return setpriv, append([]string{"--bounding-set", "-all", "--inh-caps", "-all", "--no-new-privs", "--"}, argv...)
}

// shared runs the tool without any rights over the runtime's shared memory.
func shared(t *testing.T, args ...string) (export.Status, result) {
	t.Helper()
	program, argv := powerless(t, append([]string{tool, "status", "--json", "--shm"}, args...)...)
	r := begin(t, call{program: program, args: argv}).ends(fine)
	var s export.Status
	if err := json.Unmarshal([]byte(r.out), &s); err != nil {
		t.Fatalf("%v in %s", err, r.out)
	}
	return s, r
}

// Without any rights, the sums of a process on two chips are those that the runtime
// should have, and what they do not have is not made up. When it is killed, what
// it leaves does not count as memory in use.
func TestSharedMemoryWithoutRights(t *testing.T) {
	dir, err := rig.Dir()
	if err != nil {
		t.Fatal(err)
	}
	// Without threads and closed submeshes, the runtime counts right.
	setpriv, argv := powerless(t, runtime(t).Python, filepath.Join(dir, rig.Workload), "--cluster", "n300",
		"--steps", "100", "--threads", "0", "--submeshes", "0")
	w := target(t, rig.Options{Cluster: "n300", Script: setpriv, Args: argv})
	pid := fmt.Sprint(w.PID())
	compared := 0
	for range 2 {
		m := await(t, w, rig.EventRest)
		s, _ := shared(t, "-p", pid)
		if len(s.Processes) != 1 || s.Exact || s.SharedMemory == nil || len(s.SharedMemory.Lacks) == 0 {
			t.Fatalf("%+v", s)
		}
		p := s.Processes[0]
		if p.Source != "shared_memory" || p.Buffers != nil || p.Allocs != nil || p.Command == nil || len(p.Chips) != len(m.Asked) {
			t.Errorf("%+v", p)
		}
		for _, c := range p.Chips {
			if c.Programs != nil || c.Kernels != nil || c.CBSum == nil {
				t.Errorf("%+v", c)
			}
			for memory, u := range c.Memory {
				if want := m.Asked[c.Chip][strings.ToUpper(memory)]; *u.Requested != want {
					t.Errorf("rest %d: chip %d has %d of %s, not %d", m.N, c.Chip, *u.Requested, memory, want)
				} else if want > 0 {
					compared++
				}
				if u.Reserved != nil || u.PeakRequested != nil || u.PeakReserved != nil || u.Buffers != nil || u.Capacity != nil {
					t.Errorf("chip %d %s: %+v", c.Chip, memory, u)
				}
			}
		}
		send(t, w, "go")
	}
	if compared < 4 {
		t.Errorf("only %d sums were more than nothing", compared)
	}

	// As text, and as it goes on.
	program, argv := powerless(t, tool, "status", "--shm", "-p", pid)
	r := begin(t, call{program: program, args: argv}).ends(fine)
	contains(t, r.out, "runtime's shared memory", "unknown: buffers, reserved sizes, peaks")
	program, argv = powerless(t, tool, "status", "--json", "--shm", "--every", "50ms", "-p", pid)
	every := begin(t, call{program: program, args: argv})
	every.out.await(t, "\n}\n")

	await(t, w, rig.EventRest)
	if err := unix.Kill(w.PID(), unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := w.Wait(patience); err == nil {
		t.Error("it was not killed")
	}
	r = every.ends(fine) // with the process
	list := snapshots(t, r.out)
	if last := list[len(list)-1]; len(last.Processes) != 0 {
		t.Errorf("%+v", last)
	}
	s, r := shared(t)
	stale := 0
	for _, g := range s.SharedMemory.StaleEntries {
		if g.PID == uint32(w.PID()) && g.Requested["dram"] > 0 && g.Command != nil {
			stale++
		}
	}
	if stale != 2 {
		t.Errorf("%+v", s.SharedMemory.StaleEntries)
	}
	contains(t, r.err, "process "+pid+" (", "which exited")
}

// Users who may not trace get a message that says what works without rights.
func TestWhatWorksWithoutRights(t *testing.T) {
	program := ofNobody(t)
	for _, args := range [][]string{{"status"}, {"log"}, {"status", "-p", "1"}} {
		r := begin(t, call{program: program, args: args, nobody: true}).ends(notPermitted)
		contains(t, r.err, "status --shm", "'tt-memtrace doctor' says more")
		if first := lines(r.err)[0]; len(first) > 100 {
			t.Errorf("what is missing takes more than a line or so: %s", first)
		}
		if strings.Count(r.err, "sudo setcap") != 1 {
			t.Errorf("the line that grants the rights is not said once: %v", r)
		}
	}
	// What was not looked at has no line.
	if r := begin(t, call{program: program, args: []string{"doctor", "--verify", "--compare"}, nobody: true}).ends(notPermitted); strings.Contains(r.out, "Verified") {
		t.Errorf("%v", r)
	}
	s := begin(t, call{program: program, args: []string{"status", "--json", "--shm"}, nobody: true}).ends(fine)
	if st := one(t, s.out); st.Exact {
		t.Errorf("%+v", st)
	}
	contains(t, begin(t, call{program: program, args: []string{"status", "--shm", "-p", "1"}, nobody: true}).ends(notPermitted).err, "user 0")
}

// What other users have is not reported absent: one reason says that it cannot be seen.
func TestOtherUsersAreNotSeen(t *testing.T) {
	program := ofNobody(t)
	for i := range 2 { // without a word of content: who may read them passes over them
		path := fmt.Sprintf("/dev/shm/tt_device_%d_memory", 9_100_000_000_000_000_000+uint64(os.Getpid())*2+uint64(i))
		f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { os.Remove(path) })
		f.Close()
	}
	for _, source := range []string{"--shm", "--sample"} {
		r := begin(t, call{program: program, args: []string{"status", source}, nobody: true}).endsAmidOthers()
		if source == "--sample" && !strings.Contains(r.out, " 0 processes") {
			t.Logf("another test's process of this user is seen: %v", r)
			continue
		}
		contains(t, r.out, "no process that this user can see has opened a chip yet", "no process that this user can see uses the runtime")
		if n := strings.Count(r.err, "the runtime's own account of "); source == "--shm" && n != 1 {
			t.Errorf("%d reasons say so: %v", n, r)
		}
	}
	r := begin(t, call{program: program, args: []string{"doctor"}, nobody: true}).ends(notPermitted)
	contains(t, r.out, "·  ring buffer ")
	if strings.Contains(r.out, "This library can be traced") {
		t.Logf("another test's process of this user is seen: %v", r)
	} else {
		contains(t, r.out, "no process that this user can see maps the runtime now")
	}
	if strings.Contains(r.out, "✗  ring buffer") {
		t.Errorf("%v", r)
	}
}

// What has no meaning together is refused.
func TestSharedMemoryAlone(t *testing.T) {
	for _, args := range [][]string{{"--", "true"}, {"--lib", "x.so"}, {"--forward", "/tmp/x"}, {"--serve", "/tmp/x"}} {
		contains(t, run(t, wrongUsage, append([]string{"status", "--shm"}, args...)...).err, "--shm")
	}
	contains(t, run(t, wrongUsage, "log", "--shm").err, "shm")
}

// inNamespaces gives a program mount and PID namespaces of its own, and in place of
// the runtime's library a copy of it: the host's file of that name is another one.
const inNamespaces = `
library=$1; shift
exec unshare --mount --pid --fork --kill-child --mount-proc -- sh -c '
set -e
library=$1; shift
mount -t tmpfs none /mnt
cp "$library" /mnt/libtt_metal.so
mount --bind /mnt/libtt_metal.so "$library"
echo inside
read line
exec "$@"' sh "$library" "$@"
`

// The real runtime in namespaces of its own is found, attached to, and right, and
// both of its PIDs are printed.
func TestRuntimeInNamespaces(t *testing.T) {
	dir, err := rig.Dir()
	if err != nil {
		t.Fatal(err)
	}
	rt := runtime(t)
	if _, err := exec.LookPath("unshare"); err != nil {
		t.Skip(err)
	}
	w := target(t, rig.Options{Cluster: "n150", Script: "sh", Args: []string{"-c", inNamespaces, "sh", rt.Library,
		rt.Python, filepath.Join(dir, rig.Workload), "--cluster", "n150", "--steps", "40"}})
	says(t, w, "inside")
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%[1]d/children", w.PID()))
	if err != nil {
		t.Fatal(err)
	}
	child := trimmed(b)
	host := begin(t, call{args: []string{"status", "--json", "--every", "100ms"}})
	host.out.await(t, "\n}\n")
	log := begin(t, call{args: []string{"log", "--json", "-p", child}})
	log.err.await(t, "waiting")
	send(t, w, "go")
	m := await(t, w, rig.EventRest)
	agrees(t, log, m)
	if !host.out.within(patience, func(out string) bool {
		return strings.Contains(out, "\"pid\": "+child+",\n      \"source\": \"traced\",\n      \"container\": null,\n      \"inner_pid\": 1,")
	}) {
		t.Errorf("process %s is not in:\n%s", child, host.out)
	}
	doctor := run(t, fine, "doctor", "-p", child)
	contains(t, doctor.out, "This library can be traced", "contained  "+child+" (1 in its own namespace)")
	for !m.Last {
		send(t, w, "go")
		m = await(t, w, rig.EventRest)
		agrees(t, log, m)
	}
}

// The screen says where their numbers are from, without any rights.
func TestPanelsOfSharedMemory(t *testing.T) {
	program, argv := powerless(t, tool, "--shm", "--view", "overview")
	keys, screen, tty := terminal(t)
	s := begin(t, call{program: program, args: argv, tty: tty, env: environ("TERM=xterm-256color", "LC_ALL=C.UTF-8", "XDG_CONFIG_HOME="+t.TempDir())})
	screen.await(t, "shared memory")
	screen.await(t, "unknown: buffers")
	if _, err := keys.Write([]byte("q")); err != nil {
		t.Fatal(err)
	}
	s.ends(fine)
}
