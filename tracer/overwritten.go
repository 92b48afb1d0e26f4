package tracer

import (
	"context"
	"fmt"

	"github.com/fsnotify/fsnotify"
)

// The kernel keeps a copy of each instruction that a probe stands on, and runs the
// copy. A library is mostly replaced by another file, which has no probes. One that
// is written over has them where the old one had, and whoever maps it then would run
// the old one's instructions among the new one's. So the probes come out with the
// first write to it.

// name is one under which the open file can be reached, in any mount namespace.
func (l *Library) name() string { return fmt.Sprintf("/proc/self/fd/%d", l.file.Fd()) }

// guard watches for writes to a library.
func (t *Tracer) guard(l *Library) {
	if err := t.writes.Add(l.name()); err != nil {
		t.opts.Notice(fmt.Sprintf("%s: nothing tells when it is written over: %v", l.Path, err))
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
			t.opts.Notice(fmt.Sprintf("watching for libraries that are written over: %v", err))
		}
	}
}

// overwritten detaches from a library. What maps it next is looked at anew.
func (t *Tracer) overwritten(name string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for id, a := range t.libraries {
		if a.lib.name() != name {
			continue
		}
		t.releaseAll(a)
		_ = t.writes.Remove(name) // there is one watch: it fails only if that has gone
		delete(t.libraries, id)
		t.former = append(t.former, a)
		t.opts.Notice(fmt.Sprintf("%s is being written over, so its probes were taken out: what uses it now is traced no longer, what uses it next is", a.lib.Path))
	}
}
