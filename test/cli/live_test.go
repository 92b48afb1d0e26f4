package cli

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"tt-memtrace/test/rig"
)

// The snapshot at a command's end has every chip, nothing left on it, and the
// peaks of the run; the command's own output goes where it would without.
func TestStatusOfACommand(t *testing.T) {
	for cluster, chips := range map[string]int{"n150": 1, "t3k": 8} {
		t.Run(cluster, func(t *testing.T) {
			p := prepared(t, rig.Options{Cluster: cluster, Script: rig.Loop, Args: []string{"--rounds", "2"}})
			args := append([]string{"status", "--json", "--"}, beside(p.Argv)...)
			r := begin(t, call{args: args, env: p.Env}).ends(fine)
			one(t, r.out).empty(t, chips)
			contains(t, r.err, `"event": "done"`, `"same": true`)
		})
	}
}

// For a process that starts as a shell, the log's lines add up at every rest point to the runtime's own list of
// buffers, and over the run to the numbers of a status beside it.
func TestLogAddsUp(t *testing.T) {
	for _, cluster := range []string{"n150", "t3k"} {
		t.Run(cluster, func(t *testing.T) {
			w := gated(t, cluster, "--steps", "75")
			pid := fmt.Sprint(w.PID())
			log := begin(t, call{args: []string{"log", "--json", "-p", pid}})
			log.err.await(t, "waiting")
			beside := begin(t, call{args: []string{"status", "--json", "--every", "50ms", "-p", pid}})
			beside.err.await(t, "waiting")
			send(t, w, "go")
			var b logTotals
			for last, n := false, 0; !last; n++ {
				m := await(t, w, rig.EventRest)
				b = agrees(t, log, m)
				var s process
				if !beside.out.within(patience, func(out string) bool {
					list := snapshots(t, out)
					if len(list) == 0 || len(list[len(list)-1].Processes) == 0 {
						return false
					}
					s = list[len(list)-1].Processes[0]
					// The process mapped the runtime before the probes were there: it is read first.
					return s.Allocs == uint64(b.allocs) && s.Frees == uint64(b.frees) && !s.Late
				}) {
					t.Fatalf("rest %d: %d allocs and %d frees by the log, by the status it is %+v", m.N, b.allocs, b.frees, s)
				}
				if s.PID != w.PID() || s.Late || s.UnmatchedFrees != 0 || s.Buffers != uint64(len(b.live)) {
					t.Errorf("rest %d: %d buffers by the log, by the status it is %+v", m.N, len(b.live), s)
				}
				for _, c := range s.Chips {
					for memory, reserved := range m.Reserved(c.Chip) {
						if u := c.Memory[strings.ToLower(memory)]; u.Reserved == nil || *u.Reserved != reserved {
							t.Errorf("rest %d: chip %d %s: the runtime reserved %d, by the status it is %+v", m.N, c.Chip, memory, reserved, u)
						}
					}
				}
				if last = m.Last; t.Failed() || n > 10 {
					t.FailNow()
				}
				send(t, w, "go")
			}
			await(t, w, rig.EventClosed)
			send(t, w, "go")
			if err := w.Wait(patience); err != nil {
				t.Fatal(err)
			}
			// Both end with the last process that was asked for.
			r := log.ends(fine)
			b = addUp(t, entries(t, r.out))
			if b.allocs != b.frees || b.allocs < 50 || len(b.live) != 0 {
				t.Errorf("%d allocs, %d frees, %d buffers are left", b.allocs, b.frees, len(b.live))
			}
			beside.ends(fine)
			if waits := "process " + pid + " does not use the runtime yet: waiting"; strings.Count(r.err, waits) != 1 || len(lines(r.err)) != 1 {
				t.Errorf("stderr: %s", r.err)
			}
		})
	}
}

