package ui

import (
	"errors"
	"strings"
	"unicode"

	"github.com/gdamore/tcell/v2"
)

// prompt is a line that the user types into.
type prompt struct {
	label string
	typed []rune
	// change is told of each new text, before it is accepted; what it returns is shown as a fault.
	change func(string) error
	// done is told the text on enter, undo is called on esc.
	done func(string) error
	undo func()
	// complete, where set, finishes a word on tab.
	complete func(string) string
	fault    string
}

// key edits the text and says whether the prompt is done with.
func (p *prompt) key(e *tcell.EventKey) bool {
	switch e.Key() {
	case tcell.KeyEsc:
		p.undo()
		return true
	case tcell.KeyEnter:
		if err := p.done(string(p.typed)); err != nil {
			p.fault = err.Error()
			return false
		}
		return true
	case tcell.KeyBackspace, tcell.KeyBackspace2:
		if len(p.typed) == 0 {
			p.undo()
			return true
		}
		p.typed = p.typed[:len(p.typed)-1]
	case tcell.KeyCtrlU:
		p.typed = nil
	case tcell.KeyCtrlW:
		s := strings.TrimRight(string(p.typed), " ")
		p.typed = []rune(s[:strings.LastIndexByte(s, ' ')+1])
	case tcell.KeyTab:
		if p.complete != nil {
			p.typed = []rune(p.complete(string(p.typed)))
		}
	case tcell.KeyRune:
		if len(string(p.typed)) < maxPattern && unicode.IsPrint(e.Rune()) {
			p.typed = append(p.typed, e.Rune())
		}
	default:
		return false
	}
	p.fault = ""
	if err := p.change(string(p.typed)); err != nil {
		p.fault = err.Error()
	}
	return false
}

// line is how the prompt looks: the end of what was typed is always in view.
func (p *prompt) line(w int, o settings) line {
	g := glyphSet(o.ascii)
	label := " " + p.label + ": "
	shown := []rune(clean(string(p.typed), o.ascii))
	room := max(w-width(label)-2, 1)
	for len(shown) > 0 && width(string(shown)) > room {
		shown = shown[1:]
	}
	out := line{{label, strong}, {string(shown), plain}, {g.caret, strong}}
	if p.fault != "" {
		out = append(out, span{"  " + clean(p.fault, o.ascii), alert})
	}
	return out.clipped(w)
}

// naming asks for the name of a view.
func (f *frame) naming() *prompt {
	unknown := func(s string) error {
		if _, ok := pageNamed(strings.ToLower(strings.TrimSpace(s))); !ok && s != "" {
			return errNoView
		}
		return nil
	}
	return &prompt{
		label: "go to", change: unknown, undo: func() {},
		complete: func(s string) string {
			if id, ok := pageNamed(strings.ToLower(strings.TrimSpace(s))); ok {
				return pageNames[id]
			}
			return s
		},
		done: func(s string) error {
			id, ok := pageNamed(strings.ToLower(strings.TrimSpace(s)))
			switch {
			case ok:
				f.show(id)
			case s != "":
				return errNoView
			}
			return nil
		},
	}
}

// filtering asks for a filter, which holds while it is typed.
func (f *frame) filtering() *prompt {
	l, ok := f.pages[f.current].(listed)
	if !ok {
		f.say("there is nothing to filter in this view")
		return nil
	}
	before := l.filter()
	set := func(s string) error {
		p, err := newPattern(s)
		if err == nil {
			l.setFilter(p)
		}
		return err
	}
	return &prompt{label: "filter", typed: []rune(before.text), change: set, done: set, undo: func() { l.setFilter(before) }}
}

// searching asks for what to search for, and goes there while it is typed.
func (f *frame) searching() *prompt {
	l, ok := f.pages[f.current].(listed)
	if !ok {
		f.say("there is nothing to search in this view")
		return nil
	}
	change := func(s string) error {
		p, err := newPattern(s)
		if err != nil || p.empty() {
			return err
		}
		f.searched = p
		if !l.search(p, true, true) {
			return errNoMatch
		}
		return nil
	}
	return &prompt{label: "search", change: change, undo: func() {}, done: func(s string) error {
		if s == "" {
			return nil
		}
		return change(s)
	}}
}

// searchOn goes to the next match, or the one before.
func (f *frame) searchOn(forward bool) {
	l, ok := f.pages[f.current].(listed)
	switch {
	case !ok:
		f.say("there is nothing to search in this view")
	case f.searched.empty():
		f.say("nothing has been searched for: / does")
	case !l.search(f.searched, forward, false):
		f.say("no match for " + f.searched.text)
	}
}

var (
	errNoView  = errors.New("there is no such view")
	errNoMatch = errors.New("no match")
)
