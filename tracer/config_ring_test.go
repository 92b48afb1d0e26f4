package tracer

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"tt-memtrace/aggregator"
	"tt-memtrace/aggregator/exact"
	"tt-memtrace/test/fixture"
)

// launcher is a process with a mesh of the chips 1 and 2, whose command queue is on a page of its own.
type launcher struct {
	*fixture.Process
	queue, ring, workload uint64
}

func launching(t *testing.T) *launcher {
	t.Helper()
	l := &launcher{Process: fixture.User(t, fixture.LayoutB)}
	fixture.Do(t, l.Process, "mesh 0 1 2")
	l.queue = fixture.Number(t, l.Process, "queue_apart 0")
	l.ring = fixture.Number(t, l.Process, "ring %#x 1000 100", l.queue)
	l.workload = fixture.Number(t, l.Process, "workload")
	program := fixture.Number(t, l.Process, "program")
	fixture.Do(t, l.Process, "join %#x %#x", l.workload, program)
	return l
}

// expectRing compares a process with its ring and reasons, after all that happened.
func (tr *trace) expectRing(what string, l *launcher, want aggregator.ConfigRing, why ...exact.ReasonCode) {
	tr.t.Helper()
	want.ID, want.Base, want.Capacity = l.ring, 1000, 100
	s := tr.process(l.PID)
	late := func() bool { return slices.Contains(tr.reasons(l.PID), exact.ReasonEventsUnread) }
	for late() { // on a busy machine, and it is read again
		tr.await("it is read in time", func() bool { return !late() })
		s = tr.process(l.PID)
	}
	if len(s.Chips) != 2 {
		tr.t.Fatalf("%s: it has the chips %+v, and is marked with %+v", what, s.Chips, s.Reasons)
	}
	for _, c := range s.Chips {
		if c.ConfigRing != want.Usage() {
			tr.t.Errorf("%s: chip %d: %+v, not %+v", what, c.Chip.Number, c.ConfigRing, want)
		}
	}
	if got := tr.reasons(l.PID); !slices.Equal(got, why) {
		tr.t.Errorf("%s: it is marked with %v, not %v", what, got, why)
	}
}

// A ring whose page is not there is unknown, and its process is marked, until it is read again.
func TestRingOnAPageThatIsNotThere(t *testing.T) {
	t.Parallel()
	l := launching(t)
	tr := start(t, Options{PIDs: []uint32{l.PID}})
	fixture.Do(t, l.Process, "enqueue %#x %#x 2 40", l.queue, l.workload)
	tr.expectRing("launched", l, aggregator.ConfigRing{Used: 40, Places: 1})
	fixture.Do(t, l.Process, "enqueue %#x %#x 2 30", l.queue, l.workload)
	fixture.Do(t, l.Process, "hide %#x", l.queue)
	tr.expectRing("its page is not there", l, aggregator.ConfigRing{Unread: true}, exact.ReasonConfigRingUnread)
	if s := tr.process(l.PID); len(s.Reasons) != 1 || !strings.Contains(s.Reasons[0].Detail, fmt.Sprintf("%#x", l.queue)) || len(s.Reasons[0].Chips) != 2 {
		t.Errorf("the reasons are %+v", s.Reasons)
	}
	tr.expectRing("once more", l, aggregator.ConfigRing{Unread: true}, exact.ReasonConfigRingUnread)
	fixture.Do(t, l.Process, "show %#x", l.queue)
	tr.expectRing("its page is there again", l, aggregator.ConfigRing{Used: 70, Places: 2})
	fixture.Do(t, l.Process, "hide %#x", l.queue)
	tr.expectRing("its page is not there again", l, aggregator.ConfigRing{Unread: true}, exact.ReasonConfigRingUnread)
	fixture.Do(t, l.Process, "close 0")
	if s := tr.process(l.PID); !s.Exact() || len(s.Chips) != 0 {
		t.Errorf("its device is closed: %+v %+v", s.Reasons, s.Chips)
	}
}

// A launch is counted before it has its place: that shows without another launch.
func TestPlaceOfALaunchThatWasCountedBefore(t *testing.T) {
	t.Parallel()
	l := launching(t)
	tr := start(t, Options{PIDs: []uint32{l.PID}})
	fixture.Do(t, l.Process, "enqueue %#x %#x 2 40", l.queue, l.workload)
	fixture.Do(t, l.Process, "launch %#x 1", l.workload)
	tr.expectRing("counted", l, aggregator.ConfigRing{Used: 40, Places: 1})
	tr.sync()
	fixture.Do(t, l.Process, "take_place %#x 7", l.queue)
	tr.expectRing("placed", l, aggregator.ConfigRing{Used: 47, Places: 2})
}

// Of a process that launches all the time a ring is one that it had, or unknown; at rest it is the one
// that it has.
func TestRingUnderConstantLaunching(t *testing.T) {
	t.Parallel()
	l := launching(t)
	tr := start(t, Options{PIDs: []uint32{l.PID}})
	fixture.Do(t, l.Process, "enqueue %#x %#x 2 1", l.queue, l.workload)
	for round := range 3 {
		const size = 9
		fixture.Do(t, l.Process, "keep_enqueuing %#x %#x %d", l.queue, l.workload, size)
		for range 20 {
			for _, c := range tr.process(l.PID).Chips {
				r := c.ConfigRing
				places, used := r.Places.WithoutBound(), r.Used.WithoutBound()
				if r.Used.Known() && (r.ID != l.ring || places == 0 || places > 7 || used < places || used > size*places) {
					t.Errorf("round %d, chip %d: %+v", round, c.Chip.Number, r)
				}
			}
		}
		want := aggregator.ConfigRing{}
		for _, word := range strings.Fields(fixture.Do(t, l.Process, "rest")) {
			var size uint64
			if _, err := fmt.Sscan(word, &size); err != nil {
				t.Fatal(err)
			}
			want.Places++
			want.Used += size
		}
		tr.expectRing("at rest", l, want)
	}
}
