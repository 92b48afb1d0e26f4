package ui

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"

	"github.com/gdamore/tcell/v2"
	"github.com/rivo/tview"

	"tt-memtrace/aggregator"
	"tt-memtrace/internal/plural"
	"tt-memtrace/ui/text"
	"tt-memtrace/ui/widget"
)

// mapView shows the address space of a bank of a memory, or of a core's L1: all of it as a strip, and its blocks as a
// table.
type mapView struct {
	*state
	*widget.Table[block, blockKey]
	memory aggregator.Memory
	// core is the core whose L1 is shown: the most used one unless the user chose another.
	core   aggregator.Core
	chosen bool
	cores  []coreUse

	space space
	done  mapQuery
	strip widget.Region
	// label is the width of the addresses beside the strip.
	label int
}

type blockKey struct {
	from uint64
	kind blockKind
	// process and id distinguish buffers at one address.
	process processID
	id      uint64
}

// mapQuery identifies the data that a map or the view of a chip was made from.
type mapQuery struct {
	query  widget.Query
	chip   aggregator.Chip
	memory aggregator.Memory
	core   aggregator.Core
	round  int
	any    bool
	ring   aggregator.RingUsage
	// snapshot is the snapshot whose totals are shown. Only the view of a chip sets it; a map leaves it nil.
	snapshot *aggregator.Snapshot
	// requested means that the rows of the view of a chip are sorted by requested bytes. A map leaves it false.
	requested bool
}

func newMapView(s *state) *mapView {
	v := &mapView{state: s, memory: aggregator.L1}
	v.Table = &widget.Table[block, blockKey]{
		Settings: &s.settings.Settings, Name: "map", What: "blocks", None: "nothing is known about this memory",
		Key: func(b *block) blockKey {
			k := blockKey{from: b.from, kind: b.kind}
			if b.buffer != nil {
				k.process, k.id = idOf(b.buffer.process), b.buffer.ID
			}
			return k
		},
		Words: func(w []byte, b *block) []byte {
			w = addressWords(w, b.from)
			w = append(append(w, b.kind.String()...), ' ')
			if b.buffer != nil {
				w = b.buffer.words(w)
			}
			for i, p := range b.programs {
				w = append(append(b.owners[i].words(w), p.Operation...), ' ')
			}
			return w
		},
		Fields: []widget.Field[block]{
			{Name: "ADDRESS", Right: true, Least: 10, Cell: func(b *block) text.Line { return text.Plain.Line(text.Hex(b.from)) },
				Order: func(a, b *block) int { return cmp.Compare(a.from, b.from) }},
			bytesField(s, "SIZE", 0, (*block).size),
			{Name: "BLOCK", Least: 13, Cell: v.kindCell, Order: func(a, b *block) int { return cmp.Compare(a.kind, b.kind) }},
			{Name: "PID", Right: true, Least: 7, Rank: 2, Cell: func(b *block) text.Line {
				if b.buffer == nil {
					return nil
				}
				return text.Strong.Line(strconv.FormatUint(uint64(b.buffer.process.PID), 10))
			}},
			{Name: "PROCESS", Least: 14, Flex: true, Rank: 3, Cell: func(b *block) text.Line {
				switch {
				case b.buffer != nil:
					return text.Plain.Line(b.buffer.name)
				case len(b.owners) > 0:
					return text.Plain.Line(b.owners[0].name)
				}
				return nil
			}},
			{Name: "WHAT", Least: 24, Flex: true, Rank: 1, Cell: v.whatCell},
			{Name: "AGE", Right: true, Least: 6, Rank: 4, Cell: func(b *block) text.Line {
				if b.buffer == nil {
					return nil
				}
				return s.ageCell(b.buffer.Since)
			}, Order: func(a, b *block) int { return cmp.Compare(since(a), since(b)) }},
		},
		Detail: v.detail,
	}
	return v
}

// since returns when the buffer of a block was allocated; the latest time if it has no buffer.
func since(b *block) uint64 {
	if b.buffer == nil {
		return 1<<64 - 1
	}
	return b.buffer.Since
}

