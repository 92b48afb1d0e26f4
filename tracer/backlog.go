package tracer

import (
	"time"

	"tt-memtrace/tracer/proc"
)

// Behind is how old the newest event is that was read, while others wait to be; 0 where
// none waits. It is right whatever the reader waits for, and may be called from any goroutine.
func (t *Tracer) Behind() time.Duration {
	l := lag{time.Duration(t.caughtUp.Load()), time.Duration(t.newest.Load())}
	waiting, _ := t.Backlog()
	return l.of(proc.Monotonic(), waiting > 0)
}

// lag says how far behind a reader is. Neither of two clocks alone shows it: after a quiet
// hour the newest event is an hour old when the next one arrives, and on a busy host
// there is always something waiting. So it is the age of the newest event that was read,
// but no more than the time since the reader caught up: it had read all, or woke up. That is 0
// while it sleeps, until an event wakes it.
type lag struct{ caughtUp, newest time.Duration }

func (l lag) of(now time.Duration, waiting bool) time.Duration {
	if !waiting || l.caughtUp == 0 {
		return 0
	}
	return max(min(now-l.caughtUp, now-l.newest), 0)
}

// catchesUp notes that the reader has read all there is.
func (t *Tracer) catchesUp() { t.caughtUp.Store(uint64(proc.Monotonic())) }

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
