package sampler

import "time"

// budget keeps the CPU time of looks and searches within 1/Share of one CPU. Searches get 1/searchPart of that, and what
// looks leave of the rest. All durations are CPU time.
type budget struct {
	at time.Time // the last spend
	// credit may be spent on searches; negative is a debt.
	credit time.Duration
	// owed is what looks took beyond their part: a caller can request them more often than the interval allows.
	owed time.Duration
	// spent is what this round took so far without searches, and look the moving average of rounds.
	spent, look time.Duration
	// begun means that the first round has ended. That one costs more than any later one, so look leaves it out.
	begun bool
}

const (
	// maxCredit is the most that is saved for a burst of searches.
	maxCredit = 500 * time.Millisecond
	// maxDebt is the lowest credit. Only two kinds of searches use credit below 0: that of a process that has come to
	// rest, because its numbers then stay right until it runs again, and one that is due for searchWait.
	maxDebt = -maxCredit
	maxOwed = maxCredit
	// searchWait is how long a process that never rests waits for processes at rest.
	searchWait = 10 * time.Second
	// searchPart: one part in searchPart of the budget is for searches alone.
	searchPart = 4
)

func newBudget(now time.Time) budget { return budget{at: now, credit: maxCredit} }

// spend adds what was earned since the last call, and subtracts a cost. regular means that the cost is that of looks, not
// of a search.
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
	if b.owed < 0 { // looks did not use that
		b.credit -= b.owed
		b.owed = 0
	}
	b.owed, b.credit = min(b.owed, maxOwed), min(b.credit, maxCredit)
}

// spendFirst is spend for the first search of a process. That one needs no credit and costs more than later ones, so it
// does not take the credit below maxDebt: otherwise later searches would wait long.
func (b *budget) spendFirst(now time.Time, cost time.Duration) {
	least := min(b.credit, maxDebt)
	b.spend(now, cost, false)
	b.credit = max(b.credit, least)
}

// permits reports whether a search may begin: its probable cost, whether its process rests, and how long ago that was last
// searched.
func (b *budget) permits(cost time.Duration, rests bool, ago time.Duration) bool {
	switch {
	case rests:
		return b.credit-min(cost, maxCredit) > maxDebt // credit never exceeds maxCredit, so requiring more would block it for ever
	case ago >= searchWait:
		// Searches of processes at rest keep the credit above maxDebt.
		return b.credit > maxDebt
	}
	return b.credit > cost+maxCredit/4
}

// interval ends a round. It returns the interval between rounds: the requested one, or a longer one if looks cost too much.
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
	// Round it up, so that it does not change with every round.
	const step = 100 * time.Millisecond
	return least.Truncate(step) + step
}
