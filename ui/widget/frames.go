package widget

import (
	"strings"

	"github.com/gdamore/tcell/v2"

	"tt-memtrace/ui/text"
)

// Picture is a screen or a part of one, ready to paint.
type Picture struct {
	Lines []text.Line
	// Selected is the line with the cursor, -1 for none.
	Selected int
}

// Region is a range of lines of the screen or of a view.
type Region struct{ Top, Height int }

// Has reports whether a line is in the region.
func (r Region) Has(y int) bool { return y >= r.Top && y < r.Top+r.Height }

// Rule returns a horizontal line of w cells between parts of a view, with a text near each end.
func Rule(w int, left, right string, g text.Glyphs) text.Line {
	out := text.Line{}
	dashes := func(n int) { out = append(out, text.Faint.Span(strings.Repeat(g.Rule, max(n, 0)))) }
	label := func(s string) {
		if s != "" {
			out = append(out, text.Plain.Span(" "+s+" "))
		}
	}
	dashes(2)
	label(left)
	tail := 2
	if right != "" {
		tail += text.Width(right) + 2
	}
	dashes(max(w-out.Width()-tail, 0))
	label(right)
	dashes(2)
	return out.Shortened(w, g.Dots)
}

// Footer returns the line with keys, as many as fit.
func Footer(list []Binding, g text.Glyphs, w int) text.Line {
	out := text.Line{text.Plain.Span(" ")}
	for _, b := range list {
		if b.Brief == "" {
			continue
		}
		name := b.Key
		if name == "enter" {
			name = g.Enter
		}
		l := text.Line{text.Key.Span(name), text.Plain.Span(" " + b.Brief + "  ")}
		if out.Width()+l.Width()-2 > w {
			continue
		}
		out = append(out, l...)
	}
	return out
}

// Frame returns a frame with at most room lines, from the one at on, with name in its upper edge and more in its lower
// one. It is as wide as the widest of all lines requires.
func Frame(lines []text.Line, at, room int, name, more string, g text.Glyphs) []text.Line {
	w := text.Widest(lines)
	edge := func(left, name, right string) text.Line {
		name = text.Clip(name, w, g.Dots)
		return text.Line{text.Faint.Span(left + g.Rule), text.Strong.Span(name), text.Faint.Span(strings.Repeat(g.Rule, w+1-text.Width(name)) + right)}
	}
	out := []text.Line{edge(g.Corners[0], " "+name+" ", g.Corners[1])}
	for _, l := range lines[at:min(at+room, len(lines))] {
		out = append(out, append(append(text.Faint.Line(g.Wall+" "), l.Padded(w, false)...), text.Faint.Span(" "+g.Wall)))
	}
	return append(out, edge(g.Corners[2], more, g.Corners[3]))
}

// Overlay replaces the middle of some lines by others of equal width.
func Overlay(under, over []text.Line, w int) {
	if len(over) > 0 {
		OverlayAt(under, over, w, max((w-over[0].Width())/2, 0), max((len(under)-len(over))/2, 0))
	}
}

// OverlayAt replaces a part of some lines, from a cell and a line on, by others of equal width.
func OverlayAt(under, over []text.Line, w, x, y int) {
	for i, l := range over {
		if y+i < 0 || y+i >= len(under) {
			continue
		}
		n := l.Width()
		whole := under[y+i].Padded(w, false)
		left := whole.Clipped(x).Padded(x, false)
		right := whole.Without(x + n)
		under[y+i] = append(append(left, l...), right.Padded(max(w-x-n, 0), true)...)
	}
}

// Paint draws a line cell by cell, so that neither tview nor the terminal interprets its text.
func Paint(screen tcell.Screen, x, y int, l text.Line, look func(text.Role) tcell.Style) {
	for _, s := range l {
		style := look(s.Role)
		for rest := s.Text; rest != ""; {
			var n int
			if rest, n = screen.Put(x, y, rest, style); n == 0 {
				break
			}
			x += n
		}
	}
}
