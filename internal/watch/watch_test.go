package watch

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"tt-memtrace/internal/discover"
	"tt-memtrace/internal/proc"
	"tt-memtrace/test/fixture"
)

// watches are the ways to watch, of which a kernel has one at least.
var watches = map[string]func(anyName bool) (Watcher, error){
	"program": func(anyName bool) (Watcher, error) { return watchByProgram(anyName, nil) },
	"perf":    func(anyName bool) (Watcher, error) { return watchByPerf(anyName, nil) },
}

// Both ways to watch report a runtime that a process loads, and files that are named
// otherwise only where all names are of interest.
func TestWatchSeesALibraryBeingLoaded(t *testing.T) {
	needRoot(t)
	lib, other := fixture.LibraryOf(t, fixture.LayoutA), fixture.LibraryOf(t, fixture.Build{Name: "libmine.so", Flags: fixture.LayoutB.Flags})
	fixture.SharedDriver(t)
	fixture.Ready(t)
	worked := 0
	for name, begin := range watches {
		for _, anyName := range []bool{false, true} {
			w, err := begin(anyName)
			if err != nil {
				t.Logf("%s: %v", name, err)
				continue
			}
			worked++
			launched := uint64(proc.Monotonic())
			user, stranger := fixture.Launch(t), fixture.Launch(t)
			fixture.Do(t, stranger, "open %s", other)
			before := uint64(proc.Monotonic())
			if anyName { // then what a process maps as it starts is reported too
				before = launched
			}
			fixture.Do(t, user, "open %s", lib)
			after, at := uint64(proc.Monotonic()), uint64(0)
			var seen []uint32
			all := func() bool {
				return slices.Contains(seen, user.PID) && (!anyName || slices.Contains(seen, stranger.PID))
			}
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			err = w.Run(ctx, func(pid uint32, when uint64) {
				if pid == user.PID {
					at = when
				}
				if seen = append(seen, pid); all() {
					cancel()
				}
			}, func() {})
			cancel()
			w.Close()
			if at < before || at > after {
				t.Errorf("%s, any name %t: mapped between %d and %d, reported at %d", name, anyName, before, after, at)
			}
			if err != nil || !all() || !anyName && slices.Contains(seen, stranger.PID) {
				t.Errorf("%s, any name %t: saw %d of %d and %d, error %v", name, anyName, seen, user.PID, stranger.PID, err)
			}
		}
	}
	if worked == 0 {
		t.Error("there is no way to watch")
	}
}

// Both report a process that maps a device, and no other.
func TestWatchSeesDevices(t *testing.T) {
	needRoot(t)
	fixture.SharedDriver(t)
	fixture.Ready(t)
	file := filepath.Join(t.TempDir(), "shared")
	if err := os.WriteFile(file, make([]byte, os.Getpagesize()), 0o644); err != nil {
		t.Fatal(err)
	}
	for name, begin := range watches {
		w, err := begin(false)
		if err != nil {
			t.Logf("%s: %v", name, err)
			continue
		}
		holder, other := fixture.Holder(t, nil), fixture.Holder(t, nil)
		fixture.Do(t, other, "map %s", file)
		fixture.Do(t, holder, "map %s", fixture.Device)
		var seen []uint32
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		err = w.Run(ctx, func(pid uint32, _ uint64) {
			if seen = append(seen, pid); pid == holder.PID {
				cancel()
			}
		}, func() {})
		cancel()
		w.Close()
		if err != nil || !slices.Contains(seen, holder.PID) || slices.Contains(seen, other.PID) {
			t.Errorf("%s: saw %d of %d, and %d maps none: %v", name, seen, holder.PID, other.PID, err)
		}
	}
}

// A process that maps a device after it was looked at is seen, and once.
func TestHoldersAreLookedAtAgain(t *testing.T) {
	needRoot(t)
	fixture.SharedDriver(t)
	fixture.Ready(t)
	p := fixture.Holder(t, nil)
	var h holders
	seen := 0
	look := func() {
		for range 2 {
			pids, err := proc.PIDs()
			if err != nil {
				t.Fatal(err)
			}
			h.look(pids, func(pid uint32) {
				if pid == p.PID {
					seen++
				}
			})
		}
	}
	if look(); seen != 0 {
		t.Errorf("process %d maps no device, and was seen", p.PID)
	}
	fixture.Do(t, p, "map %s", fixture.Device)
	if look(); seen != 1 {
		t.Errorf("process %d has mapped a device, and was seen %d times", p.PID, seen)
	}
}

// What found no room is not silently missing, and later mappings are reported again.
func TestWatchReportsWhatItMissed(t *testing.T) {
	needRoot(t)
	fixture.Ready(t)
	path := filepath.Join(t.TempDir(), discover.LibraryNames[0])
	if err := os.WriteFile(path, make([]byte, os.Getpagesize()), 0o755); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	mapIt := func() {
		b, err := unix.Mmap(int(f.Fd()), 0, os.Getpagesize(), unix.PROT_READ|unix.PROT_EXEC, unix.MAP_PRIVATE)
		if err == nil {
			err = unix.Munmap(b)
		}
		if err != nil {
			t.Error(err)
		}
	}
	for name, begin := range watches {
		w, err := begin(false)
		if err != nil {
			t.Logf("%s: %v", name, err)
			continue
		}
		for range 20_000 {
			mapIt()
		}
		// perf reports its losses with the next record that finds room.
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		var mapping sync.WaitGroup
		mapping.Go(func() {
			for ctx.Err() == nil {
				mapIt()
			}
		})
		seen, missed := 0, 0
		err = w.Run(ctx, func(uint32, uint64) {
			if seen++; missed > 0 {
				cancel()
			}
		}, func() { missed++ })
		mapping.Wait()
		if err != nil || missed == 0 || ctx.Err() != context.Canceled {
			t.Errorf("%s: saw %d and missed some %d times, error %v", name, seen, missed, err)
		}
		cancel()
		w.Close()
	}
}

func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("watching takes root")
	}
}

func TestMain(m *testing.M) { os.Exit(fixture.Main(m)) }
