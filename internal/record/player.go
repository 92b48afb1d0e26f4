package record

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"tt-memtrace/aggregator"
)

// PlayerOptions say how recordings are replayed.
type PlayerOptions struct {
	// Files are replayed one behind the other; the player closes them. Names are
	// what messages call them; a file without one is "the recording".
	Files []io.ReadCloser
	Names []string
	// Speed is how many times faster than recorded; 0 is as fast as it goes.
	Speed float64
	// Seek and Until are how far into the recording the replay begins and stops; an
	// Until of 0 is the end.
	Seek, Until time.Duration
	// Skip: what was before Seek is not delivered, only the state that it led to.
	Skip bool
	// WaitAtEnd: at the end the player waits for Move, until its context ends.
	WaitAtEnd bool
	// Notice receives what a user should know, one line each.
	Notice func(string)
}

// Player replays recordings: it is a source of events that ends by itself.
type Player struct {
	opts PlayerOptions
	// read is how many bytes of the files were read.
	read   atomic.Int64
	reader *Reader
	begun  int // files

	// length of the recording, 0 where it is not known.
	length time.Duration
	// wake ends a wait early: position or speed have changed.
	wake chan struct{}

	mu sync.Mutex
	// header is of the first recording. Since began it is replayed at speed, from the offset from on.
	header *Header
	began  time.Time
	from   time.Duration
	speed  float64
	// rewind: the files have to be read from their beginning again.
	rewind bool
	// returns counts the requests to go back; shown is the latest time that Now has returned since.
	returns, shown uint64
	// current is the header of the recording that is read now.
	current Header
	// missing are events to deliver between two recordings, because what happened in between is missing. cut: the
	// previous recording was not closed.
	missing []aggregator.Event
	cut     bool
	last    uint64
	over    bool
}

// NewPlayer reads the first recording's header. It closes the files if that fails.
func NewPlayer(o PlayerOptions) (*Player, error) {
	length, err := lengthOf(o)
	if err != nil {
		return nil, err
	}
	p := &Player{opts: o, length: length, wake: make(chan struct{}, 1), from: o.Seek, speed: o.Speed}
	if err := p.next(); err != nil {
		p.Close()
		return nil, err
	}
	return p, nil
}

// Header is the first recording's. Its texts are untrusted.
func (p *Player) Header() *Header { return p.header }

func (p *Player) name() string {
	if p.begun <= len(p.opts.Names) && p.begun > 0 {
		return p.opts.Names[p.begun-1]
	}
	return "the recording"
}

// next opens the next recording; io.EOF behind the last.
func (p *Player) next() error {
	if p.begun == len(p.opts.Files) {
		return io.EOF
	}
	f := p.opts.Files[p.begun]
	p.begun++
	r, err := NewReader(io.TeeReader(f, (*byteCounter)(&p.read)))
	if err != nil {
		return fmt.Errorf("reading %s: %w", p.name(), err)
	}
	if p.begun == 1 {
		p.current = *r.Header()
	} else if err := p.follow(r.Header()); err != nil {
		return err
	}
	p.reader, p.cut = r, false
	if p.header == nil {
		h := *r.Header()
		p.header, p.last = &h, h.Monotonic
		if p.opts.Skip {
			p.last += uint64(p.opts.Seek)
		}
	}
	return nil
}

// follow handles a recording that does not start where the previous one ends: what happened between two parts of one
// is missing. Another run that was closed lacks nothing; the accounts begin again after it, with nothing or a state.
func (p *Player) follow(h *Header) error {
	how, host := h.after(&p.current), p.current.Host
	p.current = *h
	if how == goesOn {
		return nil
	}
	if h.Host != host {
		return fmt.Errorf("reading %s: it is of another host than the previous recording: replay them separately",
			p.name())
	}
	if h.Monotonic < p.last {
		return fmt.Errorf("reading %s: it begins before the previous recording ends, or the host rebooted between them: replay them separately", p.name())
	}
	p.missing = nil
	if how == skips || p.cut {
		p.opts.Notice(p.name() + " does not continue the previous recording: the events between them are missing")
		p.missing = []aggregator.Event{{Kind: aggregator.Lost, Time: p.last, Anyone: true}}
	} else {
		pause := time.Duration(h.Monotonic - p.last).Round(100 * time.Millisecond)
		p.opts.Notice(fmt.Sprintf("%s is a separate recording, begun %v after the previous one ended: "+
			"the accounts start over", p.name(), pause))
	}
	if off := h.Began.Sub(p.header.Wall(h.Monotonic)); off.Abs() > clockSet {
		p.opts.Notice(fmt.Sprintf("%s: the host was suspended, or its clock was set: times are off by %v from here on", p.name(), off.Round(time.Second)))
	}
	if how == beginsNew {
		p.missing = append(p.missing, p.beginning(aggregator.New())...)
	}
	return nil
}

// byteCounter counts what is written to it.
type byteCounter atomic.Int64

func (c *byteCounter) Write(b []byte) (int, error) {
	(*atomic.Int64)(c).Add(int64(len(b)))
	return len(b), nil
}

// Progress returns how many bytes of the files were read, and their total; 0 if that is unknown, because one is not a
// regular file.
func (p *Player) Progress() (read, total int64) {
	read = p.read.Load()
	for _, f := range p.opts.Files {
		file, ok := f.(*os.File)
		if !ok {
			return read, 0
		}
		st, err := file.Stat()
		if err != nil || !st.Mode().IsRegular() {
			return read, 0
		}
		total += st.Size()
	}
	return read, total
}