func (v *mapView) kindCell(b *block) text.Line {
	g := text.GlyphSet(v.settings.ASCII)
	look, fill := fillOf(b, g)
	out := text.Line{look.Span(fill), text.Plain.Span(" " + b.kind.String())}
	if b.kind == freeBlock || b.kind == edgeBlock {
		out = text.Line{text.Faint.Span("  " + b.kind.String())}
	}
	if b.clash {
		out = append(out, text.Alert.Span(" "+g.Clash))
	}
	return out
}

func fillOf(b *block, g text.Glyphs) (text.Role, string) {
	switch b.kind {
	case bufferBlock:
		return text.First, g.Fills[text.FillBuffer]
	case smallBlock:
		return text.Second, g.Fills[text.FillSmall]
	case circularBlock:
		return text.Third, g.Fills[text.FillCircular]
	case ringBlock:
		return text.Fourth, g.Fills[text.FillRing]
	case belowBlock:
		return text.Faint, g.Fills[text.FillBelow]
	}
	return text.Plain, " "
}

func (v *mapView) whatCell(b *block) text.Line {
	g, o := text.GlyphSet(v.settings.ASCII), v.settings
	switch {
	case b.buffer != nil:
		return text.Plain.Line(b.buffer.what(g) + ", " + requested(b.buffer, o))
	case len(b.programs) == 1:
		return v.operationCell(b.programs[0].Operation, 60)
	case len(b.programs) > 1:
		return append(v.operationCell(b.programs[0].Operation, 40), text.Plain.Span(fmt.Sprintf(" and %d more", len(b.programs)-1)))
	case b.ring != nil:
		return text.Plain.Line(v.settings.ringWords(b.ring))
	case b.kind == belowBlock:
		return text.Faint.Line("firmware, what is reserved")
	}
	return nil
}

// requested returns the requested size of a buffer, on all banks of a chip, as text.
func requested(r *bufferRow, o settings) string {
	return bytesCell(r.Size, o).String() + " requested"
}

func (v *mapView) detail(b *block) []text.Line {
	where := "of each bank"
	if v.memory == aggregator.L1 {
		where = "of the core"
	}
	head := widget.Pair("block", text.Strong.Line(fmt.Sprintf("%s, %s to %s %s, %s bytes", b.kind, text.Hex(b.from), text.Hex(b.to), where, text.Digits(b.size()))))
	if b.buffer != nil {
		return append([]text.Line{head}, bufferDetail(v.state, b.buffer)...)
	}
	out := []text.Line{head}
	if b.ring != nil {
		out = append(out, widget.Pair("holds", text.Plain.Line(v.settings.ringWords(b.ring)+", the newest launches")))
	}
	for i, p := range b.programs[:min(len(b.programs), 8)] {
		name := text.Sanitize(p.Operation, v.settings.ASCII)
		if name == "" {
			name = text.Hex(p.ID)
		}
		out = append(out, widget.Pair("program", append(text.Line{text.Strong.Span(name), text.Plain.Span(fmt.Sprintf("  %d %s, ", b.owners[i].process.PID, b.owners[i].name))},
			append(v.ageCell(p.Since), text.Plain.Span(" old, "+v.launchesOf(p)))...)))
	}
	if n := len(b.programs) - 8; n > 0 {
		out = append(out, widget.Pair("", text.Faint.Line("and "+text.Plural(n, "more program", "more programs"))))
	}
	return out
}

