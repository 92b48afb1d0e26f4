package ui

import (
	"fmt"
	"strings"

	"github.com/gdamore/tcell/v2"
	"github.com/rivo/tview"

	"tt-memtrace/aggregator"
)

// panel is one of the tables of the overview.
type panel uint8

const (
	chipPanel panel = iota
	processPanel
	numPanels
)

// overview shows all chips, and below the processes.
type overview struct {
	*state
	focus    panel
	lists    [numPanels]list[rowKey]
	expanded map[processID]bool
	matching pattern

	// keys and columns are those of the last picture: what keys and mouse refer to.
	keys    [numPanels][]rowKey
	entries []entry
	columns []columnID
	regions [numPanels]region
}

func newOverview(s *state) *overview {
	return &overview{state: s, focus: processPanel, expanded: map[processID]bool{}}
}

// nextSort goes on to the next column that is on the screen.
func (v *overview) nextSort() {
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
func (v *overview) expand(open bool) {
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
	l.move(i-l.index, len(v.entries), v.keyOf(processPanel))
}

// toggle expands the selected process, or folds it up again.
func (v *overview) toggle() {
	if i := v.lists[processPanel].index; i < len(v.entries) {
		v.expand(!v.expanded[v.entries[i].key.process])
	}
}

// region is where the rows of a table are on the screen.
type region struct{ top, height int }

func (r region) has(y int) bool { return y >= r.top && y < r.top+r.height }

// maxNotes lines at most go to warnings: the tables are what the screen is for.
const maxNotes = 3

// compose draws the page. Only the positions in the lists change by that, to
// fit what there is to see.
func (v *overview) compose(w, h int) picture {
	g := glyphSet(v.settings.ascii)
	d := v.data
	d.keep = v.keeps()
	inner := w - 2 // the cursor's place, and the same on the other side

	chipTable := chipTable(&d, v.settings, inner, screenTiers(&d, v.history))
	v.entries = entries(&d, v.settings, func(id processID) bool { return v.expanded[id] })
	processTable := processTable(&d, v.settings, v.entries, inner)
	v.columns = v.columns[:0]
	for i := range processTable.columns {
		if id := processTable.columns[i].id; id != unsorted {
			v.columns = append(v.columns, id)
		}
	}
	v.keys = [numPanels][]rowKey{}
	for i := range d.snapshot.Chips {
		v.keys[chipPanel] = append(v.keys[chipPanel], rowKey{chip: d.snapshot.Chips[i].Chip})
	}
	for i := range v.entries {
		v.keys[processPanel] = append(v.keys[processPanel], v.entries[i].key)
	}

	notes := noteLines(&d, d.processes(), v.settings, w)
	const fixed = 3 // two lines of titles, rule
	chips, processes := share(h-fixed-len(notes), chipTable.n, processTable.n)
	v.lists[chipPanel].sync(chipTable.n, chips, v.keyOf(chipPanel))
	v.lists[processPanel].sync(processTable.n, processes, v.keyOf(processPanel))

	p := picture{selected: -1}
	v.table(&p, chipPanel, &chipTable, chips, "no chip has been opened yet")
	below := v.position(processPanel, "processes", processes, g)
	if d.over() {
		below = strings.TrimSpace("ended: " + endedNote + "  " + below)
	}
	if !v.matching.empty() {
		below = strings.TrimSpace("filter: " + clean(v.matching.text, v.settings.ascii) + "  " + below)
	}
	p.lines = append(p.lines, rule(w, v.position(chipPanel, "chips", chips, g), below, g))
	empty := noProcess(d.snapshot)
	if !v.matching.empty() {
		empty = "no process matches the filter"
	}
	v.table(&p, processPanel, &processTable, processes, empty)
	p.lines = append(p.lines, notes...)
	return p
}

// keeps says which processes the filter leaves, nil for all.
func (v *overview) keeps() func(*aggregator.ProcessSnapshot) bool {
	if v.matching.empty() {
		return nil
	}
	return func(p *aggregator.ProcessSnapshot) bool { return v.matching.matches(v.words(p)) }
}

// words are what filter and search look at.
func (v *overview) words(p *aggregator.ProcessSnapshot) string {
	return fmt.Sprintf("%d %s %s", p.PID, command(p.Info.Command, v.settings.ascii), chipRanges(p.Chips))
}

func (v *overview) keyOf(which panel) func(int) rowKey {
	return func(i int) rowKey { return v.keys[which][i] }
}

func (v *overview) filter() pattern     { return v.matching }
func (v *overview) setFilter(p pattern) { v.matching = p }

func (v *overview) search(p pattern, forward, here bool) bool {
	l := &v.lists[processPanel]
	i := seek(len(v.entries), l.index, forward, here, func(i int) bool {
		return v.entries[i].key.kind == processRow && p.matches(v.words(v.entries[i].process))
	})
	if i >= 0 {
		v.focus = processPanel
		l.move(i-l.index, len(v.entries), v.keyOf(processPanel))
	}
	return i >= 0
}

// seek is the next of n rows from the one at, in a circle, that is a match, or -1.
func seek(n, at int, forward, here bool, match func(int) bool) int {
	by := 1
	if !forward {
		by = -1
	}
	for k := range n + 1 {
		if n == 0 || k == 0 && !here {
			continue
		}
		if i := ((at+by*k)%n + n) % n; match(i) {
			return i
		}
	}
	return -1
}

func (v *overview) move(m motion) {
	switch m {
	case left:
		v.expand(false)
	case right:
		v.expand(true)
	default:
		l := &v.lists[v.focus]
		l.step(m, v.regions[v.focus].height, len(v.keys[v.focus]), v.keyOf(v.focus))
	}
}

func (v *overview) bindings() []binding {
	return []binding{
		{key: "enter", does: "what a process has on each chip; all of a chip", brief: "more", keys: []tcell.Key{tcell.KeyEnter}, do: func(rune) { v.enter() }},
		{key: "right, left", does: "show the chips of a process, fold them up"},
		{key: "tab", does: "go to the other table", brief: "other table", keys: []tcell.Key{tcell.KeyTab, tcell.KeyBacktab}, do: func(rune) { v.focus = numPanels - 1 - v.focus }},
		{key: "t", does: "the charts of the process, or of the chip", brief: "charts", runes: "t", do: func(rune) { v.charts() }},
		{key: "s", does: "sort the processes by the next column", brief: "sort", runes: "s", do: func(rune) { v.nextSort() }},
	}
}

// enter opens what is selected.
func (v *overview) enter() {
	if v.focus == processPanel {
		v.toggle()
		return
	}
	if i := v.lists[chipPanel].index; i < len(v.keys[chipPanel]) {
		v.chip = v.keys[chipPanel][i].chip
		v.open(chipPage)
	}
}

// charts shows the history of what is selected.
func (v *overview) charts() {
	i := v.lists[v.focus].index
	switch {
	case v.focus == processPanel && i < len(v.entries):
		v.chartsOf(v.chip, v.entries[i].key.process)
	case v.focus == chipPanel && i < len(v.keys[chipPanel]):
		v.chartsOf(v.keys[chipPanel][i].chip, processID{})
	}
}

// wheelRows is how far a turn of the wheel goes.
const wheelRows = 3

// mouse selects the row that is clicked, opens it on a double click, and scrolls the table under the mouse.
func (v *overview) mouse(a tview.MouseAction, _, y int) bool {
	for which, r := range v.regions {
		if !r.has(y) {
			continue
		}
		l, n, key := &v.lists[which], len(v.keys[which]), v.keyOf(panel(which))
		row := l.offset + y - r.top
		switch a {
		case tview.MouseLeftDown:
			v.focus = panel(which)
			if row < n {
				l.move(row-l.index, n, key)
			}
		case tview.MouseLeftDoubleClick:
			if row < n {
				v.enter()
			}
		case tview.MouseScrollUp:
			l.scroll(-wheelRows, r.height, n, key)
		case tview.MouseScrollDown:
			l.scroll(wheelRows, r.height, n, key)
		default:
			return false
		}
		return true
	}
	return false
}

func (v *overview) work() func(*reader) func() { return nil }

// table adds titles and visible rows to the picture, exactly height lines of them.
func (v *overview) table(p *picture, which panel, t *table, height int, empty string) {
	g := glyphSet(v.settings.ascii)
	p.lines = append(p.lines, append(text(plain, " "), focused(t.head(), which == v.focus)...))
	v.regions[which] = region{len(p.lines), height}
	l := &v.lists[which]
	body := t.rows(l.offset, l.offset+height)
	for i := range height {
		switch {
		case i >= len(body) && l.offset+i == 0:
			p.lines = append(p.lines, text(faint, "  "+empty))
		case i >= len(body):
			p.lines = append(p.lines, nil)
		case which == v.focus && l.offset+i == l.index:
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
func (v *overview) position(which panel, name string, height int, g glyphs) string {
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
