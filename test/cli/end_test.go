package cli

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"tt-memtrace/test/fixture"
)

// strangers are a driver and a library that anybody can run and map.
func strangers(t *testing.T) (driver, library string) {
	t.Helper()
	shared := public(t)
	driver, library = filepath.Join(shared, "driver"), filepath.Join(shared, "libtt_metal.so")
	copyFile(t, fixture.SharedDriver(t), driver)
	copyFile(t, fixture.LibraryOf(t, fixture.LayoutA), library)
	return driver, library
}

// hangsIn are the commands after which a driver has a device in a file's page.
func hangsIn(library, file string) []string {
	return []string{"open " + library, "device 0 1", "alloc 4096 0 0 0 4096 1024 64",
		fmt.Sprintf("elsewhere %s 4096 0 0 0 4096 1024 128", file)}
}

// sampledHangsIn are the commands after which a fixture.HostileProgram has a buffer in a file's page: a sample reads that.
func sampledHangsIn(file string) []string {
	return []string{"device 0 1", "absent 4096 0 0 0 4096 1024 128", "hang last " + file}
}

// endsWithin is how long a command may take to end, whatever hangs.
const endsWithin = 2 * time.Second

// stranger starts a driver as a user without rights.
func stranger(t *testing.T, program []string, commands []string) *fixture.Process {
	t.Helper()
	p, err := fixture.StartAs(nobody(t).Uid, program)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Kill)
	for _, command := range commands {
		fixture.Do(t, p, "%s", command)
	}
	return p
}

// Each live command ends when it is asked to while it waits for a page that never comes, with a documented exit
// code. With a command of its own it passes the signal on, and ends with the command.
func TestEveryLiveCommandEnds(t *testing.T) {
	mayTrace(t)
	driver, library := strangers(t)
	_, server := serving(t, "--no-trace")
	dir := t.TempDir()
	for i, c := range []struct {
		args []string
		// term is its terminal's TERM; "": it has none.
		term string
		// starts: it starts the driver itself; nobody: as a user without rights.
		starts, nobody bool
		// sampled: without probes.
		sampled bool
	}{
		{args: []string{"top"}, term: "xterm-256color"},
		{args: []string{"top"}, term: "dumb"},
		{args: []string{"status", "--every", "50ms"}},
		{args: []string{"log"}},
		{args: []string{"record", filepath.Join(dir, "run.ttm")}},
		{args: []string{"forward", "--socket", server}},
		{args: []string{"serve", "--socket", filepath.Join(dir, "s")}},
		{args: []string{"exporter", "--listen", "127.0.0.1:0"}},
		{args: []string{"report"}},
		{args: []string{"report"}, starts: true},
		{args: []string{"top"}, term: "xterm-256color", sampled: true},
		{args: []string{"top"}, term: "dumb", sampled: true},
		{args: []string{"status", "--every", "50ms"}, sampled: true},
		{args: []string{"log"}, sampled: true},
		{args: []string{"record", filepath.Join(dir, "sampled.ttm")}, sampled: true},
		{args: []string{"forward", "--socket", server}, sampled: true},
		{args: []string{"serve", "--serve-all-users", "--socket", filepath.Join(dir, "o")}, sampled: true},
		{args: []string{"exporter", "--listen", "127.0.0.1:0"}, sampled: true},
		{args: []string{"report"}, sampled: true},
		{args: []string{"report"}, sampled: true, starts: true},
		{args: []string{"status", "--every", "50ms"}, sampled: true, starts: true, nobody: true},
		{args: []string{"log"}, sampled: true, starts: true, nobody: true},
	} {
		sig := []syscall.Signal{syscall.SIGINT, syscall.SIGTERM}[i%2] // they are handled alike
		t.Run(fmt.Sprintf("%d %s", i, c.args[0]), func(t *testing.T) {
			file, asked := fixture.HangingFile(t)
			commands, program := hangsIn(library, file), []string{driver}
			start := call{args: append(c.args, "--probes")}
			if c.sampled {
				start.args = append(c.args, "--sample=20ms")
				commands, program = sampledHangsIn(file), fixture.HostileProgram(t, fixture.LayoutA)
			}
			if c.nobody {
				start.program, start.nobody = ofNobody(t), true
			}
			if c.term != "" {
				_, _, start.tty = terminal(t)
				start.env = environ("TERM="+c.term, "HOME="+dir)
			}
			if c.starts {
				r, w, err := os.Pipe()
				if err != nil {
					t.Fatal(err)
				}
				defer r.Close()
				defer w.Close()
				if _, err := io.WriteString(w, strings.Join(commands, "\n")+"\n"); err != nil {
					t.Fatal(err)
				}
				start.stdin, start.args = r, append(append(start.args, "--"), program...)
			} else {
				p := stranger(t, program, commands)
				start.args = append(start.args, "-p", strconv.Itoa(int(p.PID)))
			}
			s := begin(t, start)
			select {
			case <-asked:
			case <-s.exited:
				t.Fatalf("it ended by itself: %v", s.end())
			case <-time.After(patience):
				t.Fatal("it does not ask for the page")
			}
			s.signal(sig)
			begun := time.Now()
			r := s.end()
			took := time.Since(begun)
			t.Logf("%v: exit code %d within %v", sig, r.code, took.Round(time.Millisecond))
			if took > endsWithin {
				t.Errorf("it ended %v after it was asked to", took)
			}
			switch {
			case c.starts && r.code == 128+int(sig):
			case !c.starts && (r.code == fine || r.code == incomplete):
			default:
				t.Errorf("this is no exit code of an orderly end: %v", r)
			}
		})
	}
}

