package ui

import (
	"errors"
	"strconv"
	"strings"

	"tt-memtrace/aggregator"
	"tt-memtrace/ui/text"
	"tt-memtrace/ui/widget"
)

// command is a command that the user can type after a colon.
type command struct {
	// name is its name, argument its argument as the list shows it, or "", and does what it does.
	name, argument, does string
	do                   func(argument string) error
}

var errNoChip = errors.New("there is no such chip")

// commands returns the commands: the views, in their order, and others.
func (f *frame) commands() []command {
	var list []command
	for id, name := range pageNames {
		c := command{name: name, does: "key " + string(rune('1'+id)), do: func(string) error { f.show(pageID(id)); return nil }}
		switch pageID(id) {
		case chipPage, chartsPage, mapPage:
			c.argument = "[CHIP]"
			c.do = func(argument string) error { return f.showChip(pageID(id), argument) }
		}
		list = append(list, c)
	}
	return append(list,
		command{name: "why", does: "why the last allocation failed", do: func(string) error { f.why(); return nil }},
		command{name: "summary", does: "peaks, processes, failures", do: func(string) error { f.summary(); return nil }},
		command{name: "reasons", does: "what is not exact, and why", do: func(string) error { f.reasons(); return nil }},
		command{name: "notices", does: "all notices", do: func(string) error { f.notices(); return nil }},
		command{name: "help", does: "the keys of this view", do: func(string) error { f.help, f.helpAt = true, 0; return nil }},
		command{name: "write", does: "what is shown to a file", do: func(string) error { f.save(f.text()); return nil }},
		command{name: "quit", does: "also :q", do: func(string) error { f.quit(); return nil }},
	)
}

// showChip shows a view of a chip. The argument is the chip's number as on the screen; "" is the current chip.
func (f *frame) showChip(id pageID, argument string) error {
	if argument == "" {
		f.show(id)
		return nil
	}
	space, number, private := strings.Cut(argument, ":")
	if !private {
		space, number = "0", argument
	}
	s, err := strconv.ParseUint(space, 10, 32)
	n, err2 := strconv.ParseUint(number, 10, 32)
	if errors.Join(err, err2) != nil {
		return errNoChip
	}
	chip := aggregator.Chip{Space: uint32(s), Number: uint32(n)}
	for _, c := range f.chips() {
		if c.Chip == chip {
			f.chip, f.process = chip, processID{}
			f.show(id)
			return nil
		}
	}
	return errNoChip
}

// notices shows a pager with all notices, also those that the screen has no room for.
func (f *frame) notices() {
	p := &widget.Pager{Title: "notices"}
	for _, n := range f.data.notes {
		p.Lines = append(p.Lines, text.Plain.Line(text.Sanitize(n, f.settings.ASCII)))
	}
	if len(p.Lines) == 0 {
		f.notify("there are no notices")
		return
	}
	f.pager = p
}

// matching returns the commands that begin with the first word of what was typed, and the rest as the argument.
func (f *frame) matching(typed string) (list []command, argument string) {
	name, argument, _ := strings.Cut(strings.TrimSpace(typed), " ")
	for _, c := range f.commands() {
		if strings.HasPrefix(c.name, strings.ToLower(name)) {
			list = append(list, c)
		}
	}
	return list, strings.TrimSpace(argument)
}

// commanding returns the prompt for a command.
func (f *frame) commanding() *widget.Prompt {
	p := &widget.Prompt{Label: "command", Undo: func() {}}
	p.Change = func(s string) error {
		if list, _ := f.matching(s); len(list) == 0 {
			return errNoCommand
		}
		return nil
	}
	p.Complete = func(s string) string {
		if list, argument := f.matching(s); len(list) > 0 {
			return strings.TrimSpace(list[0].name + " " + argument)
		}
		return s
	}
	p.Done = func(s string) error {
		if strings.TrimSpace(s) == "" {
			return nil
		}
		list, argument := f.matching(s)
		switch {
		case len(list) == 0, argument != "" && list[0].argument == "":
			return errNoCommand
		}
		return list[0].do(argument)
	}
	p.Hints = func() []text.Line {
		list, _ := f.matching(string(p.Typed))
		var out []text.Line
		for _, c := range list {
			out = append(out, append(text.Line{text.Key.Span(":" + c.name), text.Plain.Span(" " + c.argument)}.Padded(18, false), text.Plain.Span(c.does)))
		}
		return out
	}
	return p
}
