package ui

import (
	"strings"
	"sync"
	"testing"
	"time"

	"tt-memtrace/aggregator"
)

// fakePlayer stays where it was moved to.
type fakePlayer struct {
	mu sync.Mutex
	at Playback
}

func (p *fakePlayer) Playback() Playback {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.at
}

func (p *fakePlayer) Move(by time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.at.Position = max(p.at.Position+by, 0)
	if by < 0 {
		p.at.Returns++
	}
}

func (p *fakePlayer) SetSpeed(speed float64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.at.Speed = speed
}

// Keys move in a replay, and a bar shows where it is.
func TestAReplayIsMovedIn(t *testing.T) {
	p := &fakePlayer{at: Playback{Position: 30 * time.Second, Length: time.Minute, Speed: 1}}
	wall := time.Date(2025, 1, 2, 12, 3, 0, 0, time.UTC)
	log := NewLog()
	start := func(chips int) *session {
		return start(t, 140, 40, chips, func(o *Options) {
			o.Recorded, o.Player, o.Log = true, p, log
			o.Now = func() time.Time { return wall.Add(p.Playback().Position) }
		})
	}
	s := start(2)
	s.waits("x1 00:30 ", " 01:00", "12:03:30", "████░")
	s.press(".")
	s.waits("00:40 ", "12:03:40")
	log.Event(&aggregator.Event{Kind: aggregator.ProcessStart, PID: 4711, Time: 1, Process: &aggregator.Process{Command: "later"}})
	s.press("6")
	s.waits("4711")
	s.press(",,")
	s.waits("00:20 ", "12:03:20", "!4711")
	s.press("}}")
	s.waits("x4 00:20", "replaying at 4 times")
	s.press("{{{")
	s.waits("x0.5 00:20")
	s.press("?")
	s.waits("ten seconds back, ten seconds forward")
}

// What charts have of a time that has not come yet is forgotten, and the rest stays.
func TestHistoryGoesBackWithAReplay(t *testing.T) {
	w := newWorld(1)
	w.view(settings{})
	device := w.begins(7, "python", w.chips, false)
	for i := range uint64(1000) {
		w.alloc(7, device, aggregator.DRAM, i*kib, kib)
		w.pass(time.Second)
	}
	of := subject{chip: w.chips[0], metric: metricDRAM}
	end := w.time
	before := w.frame.history.read(of, end-200*oneSecond, end-100*oneSecond, 10, false)
	d := w.data()
	d.now = end - 100*oneSecond
	w.frame.history.add(&d)
	after := w.frame.history.read(of, end-200*oneSecond, end-110*oneSecond, 9, false)
	for i, v := range after {
		if v != before[i] {
			t.Errorf("%d: %d, and %d before", i, v, before[i])
		}
	}
	for _, v := range w.frame.history.read(of, end-90*oneSecond, end, 10, false) {
		if v+1 != 0 {
			t.Errorf("%d is known of the future", v)
		}
	}
}

func TestPlacesInARecording(t *testing.T) {
	for d, want := range map[time.Duration]string{-1: "00:00", 61 * time.Second: "01:01", 3*time.Hour + 5*time.Second: "3:00:05"} {
		if got := clockTime(d); got != want {
			t.Errorf("%v: %q", d, got)
		}
	}
	f := newFrame(settings{}, fixtureData(1), 0)
	f.player = &fakePlayer{}
	f.data.playback = Playback{Position: time.Minute, Length: time.Minute, Speed: 2, Ended: true}
	if got := f.progress(30).String(); !strings.HasPrefix(got, "ended 01:00 ███") || !strings.HasSuffix(got, " 01:00") {
		t.Error(got)
	}
	if f.progress(8) != nil {
		t.Error("it does not fit")
	}
}
