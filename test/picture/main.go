// Command picture writes what a terminal shows as an SVG. It reads the lines with
// their SGR sequences, as tmux capture-pane -e prints them:
//
//	tmux capture-pane -e -p | picture -columns 120 > screen.svg
//
// Several files are the screens of a picture that moves: each is shown for a while, again and again.
//
// Blocks and lines are drawn as shapes, so that they meet whatever the font is.
package main

import (
	"bufio"
	"flag"
	"fmt"
	"html"
	"io"
	"os"
	"regexp"
	"strconv"
	"strings"

	"github.com/rivo/uniseg"
)

// A cell of the picture, and the margin around all of them, in pixels.
const (
	cellWidth  = 8
	cellHeight = 17
	baseline   = 13
	margin     = 10
)

// style is how a cell looks.
type style struct {
	ink, ground            string
	bold, dim, under, flip bool
}

// colours are the sixteen of a terminal, ground and ink of a plain cell.
var colours = [16]string{
	"#1e1e1e", "#d55e00", "#009e73", "#f0c808", "#3d8bd4", "#cc79a7", "#56b4e9", "#d0d0d0",
	"#808080", "#ff8a3d", "#2ee6a8", "#ffe14d", "#4da6ff", "#f2a6d0", "#8fd3ff", "#ffffff",
}

const (
	plainInk    = "#d0d0d0"
	plainGround = "#1e1e1e"
)

// palette is one of the 256 colours.
func palette(n int) string {
	switch {
	case n < 16:
		return colours[n]
	case n >= 232:
		return fmt.Sprintf("#%02[1]x%02[1]x%02[1]x", 8+10*(n-232))
	}
	level := func(n int) int {
		if n == 0 {
			return 0
		}
		return 55 + 40*n
	}
	n -= 16
	return fmt.Sprintf("#%02x%02x%02x", level(n/36), level(n/6%6), level(n%6))
}

// set applies an SGR sequence's parameters.
func (s *style) set(parameters string) {
	var n []int
	for _, p := range strings.FieldsFunc(parameters, func(r rune) bool { return r == ';' || r == ':' }) {
		v, err := strconv.Atoi(p)
		if err != nil || v < 0 || v > 255 {
			return
		}
		n = append(n, v)
	}
	if len(n) == 0 {
		n = []int{0}
	}
	for i := 0; i < len(n); i++ {
		switch v := n[i]; {
		case v == 0:
			*s = style{}
		case v == 1:
			s.bold = true
		case v == 2:
			s.dim = true
		case v == 4:
			s.under = true
		case v == 7:
			s.flip = true
		case v == 22:
			s.bold, s.dim = false, false
		case v == 24:
			s.under = false
		case v == 27:
			s.flip = false
		case v >= 30 && v < 38:
			s.ink = colours[v-30]
		case v >= 90 && v < 98:
			s.ink = colours[v-90+8]
		case v == 39:
			s.ink = ""
		case v >= 40 && v < 48:
			s.ground = colours[v-40]
		case v == 49:
			s.ground = ""
		case v == 38 || v == 48:
			to := &s.ink
			if v == 48 {
				to = &s.ground
			}
			switch {
			case i+2 < len(n) && n[i+1] == 5:
				*to = palette(n[i+2])
				i += 2
			case i+4 < len(n) && n[i+1] == 2:
				*to = fmt.Sprintf("#%02x%02x%02x", n[i+2], n[i+3], n[i+4])
				i += 4
			default:
				return
			}
		}
	}
}

// looks are the colours of ink and ground; no ground is that of the picture.
func (s *style) looks() (ink, ground string) {
	ink, ground = s.ink, s.ground
	if ink == "" {
		ink = plainInk
	}
	if s.flip {
		if ground == "" {
			ground = plainGround
		}
		return ground, ink
	}
	return ink, ground
}

// shape is what a block or line looks like in its cell: a rectangle, in eighths of the cell, and
// how much of it is inked.
func shape(r rune) (x, y, w, h, opacity float64, ok bool) {
	switch {
	case r >= '▁' && r <= '█':
		n := float64(r-'▁') + 1
		return 0, 8 - n, 8, n, 1, true
	case r >= '▉' && r <= '▏':
		return 0, 0, 7 - float64(r-'▉'), 8, 1, true
	case r >= '░' && r <= '▓':
		return 0, 0, 8, 8, 0.2 + 0.25*float64(r-'░'), true
	case r == '─':
		return 0, 3.8, 8, 0.5, 1, true
	case r == '│':
		return 3.5, 0, 1, 8, 1, true
	case r == '┃':
		return 3, 0, 2, 8, 1, true
	}
	return 0, 0, 0, 0, 0, false
}

var sgr = regexp.MustCompile("\x1b\\[([0-9;:]*)m")

// each screen of a picture that moves is shown for so many seconds.
const each = 4

