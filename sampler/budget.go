package sampler

import "time"

// budget is what looking may cost: one part in Share of a processor. Searches have a quarter of that,
// and what looks leave of the rest.
type budget struct {
	at time.Time
	// credit is what may be spent on searches, and less than 0 a debt.
	credit time.Duration
	// owed is what looks took beyond their part. They can be asked for faster than the interval allows.
	owed time.Duration
	// spent in this round so far, and look is what a round takes without searches.
	spent, look time.Duration
	// begun: the first round ended. It reads what no other has to, and shows nothing of what they take.
	begun bool
}

// A burst of searches is possible where there was a pause; below 0 it goes where a process
// came to rest, whose numbers are then right for as long as that lasts, and where one waited for longer
// than searchWait.
const (
	maxCredit = 500 * time.Millisecond
	maxDebt   = -maxCredit
	maxOwed   = maxCredit
	// searchWait is how long a process that never rests waits behind those that do.
	searchWait = 10 * time.Second
	// searchPart is the part of the budget that looks do not get.
	searchPart = 4
)

func newBudget(now time.Time) budget { return budget{at: now, credit: maxCredit} }

// spend takes what was spent by now from what was earned. Regular is what every round
// costs; the rest waits for credit.
func (b *budget) spend(now time.Time, cost time.Duration, regular bool) {
	earned := now.Sub(b.at) / Share
	b.at = now
	b.owed -= earned - earned/searchPart
	b.credit += earned / searchPart
	if regular {
		b.owed += cost
		b.spent += cost
	} else {
		b.credit -= cost
	}
	if b.owed < 0 { // looks leave that
		b.credit -= b.owed
		b.owed = 0
	}
	b.owed, b.credit = min(b.owed, maxOwed), min(b.credit, maxCredit)
}

// spendFirst is spend for the first search of a process. It waits for no credit, and reads what no later one has to:
// these do not wait until all of it is earned.
func (b *budget) spendFirst(now time.Time, cost time.Duration) {
	least := min(b.credit, maxDebt)
	b.spend(now, cost, false)
	b.credit = max(b.credit, least)
}

// permits says whether a search may begin that costs about so much, of a process that rests or not, and
// was last searched so long ago.
func (b *budget) permits(cost time.Duration, rests bool, ago time.Duration) bool {
	switch {
	case rests:
		return b.credit-min(cost, maxCredit) > maxDebt // no more than maxCredit can be saved for it
	case ago >= searchWait:
		// Those that rest leave that much.
		return b.credit > maxDebt
	}
	return b.credit > cost+maxCredit/4
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
	least := b.look * Share * searchPart / (searchPart - 1)
	if least <= asked {
		return asked
	}
	// In steps, so that it does not change all the time.
	const step = 100 * time.Millisecond
	return least.Truncate(step) + step
}
