package main

import (
	"testing"
	"time"
)

// Times are those of the host's clock also after it was set, or the host was suspended.
func TestClockThatIsSet(t *testing.T) {
	day, monotonic := time.Date(1970, 1, 1, 1, 0, 0, 0, time.UTC), time.Minute
	slow := time.Duration(0) // the second clock is read so much later
	wall := clockBy(func() time.Time {
		defer func() { monotonic += slow }()
		return day.Add(slow)
	}, func() time.Duration { return monotonic })
	is := func(what string, want time.Time) {
		t.Helper()
		if got := wall(uint64(monotonic)); !got.Equal(want) {
			t.Errorf("%s: %v, want %v", what, got, want)
		}
	}
	pass := func(d time.Duration) { day, monotonic = day.Add(d), monotonic+d }
	is("at first", day)
	pass(time.Hour)
	is("after an hour", day)
	day = time.Date(2026, 11, 28, 7, 0, 0, 0, time.UTC)
	pass(2 * clockRead)
	is("after it was set", day)
	if got := wall(uint64(monotonic - time.Minute)); !got.Equal(day.Add(-time.Minute)) {
		t.Errorf("a minute before: %v", got)
	}
	day = day.Add(-time.Hour)
	pass(2 * clockRead)
	is("after it was set back", day)
	pass(2 * clockRead)
	slow = time.Second
	if got := wall(0); !got.Equal(day.Add(-monotonic + slow)) {
		t.Errorf("where reading is late: %v, want %v", got, day.Add(-monotonic+slow))
	}
}
