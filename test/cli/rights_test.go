package cli

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"tt-memtrace/test/rig"
)

// capabilities are what tracing takes, in the order in which the tool lists them.
var capabilities = []string{"cap_bpf", "cap_perfmon", "cap_sys_ptrace", "cap_dac_read_search"}

// nobody is a user without any rights.
func nobody(t *testing.T) *syscall.Credential {
	t.Helper()
	u, err := user.Lookup("nobody")
	if err != nil {
		t.Skip(err)
	}
	uid, err := strconv.ParseUint(u.Uid, 10, 32)
	if err != nil {
		t.Fatal(err)
	}
	gid, err := strconv.ParseUint(u.Gid, 10, 32)
	if err != nil {
		t.Fatal(err)
	}
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
}

// public is a folder that every user can enter. Its name needs quotes in a shell.
func public(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "tt-memtrace cli's ")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// ofNobody is a copy of the tool that nobody can run.
func ofNobody(t *testing.T) string {
	t.Helper()
	mayTrace(t)
	path := filepath.Join(public(t), "tt-memtrace")
	copyFile(t, tool, path)
	return path
}

// grant gives a program capabilities, in place of those it has.
func grant(t *testing.T, path, capabilities string) {
	t.Helper()
	if _, err := exec.LookPath("setcap"); err != nil {
		t.Skipf("setcap is not installed (on Debian and Ubuntu: libcap2-bin): %v", err)
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(path, &fs); err == nil && fs.Flags&unix.ST_NOSUID != 0 {
		t.Skipf("%s is on a file system without capabilities (nosuid)", path)
	}
	if out, err := exec.Command("setcap", capabilities, path).CombinedOutput(); err != nil {
		t.Fatalf("setcap: %v: %s", err, out)
	}
}

// grantLine is the line of a message that grants what is missing.
func grantLine(t *testing.T, message string) string {
	t.Helper()
	_, line, found := strings.Cut(message, "sudo setcap ")
	if !found {
		t.Fatalf("no line that grants the rights in:\n%s", message)
	}
	line, _, _ = strings.Cut(line, "\n")
	return "sudo setcap " + line
}

// Without rights every live command says which are missing and the one line
// that grants them; with them, granted by that very line, the same user traces.
func TestRightsAreAskedForAndGranted(t *testing.T) {
	w := gated(t, "t3k", "--steps", "50")
	pid := fmt.Sprint(w.PID())
	program := ofNobody(t)
	as := func(args ...string) call { return call{program: program, args: args, nobody: true} }

	var line string
	refused := func(name, message string) {
		t.Helper()
		contains(t, message, "not permitted", "missing", "run it as root")
		contains(t, message, capabilities...)
		if line = grantLine(t, message); !strings.HasPrefix(line, "sudo setcap "+strings.Join(capabilities, ",")+"+ep ") {
			t.Errorf("%s: %s", name, line)
		}
	}
	for _, args := range [][]string{
		{"status"}, {"status", "--json", "--every", "1s"}, {"status", "-p", pid}, {"status", "--probes", "--", "true"},
		{"log"}, {"log", "--json", "-p", pid}, {"log", "--probes", "--", "true"}, {"doctor"},
	} {
		r := begin(t, as(args...)).ends(notPermitted)
		refused(strings.Join(args, " "), r.err)
		if args[0] != "doctor" && r.out != "" {
			t.Errorf("%v: %v", args, r)
		} else if args[0] == "doctor" && (grantLine(t, r.out) != line || !strings.HasPrefix(r.out, "What works now, for user nobody\n  ✗  with probes ")) {
			t.Errorf("%v: %v", args, r)
		}
	}
	for _, args := range [][]string{nil, {"top"}} {
		_, screen, tty := terminal(t)
		c := as(args...)
		c.tty = tty
		begin(t, c).ends(notPermitted)
		screen.await(t, "+ep")
		if !screen.within(patience, func(s string) bool { return strings.HasSuffix(s, "\n") }) {
			t.Fatal(screen)
		}
		refused("top", strings.ReplaceAll(screen.String(), "\r\n", "\n"))
	}

	// The line is taken as it is, but for sudo: this is root.
	grant(t, program, "cap_chown+ep") // skips where it cannot be
	if out, err := exec.Command("sh", "-c", strings.TrimPrefix(line, "sudo ")).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v: %s", line, err, out)
	}
	begin(t, as("status", "--", "true")).ends(fine)

	// Another user's process, with its library below a folder that this user cannot enter.
	log := begin(t, as("log", "--json", "-p", pid))
	log.err.await(t, "waiting")
	host := begin(t, as("status", "--json", "--every", "100ms"))
	host.out.await(t, "\n}\n")
	send(t, w, "go")
	for last := false; !last; {
		m := await(t, w, rig.EventRest)
		b := agrees(t, log, m)
		if !host.out.within(patience, func(out string) bool {
			list := snapshots(t, out)
			i := slices.IndexFunc(list[len(list)-1].Processes, func(p process) bool { return p.PID == w.PID() })
			return i >= 0 && list[len(list)-1].Processes[i].Buffers == uint64(len(b.live))
		}) {
			t.Fatalf("looking at all processes, it does not show:\n%s", host.err)
		}
		last = m.Last
		send(t, w, "go")
	}
	await(t, w, rig.EventClosed)
	r := begin(t, as("doctor", "-p", pid)).ends(fine)
	contains(t, r.out, "This library can be traced", "processes  "+pid)
	for user, out := range map[string]string{"nobody": r.out, "root": run(t, fine, "doctor", "-p", pid).out} {
		if first, _, _ := strings.Cut(out, "\n\n"); first != "What works now, for user "+user+"\n  ✓  with probes     all processes of this host\n  ✓  without probes  all processes of this host: --sample" {
			t.Errorf("doctor begins with %q", first)
		}
	}
	send(t, w, "go")
	if b := addUp(t, entries(t, log.ends(fine).out)); b.allocs < 20 || b.allocs != b.frees {
		t.Errorf("%d allocs, %d frees", b.allocs, b.frees)
	}
	host.signal(os.Interrupt)
	host.endsAmidOthers()
}

