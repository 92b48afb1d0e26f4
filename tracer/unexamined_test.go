package tracer

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"tt-memtrace/test/fixture"
)

// A process of a command that maps the runtime and ends before it is examined leaves a trace: it was not traced, and
// its numbers count as inexact. That holds however soon the tool ends after it, and for a process that is not the
// command's it does not.
func TestProcessesThatEndBeforeTheyAreExamined(t *testing.T) {
	for _, soon := range []bool{false, true} {
		dir := t.TempDir()
		library := filepath.Join(dir, "libtt_metal.so")
		if err := os.WriteFile(library, fixture.Read(t, fixture.LibraryOf(t, fixture.LayoutB)), 0o755); err != nil {
			t.Fatal(err)
		}
		tr := start(t, Options{Follow: uint32(os.Getpid())})
		tr.tracer.attacher.mu.Lock() // nothing is attached to
		short := exec.Command("/bin/true")
		short.Env = append(os.Environ(), "LD_PRELOAD="+library)
		other := exec.Command("/bin/true") // maps nothing of the runtime
		for _, c := range []*exec.Cmd{short, other} {
			if err := c.Run(); err != nil {
				t.Fatal(err)
			}
		}
		tr.tracer.attacher.mu.Unlock()
		if !soon {
			tr.await("it is reported", func() bool { return tr.snapshot().Counters.ExitedInexact == 1 })
		}
		tr.stop()
		if n := tr.snapshot().Counters.ExitedInexact; n != 1 {
			t.Errorf("%d processes ended inexact", n)
		}
	}
}
