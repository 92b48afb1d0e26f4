// Package text has styled text with its width in cells, numbers in units, and untrusted text made safe to show. It does
// not depend on the terminal or on what is shown.
package text

import (
	"strings"

	"github.com/rivo/uniseg"
)

// Role says what a piece of text means. A palette gives each role its look.
type Role uint8

const (
	Plain  Role = iota
	Faint       // less important: rules, zeros, unknown values
	Strong      // names, PIDs, column titles of the table in focus
	Title       // other titles of columns and sections
	Key         // a key in the footer and the help
	Good        // less than 75 % full
	Warn        // from 75 % on
	Bad         // from 90 % on
	Track       // the empty part of a bar
	Peak        // the mark of the peak in a bar
	Alert       // something needs attention: lost events, failures, paused
	Notice      // worth a look: notes, markers, cursors
	Tab         // the name of the view on the screen
	First       // fillings of maps and layers of charts: all look different
	Second
	Third
	Fourth
	Found // text that a search found
	NumRoles
)

// Span is text with one role. The text must be safe to show: see Sanitize.
type Span struct {
	Text string
	Role Role
}

// Line is a line of the screen, or a part of one.
type Line []Span

// Width returns the number of cells that l takes.
func (l Line) Width() int {
	w := 0
	for _, s := range l {
		w += Width(s.Text)
	}
	return w
}

// String returns the text without roles.
func (l Line) String() string {
	var b strings.Builder
	for _, s := range l {
		b.WriteString(s.Text)
	}
	return b.String()
}

// Span returns s with this role.
func (r Role) Span(s string) Span { return Span{s, r} }

// Line returns s with this role as a line; an empty line for "".
func (r Role) Line(s string) Line {
	if s == "" {
		return nil
	}
	return Line{r.Span(s)}
}

// Spaces returns n spaces, none for n below 0.
func Spaces(n int) string { return strings.Repeat(" ", max(n, 0)) }

// Padded returns l in exactly w cells: filled with spaces, on the left if right, or clipped.
func (l Line) Padded(w int, right bool) Line {
	n := w - l.Width()
	switch {
	case n == 0:
		return l
	case n < 0:
		// Clipping can leave out half of a wide character: fill its cell.
		return l.Clipped(w).Padded(w, right)
	case right:
		return append(Line{Plain.Span(Spaces(n))}, l...)
	}
	return append(l[:len(l):len(l)], Plain.Span(Spaces(n)))
}

// Clipped returns l clipped to at most w cells.
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

// Without returns l from cell n on. If that is the second half of a wide character, a space replaces it.
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

// Wrapped returns l as lines of at most w cells, with all but the first indented. It returns at most seven lines, and
// the last may be longer. It does not wrap if fewer than nine cells are left beside the indent.
func (l Line) Wrapped(w, indent int) []Line {
	var out []Line
	for l.Width() > w && w > indent+8 && len(out) < 6 {
		head := l.Clipped(w)
		// Prefer to break between two words.
		if i := strings.LastIndexByte(head.String(), ' '); i > 0 && Width(head.String()[:i]) > w*2/3 {
			head = head.Clipped(Width(head.String()[:i]) + 1)
		}
		out = append(out, head)
		l = append(Plain.Line(Spaces(indent)), l.Without(head.Width())...)
	}
	return append(out, l)
}

// Width returns the number of cells that s takes on a screen, as tcell counts them.
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

// isNarrow reports whether a character takes one cell and never combines with others: ASCII, and characters of bars and
// rules. Almost all characters of a screen are narrow; looking up others takes long.
func isNarrow(r rune) bool {
	return r >= ' ' && r <= '~' || r >= 0x2500 && r <= 0x259f || r == '·' || r == '≥' || r == '…' || r == '✓'
}

// cut returns the longest beginning of s that fits into w cells. It never cuts a wide character in half.
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

// Clip returns s in at most w cells, with the ellipsis at the end if it was cut.
func Clip(s string, w int, ellipsis string) string {
	if Width(s) <= w {
		return s
	}
	if w <= 0 {
		return ""
	}
	return cut(s, w-Width(ellipsis)) + ellipsis
}

// Dimmed returns l as a less important line.
func (l Line) Dimmed() Line {
	out := make(Line, len(l))
	for i, s := range l {
		out[i] = Faint.Span(s.Text)
	}
	return out
}

// Marked returns l, the title of the sorted column, with the sign before or after it.
func (l Line) Marked(sign string, before bool) Line {
	if before {
		return append(Notice.Line(sign), l...)
	}
	return append(l[:len(l):len(l)], Notice.Span(sign))
}

// Shortened leaves out and clips spans at the end of l so that l takes at most w cells. If w is not above 0, it returns
// l.
func (l Line) Shortened(w int, dots string) Line {
	more := ""
	for n := len(l); n > 0 && l.Width() > w; n-- {
		if room := w - l[:n-1].Width(); room > 0 {
			last := l[n-1]
			last.Text = Clip(last.Text+more, room, dots)
			return append(l[:n-1:n-1], last)
		}
		more = " " // say that something was cut
	}
	return l
}

// Join returns the parts with something between them.
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
