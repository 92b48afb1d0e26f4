package widget

import (
	"tt-memtrace/ui/text"
)

// Layer is a part of a stacked plot: a value for each column.
type Layer struct {
	Values []uint64
	Role   text.Role
	// Fill is the character that distinguishes layers where colours do not.
	Fill string
}

// LayerStyles returns layers with different looks, by colour and by filling.
func LayerStyles(g text.Glyphs) []Layer {
	f := g.Layers
	return []Layer{{Role: text.First, Fill: f[0]}, {Role: text.Third, Fill: f[1]}, {Role: text.Second, Fill: f[2]}, {Role: text.Warn, Fill: f[3]}, {Role: text.Faint, Fill: f[4]}}
}

// Stack returns layers on top of each other, the first at the bottom, up to top in h lines. Columns for which known is
// false are unknown.
func Stack(layers []Layer, known []bool, top uint64, h int, g text.Glyphs) []text.Line {
	out := make([]text.Line, h)
	put := func(y int, s string, r text.Role) {
		if n := len(out[y]); n > 0 && out[y][n-1].Role == r {
			out[y][n-1].Text += s
			return
		}
		out[y] = append(out[y], r.Span(s))
	}
	for x := range known {
		// Each cell shows the layer at its middle. If the bottom cell has none there, it shows the first layer that
		// is not 0, so that a small value is visible.
		var sum float64
		edges := make([]float64, len(layers))
		lowest := -1
		for i := range layers {
			sum += float64(layers[i].Values[x])
			edges[i] = sum / max(float64(top), 1) * float64(h)
			if lowest < 0 && layers[i].Values[x] > 0 {
				lowest = i
			}
		}
		for y := range h {
			middle := float64(h-1-y) + 0.5
			owner := -1
			for i := range layers {
				if layers[i].Values[x] > 0 && middle < edges[i] {
					owner = i
					break
				}
			}
			if owner < 0 && y == h-1 {
				owner = lowest
			}
			switch {
			case !known[x] && y == h-1:
				put(y, g.NoData, text.Faint)
			case !known[x]:
				put(y, " ", text.Plain)
			case owner >= 0:
				put(y, layers[owner].Fill, layers[owner].Role)
			case y == h-1:
				put(y, g.Baseline(), text.Faint)
			default:
				put(y, " ", text.Plain)
			}
		}
	}
	return out
}
