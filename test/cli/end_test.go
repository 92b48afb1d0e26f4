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

// Each live command ends when it is asked to while it waits for a page that never comes, with a documented exit
// code. With a command of its own it passes the signal on, and ends with the command.
func TestEveryLiveCommandEnds(t *testing.T) {
	mayTrace(t)
	// A stranger's, who can run and map them.
	shared := public(t)
	driver, library := filepath.Join(shared, "driver"), filepath.Join(shared, "libtt_metal.so")
	copyFile(t, fixture.SharedDriver(t), driver)
	copyFile(t, fixture.LibraryOf(t, fixture.LayoutA), library)
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
			commands := []string{"open " + library, "device 0 1", "alloc 4096 0 0 0 4096 1024 64",
				fmt.Sprintf("elsewhere %s 4096 0 0 0 4096 1024 128", file)}
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
				p, err := fixture.StartAs(nobody(t).Uid, driver)
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(p.Kill)
				for _, command := range commands {
					fixture.Do(t, p, "%s", command)
				}
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
