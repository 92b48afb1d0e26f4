package widget

import (
	"github.com/gdamore/tcell/v2"
	"github.com/rivo/tview"
)

// Motion is a movement that a key requests.
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
	// Key is the key's name. Does says what it does, Brief the same in a word or two for the footer; without Brief only
	// the help has it.
	Key, Does, Brief string
	Runes            string
	Keys             []tcell.Key
	// Do handles the key. Its argument is the rune, 0 for a key without one.
	Do func(rune)
}

// Is reports whether an event is of this binding's key.
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

// MotionOf returns the movement that a key requests; false if it is no such key.
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

// WheelRows is how many rows a turn of the wheel moves.
const WheelRows = 3

// Pane is a part of the screen that draws itself and handles keys.
type Pane interface {
	// Compose draws the pane, w cells wide and at most h lines high.
	Compose(w, h int) Picture
	Move(m Motion)
	// Bindings returns the keys of this pane alone.
	Bindings() []Binding
	// Mouse handles a mouse event at a cell of the pane, and reports whether it had an effect.
	Mouse(a tview.MouseAction, x, y int) bool
}

// Listed is a pane with rows that can be filtered and searched.
type Listed interface {
	Filter() Pattern
	SetFilter(Pattern)
	// Search selects the next row that matches, or the previous one, and reports whether there is one. With here it
	// begins at the selected row, otherwise after it.
	Search(p Pattern, forward, here bool) bool
	// ClearSearch removes the marks of a search, and reports whether there were any.
	ClearSearch() bool
}
