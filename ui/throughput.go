package ui

import (
	"time"

	"tt-memtrace/aggregator"
)

// rateWindow is the time over which rates are averaged: long enough to be
// read, short enough to be about now.
const rateWindow = 2 * time.Second

// processID names a process for good: a PID is used again, a PID with a start time is not.
type processID struct {
	pid     uint32
	started uint64
}

func idOf(p *aggregator.ProcessSnapshot) processID {
	return processID{p.PID, p.Info.Started}
}

// rates are per second. What is missing is not known.
type rates struct {
	events float64
	known  bool
	// calls counts allocations and frees. It is nil where no test measures.
	calls map[processID]float64
}

type sample struct {
	at     time.Time
	events uint64
	calls  map[processID]uint64
}

// meter turns counters into rates.
type meter struct {
	samples []sample
}

// add notes the counters of s, read at the given time.
func (m *meter) add(at time.Time, s *aggregator.Snapshot) {
	now := sample{at, s.Counters.Events, make(map[processID]uint64, len(s.Processes))}
	for i := range s.Processes {
		p := &s.Processes[i]
		now.calls[idOf(p)] = p.Counters.Allocs + p.Counters.Frees
	}
	if n := len(m.samples); n > 0 {
		if last := m.samples[n-1]; now.events < last.events || !at.After(last.at) {
			// The counters began again, or the clock was set back.
			m.samples = nil
		}
	}
	for len(m.samples) > 1 && at.Sub(m.samples[1].at) >= rateWindow {
		m.samples = m.samples[1:]
	}
	m.samples = append(m.samples, now)
}

// rates between the newest sample and the oldest of the window.
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

// elapsed carries the snapshot's clock on between events: it stops
// while nothing happens, but processes get older.
type elapsed struct {
	// newest event, and the moment of both clocks that others are reckoned from.
	newest, event uint64
	at            time.Time
	// last is what now returned last.
	last uint64
}

// elapsedSlack is how much the clocks may seem to differ for no more reason than that one is
// read after the other: the time of day of an event should stay the same.
const elapsedSlack = 50 * time.Millisecond

// now returns CLOCK_MONOTONIC, as well as the newest event shows it. With a source that has
// ended, the newest is older than the present returned before, and time goes on all the
// same; where a slow replay has events that seem to be past, it does not go back.
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
