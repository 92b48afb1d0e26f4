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

// stranger starts a driver as a user without rights.
func stranger(t *testing.T, driver string, commands []string) *fixture.Process {
	t.Helper()
	p, err := fixture.StartAs(nobody(t).Uid, driver)
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
		// starts: it starts the driver itself.
		starts bool
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
	} {
		sig := []syscall.Signal{syscall.SIGINT, syscall.SIGTERM}[i%2] // they are handled alike
		t.Run(fmt.Sprintf("%d %s", i, c.args[0]), func(t *testing.T) {
			file, asked := fixture.HangingFile(t)
			commands := hangsIn(library, file)
			start := call{args: append(c.args, "--probes")}
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
				start.stdin, start.args = r, append(start.args, "--", driver)
			} else {
				p := stranger(t, driver, commands)
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
			t.Logf("%v: exit code %d within %v", sig, r.code, time.Since(begun).Round(time.Millisecond))
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
			p := stranger(t, driver, hangsIn(library, file))
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
