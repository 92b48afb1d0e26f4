package ui

import (
	"slices"
	"strings"

	"tt-memtrace/aggregator/exact"
	"tt-memtrace/ui/text"
	"tt-memtrace/ui/widget"
)

// signs returns the help on the terms, signs and letters that the views show.
func signs(o settings) []widget.Binding {
	g := text.GlyphSet(o.ASCII)
	list := []widget.Binding{
		{Key: "requested", Does: "the buffers' own size"},
		{Key: "reserved", Does: "bytes taken from the free pool, all banks, padding included"},
		{Key: programsTitle, Does: "circular and dataflow buffers, scratchpads"},
		{Key: g.Peak, Does: "the highest use since tracing began"},
		{Key: g.About, Does: "about: it may be too low or too high"},
		{Key: "+  !", Does: "75 % full, 90 % full"},
		{Key: g.Unknown, Does: "not known, or not there"},
		{Key: "-", Does: "the chip has no such memory"},
		{Key: g.AtLeast, Does: "at least: a part of it is not known"},
	}
	const ofLine = 4
	for some := range slices.Chunk(exact.Letters, ofLine) {
		var letters, meanings []string
		for _, l := range some {
			letters, meanings = append(letters, l.Letter), append(meanings, l.Brief)
		}
		list = append(list, widget.Binding{Key: strings.Join(letters, " "), Does: "not exact: " + strings.Join(meanings, "; ")})
	}
	return list
}

// columnsHelp returns the help on columns whose titles need it.
func columnsHelp() []widget.Binding {
	return []widget.Binding{
		{Key: "SEEN", Does: "how long ago it was first seen; 7 shows its age"},
		{Key: "ALLOCS", Does: "how many buffers it has allocated since it was first seen"},
		{Key: "FREES", Does: "how many buffers it has freed since it was first seen"},
		{Key: "STATE", Does: "what its first thread does; disk sleep: it waits in the kernel"},
		{Key: "HOLDS", Does: "the devices that the process has open: N is /dev/tenstorrent/N"},
	}
}

// helpLines returns the help, in at most h lines: the keys of the current view and of all views, signs and columns.
func (f *frame) helpLines(h int) []text.Line {
	g := text.GlyphSet(f.settings.ASCII)
	section := func(name string, list []widget.Binding, look text.Role) []text.Line {
		out := []text.Line{text.Title.Line(name)}
		for _, b := range list {
			out = append(out, append(text.Line{look.Span(" " + b.Key)}.Padded(16, false), text.Plain.Span(b.Does)))
		}
		return out
	}
	moves := []widget.Binding{{Key: "arrows, hjkl", Does: "move; also PgUp PgDn Home End g G, mouse"}}
	here := section("in this view", append(moves, f.pages[f.current].Bindings()...), text.Key)
	everywhere := section("everywhere", f.bindings(), text.Key)
	marks := append(section("signs", signs(f.settings), text.Strong), nil)
	marks = append(marks, section("columns", columnsHelp(), text.Strong)...)
	_, _, w, _ := f.GetRect()
	all := append(append(append(append(here, nil), everywhere...), nil), marks...)
	if two := text.Beside(append(append(here, nil), marks...), everywhere); len(all)+2 > h && text.Widest(two)+4 <= w {
		all = two
	}
	var lines []text.Line
	for _, l := range all {
		lines = append(lines, l.Wrapped(max(w-4, 20), 16)...)
	}
	all = lines
	room := max(h-2, 1)
	f.helpAt = max(min(f.helpAt, len(all)-room), 0)
	more := ""
	if f.helpAt+room < len(all) {
		more = " " + g.Down + " more "
	}
	return widget.Frame(all, f.helpAt, room, "help", more, g)
}
