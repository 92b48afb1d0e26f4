package ui

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gdamore/tcell/v2"
	"github.com/rivo/tview"

	"tt-memtrace/aggregator"
	"tt-memtrace/aggregator/exact"
	"tt-memtrace/ui/text"
	"tt-memtrace/ui/widget"
)

// panel is one of the tables of the overview.
type panel uint8

const (
	chipPanel panel = iota
	processPanel
	numPanels
)

// overview shows all chips, and the processes below.
type overview struct {
	*state
	focus    panel
	lists    [numPanels]widget.List[rowKey]
	expanded map[processID]bool
	matching widget.Pattern
	// found is the pattern of the last search; empty if no row matched it, or the user cleared it.
	found widget.Pattern

	// keys, entries and columns are the rows and columns of the last picture. Motions, sorting and the mouse use them.
	keys    [numPanels][]rowKey
	entries []entry
	columns []columnID
	// memory is the memory that the user chose with v. mode is the user's choice of how to show the chips, shown how
	// they are shown now, and perLine how many of them are in a line.
	memory  metric
	mode    chipMode
	shown   chipMode
	perLine int
	// base is the baseline of the processes; nil if there is none.
	base *processBaseline
	// drawn are the charts for drawnOf.
	drawnOf chartKey
	drawn   []text.Line
	// looks are the looks of processes in the charts.
	looks   map[processID]int
	regions [numPanels]widget.Region
}

func newOverview(s *state) *overview {
	return &overview{state: s, focus: processPanel, expanded: map[processID]bool{}, looks: map[processID]int{}}
}

// sortBy sorts by the next visible column, or the previous one.
func (v *overview) sortBy(step int) {
	if n := len(v.columns); n > 0 {
		i := slices.Index(v.columns, v.settings.sort)
		v.settings.sort = v.columns[((max(i, 0)+step)%n+n)%n]
		if i < 0 {
			v.settings.sort = v.columns[0]
		}
	}
}

// expand shows or hides the chips of the selected process.
func (v *overview) expand(open bool) {
	i := v.lists[processPanel].Index
	if v.focus != processPanel || i >= len(v.entries) {
		return
	}
	e := &v.entries[i]
	if open {
		v.expanded[e.key.process] = true
		return
	}
	delete(v.expanded, e.key.process)
	// If the selected row disappears, select its process.
	l := &v.lists[processPanel]
	for i > 0 && v.entries[i].key.kind != processRow {
		i--
	}
	l.Move(i-l.Index, len(v.entries), v.keyOf(processPanel))
}

// toggle shows or hides the chips of the selected process.
func (v *overview) toggle() {
	i := v.lists[processPanel].Index
	if i >= len(v.entries) {
		return
	}
	if e := &v.entries[i]; len(e.process.Chips) == 0 && !placeless(e.process, e.ended) {
		v.notify(fmt.Sprintf("no chip of process %d is known: 7, and enter there, show the rest", e.process.PID))
		return
	}
	v.expand(!v.expanded[v.entries[i].key.process])
}

// At most maxNotes lines show reasons, and as many show notices; fewNotes each if the view has fewer lines than
// tallScreen. The tables need the rest.
const (
	maxNotes   = 3
	fewNotes   = 2
	tallScreen = 30
)