// draw writes the picture of screens, each of them lines, in so many columns.
func draw(w io.Writer, screens [][]string, columns int) error {
	out := bufio.NewWriter(w)
	rows := 0
	for _, lines := range screens {
		rows = max(rows, len(lines))
	}
	width, height := columns*cellWidth+2*margin, rows*cellHeight+2*margin
	fmt.Fprintf(out, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %[1]d %[2]d" font-family="ui-monospace, 'DejaVu Sans Mono', Menlo, Consolas, monospace" font-size="13">`+"\n", width, height)
	fmt.Fprintf(out, `<rect width="%d" height="%d" rx="6" fill="%s"/>`+"\n", width, height, plainGround)
	if n := len(screens); n > 1 {
		// The first one stays if nothing is to move.
		fmt.Fprintf(out, `<style>.screen{visibility:hidden;animation:turn %ds steps(1) infinite}@keyframes turn{0%%{visibility:visible}%.2f%%{visibility:hidden}}`+
			`@media(prefers-reduced-motion:reduce){.screen{animation:none}.first{visibility:visible}}</style>`+"\n", n*each, 100/float64(n))
	}
	for i, lines := range screens {
		if len(screens) > 1 {
			class := "screen"
			if i == 0 {
				class += " first"
			}
			fmt.Fprintf(out, `<g class="%s" style="animation-delay:%ds">`+"\n", class, i*each)
		}
		screen(out, lines)
		if len(screens) > 1 {
			fmt.Fprintln(out, "</g>")
		}
	}
	fmt.Fprintln(out, "</svg>")
	return out.Flush()
}

// screen draws lines.
func screen(out io.Writer, lines []string) {
	var s style
	for row, line := range lines {
		column := 0
		for line != "" {
			if at := sgr.FindStringSubmatchIndex(line); at != nil && at[0] == 0 {
				s.set(line[at[2]:at[3]])
				line = line[at[1]:]
				continue
			}
			text := line
			if at := sgr.FindStringIndex(line); at != nil {
				text = line[:at[0]]
			}
			column += run(out, text, s, column, row)
			line = line[len(text):]
		}
	}
}

// run draws text of one style and returns its width in cells.
func run(out io.Writer, text string, s style, column, row int) int {
	ink, ground := s.looks()
	top, cells := margin+row*cellHeight, uniseg.StringWidth(text)
	left := func(cell int) int { return margin + (column+cell)*cellWidth }
	fade := ""
	if s.dim {
		fade = ` opacity="0.6"`
	}
	if ground != "" {
		fmt.Fprintf(out, `<rect x="%d" y="%d" width="%d" height="%d" fill="%s"/>`+"\n", left(0), top, cells*cellWidth, cellHeight, ground)
	}
	words, from, cell := "", 0, 0
	flush := func() {
		if trimmed := strings.TrimRight(words, " "); trimmed != "" {
			look := ""
			if s.bold {
				look += ` font-weight="bold"`
			}
			if s.under {
				look += ` text-decoration="underline"`
			}
			fmt.Fprintf(out, `<text x="%d" y="%d" textLength="%d" fill="%s"%s%s>%s</text>`+"\n",
				left(from), top+baseline, uniseg.StringWidth(trimmed)*cellWidth, ink, look, fade, html.EscapeString(trimmed))
		}
		words = ""
	}
	type block struct {
		r       rune
		from, n int
	}
	var last block
	blocks := func() {
		if x, y, w, h, opacity, ok := shape(last.r); ok && last.n > 0 {
			if s.dim {
				opacity *= 0.6
			}
			wide := w / 8 * cellWidth
			if w == 8 {
				wide *= float64(last.n)
			}
			fmt.Fprintf(out, `<rect x="%.1f" y="%.1f" width="%.1f" height="%.1f" fill="%s" opacity="%.2f"/>`+"\n",
				float64(left(last.from))+x/8*cellWidth, float64(top)+y/8*cellHeight, wide, h/8*cellHeight, ink, opacity)
		}
		last = block{}
	}
	for graphemes := uniseg.NewGraphemes(text); graphemes.Next(); {
		g := graphemes.Str()
		r := graphemes.Runes()[0]
		_, _, w, _, _, ok := shape(r)
		switch {
		case ok && last.r == r && w == 8:
			last.n++
		case ok:
			flush()
			blocks()
			last = block{r, cell, 1}
		default:
			blocks()
			if g == " " && (words == "" || strings.HasSuffix(words, " ")) {
				flush() // two spaces in a text would be one
				break
			}
			if words == "" {
				from = cell
			}
			words += g
		}
		cell += graphemes.Width()
	}
	flush()
	blocks()
	return cells
}

func main() {
	columns := flag.Int("columns", 120, "width of the terminal in cells")
	flag.Parse()
	if err := picture(flag.Args(), *columns); err != nil {
		fmt.Fprintln(os.Stderr, "picture:", err)
		os.Exit(1)
	}
}

// picture draws files, or what it reads where there are none.
func picture(files []string, columns int) error {
	if len(files) == 0 {
		files = []string{"/dev/stdin"}
	}
	var screens [][]string
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		screens = append(screens, strings.Split(strings.TrimSuffix(string(text), "\n"), "\n"))
	}
	return draw(os.Stdout, screens, columns)
}
