package proc

import (
	"os"
	"time"
)

// Limit bounds work by CPU time, so that it does not end early because the host is busy.
type Limit struct {
	time  time.Duration
	began time.Time
	used  func() time.Duration
	at    time.Duration
}

// limitWaits times its limit is the longest that work may take in real time, waits included.
const limitWaits = 10

// NewLimit starts a limit. others, which can be nil, returns the CPU time of processes that work for this one. This
// process's own CPU time counts in full, whatever else it does.
func NewLimit(limit time.Duration, others func() time.Duration) *Limit {
	self := uint32(os.Getpid())
	used := func() time.Duration {
		own, _ := ProcessorTime(self)
		if others != nil {
			own += others()
		}
		return own
	}
	return newLimit(limit, time.Now(), used)
}

func newLimit(limit time.Duration, began time.Time, used func() time.Duration) *Limit {
	return &Limit{limit, began, used, used()}
}

// Over reports whether the time is up: the limit passed and as much CPU time was used, or ten times the limit passed.
func (l *Limit) Over() bool { return l.over(time.Now()) }

func (l *Limit) over(now time.Time) bool {
	passed := now.Sub(l.began)
	return passed >= l.time && (passed >= limitWaits*l.time || l.used()-l.at >= l.time)
}