// Compose draws the view. It fits the positions in the lists to their new length, and keeps the rows, columns and
// regions of the picture for keys and the mouse.
func (v *overview) Compose(w, h int) widget.Picture {
	g := text.GlyphSet(v.settings.ASCII)
	d := v.data
	d.keep = v.keeps()
	if v.base != nil && d.now < v.base.at {
		v.base = nil // the user moved a replay back
	}
	d.base = v.base
	inner := w - 2 // a column for the cursor, and an equal margin

	v.entries = entries(&d, v.settings, func(id processID) bool { return v.expanded[id] })
	// On very wide terminals the charts are beside long tables.
	side := 0
	if w >= besideTables+wideCharts/2 && len(v.entries) > h/2 {
		side = w - besideTables
	}
	processTable := processTable(&d, v.settings, v.entries, inner-side)
	v.columns = v.columns[:0]
	for i := range processTable.Columns {
		if id := columnID(processTable.Columns[i].ID); id != unsorted {
			v.columns = append(v.columns, id)
		}
	}
	v.keys[processPanel] = nil
	for i := range v.entries {
		v.keys[processPanel] = append(v.keys[processPanel], v.entries[i].key)
	}
	most := maxNotes
	if h < tallScreen {
		most = fewNotes
	}
	notes := noteLines(&d, d.processes(), v.settings, w, most, ": :notices")
	var totals []text.Line
	if len(v.chips()) > 1 && h >= leastForTotals {
		totals = v.summary(w)
	}
	const fixed = 3 // two lines of titles, rule
	room := h - fixed - len(notes) - len(totals)

	shown, names, rows := v.arrangeChips(d, w, room, processTable.N)
	chips, processes := share(room, rows, processTable.N)
	spare := 0
	if rest := processes - max(processTable.N, 1); rest > leastChart {
		// One line is empty above the charts.
		spare = rest - 1
	} else if processTable.N > processes && processes >= leastForChart {
		spare = processes / 3 // not all processes fit anyway
	}
	var charts []text.Line
	if side == 0 {
		charts = v.charted(w, spare)
		processes -= len(charts)
	}
	v.lists[processPanel].Sync(processTable.N, processes, v.keyOf(processPanel))

	p := widget.Picture{Selected: -1}
	if v.shown == chipsGrid {
		v.lists[chipPanel].Sync(len(v.keys[chipPanel]), len(v.keys[chipPanel]), v.keyOf(chipPanel))
		v.gridTable(&p, w, chips)
	} else {
		v.lists[chipPanel].Sync(rows, chips, v.keyOf(chipPanel))
		chipTable := chipTable(&shown, v.settings, inner, screenTiers(&shown, v.history, v.memory, names))
		v.table(&p, chipPanel, &chipTable, chips, noChip(&d))
	}
	p.Lines = append(p.Lines, totals...)
	above := ""
	if v.shown != chipsGrid {
		above = v.position(chipPanel, "chips", chips, g)
	}
	p.Lines = append(p.Lines, widget.Rule(w, above, v.aboutProcesses(&d, processes), g))
	empty := noProcess(&d)
	if d.ended && len(d.snapshot.Ended) == 0 {
		empty = "no process used the runtime"
	}
	if !v.matching.Empty() {
		empty = "no process matches the filter"
	}
	from := len(p.Lines)
	v.table(&p, processPanel, &processTable, processes, empty)
	if side > 0 {
		for i, l := range v.charted(side-1, len(p.Lines)-from) {
			p.Lines[from+i] = append(p.Lines[from+i].Padded(w-side+1, false), l...)
		}
	}
	p.Lines = append(p.Lines, charts...)
	p.Lines = append(p.Lines, notes...)
	return p
}

// arrangeChips chooses how to show the chips: as the user chose or, with chipsAuto, a row for each if they fit above
// this many processes; otherwise a row for alike chips; otherwise a cell for each; and a row for each if nothing fits.
// It returns the data with the chips that have rows, the names of rows for several chips, and the number of lines.
func (v *overview) arrangeChips(d data, w, room, processes int) (shown data, names map[aggregator.Chip]string, rows int) {
	shown, v.shown = d, v.mode
	if fit, _ := share(room, len(v.chips()), processes); v.mode == chipsAuto {
		v.shown = chipsRows
		if fit < len(v.chips()) {
			if f, _ := folded(d, v.settings); len(f.snapshot.Chips) <= fit {
				v.shown = chipsFolded
			} else if v.shown = chipsGrid; (len(v.chips())+v.gridColumns(w)-1)/v.gridColumns(w) > fit {
				v.shown = chipsRows
			}
		}
	}
	if v.shown == chipsFolded {
		shown, names = folded(d, v.settings)
	}
	v.keys[chipPanel] = nil
	for i := range shown.snapshot.Chips {
		v.keys[chipPanel] = append(v.keys[chipPanel], rowKey{chip: shown.snapshot.Chips[i].Chip})
	}
	rows, v.perLine = len(shown.snapshot.Chips), 1
	if v.shown == chipsGrid {
		v.perLine = v.gridColumns(w)
		rows = (rows + v.perLine - 1) / v.perLine
	}
	return shown, names, rows
}

