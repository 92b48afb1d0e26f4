package ui

import (
	"strings"
	"time"

	"github.com/gdamore/tcell/v2"
	"github.com/rivo/tview"
)

// frame is the whole screen as a tview primitive: header, one of the views,
// footer, and what lies over them. It knows nothing of where data comes from.
type frame struct {
	*tview.Box
	*state
	palette palette
	colors  int
	pages   [numPages]page
	current pageID
	// before is the view that esc goes back to.
	before []pageID
	help   bool
	// helpAt is the first line of the help that is in view.
	helpAt int
	prompt *prompt
	// searched is what n and N look for.
	searched pattern
	message  string
	// said is when that was, and now what the clock says, which goes on in a pause.
	said, now time.Time
	// pausing is what the user wants; data.paused is what is shown.
	pausing bool

	// quit ends the program, save writes a snapshot to a file and says where to.
	quit func()
	save func(screen string)

	// body is where the view is, and shown the last picture.
	body  region
	shown picture
}

// messageTime is how long a message stays.
const messageTime = 6 * time.Second

func newFrame(o settings, d data, colors int) *frame {
	f := &frame{Box: tview.NewBox(), state: &state{settings: o, data: d, history: newHistory()}, colors: colors, quit: func() {}, save: func(string) {}}
	f.say = func(s string) { f.message, f.said = s, f.now }
	f.open = f.show
	f.palette = newPalette(o.palette, colors)
	f.pages = [numPages]page{
		overviewPage: newOverview(f.state), chipPage: newChipView(f.state), chartsPage: newCharts(f.state), mapPage: newMapView(f.state),
		tablesPage: newTables(f.state), eventsPage: newEvents(f.state), processesPage: newHolders(f.state),
	}
	return f
}

// show goes to a view; esc comes back.
func (f *frame) show(id pageID) {
	if id == f.current {
		return
	}
	const most = 20
	if len(f.before) == most {
		f.before = f.before[1:]
	}
	f.before = append(f.before, f.current)
	f.current = id
}

// back closes what is open, or goes back to the view of before.
func (f *frame) back() {
	if l, ok := f.pages[f.current].(listed); ok && !l.filter().empty() {
		l.setFilter(pattern{})
		return
	}
	if c, ok := f.pages[f.current].(interface{ closeDetail() bool }); ok && c.closeDetail() {
		return
	}
	if n := len(f.before); n > 0 {
		f.current, f.before = f.before[n-1], f.before[:n-1]
	}
}

// update takes over new data and says whether that changes the picture.
func (f *frame) update(d data, now time.Time) bool {
	changed := !f.data.same(&d)
	f.data, f.now = d, now
	if f.message != "" && now.Sub(f.said) >= messageTime {
		f.message, changed = "", true
	}
	return changed
}

// compose draws the screen w cells wide and h lines high.
func (f *frame) compose(w, h int) picture {
	if w <= 0 || h <= 0 {
		return picture{selected: -1}
	}
	var foot []line
	if h >= 16 {
		foot = append(foot, f.tabs(w))
	}
	if h >= 3 {
		foot = append(foot, f.bottom(w))
	}
	f.body = region{1, max(h-1-len(foot), 0)}
	p := picture{lines: []line{header(&f.data, f.settings, w)}, selected: -1}
	if f.body.height > 0 {
		body := f.pages[f.current].compose(w, f.body.height)
		if body.selected >= 0 && body.selected < f.body.height {
			p.selected = body.selected + f.body.top
		}
		p.lines = append(p.lines, body.lines[:min(len(body.lines), f.body.height)]...)
		for len(p.lines) < f.body.top+f.body.height {
			p.lines = append(p.lines, nil)
		}
	}
	p.lines = append(p.lines, foot...)
	if f.help {
		overlay(p.lines, f.helpLines(h-2), w)
		p.selected = -1
	}
	for i := range p.lines {
		p.lines[i] = p.lines[i].padded(w, false)
	}
	return p
}

