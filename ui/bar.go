package ui

import "strings"

// warnAt and badAt are the shares of a memory from which its bar changes.
const (
	warnAt = 0.75
	badAt  = 0.90
)

// fullness is how full a memory is: as a role for the bar, and as a sign for
// eyes and terminals to which colours say nothing.
func fullness(used, capacity uint64) (role, string) {
	switch share := float64(used) / float64(capacity); {
	case capacity == 0 || share < warnAt:
		return good, ""
	case share < badAt:
		return warn, "+"
	}
	return bad, "!"
}

// bar draws used of capacity in w cells, with a mark where the highest use
// was. A full bar means full, and an empty one empty: what is rounded away
// would be a lie.
func bar(w int, used, highest, capacity uint64, g glyphs) line {
	if w <= 0 || capacity == 0 {
		return text(plain, spaces(w))
	}
	steps := len(g.eighths)
	all := w * steps
	fill := int(float64(min(used, capacity)) / float64(capacity) * float64(all))
	switch {
	case used > 0 && fill == 0:
		fill = 1
	case used < capacity && fill >= all:
		fill = all - 1
	}
	filled := strings.Repeat(g.eighths[steps-1], fill/steps)
	cells := fill / steps
	if fill%steps > 0 {
		filled += g.eighths[fill%steps-1]
		cells++
	}
	look, _ := fullness(used, capacity)
	out := text(look, filled)
	at := min(int(float64(highest)/float64(capacity)*float64(w)), w-1)
	if highest <= used || at < cells {
		return append(out, text(track, strings.Repeat(g.track, w-cells))...)
	}
	out = append(out, text(track, strings.Repeat(g.track, at-cells))...)
	out = append(out, span{g.peak, peak})
	return append(out, text(track, strings.Repeat(g.track, w-at-1))...)
}
