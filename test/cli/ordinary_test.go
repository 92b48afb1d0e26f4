package cli

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"tt-memtrace/test/rig"
)

// ordinary is the command line of an ordinary user who starts argv: user 65534, in no other group and without any
// capability. If the way to what it needs leads through folders that are closed to others, as a home is, it is the
// only thing in them, in a separate mount namespace.
func ordinary(t *testing.T, needs []string, argv ...string) (program string, args []string) {
	t.Helper()
	for _, p := range []string{"unshare", "setpriv", "mount"} {
		if _, err := exec.LookPath(p); err != nil {
			t.Skipf("%v (on Debian and Ubuntu: util-linux)", err)
		}
	}
	if out, err := exec.Command("unshare", "--mount", "mount", "--bind", "/", "/").CombinedOutput(); err != nil {
		t.Skipf("mounting is not permitted here: %v: %s", err, out)
	}
	closed, staged := map[string]bool{}, public(t)
	var stage, place strings.Builder
	for i, path := range needs {
		for dir := filepath.Dir(path); dir != "/"; dir = filepath.Dir(dir) {
			info, err := os.Stat(dir)
			if err != nil {
				t.Fatal(err)
			}
			if info.Mode()&1 == 0 {
				closed[dir] = true
			}
		}
		at := filepath.Join(staged, strconv.Itoa(i))
		if err := os.Mkdir(at, 0o755); err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&stage, "mount --bind %s %s\n", quoted(path), quoted(at))
		fmt.Fprintf(&place, "test -e %s || { mkdir -p %[1]s && mount --bind %s %[1]s; }\n", quoted(path), quoted(at))
	}
	var script strings.Builder
	script.WriteString("set -e; cd /; umask 022\n" + stage.String())
	for dir := range closed {
		fmt.Fprintf(&script, "test ! -e %s || mount -t tmpfs -o mode=755 tmpfs %[1]s\n", quoted(dir))
	}
	script.WriteString(place.String() + `exec setpriv --reuid=65534 --regid=65534 --clear-groups --no-new-privs --bounding-set=-all --inh-caps=-all -- "$@"`)
	return "unshare", append([]string{"--mount", "sh", "-c", script.String(), "sh"}, argv...)
}

