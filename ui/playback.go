package ui

import (
	"fmt"
	"time"

	"tt-memtrace/ui/text"
	"tt-memtrace/ui/widget"
)

// Player controls a replay. It may be called from any goroutine.
type Player interface {
	Playback() Playback
	// Move moves forward by a time or, if that is negative, back. SetSpeed sets the speed, as a multiple of the
	// recorded one.
	Move(by time.Duration)
	SetSpeed(speed float64)
}

// Playback is the state of a replay.
type Playback struct {
	// Position is how much of Length was played; a Length of 0 is unknown.
	Position, Length time.Duration
	Speed            float64
	Ended            bool
	// Returns is how often the user moved the replay back.
	Returns uint64
}

// The slowest and the fastest replay, and how far a key moves.
const (
	slowest  = 1.0 / 8
	fastest  = 256
	moveStep = 10 * time.Second
)

// playerBindings returns the keys of a replay.
func (f *frame) playerBindings() []widget.Binding {
	if f.player == nil {
		return nil
	}
	return []widget.Binding{
		{Key: ",  .", Does: "ten seconds back, ten seconds forward", Runes: ",.", Do: func(r rune) {
			if r == ',' {
				f.player.Move(-moveStep)
			} else {
				f.player.Move(moveStep)
			}
		}},
		{Key: "{  }", Does: "replay half as fast, twice as fast", Runes: "{}", Do: func(r rune) {
			speed := f.player.Playback().Speed
			if r == '{' {
				speed = max(speed/2, slowest)
			} else {
				speed = min(speed*2, fastest)
			}
			f.player.SetSpeed(speed)
			f.notify(fmt.Sprintf("replaying at %g times the recorded speed", speed))
		}},
	}
}

// clockTime returns a position in a recording as text.
func clockTime(d time.Duration) string {
	s := int64(max(d, 0) / time.Second)
	if s >= 3600 {
		return fmt.Sprintf("%d:%02d:%02d", s/3600, s/60%60, s%60)
	}
	return fmt.Sprintf("%02d:%02d", s/60, s%60)
}

// progress returns a bar with the position of a replay, in at most w cells.
func (f *frame) progress(w int) text.Line {
	if f.player == nil {
		return nil
	}
	p, g := f.data.playback, text.GlyphSet(f.settings.ASCII)
	speed := fmt.Sprintf("x%g ", p.Speed)
	if p.Ended {
		speed = "ended "
	}
	out := text.Line{text.Notice.Span(speed), text.Plain.Span(clockTime(p.Position))}
	if p.Length > 0 {
		end := " " + clockTime(p.Length)
		if room := min(w-out.Width()-len(end)-1, 40); room >= 5 {
			at := min(int(float64(p.Position)/float64(p.Length)*float64(room)), room)
			out = append(out, text.Plain.Span(" "))
			for i := range room {
				look, s := text.Track, g.Track
				if i < at {
					look, s = text.Second, g.Eighths[len(g.Eighths)-1]
				}
				out = append(out, look.Span(s))
			}
		}
		out = append(out, text.Faint.Span(end))
	}
	if out.Width() > w {
		return nil
	}
	return out
}
