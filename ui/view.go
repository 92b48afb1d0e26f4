package ui

import (
	"fmt"
	"strings"

	"tt-memtrace/aggregator"
)

// panel is one of the tables of the overview.
type panel uint8

const (
	chipPanel panel = iota
	processPanel
	numPanels
)

// view is the overview: what is shown and how. It knows nothing of the
// terminal; compose turns it into a picture.
type view struct {
	settings settings
	data     data
	// latest is what the feed said last; while paused it is not shown.
	latest   data
	paused   bool
	focus    panel
	lists    [numPanels]list
	expanded map[processID]bool

	// keys and columns are those of the last picture: what keys and mouse refer to.
	keys    [numPanels][]rowKey
	entries []entry
	columns []columnID
}

func newView(o settings, d data) *view {
	return &view{settings: o, data: d, latest: d, focus: processPanel, expanded: map[processID]bool{}}
}

// update takes over new data, which is shown unless paused.
func (v *view) update(d data) {
	v.latest = d
	if !v.paused {
		v.data = d
	}
}

func (v *view) pause() {
	v.paused = !v.paused
	v.data = v.latest
}

// nextSort goes on to the next column that is on the screen.
func (v *view) nextSort() {
	for i, id := range v.columns {
		if id == v.settings.sort {
			v.settings.sort = v.columns[(i+1)%len(v.columns)]
			return
		}
	}
	if len(v.columns) > 0 {
		v.settings.sort = v.columns[0]
	}
}

// expand shows or hides the chips of the selected process.
func (v *view) expand(open bool) {
	i := v.lists[processPanel].index
	if v.focus != processPanel || i >= len(v.entries) {
		return
	}
	e := &v.entries[i]
	if open {
		v.expanded[e.key.process] = true
		return
	}
	delete(v.expanded, e.key.process)
	// The selected row may be one of those that go: the process takes over.
	l := &v.lists[processPanel]
	for i > 0 && v.entries[i].key.kind != processRow {
		i--
	}
	l.move(i-l.index, v.keys[processPanel])
}

// toggle expands the selected process, or folds it up again.
func (v *view) toggle() {
	if i := v.lists[processPanel].index; i < len(v.entries) {
		v.expand(!v.expanded[v.entries[i].key.process])
	}
}

// region is where the rows of a table are on the screen.
type region struct{ top, height int }

func (r region) has(y int) bool { return y >= r.top && y < r.top+r.height }

// picture is a screen, ready to paint.
type picture struct {
	lines []line
	// selected is the line with the cursor, -1 for none.
	selected int
	regions  [numPanels]region
}

// maxNotes lines at most go to warnings: the tables are what the screen is for.
const maxNotes = 3

// compose draws the view w cells wide and h lines high. Only the positions
// in the lists change by that, to fit what there is to see.
func (v *view) compose(w, h int) picture {
	if w <= 0 || h <= 0 {
		return picture{selected: -1}
	}
	g := glyphSet(v.settings.ascii)
	d := v.data
	d.paused = v.paused
	inner := w - 2 // the cursor's place, and the same on the other side

	chipHead, chipBody := chipTable(d.snapshot, v.settings, inner, chipTiers())
	v.entries = entries(&d, v.settings, func(id processID) bool { return v.expanded[id] })
	processHead, processBody, shown := processTable(&d, v.settings, v.entries, inner)
	v.columns = shown
	v.keys = [numPanels][]rowKey{}
	for i := range d.snapshot.Chips {
		v.keys[chipPanel] = append(v.keys[chipPanel], rowKey{chip: d.snapshot.Chips[i].Chip})
	}
	for i := range v.entries {
		v.keys[processPanel] = append(v.keys[processPanel], v.entries[i].key)
	}

	notes := noteLines(&d, d.processes(), v.settings, w)
	const fixed = 5 // header, two lines of titles, rule, footer
	chips, processes := share(h-fixed-len(notes), len(chipBody), len(processBody))
	v.lists[chipPanel].sync(v.keys[chipPanel], chips)
	v.lists[processPanel].sync(v.keys[processPanel], processes)

	p := picture{selected: -1}
	p.lines = append(p.lines, header(&d, v.settings, w))
	v.table(&p, chipPanel, chipHead, chipBody, chips, "no chip has been opened yet")
	below := v.position(processPanel, "processes", processes, g)
	if d.over() {
		below = strings.TrimSpace("ended: " + endedNote + "  " + below)
	}
	p.lines = append(p.lines, rule(w, v.position(chipPanel, "chips", chips, g), below, g))
	v.table(&p, processPanel, processHead, processBody, processes, noProcess(d.snapshot))
	p.lines = append(p.lines, notes...)
	p.lines = append(p.lines, footer(v.settings, w))
	if len(p.lines) > h {
		p.lines = p.lines[:h]
	}
	for i := range p.lines {
		p.lines[i] = p.lines[i].padded(w, false)
	}
	return p
}

