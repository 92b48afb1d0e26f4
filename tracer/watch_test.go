package tracer

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"tt-memtrace/test/fixture"
)

// watches are the ways to watch, of which a kernel has one at least.
var watches = map[string]func(anyName bool) (watch, error){
	"program": func(anyName bool) (watch, error) { return watchByProgram(anyName, nil) },
	"perf":    func(anyName bool) (watch, error) { return watchByPerf(anyName) },
}

// Both ways to watch tell of a runtime that a process loads, and of what is called
// otherwise only where all names are of interest.
func TestWatchSeesALibraryBeingLoaded(t *testing.T) {
	needRights(t)
	lib, other := library(t, layoutA), library(t, fixture.Build{Name: "libmine.so", Flags: layoutB.Flags})
	driver(t)
	lacking(t)
	worked := 0
	for name, begin := range watches {
		for _, anyName := range []bool{false, true} {
			w, err := begin(anyName)
			if err != nil {
				t.Logf("%s: %v", name, err)
				continue
			}
			worked++
			user, stranger := launch(t), launch(t)
			do(t, stranger, "open %s", other)
			do(t, user, "open %s", lib)
			var seen []uint32
			all := func() bool {
				return slices.Contains(seen, user.PID) && (!anyName || slices.Contains(seen, stranger.PID))
			}
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			err = w.Run(ctx, func(pid uint32) {
				if seen = append(seen, pid); all() {
					cancel()
				}
			}, func() {})
			cancel()
			w.Close()
			if err != nil || !all() || !anyName && slices.Contains(seen, stranger.PID) {
				t.Errorf("%s, any name %t: saw %d of %d and %d, error %v", name, anyName, seen, user.PID, stranger.PID, err)
			}
		}
	}
	if worked == 0 {
		t.Error("there is no way to watch")
	}
}

// What found no room is not silently missing, and what comes later is told of again.
func TestWatchTellsOfWhatItMissed(t *testing.T) {
	needRights(t)
	lacking(t)
	path := filepath.Join(t.TempDir(), libraryNames[0])
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
		// perf tells of what it lost with the next record that finds room.
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		var mapping sync.WaitGroup
		mapping.Go(func() {
			for ctx.Err() == nil {
				mapIt()
			}
		})
		seen, missed := 0, 0
		err = w.Run(ctx, func(uint32) {
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
