// Package widget has the parts of views: the table, bars, plots, frames, prompts, keys, colours, and the screen that
// sends only changes to the terminal. It does not depend on chips and processes.
package widget

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/gdamore/tcell/v2"
	"github.com/rivo/tview"

	"tt-memtrace/ui/text"
)

// Settings are the user's choices for all tables.
type Settings struct {
	// ASCII draws with 7-bit characters only. Exact writes numbers with all digits.
	ASCII, Exact bool
	// Hidden has the columns that a table does not show, and Ordered the column that its rows are sorted by. Both are
	// by the table's name.
	Hidden  map[string][]string
	Ordered map[string]string
}

// Field is a column of a table.
type Field[R any] struct {
	// Name is the title, and the column's name in the settings.
	Name  string
	Right bool
	Least int
	// Flex means that the column gets the cells that are left, at least Least.
	Flex bool
	// Rank is the order in which columns are dropped if there is no room: the highest first; 0 is never dropped.
	Rank int
	Cell func(*R) text.Line
	// Fit, if not nil, returns the cell in w cells if Cell is wider.
	Fit func(r *R, w int) text.Line
	// Order compares rows to sort them; nil if the column cannot be sorted by.
	Order func(a, b *R) int
}

// Table shows any number of rows that can be sorted, filtered and searched, and a pane with all of one row. It composes
// only visible rows.
type Table[R any, K comparable] struct {
	Settings *Settings
	// Order is the name of the field that rows are sorted by unless the user chooses another.
	Order string
	// Name is the table's name, What that of its rows, for titles. None is the text of an empty table.
	Name, What, None string
	Fields           []Field[R]
	Key              func(*R) K
	// Words appends the text of a row for filter and search.
	Words  func([]byte, *R) []byte
	Detail func(*R) []text.Line

	// Rows are the rows that match, in their order. total is the number of all rows.
	Rows  []R
	total int
	// Ready means that the rows have been read.
	Ready    bool
	List     List[K]
	Matching Pattern
	// found is the pattern of the last search; matches are the rows with it.
	found   Pattern
	matches []int
	// Follow keeps the last row, which is the newest, in view.
	Follow bool
	open   bool
	// cut means that the pane has no room for all of the row. whole, if not nil, shows all of it over the table.
	cut   bool
	whole *Pager
	// Choosing means that the list of columns is open. choice is its line with the cursor.
	Choosing bool
	choice   int
	// Note is a remark about the rows.
	Note string

	region Region
	// titles are the places of the titles in the last picture, for the mouse.
	titles []TitleAt
	// seen are the widths of the columns so far, at this width of the table. They only grow, so that columns do not
	// move all the time.
	seen  []int
	SeenW int
	exact bool
}

// TitleAt is the place of a column title in the table: from cell From up to but not including To.
type TitleAt struct{ Field, From, To int }

// Query is what the rows, their order and their texts depend on.
type Query struct {
	pattern      string
	sort         string
	ascii, exact bool
}

// Query returns the current filter, order and form of texts.
func (t *Table[R, K]) Query() Query {
	return Query{t.Matching.Text, t.ordered(), t.Settings.ASCII, t.Settings.Exact}
}

// ordered returns the name of the field that rows are sorted by, with a "-" before it if in reverse.
func (t *Table[R, K]) ordered() string { return cmp.Or(t.Settings.Ordered[t.Name], t.Order) }

// sorting returns the field that rows are sorted by, or -1, and whether in reverse.
func (t *Table[R, K]) sorting() (int, bool) {
	name, reverse := strings.CutPrefix(t.ordered(), "-")
	for i := range t.Fields {
		if name != "" && t.Fields[i].Name == name && t.Fields[i].Order != nil {
			return i, reverse
		}
	}
	return -1, false
}

