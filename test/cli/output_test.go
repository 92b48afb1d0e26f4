package cli

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"tt-memtrace/test/rig"
)

// A reader that has seen enough, as with `log | head -1`, ends the tool by
// SIGPIPE, silently, and the probes with it.
func TestReaderGoesAway(t *testing.T) {
	w := steady(t, "n150", "--rate", "2000")
	in := probesOf(t, w.PID())
	for _, args := range [][]string{{"log"}, {"log", "--json"}, {"status", "--json", "--every", "20ms"}} {
		out, pipe, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		s := begin(t, call{args: append(args, "-p", fmt.Sprint(w.PID())), stdout: pipe})
		pipe.Close()
		if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
			t.Errorf("%v: %v", args, err)
		}
		out.Close()
		if r := s.end(); r.signal != syscall.SIGPIPE || r.err != "" {
			t.Errorf("%v: %v", args, r)
		}
		eventually(t, patience, "all probes are gone", func() bool { return in.set() == 0 })
	}
	goesOn(t, w)
}

// A reader that has stopped reading does not keep the tool from its end.
func TestReaderStopsReading(t *testing.T) {
	w := steady(t, "n150", "--rate", "2000")
	in := probesOf(t, w.PID())
	socket := filepath.Join(t.TempDir(), "server.sock")
	for _, args := range [][]string{{"log"}, {"log", "--json"}, {"status", "--json", "--every", "20ms"}, {"serve", "--socket", socket}} {
		out, pipe, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		defer out.Close()
		s := begin(t, call{args: append(args, "-p", fmt.Sprint(w.PID())), stdout: pipe})
		pipe.Close()
		eventually(t, patience, "the pipe is full", func() bool {
			calls, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/syscall", s.cmd.Process.Pid))
			return slices.ContainsFunc(calls, func(file string) bool {
				call, err := os.ReadFile(file)
				return err == nil && strings.HasPrefix(string(call), fmt.Sprintf("%d 0x1 ", unix.SYS_WRITE))
			})
		})
		s.signal(os.Interrupt)
		if args[0] == "serve" {
			s.ends(fine) // its lines are not what it is for
		} else {
			contains(t, s.ends(failed).err, "nobody reads standard output")
		}
		eventually(t, patience, "all probes are gone", func() bool { return in.set() == 0 })
	}
	goesOn(t, w)
}

// What cannot be written is an error immediately, not when the target ends.
func TestDiskIsFull(t *testing.T) {
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Skip(err)
	}
	defer full.Close()
	w := steady(t, "n150", "--rate", "2000")
	pid := fmt.Sprint(w.PID())
	for _, args := range [][]string{
		{"log", "-p", pid}, {"log", "--json", "-p", pid},
		{"status", "-p", pid}, {"status", "--json", "-p", pid}, {"status", "--every", "50ms", "-p", pid},
		{"version"}, {"doctor"}, {"doctor", "-p", pid}, {"completion", "bash"},
	} {
		r := begin(t, call{args: args, stdout: full}).ends(failed)
		contains(t, r.err, "no space left on device")
		if len(lines(r.err)) != 1 {
			t.Errorf("%v: %s", args, r.err)
		}
	}
	goesOn(t, w)

	// A command is not ended for it.
	for _, args := range [][]string{{"log", "--json"}, {"status", "--every", "50ms"}} {
		p := prepared(t, rig.Options{Cluster: "n150", Script: rig.Loop, Args: []string{"--rounds", "20"}})
		args = append(append(args, "--"), beside(p.Argv)...)
		r := begin(t, call{args: args, env: p.Env, stdout: full}).ends(failed)
		contains(t, r.err, `"event": "done", "n": 20`, "no space left on device")
	}

	// Nor does its own failure hide it.
	for _, args := range [][]string{{"log", "--json"}, {"status"}, {"report"}} {
		p := prepared(t, rig.Options{Cluster: "n150", Script: rig.Loop, Args: []string{"--rounds", "1"}})
		args = append(append(args, "--", "sh", "-c", `"$@" >&2; exit 7`, "sh"), p.Argv...)
		r := begin(t, call{args: args, env: p.Env, stdout: full}).ends(7)
		contains(t, r.err, "tt-memtrace: writing the ", "no space left on device")
	}
}

// Reports say so once.
func TestDiskIsFullForReports(t *testing.T) {
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Skip(err)
	}
	defer full.Close()
	file := filepath.Join(t.TempDir(), "demo.ttm")
	run(t, fine, "demo", "--save", file)
	calls := []call{{args: []string{"report", file, "-o", "/dev/full"}}}
	for _, format := range []string{"text", "json", "html", "pprof", "chrome", "csv"} {
		calls = append(calls, call{args: []string{"report", file, "--format", format}, stdout: full})
	}
	for _, c := range calls {
		r := begin(t, c).ends(failed)
		if len(lines(r.err)) != 1 || strings.Count(r.err, "writing the report") != 1 || !strings.Contains(r.err, "no space left on device") {
			t.Errorf("%v: %s", c.args, r.err)
		}
	}
}

// Stopped and continued, the tool goes on.
func TestStoppedForAWhile(t *testing.T) {
	w := steady(t, "n150", "--rate", "500")
	s := begin(t, call{args: []string{"log", "--json", "-p", fmt.Sprint(w.PID())}})
	s.out.await(t, "\n")
	s.signal(unix.SIGSTOP)
	await(t, w, rig.EventRound)
	await(t, w, rig.EventRound)
	s.signal(unix.SIGCONT)
	n := len(s.out.String())
	if !s.out.within(patience, func(out string) bool { return len(out) > n }) {
		t.Error("it prints nothing any more")
	}
	s.signal(os.Interrupt)
	s.ends(fine)
	goesOn(t, w)
}
