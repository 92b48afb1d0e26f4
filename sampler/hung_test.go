package sampler

import (
	"os"
	"path/filepath"
	"testing"

	"tt-memtrace/test/fixture"
	"tt-memtrace/tracer/proc"
)

// Whether a process may be read is tried on a page of its own choice, which may never come: nobody waits for
// it longer than for any other.
func TestReadableIsAskedApart(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("starting a process of another user takes root")
	}
	file, asked := fixture.HangingFile(t)
	dir := t.TempDir()
	for d := dir; d != os.TempDir() && d != "/"; d = filepath.Dir(d) {
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	driver, library := filepath.Join(dir, "driver"), filepath.Join(dir, "libtt_metal.so")
	for to, from := range map[string]string{driver: fixture.SharedDriver(t), library: fixture.LibraryOf(t, fixture.LayoutA)} {
		if err := os.WriteFile(to, fixture.Read(t, from), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	const stranger = 65534
	p, err := fixture.StartAs(stranger, driver)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Kill)
	for _, command := range []string{"open " + library, "device 0 1", "elsewhere " + file + " 4096 0 0 0 4096 1024 128"} {
		fixture.Do(t, p, "%s", command)
	}
	list, err := proc.Files(p.PID, func(path string, _ proc.FileID) bool { return path == file })
	if err != nil || len(list) != 1 {
		t.Fatal(list, err)
	}
	one := &process{pid: p.PID, mapping: list[0], memory: memoryOf(p.PID)}
	if err := one.readable(); err != nil {
		t.Error(err)
	}
	<-asked
	if !one.memory.Hung() {
		t.Error("its page was not asked for")
	}
}