// overlay puts lines of equal width into the middle of others.
func overlay(under, over []line, w int) {
	if len(over) == 0 {
		return
	}
	n := over[0].width()
	x, y := max((w-n)/2, 0), max((len(under)-len(over))/2, 0)
	for i, l := range over {
		if y+i >= len(under) {
			return
		}
		whole := under[y+i].padded(w, false)
		left := whole.clipped(x).padded(x, false)
		right := whole.without(x + n)
		under[y+i] = append(append(left, l...), right.padded(max(w-x-n, 0), true)...)
	}
}

// tabs are the views with their keys, the current one marked.
func (f *frame) tabs(w int) line {
	out := text(plain, " ")
	for id, name := range pageNames {
		n := string(rune('1' + id))
		if pageID(id) == f.current {
			out = append(out, span{" " + n + " " + name + " ", tab})
		} else {
			out = append(out, span{" ", plain}, span{n, key}, span{" " + name + " ", plain})
		}
	}
	if out.width() <= w {
		return out
	}
	// Where there is no room for all names, numbers have to do.
	out = text(plain, " ")
	for id, name := range pageNames {
		n := string(rune('1' + id))
		if pageID(id) == f.current {
			out = append(out, span{" " + n + " " + name + " ", tab})
		} else {
			out = append(out, span{" " + n, key})
		}
	}
	return out
}

// bottom is the last line: what is being typed, a message, or the keys.
func (f *frame) bottom(w int) line {
	switch {
	case f.prompt != nil:
		return f.prompt.line(w, f.settings)
	case f.message != "":
		return line{{" " + clip(clean(f.message, f.settings.ascii), w-1, glyphSet(f.settings.ascii).dots), notice}}
	}
	var list []binding
	list = append(list, binding{key: "q", brief: "quit"}, binding{key: "?", brief: "help"})
	list = append(list, f.pages[f.current].bindings()...)
	if _, ok := f.pages[f.current].(listed); ok {
		list = append(list, binding{key: "f", brief: "filter"}, binding{key: "/", brief: "search"})
	}
	list = append(list, binding{key: "space", brief: "pause"}, binding{key: "u", brief: "units"}, binding{key: "r", brief: "requested/reserved"})
	return footer(list, f.settings, w)
}

// Draw paints the picture.
func (f *frame) Draw(screen tcell.Screen) {
	x, y, w, h := f.GetRect()
	f.shown = f.compose(w, h)
	for i, l := range f.shown.lines {
		look := func(r role) tcell.Style { return f.palette[r] }
		if i == f.shown.selected {
			look = f.palette.selected
		}
		paint(screen, x, y+i, l, look)
	}
}

// paint writes a line cell by cell: nothing in its text has a meaning to tview or the terminal.
func paint(screen tcell.Screen, x, y int, l line, look func(role) tcell.Style) {
	for _, s := range l {
		style := look(s.role)
		for rest := s.text; rest != ""; {
			var n int
			if rest, n = screen.Put(x, y, rest, style); n == 0 {
				break
			}
			x += n
		}
	}
}

// bindings are the keys that mean the same on every view.
func (f *frame) bindings() []binding {
	return []binding{
		{key: "1 to 7", does: "go to a view", runes: "1234567", do: func(r rune) { f.show(pageID(r - '1')) }},
		{key: ":", does: "go to a view by its name", runes: ":", do: func(rune) { f.prompt = f.naming() }},
		{key: "esc", does: "close, undo the filter, go back", keys: []tcell.Key{tcell.KeyEsc}, do: func(rune) { f.back() }},
		{key: "f", does: "filter rows by an expression", runes: "f", do: func(rune) { f.prompt = f.filtering() }},
		{key: "/", does: "search for an expression", runes: "/", do: func(rune) { f.prompt = f.searching() }},
		{key: "n  N", does: "the next match, the one before", runes: "nN", do: func(r rune) { f.searchOn(r == 'n') }},
		{key: "space", does: "pause, go on", runes: " ", do: func(rune) { f.pausing = !f.pausing }},
		{key: "r", does: "requested or reserved bytes", runes: "r", do: func(rune) { f.settings.requested = !f.settings.requested }},
		{key: "u", does: "rounded (1 K is 1024) or exact", runes: "u", do: func(rune) { f.settings.exact = !f.settings.exact }},
		{key: "p", does: "the next palette", runes: "p", do: func(rune) { f.nextPalette() }},
		{key: "a", does: "ASCII characters only, or all", runes: "a", do: func(rune) { f.settings.ascii = !f.settings.ascii }},
		{key: "w", does: "write what is shown to a file", runes: "w", do: func(rune) { f.save(f.text()) }},
		{key: "?", does: "this help", runes: "?", do: func(rune) { f.help, f.helpAt = true, 0 }},
		{key: "q, ctrl-C", does: "quit", runes: "q", keys: []tcell.Key{tcell.KeyCtrlC}, do: func(rune) { f.quit() }},
	}
}