// A user who was granted the rights traces their own run, which gets none of them.
func TestOwnRunWithRightsGranted(t *testing.T) {
	program := ofNobody(t)
	grant(t, program, strings.Join(capabilities, ",")+"+ep")
	script, err := os.ReadFile("testdata/hold.py")
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Dir(program)
	hold := filepath.Join(dir, "hold.py")
	if err := os.WriteFile(hold, script, 0o644); err != nil {
		t.Fatal(err)
	}
	p := prepared(t, rig.Options{Cluster: "n150", Script: hold})
	user := nobody(t)
	if err := os.Chown(p.Dir, int(user.Uid), int(user.Gid)); err != nil {
		t.Fatal(err)
	}
	// The rig may lie in a home that nobody can enter, so its Python can; only to read.
	setpriv, err := exec.LookPath("setpriv")
	if err != nil {
		t.Skipf("setpriv is not installed (on Debian and Ubuntu: util-linux): %v", err)
	}
	enter := filepath.Join(dir, "setpriv")
	copyFile(t, setpriv, enter)
	grant(t, enter, "cap_dac_read_search+eip")
	argv := append([]string{"sh", "-c", `grep CapEff /proc/self/status >&2; exec "$@" >&2`, "sh",
		enter, "--inh-caps", "+dac_read_search", "--ambient-caps", "+dac_read_search", "--"}, p.Argv...)
	in, steps := io.Pipe()
	s := begin(t, call{
		program: program, args: append([]string{"status", "--json", "--every", "100ms", "--"}, argv...), nobody: true,
		env:   append(p.Env, "TT_METAL_CACHE="+filepath.Join(p.Dir, "kernels"), "HOME="+p.Dir),
		stdin: in,
	})
	fmt.Fprintln(steps, "go") // ttnn is imported, and holds what is asked for
	s.err.await(t, "holding\n")
	if !s.out.within(patience, func(out string) bool {
		list := snapshots(t, out)
		if len(list) == 0 {
			return false
		}
		last := list[len(list)-1]
		return len(last.Chips) == 1 && last.Chips[0].Memory["dram"].Requested >= 1<<20
	}) {
		t.Fatalf("it does not show what is held: %s\n%s", s.out, s.err)
	}
	fmt.Fprint(steps, "go\ngo\ngo\n")
	steps.Close()
	r := s.ends(fine)
	contains(t, r.err, "CapEff:\t0000000000000000\n", "closed\n")
	list := snapshots(t, r.out)
	st := list[len(list)-1]
	if !st.Exact || len(st.Chips) != 1 || st.Chips[0].Memory["dram"].PeakRequested < 1<<20 || st.Chips[0].Memory["dram"].Requested != 0 {
		t.Errorf("%+v\n%s", st, r.err)
	}
}

// Each of the rights is asked for by its name when it alone is missing.
func TestEachRightIsNamed(t *testing.T) {
	program := ofNobody(t)
	for _, missing := range capabilities {
		others := slices.DeleteFunc(slices.Clone(capabilities), func(c string) bool { return c == missing })
		grant(t, program, strings.Join(others, ",")+"+ep")
		for _, args := range [][]string{{"status"}, {"log"}, {"doctor"}} {
			r := begin(t, call{program: program, args: args, nobody: true}).ends(notPermitted)
			said, _, _ := strings.Cut(r.err, "\n")
			if !strings.HasSuffix(said, "missing "+missing) {
				t.Errorf("%s without %s: %s", args[0], missing, said)
			}
			for _, c := range others {
				if strings.Contains(said, c) {
					t.Errorf("%s without %s: %s", args[0], missing, said)
				}
			}
			grantLine(t, r.err)
		}
	}
}