// table adds titles and visible rows to the picture, exactly height lines of them.
func (v *view) table(p *picture, which panel, head line, body []line, height int, empty string) {
	g := glyphSet(v.settings.ascii)
	p.lines = append(p.lines, append(text(plain, " "), focused(head, which == v.focus)...))
	p.regions[which] = region{len(p.lines), height}
	l := &v.lists[which]
	for i := l.offset; i < l.offset+height; i++ {
		switch {
		case i >= len(body) && i == 0:
			p.lines = append(p.lines, text(faint, "  "+empty))
		case i >= len(body):
			p.lines = append(p.lines, nil)
		case which == v.focus && i == l.index:
			p.selected = len(p.lines)
			p.lines = append(p.lines, append(text(notice, g.cursor), body[i]...))
		default:
			p.lines = append(p.lines, append(text(plain, " "), body[i]...))
		}
	}
}

// focused makes the titles of the table in focus stand out.
func focused(head line, focus bool) line {
	if !focus {
		return head
	}
	out := make(line, len(head))
	for i, s := range head {
		if s.role == title {
			s.role = strong
		}
		out[i] = s
	}
	return out
}

// position says which part of a table is visible, where that is not all of it.
func (v *view) position(which panel, name string, height int, g glyphs) string {
	n, first := len(v.keys[which]), v.lists[which].offset
	if n <= height || height <= 0 {
		return ""
	}
	what := name
	if which == processPanel && len(v.expanded) > 0 {
		what = "rows"
	}
	more := ""
	if first+height < n {
		more = " " + g.down
	}
	return fmt.Sprintf("%s %d-%d of %d%s", what, first+1, first+height, n, more)
}

// share splits the lines between the tables: all chips and processes if they
// fit, else at least two fifths for the processes.
func share(lines, chips, processes int) (chipLines, processLines int) {
	chips, processes = max(chips, 1), max(processes, 1)
	lines = max(lines, 2)
	if chips+processes > lines {
		chips = min(chips, lines-min(processes, max(lines*2/5, 1)))
	}
	return chips, lines - chips
}

// noProcess is what an empty process table says.
func noProcess(s *aggregator.Snapshot) string {
	if len(s.Ended) > 0 {
		return "no process uses the runtime now"
	}
	return "no process uses the runtime yet"
}

// noteLines are the legend of the marks of processes, and the warnings.
func noteLines(d *data, processes []*aggregator.ProcessSnapshot, o settings, w int) []line {
	g := glyphSet(o.ascii)
	var out []line
	add := func(s string) { out = append(out, line{{" " + clip(s, w-1, g.dots), notice}}) }
	for _, l := range packed(legend(processes, o), w-1) {
		add(l)
	}
	for i, n := range d.notes {
		if i == maxNotes-1 && len(d.notes) > maxNotes {
			add(fmt.Sprintf("and %d more", len(d.notes)-i))
			break
		}
		add(clean(n, o.ascii))
	}
	return out
}

// packed puts parts next to each other, in as few lines of w cells as hold them.
func packed(parts []string, w int) []string {
	var out []string
	for _, p := range parts {
		if n := len(out); n > 0 && width(out[n-1])+2+width(p) <= w {
			out[n-1] += "  " + p
			continue
		}
		out = append(out, p)
	}
	return out
}
