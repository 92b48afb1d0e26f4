package ui

import (
	"strings"
	"time"

	"github.com/gdamore/tcell/v2"
	"github.com/rivo/tview"

	"tt-memtrace/ui/text"
	"tt-memtrace/ui/widget"
)

// frame is the whole screen as a tview primitive: header, one of the views, footer, and pager or help over them. It
// does not depend on the source of the data.
type frame struct {
	*tview.Box
	*state
	palette widget.Palette
	colors  int
	pages   [numPages]page
	current pageID
	// previous are the views that esc goes back to, the latest last.
	previous []pageID
	help     bool
	// helpAt is the first visible line of the help.
	helpAt int
	prompt *widget.Prompt
	// pager is shown over the view; nil if none is.
	pager *widget.Pager
	// player controls a replay; nil if there is none.
	player Player
	// further returns a line that names what shows more of a replay than the screen; it may be nil.
	further func() string
	// read is the number of the last failure whose reason the user has seen.
	read uint64
	// searched is the pattern that n and N search for.
	searched widget.Pattern
	message  string
	// messageAt is when the message was shown. now is the clock's time, which also advances in a pause.
	messageAt, now time.Time
	// pausing means that the user wants to pause; data.paused, that the shown state is paused.
	pausing bool

	// quit ends the program, suspend stops it until it is continued, save writes a snapshot to a file and shows its
	// name.
	quit    func()
	suspend func()
	save    func(screen string)

	// body is where the view is drawn, and shown the last picture.
	body  widget.Region
	shown widget.Picture
}

// messageTime is how long a message stays.
const messageTime = 6 * time.Second

func newFrame(o settings, d data, colors int) *frame {
	f := &frame{Box: tview.NewBox(), state: &state{settings: o, data: d, history: newHistory()}, colors: colors, quit: func() {}, suspend: func() {}, save: func(string) {}}
	f.notify = func(s string) { f.message, f.messageAt = s, f.now }
	f.open = f.show
	f.palette = widget.NewPalette(o.palette, colors)
	f.pages = [numPages]page{
		overviewPage: newOverview(f.state), chipPage: newChipView(f.state), chartsPage: newCharts(f.state), mapPage: newMapView(f.state),
		tablesPage: newTables(f.state), eventsPage: newEvents(f.state), processesPage: newHolders(f.state), sitesPage: newSites(f.state),
	}
	return f
}

// show shows a view; esc goes back.
func (f *frame) show(id pageID) {
	if id == f.current {
		return
	}
	const most = 20
	if len(f.previous) == most {
		f.previous = f.previous[1:]
	}
	f.previous = append(f.previous, f.current)
	f.current = id
}

// back undoes one thing: it clears the search or the filter, or closes the detail. If there is none of these, it shows
// the previous view.
func (f *frame) back() {
	if l, ok := f.pages[f.current].(widget.Listed); ok && l.ClearSearch() {
		return
	}
	if l, ok := f.pages[f.current].(widget.Listed); ok && !l.Filter().Empty() {
		l.SetFilter(widget.Pattern{})
		return
	}
	if c, ok := f.pages[f.current].(interface{ CloseDetail() bool }); ok && c.CloseDetail() {
		return
	}
	if n := len(f.previous); n > 0 {
		f.current, f.previous = f.previous[n-1], f.previous[:n-1]
	}
}

// update sets new data, and reports whether the picture changes. When a replay ends, it shows the summary.
func (f *frame) update(d data, now time.Time) bool {
	changed := !f.data.same(&d)
	if d.recorded && d.ended && !f.data.ended && d.snapshot.Counters.Events > 0 {
		defer f.summary()
		changed = true
	}
	f.data, f.now = d, now
	if now.Before(f.messageAt) {
		f.messageAt = now // the user moved a replay back
	}
	if f.message != "" && now.Sub(f.messageAt) >= messageTime {
		f.message, changed = "", true
	}
	return changed
}