// What lies on a mesh lies on each of its chips: the original's words count
// the same on all of them, and as often as there are JSON lines.
func TestLogOfAMesh(t *testing.T) {
	p := prepared(t, rig.Options{Cluster: "t3k", Script: rig.Workload,
		Args: []string{"--steps", "75", "--submeshes", "0", "--threads", "0", "--no-wait"}})
	plain := begin(t, call{args: append([]string{"log", "--"}, beside(p.Argv)...), env: p.Env})
	structured := begin(t, call{args: append([]string{"log", "--json", "--"}, beside(p.Argv)...), env: p.Env})
	allocs, frees := counted(t, plain.ends(fine).out)
	b := addUp(t, entries(t, structured.ends(fine).out))
	if b.allocs < 20 || b.frees != b.allocs {
		t.Errorf("%d allocs, %d frees", b.allocs, b.frees)
	}
	if len(allocs) != 8 || !maps.Equal(allocs, frees) {
		t.Errorf("allocs on each device: %v, frees: %v", allocs, frees)
	}
	for device, n := range allocs {
		if n != b.allocs {
			t.Errorf("device %s: %d lines, there are %d JSON lines", device, n, b.allocs)
		}
	}
}

// --every has several snapshots, the last one at the end, and a command's exit
// status is the tool's.
func TestSnapshotsEveryWhile(t *testing.T) {
	p := prepared(t, rig.Options{Cluster: "n150", Script: rig.Loop, Args: []string{"--rounds", "10", "--rate", "1000"}})
	args := append([]string{"status", "--json", "--every", "200ms", "--", "sh", "-c", `"$@" >&2; exit 7`, "sh"}, p.Argv...)
	r := begin(t, call{args: args, env: p.Env}).ends(7)
	list := snapshots(t, r.out)
	if len(list) < 4 {
		t.Fatalf("%d snapshots", len(list))
	}
	used := 0
	for i, s := range list {
		if i > 0 && s.Events < list[i-1].Events {
			t.Errorf("snapshot %d has %d events, the previous one %d", i, s.Events, list[i-1].Events)
		}
		if len(s.Processes) == 1 && s.Processes[0].Buffers > 0 {
			used++
		}
	}
	if used < 2 {
		t.Errorf("%d of %d snapshots have buffers", used, len(list))
	}
	list[len(list)-1].empty(t, 1)
}

// The exit code is the command's, also where a signal ended it; what it did
// until then is still shown.
func TestEndsOfACommand(t *testing.T) {
	mayTrace(t)
	for _, command := range []string{"status", "log"} {
		run(t, 0, command, "--", "true")
		run(t, 1, command, "--", "false")
		run(t, 7, command, "--", "sh", "-c", "exit 7")
		contains(t, run(t, 128+9, command, "--", "sh", "-c", "kill -9 $$").err, "ended by a signal: killed")
		contains(t, run(t, 128+15, command, "--", "sh", "-c", "kill $$").err, "ended by a signal: terminated")
		contains(t, run(t, failed, command, "--", "/nonexistent/model").err, "starting /nonexistent/model", "no such file")
		contains(t, run(t, failed, command, "--", os.DevNull).err, "permission denied")
	}

	// A killed process holds nothing any more.
	p := prepared(t, rig.Options{Cluster: "n150", Script: rig.Loop, Args: []string{"--seconds", "60"}})
	s := begin(t, call{args: append([]string{"log", "--json", "--"}, beside(p.Argv)...), env: p.Env})
	s.err.await(t, `"event": "round"`)
	if !s.out.within(patience, func(out string) bool { return len(lines(out)) > 100 }) {
		t.Fatalf("it prints nothing: %s", s.err)
	}
	unix.Kill(entries(t, s.out.String())[0].PID, unix.SIGKILL)
	b := addUp(t, entries(t, s.ends(128+9).out))
	if b.allocs < 100 || len(b.live) != 0 {
		t.Errorf("%d allocs, %d buffers are left after its end", b.allocs, len(b.live))
	}
}

