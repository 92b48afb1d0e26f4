package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"tt-memtrace/aggregator"
	"tt-memtrace/record"
)

const replayLong = `Replay a recording in the panels, as it was when it was made.

Every live command takes a recording in place of processes, with --from FILE:
status, log and top show what they would have shown then. A recording that was
rotated is replayed in the order of its files: FILE.2 FILE.1 FILE.`

// recorded are the flags for recordings in place of processes.
type recorded struct {
	from        []string
	speed       float64
	seek, until time.Duration
	// skips: nobody is told of what was before seek, only of the state that it led to.
	skips bool
	// files, where set, are read in place of those that from names.
	files []io.ReadCloser
}

func (r *recorded) flags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.Float64Var(&r.speed, "speed", 0, "times the recorded speed; 0: as fast as it goes (in the panels, the exporter and serve: 1)")
	f.DurationVar(&r.seek, "seek", 0, "how far into the recording to begin")
	f.DurationVar(&r.until, "until", 0, "how far into the recording to stop")
}

// paced has recordings replayed as they were, unless told otherwise: for commands that one looks at meanwhile.
func (r *recorded) paced(cmd *cobra.Command) {
	if len(r.from) > 0 && !cmd.Flags().Changed("speed") {
		r.speed = 1
	}
}

func (r *recorded) check() error {
	if r.speed < 0 || math.IsNaN(r.speed) || r.seek < 0 || r.until < 0 {
		return fmt.Errorf("%w: --speed, --seek and --until take no negative numbers", errUsage)
	}
	if len(r.from) == 0 && (r.speed > 0 || r.seek > 0 || r.until > 0) {
		return fmt.Errorf("%w: --speed, --seek and --until are for recordings: --from FILE", errUsage)
	}
	return nil
}

func newReplay() *cobra.Command {
	var t targets
	var u uiFlags
	cmd := &cobra.Command{
		Use: "replay [flags] FILE...", Short: "Replay a recording in the panels", Long: replayLong,
		Example: `  tt-memtrace replay run.ttm --speed 4
  tt-memtrace replay run.ttm --seek 1h20m
  tt-memtrace status --json --from run.ttm --until 90s    the state at 90 s
  tt-memtrace log --from run.ttm | grep L1`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return fmt.Errorf("%w: no recording given\nsee '%s --help'", errUsage, cmd.CommandPath())
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			t.recorded.from = args
			return runTop(cmd, &t, &u, nil)
		},
	}
	t.recorded.flags(cmd)
	t.metrics.flags(cmd)
	t.sockets.flags(cmd)
	u.flags(cmd)
	u.topFlags(cmd)
	return cmd
}

// start makes a live that reads the recordings.
func (r *recorded) start(quiet bool) (*live, error) {
	if r.until > 0 && r.until < r.seek {
		return nil, fmt.Errorf("%w: --until %v is before --seek %v", errUsage, r.until, r.seek)
	}
	if r.files != nil {
		return r.open(r.files, quiet)
	}
	var files []io.ReadCloser
	for _, name := range r.from {
		f := os.Stdin
		if name != "-" {
			var err error
			if f, err = os.Open(name); err != nil {
				return nil, fmt.Errorf("opening the recording: %w", err)
			}
		}
		files = append(files, f)
	}
	return r.open(files, quiet)
}

// open makes a live that reads from streams, one behind the other.
func (r *recorded) open(files []io.ReadCloser, quiet bool) (*live, error) {
	l := newLive(nil, quiet)
	p := &player{flags: r, files: files, notice: l.notice}
	if err := p.next(); err != nil {
		p.Close()
		return nil, err
	}
	l.source, l.now, l.wall, l.host, l.recorded, l.traced = p, p.now, p.wall, p.header.Host, true, p.header.Source
	return l, nil
}

// player is a source that reads recordings.
type player struct {
	flags  *recorded
	files  []io.ReadCloser
	notice func(string)
	// passed is how many bytes were read.
	passed atomic.Int64
	reader *record.Reader
	read   int // files that were begun

	mu sync.Mutex
	// header is of the first recording. began is when replaying did, at seek.
	header *record.Header
	began  time.Time
	last   uint64
	over   bool
}

func (p *player) name() string {
	if p.read <= len(p.flags.from) && p.read > 0 {
		return p.flags.from[p.read-1]
	}
	return "the recording"
}

// next opens the next recording; io.EOF behind the last.
func (p *player) next() error {
	if p.read == len(p.files) {
		return io.EOF
	}
	f := p.files[p.read]
	p.read++
	r, err := record.NewReader(io.TeeReader(f, p))
	if err != nil {
		return fmt.Errorf("reading %s: %w", p.name(), err)
	}
	p.reader = r
	if p.header == nil {
		h := *r.Header()
		h.Host = printable(h.Host) // the file may say anything
		p.header, p.last = &h, h.Monotonic
		if p.flags.skips {
			p.last += uint64(p.flags.seek)
		}
	}
	return nil
}

// Write counts what is read.
func (p *player) Write(b []byte) (int, error) {
	p.passed.Add(int64(len(b)))
	return len(b), nil
}

// size is how many bytes there are to read, 0 where that is not known.
func (p *player) size() (total int64) {
	for _, f := range p.files {
		file, ok := f.(*os.File)
		if !ok {
			return 0
		}
		st, err := file.Stat()
		if err != nil || !st.Mode().IsRegular() {
			return 0
		}
		total += st.Size()
	}
	return total
}

