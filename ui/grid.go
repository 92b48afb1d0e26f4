package ui

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gdamore/tcell/v2"
	"github.com/rivo/tview"
)

// field is a column of a grid.
type field[R any] struct {
	// name is the title, and how the settings name the column.
	name  string
	right bool
	least int
	// flex gets what is left over, least at least.
	flex bool
	// rank says which columns go first where there is no room for all: those with the highest; 0 never goes.
	rank int
	cell func(*R) line
	// order sorts; nil is no order.
	order func(a, b *R) int
}

// grid is a table of any number of rows that can be sorted, filtered and searched, with a
// pane that tells all of one row. Only rows in view are ever written out.
type grid[R any, K comparable] struct {
	*state
	// name is of the table, what of its rows, for titles; none is what an empty one says.
	name, what, none string
	fields           []field[R]
	key              func(*R) K
	// words appends what filter and search look at.
	words  func([]byte, *R) []byte
	detail func(*R) []line

	// rows are those that match, in their order, of so many in all.
	rows  []R
	total int
	// ready: what there is has been looked at.
	ready    bool
	list     list[K]
	matching pattern
	// follow keeps the newest row, the last one, in view.
	follow bool
	open   bool
	// choosing: the list of columns is open, at the one with the cursor.
	choosing bool
	choice   int
	// note is what else is to be said about the rows.
	note string

	region region
	// titles are where the titles of the last picture are, for the mouse.
	titles []titleAt
	// seen are the widths that columns had at this width: they only grow, for a quiet picture.
	seen  []int
	seenW int
	exact bool
}

type titleAt struct{ field, from, to int }

// query is what decides which rows there are and in what order.
type query struct {
	pattern string
	sort    string
}

func (t *grid[R, K]) query() query { return query{t.matching.text, t.settings.ordered[t.name]} }

// sorting is the field that rows are sorted by, -1 for none, and whether upside down.
func (t *grid[R, K]) sorting() (int, bool) {
	name, reverse := strings.CutPrefix(t.settings.ordered[t.name], "-")
	for i := range t.fields {
		if name != "" && t.fields[i].name == name && t.fields[i].order != nil {
			return i, reverse
		}
	}
	return -1, false
}

// arranger filters and sorts rows, away from the screen's goroutine.
func (t *grid[R, K]) arranger() func([]R) []R {
	p, words := t.matching, t.words
	by, reverse := t.sorting()
	var order func(a, b *R) int
	if by >= 0 {
		order = t.fields[by].order
	}
	return func(all []R) []R {
		rows := all
		if !p.empty() {
			rows = nil
			var b []byte
			for i := range all {
				if b = words(b[:0], &all[i]); p.in(b) {
					rows = append(rows, all[i])
				}
			}
		}
		if order == nil {
			return rows
		}
		// To move numbers is cheaper than to move rows.
		index := make([]int32, len(rows))
		for i := range index {
			index[i] = int32(i)
		}
		sign := 1
		if reverse {
			sign = -1
		}
		slices.SortFunc(index, func(a, b int32) int {
			if c := order(&rows[a], &rows[b]); c != 0 {
				return c * sign
			}
			return int(a) - int(b)
		})
		out := make([]R, len(rows))
		for i, k := range index {
			out[i] = rows[k]
		}
		return out
	}
}

// set takes rows over, of so many in all.
func (t *grid[R, K]) set(rows []R, total int) { t.rows, t.total, t.ready = rows, total, true }

// forget lets go of rows of something else; what there is now is looked at soon.
func (t *grid[R, K]) forget() { t.rows, t.total, t.ready = nil, 0, false }

func (t *grid[R, K]) at(i int) K { return t.key(&t.rows[i]) }

// chosen is the selected row, nil if there is none.
func (t *grid[R, K]) chosen() *R {
	if t.list.index < len(t.rows) {
		return &t.rows[t.list.index]
	}
	return nil
}

func (t *grid[R, K]) hidden(name string) bool {
	return slices.Contains(t.settings.hidden[t.name], name)
}

// detailIndent is where the values of a pane begin.
const detailIndent = 12

// maxDetail lines at most, and no more than half of the view, go to the pane.
const maxDetail = 12

