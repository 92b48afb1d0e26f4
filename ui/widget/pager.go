package widget

import (
	"github.com/gdamore/tcell/v2"

	"tt-memtrace/ui/text"
)

// Pager shows lines in a frame over the screen, until a key closes it or does something else.
type Pager struct {
	Title string
	Lines []text.Line
	// Toggle is the key that opened it, and also closes it; 0 for none.
	Toggle rune
	at     int
	room   int
	rows   int
}

// PagerMargin is the free space on each side of a pager, with its frame.
const PagerMargin = 4

// Draw returns the pager for a screen of w times h cells.
func (p *Pager) Draw(w, h int, g text.Glyphs) []text.Line {
	var lines []text.Line
	for _, l := range p.Lines {
		lines = append(lines, l.Wrapped(max(w-2*PagerMargin, 16), 4)...)
	}
	p.rows, p.room = len(lines), max(min(len(lines), h-4), 1)
	p.at = max(min(p.at, p.rows-p.room), 0)
	more := " esc close "
	if p.at+p.room < p.rows {
		more = " " + g.Down + " more, esc close "
	}
	return Frame(lines, p.at, p.room, p.Title, more, g)
}

// Key handles a key, and reports whether to close the pager.
func (p *Pager) Key(e *tcell.EventKey) bool {
	if m, ok := MotionOf(e); ok {
		p.move(m)
		return false
	}
	return e.Key() == tcell.KeyEsc || e.Key() == tcell.KeyEnter || e.Key() == tcell.KeyRune && p.Toggle != 0 && e.Rune() == p.Toggle
}

// move scrolls.
func (p *Pager) move(m Motion) {
	p.at += map[Motion]int{Down: 1, Up: -1, PageDown: p.room, PageUp: -p.room, Home: -p.rows, End: p.rows}[m]
	p.at = max(min(p.at, p.rows-p.room), 0)
}
