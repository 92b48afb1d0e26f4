package main

import (
	"bytes"
	"fmt"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"tt-memtrace/aggregator"
	"tt-memtrace/record"
)

const origin = 5_000_000_000_000 // a recording begins at some time of the clock

// recording has a launch at each of these times from its beginning.
func recording(t *testing.T, at ...time.Duration) io.ReadCloser {
	t.Helper()
	var list []aggregator.Event
	for _, d := range at {
		list = append(list, aggregator.Event{Kind: aggregator.Launched, PID: 1, Time: origin + uint64(d)})
	}
	return recordingOf(t, list...)
}

func recordingOf(t *testing.T, events ...aggregator.Event) io.ReadCloser {
	t.Helper()
	var b bytes.Buffer
	w, err := record.NewWriter(&b, record.Header{Host: "there", Began: time.Unix(1000, 0), Monotonic: origin})
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Write(events); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return io.NopCloser(&b)
}

// A replay goes as fast as it was asked to, from where and up to where, and its
// clock is the recording's.
func TestReplayPace(t *testing.T) {
	s := time.Second
	for _, c := range []struct {
		name  string
		flags recorded
		at    []time.Duration
		// told are when which events came; over is when it ended, of the recording's clock now.
		told string
		over time.Duration
		now  time.Duration
	}{
		{"all at once", recorded{}, []time.Duration{0, s, 3600 * s}, "0s:1 0s:1 0s:1", 0, 3600 * s},
		{"as it was", recorded{speed: 1}, []time.Duration{0, s, 3 * s}, "0s:1 1s:1 3s:1", 3 * s, 3 * s},
		{"twice as fast from 1 s up to 5 s", recorded{speed: 2, seek: s, until: 5 * s}, []time.Duration{0, s, 2 * s, 10 * s}, "0s:2 500ms:1", 2 * s, 2 * s},
		{"up to 2 s at once", recorded{until: 2 * s}, []time.Duration{0, 2 * s, 3 * s}, "0s:2", 0, 2 * s},
		{"older ones at once", recorded{speed: 1}, []time.Duration{-s, -s, s}, "0s:2 1s:1", s, s},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c.flags.from = []string{"r"}
				c.flags.files = []io.ReadCloser{recording(t, c.at...)}
				l, err := c.flags.start(true)
				if err != nil {
					t.Fatal(err)
				}
				if l.host != "there" || !l.wall(origin+uint64(s)).Equal(time.Unix(1001, 0)) {
					t.Errorf("%s, %v", l.host, l.wall(origin))
				}
				began := time.Now()
				told := ""
				l.add(sink{events: func(events []aggregator.Event) { told += fmt.Sprintf(" %v:%d", time.Since(began), len(events)) }})
				if err := l.run(t.Context()); err != nil {
					t.Fatal(err)
				}
				if got := time.Since(began).Round(10 * time.Millisecond); " "+c.told != told && c.flags.speed > 0 || got != c.over {
					t.Errorf("told of%s, over after %v; want %s, %v", told, got, c.told, c.over)
				}
				if got := time.Duration(l.now() - origin); got != c.now {
					t.Errorf("its clock is at %v, not %v", got, c.now)
				}
			})
		})
	}
}

func TestSizes(t *testing.T) {
	for s, want := range map[string]int64{"": 0, "1": 1, "10k": 10240, "100M": 100 << 20, "2G": 2 << 30} {
		if got, err := bytesOf(s); err != nil || got != want {
			t.Errorf("%q: %d, %v", s, got, err)
		}
	}
	for _, s := range []string{"0", "-1", "1T", "M", "1.5M", "99999999999G"} {
		if _, err := bytesOf(s); err == nil {
			t.Errorf("%q is a size", s)
		}
	}
}