// compose draws the screen w cells wide and h lines high.
func (f *frame) compose(w, h int) widget.Picture {
	if w <= 0 || h <= 0 {
		return widget.Picture{Selected: -1}
	}
	f.width = w
	var foot []text.Line
	if h >= 16 {
		tabs := f.tabs(w)
		p := f.progress(w - tabs.Width() - 2)
		if p == nil && f.player != nil {
			// Prefer the position of a replay to the names of the views.
			if narrow := f.tabs(0); f.progress(w-narrow.Width()-2) != nil {
				tabs, p = narrow, f.progress(w-narrow.Width()-2)
			}
		}
		if p != nil {
			tabs = append(tabs.Padded(w-p.Width()-1, false), p...)
		}
		foot = append(foot, tabs)
	}
	if h >= 3 {
		foot = append(foot, f.bottom(w))
	}
	p := widget.Picture{Lines: []text.Line{header(&f.data, f.settings, w)}, Selected: -1}
	if last := f.data.failure(); last != nil && last.number > f.read && h >= 5 {
		p.Lines = append(p.Lines, last.headline(f.state, w))
	}
	f.body = widget.Region{Top: len(p.Lines), Height: max(h-len(p.Lines)-len(foot), 0)}
	if f.body.Height > 0 {
		body := f.pages[f.current].Compose(w, f.body.Height)
		if body.Selected >= 0 && body.Selected < f.body.Height {
			p.Selected = body.Selected + f.body.Top
		}
		p.Lines = append(p.Lines, body.Lines[:min(len(body.Lines), f.body.Height)]...)
		for len(p.Lines) < f.body.Top+f.body.Height {
			p.Lines = append(p.Lines, nil)
		}
	}
	p.Lines = append(p.Lines, foot...)
	if f.help {
		widget.Overlay(p.Lines, f.helpLines(h-2), w)
		p.Selected = -1
	}
	g := text.GlyphSet(f.settings.ASCII)
	switch {
	case f.pager != nil:
		widget.Overlay(p.Lines, f.pager.Draw(w, h, g), w)
		p.Selected = -1
	case f.prompt != nil && f.prompt.Hints != nil:
		if hints := f.prompt.Hints(); len(hints) > 0 && h > 8 {
			over := widget.Frame(hints, 0, min(len(hints), h-6), "commands", " tab completes ", g)
			widget.OverlayAt(p.Lines, over, w, 1, len(p.Lines)-1-len(over))
			p.Selected = -1
		}
	}
	for i := range p.Lines {
		if p.Lines[i].Width() > w { // without dots, a cut number would look like another number
			p.Lines[i] = p.Lines[i].Trimmed().Shortened(w, g.Dots)
		}
		p.Lines[i] = p.Lines[i].Padded(w, false)
	}
	return p
}

// tabs returns the views with their keys, the current one marked.
func (f *frame) tabs(w int) text.Line {
	out := text.Plain.Line(" ")
	for id, name := range pageNames {
		n := string(rune('1' + id))
		if pageID(id) == f.current {
			out = append(out, text.Tab.Span(" "+n+" "+name+" "))
		} else {
			out = append(out, text.Plain.Span(" "), text.Key.Span(n), text.Plain.Span(" "+name+" "))
		}
	}
	if out.Width() <= w {
		return out
	}
	// If there is no room for the names, show the keys alone.
	out = text.Plain.Line(" ")
	for id, name := range pageNames {
		n := string(rune('1' + id))
		if pageID(id) == f.current {
			out = append(out, text.Tab.Span(" "+n+" "+name+" "))
		} else {
			out = append(out, text.Key.Span(" "+n))
		}
	}
	return out
}

// bottom returns the last line of the screen: a prompt, a message, or the keys.
func (f *frame) bottom(w int) text.Line {
	switch {
	case f.prompt != nil:
		return f.prompt.Line(w, f.settings.ASCII)
	case f.message != "":
		return text.Line{text.Notice.Span(" " + text.Clip(text.Sanitize(f.message, f.settings.ASCII), w-1, text.GlyphSet(f.settings.ASCII).Dots))}
	}
	var list []widget.Binding
	list = append(list, widget.Binding{Key: "q", Brief: "quit"}, widget.Binding{Key: "?", Brief: "help"})
	list = append(list, f.pages[f.current].Bindings()...)
	if _, ok := f.pages[f.current].(widget.Listed); ok {
		list = append(list, widget.Binding{Key: "f", Brief: "filter"}, widget.Binding{Key: "/", Brief: "search"})
	}
	list = append(list, widget.Binding{Key: "space", Brief: "pause"}, widget.Binding{Key: "u", Brief: "units"}, widget.Binding{Key: "r", Brief: "requested/reserved"})
	return widget.Footer(list, text.GlyphSet(f.settings.ASCII), w)
}