// aboutProcesses says which processes the table shows in this many rows.
func (v *overview) aboutProcesses(d *data, rows int) string {
	out := v.position(processPanel, "processes", rows, text.GlyphSet(v.settings.ASCII))
	if d.over() {
		out = strings.TrimSpace("ended: " + endedNote + "  " + out)
	}
	if !v.matching.Empty() {
		out = strings.TrimSpace("filter: " + text.Sanitize(v.matching.Text, v.settings.ASCII) + "  " + out)
	}
	if v.found.Empty() {
		return out
	}
	matches := widget.Matches(len(v.entries), v.finds(v.found))
	return strings.TrimSpace(widget.Found(matches, v.lists[processPanel].Index) + "  " + out)
}

// besideTables is the width of the process table if charts are beside it.
const besideTables = 152

// leastForChart is the height of the process table from which on it gives rows to charts, even if it has more
// processes.
const leastForChart = 18

// leastForTotals is the height from which on totals are shown.
const leastForTotals = 9

// gridTable adds a title and the grid of chips to the picture. The grid takes exactly height lines below the title.
func (v *overview) gridTable(p *widget.Picture, w, height int) {
	title := text.Title.Line(fmt.Sprintf(" CHIPS, %% of %s in use", metricNames[v.memory]))
	p.Lines = append(p.Lines, focused(title, v.focus == chipPanel))
	v.regions[chipPanel] = widget.Region{Top: len(p.Lines), Height: height}
	lines := v.grid(w)
	at := max(min(v.lists[chipPanel].Index/v.perLine-height+1, len(lines)-height), 0)
	for i := range height {
		if at+i < len(lines) {
			p.Lines = append(p.Lines, lines[at+i])
		} else {
			p.Lines = append(p.Lines, nil)
		}
	}
}

// keeps returns a function that reports whether the filter keeps a process; nil means all.
func (v *overview) keeps() func(*aggregator.ProcessSnapshot) bool {
	if v.matching.Empty() {
		return nil
	}
	return func(p *aggregator.ProcessSnapshot) bool { return v.matching.Matches(v.words(p)) }
}

// words returns the text of a process for filter and search.
func (v *overview) words(p *aggregator.ProcessSnapshot) string {
	return fmt.Sprintf("%d %s %s", p.PID, text.Command(p.Info.Command, v.settings.ASCII), chipRanges(p.Chips))
}

func (v *overview) keyOf(which panel) func(int) rowKey {
	return func(i int) rowKey { return v.keys[which][i] }
}

func (v *overview) Filter() widget.Pattern     { return v.matching }
func (v *overview) SetFilter(p widget.Pattern) { v.matching = p }

func (v *overview) Search(p widget.Pattern, forward, here bool) bool {
	l := &v.lists[processPanel]
	i := widget.Seek(len(v.entries), l.Index, forward, here, v.finds(p))
	if v.found = p; i < 0 {
		v.found = widget.Pattern{}
		return false
	}
	v.focus = processPanel
	l.Move(i-l.Index, len(v.entries), v.keyOf(processPanel))
	return true
}

// finds returns a function that reports whether a search matches a row. Only rows of processes match.
func (v *overview) finds(p widget.Pattern) func(int) bool {
	return func(i int) bool {
		return v.entries[i].key.kind == processRow && p.Matches(v.words(v.entries[i].process))
	}
}

func (v *overview) ClearSearch() bool {
	was := !v.found.Empty()
	v.found = widget.Pattern{}
	return was
}

