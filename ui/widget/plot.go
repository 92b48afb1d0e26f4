package widget

import (
	"math"
	"strings"

	"tt-memtrace/ui/text"
)

// Unknown stands for an unknown value.
const Unknown = math.MaxUint64

// Plot returns values up to top as a plot of h lines, a column each. With showCursor the column cursor is marked.
// Values that fill 75 % of ceiling or more look different; a ceiling of 0 is unknown.
func Plot(values []uint64, top, ceiling uint64, h, cursor int, showCursor bool, g text.Glyphs) []text.Line {
	steps := len(g.Sparks)
	heights := make([]int, len(values))
	looks := make([]text.Role, len(values))
	for i, v := range values {
		looks[i] = text.Second
		if v == Unknown {
			heights[i] = -1
			continue
		}
		if ceiling > 0 {
			if look, sign := Fullness(v, ceiling); sign != "" {
				looks[i] = look
			}
		}
		if top > 0 {
			heights[i] = int(float64(v) / float64(top) * float64(h*steps))
		}
		if v > 0 {
			heights[i] = max(heights[i], 1)
		}
	}
	out := make([]text.Line, h)
	for y := range out {
		below := (h - 1 - y) * steps
		var b strings.Builder
		look := text.Plain
		flush := func(next text.Role) {
			if next != look && b.Len() > 0 {
				out[y] = append(out[y], look.Span(b.String()))
				b.Reset()
			}
			look = next
		}
		for x, n := range heights {
			switch {
			case n > below:
				flush(looks[x])
				b.WriteString(g.Sparks[min(n-below, steps)-1])
			case showCursor && x == cursor:
				flush(text.Notice)
				b.WriteString(g.Wall)
			case n < 0 && y == h-1:
				flush(text.Faint)
				b.WriteString(g.NoData)
			case n >= 0 && y == h-1:
				flush(text.Faint)
				b.WriteString(g.Baseline())
			default:
				flush(text.Plain)
				b.WriteByte(' ')
			}
		}
		flush(text.NumRoles)
	}
	return out
}
