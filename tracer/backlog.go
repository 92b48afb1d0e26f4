package tracer

import (
	"context"
	"time"

	"tt-memtrace/tracer/proc"
)

// lagEvery is how often measureLag does so.
const lagEvery = 250 * time.Millisecond

// Behind is how old the newest event is that was read, while others wait to be; 0 where
// none waits. It is right as of lagEvery ago, whatever the reader waits for, and may
// be called from any goroutine.
func (t *Tracer) Behind() time.Duration { return time.Duration(t.behind.Load()) }

// measureLag measures whether the reader keeps up, until the context ends.
func (t *Tracer) measureLag(ctx context.Context) error {
	tick := time.NewTicker(lagEvery)
	defer tick.Stop()
	var lag lag
	for {
		select {
		case <-ctx.Done():
			t.behind.Store(0)
			return nil
		case <-tick.C:
			waiting, _ := t.Backlog()
			t.behind.Store(uint64(lag.of(proc.Monotonic(), time.Duration(t.newest.Load()), waiting > 0)))
		}
	}
}

// lag says how far behind a reader is. Neither of two clocks alone shows it: after a quiet
// hour the newest event is an hour old when the next one arrives, and on a busy host
// there is always something waiting. So it is the age of the newest event that was read,
// but no more than the time since which events have been waiting.
type lag struct{ since time.Duration }

func (l *lag) of(now, newest time.Duration, waiting bool) time.Duration {
	if !waiting {
		l.since = 0
		return 0
	}
	if l.since == 0 {
		l.since = now
	}
	return max(min(now-l.since, now-newest), 0)
}

// Backlog is how many bytes of events wait in the ring buffer to be read, and how many it
// holds; both 0 after Close. It may be called from any goroutine.
func (t *Tracer) Backlog() (waiting, size uint64) {
	t.readerMu.Lock()
	defer t.readerMu.Unlock()
	if t.reader == nil || t.readerClosed {
		return 0, 0
	}
	return uint64(t.reader.AvailableBytes()), uint64(t.reader.BufferSize())
}

// closeReader unmaps the ring buffer.
func (t *Tracer) closeReader() {
	t.readerMu.Lock()
	defer t.readerMu.Unlock()
	if t.reader != nil {
		t.reader.Close()
		t.readerClosed = true
	}
}
