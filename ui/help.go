package ui

import "strings"

// signs explains what is not letters or digits.
func signs(o settings) []binding {
	g := glyphSet(o.ascii)
	return []binding{
		{key: "requested", does: "the buffers' own size"},
		{key: "reserved", does: "what the memory's banks lost to them"},
		{key: programsTitle, does: "circular and dataflow buffers, scratchpads"},
		{key: g.peak, does: "the highest use so far"},
		{key: "+  !", does: "75 % full, 90 % full"},
		{key: g.unknown, does: "not known, or not there"},
		{key: "-", does: "the chip has no such memory"},
		{key: g.atLeast, does: "at least: some reserved sizes are not known"},
		{key: lateMark, does: "earlier buffers could not be read"},
		{key: unmatchedMark + "  " + replacedMark, does: "frees of buffers not in the accounts; not seen"},
		{key: oddMark, does: "events that made no sense, not counted"},
	}
}

// helpLines are the keys of the view on the screen and those of all views, in at most h lines.
func (f *frame) helpLines(h int) []line {
	g := glyphSet(f.settings.ascii)
	section := func(name string, list []binding, look role) []line {
		out := []line{text(title, name)}
		for _, b := range list {
			out = append(out, append(line{{" " + b.key, look}}.padded(15, false), span{b.does, plain}))
		}
		return out
	}
	moves := []binding{{key: "arrows, hjkl", does: "move; also PgUp PgDn Home End g G, mouse"}}
	here := section("in this view", append(moves, f.pages[f.current].bindings()...), key)
	everywhere := section("everywhere", f.bindings(), key)
	marks := section("signs", signs(f.settings), strong)
	_, _, w, _ := f.GetRect()
	all := append(append(append(append(here, nil), everywhere...), nil), marks...)
	if two := beside(append(append(here, nil), marks...), everywhere); len(all)+2 > h && widest(two)+4 <= w {
		all = two
	}
	room := max(h-2, 1)
	f.helpAt = max(min(f.helpAt, len(all)-room), 0)
	more := ""
	if f.helpAt+room < len(all) {
		more = " " + g.down + " more "
	}
	return framed(all, f.helpAt, room, "help", more, g)
}

func widest(lines []line) int {
	w := 0
	for _, l := range lines {
		w = max(w, l.width())
	}
	return w
}

// beside puts two columns of lines next to each other.
func beside(a, b []line) []line {
	w := widest(a)
	var out []line
	for i := range max(len(a), len(b)) {
		var l line
		if i < len(a) {
			l = a[i]
		}
		if i < len(b) {
			l = append(l.padded(w+3, false), b[i]...)
		}
		out = append(out, l)
	}
	return out
}

// framed puts room lines, beginning with the one at, into a frame as wide as all of them.
func framed(lines []line, at, room int, name, more string, g glyphs) []line {
	w := widest(lines)
	edge := func(left, name, right string) line {
		name = clip(name, w, g.dots)
		return line{{left + g.rule, faint}, {name, strong}, {strings.Repeat(g.rule, w+1-width(name)) + right, faint}}
	}
	out := []line{edge(g.corners[0], " "+name+" ", g.corners[1])}
	for _, l := range lines[at:min(at+room, len(lines))] {
		out = append(out, append(append(text(faint, g.wall+" "), l.padded(w, false)...), span{" " + g.wall, faint}))
	}
	return append(out, edge(g.corners[2], more, g.corners[3]))
}
