package sampler

import "time"

// budget is what looking may cost: one part in Share of a processor.
type budget struct {
	at time.Time
	// credit is what may be spent on searches: what rounds have left over.
	credit time.Duration
	// spent in this round so far, and look is what a round takes without searches.
	spent, look time.Duration
	// begun: the first round ended. It reads what no other has to, and shows nothing of what they take.
	begun bool
}

// A burst of searches is possible where there was a pause; below 0 it goes where a process
// came to rest, whose numbers are then right for as long as that lasts.
const (
	maxCredit = 500 * time.Millisecond
	maxDebt   = -maxCredit
)

func newBudget(now time.Time) budget { return budget{at: now, credit: maxCredit} }

// spend takes what was spent by now from what was earned. Regular is what every round
// costs; the rest waits for credit.
func (b *budget) spend(now time.Time, cost time.Duration, regular bool) {
	b.credit = min(b.credit+now.Sub(b.at)/Share, maxCredit) - cost
	b.at = now
	if regular {
		b.spent += cost
	}
}

// interval is what rounds can be apart, and ends one.
func (b *budget) interval(asked time.Duration) time.Duration {
	if !b.begun {
		b.begun, b.spent = true, 0
		return asked
	}
	if b.look == 0 {
		b.look = b.spent
	}
	b.look += (b.spent - b.look) / 4
	b.spent = 0
	// A quarter is left for searches.
	least := b.look * Share * 4 / 3
	if least <= asked {
		return asked
	}
	// In steps, so that it does not change all the time.
	const step = 100 * time.Millisecond
	return least.Truncate(step) + step
}