func (v *overview) Move(m widget.Motion) {
	if v.focus == chipPanel && v.shown == chipsGrid {
		l, n := &v.lists[chipPanel], len(v.keys[chipPanel])
		if by := map[widget.Motion]int{widget.Left: -1, widget.Right: 1, widget.Up: -v.perLine, widget.Down: v.perLine}[m]; by != 0 {
			l.Move(by, n, v.keyOf(chipPanel))
			return
		}
	}
	switch m {
	case widget.Left:
		v.expand(false)
	case widget.Right:
		v.expand(true)
	default:
		l := &v.lists[v.focus]
		l.Step(m, v.regions[v.focus].Height, len(v.keys[v.focus]), v.keyOf(v.focus))
	}
}

func (v *overview) Bindings() []widget.Binding {
	return []widget.Binding{
		{Key: "enter", Does: "what a process has on each chip; all of a chip", Brief: "more", Keys: []tcell.Key{tcell.KeyEnter}, Do: func(rune) { v.enter() }},
		{Key: "right, left", Does: "show the chips of a process, fold them up"},
		{Key: "tab", Does: "go to the other table", Brief: "other table", Keys: []tcell.Key{tcell.KeyTab, tcell.KeyBacktab}, Do: func(rune) { v.focus = numPanels - 1 - v.focus }},
		{Key: "t", Does: "the charts of the process, or of the chip", Brief: "charts", Runes: "t", Do: func(rune) { v.charts() }},
		{Key: "b", Does: "set a baseline: how much of a memory processes gain from now on", Runes: "b", Do: func(rune) { v.rebase() }},
		{Key: "v", Does: "the memory of charts and grid: DRAM, L1, ...", Brief: "memory", Runes: "v", Do: func(rune) { v.nextMemory() }},
		{Key: "z", Does: "the next way to show chips: what fits; a row each; equal ones share a row; a grid of percentages", Brief: "chips", Runes: "z", Do: func(rune) { v.nextChipMode() }},
		{Key: "s", Does: "sort the processes by the next column", Brief: "sort", Runes: "s", Do: func(rune) { v.sortBy(1) }},
		{Key: "<  >", Does: "sort by the column to the left, to the right", Runes: "<>", Do: func(r rune) {
			if r == '<' {
				v.sortBy(-1)
			} else {
				v.sortBy(1)
			}
		}},
	}
}

// enter opens the selected row.
func (v *overview) enter() {
	if v.focus == processPanel {
		v.toggle()
		return
	}
	if i := v.lists[chipPanel].Index; i < len(v.keys[chipPanel]) {
		v.chip = v.keys[chipPanel][i].chip
		v.open(chipPage)
	}
}

// charts shows the history of the selected row.
func (v *overview) charts() {
	i := v.lists[v.focus].Index
	switch {
	case v.focus == processPanel && i < len(v.entries):
		v.chartsOf(v.chip, v.entries[i].key.process)
	case v.focus == chipPanel && i < len(v.keys[chipPanel]):
		v.chartsOf(v.keys[chipPanel][i].chip, processID{})
	}
}

// Mouse selects the row that is clicked, opens it on a double click, and scrolls the table under the mouse.
func (v *overview) Mouse(a tview.MouseAction, x, y int) bool {
	for which, r := range v.regions {
		if !r.Has(y) {
			continue
		}
		l, n, key := &v.lists[which], len(v.keys[which]), v.keyOf(panel(which))
		row := l.Offset + y - r.Top
		if panel(which) == chipPanel && v.shown == chipsGrid {
			row = (y-r.Top)*v.perLine + min(x/(gridCell+1), v.perLine-1)
		}
		switch a {
		case tview.MouseLeftDown:
			v.focus = panel(which)
			if row < n {
				l.Move(row-l.Index, n, key)
			}
		case tview.MouseLeftDoubleClick:
			if row < n {
				v.enter()
			}
		case tview.MouseScrollUp:
			l.Scroll(-widget.WheelRows, r.Height, n, key)
		case tview.MouseScrollDown:
			l.Scroll(widget.WheelRows, r.Height, n, key)
		default:
			return false
		}
		return true
	}
	return false
}