func quoted(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// usersRun is a run of the real runtime that an ordinary user can start.
func usersRun(t *testing.T, o rig.Options) (p *rig.Prepared, needs []string) {
	t.Helper()
	mayTrace(t)
	r, err := rig.Install(t.Context(), cmp.Or(os.Getenv("TT_MEMTRACE_RELEASE"), rig.DefaultRelease))
	if errors.Is(err, rig.ErrUnavailable) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	prefixes, err := exec.Command(r.Python, "-c", "import sys; print(sys.prefix, sys.base_prefix, sep='\\n')").Output()
	if err != nil {
		t.Fatal(err)
	}
	scripts, err := rig.Dir()
	if err != nil {
		t.Fatal(err)
	}
	if p, err = r.Prepare(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	// What is compiled is kept per user.
	p.Env = append(p.Env, "TT_METAL_CACHE="+filepath.Join(p.Dir, "kernels"), "HOME="+p.Dir, "TERM=xterm-256color")
	if out, err := exec.Command("chown", "-R", "65534:65534", p.Dir).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return p, append(strings.Fields(string(prefixes)), scripts, p.Dir)
}

// What an ordinary user sees of the real runtime in a program that they start is what its own allocator has, at every
// rest point, and what is recorded beside it reports as much.
func TestOrdinaryUserSamplesTheRuntime(t *testing.T) {
	program := ofNobody(t)
	for _, cluster := range []string{"n150", "t3k"} {
		t.Run(cluster, func(t *testing.T) {
			p, needs := usersRun(t, rig.Options{Cluster: cluster, Script: rig.Workload, Args: []string{"--steps", "75"}})
			recording := filepath.Join(p.Dir, "run.ttm")
			unshare, args := ordinary(t, needs, append([]string{program, "status", "--json", "--every", "300ms", "--record", recording, "--"}, beside(p.Argv)...)...)
			in, steps := io.Pipe()
			defer steps.Close()
			s := begin(t, call{program: unshare, args: args, env: p.Env, stdin: in})
			seen := map[uint32]map[string]uint64{}
			for n, last := 0, false; !last; n++ {
				m := said(t, s, rig.EventRest, n)
				var of process
				if !s.out.within(patience, func(out string) bool {
					list := snapshots(t, out)
					if len(list) == 0 {
						return false
					}
					of = process{}
					for _, p := range list[len(list)-1].Processes {
						of = p
					}
					return agree(of, m)
				}) {
					t.Fatalf("rest %d: the snapshot has %+v, the runtime %+v\n%s", n, of, m.Devices, s.err)
				}
				for _, c := range of.Chips {
					for memory, u := range c.Memory {
						if seen[c.Chip] == nil {
							seen[c.Chip] = map[string]uint64{}
						}
						seen[c.Chip][memory] = max(seen[c.Chip][memory], u.Requested)
					}
				}
				last = m.Last
				if _, err := io.WriteString(steps, "go\n"); err != nil {
					t.Fatal(err)
				}
			}
			said(t, s, rig.EventClosed, 0)
			if _, err := io.WriteString(steps, "go\n"); err != nil {
				t.Fatal(err)
			}
			steps.Close()
			r := s.ends(fine)
			contains(t, r.out, `"code": "sampled"`, `"peaks_at_least": true`)
			contains(t, r.err, "sampling every")
			if len(seen) != len(p.Chip) {
				t.Errorf("%d chips were seen, the cluster has %d", len(seen), len(p.Chip))
			}

			unshare, args = ordinary(t, needs, program, "report", "--json", recording)
			contains(t, begin(t, call{program: unshare, args: args, env: p.Env}).ends(fine).out, `"sampled": true`)
		})
	}
}

// said is the n-th message of this event of a workload whose output is beside the tool's.
func said(t *testing.T, s *session, event string, n int) (m rig.Message) {
	t.Helper()
	if !s.err.within(patience, func(out string) bool {
		count := 0
		for _, line := range lines(out) {
			if m = (rig.Message{}); json.Unmarshal([]byte(line), &m) == nil && m.Event == rig.EventError {
				t.Fatal(m.Error)
			}
			if m.Event == event {
				if count == n {
					return true
				}
				count++
			}
		}
		return false
	}) {
		t.Fatalf("no %d. %s in:\n%s", n, event, s.err)
	}
	return m
}

// agree says whether a process of a snapshot has what the runtime says that it has, with nothing but sampling to
// be said of it.
func agree(p process, m rig.Message) bool {
	buffers := 0
	for _, d := range m.Devices {
		buffers += len(d.Buffers)
	}
	if p.Source != "sampled" || p.Buffers != uint64(buffers) || len(p.Reasons) != 1 || len(p.Chips) == 0 {
		return false
	}
	for _, c := range p.Chips {
		for memory, reserved := range m.Reserved(c.Chip) {
			if u := c.Memory[strings.ToLower(memory)]; u.Reserved == nil || *u.Reserved != reserved {
				return false
			}
		}
	}
	return true
}

// The screen shows an ordinary user what a program that they start holds, and says that it is sampled.
func TestOrdinaryUserWatchesTheRuntime(t *testing.T) {
	program := ofNobody(t)
	p, needs := usersRun(t, rig.Options{Cluster: "n150", Script: rig.Loop, Args: []string{"--seconds", "600"}})
	unshare, args := ordinary(t, needs, append([]string{program, "top", "--"}, p.Argv...)...)
	keys, screen, tty := terminal(t)
	s := begin(t, call{program: unshare, args: args, env: p.Env, tty: tty})
	for _, shown := range []string{"sampled ", "n150", "python", "MiB"} {
		screen.await(t, shown)
	}
	if _, err := io.WriteString(keys, "q"); err != nil {
		t.Fatal(err)
	}
	s.ends(fine) // what the screen started ends with it, as if the user had asked for that
}
