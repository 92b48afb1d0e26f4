package watch

import (
	"context"
	"testing"
	"time"
)

// A process is looked at as one that was seen when it was first: also where it could not be looked at then, and is seen again since.
func TestFirstSighting(t *testing.T) {
	for what, add := range map[string]func(f *PIDQueue){
		"before": func(f *PIDQueue) { f.AddSeen(1, time.Time{}); f.Add(1) },
		"after":  func(f *PIDQueue) { f.Add(1); f.AddSeen(1, time.Time{}) },
	} {
		f := NewPIDQueue()
		add(f)
		if pids, _, err := f.Wait(context.Background()); err != nil || len(pids) != 1 || !pids[1].IsZero() {
			t.Errorf("%s: %v, %v", what, pids, err)
		}
	}
}