func (v *mapView) work() func(*reader) func() {
	c := v.current()
	if c == nil {
		return nil
	}
	chip, memory, ascii := c.Chip, v.memory, v.settings.ASCII
	banks, ring := c.Memory[memory].Banks, c.ConfigRing
	core, chosen := v.core, v.chosen
	arrange, last := v.Arranger(), v.done
	want := mapQuery{query: v.Query(), chip: chip, memory: memory, any: true}
	return func(r *reader) func() {
		readChip(r, chip, memory == aggregator.L1)
		now := want
		now.round, now.core, now.ring = r.round, core, ring
		if now == last {
			return nil
		}
		var cores []coreUse
		var others []block
		if memory == aggregator.L1 {
			cores = coresOf(r, chip, ascii)
			for _, c := range perCoreCores(r, chip, ascii) {
				if !slices.ContainsFunc(cores, func(u coreUse) bool { return u.core == c }) {
					cores = append(cores, coreUse{core: c})
				}
			}
			if !chosen && len(cores) > 0 {
				core = cores[0].core
			}
			now.core = core
			if now == last {
				return nil
			}
			others = append(bufferBlocks(r, chip, aggregator.L1Small, &core, smallBlock, ascii), circularBlocks(r, chip, core, ascii)...)
			if capacity, known := ring.Capacity.Exact(); known {
				others = append(others, block{from: ring.Base, to: ring.Base + capacity, kind: ringBlock, ring: &ring})
			}
		} else if now == last {
			return nil
		}
		buffers := bufferBlocks(r, chip, memory, &core, bufferBlock, ascii)
		s := newSpace(buffers, others, banks, memory == aggregator.L1)
		rows := arrange(s.blocks)
		return func() {
			if v.memory != memory || v.state.current() == nil || v.state.current().Chip != chip {
				return // the user has left this map
			}
			v.done, v.space, v.cores, v.core = now, s, cores, core
			v.Set(rows, len(s.blocks))
		}
	}
}

// readChip makes the reader read the buffers and, with programs, also the programs of all processes on a chip, if they
// have changed.
func readChip(r *reader, chip aggregator.Chip, programs bool) {
	for i := range r.snapshot.Processes {
		if p := &r.snapshot.Processes[i]; onChip(p, chip) {
			r.buffers(p)
			if programs {
				r.programs(p)
			}
		}
	}
}

func (v *mapView) Compose(w, h int) widget.Picture {
	c := v.current()
	if c == nil {
		return widget.Picture{Lines: []text.Line{nil, text.Faint.Line("  " + noChip(&v.data))}, Selected: -1}
	}
	if v.done.any && (v.done.chip != c.Chip || v.done.memory != v.memory) {
		v.done, v.space, v.cores = mapQuery{}, space{}, nil
		v.Forget()
	}
	if p, none := v.noBuffers("no map", w); none {
		return p
	}
	p := widget.Picture{Lines: v.heads(c, w), Selected: -1}
	rows := max(min(h/4, maxStrip), 1)
	v.strip = widget.Region{Top: len(p.Lines), Height: rows}
	p.Lines = append(p.Lines, v.strips(w, rows)...)
	p.Lines = append(p.Lines, v.legend(w))
	at := len(p.Lines)
	body := v.Table.Compose(w, h-at)
	if body.Selected >= 0 {
		p.Selected = body.Selected + at
	}
	p.Lines = append(p.Lines, body.Lines...)
	return p
}

// maxStrip is how many rows the strip of addresses has at most. The table gets the others.
const maxStrip = 20

// heads returns lines that say what is shown, and how much is free.
func (v *mapView) heads(c *aggregator.ChipSnapshot, w int) []text.Line {
	o := v.settings
	what := "a bank of " + v.memory.String()
	if v.memory == aggregator.L1 {
		what = "L1 of any core: no circular buffers"
		if len(v.cores) > 0 {
			what = fmt.Sprintf("L1 of core (%d,%d)", v.core.X, v.core.Y)
			for _, u := range v.cores {
				if u.core == v.core && u.bytes > 0 {
					what += ", circular buffers " + bytesCell(u.bytes, o).String()
				}
			}
		}
	}
	left := text.Line{text.Strong.Span(" chip " + chipName(c.Chip) + "  "), text.Plain.Span(what)}
	if b := c.Memory[v.memory].Banks; b.Known && b.Count > 0 {
		of := fmt.Sprintf(", 1 of %s of %s", plural.Of(b.Count, "bank"), text.Capacity(b.Bytes, o.Exact, false))
		if left.Width()+text.Width(of) <= w {
			left = append(left, text.Faint.Span(of))
		}
	}
	out := []text.Line{left.Shortened(w, text.GlyphSet(o.ASCII).Dots)}
	words, clash := v.freeWords()
	for i, l := range text.Pack(words, w-2-text.Width(clash)) {
		next := text.Plain.Line(" ")
		if i == 0 && clash != "" {
			next = append(next, text.Alert.Span(clash), text.Plain.Span(" "))
		}
		out = append(out, append(next, text.Plain.Span(l)))
	}
	return out
}