func (v *overview) work() func(*reader) func() { return nil }

// table adds a line of titles and the visible rows to the picture. The rows take exactly height lines.
func (v *overview) table(p *widget.Picture, which panel, t *widget.Columns, height int, empty string) {
	g := text.GlyphSet(v.settings.ASCII)
	p.Lines = append(p.Lines, append(text.Plain.Line(" "), focused(t.Head(), which == v.focus)...))
	v.regions[which] = widget.Region{Top: len(p.Lines), Height: height}
	l := &v.lists[which]
	body := t.Rows(l.Offset, l.Offset+height)
	if which == processPanel {
		for i := range body {
			body[i] = v.found.Highlight(body[i])
		}
	}
	for i := range height {
		switch {
		case i >= len(body) && l.Offset+i == 0:
			p.Lines = append(p.Lines, text.Faint.Line("  "+empty))
		case i >= len(body):
			p.Lines = append(p.Lines, nil)
		case which == v.focus && l.Offset+i == l.Index:
			p.Selected = len(p.Lines)
			p.Lines = append(p.Lines, append(text.Notice.Line(g.Cursor), body[i]...))
		default:
			p.Lines = append(p.Lines, append(text.Plain.Line(" "), body[i]...))
		}
	}
}

// focused returns titles as those of the table with the focus, if it has it.
func focused(head text.Line, focus bool) text.Line {
	if !focus {
		return head
	}
	out := make(text.Line, len(head))
	for i, s := range head {
		if s.Role == text.Title {
			s.Role = text.Strong
		}
		out[i] = s
	}
	return out
}

// position says which part of a table is visible; "" if all of it is.
func (v *overview) position(which panel, name string, height int, g text.Glyphs) string {
	n, first := len(v.keys[which]), v.lists[which].Offset
	if n <= height || height <= 0 {
		return ""
	}
	what := name
	if which == processPanel && len(v.expanded) > 0 {
		what = "rows"
	}
	more := ""
	if first+height < n {
		more = " " + g.Down
	}
	return fmt.Sprintf("%s %d-%d of %d%s", what, first+1, first+height, n, more)
}

// share divides the lines between the tables: all chips and processes if they fit; otherwise at least two fifths for
// the processes, or what they need if that is less.
func share(lines, chips, processes int) (chipLines, processLines int) {
	chips, processes = max(chips, 1), max(processes, 1)
	lines = max(lines, 2)
	if chips+processes > lines {
		chips = min(chips, lines-min(processes, max(lines*2/5, 1)))
	}
	return chips, lines - chips
}

// looking is the text of empty tables while the source still looks for processes.
const looking = "looking for processes that use the runtime"

// noChip returns the text of an empty chip table. Reading a process that holds much takes seconds, so it may say that.
func noChip(d *data) string {
	late := 0
	for i := range d.snapshot.Processes {
		if d.snapshot.Processes[i].Late {
			late++
		}
	}
	switch {
	case d.looking:
		return looking
	case late == 0 && (d.snapshot.HidesAnywhere() || aggregator.Affected(d.snapshot.Reasons, aggregator.HidesOnChip)):
		return "which chips are open is not known"
	case late == 0 && d.snapshot.NobodySeen():
		return "no chip was seen to be opened"
	case late == 0 && d.ownOnly:
		return "no process that this user can see has opened a chip yet"
	case late == 0:
		return "no chip has been opened yet"
	case late == 1:
		return "what a process has open is being read"
	}
	return fmt.Sprintf("what %d processes have open is being read", late)
}

