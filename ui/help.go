package ui

import (
	"strings"

	"github.com/gdamore/tcell/v2"
	"github.com/rivo/tview"
)

// help is the overlay that explains keys and signs.
type help struct {
	*tview.Box
	lines   []line
	palette palette
}

func newHelp(o settings, p palette) *help {
	return &help{Box: tview.NewBox(), lines: framed(helpLines(o), "help", glyphSet(o.ascii)), palette: p}
}

func helpLines(o settings) []line {
	g := glyphSet(o.ascii)
	var out []line
	for _, b := range []binding{
		{"q, ctrl-C", "quit"},
		{"arrows, hjkl", "move; also PgUp PgDn Home End, mouse"},
		{g.enter + ", right", "show what a process has on each chip"},
		{"left", "fold it up again"},
		{"tab", "go to the other table"},
		{"s", "sort the processes by the next column"},
		{"r", "requested or reserved bytes"},
		{"u", "rounded (K, M, G: 1024, 1024^2, ...) or exact"},
		{"space", "pause, go on"},
		{"esc", "close this help"},
	} {
		out = append(out, append(line{{b.key, key}}.padded(15, false), span{b.does, plain}))
	}
	out = append(out, nil)
	for _, b := range []binding{
		{"requested", "the buffers' own size"},
		{"reserved", "what the memory's banks lost to them"},
		{g.peak, "the highest use so far"},
		{"+  !", "75 % full, 90 % full"},
		{g.unknown, "not known"},
		{"-", "the chip has no such memory"},
		{g.atLeast, "at least: some reserved sizes are not known"},
		{lateMark, "attached late: earlier buffers not counted"},
		{unmatchedMark + "  " + replacedMark, "frees of buffers not in the accounts; not seen"},
		{oddMark, "events that made no sense, not counted"},
	} {
		out = append(out, append(line{{b.key, strong}}.padded(15, false), span{b.does, plain}))
	}
	return out
}

// framed puts lines of equal width into a frame.
func framed(lines []line, name string, g glyphs) []line {
	w := 0
	for _, l := range lines {
		w = max(w, l.width())
	}
	edge := func(left, name, right string) line {
		name = clip(name, w, g.dots)
		return line{{left + g.rule, faint}, {name, strong}, {strings.Repeat(g.rule, w+1-width(name)) + right, faint}}
	}
	out := []line{edge(g.corners[0], " "+name+" ", g.corners[1])}
	for _, l := range lines {
		out = append(out, append(append(text(faint, g.wall+" "), l.padded(w, false)...), span{" " + g.wall, faint}))
	}
	return append(out, edge(g.corners[2], "", g.corners[3]))
}

// Draw paints the help in the middle of the screen, over what is there.
func (h *help) Draw(screen tcell.Screen) {
	x, y, w, n := h.GetRect()
	x += max((w-h.lines[0].width())/2, 0)
	y += max((n-len(h.lines))/2, 0)
	for i, l := range h.lines {
		paint(screen, x, y+i, l, func(r role) tcell.Style { return h.palette[r] })
	}
}
