package tracer

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"tt-memtrace/aggregator"
	"tt-memtrace/internal/discover"
	"tt-memtrace/test/fixture"
)

// overlay mounts a folder as the lower layer of an overlay, as containers of one image have it.
func overlay(t *testing.T, lower string) (merged string) {
	t.Helper()
	dir := t.TempDir()
	fixture.Public(t, dir)
	for _, d := range []string{"upper", "work", "merged"} {
		if err := os.Mkdir(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	merged = filepath.Join(dir, "merged")
	options := fmt.Sprintf("lowerdir=%s,upperdir=%s/upper,workdir=%[2]s/work", lower, dir)
	if err := unix.Mount("overlay", merged, "overlay", 0, options); err != nil {
		t.Skipf("mounting an overlay: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(merged, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return merged
}

// Containers of one image have overlays of the same file: each event of theirs counts once.
func TestOverlaysOfOneLibrary(t *testing.T) {
	needRights(t)
	lower := t.TempDir()
	fixture.Public(t, lower)
	path := filepath.Join(lower, discover.LibraryNames[0])
	if err := os.WriteFile(path, fixture.Read(t, fixture.LibraryOf(t, fixture.LayoutB)), 0o755); err != nil {
		t.Fatal(err)
	}
	places := []string{overlay(t, lower), overlay(t, lower), lower}
	tr := start(t, Options{})
	var all []*ledger
	for i, place := range places {
		p := fixture.Launch(t)
		fixture.Do(t, p, "open %s", filepath.Join(place, discover.LibraryNames[0]))
		tr.awaitProcess(p.PID)
		l := keep(t, tr, p)
		l.device(0, i)
		all = append(all, l)
	}
	for range 4 {
		for i, l := range all {
			l.alloc(0, aggregator.DRAM, i)
			l.alloc(0, aggregator.L1, i)
			l.free()
		}
	}
	for _, l := range all {
		l.compare()
	}
	// The set of probes outlives the names that it was found by.
	all[0].p.Kill()
	tr.await("its accounts end", func() bool { _, ok := tr.lookup(all[0].p.PID); return !ok })
	tr.evict()
	for i, l := range all[1:] {
		l.alloc(0, aggregator.DRAM, i+1)
		l.compare()
	}
}

// Containers of one image, each a tenant of its own, have the room of one library, however many they are.
func TestOverlaysOfManyTenants(t *testing.T) {
	needRights(t)
	lower := t.TempDir()
	fixture.Public(t, lower)
	files := map[string]string{discover.LibraryNames[0]: fixture.LibraryOf(t, fixture.LayoutB), "driver": fixture.SharedDriver(t)}
	for name, from := range files {
		if err := os.WriteFile(filepath.Join(lower, name), fixture.Read(t, from), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	tr := start(t, Options{Follow: uint32(os.Getpid())})
	tr.rooms(room{1, 1, 4})
	for i := range uint32(3) {
		place := overlay(t, lower)
		p, err := fixture.StartAs(fixture.Stranger-i, []string{filepath.Join(place, "driver")})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(p.Kill)
		fixture.Do(t, p, "open %s", filepath.Join(place, discover.LibraryNames[0]))
		tr.awaitProcess(p.PID)
		l := keep(t, tr, p)
		l.device(0, int(i))
		l.alloc(0, aggregator.DRAM, int(i))
		l.alloc(0, aggregator.L1, int(i))
		l.free()
		if s := l.compare(); !s.Exact() {
			t.Errorf("%+v", s.Reasons)
		}
	}
	tr.noticed()
}

// evict detaches from what nobody maps.
func (tr *trace) evict() {
	tr.tracer.attacher.mu.Lock()
	defer tr.tracer.attacher.mu.Unlock()
	tr.tracer.attacher.evictUnmapped(func(string) bool { return true })
}

// An overlay copies a file whose owner or mode changes, and keeps its number. Who maps the copy is traced, as are those
// who mapped the file before.
func TestOverlayCopiesALibrary(t *testing.T) {
	needRights(t)
	lower := t.TempDir()
	fixture.Public(t, lower)
	build := fixture.Read(t, fixture.LibraryOf(t, fixture.LayoutB))
	if err := os.WriteFile(filepath.Join(lower, discover.LibraryNames[0]), build, 0o755); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(overlay(t, lower), discover.LibraryNames[0])
	tr := start(t, Options{Follow: uint32(os.Getpid())})
	open := func(chip int) *ledger {
		p := fixture.Launch(t)
		fixture.Do(t, p, "open %s", path)
		tr.awaitProcess(p.PID)
		l := keep(t, tr, p)
		l.device(0, chip)
		return l
	}
	all := []*ledger{open(0)}
	if err := os.Chmod(path, 0o700); err != nil {
		t.Fatal(err)
	}
	all = append(all, open(1))
	// Elsewhere the file itself is not copied, and has its probes.
	if err := os.Chmod(filepath.Join(lower, discover.LibraryNames[0]), 0o700); err != nil {
		t.Fatal(err)
	}
	path = filepath.Join(lower, discover.LibraryNames[0])
	all = append(all, open(2))
	for i, l := range all {
		l.alloc(0, aggregator.DRAM, i)
		l.alloc(0, aggregator.L1, i)
		l.free()
		l.compare()
	}
	tr.noticed()
}
