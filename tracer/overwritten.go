package tracer

import (
	"context"
	"fmt"

	"github.com/fsnotify/fsnotify"

	"tt-memtrace/tracer/metal"
)

// The host kernel keeps a copy of each probed instruction, and runs the copy. A library
// is usually replaced by another file, which has no probes. One that is overwritten
// in place keeps the old probes, and a process that maps it then would run some of the
// old instructions among the new ones. So the first write to it removes the probes.

// guard watches for writes to a library.
func (t *Tracer) guard(l *metal.Library) {
	if err := t.writes.Add(l.ProcName()); err != nil {
		t.opts.Notice(fmt.Sprintf("%s: overwriting it cannot be detected: %v", l.Path, err))
	}
}

// guarding takes the probes out of libraries that are written to, until the context ends.
func (t *Tracer) guarding(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case e := <-t.writes.Events:
			if e.Has(fsnotify.Write) {
				t.overwritten(e.Name)
			}
		case err := <-t.writes.Errors:
			t.opts.Notice(fmt.Sprintf("watching for overwritten libraries: %v", err))
		}
	}
}

// overwritten detaches from a library. It is examined again when it is next mapped.
func (t *Tracer) overwritten(name string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for id, a := range t.libraries {
		if a.lib.ProcName() != name {
			continue
		}
		t.releaseAll(a)
		_ = t.writes.Remove(name) // there is one watch: it fails only if that has gone
		delete(t.libraries, id)
		t.former = append(t.former, a)
		t.opts.Notice(fmt.Sprintf("%s is being overwritten, so its probes were removed: processes that use it now are no longer traced, later ones are", a.lib.Path))
	}
}
