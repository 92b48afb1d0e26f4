package proc

import (
	"sync"
	"time"
)

// Allowance bounds waiting for somebody: so long in a row, and a share of the time in the long run. Any goroutine may
// use it.
type Allowance struct {
	most, share time.Duration
	mu          sync.Mutex
	left        time.Duration
	at          time.Time
}

// NewAllowance allows waits of most in a row, and 1/share of the time.
func NewAllowance(most, share time.Duration) *Allowance {
	return &Allowance{most: most, share: share, left: most, at: time.Now()}
}

// Left returns how long a wait may take now; 0 or less if none is allowed.
func (a *Allowance) Left() time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := time.Now()
	if past := now.Sub(a.at); past > 0 {
		a.left, a.at = min(a.most, a.left+past/a.share), now
	}
	return a.left
}

// Take notes a wait.
func (a *Allowance) Take(d time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.left -= d
}
