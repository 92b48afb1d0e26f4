package proc

import (
	"testing"
	"time"
)

// Time in which others have the processors does not count, but for the most that it can be.
func TestLimit(t *testing.T) {
	began := time.Now()
	for _, c := range []struct {
		passed, used time.Duration
		over         bool
	}{
		{2 * time.Second, time.Second, false},
		{2 * time.Second, 8 * time.Second, false}, // on several processors, for others too
		{20 * time.Second, 2 * time.Second, false},
		{3 * time.Second, 3 * time.Second, true},
		{20 * time.Second, 3 * time.Second, true},
		{30 * time.Second, 0, true},
	} {
		used := time.Minute
		l := newLimit(3*time.Second, began, func() time.Duration { return used })
		used += c.used
		if l.over(began.Add(c.passed)) != c.over {
			t.Errorf("after %v, of them %v used: over %v", c.passed, c.used, !c.over)
		}
	}
}

// A limit counts what this process and others use.
func TestLimitCountsProcessorTime(t *testing.T) {
	others := time.Duration(0)
	l := NewLimit(time.Nanosecond, func() time.Duration { return others })
	for !l.Over() { // this uses it up
	}
	l = NewLimit(time.Hour, func() time.Duration { return others })
	if others = 2 * time.Hour; l.over(l.began.Add(time.Minute)) || !l.over(l.began.Add(time.Hour)) {
		t.Error("what others use does not count")
	}
}