// text is the last picture without colours.
func (f *frame) text() string {
	var b strings.Builder
	for _, l := range f.shown.lines {
		b.WriteString(strings.TrimRight(l.String(), " "))
		b.WriteByte('\n')
	}
	return b.String()
}

// nextPalette changes the colours.
func (f *frame) nextPalette() {
	f.settings.palette = paletteAfter(f.settings.palette)
	f.palette = newPalette(f.settings.palette, f.colors)
	note := "palette: " + f.settings.palette
	if f.colors == 0 {
		note += ", but there are no colours here"
	}
	f.say(note)
}

// key does what a key means, and says whether it means anything.
func (f *frame) key(e *tcell.EventKey) bool {
	switch {
	case e.Key() == tcell.KeyCtrlC:
		f.quit()
		return true
	case f.prompt != nil:
		if f.prompt.key(e) {
			f.prompt = nil
		}
		return true
	case f.help:
		if e.Key() == tcell.KeyEsc || e.Key() == tcell.KeyEnter || e.Key() == tcell.KeyRune && e.Rune() == '?' {
			f.help = false
			return true
		}
		if e.Key() == tcell.KeyRune && e.Rune() == 'q' {
			f.quit()
		}
		m, _ := motionOf(e)
		f.helpAt += map[motion]int{down: 1, up: -1, pageDown: 10, pageUp: -10, home: -1000, end: 1000}[m]
		return true
	}
	if m, ok := motionOf(e); ok {
		f.pages[f.current].move(m)
		return true
	}
	for _, list := range [][]binding{f.pages[f.current].bindings(), f.bindings()} {
		for i := range list {
			if b := &list[i]; b.do != nil && b.is(e) {
				r := rune(0)
				if e.Key() == tcell.KeyRune {
					r = e.Rune()
				}
				b.do(r)
				return true
			}
		}
	}
	return false
}

// click hands the mouse on to what is under it.
func (f *frame) click(a tview.MouseAction, e *tcell.EventMouse) bool {
	left, top, w, h := f.GetRect()
	x, y := e.Position()
	x, y = x-left, y-top
	switch {
	case f.help:
		if a == tview.MouseLeftDown {
			f.help = false
		}
		return true
	case f.prompt != nil:
		return true
	case f.body.has(y):
		return f.pages[f.current].mouse(a, x, y-f.body.top)
	case a == tview.MouseLeftDown && h >= 16 && y == h-2:
		at := 0
		for _, s := range f.tabs(w) {
			at += width(s.text)
			if id, ok := tabOf(s.text); ok && x < at && x >= at-width(s.text) {
				f.show(id)
				return true
			}
		}
	}
	return false
}

// tabOf is the view that a piece of the line of tabs is about.
func tabOf(s string) (pageID, bool) {
	for id, name := range pageNames {
		if t := strings.TrimSpace(s); strings.HasSuffix(t, name) || t == string(rune('1'+id)) {
			return pageID(id), true
		}
	}
	return 0, false
}

// InputHandler and MouseHandler are what tview calls; changed is told of what had an effect.
func (f *frame) InputHandler() func(*tcell.EventKey, func(tview.Primitive)) {
	return f.WrapInputHandler(func(e *tcell.EventKey, _ func(tview.Primitive)) { f.key(e) })
}

func (f *frame) MouseHandler() func(tview.MouseAction, *tcell.EventMouse, func(tview.Primitive)) (bool, tview.Primitive) {
	return f.WrapMouseHandler(func(a tview.MouseAction, e *tcell.EventMouse, _ func(tview.Primitive)) (bool, tview.Primitive) {
		return f.click(a, e), nil
	})
}

// work is what the view on the screen wants done.
func (f *frame) work() func(*reader) func() { return f.pages[f.current].work() }
