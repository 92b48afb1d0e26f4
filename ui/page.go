package ui

import (
	"github.com/gdamore/tcell/v2"
	"github.com/rivo/tview"

	"tt-memtrace/aggregator"
)

// pageID is one of the views, in the order of their keys.
type pageID int

const (
	overviewPage pageID = iota
	chipPage
	chartsPage
	mapPage
	tablesPage
	eventsPage
	processesPage
	numPages
)

var pageNames = [numPages]string{"overview", "chip", "charts", "map", "tables", "events", "processes"}

// pageNamed finds a view by the start of its name.
func pageNamed(name string) (pageID, bool) {
	for id, n := range pageNames {
		if name != "" && len(name) <= len(n) && n[:len(name)] == name {
			return pageID(id), true
		}
	}
	return 0, false
}

// Views are the names of the views, which Options.View takes.
func Views() []string { return pageNames[:] }

// motion is what a key of movement asks for.
type motion uint8

const (
	up motion = iota
	down
	left
	right
	pageUp
	pageDown
	home
	end
)

// page is one of the views. Its methods belong to the screen's goroutine.
type page interface {
	// compose draws the page, w cells wide and h lines high; less than that is filled up.
	compose(w, h int) picture
	move(m motion)
	// bindings are the keys that mean something on this page alone.
	bindings() []binding
	// mouse is told of the mouse at a cell of the page, and says whether that meant anything.
	mouse(a tview.MouseAction, x, y int) bool
	// work is what is to be done away from the screen's goroutine, with copies of all it
	// needs; what that returns is called on the screen's goroutine again. Nil is nothing.
	work() func(*reader) func()
}

// listed is a page with rows to filter and search.
type listed interface {
	filter() pattern
	setFilter(pattern)
	// search selects the next row that matches, or the one before, beginning with the
	// selected one if here, and says whether there is one.
	search(p pattern, forward, here bool) bool
}

// picture is a screen or a part of one, ready to paint.
type picture struct {
	lines []line
	// selected is the line with the cursor, -1 for none.
	selected int
}

// state is what all views have in common.
type state struct {
	settings settings
	data     data
	history  *history
	// chip is what the views of one chip are about, process the one that the charts are
	// about instead, if any.
	chip    aggregator.Chip
	process processID
	// say shows a message for a while; open goes to a view.
	say  func(string)
	open func(pageID)
}

// chips of the snapshot.
func (s *state) chips() []aggregator.ChipSnapshot { return s.data.snapshot.Chips }

// current is the chip that the views of one chip are about, nil if there is none.
func (s *state) current() *aggregator.ChipSnapshot {
	list := s.chips()
	for i := range list {
		if list[i].Chip == s.chip {
			return &list[i]
		}
	}
	if len(list) == 0 {
		return nil
	}
	return &list[0]
}

// nextChip goes on to another chip.
func (s *state) nextChip(by int) {
	list, c := s.chips(), s.current()
	if c == nil {
		return
	}
	for i := range list {
		if list[i].Chip == c.Chip {
			s.chip = list[(i+by+len(list))%len(list)].Chip
			return
		}
	}
}

// chartsOf shows the history of a chip, or of a process.
func (s *state) chartsOf(chip aggregator.Chip, process processID) {
	s.chip, s.process = chip, process
	s.open(chartsPage)
}

// chipBindings are the keys of the views of one chip.
func (s *state) chipBindings() []binding {
	return []binding{
		{key: "[  ]", does: "the chip before, the next chip", brief: "chip", runes: "[]", do: func(r rune) {
			if r == '[' {
				s.nextChip(-1)
			} else {
				s.nextChip(1)
			}
		}},
	}
}

// binding is a key and what it does.
type binding struct {
	// key is how it is written, does what it does, brief the same in a word or two for
	// the footer; without it only the help has it.
	key, does, brief string
	runes            string
	keys             []tcell.Key
	// do is handed the rune, 0 for a key without one.
	do func(rune)
}

// is says whether the binding is about the key of an event.
func (b *binding) is(e *tcell.EventKey) bool {
	if e.Key() == tcell.KeyRune {
		for _, r := range b.runes {
			if r == e.Rune() {
				return true
			}
		}
		return false
	}
	for _, k := range b.keys {
		if k == e.Key() {
			return true
		}
	}
	return false
}

// motionOf is what a key of movement asks for.
func motionOf(e *tcell.EventKey) (motion, bool) {
	switch e.Key() {
	case tcell.KeyUp:
		return up, true
	case tcell.KeyDown:
		return down, true
	case tcell.KeyLeft:
		return left, true
	case tcell.KeyRight:
		return right, true
	case tcell.KeyPgUp, tcell.KeyCtrlB:
		return pageUp, true
	case tcell.KeyPgDn, tcell.KeyCtrlF:
		return pageDown, true
	case tcell.KeyHome:
		return home, true
	case tcell.KeyEnd:
		return end, true
	case tcell.KeyRune:
		switch e.Rune() {
		case 'k':
			return up, true
		case 'j':
			return down, true
		case 'h':
			return left, true
		case 'l':
			return right, true
		case 'g':
			return home, true
		case 'G':
			return end, true
		}
	}
	return 0, false
}
