package watch

import (
	"context"
	"testing"
)

// The first mapping of a process counts, in whichever order mappings are reported, and also if the process is asked
// about between them.
func TestFirstSighting(t *testing.T) {
	for what, test := range map[string]struct {
		add  func(f *PIDQueue)
		want uint64
	}{
		"unknown, then seen": {func(f *PIDQueue) { f.AddSeen(1, 0); f.AddSeen(1, 5) }, 0},
		"seen, then unknown": {func(f *PIDQueue) { f.AddSeen(1, 5); f.AddSeen(1, 0) }, 0},
		"later, then first":  {func(f *PIDQueue) { f.AddSeen(1, 7); f.AddSeen(1, 5) }, 5},
		"asked, then seen":   {func(f *PIDQueue) { f.Add(1); f.AddSeen(1, 5) }, 5},
		"seen, then asked":   {func(f *PIDQueue) { f.AddSeen(1, 5); f.Add(1) }, 5},
		"asked":              {func(f *PIDQueue) { f.Add(1) }, NotSeen},
	} {
		f := NewPIDQueue()
		test.add(f)
		if pids, _, err := f.Wait(context.Background()); err != nil || len(pids) != 1 || pids[1] != test.want {
			t.Errorf("%s: %v, %v", what, pids, err)
		}
	}
}
