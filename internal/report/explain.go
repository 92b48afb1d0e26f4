package report

import (
	"bufio"
	"io"
	"slices"

	"tt-memtrace/aggregator"
)

// Explain writes why one allocation failed, as Text does: who requested what, how full the chips were, what helps,
// and who held the memory. state is the state of the accounts at that moment, as events.
func Explain(w io.Writer, state []aggregator.Event, e *aggregator.Event) error {
	accounts := aggregator.New()
	b := NewBuilder(accounts)
	for i := range state {
		accounts.Apply(&state[i])
		b.Event(&state[i])
	}
	b.AllocationFailed(e)
	p := &printer{w: bufio.NewWriter(w), many: len(b.started) > 1}
	for i := range b.failures {
		p.failure(&b.failures[i], manyHolders+1)
	}
	if slices.ContainsFunc(b.failures, func(r Failure) bool {
		return slices.ContainsFunc(r.Holders, func(s Site) bool { return len(s.Stack) == 0 && s.Others == 0 })
	}) {
		p.line("    no call sites: --stacks, or x in the view sites, records them")
	}
	return p.end()
}