// Draw paints the picture.
func (f *frame) Draw(screen tcell.Screen) {
	x, y, w, h := f.GetRect()
	f.shown = f.compose(w, h)
	for i, l := range f.shown.Lines {
		look := func(r text.Role) tcell.Style { return f.palette[r] }
		if i == f.shown.Selected {
			look = f.palette.Selected
		}
		widget.Paint(screen, x, y+i, l, look)
	}
}

// bindings returns the keys that do the same in every view.
func (f *frame) bindings() []widget.Binding {
	return append([]widget.Binding{
		{Key: "1 to " + viewKeys[numPages-1:numPages], Does: "go to a view", Runes: viewKeys[:numPages], Do: func(r rune) { f.show(pageID(r - '1')) }},
		{Key: "!", Does: "why allocations failed, the newest first", Runes: "!", Do: func(rune) { f.why() }},
		{Key: ":", Does: "a command: a view's name, q, chip 5, map 3, notices", Runes: ":", Do: func(rune) { f.prompt = f.commanding() }},
		{Key: "esc", Does: "close, undo the filter, go back", Keys: []tcell.Key{tcell.KeyEsc}, Do: func(rune) { f.back() }},
		{Key: "f, F4", Does: "filter rows by a regular expression", Runes: "f", Keys: []tcell.Key{tcell.KeyF4}, Do: func(rune) { f.prompt = f.filtering() }},
		{Key: "/, F3", Does: "search for a regular expression", Runes: "/", Keys: []tcell.Key{tcell.KeyF3}, Do: func(rune) { f.prompt = f.searching() }},
		{Key: "n  N", Does: "the next match, the previous one", Runes: "nN", Do: func(r rune) { f.searchOn(r == 'n') }},
		{Key: "space", Does: "pause, continue", Runes: " ", Do: func(rune) { f.pausing = !f.pausing }},
		{Key: "r", Does: "requested or reserved bytes", Runes: "r", Do: func(rune) { f.settings.requested = !f.settings.requested }},
		{Key: "u", Does: "rounded (1 K is 1024) or exact", Runes: "u", Do: func(rune) { f.settings.Exact = !f.settings.Exact }},
		{Key: "p", Does: "the next palette", Runes: "p", Do: func(rune) { f.nextPalette() }},
		{Key: "a", Does: "ASCII characters only, or all", Runes: "a", Do: func(rune) { f.settings.ASCII = !f.settings.ASCII }},
		{Key: "w", Does: "write what is shown to a file", Runes: "w", Do: func(rune) { f.save(f.text()) }},
		{Key: "?, F1", Does: "this help", Runes: "?", Keys: []tcell.Key{tcell.KeyF1}, Do: func(rune) { f.help, f.helpAt = true, 0 }},
		{Key: "ctrl-Z", Does: "suspend to the shell; fg continues"},
		{Key: "q, F10, ctrl-C", Does: "quit", Runes: "q", Keys: []tcell.Key{tcell.KeyF10, tcell.KeyCtrlC}, Do: func(rune) { f.quit() }},
	}, f.playerBindings()...)
}

// text returns the last picture without colours.
func (f *frame) text() string {
	var b strings.Builder
	for _, l := range f.shown.Lines {
		b.WriteString(strings.TrimRight(l.String(), " "))
		b.WriteByte('\n')
	}
	return b.String()
}

// nextPalette changes the colours.
func (f *frame) nextPalette() {
	f.settings.palette = widget.PaletteAfter(f.settings.palette)
	f.palette = widget.NewPalette(f.settings.palette, f.colors)
	note := "palette: " + f.settings.palette
	if f.colors == 0 {
		note += ", but there are no colours here"
	}
	f.notify(note)
}

