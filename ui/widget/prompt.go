package widget

import (
	"strings"
	"unicode"

	"github.com/gdamore/tcell/v2"

	"tt-memtrace/ui/text"
)

// Prompt is a line that the user types into.
type Prompt struct {
	Label string
	Typed []rune
	// Change is called with each new text, before it is accepted. The prompt shows its error.
	Change func(string) error
	// Done is called with the text on enter. Undo is called on esc, and on backspace without text.
	Done func(string) error
	Undo func()
	// Complete, if not nil, returns the completed text on tab.
	Complete func(string) string
	Fault    string
	// Hints, if not nil, returns lines that are shown above the prompt.
	Hints func() []text.Line
}

// Key edits the text, and reports whether the prompt is finished.
func (p *Prompt) Key(e *tcell.EventKey) bool {
	switch e.Key() {
	case tcell.KeyEsc:
		p.Undo()
		return true
	case tcell.KeyEnter:
		if err := p.Done(string(p.Typed)); err != nil {
			p.Fault = err.Error()
			return false
		}
		return true
	case tcell.KeyBackspace, tcell.KeyBackspace2:
		if len(p.Typed) == 0 {
			p.Undo()
			return true
		}
		p.Typed = p.Typed[:len(p.Typed)-1]
	case tcell.KeyCtrlU:
		p.Typed = nil
	case tcell.KeyCtrlW:
		s := strings.TrimRight(string(p.Typed), " ")
		p.Typed = []rune(s[:strings.LastIndexByte(s, ' ')+1])
	case tcell.KeyTab:
		if p.Complete != nil {
			p.Typed = []rune(p.Complete(string(p.Typed)))
		}
	case tcell.KeyRune:
		if len(string(p.Typed)) < MaxPattern && unicode.IsPrint(e.Rune()) {
			p.Typed = append(p.Typed, e.Rune())
		}
	default:
		return false
	}
	p.Fault = ""
	if err := p.Change(string(p.Typed)); err != nil {
		p.Fault = err.Error()
	}
	return false
}

// Line returns the prompt's line. The end of the text is always visible.
func (p *Prompt) Line(w int, ascii bool) text.Line {
	g := text.GlyphSet(ascii)
	label := " " + p.Label + ": "
	shown := []rune(text.Sanitize(string(p.Typed), ascii))
	room := max(w-text.Width(label)-2, 1)
	for len(shown) > 0 && text.Width(string(shown)) > room {
		shown = shown[1:]
	}
	out := text.Line{text.Strong.Span(label), text.Plain.Span(string(shown)), text.Strong.Span(g.Caret)}
	if p.Fault != "" {
		out = append(out, text.Alert.Span("  "+text.Sanitize(p.Fault, ascii)))
	}
	return out.Clipped(w)
}
