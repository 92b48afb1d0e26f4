package tracer

import (
	"time"

	"tt-memtrace/internal/proc"
)

// Behind returns the age of the newest event read while other events wait; 0 if none waits. It may be called from any
// goroutine, at any time.
func (t *Tracer) Behind() time.Duration {
	l := lag{time.Duration(t.caughtUp.Load()), time.Duration(t.newest.Load())}
	waiting, _ := t.Backlog()
	return l.of(proc.Monotonic(), waiting > 0)
}

// lag says how far behind the reader is. No single clock shows that: after a quiet hour the newest event is an hour
// old when the next one arrives, and on a busy host something always waits. So the lag is the age of the newest event
// read, but at most the time since the reader caught up, by reading everything or by waking up. caughtUp is 0 while
// the reader sleeps.
type lag struct{ caughtUp, newest time.Duration }

func (l lag) of(now time.Duration, waiting bool) time.Duration {
	if !waiting || l.caughtUp == 0 {
		return 0
	}
	return max(min(now-l.caughtUp, now-l.newest), 0)
}

// catchesUp notes that the reader has read everything.
func (t *Tracer) catchesUp() { t.caughtUp.Store(uint64(proc.Monotonic())) }

// Backlog returns how many bytes of events wait in the BPF ring buffer, and its size; both 0 after Close. It may be
// called from any goroutine.
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