// key handles a key.
func (f *frame) key(e *tcell.EventKey) {
	switch {
	case e.Key() == tcell.KeyCtrlC:
		f.quit()
	case e.Key() == tcell.KeyCtrlZ:
		f.suspend()
	case f.prompt != nil:
		if f.prompt.Key(e) {
			f.prompt = nil
		}
	case f.pager != nil:
		p := f.pager
		_, moves := widget.MotionOf(e)
		switch {
		case e.Key() == tcell.KeyRune && e.Rune() == 'q':
			f.quit()
		case p.Key(e):
			f.pager = nil
		case !moves: // any key with an effect also closes the pager
			if f.pager = nil; !f.act(e) {
				f.pager = p
			}
		}
	case f.help:
		if e.Key() == tcell.KeyEsc || e.Key() == tcell.KeyEnter || e.Key() == tcell.KeyF1 || e.Key() == tcell.KeyRune && e.Rune() == '?' {
			f.help = false
			return
		}
		if e.Key() == tcell.KeyF10 || e.Key() == tcell.KeyRune && e.Rune() == 'q' {
			f.quit()
		}
		m, _ := widget.MotionOf(e)
		f.helpAt += map[widget.Motion]int{widget.Down: 1, widget.Up: -1, widget.PageDown: 10, widget.PageUp: -10, widget.Home: -1000, widget.End: 1000}[m]
	default:
		f.act(e)
	}
}

// act handles a key in the current view or in all views, and reports whether the key has a meaning there.
func (f *frame) act(e *tcell.EventKey) bool {
	if m, ok := widget.MotionOf(e); ok {
		f.pages[f.current].Move(m)
		return true
	}
	for _, list := range [][]widget.Binding{f.pages[f.current].Bindings(), f.bindings()} {
		for i := range list {
			if b := &list[i]; b.Do != nil && b.Is(e) {
				r := rune(0)
				if e.Key() == tcell.KeyRune {
					r = e.Rune()
				}
				b.Do(r)
				return true
			}
		}
	}
	return false
}

// click handles a mouse event, and reports whether it did. A click closes the help or the pager. Otherwise the event
// goes to the view, or to the line of tabs.
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
	case f.pager != nil:
		if a == tview.MouseLeftDown {
			f.pager = nil
		}
		return true
	case f.prompt != nil:
		return true
	case f.body.Has(y):
		return f.pages[f.current].Mouse(a, x, y-f.body.Top)
	case a == tview.MouseLeftDown && h >= 16 && y == h-2:
		at := 0
		for _, s := range f.tabs(w) {
			at += text.Width(s.Text)
			if id, ok := tabOf(s.Text); ok && x < at && x >= at-text.Width(s.Text) {
				f.show(id)
				return true
			}
		}
	}
	return false
}

// tabOf returns the view of a part of the line of tabs.
func tabOf(s string) (pageID, bool) {
	for id, name := range pageNames {
		if t := strings.TrimSpace(s); strings.HasSuffix(t, name) || t == string(rune('1'+id)) {
			return pageID(id), true
		}
	}
	return 0, false
}

// InputHandler returns a function that handles a key, and MouseHandler one that handles a mouse event, as tview
// requires. In the app, tview calls app.key for each key instead.
func (f *frame) InputHandler() func(*tcell.EventKey, func(tview.Primitive)) {
	return f.WrapInputHandler(func(e *tcell.EventKey, _ func(tview.Primitive)) { f.key(e) })
}

func (f *frame) MouseHandler() func(tview.MouseAction, *tcell.EventMouse, func(tview.Primitive)) (bool, tview.Primitive) {
	return f.WrapMouseHandler(func(a tview.MouseAction, e *tcell.EventMouse, _ func(tview.Primitive)) (bool, tview.Primitive) {
		return f.click(a, e), nil
	})
}

// work returns the slow work of the current view; nil if there is none.
func (f *frame) work() func(*reader) func() { return f.pages[f.current].work() }
