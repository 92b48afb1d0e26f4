package ui

import (
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"tt-memtrace/aggregator"
	"tt-memtrace/ui/text"
)

// While events wait, the screen says how old its data is, and does not call it verified.
func TestOldDataIsNotShownAsNew(t *testing.T) {
	var behind atomic.Int64
	s := start(t, 140, 40, 1, func(o *Options) {
		o.Backlog = func() Backlog { return Backlog{Behind: time.Duration(behind.Load()), Waiting: 48, Size: 64} }
	})
	s.feed.mu.Lock()
	for i := range s.feed.snapshot.Processes {
		s.feed.snapshot.Processes[i].Agreement = aggregator.Agreement{At: s.feed.snapshot.Time, Compared: 3}
	}
	s.feed.mu.Unlock()
	s.waits("verified 0s ago", "!behind")
	behind.Store(int64(36 * time.Second))
	s.waits("data 36s behind, ring buffer 75 % full", "!verified")
	s.press("2")
	s.waits("data 36s behind", "temperature, power", "!verified")
	behind.Store(int64(staleAfter) - 1)
	s.waits("!behind", "verified")
}

func TestOldDataStandsOut(t *testing.T) {
	d := fixtureData(8)
	d.backlog.Behind = staleAfter
	for _, w := range []int{80, 120, 200} {
		l := header(&d, settings{}, w)
		found := false
		for _, s := range l {
			found = found || strings.Contains(s.Text, "data 2s behind") && s.Role == text.Alert
		}
		if l.Width() != w || !found {
			t.Errorf("%d: %q", w, l.String())
		}
	}
	d.backlog.Behind--
	if got := header(&d, settings{}, 120).String(); strings.Contains(got, "behind") {
		t.Error(got)
	}
}
