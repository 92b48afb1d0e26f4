// Package text makes the words of the screen: pieces of styled text with their
// width in cells, numbers in units, and untrusted text made safe to show.
// It knows neither terminals nor what is shown.
package text

import (
	"strings"

	"github.com/rivo/uniseg"
)

// Role says what a piece of text means; the palette turns it into a look.
type Role uint8

const (
	Plain  Role = iota
	Faint       // of little weight: units of rest, zeros, unknowns
	Strong      // the program's name, column titles of the table in focus
	Title       // column titles of the other table
	Key         // a key in the footer and the help
	Good        // a bar below 75 %
	Warn        // from 75 %
	Bad         // from 90 %
	Track       // the empty part of a bar
	Peak        // the mark of the peak in a bar
	Alert       // something is wrong: events were lost
	Notice      // worth a look: notes, markers, paused
	Tab         // the name of the view on the screen
	First       // fillings of maps and lines of charts, all different
	Second
	Third
	Fourth
	Found // what a search found
	NumRoles
)

// Span is text of one role. The text is safe to show: what came from outside went through clean.
type Span struct {
	Text string
	Role Role
}

// Line is a row of the screen, or a part of one.
type Line []Span

// Width returns the number of cells that l takes.
func (l Line) Width() int {
	w := 0
	for _, s := range l {
		w += Width(s.Text)
	}
	return w
}

// String returns the text alone.
func (l Line) String() string {
	var b strings.Builder
	for _, s := range l {
		b.WriteString(s.Text)
	}
	return b.String()
}

// Span returns s with the role.
func (r Role) Span(s string) Span { return Span{s, r} }

// Line returns s with the role, as a line; nothing for an empty s.
func (r Role) Line(s string) Line {
	if s == "" {
		return nil
	}
	return Line{r.Span(s)}
}

// Spaces returns n spaces, none for n below 0.
func Spaces(n int) string { return strings.Repeat(" ", max(n, 0)) }

// Padded returns l, w cells wide: filled up with spaces, to the left if right, or clipped.
func (l Line) Padded(w int, right bool) Line {
	n := w - l.Width()
	switch {
	case n == 0:
		return l
	case n < 0:
		// Where half a wide character would remain, a space takes its place.
		return l.Clipped(w).Padded(w, right)
	case right:
		return append(Line{Plain.Span(Spaces(n))}, l...)
	}
	return append(l[:len(l):len(l)], Plain.Span(Spaces(n)))
}

// Clipped returns l, cut to at most w cells.
func (l Line) Clipped(w int) Line {
	var out Line
	for _, s := range l {
		if w <= 0 {
			break
		}
		s.Text = cut(s.Text, w)
		w -= Width(s.Text)
		out = append(out, s)
	}
	return out
}

// Without returns l from its cell n on; where that is half a wide character, a space replaces it.
func (l Line) Without(n int) Line {
	var out Line
	for _, s := range l {
		if w := Width(s.Text); n >= w {
			n -= w
			continue
		}
		if n > 0 {
			head := cut(s.Text, n)
			rest := s.Text[len(head):]
			if half := n - Width(head); half > 0 {
				cluster := cut(rest, 2)
				rest = Spaces(Width(cluster)-half) + rest[len(cluster):]
			}
			s.Text, n = rest, 0
		}
		out = append(out, s)
	}
	return out
}

// Wrapped returns l in lines of w cells, all but the first indented.
func (l Line) Wrapped(w, indent int) []Line {
	var out []Line
	for l.Width() > w && w > indent+8 && len(out) < 6 {
		head := l.Clipped(w)
		// Rather between two words, where there are any.
		if i := strings.LastIndexByte(head.String(), ' '); i > 0 && Width(head.String()[:i]) > w*2/3 {
			head = head.Clipped(Width(head.String()[:i]) + 1)
		}
		out = append(out, head)
		l = append(Plain.Line(Spaces(indent)), l.Without(head.Width())...)
	}
	return append(out, l)
}

// Width returns the number of cells that s takes on a screen, counted as tcell counts.
func Width(s string) int {
	n := 0
	for _, r := range s {
		if !isNarrow(r) {
			return uniseg.StringWidth(s)
		}
		n++
	}
	return n
}

// isNarrow reports whether characters that surely take one cell and combine with
// nothing: ASCII, and what bars and rules are made of. Nearly all of a screen
// is, and to look up the rest takes long.
func isNarrow(r rune) bool {
	return r >= ' ' && r <= '~' || r >= 0x2500 && r <= 0x259f || r == '·' || r == '≥' || r == '…' || r == '✓'
}

// cut returns the longest start of s that fits into w cells; a wide character is never halved.
func cut(s string, w int) string {
	if len(s) <= w || Width(s) <= w {
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

// Clip returns s in at most w cells, with the ellipsis where something was cut off.
func Clip(s string, w int, ellipsis string) string {
	if Width(s) <= w {
		return s
	}
	if w <= 0 {
		return ""
	}
	return cut(s, w-Width(ellipsis)) + ellipsis
}

// Dimmed returns a line of little weight.
func (l Line) Dimmed() Line {
	out := make(Line, len(l))
	for i, s := range l {
		out[i] = Faint.Span(s.Text)
	}
	return out
}

// Marked puts the sign of the sorted column next to its title.
func (l Line) Marked(sign string, before bool) Line {
	if before {
		return append(Notice.Line(sign), l...)
	}
	return append(l[:len(l):len(l)], Notice.Span(sign))
}

// Shortened clips the last part of l so that all of it takes at most w cells.
func (l Line) Shortened(w int, dots string) Line {
	more := ""
	for n := len(l); n > 0 && l.Width() > w; n-- {
		if room := w - l[:n-1].Width(); room > 0 {
			last := l[n-1]
			last.Text = Clip(last.Text+more, room, dots)
			return append(l[:n-1:n-1], last)
		}
		more = " " // something was left out
	}
	return l
}

// Join puts parts next to each other, with something in between.
func Join(parts Line, between Span) Line {
	var out Line
	for i, p := range parts {
		if i > 0 {
			out = append(out, between)
		}
		out = append(out, p)
	}
	return out
}
