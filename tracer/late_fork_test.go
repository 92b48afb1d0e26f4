package tracer

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"tt-memtrace/aggregator"
	"tt-memtrace/aggregator/exact"
	"tt-memtrace/test/fixture"
)

// What a process holds that was forked before the probes were attached is read, however long after that its first
// record comes, and also if none comes.
func TestForkedBeforeProbesAreAttached(t *testing.T) {
	t.Parallel()
	for _, o := range []Options{{Follow: uint32(os.Getpid())}, {}} {
		for _, silent := range []bool{false, true} {
			forkedBeforeProbesAreAttached(t, o, silent)
		}
	}
}

func forkedBeforeProbesAreAttached(t *testing.T, o Options, silent bool) {
	t.Helper()
	tr := start(t, o)
	defer tr.stop()
	p := fixture.Launch(t)
	defer p.Kill()
	library := filepath.Join(t.TempDir(), "libtt_metal.so") // which no process of another test maps
	if err := os.WriteFile(library, fixture.Read(t, fixture.LibraryOf(t, fixture.LayoutB)), 0o755); err != nil {
		t.Fatal(err)
	}
	tr.tracer.attacher.mu.Lock() // nothing is attached to
	fixture.Do(t, p, "open %s", library)
	child := fork(t, p)
	fixture.Do(t, p, "child 0 device 4 2")
	fixture.Do(t, p, "child 0 alloc 100 4 0 0 8192 1024 64")
	want := uint64(1)
	tr.tracer.attacher.mu.Unlock()
	tr.awaitProcess(p.PID)
	if !silent {
		tr.tracer.attacher.mu.Lock()
		for _, set := range tr.tracer.attacher.libraries.sets() {
			for scope, linked := range set.linked { // long ago
				set.linked[scope] = moment{1, linked.ticks}
			}
		}
		tr.tracer.attacher.mu.Unlock()
		fixture.Do(t, p, "child 0 alloc 100 4 0 0 8192 1024 128")
		want++
	}
	s := tr.process(child)
	// Its parent may have opened and closed the device before: that is unknown until the child uses it.
	marked := slices.ContainsFunc(s.Reasons, func(r aggregator.Reason) bool {
		return !silent || r.Code != exact.ReasonForked
	})
	if bytes := s.Memory[aggregator.DRAM].Requested; !s.Buffers.Is(want) || !bytes.Is(8192*want) || s.Late || marked {
		t.Errorf("%+v, silent %t: %d buffers, %d bytes, late %t, marked with %+v",
			o, silent, s.Buffers, bytes, s.Late, s.Reasons)
	}
	if s := tr.compared(child); s.Agreement.Repaired != 0 {
		t.Errorf("%+v, silent %t: a comparison repaired %d", o, silent, s.Agreement.Repaired)
	}
}
