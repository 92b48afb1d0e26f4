package widget

import (
	"github.com/gdamore/tcell/v2"
	"github.com/rivo/tview"
)

// Motion is what a key of movement asks for.
type Motion uint8

const (
	Up Motion = iota
	Down
	Left
	Right
	PageUp
	PageDown
	Home
	End
)

// Binding is a key and what it does.
type Binding struct {
	// Key is how it is written, does what it does, brief the same in a word or two for
	// the footer; without it only the help has it.
	Key, Does, Brief string
	Runes            string
	Keys             []tcell.Key
	// Do is handed the rune, 0 for a key without one.
	Do func(rune)
}

// Is reports whether the binding is about the key of an event.
func (b *Binding) Is(e *tcell.EventKey) bool {
	if e.Key() == tcell.KeyRune {
		for _, r := range b.Runes {
			if r == e.Rune() {
				return true
			}
		}
		return false
	}
	for _, k := range b.Keys {
		if k == e.Key() {
			return true
		}
	}
	return false
}

// MotionOf returns what a key of movement asks for.
func MotionOf(e *tcell.EventKey) (Motion, bool) {
	switch e.Key() {
	case tcell.KeyUp:
		return Up, true
	case tcell.KeyDown:
		return Down, true
	case tcell.KeyLeft:
		return Left, true
	case tcell.KeyRight:
		return Right, true
	case tcell.KeyPgUp, tcell.KeyCtrlB:
		return PageUp, true
	case tcell.KeyPgDn, tcell.KeyCtrlF:
		return PageDown, true
	case tcell.KeyHome:
		return Home, true
	case tcell.KeyEnd:
		return End, true
	case tcell.KeyRune:
		switch e.Rune() {
		case 'k':
			return Up, true
		case 'j':
			return Down, true
		case 'h':
			return Left, true
		case 'l':
			return Right, true
		case 'g':
			return Home, true
		case 'G':
			return End, true
		}
	}
	return 0, false
}

// WheelRows is how far a turn of the wheel goes.
const WheelRows = 3

// Pane is a part of the screen that draws itself and takes keys.
type Pane interface {
	// Compose draws the pane, w cells wide and h lines high; less than that is filled up.
	Compose(w, h int) Picture
	Move(m Motion)
	// Bindings are the keys that mean something in this pane alone.
	Bindings() []Binding
	// Mouse handles the mouse at a cell of the pane, and says whether that had an effect.
	Mouse(a tview.MouseAction, x, y int) bool
}

// Listed is a pane with rows to filter and search.
type Listed interface {
	Filter() Pattern
	SetFilter(Pattern)
	// Search selects the next row that matches, or the previous one, beginning with the
	// selected one if here, and says whether there is one.
	Search(p Pattern, forward, here bool) bool
	// ClearSearch takes the marks of a search away, and says whether there were any.
	ClearSearch() bool
}
