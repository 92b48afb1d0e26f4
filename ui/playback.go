package ui

import (
	"fmt"
	"time"

	"tt-memtrace/ui/text"
	"tt-memtrace/ui/widget"
)

// Player is a replay that the user can move in. It is called from any goroutine.
type Player interface {
	Playback() Playback
	// Move goes on so much later or, below 0, earlier; SetSpeed so many times faster than recorded.
	Move(by time.Duration)
	SetSpeed(speed float64)
}

// Playback is the state of a replay.
type Playback struct {
	// Position of Length; a Length of 0 is not known.
	Position, Length time.Duration
	Speed            float64
	Ended            bool
	// Returns is how often the replay went back.
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
		{Key: ",  .", Does: "ten seconds back, ten seconds on", Runes: ",.", Do: func(r rune) {
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

// clockTime writes a place in a recording.
func clockTime(d time.Duration) string {
	s := int64(max(d, 0) / time.Second)
	if s >= 3600 {
		return fmt.Sprintf("%d:%02d:%02d", s/3600, s/60%60, s%60)
	}
	return fmt.Sprintf("%02d:%02d", s/60, s%60)
}

// progress returns how far a replay is, in at most w cells.
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
