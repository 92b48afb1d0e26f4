package ui

import (
	"strings"

	"github.com/rivo/uniseg"
)

// role says what a piece of text means; the palette turns it into a look.
type role uint8

const (
	plain  role = iota
	faint       // of little weight: units of rest, zeros, unknowns
	strong      // the program's name, column titles of the table in focus
	title       // column titles of the other table
	key         // a key in the footer and the help
	good        // a bar below 75 %
	warn        // from 75 %
	bad         // from 90 %
	track       // the empty part of a bar
	peak        // the mark of the peak in a bar
	alert       // something is wrong: events were lost
	notice      // worth a look: notes, markers, paused
	tab         // the name of the view on the screen
	first       // fillings of maps and lines of charts, to be told apart
	second
	third
	fourth
	numRoles
)

// span is text of one role. The text is safe to show: what came from outside went through clean.
type span struct {
	text string
	role role
}

// line is a row of the screen, or a part of one.
type line []span

func (l line) width() int {
	w := 0
	for _, s := range l {
		w += width(s.text)
	}
	return w
}

// String is the text alone.
func (l line) String() string {
	var b strings.Builder
	for _, s := range l {
		b.WriteString(s.text)
	}
	return b.String()
}

func text(r role, s string) line {
	if s == "" {
		return nil
	}
	return line{{s, r}}
}

func spaces(n int) string { return strings.Repeat(" ", max(n, 0)) }

// padded is l, w cells wide: filled up with spaces, to the left if right, or clipped.
func (l line) padded(w int, right bool) line {
	n := w - l.width()
	switch {
	case n == 0:
		return l
	case n < 0:
		// Where half a wide character would remain, a space takes its place.
		return l.clipped(w).padded(w, right)
	case right:
		return append(line{{spaces(n), plain}}, l...)
	}
	return append(l[:len(l):len(l)], span{spaces(n), plain})
}

// clipped is l, cut to at most w cells.
func (l line) clipped(w int) line {
	var out line
	for _, s := range l {
		if w <= 0 {
			break
		}
		s.text = cut(s.text, w)
		w -= width(s.text)
		out = append(out, s)
	}
	return out
}

// without is l from its cell n on; where that is half a wide character, a space stands for it.
func (l line) without(n int) line {
	var out line
	for _, s := range l {
		if w := width(s.text); n >= w {
			n -= w
			continue
		}
		if n > 0 {
			head := cut(s.text, n)
			rest := s.text[len(head):]
			if half := n - width(head); half > 0 {
				cluster := cut(rest, 2)
				rest = spaces(width(cluster)-half) + rest[len(cluster):]
			}
			s.text, n = rest, 0
		}
		out = append(out, s)
	}
	return out
}

// wrapped is l in lines of w cells, all but the first indented.
func (l line) wrapped(w, indent int) []line {
	var out []line
	for l.width() > w && w > indent+8 && len(out) < 6 {
		head := l.clipped(w)
		// Rather between two words, where there are any.
		if i := strings.LastIndexByte(head.String(), ' '); i > 0 && width(head.String()[:i]) > w*2/3 {
			head = head.clipped(width(head.String()[:i]) + 1)
		}
		out = append(out, head)
		l = append(text(plain, spaces(indent)), l.without(head.width())...)
	}
	return append(out, l)
}

// width is the number of cells that s takes on a screen, counted as tcell counts.
func width(s string) int {
	n := 0
	for _, r := range s {
		if !isNarrow(r) {
			return uniseg.StringWidth(s)
		}
		n++
	}
	return n
}

// isNarrow is true for characters that surely take one cell and combine with
// nothing: ASCII, and what bars and rules are made of. Nearly all of a screen
// is, and to look up the rest takes long.
func isNarrow(r rune) bool {
	return r >= ' ' && r <= '~' || r >= 0x2500 && r <= 0x259f || r == '·' || r == '≥' || r == '…' || r == '✓'
}

// cut is the longest start of s that fits into w cells; a wide character is never halved.
func cut(s string, w int) string {
	if len(s) <= w || width(s) <= w {
		return s
	}
	rest, state, used := s, -1, 0
	for rest != "" {
		var n int
		var next string
		_, next, n, state = uniseg.FirstGraphemeClusterInString(rest, state)
		if used+n > w {
			break
		}
		used += n
		rest = next
	}
	return s[:len(s)-len(rest)]
}

// clip is s in at most w cells, with the ellipsis where something was cut off.
func clip(s string, w int, ellipsis string) string {
	if width(s) <= w {
		return s
	}
	if w <= 0 {
		return ""
	}
	return cut(s, w-width(ellipsis)) + ellipsis
}