// Whatever the command starts is traced too: children side by side, what they
// exec, and theirs.
func TestChildrenOfACommand(t *testing.T) {
	p := prepared(t, rig.Options{Cluster: "n150", Script: rig.Loop, Args: []string{"--rounds", "2"}})
	for name, c := range map[string]struct {
		argv      []string
		processes int
	}{
		"children side by side": {[]string{"sh", "-c", `"$@" >&2 & "$@" >&2 & wait`, "sh"}, 2},
		"exec by env":           {[]string{"sh", "-c", `exec "$@" >&2`, "sh", "env", "A=B"}, 1},
		"grandchild":            {[]string{"sh", "-c", `sh -c '"$@"; exit $?' sh "$@" >&2; exit $?`, "sh", "env"}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			args := append([]string{"log", "--json", "--"}, append(slices.Clone(c.argv), p.Argv...)...)
			r := begin(t, call{args: args, env: p.Env}).ends(fine)
			b := addUp(t, entries(t, r.out))
			if len(b.pids) != c.processes || b.allocs != b.frees || b.allocs < 400*c.processes {
				t.Errorf("processes %v, %d allocs, %d frees", b.pids, b.allocs, b.frees)
			}
			if n := strings.Count(r.err, `"event": "done"`); n != c.processes {
				t.Errorf("%d of them came to their end:\n%s", n, r.err)
			}
		})
	}
}

// What is typed reaches the command, whose steps then show one by one.
func TestStdinReachesTheCommand(t *testing.T) {
	p := prepared(t, rig.Options{Cluster: "t3k", Script: rig.Workload, Args: []string{"--steps", "50"}})
	in, typed, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	defer typed.Close()
	s := begin(t, call{args: append([]string{"log", "--json", "--"}, beside(p.Argv)...), env: p.Env, stdin: in})
	for rest := range 3 { // the last one is after freeing all
		s.err.await(t, fmt.Sprintf(`"event": "rest", "n": %d,`, rest))
		typed.WriteString("go\n")
	}
	s.err.await(t, `"event": "closed"`)
	typed.WriteString("go\n")
	if b := addUp(t, entries(t, s.ends(fine).out)); b.allocs < 20 || b.allocs != b.frees {
		t.Errorf("%d allocs, %d frees", b.allocs, b.frees)
	}
}

// ^C to a tool that looks at a process ends the tool, cleanly, and nothing else.
func TestInterruptLeavesTheTargetRunning(t *testing.T) {
	w := steady(t, "n150", "--rate", "2000")
	in := probesOf(t, w.PID())
	pid := fmt.Sprint(w.PID())
	for _, args := range [][]string{
		{"log", "-p", pid},
		{"log", "--json", "-p", pid},
		{"status", "--json", "--every", "50ms", "-p", pid},
		{"status", "--after", "1h", "-p", pid},
	} {
		for _, sig := range []os.Signal{os.Interrupt, syscall.SIGTERM} {
			s := begin(t, call{args: args})
			if args[1] == "--after" {
				eventually(t, patience, "the probes are set", func() bool { return in.set() > 0 })
			} else if !s.out.within(patience, func(out string) bool { return len(lines(out)) > 0 }) {
				t.Fatalf("%v prints nothing: %s", args, s.err)
			}
			s.signal(sig)
			if r := s.ends(fine); r.err != "" {
				t.Errorf("%v, %v: %s", args, sig, r.err)
			} else if args[1] == "--after" {
				contains(t, r.out, pid) // the snapshot is taken all the same
			}
			undisturbed(t, in) // it was the only one
		}
	}
	goesOn(t, w)
}

// A signal that asks the tool to end is passed on to its command, whose end is
// traced to the last free.
func TestSignalsReachTheCommand(t *testing.T) {
	for _, sig := range []os.Signal{os.Interrupt, syscall.SIGTERM} {
		p := prepared(t, rig.Options{Cluster: "n150", Script: rig.Loop, Args: []string{"--seconds", "60"}})
		s := begin(t, call{args: append([]string{"log", "--json", "--"}, beside(p.Argv)...), env: p.Env})
		s.err.await(t, `"event": "round"`)
		s.signal(sig)
		r := s.ends(fine)
		contains(t, r.err, `"event": "done"`)
		if b := addUp(t, entries(t, r.out)); b.allocs < 200 || b.allocs != b.frees {
			t.Errorf("%v: %d allocs, %d frees", sig, b.allocs, b.frees)
		}
	}
}