// noProcess returns the text of an empty process table.
func noProcess(d *data) string {
	switch {
	case d.looking:
		return looking
	case d.snapshot.NobodySeen():
		return "no process was seen to use the runtime"
	case slices.ContainsFunc(d.snapshot.Reasons, func(r aggregator.Reason) bool { return r.Code == exact.ReasonNotTraced && !r.Unsure }):
		return "no process is traced: the processes that use the runtime, and why they are not traced, are below"
	case d.ownOnly:
		return "no process that this user can see uses the runtime"
	case len(d.snapshot.Ended) > 0:
		return "no process uses the runtime now"
	case len(d.waiting) > 0:
		return waitingFor(d.waiting)
	}
	return "no process uses the runtime yet"
}

// waitingFor says which traced processes do not use the runtime yet.
func waitingFor(pids []uint32) string {
	if len(pids) == 1 {
		return fmt.Sprintf("process %d does not use the runtime yet: waiting", pids[0])
	}
	return "processes " + strings.Trim(strings.ReplaceAll(fmt.Sprint(pids), " ", ", "), "[]") + " do not use the runtime yet: waiting"
}

// lookFor sets looking and waiting, from whether the source is ready and the PIDs to trace.
func (d *data) lookFor(ready <-chan struct{}, pids []uint32) {
	if d.ended {
		return
	}
	select {
	case <-ready:
	default:
		// Known processes are shown while the source looks for others.
		d.looking = ready != nil && len(d.snapshot.Processes)+len(d.snapshot.Ended) == 0
		return
	}
	for _, pid := range pids {
		is := func(p aggregator.ProcessSnapshot) bool { return p.PID == pid }
		if !slices.ContainsFunc(d.snapshot.Processes, is) && !slices.ContainsFunc(d.snapshot.Ended, is) {
			d.waiting = append(d.waiting, pid)
		}
	}
}

// nothingRead reports whether no process was read although there may be some, so there are no numbers that could be
// exact: the source still looks, other users may have some, or a process to trace does not use the runtime yet.
func (d *data) nothingRead() bool {
	return d.looking || d.nothingSeen() || len(d.waiting) > 0 && len(d.snapshot.Processes)+len(d.snapshot.Ended) == 0
}

// nothingSeen reports whether this user may not see other users' processes, and no process was seen to use the runtime.
func (d *data) nothingSeen() bool {
	return d.ownOnly && len(d.snapshot.Processes)+len(d.snapshot.Ended) == 0
}

// noteLines returns the reasons of the processes' marks, and the notices: at most this many of each. more says where
// the others, and the rest of a cut reason, are shown; "" if nowhere, and then reasons are wrapped, not cut. Notices
// are cut at the width.
func noteLines(d *data, processes []*aggregator.ProcessSnapshot, o settings, w, most int, more string) []text.Line {
	g := text.GlyphSet(o.ASCII)
	var out []text.Line
	add := func(s string) { out = append(out, text.Line{text.Notice.Span(" " + text.Clip(s, w-1, g.Dots))}) }
	why := text.Pack(legend(d.snapshot, processes, o), w-1)
	for i, l := range why {
		if i == most-1 && len(why) > most {
			n := text.Plural(len(why)-i, "more reason", "more reasons")
			add("and " + n + strings.ReplaceAll(more, "notices", "reasons"))
			break
		}
		if more == "" {
			out = append(out, text.Notice.Line(" "+l).Wrapped(w, 3)...)
		} else {
			add(clippedReason(l, w-1, g))
		}
	}
	notes := d.current()
	if len(d.waiting) > 0 && len(d.snapshot.Processes)+len(d.snapshot.Ended) > 0 {
		notes = append(notes[:len(notes):len(notes)], waitingFor(d.waiting)) // an empty table has the same text
	}
	for i, n := range notes {
		if i == most-1 && len(notes) > most {
			add(fmt.Sprintf("and %d more%s", len(notes)-i, more))
			break
		}
		add(text.Sanitize(n, o.ASCII))
	}
	return out
}

// clippedReason returns a reason in w cells. If it is cut, the command that shows all of it follows.
func clippedReason(s string, w int, g text.Glyphs) string {
	const all = " :reasons"
	if text.Width(s) <= w {
		return s
	}
	return text.Clip(s, max(w-len(all), 0), g.Dots) + all
}