// progress tells on a terminal how much of recordings was read, every second, until it is stopped.
func (l *live) progress() (stop func()) {
	p, ok := l.source.(*player)
	if !ok || l.quiet || !term.IsTerminal(int(os.Stderr.Fd())) {
		return func() {}
	}
	total := p.size()
	if total == 0 {
		return func() {}
	}
	ended, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		told := false
		for {
			select {
			case <-tick.C:
				fmt.Fprintf(os.Stderr, "\rreading: %d %%", 100*p.passed.Load()/total)
				told = true
			case <-ended:
				if told {
					fmt.Fprint(os.Stderr, "\r\x1b[K")
				}
				return
			}
		}
	}()
	return func() { close(ended); <-done }
}

// now is the recording's present, by the clock of its events.
func (p *player) now() uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.over || p.flags.speed == 0 || p.began.IsZero() {
		return p.last
	}
	return p.header.Monotonic + uint64(p.position())
}

// position is how far into the recording the replay is.
func (p *player) position() time.Duration {
	at := p.flags.seek + time.Duration(float64(time.Since(p.began))*p.flags.speed)
	if p.flags.until > 0 {
		at = min(at, p.flags.until)
	}
	return at
}

func (p *player) wall(t uint64) time.Time { return p.header.Wall(t) }

// offset is how far into the recording an event is; those of a state are older than it.
func (p *player) offset(e *aggregator.Event) time.Duration {
	return time.Duration(max(e.Time, p.header.Monotonic) - p.header.Monotonic)
}

// stepEvery is how often at most a replay stops to wait.
const stepEvery = 10 * time.Millisecond

func (p *player) Run(ctx context.Context, ready func(), sink func([]aggregator.Event)) error {
	told := false
	tell := func() {
		if !told {
			told = true
			p.mu.Lock()
			p.began = time.Now()
			p.mu.Unlock()
			ready()
		}
	}
	defer tell()
	defer func() {
		p.mu.Lock()
		p.over = true
		p.mu.Unlock()
	}()
	var before *aggregator.Aggregator // accounts of what is skipped, as long as it is
	if p.flags.skips && p.flags.seek > 0 {
		before = aggregator.New()
	}
	for ctx.Err() == nil {
		events, err := p.reader.Next()
		if before != nil {
			n := p.upTo(p.flags.seek, events)
			for i := range events[:n] {
				before.Apply(&events[i])
			}
			if events = events[n:]; len(events) > 0 {
				sink(p.beginning(before))
				before = nil
			}
		}
		for len(events) > 0 && ctx.Err() == nil {
			n, wait := p.due(events, told)
			if n > 0 {
				p.mu.Lock()
				for i := range events[:n] {
					p.last = max(p.last, events[i].Time)
				}
				p.mu.Unlock()
				sink(events[:n])
				events = events[n:]
				continue
			}
			if wait < 0 {
				return nil // the rest is past the end that was asked for
			}
			tell()
			pause(ctx, wait)
		}
		if err != nil {
			if done, err := p.ended(err); done {
				if before != nil {
					sink(p.beginning(before))
				}
				return err
			}
		}
	}
	return nil
}

// due is how many of the events are to be told of now, and otherwise how long
// the first has to wait, less than 0 for ever.
func (p *player) due(events []aggregator.Event, told bool) (n int, wait time.Duration) {
	until := p.flags.seek
	switch {
	case p.flags.speed == 0:
		until = math.MaxInt64
		if p.flags.until > 0 {
			until = p.flags.until
		}
	case told:
		until = p.position()
	}
	if n = p.upTo(until, events); n > 0 {
		return n, 0
	}
	first := p.offset(&events[0])
	switch {
	case p.flags.until > 0 && first > p.flags.until:
		return 0, p.left()
	case !told:
		return 0, 0
	}
	return 0, max(time.Duration(float64(first-until)/p.flags.speed), stepEvery)
}

// upTo is how many of the events are before an offset, or at it.
func (p *player) upTo(offset time.Duration, events []aggregator.Event) (n int) {
	for n < len(events) && p.offset(&events[n]) <= offset {
		n++
	}
	return n
}

// beginning is the state that what was skipped led to, at seek.
func (p *player) beginning(before *aggregator.Aggregator) []aggregator.Event {
	state := before.State()
	end := &state[len(state)-1]
	state[0].Time, end.Time, end.Totals.Time = p.last, p.last, p.last
	return state
}

// left is how long a replay goes on behind its last event, up to the end that was asked for.
func (p *player) left() time.Duration {
	if p.flags.speed == 0 || p.began.IsZero() || p.position() >= p.flags.until {
		return -1
	}
	return max(time.Duration(float64(p.flags.until-p.position())/p.flags.speed), stepEvery)
}

func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}

// ended takes in how a recording ended, and says whether that was all.
func (p *player) ended(err error) (bool, error) {
	name := p.name()
	if n := p.reader.Unknown; n > 0 {
		p.notice(fmt.Sprintf("%s: %d events of kinds that this version does not know were left out", name, n))
	}
	switch {
	case errors.Is(err, record.ErrCut):
		p.notice(fmt.Sprintf("%s: %v; all before was read", name, err))
	case err != io.EOF:
		return true, fmt.Errorf("reading %s: %w", name, err)
	}
	if err := p.next(); err == io.EOF {
		return true, nil
	} else if err != nil {
		return true, err
	}
	return false, nil
}

func (p *player) Close() error {
	for _, f := range p.files {
		f.Close()
	}
	return nil
}

// label says in the header of the panels what is replayed.
func (r *recorded) label() string {
	label := "replay " + strings.Join(r.from, " ")
	if r.speed != 1 && r.speed != 0 {
		label += fmt.Sprintf(" ×%g", r.speed)
	}
	return label
}