func (t *grid[R, K]) compose(w, h int) picture {
	g := glyphSet(t.settings.ascii)
	p := picture{selected: -1}
	var pane []line
	room := h - 2
	if t.open && h >= 8 {
		if r := t.chosen(); r != nil {
			for _, l := range t.detail(r) {
				pane = append(pane, l.wrapped(w-2, detailIndent)...)
			}
			pane = pane[:min(len(pane), maxDetail, h/2-1)]
		}
	}
	room -= len(pane)
	room = max(room, 0)
	if t.follow {
		t.list.move(len(t.rows), len(t.rows), t.at)
	}
	t.list.sync(len(t.rows), room, t.at)
	from := t.list.offset
	visible := t.rows[min(from, len(t.rows)):min(from+room, len(t.rows))]
	head, body := t.layout(visible, w-2)
	p.lines = append(p.lines, append(text(plain, " "), head...))
	t.region = region{1, room}
	for i := range room {
		switch {
		case i >= len(body) && i == 0:
			none := t.none
			if !t.ready {
				none = glyphSet(t.settings.ascii).dots
			}
			if !t.matching.empty() && t.total > 0 {
				none = "nothing matches the filter"
			}
			p.lines = append(p.lines, text(faint, "  "+none))
		case i >= len(body):
			p.lines = append(p.lines, nil)
		case from+i == t.list.index:
			p.selected = len(p.lines)
			p.lines = append(p.lines, append(text(notice, g.cursor), body[i]...))
		default:
			p.lines = append(p.lines, append(text(plain, " "), body[i]...))
		}
	}
	p.lines = append(p.lines, rule(w, t.position(room), t.note, g))
	for _, l := range pane {
		p.lines = append(p.lines, append(text(plain, " "), l...))
	}
	if t.choosing {
		overlay(p.lines, t.chooser(h), w)
		p.selected = -1
	}
	return p
}

// position says what part of the rows is in view.
func (t *grid[R, K]) position(room int) string {
	n, o := len(t.rows), t.settings
	out := t.what + " " + count(uint64(n), o.exact)
	if n > room && room > 0 {
		out = fmt.Sprintf("%s %s-%s of %s", t.what, digits(uint64(t.list.offset+1)), digits(uint64(min(t.list.offset+room, n))), digits(uint64(n)))
	}
	if !t.matching.empty() {
		out += fmt.Sprintf(" (of %s, filter: %s)", digits(uint64(t.total)), clip(clean(t.matching.text, o.ascii), 40, glyphSet(o.ascii).dots))
	}
	return out
}

// layout writes the rows in w cells.
func (t *grid[R, K]) layout(rows []R, w int) (head line, body []line) {
	g := glyphSet(t.settings.ascii)
	if len(t.seen) != len(t.fields) || t.seenW != w || t.exact != t.settings.exact {
		t.seen, t.seenW, t.exact = make([]int, len(t.fields)), w, t.settings.exact
	}
	by, reverse := t.sorting()
	cells := make([][]line, len(t.fields))
	var shown []int
	for i := range t.fields {
		f := &t.fields[i]
		if t.hidden(f.name) {
			continue
		}
		cells[i] = make([]line, len(rows))
		need := max(f.least, width(f.name))
		if i == by {
			need = max(need, width(f.name)+1)
		}
		for r := range rows {
			cells[i][r] = f.cell(&rows[r])
			if !f.flex {
				need = max(need, cells[i][r].width())
			}
		}
		t.seen[i] = max(t.seen[i], need)
		shown = append(shown, i)
	}
	// gap is what lies between two columns.
	const gap = 2
	for {
		total, worst := -gap, -1
		for _, i := range shown {
			total += t.seen[i] + gap
			if t.fields[i].rank > 0 && (worst < 0 || t.fields[i].rank > t.fields[worst].rank) {
				worst = i
			}
		}
		if total <= w || worst < 0 {
			break
		}
		shown = slices.DeleteFunc(shown, func(i int) bool { return i == worst })
	}
	wide := map[int]int{}
	rest, flexible := w, 0
	for n, i := range shown {
		wide[i] = t.seen[i]
		rest -= t.seen[i]
		if n > 0 {
			rest -= gap
		}
		if t.fields[i].flex {
			flexible++
		}
	}
	for _, i := range shown {
		if t.fields[i].flex && rest > 0 {
			wide[i] += rest / flexible
		}
	}
	t.titles = t.titles[:0]
	body = make([]line, len(rows))
	at := 1
	for n, i := range shown {
		f := &t.fields[i]
		name := text(title, f.name)
		if i == by {
			sign := g.sorted
			if reverse {
				sign = g.rising
			}
			name = name.marked(sign, f.right)
		}
		if n > 0 {
			head = append(head, span{spaces(gap), plain})
			at += gap
		}
		t.titles = append(t.titles, titleAt{i, at, at + wide[i]})
		at += wide[i]
		head = append(head, name.padded(wide[i], f.right)...)
		for r := range rows {
			if n > 0 {
				body[r] = append(body[r], span{spaces(gap), plain})
			}
			body[r] = append(body[r], cells[i][r].shortened(wide[i], g.dots).padded(wide[i], f.right)...)
		}
	}
	return head, body
}

// chooser is the list of columns, to say which are shown.
func (t *grid[R, K]) chooser(h int) []line {
	g := glyphSet(t.settings.ascii)
	var out []line
	for i := range t.fields {
		box, cursor := "[x] ", "  "
		if t.hidden(t.fields[i].name) {
			box = "[ ] "
		}
		look := plain
		if i == t.choice {
			cursor, look = g.cursor+" ", strong
		}
		out = append(out, line{{cursor, notice}, {box, key}, {t.fields[i].name, look}})
	}
	out = append(out, nil, text(faint, "space: show or hide  esc: close"))
	return framed(out, max(min(t.choice-h+5, len(out)-h+2), 0), max(h-2, 1), "columns", "", g)
}