// Arranger returns a function that filters and sorts rows. It may run outside of the screen's goroutine.
func (t *Table[R, K]) Arranger() func([]R) []R {
	p, words := t.Matching, t.Words
	by, reverse := t.sorting()
	var order func(a, b *R) int
	if by >= 0 {
		order = t.Fields[by].Order
	}
	return func(all []R) []R {
		rows := all
		if !p.Empty() {
			rows = nil
			var b []byte
			for i := range all {
				if b = words(b[:0], &all[i]); p.In(b) {
					rows = append(rows, all[i])
				}
			}
		}
		if order == nil {
			return rows
		}
		// Moving indices is cheaper than moving rows.
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

// Set sets the rows, and the number of all rows.
func (t *Table[R, K]) Set(rows []R, total int) {
	t.Rows, t.total, t.Ready = rows, total, true
	t.matches = nil
	if !t.found.Empty() && len(rows) <= maxMatched {
		t.matches = Matches(len(rows), t.finds(t.found))
	}
}

// maxMatched is the most rows for which the number of matches of a search is computed whenever they change.
const maxMatched = 10_000

// finds returns a function that reports whether a search matches a row.
func (t *Table[R, K]) finds(p Pattern) func(int) bool {
	var b []byte
	return func(i int) bool {
		b = t.Words(b[:0], &t.Rows[i])
		return p.In(b)
	}
}

// Forget removes the rows, because they are of something else. New ones are read soon.
func (t *Table[R, K]) Forget() { t.Rows, t.total, t.Ready, t.matches = nil, 0, false, nil }

// At returns the key of a row.
func (t *Table[R, K]) At(i int) K { return t.Key(&t.Rows[i]) }

// Chosen returns the selected row; nil if there is none.
func (t *Table[R, K]) Chosen() *R {
	if t.List.Index < len(t.Rows) {
		return &t.Rows[t.List.Index]
	}
	return nil
}

func (t *Table[R, K]) hidden(name string) bool {
	return slices.Contains(t.Settings.Hidden[t.Name], name)
}

// DetailIndent is the column of the values in a pane.
const DetailIndent = 12

// maxDetail is how many lines the pane has at most. It also has no more than half of the view.
const maxDetail = 20

// Compose draws the table.
func (t *Table[R, K]) Compose(w, h int) Picture {
	g := text.GlyphSet(t.Settings.ASCII)
	p := Picture{Selected: -1}
	var pane []text.Line
	room := h - 2
	t.cut = false
	if t.open && h >= 8 {
		if r := t.Chosen(); r != nil {
			detail := t.Detail(r)
			if t.whole != nil {
				t.whole.Lines = detail
			}
			pane = t.pane(detail, w-2, min(maxDetail, h/2-1))
		}
	}
	room -= len(pane)
	room = max(room, 0)
	if t.Follow {
		t.List.Move(len(t.Rows), len(t.Rows), t.At)
	}
	t.List.Sync(len(t.Rows), room, t.At)
	from := t.List.Offset
	visible := t.Rows[min(from, len(t.Rows)):min(from+room, len(t.Rows))]
	head, body := t.layout(visible, w-2)
	for i := range body {
		body[i] = t.found.Highlight(body[i])
	}
	p.Lines = append(p.Lines, append(text.Plain.Line(" "), head...))
	t.region = Region{1, room}
	for i := range room {
		switch {
		case i >= len(body) && i == 0:
			none := t.None
			if !t.Ready {
				none = text.GlyphSet(t.Settings.ASCII).Dots
			}
			if !t.Matching.Empty() && t.total > 0 {
				none = "nothing matches the filter"
			}
			p.Lines = append(p.Lines, text.Faint.Line("  "+none))
		case i >= len(body):
			p.Lines = append(p.Lines, nil)
		case from+i == t.List.Index:
			p.Selected = len(p.Lines)
			p.Lines = append(p.Lines, append(text.Notice.Line(g.Cursor), body[i]...))
		default:
			p.Lines = append(p.Lines, append(text.Plain.Line(" "), body[i]...))
		}
	}
	p.Lines = append(p.Lines, Rule(w, t.position(room), t.Note, g))
	for _, l := range pane {
		p.Lines = append(p.Lines, append(text.Plain.Line(" "), l...))
	}
	switch {
	case t.Choosing:
		Overlay(p.Lines, t.chooser(h), w)
		p.Selected = -1
	case t.whole != nil:
		Overlay(p.Lines, t.whole.Draw(w, h, g), w)
		p.Selected = -1
	}
	return p
}

// pane returns a row's detail in w cells and at most this many lines. If some do not fit, the last line says how many.
func (t *Table[R, K]) pane(detail []text.Line, w, most int) (pane []text.Line) {
	for _, l := range detail {
		pane = append(pane, l.Wrapped(w, DetailIndent)...)
	}
	if t.cut = len(pane) > most; t.cut {
		more := text.Plural(len(pane)-most+1, "more line", "more lines")
		pane = append(pane[:most-1:most-1], Pair("", text.Faint.Line(more+": enter shows them")))
	}
	return pane
}

// enter opens the pane; then, if the pane has no room for all of the row, shows all of it over the table; then closes
// both.
func (t *Table[R, K]) enter() {
	switch {
	case t.whole != nil || t.open && !t.cut:
		t.CloseDetail()
	case t.open:
		t.whole = &Pager{Title: "detail"}
	default:
		t.open = true
	}
}

// position says which rows are visible.
func (t *Table[R, K]) position(room int) string {
	n, o := len(t.Rows), t.Settings
	out := t.What + " " + text.Count(uint64(n), o.Exact)
	if n > room && room > 0 {
		out = fmt.Sprintf("%s %s-%s of %s", t.What, text.Digits(uint64(t.List.Offset+1)), text.Digits(uint64(min(t.List.Offset+room, n))), text.Digits(uint64(n)))
	}
	if !t.Matching.Empty() {
		out += fmt.Sprintf(" (of %s, filter: %s)", text.Digits(uint64(t.total)), text.Clip(text.Sanitize(t.Matching.Text, o.ASCII), 40, text.GlyphSet(o.ASCII).Dots))
	}
	if t.found.Empty() {
		return out
	}
	if found := Found(t.matches, t.List.Index); found != "" {
		out += " " + text.GlyphSet(o.ASCII).Rule + " " + found
	}
	return out
}

// layout returns the titles and the rows in w cells.
func (t *Table[R, K]) layout(rows []R, w int) (head text.Line, body []text.Line) {
	g := text.GlyphSet(t.Settings.ASCII)
	if len(t.seen) != len(t.Fields) || t.SeenW != w || t.exact != t.Settings.Exact {
		t.seen, t.SeenW, t.exact = make([]int, len(t.Fields)), w, t.Settings.Exact
	}
	by, reverse := t.sorting()
	cells := make([][]text.Line, len(t.Fields))
	var shown []int
	for i := range t.Fields {
		f := &t.Fields[i]
		if t.hidden(f.Name) {
			continue
		}
		cells[i] = make([]text.Line, len(rows))
		need := max(f.Least, text.Width(f.Name))
		if i == by {
			need = max(need, text.Width(f.Name)+1)
		}
		for r := range rows {
			cells[i][r] = f.Cell(&rows[r])
			if !f.Flex {
				need = max(need, cells[i][r].Width())
			}
		}
		t.seen[i] = max(t.seen[i], need)
		shown = append(shown, i)
	}
	// gap is the number of cells between two columns.
	const gap = 2
	for {
		total, worst := -gap, -1
		for _, i := range shown {
			total += t.seen[i] + gap
			if t.Fields[i].Rank > 0 && (worst < 0 || t.Fields[i].Rank > t.Fields[worst].Rank) {
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
		if t.Fields[i].Flex {
			flexible++
		}
	}
	for _, i := range shown {
		if t.Fields[i].Flex && rest > 0 {
			wide[i] += rest / flexible
		}
	}
	t.titles = t.titles[:0]
	all := Columns{N: len(rows)}
	at := 1
	for n, i := range shown {
		f := &t.Fields[i]
		c := Column{Title: text.Title.Line(f.Name), Right: f.Right, Cells: cells[i], Wide: wide[i]}
		if i == by {
			sign := g.Sorted
			if reverse {
				sign = g.Rising
			}
			c.Title = c.Title.Marked(sign, f.Right)
		}
		if n > 0 {
			c.Gap = gap
		}
		at += c.Gap
		t.titles = append(t.titles, TitleAt{i, at, at + wide[i]})
		at += wide[i]
		for r := range c.Cells {
			if f.Fit != nil && c.Cells[r].Width() > wide[i] {
				c.Cells[r] = f.Fit(&rows[r], wide[i])
			}
			c.Cells[r] = c.Cells[r].Shortened(wide[i], g.Dots)
		}
		all.Columns = append(all.Columns, c)
	}
	return all.Head(), all.Rows(0, all.N)
}

// chooser returns the list of columns in which the user hides and shows them.
func (t *Table[R, K]) chooser(h int) []text.Line {
	g := text.GlyphSet(t.Settings.ASCII)
	var out []text.Line
	for i := range t.Fields {
		box, cursor := "[x] ", "  "
		if t.hidden(t.Fields[i].Name) {
			box = "[ ] "
		}
		look := text.Plain
		if i == t.choice {
			cursor, look = g.Cursor+" ", text.Strong
		}
		out = append(out, text.Line{text.Notice.Span(cursor), text.Key.Span(box), look.Span(t.Fields[i].Name)})
	}
	out = append(out, nil, text.Faint.Line("space: show or hide  esc: close"))
	room := max(h-2, 1)
	return Frame(out, max(min(t.choice-room+3, len(out)-room), 0), room, "columns", "", g)
}

// Move moves the selection.
func (t *Table[R, K]) Move(m Motion) {
	if t.Choosing {
		t.choice += map[Motion]int{Up: -1, Down: 1, Home: -len(t.Fields), End: len(t.Fields)}[m]
		t.choice = max(min(t.choice, len(t.Fields)-1), 0)
		return
	}
	if t.whole != nil {
		t.whole.move(m)
		return
	}
	switch m {
	case Left, Right:
		return
	case Up, PageUp, Home:
		t.Follow = false
	}
	t.List.Step(m, t.region.Height, len(t.Rows), t.At)
}

// Bindings returns the keys of a table.
func (t *Table[R, K]) Bindings() []Binding {
	if t.Choosing {
		return []Binding{
			{Key: "space", Does: "show or hide the column", Brief: "show or hide", Runes: " ", Keys: []tcell.Key{tcell.KeyEnter}, Do: func(rune) { t.toggle() }},
			{Key: "c", Does: "close the list of columns", Brief: "close", Runes: "c", Keys: []tcell.Key{tcell.KeyEsc}, Do: func(rune) { t.Choosing = false }},
		}
	}
	list := []Binding{
		{Key: "enter", Does: "all fields of the selected row; again: the hidden ones", Brief: "detail", Keys: []tcell.Key{tcell.KeyEnter}, Do: func(rune) { t.enter() }},
	}
	if t.whole != nil {
		list = append(list, Binding{Key: "esc", Does: "close the detail", Keys: []tcell.Key{tcell.KeyEsc}, Do: func(rune) { t.CloseDetail() }})
	}
	if slices.ContainsFunc(t.Fields, func(f Field[R]) bool { return f.Order != nil }) {
		list = append(list,
			Binding{Key: "s  S", Does: "sort by the next column; reverse", Brief: "sort", Runes: "sS", Do: t.resort},
			Binding{Key: "<  >", Does: "sort by the column to the left, to the right", Runes: "<>", Do: t.resort})
	}
	return append(list, Binding{Key: "c", Does: "which columns to show", Brief: "columns", Runes: "c", Do: func(rune) { t.Choosing, t.choice = true, 0 }})
}

// CloseDetail closes what is shown over or below the table, and reports whether there was anything.
func (t *Table[R, K]) CloseDetail() bool {
	was := t.Choosing || t.open
	t.Choosing, t.open, t.whole = false, false, nil
	return was
}

// toggle shows or hides a column. One column always stays.
func (t *Table[R, K]) toggle() {
	name, list := t.Fields[t.choice].Name, slices.Clone(t.Settings.Hidden[t.Name])
	if i := slices.Index(list, name); i >= 0 {
		list = slices.Delete(list, i, i+1)
	} else if len(list) < len(t.Fields)-1 {
		list = append(list, name)
	}
	t.Settings.Hidden = changed(t.Settings.Hidden, t.Name, list)
}

// changed returns a copy of a map with one more value. Maps of settings are not changed in place, because copies of the
// settings share them.
func changed[V any](m map[string]V, name string, v V) map[string]V {
	out := map[string]V{name: v}
	for k, old := range m {
		if k != name {
			out[k] = old
		}
	}
	return out
}

// resort sorts by the next column; with < by the previous one; with S it reverses the order.
func (t *Table[R, K]) resort(r rune) {
	by, reverse := t.sorting()
	step := 1
	switch r {
	case 'S':
		if by >= 0 {
			t.sortBy(by, !reverse)
		}
		return
	case '<':
		step = -1
		by = max(by, 0)
	}
	n := len(t.Fields)
	for k := 1; k <= n; k++ {
		if i := ((by+step*k)%n + n) % n; t.Fields[i].Order != nil && !t.hidden(t.Fields[i].Name) {
			t.sortBy(i, false)
			return
		}
	}
}

func (t *Table[R, K]) sortBy(i int, reverse bool) {
	name := t.Fields[i].Name
	if reverse {
		name = "-" + name
	}
	t.Settings.Ordered = changed(t.Settings.Ordered, t.Name, name)
}

// Mouse selects, opens, scrolls and sorts.
func (t *Table[R, K]) Mouse(a tview.MouseAction, x, y int) bool {
	if t.Choosing {
		if a == tview.MouseLeftDown {
			t.Choosing = false
		}
		return true
	}
	if t.whole != nil {
		switch a {
		case tview.MouseScrollUp:
			t.whole.move(Up)
		case tview.MouseScrollDown:
			t.whole.move(Down)
		case tview.MouseLeftDown:
			t.CloseDetail()
		}
		return true
	}
	n := len(t.Rows)
	row := t.List.Offset + y - t.region.Top
	switch {
	case a == tview.MouseScrollUp:
		t.Follow = false
		t.List.Scroll(-WheelRows, t.region.Height, n, t.At)
	case a == tview.MouseScrollDown:
		t.List.Scroll(WheelRows, t.region.Height, n, t.At)
	case a == tview.MouseLeftDown && y == 0:
		for _, c := range t.titles {
			if x >= c.From && x < c.To && t.Fields[c.Field].Order != nil {
				by, reverse := t.sorting()
				t.sortBy(c.Field, by == c.Field && !reverse)
			}
		}
	case a == tview.MouseLeftDown && t.region.Has(y) && row < n:
		t.Follow = false
		t.List.Move(row-t.List.Index, n, t.At)
	case a == tview.MouseLeftDoubleClick && t.region.Has(y) && row < n:
		t.open = !t.open
	default:
		return false
	}
	return true
}

// Filter returns the pattern that rows have to match.
func (t *Table[R, K]) Filter() Pattern { return t.Matching }

// SetFilter shows only rows that match.
func (t *Table[R, K]) SetFilter(p Pattern) { t.Matching = p }

// Search selects the next row that matches: see Listed.
func (t *Table[R, K]) Search(p Pattern, forward, here bool) bool {
	i := Seek(len(t.Rows), t.List.Index, forward, here, t.finds(p))
	if t.found = p; i < 0 {
		t.found = Pattern{}
		return false
	}
	t.Follow = false
	t.List.Move(i-t.List.Index, len(t.Rows), t.At)
	t.matches = Matches(len(t.Rows), t.finds(p))
	return true
}

// ClearSearch takes the marks of a search away, and reports whether there were any.
func (t *Table[R, K]) ClearSearch() bool {
	was := !t.found.Empty()
	t.found = Pattern{}
	return was
}

// Pair returns a line of a pane with a name and a value.
func Pair(name string, value text.Line) text.Line {
	return append(text.Faint.Line(name).Padded(DetailIndent, false), value...)
}