// freeWords returns how much is free, how many pieces it is in, how large the largest is, and how much is between
// circular buffers and buffers. clash says how many overlaps there are; "" if none.
func (v *mapView) freeWords() (words []string, clash string) {
	o, g := v.settings, text.GlyphSet(v.settings.ASCII)
	s := &v.space
	if s.clashes > 0 {
		clash = " " + g.Clash + " " + text.Plural(s.clashes, "overlap", "overlaps") + " "
	}
	switch {
	case !v.Ready:
		return []string{g.Dots}, clash
	case !s.known:
		return []string{"the capacity is not known"}, clash
	}
	words = []string{
		"free " + bytesCell(s.free, o).String(), "in " + pieces(s), "largest block " + largest(s, o),
	}
	if s.hasGap {
		words = append(words, bytesCell(s.gap, o).String()+" between circular buffers and buffers")
	}
	if c := v.current(); c != nil && c.Hidden != (aggregator.Hidden{}) {
		words = append(words, "less what is not known")
	}
	return words, clash
}

// pieces says how many pieces the free bytes are in. Those at the ends of a bank may be at one end or at both: where
// each end is, is unknown.
func pieces(s *space) string {
	if s.split {
		return fmt.Sprintf("%d or %d pieces", s.holes, s.holes+1)
	}
	return text.Plural(s.holes, "piece", "pieces")
}

// largest returns the size of the largest free block as text, with a sign before it if it is a lower bound.
func largest(s *space, o settings) string {
	out := bytesCell(s.largestLeast, o).String()
	// Leave out the sign if both bounds look the same.
	if o.Exact && s.largestMost > s.largestLeast || bytesCell(s.largestMost, o).String() != out {
		return text.GlyphSet(o.ASCII).AtLeast + out
	}
	return out
}

// strips draws the address space in lines of cells. Each cell is the same number of bytes.
func (v *mapView) strips(w, rows int) []text.Line {
	g := text.GlyphSet(v.settings.ASCII)
	v.label = max(10, text.Width(text.Hex(v.space.to)))
	inner := max(w-v.label-4, 1)
	n := inner * rows
	cells := make([]stripCell, n)
	scale := float64(n) / float64(max(v.space.to-v.space.from, 1))
	place := func(address uint64) float64 { return float64(address-v.space.from) * scale }
	sel := v.Table.Chosen()
	for i := range v.space.blocks {
		b := &v.space.blocks[i]
		if b.kind == freeBlock || b.kind == edgeBlock {
			continue
		}
		from, to := place(b.from), place(b.to)
		for x := int(from); x < n && float64(x) < to; x++ {
			share := min(to, float64(x+1)) - max(from, float64(x))
			c := &cells[x]
			c.share += share
			c.clash = c.clash || b.clash
			if share >= c.most {
				c.most, c.kind, c.odd = share, b.kind, i%2 == 1
			}
		}
	}
	picked := [2]int{-1, -1}
	if sel != nil && v.List.Moved() {
		picked = [2]int{int(place(sel.from)), max(int(place(sel.to)), int(place(sel.from))+1)}
	}
	var out []text.Line
	for y := range rows {
		address := v.space.from + uint64(float64(y*inner)/scale)
		l := text.Line{text.Faint.Span(" " + fmt.Sprintf("%*s", v.label, text.Hex(address)) + " " + g.Wall)}
		for x := range inner {
			i := y*inner + x
			look, s := cells[i].draw(g)
			if i >= picked[0] && i < picked[1] {
				// Use the block's own filling in another colour. Reversed, a large block would hide everything else.
				if look = text.Notice; s == " " {
					s = g.Between
				}
			}
			if k := len(l) - 1; k > 0 && l[k].Role == look {
				l[k].Text += s
				continue
			}
			l = append(l, look.Span(s))
		}
		out = append(out, append(l, text.Faint.Span(g.Wall)))
	}
	return out
}

// stripCell is what blocks that are not free take of one cell of the strip: share of the cell together. kind is that of
// the block that takes the most.
type stripCell struct {
	share, most float64
	kind        blockKind
	odd, clash  bool
}

