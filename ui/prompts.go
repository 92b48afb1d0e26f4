package ui

import (
	"errors"

	"tt-memtrace/ui/widget"
)

// filtering returns the prompt for a filter, which applies while the user types; nil if the view has no filter.
func (f *frame) filtering() *widget.Prompt {
	l, ok := f.pages[f.current].(widget.Listed)
	if !ok {
		f.notify("this view has nothing to filter")
		return nil
	}
	before := l.Filter()
	set := func(s string) error {
		p, err := widget.NewPattern(s)
		if err == nil {
			l.SetFilter(p)
		}
		return err
	}
	return &widget.Prompt{Label: "filter", Typed: []rune(before.Text), Change: set, Done: set, Undo: func() { l.SetFilter(before) }}
}

// searching returns the prompt for a search, which moves to the first match from the selected row on while the user
// types; nil if the view has no search.
func (f *frame) searching() *widget.Prompt {
	l, ok := f.pages[f.current].(widget.Listed)
	if !ok {
		f.notify("this view has nothing to search")
		return nil
	}
	change := func(s string) error {
		p, err := widget.NewPattern(s)
		if err != nil || p.Empty() {
			return err
		}
		f.searched = p
		if !l.Search(p, true, true) {
			return errNoMatch
		}
		return nil
	}
	return &widget.Prompt{Label: "search", Change: change, Undo: func() {}, Done: func(s string) error {
		if s == "" {
			return nil
		}
		return change(s)
	}}
}

// searchOn moves to the next match, or to the previous one.
func (f *frame) searchOn(forward bool) {
	l, ok := f.pages[f.current].(widget.Listed)
	switch {
	case !ok:
		f.notify("this view has nothing to search")
	case f.searched.Empty():
		f.notify("nothing to repeat: / searches")
	case !l.Search(f.searched, forward, false):
		f.notify("no match for " + f.searched.Text)
	}
}

var (
	errNoCommand = errors.New("there is no such command")
	errNoMatch   = errors.New("no match")
)