// Now is the replay's present time on the clock of the events. It goes back only when the replay does. At the end
// there may have been no event for a while.
func (p *Player) Now() uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.last
	if !p.over && p.speed != 0 && !p.began.IsZero() {
		now = p.header.Monotonic + uint64(p.position())
	}
	p.shown = max(p.shown, now)
	return p.shown
}

// Playback is the state of a replay.
type Playback struct {
	// Position in the recording, and its Length, 0 if unknown. To find it, a short recording is read once more if
	// that is possible.
	Position, Length time.Duration
	// Speed is how many times faster than recorded.
	Speed float64
	// Ended: all was replayed.
	Ended bool
	// Returns is how often the replay went back. What came later has then not happened yet.
	Returns uint64
}

// Playback returns the state of the replay. It may be called from any goroutine, as Move and SetSpeed.
func (p *Player) Playback() Playback {
	p.mu.Lock()
	defer p.mu.Unlock()
	at := p.reached()
	if !p.over && !p.began.IsZero() && p.speed > 0 {
		at = p.position()
	}
	return Playback{Position: at, Speed: p.speed, Length: p.length, Ended: p.over, Returns: p.returns}
}

// measured bytes of recordings are read to find their length.
const measured = 8 << 20

// lengthOf returns the length of recordings for moving in them, 0 if finding out takes too long.
func lengthOf(o PlayerOptions) (time.Duration, error) {
	if !o.WaitAtEnd {
		return 0, nil
	}
	var size int64
	for _, f := range o.Files {
		s, ok := f.(io.Seeker)
		if !ok {
			return 0, nil
		}
		n, err := s.Seek(0, io.SeekEnd)
		if err != nil {
			return 0, nil // a pipe
		}
		if _, err := s.Seek(0, io.SeekStart); err != nil {
			return 0, fmt.Errorf("reading the recording: %w", err)
		}
		size += n
	}
	var first, last uint64
	for _, f := range o.Files {
		if size > measured {
			break
		}
		// The replay reports what is wrong with the file.
		if r, err := NewReader(f); err == nil {
			if first == 0 {
				first = r.Header().Monotonic
			}
			for err == nil {
				var events []aggregator.Event
				events, err = r.Next()
				for i := range events {
					last = max(last, events[i].Time)
				}
			}
		}
		if _, err := f.(io.Seeker).Seek(0, io.SeekStart); err != nil {
			return 0, fmt.Errorf("reading the recording: %w", err)
		}
	}
	return time.Duration(max(last, first) - first), nil
}

// CanMove reports whether the replay can go back: files can be read again, pipes cannot.
func (p *Player) CanMove() bool {
	for _, f := range p.opts.Files {
		s, ok := f.(io.Seeker)
		if !ok {
			return false
		}
		if _, err := s.Seek(0, io.SeekCurrent); err != nil {
			return false
		}
	}
	return true
}

// Move continues later or, with a negative value, earlier. A state takes back what was delivered beyond that.
func (p *Player) Move(by time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.began.IsZero() || p.speed == 0 {
		return
	}
	at := p.position()
	if p.over {
		at = p.reached()
		if by > 0 {
			return
		}
	}
	p.from, p.began = max(at+by, 0), time.Now()
	if by < 0 {
		p.rewind, p.over, p.shown = true, false, 0
		p.returns++
	}
	p.wakeRun()
}

// SetSpeed replays so many times faster than recorded from now on; more than 0.
func (p *Player) SetSpeed(speed float64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.began.IsZero() && !p.over {
		p.from, p.began = p.position(), time.Now()
	}
	p.speed = speed
	p.wakeRun()
}

// wakeRun ends a wait of Run.
func (p *Player) wakeRun() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// rewound starts to read the files again, if that was requested, and returns the offset at which the replay
// continues.
func (p *Player) rewound() (to time.Duration, ok bool, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.rewind {
		return 0, false, nil
	}
	p.rewind, p.over = false, false
	for _, f := range p.opts.Files {
		s, ok := f.(io.Seeker)
		if !ok {
			return 0, false, errors.New("the recording cannot be read again")
		}
		if _, err := s.Seek(0, io.SeekStart); err != nil {
			return 0, false, fmt.Errorf("reading the recording again: %w", err)
		}
	}
	p.begun = 0
	if err := p.next(); err != nil {
		return 0, false, err
	}
	p.last = p.header.Monotonic + uint64(p.from)
	return p.from, true, nil
}

// position is how far into the recording the replay is. It is called with the lock held.
func (p *Player) position() time.Duration {
	at := p.from + time.Duration(float64(time.Since(p.began))*p.speed)
	if p.opts.Until > 0 {
		at = min(at, p.opts.Until)
	}
	return at
}

// reached returns the position of a replay that stands still. It is called with the lock held.
func (p *Player) reached() time.Duration {
	return time.Duration(max(p.last, p.shown, p.header.Monotonic) - p.header.Monotonic)
}

// Wall converts a time of the events into the recording's time of day.
func (p *Player) Wall(t uint64) time.Time { return p.header.Wall(t) }

// offset is how far into the recording an event is; those of a state are older than it.
func (p *Player) offset(e *aggregator.Event) time.Duration {
	return time.Duration(max(e.Time, p.header.Monotonic) - p.header.Monotonic)
}

// Close closes the files.
func (p *Player) Close() error {
	for _, f := range p.opts.Files {
		f.Close()
	}
	return nil
}
