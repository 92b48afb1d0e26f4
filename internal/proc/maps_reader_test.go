package proc

import (
	"errors"
	"io"
	"testing"
	"time"

	"tt-memtrace/test/fixture"
)

// A process whose mappings are locked for as long as its user likes is waited for by a few goroutines, and not for
// long; afterwards these go on.
func TestMappingsThatAreLocked(t *testing.T) {
	pid, release := fixture.LockedProcess(t)
	t.Cleanup(func() {
		mapsUsers.Lock()
		defer mapsUsers.Unlock()
		clear(mapsUsers.of) // others of this user are not to be refused
	})
	read := func() error {
		// The newest kernels list mappings without that lock, not their sizes.
		r, err := openMapsFile(pid, "smaps")
		if err != nil {
			return err
		}
		defer r.Close()
		_, err = io.Copy(io.Discard, r)
		return err
	}
	for until := time.Now().Add(time.Minute); !errors.Is(read(), ErrMapsBusy); {
		if time.Now().After(until) {
			t.Fatal("its mappings are not locked")
		}
	}
	for began := time.Now(); time.Since(began) < mapsShare*maxMapsWait/4; {
		if err := read(); !errors.Is(err, ErrMapsBusy) {
			t.Fatal(err)
		}
	}
	// Most were refused without a try.
	if n := waitFor(pid).stuck.Load(); n > maxMapsStuck {
		t.Errorf("%d goroutines wait", n)
	}
	release()
	for until := time.Now().Add(time.Minute); waitFor(pid).stuck.Load() > 0; {
		if time.Now().After(until) {
			t.Fatal("somebody waits still")
		}
	}
}
