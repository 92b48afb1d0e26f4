package ui

import (
	"reflect"

	"github.com/gdamore/tcell/v2"
	"github.com/rivo/tview"
)

// overview is the view as a tview primitive: it paints the picture and turns
// keys and mouse into calls of the view.
type overview struct {
	*tview.Box
	view    *view
	palette palette
	shown   picture
}

func newOverview(v *view, p palette) *overview {
	return &overview{Box: tview.NewBox(), view: v, palette: p}
}

// update takes over new data and says whether that changes the picture.
func (o *overview) update(d data) bool {
	// To compare what goes in is cheaper than to compare what comes out.
	same := o.view.data.same(&d)
	o.view.update(d)
	if same {
		return false
	}
	_, _, w, h := o.GetRect()
	return !reflect.DeepEqual(o.shown, o.view.compose(w, h))
}

// Draw paints the picture.
func (o *overview) Draw(screen tcell.Screen) {
	x, y, w, h := o.GetRect()
	o.shown = o.view.compose(w, h)
	for i, l := range o.shown.lines {
		look := func(r role) tcell.Style { return o.palette[r] }
		if i == o.shown.selected {
			look = o.palette.selected
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

// InputHandler moves the selection and changes what is shown.
func (o *overview) InputHandler() func(*tcell.EventKey, func(tview.Primitive)) {
	return o.WrapInputHandler(func(e *tcell.EventKey, _ func(tview.Primitive)) {
		v := o.view
		height := o.shown.regions[v.focus].height
		move := func(n int) { v.lists[v.focus].move(n, v.keys[v.focus]) }
		all := len(v.keys[v.focus])
		switch e.Key() {
		case tcell.KeyUp:
			move(-1)
		case tcell.KeyDown:
			move(1)
		case tcell.KeyPgUp:
			move(-height)
		case tcell.KeyPgDn:
			move(height)
		case tcell.KeyHome:
			move(-all)
		case tcell.KeyEnd:
			move(all)
		case tcell.KeyRight:
			v.expand(true)
		case tcell.KeyLeft:
			v.expand(false)
		case tcell.KeyEnter:
			v.toggle()
		case tcell.KeyTab, tcell.KeyBacktab:
			v.focus = numPanels - 1 - v.focus
		case tcell.KeyRune:
			o.rune(e.Rune(), move, all)
		}
	})
}

func (o *overview) rune(r rune, move func(int), all int) {
	v := o.view
	switch r {
	case 'k':
		move(-1)
	case 'j':
		move(1)
	case 'g':
		move(-all)
	case 'G':
		move(all)
	case 'l':
		v.expand(true)
	case 'h':
		v.expand(false)
	case 's':
		v.nextSort()
	case 'u':
		v.settings.exact = !v.settings.exact
	case 'r':
		v.settings.requested = !v.settings.requested
	case ' ':
		v.pause()
	}
}

// wheelRows is how far a turn of the wheel goes.
const wheelRows = 3

// MouseHandler selects the row that is clicked, expands on a double click, and scrolls the table under the mouse.
func (o *overview) MouseHandler() func(tview.MouseAction, *tcell.EventMouse, func(tview.Primitive)) (bool, tview.Primitive) {
	return o.WrapMouseHandler(func(a tview.MouseAction, e *tcell.EventMouse, _ func(tview.Primitive)) (bool, tview.Primitive) {
		_, top, _, _ := o.GetRect()
		_, y := e.Position()
		y -= top
		for which, r := range o.shown.regions {
			if r.has(y) {
				return o.mouse(a, panel(which), y-r.top, r.height), nil
			}
		}
		return false, nil
	})
}

func (o *overview) mouse(a tview.MouseAction, which panel, row, height int) bool {
	v := o.view
	l, keys := &v.lists[which], v.keys[which]
	switch a {
	case tview.MouseLeftDown:
		v.focus = which
		if l.offset+row < len(keys) {
			l.move(l.offset+row-l.index, keys)
		}
	case tview.MouseLeftDoubleClick:
		if which == processPanel && l.offset+row < len(keys) {
			v.toggle()
		}
	case tview.MouseScrollUp:
		l.scroll(-wheelRows, height, keys)
	case tview.MouseScrollDown:
		l.scroll(wheelRows, height, keys)
	default:
		return false
	}
	return true
}
