package proc

import (
	"sync"
	"time"
)

// Allowance is how long somebody may be waited for: for a while in a row, and for a part of the time in
// the long run. It may be used from any goroutine.
type Allowance struct {
	most, share time.Duration
	mu          sync.Mutex
	left        time.Duration
	at          time.Time
}

// NewAllowance allows to wait for most in a row, and for one part in share of the time.
func NewAllowance(most, share time.Duration) *Allowance {
	return &Allowance{most: most, share: share, left: most, at: time.Now()}
}

// Left is how long may be waited now, 0 or less where it was too long.
func (a *Allowance) Left() time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := time.Now()
	if past := now.Sub(a.at); past > 0 {
		a.left, a.at = min(a.most, a.left+past/a.share), now
	}
	return a.left
}

// Take notes that it was waited.
func (a *Allowance) Take(d time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.left -= d
}