// A command that traces a process whose memory does not answer says so, and with its exit code and last words that the numbers are
// not exact.
func TestHungTargetIsInexact(t *testing.T) {
	mayTrace(t)
	driver, library := strangers(t)
	_, server := serving(t, "--no-trace")
	dir := t.TempDir()
	for _, args := range [][]string{
		{"status", "--every", "1s"},
		{"log"},
		{"record", filepath.Join(dir, "run.ttm")},
		{"forward", "--socket", server},
		{"report"},
	} {
		t.Run(args[0], func(t *testing.T) {
			file, _ := fixture.HangingFile(t)
			p := stranger(t, []string{driver}, hangsIn(library, file))
			s := begin(t, call{args: append(args, "--probes", "-p", strconv.Itoa(int(p.PID)))})
			named := fmt.Sprintf("process %d: ", p.PID)
			if !s.err.within(patience, func(s string) bool { return strings.Contains(s, named) && strings.Contains(s, "does not answer") }) {
				t.Fatalf("it does not say that its memory does not answer: %s", s.err)
			}
			s.signal(syscall.SIGINT)
			r := s.ends(incomplete)
			if last := lines(r.err)[len(lines(r.err))-1]; !strings.Contains(last, "not exact: "+named) {
				t.Errorf("its last words: %q", last)
			}
		})
	}
}

// Doctor ends when it is asked to while libraries of a stranger's processes are opened, each of which answers late.
func TestDoctorEnds(t *testing.T) {
	mayTrace(t)
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
		f := &fixture.Served{Late: 700 * time.Millisecond, Content: fixture.Read(t, fixture.LibraryOf(t, fixture.LayoutA))}
		path := f.Serve(t, "libtt_metal.so")
		for range 6 {
			p := fixture.OfStranger(t)
			f.Only.Store(p.PID)
			fixture.Do(t, p, "open %s", path)
		}
		f.Only.Store(0)
		s := begin(t, call{args: []string{"doctor"}})
		select {
		case <-f.Asked:
		case <-s.exited:
			t.Fatalf("it ended by itself: %v", s.end())
		}
		s.signal(sig)
		begun := time.Now()
		r := s.ends(failed)
		if took := time.Since(begun); took > endsWithin {
			t.Errorf("it ended %v after it was asked to", took)
		}
		contains(t, r.err, sig.String())
	}
}

// Doctor fails if a process that was asked for cannot be traced, even if others can be.
func TestDoctorOfAProcessThatCannotBeTraced(t *testing.T) {
	mayTrace(t)
	p := fixture.User(t, fixture.LayoutB)
	fixture.Do(t, p, "device 0 1")
	pid := fmt.Sprint(p.PID)
	contains(t, run(t, fine, "doctor", "-p", pid).out, "ready: what uses the runtime can be traced here")
	fixture.Do(t, p, "leave")
	out := run(t, notSupported, "doctor", "-p", pid).out
	contains(t, out, "\n\n✗ not ready: process "+pid+": its main thread has ended")
	if strings.Contains(out, "does not map the runtime") {
		t.Errorf("%s", out)
	}
}

