package proc

import (
	"os"
	"time"
)

// Limit bounds work by the time that it takes of processors, so that it does not end early
// because the host is busy.
type Limit struct {
	time  time.Duration
	began time.Time
	used  func() time.Duration
	at    time.Duration
}

// limitWaits is how many times as long as its limit work may take where it waits, for
// a processor or for anything else.
const limitWaits = 10

// NewLimit begins. Others, which can be nil, is the processor time of whoever works for this
// process; its own is counted whole, whatever else it does meanwhile.
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

// Over says whether the time is up: the limit passed, and that much time of processors
// was used, or the limit passed ten times.
func (l *Limit) Over() bool { return l.over(time.Now()) }

func (l *Limit) over(now time.Time) bool {
	passed := now.Sub(l.began)
	return passed >= l.time && (passed >= limitWaits*l.time || l.used()-l.at >= l.time)
}
