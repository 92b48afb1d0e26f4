package ui

import (
	"tt-memtrace/aggregator"
	"tt-memtrace/ui/widget"
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
	sitesPage
	numPages
)

// viewKeys are the keys of the views. There can be no more views than keys.
const viewKeys = "123456789"

var pageNames = [numPages]string{"overview", "chip", "charts", "map", "tables", "events", "processes", "sites"}

// pageNamed returns the view whose name begins like this.
func pageNamed(name string) (pageID, bool) {
	for id, n := range pageNames {
		if name != "" && len(name) <= len(n) && n[:len(name)] == name {
			return pageID(id), true
		}
	}
	return 0, false
}

// Views returns the names of the views, which Options.View takes.
func Views() []string { return pageNames[:] }

// page is one of the views. Only the screen's goroutine calls its methods.
type page interface {
	widget.Pane
	// work returns the slow work of the view, or nil. The work runs outside of the screen's goroutine, with copies of
	// all it needs. The function that it returns runs on the screen's goroutine.
	work() func(*reader) func()
}

// state is what all views share.
type state struct {
	settings settings
	// width of the screen, in cells.
	width   int
	data    data
	history *history
	// chip is the chip that the views of one chip show. If process is set, the charts show that process instead.
	chip    aggregator.Chip
	process processID
	// stacks switches call stacks; nil if that is not possible.
	stacks StackSwitch
	// notify shows a message for a while; open shows a view.
	notify func(string)
	open   func(pageID)
}

// chips returns the chips of the snapshot.
func (s *state) chips() []aggregator.ChipSnapshot { return s.data.snapshot.Chips }

// current returns the chip that the views of one chip show: the first if the snapshot does not have state.chip; nil if
// there is none.
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

// nextChip selects another chip, this many further.
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

// chipBindings returns the keys of the views of one chip.
func (s *state) chipBindings() []widget.Binding {
	return []widget.Binding{
		{Key: "[  ]", Does: "the previous chip, the next chip", Brief: "chip", Runes: "[]", Do: func(r rune) {
			if r == '[' {
				s.nextChip(-1)
			} else {
				s.nextChip(1)
			}
		}},
	}
}