// Commands that sample name and mark a process whose memory does not answer, and show what others allocate. Their exit
// codes and last words say that the numbers lack the process.
func TestHungTargetIsSampled(t *testing.T) {
	mayTrace(t)
	dir := t.TempDir()
	file, asked := fixture.HangingFile(t)
	hung := stranger(t, fixture.HostileProgram(t, fixture.LayoutA), sampledHangsIn(file))
	victim := fixture.User(t, fixture.LayoutB)
	fixture.Do(t, victim, "device 0 2")
	named := fmt.Sprintf("%d: ", hung.PID)
	both := []string{"--sample=20ms", "-p", fmt.Sprint(hung.PID), "-p", fmt.Sprint(victim.PID)}
	size := 8192
	for i, args := range [][]string{
		{"status", "--json", "--every", "50ms"},
		{"log"},
		{"record", filepath.Join(dir, "run.ttm")},
		{"top"},
	} {
		t.Run(args[0], func(t *testing.T) {
			c := call{args: append(args, both...)}
			var shown *text
			if args[0] == "top" {
				_, shown, c.tty = terminal(t)
				c.env = environ("TERM=xterm-256color", "HOME="+dir)
			}
			s := begin(t, c)
			if shown == nil {
				shown = s.err
			}
			// The screen writes only what changes of a line.
			if !shown.within(patience, func(s string) bool { return strings.Contains(s, named) && strings.Contains(s, "not answer") }) {
				t.Fatalf("it does not say that its memory does not answer: %s", shown)
			}
			<-asked
			fixture.Do(t, victim, "alloc 64 0 0 0 %d 1024 %d", size, 64*(i+1))
			switch args[0] {
			case "status":
				s.out.await(t, fmt.Sprintf(`"requested_bytes": %d`, size))
				contains(t, s.out.String(), `"code": "scan_failed"`)
			case "log":
				s.out.await(t, fmt.Sprintf("Allocated %d bytes of DRAM on device 2", size))
			case "top":
				shown.await(t, "driver")
			case "record":
				eventually(t, patience, "it is recorded", func() bool {
					return strings.Contains(begin(t, call{args: []string{"log", "--from", filepath.Join(dir, "run.ttm")}}).end().out, fmt.Sprintf("Allocated %d bytes", size))
				})
			}
			size *= 2
			begun := time.Now()
			s.signal([]syscall.Signal{syscall.SIGINT, syscall.SIGTERM}[i%2])
			r := s.end()
			if took := time.Since(begun); took > endsWithin || r.code != incomplete {
				t.Errorf("it ended %v after it was asked to: %v", took, r)
			}
			// What a terminal was written can come after the end of who wrote it.
			if !shown.within(patience, func(s string) bool {
				words := lines(s)
				return len(words) > 0 && strings.Contains(words[len(words)-1], "not exact: process "+named+"its memory could not be read")
			}) {
				t.Errorf("its last words: %q", shown)
			}
		})
	}
}

// A command that went well while the memory of a process that it started did not answer: the exit code and last words say what is missing.
func TestCommandWithAHungChild(t *testing.T) {
	mayTrace(t)
	file, asked := fixture.HangingFile(t)
	program := fixture.HostileProgram(t, fixture.LayoutA)
	pipe := filepath.Join(t.TempDir(), "commands")
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	commands, err := os.OpenFile(pipe, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(commands, strings.Join(sampledHangsIn(file), "\n")+"\n"); err != nil {
		t.Fatal(err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	child := `"$@" <` + pipe + ` >/dev/null 2>&1 & echo "child $!"; read line; exit 0`
	s := begin(t, call{args: append([]string{"log", "--sample=20ms", "--", "sh", "-c", child, "sh"}, program...), stdin: r})
	r.Close()
	s.out.await(t, "\n")
	var pid int
	if _, err := fmt.Sscanf(s.out.String(), "child %d", &pid); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		commands.Close()
		if err := unix.Kill(pid, unix.SIGKILL); err != nil {
			t.Error(err)
		}
	})
	<-asked // and never answered
	w.Close()
	contains(t, s.ends(incomplete).err, fmt.Sprintf("not exact: process %d: its memory could not be read", pid))
}
