package tracer

import (
	"testing"

	"tt-memtrace/internal/proc"
)

// A file is not opened again only where none but the one that is attached to can have its number, and a write to it
// shows.
func TestHeld(t *testing.T) {
	const watch = 7
	id, other := proc.FileID{Device: 1, Inode: 2}, proc.FileID{Device: 1, Inode: 3}
	for _, test := range []struct {
		name    string
		is      *attachment
		watched bool
		id      proc.FileID
		held    bool
	}{
		{"it is attached to", &attachment{watch: watch, plain: true, probes: &probeSet{}}, true, id, true},
		{"another file", &attachment{watch: watch, plain: true, probes: &probeSet{}}, true, other, false},
		{"it has no probes", &attachment{watch: watch, plain: true}, true, id, false},
		{"its number can be another file's", &attachment{watch: watch, probes: &probeSet{}}, true, id, false},
		{"nobody watches for writes", &attachment{watch: watch, plain: true, probes: &probeSet{}}, false, id, false},
	} {
		a := test.is
		at := newAttacher(&env{})
		at.libraries.libraries[id], at.writes = a, &writeWatch{watched: map[int32]*attachment{}}
		if test.watched {
			at.writes.watched[watch] = a
		}
		if got := at.held(test.id); (got == a) != test.held {
			t.Errorf("%s: held %v, want %v", test.name, got == a, test.held)
		}
	}
}
