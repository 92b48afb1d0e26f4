package record

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"time"

	"tt-memtrace/aggregator"
	"tt-memtrace/internal/plural"
)

// stepEvery is the shortest wait of a replay.
const stepEvery = 10 * time.Millisecond

// replay is a run of a Player.
type replay struct {
	*Player
	ready   func()
	deliver func([]aggregator.Event)
	// isReady: ready was called.
	isReady bool
	// skipped are the accounts of the events up to the offset skip, until all of these are read; then it is nil.
	skipped *aggregator.Aggregator
	skip    time.Duration
	// farthest is the offset of the last event read. endsBefore: a notice said that it is before Seek.
	farthest   time.Duration
	endsBefore bool
}

// Run delivers the events, each when it is due. ready is called before the replay first waits, so that what was before
// Seek is in the accounts then.
func (p *Player) Run(ctx context.Context, ready func(), deliver func([]aggregator.Event)) error {
	r := &replay{Player: p, ready: ready, deliver: deliver, skip: p.opts.Seek}
	if p.opts.Skip && p.opts.Seek > 0 {
		r.skipped = aggregator.New()
	}
	defer r.begin()
	defer p.setOver()
	for ctx.Err() == nil {
		if to, again, err := p.rewound(); err != nil {
			return err
		} else if again {
			r.skipped, r.skip = aggregator.New(), to
		}
		events, err := p.reader.Next()
		if h := p.reader.Header(); h.Run != p.current.Run || h.Part != p.current.Part { // a file can be several, one behind the other
			if err := p.follow(h); err != nil {
				return err
			}
			r.gap()
		}
		if !r.play(ctx, r.behindSkip(events)) {
			return nil
		}
		if err == nil || p.rewinding() {
			continue
		}
		last, err := p.ended(err)
		r.gap()
		if !last {
			continue
		}
		if r.atEnd(err); err != nil {
			return err
		}
		if !p.waitAtEnd(ctx) {
			return nil
		}
	}
	return nil
}

// begin calls ready, once.
func (r *replay) begin() {
	if r.isReady {
		return
	}
	r.isReady = true
	r.mu.Lock()
	r.began = time.Now()
	r.mu.Unlock()
	r.ready()
}

// gap delivers the events that stand for what is missing between two recordings.
func (r *replay) gap() {
	switch {
	case r.skipped != nil:
		for i := range r.missing {
			r.skipped.Apply(&r.missing[i])
		}
	case len(r.missing) > 0:
		r.deliver(r.missing)
	}
	r.missing = nil
}

// behindSkip returns the events behind those to skip. Once there are some, it delivers the state before them.
func (r *replay) behindSkip(events []aggregator.Event) []aggregator.Event {
	if len(events) > 0 {
		r.farthest = max(r.farthest, r.offset(&events[len(events)-1]))
	}
	if r.skipped == nil {
		return events
	}
	n := r.upTo(r.skip, events)
	for i := range events[:n] {
		r.skipped.Apply(&events[i])
	}
	if n < len(events) {
		r.endSkip()
	}
	return events[n:]
}

// endSkip delivers the state to which the skipped events led, if there are any.
func (r *replay) endSkip() {
	if r.skipped != nil {
		r.deliver(r.beginning(r.skipped))
		r.skipped = nil
	}
}

// play delivers events, each when it is due, until the files have to be read again. It reports whether the replay
// continues.
func (r *replay) play(ctx context.Context, events []aggregator.Event) bool {
	for len(events) > 0 && ctx.Err() == nil && !r.rewinding() {
		n, wait := r.due(events, r.isReady)
		switch {
		case n > 0:
			r.mu.Lock()
			for i := range events[:n] {
				r.last = max(r.last, events[i].Time)
			}
			r.mu.Unlock()
			r.deliver(events[:n])
			events = events[n:]
		case wait < 0: // the rest is past the requested end
			return r.waitAtEnd(ctx)
		default:
			r.begin()
			r.pause(ctx, wait)
		}
	}
	return true
}

// atEnd delivers what remains at the end of the last recording, which failed if err is not nil.
func (r *replay) atEnd(err error) {
	if err == nil && r.farthest < r.opts.Seek && !r.endsBefore {
		r.endsBefore = true
		r.opts.Notice(fmt.Sprintf("the recording is %v long, so --seek %v shows its end", r.farthest.Round(time.Millisecond), r.opts.Seek))
		r.last = r.header.Monotonic + uint64(r.farthest)
	}
	r.endSkip()
	if err != nil {
		r.deliver([]aggregator.Event{{Kind: aggregator.Lost, Time: r.last, Anyone: true}}) // what follows is missing
		return
	}
	r.begin()
}

func (p *Player) setOver() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.over = true
}

func (p *Player) rewinding() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.rewind
}

// waitAtEnd waits at the end, and reports whether the replay continues.
func (p *Player) waitAtEnd(ctx context.Context) bool {
	if !p.opts.WaitAtEnd {
		return false
	}
	p.setOver()
	for ctx.Err() == nil {
		if p.rewinding() {
			return true
		}
		select {
		case <-ctx.Done():
		case <-p.wake:
		}
	}
	return false
}

// due returns how many of the events are due now; if none, how long to wait for the first, less than 0 for ever.
func (p *Player) due(events []aggregator.Event, began bool) (n int, wait time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	until := p.opts.Seek
	switch {
	case p.speed == 0:
		until = math.MaxInt64
		if p.opts.Until > 0 {
			until = p.opts.Until
		}
	case began:
		until = p.position()
	}
	if n = p.upTo(until, events); n > 0 {
		return n, 0
	}
	first := p.offset(&events[0])
	switch {
	case p.opts.Until > 0 && first > p.opts.Until:
		return 0, p.left()
	case !began:
		return 0, 0
	}
	return 0, max(time.Duration(float64(first-until)/p.speed), stepEvery)
}

// upTo is how many of the events are before an offset, or at it.
func (p *Player) upTo(offset time.Duration, events []aggregator.Event) (n int) {
	for n < len(events) && p.offset(&events[n]) <= offset {
		n++
	}
	return n
}

// beginning returns, as events, the state at seek to which the skipped part led.
func (p *Player) beginning(before *aggregator.Aggregator) []aggregator.Event {
	state := before.State()
	end := &state[len(state)-1]
	state[0].Time, end.Time, end.Totals.Time = p.last, p.last, p.last
	return state
}

// left returns how long a replay continues after its last event, up to the requested end.
func (p *Player) left() time.Duration {
	if p.speed == 0 || p.began.IsZero() || p.position() >= p.opts.Until {
		return -1
	}
	return max(time.Duration(float64(p.opts.Until-p.position())/p.speed), stepEvery)
}

func (p *Player) pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-p.wake:
	case <-t.C:
	}
}

// ended handles the end of a recording, and reports whether it was the last.
func (p *Player) ended(err error) (bool, error) {
	name := p.name()
	if n := p.reader.Unknown; n > 0 {
		p.opts.Notice(fmt.Sprintf("%s: skipped %s of kinds unknown to this version", name, plural.Of(n, "event")))
	}
	p.cut = errors.Is(err, ErrCut)
	switch {
	case p.cut:
		p.opts.Notice(fmt.Sprintf("%s: %v; everything before that was read", name, err))
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
