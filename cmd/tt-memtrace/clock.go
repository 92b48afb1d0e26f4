package main

import (
	"sync"
	"time"

	"tt-memtrace/internal/proc"
)

// clock turns the time of events into the time of day, as the host's clock has it now: that can be set, and goes on while
// the host is suspended, which the other does not.
func clock() func(uint64) time.Time { return clockBy(time.Now, proc.Monotonic) }

const (
	// clockRead is how long the difference between the two clocks is taken to be the same.
	clockRead = time.Second
	// clockOff is by how much the difference changes at least. What is read is less exact, as time passes in between.
	clockOff = 20 * time.Millisecond
)

func clockBy(day func() time.Time, monotonic func() time.Duration) func(uint64) time.Time {
	var mu sync.Mutex
	var zero time.Time // on the clock of events
	var at time.Duration
	return func(t uint64) time.Time {
		mu.Lock()
		defer mu.Unlock()
		if now := monotonic(); zero.IsZero() || now-at >= clockRead {
			is := day().Round(0).Add(-now)
			took := monotonic() - now
			if off := is.Sub(zero).Abs(); zero.IsZero() || took < clockOff/2 && off > clockOff {
				zero = is
			}
			at = now
		}
		return zero.Add(time.Duration(t))
	}
}