func (c *stripCell) draw(g text.Glyphs) (text.Role, string) {
	// partly is the share below which a cell is shown as partly free.
	const partly = 0.6
	switch {
	case c.share == 0:
		return text.Plain, " "
	case c.clash:
		return text.Alert, g.Clash
	case c.share < partly && c.kind != belowBlock:
		return text.First, g.Some
	case c.kind == bufferBlock && c.odd:
		return text.First, g.Fills[text.FillNext]
	}
	return fillOf(&block{kind: c.kind}, g)
}

func (v *mapView) legend(w int) text.Line {
	g := text.GlyphSet(v.settings.ASCII)
	out := text.Plain.Line(text.Spaces(v.label + 2))
	add := func(fill string, look text.Role, name string) {
		if next := (text.Line{look.Span(" " + fill), text.Plain.Span(" " + name)}); out.Width()+next.Width() <= w {
			out = append(out, next...)
		}
	}
	add(g.Fills[text.FillBuffer]+g.Fills[text.FillNext], text.First, "buffers")
	add(g.Some, text.First, "partly free")
	if v.memory == aggregator.L1 {
		add(g.Fills[text.FillCircular], text.Third, "circular")
		add(g.Fills[text.FillSmall], text.Second, "L1_SMALL")
		add(g.Fills[text.FillRing], text.Fourth, ringBlock.String())
	}
	add(g.Clash, text.Alert, "overlap")
	if v.memory == aggregator.L1 {
		add(g.Fills[text.FillBelow], text.Faint, belowBlock.String())
	}
	return out
}

// mapMemories are the memories that have a map.
var mapMemories = []aggregator.Memory{aggregator.L1, aggregator.DRAM, aggregator.Trace}

func (v *mapView) Move(m widget.Motion) {
	if (m == widget.Left || m == widget.Right) && !v.Choosing {
		by := 1
		if m == widget.Left {
			by = -1
		}
		v.nextCore(by)
		return
	}
	v.Table.Move(m)
}

// nextCore shows another core, if the map shows L1. Cores are sorted by the bytes that circular buffers take, the
// largest first.
func (v *mapView) nextCore(by int) {
	n := len(v.cores)
	if v.memory != aggregator.L1 || n == 0 {
		return
	}
	for i, u := range v.cores {
		if u.core == v.core {
			v.core, v.chosen = v.cores[(i+by+n)%n].core, true
			return
		}
	}
	v.core, v.chosen = v.cores[0].core, true
}

func (v *mapView) Bindings() []widget.Binding {
	list := v.Table.Bindings()
	if v.Choosing {
		return list
	}
	return append(append(list,
		widget.Binding{Key: "tab", Does: "the next memory: L1 of a core, a bank of DRAM, of TRACE", Brief: "memory", Keys: []tcell.Key{tcell.KeyTab}, Do: func(rune) {
			for i, m := range mapMemories {
				if m == v.memory {
					v.memory = mapMemories[(i+1)%len(mapMemories)]
					return
				}
			}
		}},
		widget.Binding{Key: "left, right", Does: "the previous core, the next core, by how much of it is used"},
	), v.chipBindings()...)
}

func (v *mapView) Mouse(a tview.MouseAction, x, y int) bool {
	if v.strip.Has(y) && a == tview.MouseLeftDown {
		return v.pick(x, y-v.strip.Top)
	}
	return v.Table.Mouse(a, x, y-v.strip.Top-v.strip.Height-1)
}

// pick selects the block at a cell of the strip, and reports whether the table has a row for it.
func (v *mapView) pick(x, row int) bool {
	x -= v.label + 3
	inner := v.SeenW + 2 - v.label - 4
	if x < 0 || x >= inner || v.space.to == v.space.from {
		return false
	}
	at := v.space.from + uint64((float64(row*inner+x)+0.5)/float64(inner*v.strip.Height)*float64(v.space.to-v.space.from))
	for i := range v.Rows {
		if v.Rows[i].from <= at && at < v.Rows[i].to {
			v.List.Move(i-v.List.Index, len(v.Rows), v.At)
			return true
		}
	}
	return false
}
