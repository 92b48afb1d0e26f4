package ui

import (
	"time"

	"tt-memtrace/aggregator"
)

// rateWindow is the time over which rates are averaged: long enough to read them, short enough to be current.
const rateWindow = 2 * time.Second

// processID identifies a process. A PID alone is reused; a PID with a start time is not.
type processID struct {
	pid     uint32
	started uint64
}

func idOf(p *aggregator.ProcessSnapshot) processID {
	return processID{p.PID, p.Info.Started}
}

// rates are per second. What is missing is unknown.
type rates struct {
	events float64
	known  bool
	// calls are allocations and frees of each process. It is nil in text, which has no rates.
	calls map[processID]float64
}

type sample struct {
	at     time.Time
	events uint64
	calls  map[processID]uint64
}

// meter computes rates from counters.
type meter struct {
	samples []sample
}

// add adds the counters of a snapshot that was read at this time.
func (m *meter) add(at time.Time, s *aggregator.Snapshot) {
	now := sample{at, s.Counters.Events, make(map[processID]uint64, len(s.Processes))}
	for i := range s.Processes {
		p := &s.Processes[i]
		now.calls[idOf(p)] = p.Counters.Allocs.WithoutBound() + p.Counters.Frees.WithoutBound()
	}
	if n := len(m.samples); n > 0 {
		if last := m.samples[n-1]; now.events < last.events || !at.After(last.at) {
			// The counters were reset, or the clock was set back.
			m.samples = nil
		}
	}
	for len(m.samples) > 1 && at.Sub(m.samples[1].at) >= rateWindow {
		m.samples = m.samples[1:]
	}
	m.samples = append(m.samples, now)
}

// rates returns the rates between the oldest sample of the window and the newest.
func (m *meter) rates() rates {
	r := rates{calls: map[processID]float64{}}
	if len(m.samples) < 2 {
		return r
	}
	last := m.samples[len(m.samples)-1]
	r.known = true
	r.events = float64(last.events-m.samples[0].events) / last.at.Sub(m.samples[0].at).Seconds()
	for id, n := range last.calls {
		for _, first := range m.samples[:len(m.samples)-1] {
			if before, ok := first.calls[id]; ok && before <= n {
				r.calls[id] = float64(n-before) / last.at.Sub(first.at).Seconds()
				break
			}
		}
	}
	return r
}

// elapsed computes the current time of a snapshot's clock between events. That clock stops while nothing happens, but
// processes get older.
type elapsed struct {
	// newest is the time of the newest event. event and at are one moment in both clocks, from which others are
	// computed.
	newest, event uint64
	at            time.Time
	// last is what now returned last.
	last uint64
}

// elapsedSlack is how much the clocks may differ because one is read after the other. Within it, the time of day of an
// event stays the same.
const elapsedSlack = 50 * time.Millisecond

// now returns the present in CLOCK_MONOTONIC ns, as well as the newest event shows it. It does not go back unless wall
// does: the newest event of a source that has ended, or of a slow replay, may seem to be in the past.
func (e *elapsed) now(wall time.Time, newest uint64) uint64 {
	now := e.event + uint64(wall.Sub(e.at))
	switch off := time.Duration(newest - now); {
	case e.at.IsZero(), wall.Before(e.at):
		e.event, e.at = newest, wall
	case newest > e.newest && off.Abs() > elapsedSlack:
		e.event, e.at = max(newest, e.last), wall
	}
	e.newest, e.last = max(newest, e.newest), e.event+uint64(wall.Sub(e.at))
	return e.last
}