func (t *grid[R, K]) move(m motion) {
	if t.choosing {
		t.choice += map[motion]int{up: -1, down: 1, home: -len(t.fields), end: len(t.fields)}[m]
		t.choice = max(min(t.choice, len(t.fields)-1), 0)
		return
	}
	switch m {
	case left, right:
		return
	case up, pageUp, home:
		t.follow = false
	}
	t.list.step(m, t.region.height, len(t.rows), t.at)
}

func (t *grid[R, K]) bindings() []binding {
	if t.choosing {
		return []binding{
			{key: "space", does: "show or hide the column", brief: "show or hide", runes: " ", keys: []tcell.Key{tcell.KeyEnter}, do: func(rune) { t.toggle() }},
			{key: "c", does: "close the list of columns", brief: "close", runes: "c", keys: []tcell.Key{tcell.KeyEsc}, do: func(rune) { t.choosing = false }},
		}
	}
	list := []binding{
		{key: "enter", does: "all of the selected row, or not", brief: "detail", keys: []tcell.Key{tcell.KeyEnter}, do: func(rune) { t.open = !t.open }},
	}
	if slices.ContainsFunc(t.fields, func(f field[R]) bool { return f.order != nil }) {
		list = append(list,
			binding{key: "s  S", does: "sort by the next column; the other way round", brief: "sort", runes: "sS", do: t.resort})
	}
	return append(list, binding{key: "c", does: "which columns to show", brief: "columns", runes: "c", do: func(rune) { t.choosing, t.choice = true, 0 }})
}

// closeDetail closes what lies over or below the table, and says whether there was anything.
func (t *grid[R, K]) closeDetail() bool {
	was := t.choosing || t.open
	t.choosing, t.open = false, false
	return was
}

// toggle shows or hides a column; one is always left.
func (t *grid[R, K]) toggle() {
	name, list := t.fields[t.choice].name, slices.Clone(t.settings.hidden[t.name])
	if i := slices.Index(list, name); i >= 0 {
		list = slices.Delete(list, i, i+1)
	} else if len(list) < len(t.fields)-1 {
		list = append(list, name)
	}
	t.settings.hidden = changed(t.settings.hidden, t.name, list)
}

// changed is a copy of a map with one more value: settings are compared and kept.
func changed[V any](m map[string]V, name string, v V) map[string]V {
	out := map[string]V{name: v}
	for k, old := range m {
		if k != name {
			out[k] = old
		}
	}
	return out
}

// resort goes on to the next column that sorts, or with S turns the order round.
func (t *grid[R, K]) resort(r rune) {
	by, reverse := t.sorting()
	if r == 'S' {
		if by >= 0 {
			t.sortBy(by, !reverse)
		}
		return
	}
	for n := range len(t.fields) + 1 {
		i := by + 1 + n
		if i >= len(t.fields) {
			i -= len(t.fields)
		}
		if i < len(t.fields) && t.fields[i].order != nil && !t.hidden(t.fields[i].name) {
			t.sortBy(i, false)
			return
		}
	}
}

func (t *grid[R, K]) sortBy(i int, reverse bool) {
	name := t.fields[i].name
	if reverse {
		name = "-" + name
	}
	t.settings.ordered = changed(t.settings.ordered, t.name, name)
}

func (t *grid[R, K]) mouse(a tview.MouseAction, x, y int) bool {
	if t.choosing {
		if a == tview.MouseLeftDown {
			t.choosing = false
		}
		return true
	}
	n := len(t.rows)
	row := t.list.offset + y - t.region.top
	switch {
	case a == tview.MouseScrollUp:
		t.follow = false
		t.list.scroll(-wheelRows, t.region.height, n, t.at)
	case a == tview.MouseScrollDown:
		t.list.scroll(wheelRows, t.region.height, n, t.at)
	case a == tview.MouseLeftDown && y == 0:
		for _, c := range t.titles {
			if x >= c.from && x < c.to && t.fields[c.field].order != nil {
				by, reverse := t.sorting()
				t.sortBy(c.field, by == c.field && !reverse)
			}
		}
	case a == tview.MouseLeftDown && t.region.has(y) && row < n:
		t.follow = false
		t.list.move(row-t.list.index, n, t.at)
	case a == tview.MouseLeftDoubleClick && t.region.has(y) && row < n:
		t.open = !t.open
	default:
		return false
	}
	return true
}

func (t *grid[R, K]) filter() pattern     { return t.matching }
func (t *grid[R, K]) setFilter(p pattern) { t.matching = p }

func (t *grid[R, K]) search(p pattern, forward, here bool) bool {
	var b []byte
	i := seek(len(t.rows), t.list.index, forward, here, func(i int) bool {
		b = t.words(b[:0], &t.rows[i])
		return p.in(b)
	})
	if i >= 0 {
		t.follow = false
		t.list.move(i-t.list.index, len(t.rows), t.at)
	}
	return i >= 0
}

// pair is a line of a pane: what something is, and its value.
func pair(name string, value line) line {
	return append(text(faint, name).padded(detailIndent, false), value...)
}

// work is that of the view that the grid is in.
func (t *grid[R, K]) work() func(*reader) func() { return nil }
