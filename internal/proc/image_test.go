package proc_test

import (
	"testing"

	"tt-memtrace/internal/proc"
	"tt-memtrace/test/fixture"
)

// What runs in a process runs also after its main thread has ended, until the process ends or executes another program.
func TestImage(t *testing.T) {
	t.Parallel()
	driver, err := fixture.Driver(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, end := range []string{"exec", "kill"} {
		p, err := fixture.Start(driver)
		if err != nil {
			t.Fatal(err)
		}
		defer p.Kill()
		image, err := proc.OpenImage(p.PID)
		if err != nil {
			t.Fatal(err)
		}
		defer image.Close()
		runs := func(what string, want bool) {
			t.Helper()
			if is := image.Runs(); is != want {
				t.Errorf("%s, %s: %t", end, what, is)
			}
		}
		runs("at first", true)
		if end == "exec" {
			fixture.Do(t, p, "exec")
			runs("another program", false)
			continue
		}
		fixture.Do(t, p, "leave")
		runs("without its main thread", true)
		p.Kill()
		runs("at the end", false)
	}
}
