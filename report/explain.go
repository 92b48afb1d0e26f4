package report

import (
	"bufio"
	"io"
	"time"

	"tt-memtrace/aggregator"
)

// Explain writes why one allocation failed, as Text does: who asked for what, how full the
// chips were, and who held it. state is that of the accounts at that moment, as
// aggregator.State returns it; wall converts a time of the events to the time of day.
func Explain(w io.Writer, state []aggregator.Event, e *aggregator.Event, wall func(uint64) time.Time) error {
	accounts := aggregator.New()
	b := NewBuilder(accounts)
	for i := range state {
		accounts.Apply(&state[i])
		b.Event(&state[i])
	}
	b.Refused(e)
	p := &printer{w: bufio.NewWriter(w), many: len(b.started) > 1}
	for i := range b.refusals {
		p.refusal(&b.refusals[i], wall(e.Time).Format(time.TimeOnly))
	}
	return p.end()
}
