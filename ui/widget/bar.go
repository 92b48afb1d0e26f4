package widget

import (
	"strings"

	"tt-memtrace/ui/text"
)

// warnAt and badAt are the shares of a memory from which on its bar looks different.
const (
	warnAt = 0.75
	badAt  = 0.90
)

// Fullness says how full a memory is: as a role for the bar, and as a sign for terminals and people that see no
// colours.
func Fullness(used, capacity uint64) (text.Role, string) {
	switch share := float64(used) / float64(capacity); {
	case capacity == 0 || share < warnAt:
		return text.Good, ""
	case share < badAt:
		return text.Warn, "+"
	}
	return text.Bad, "!"
}

// Bar returns used of capacity as a bar in w cells, with a mark at the highest use. Only a full memory has a full bar,
// and only an empty one an empty bar: it does not round to either.
func Bar(w int, used, highest, capacity uint64, g text.Glyphs) text.Line {
	if w <= 0 || capacity == 0 {
		return text.Plain.Line(text.Spaces(w))
	}
	steps := len(g.Eighths)
	all := w * steps
	fill := int(float64(min(used, capacity)) / float64(capacity) * float64(all))
	switch {
	case used > 0 && fill == 0:
		fill = 1
	case used < capacity && fill >= all:
		fill = all - 1
	}
	filled := strings.Repeat(g.Eighths[steps-1], fill/steps)
	cells := fill / steps
	if fill%steps > 0 {
		filled += g.Eighths[fill%steps-1]
		cells++
	}
	look, _ := Fullness(used, capacity)
	out := look.Line(filled)
	at := min(int(float64(highest)/float64(capacity)*float64(w)), w-1)
	if highest <= used || at < cells {
		return append(out, text.Track.Line(strings.Repeat(g.Track, w-cells))...)
	}
	out = append(out, text.Track.Line(strings.Repeat(g.Track, at-cells))...)
	out = append(out, text.Peak.Span(g.Peak))
	return append(out, text.Track.Line(strings.Repeat(g.Track, w-at-1))...)
}
