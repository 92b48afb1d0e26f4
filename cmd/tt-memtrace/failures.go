package main

import (
	"cmp"
	"slices"
	"sync"

	"tt-memtrace/aggregator"
	"tt-memtrace/internal/export"
	"tt-memtrace/internal/report"
	"tt-memtrace/internal/session"
	"tt-memtrace/ui"
)

// failures are the newest allocations that failed, for snapshots.
type failures struct {
	mu     sync.Mutex
	list   []export.FailureLine
	before uint64
}

// maxFailures is how many failures are kept.
const maxFailures = 32

// logFailures makes the session keep allocations that fail, for status, and returns a log of them.
func (l *live) logFailures() *ui.Log {
	log := ui.NewLog()
	l.AddSink(session.Sink{Event: log.Event, AllocationFailed: func(e *aggregator.Event) { l.addFailure(log, e) }})
	return log
}

// addFailure keeps an allocation that failed, for status, and adds it to the log with advice. It returns its number in the log,
// and whether the log wants an explanation.
func (l *live) addFailure(log *ui.Log, e *aggregator.Event) (number uint64, explain bool) {
	l.failures.add(export.NewFailureLine(e, l.Wall(e.Time), report.CallSite))
	number, explain = log.AllocationFailed(e)
	if explain {
		log.Advise(number, report.Next(l.Accounts().Snapshot(), e))
	}
	return number, explain
}

func (f *failures) add(line export.FailureLine) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.list) == maxFailures {
		f.list = slices.Delete(f.list, 0, 1)
		f.before++
	}
	f.list = append(f.list, line)
}

// status returns the JSON form of a snapshot, with the failures that were seen.
func (l *live) status(s *aggregator.Snapshot) export.Status {
	st := export.NewStatus(s, l.Wall(cmp.Or(s.Time, l.Now())), l.host, version())
	l.failures.mu.Lock()
	defer l.failures.mu.Unlock()
	st.FailuresBefore = l.failures.before
	if st.Failures = slices.Clone(l.failures.list); len(st.Failures) > 0 {
		return st
	}
	if l.sampler == nil && s.SeesFailures() {
		st.Failures = []export.FailureLine{}
	}
	return st
}
