package ui

import (
	"cmp"
	"fmt"
	"strconv"

	"github.com/gdamore/tcell/v2"
	"github.com/rivo/tview"

	"tt-memtrace/aggregator"
)

// mapView is the address space of a bank of a memory, or of a core's L1: all of it as a
// strip, and its blocks as a table.
type mapView struct {
	*state
	*grid[block, blockKey]
	memory aggregator.Memory
	// core is the one whose L1 is shown, the one that is used most unless the user chose.
	core   aggregator.Core
	chosen bool
	cores  []coreUse

	space space
	done  mapQuery
	strip region
	// label is the width of the addresses beside the strip.
	label int
}

type blockKey struct {
	from uint64
	kind blockKind
	// process and id tell buffers at one address apart.
	process processID
	id      uint64
}

// mapQuery is what a map was made of.
type mapQuery struct {
	query  query
	chip   aggregator.Chip
	memory aggregator.Memory
	core   aggregator.Core
	round  int
	any    bool
	ring   aggregator.Ring
	// snapshot is that of the sums, where these are shown.
	snapshot *aggregator.Snapshot
}

func newMapView(s *state) *mapView {
	v := &mapView{state: s, memory: aggregator.L1}
	v.grid = &grid[block, blockKey]{
		state: s, name: "map", what: "blocks", none: "nothing is known of this memory",
		key: func(b *block) blockKey {
			k := blockKey{from: b.from, kind: b.kind}
			if b.buffer != nil {
				k.process, k.id = idOf(b.buffer.process), b.buffer.ID
			}
			return k
		},
		words: func(w []byte, b *block) []byte {
			w = append(strconv.AppendUint(append(w, "0x"...), b.from, 16), ' ')
			w = append(append(w, b.kind.String()...), ' ')
			if b.buffer != nil {
				w = b.buffer.words(w)
			}
			for i, p := range b.programs {
				w = append(append(b.owners[i].words(w), p.Operation...), ' ')
			}
			return w
		},
		fields: []field[block]{
			{name: "ADDRESS", right: true, least: 10, cell: func(b *block) line { return text(plain, hex(b.from)) },
				order: func(a, b *block) int { return cmp.Compare(a.from, b.from) }},
			bytesField(s, "SIZE", 0, (*block).size),
			{name: "BLOCK", least: 13, cell: v.kindCell, order: func(a, b *block) int { return cmp.Compare(a.kind, b.kind) }},
			{name: "PID", right: true, least: 7, rank: 2, cell: func(b *block) line {
				if b.buffer == nil {
					return nil
				}
				return text(strong, strconv.FormatUint(uint64(b.buffer.process.PID), 10))
			}},
			{name: "PROCESS", least: 14, flex: true, rank: 3, cell: func(b *block) line {
				switch {
				case b.buffer != nil:
					return text(plain, b.buffer.name)
				case len(b.owners) > 0:
					return text(plain, b.owners[0].name)
				}
				return nil
			}},
			{name: "WHAT", least: 24, flex: true, rank: 1, cell: v.whatCell},
			{name: "AGE", right: true, least: 6, rank: 4, cell: func(b *block) line {
				if b.buffer == nil {
					return nil
				}
				return s.ageCell(b.buffer.Since)
			}, order: func(a, b *block) int { return cmp.Compare(since(a), since(b)) }},
		},
		detail: v.tell,
	}
	return v
}

// since is when a block came, as late as can be for what is no buffer.
func since(b *block) uint64 {
	if b.buffer == nil {
		return 1<<64 - 1
	}
	return b.buffer.Since
}

func (v *mapView) kindCell(b *block) line {
	g := glyphSet(v.settings.ascii)
	look, fill := fillOf(b, g)
	out := line{{fill, look}, {" " + b.kind.String(), plain}}
	if b.kind == freeBlock || b.kind == edgeBlock {
		out = line{{"  " + b.kind.String(), faint}}
	}
	if b.clash {
		out = append(out, span{" " + g.clash, alert})
	}
	return out
}

func fillOf(b *block, g glyphs) (role, string) {
	switch b.kind {
	case bufferBlock:
		return first, g.fills[fillBuffer]
	case smallBlock:
		return second, g.fills[fillSmall]
	case circularBlock:
		return third, g.fills[fillCircular]
	case ringBlock:
		return fourth, g.fills[fillRing]
	case belowBlock:
		return faint, g.fills[fillBelow]
	}
	return plain, " "
}

func (v *mapView) whatCell(b *block) line {
	g, o := glyphSet(v.settings.ascii), v.settings
	switch {
	case b.buffer != nil:
		return text(plain, b.buffer.what(g)+", "+asked(b.buffer, o))
	case len(b.programs) == 1:
		return v.operationCell(b.programs[0].Operation, 60)
	case len(b.programs) > 1:
		return append(v.operationCell(b.programs[0].Operation, 40), span{fmt.Sprintf(" and %d more", len(b.programs)-1), plain})
	case b.ring != nil:
		return text(plain, v.settings.ringWords(b.ring))
	case b.kind == belowBlock:
		return text(faint, "firmware, what is reserved")
	}
	return nil
}

// asked is what was asked for a buffer, on all banks of a chip.
func asked(r *bufferRow, o settings) string {
	return bytesCell(r.Size, o).String() + " asked for"
}

func (v *mapView) tell(b *block) []line {
	where := "of each bank"
	if v.memory == aggregator.L1 {
		where = "of the core"
	}
	head := pair("block", text(strong, fmt.Sprintf("%s, %s to %s %s, %s bytes", b.kind, hex(b.from), hex(b.to), where, digits(b.size()))))
	if b.buffer != nil {
		return append([]line{head}, bufferDetail(v.state, b.buffer)...)
	}
	out := []line{head}
	if b.ring != nil {
		out = append(out, pair("holds", text(plain, v.settings.ringWords(b.ring)+", the newest launches")))
	}
	for i, p := range b.programs[:min(len(b.programs), 8)] {
		name := clean(p.Operation, v.settings.ascii)
		if name == "" {
			name = hex(p.ID)
		}
		out = append(out, pair("program", append(line{{name, strong}, {fmt.Sprintf("  %d %s, ", b.owners[i].process.PID, b.owners[i].name), plain}},
			append(v.ageCell(p.Since), span{" old, " + plural(int(min(p.Launches, 1<<62)), "launch", "launches"), plain})...)))
	}
	if n := len(b.programs) - 8; n > 0 {
		out = append(out, pair("", text(faint, fmt.Sprintf("and %d more programs", n))))
	}
	return out
}

func (v *mapView) work() func(*reader) func() {
	c := v.current()
	if c == nil {
		return nil
	}
	chip, memory, ascii := c.Chip, v.memory, v.settings.ascii
	banks, ring := c.Memory[memory].Banks, c.Ring
	core, chosen := v.core, v.chosen
	arrange, last := v.arranger(), v.done
	want := mapQuery{query: v.query(), chip: chip, memory: memory, any: true}
	return func(r *reader) func() {
		touch(r, chip, memory == aggregator.L1)
		now := want
		now.round, now.core, now.ring = r.round, core, ring
		if now == last {
			return nil
		}
		var cores []coreUse
		buffers := bufferBlocks(r, chip, memory, bufferBlock, ascii)
		var others []block
		if memory == aggregator.L1 {
			cores = coresOf(r, chip, ascii)
			if !chosen && len(cores) > 0 {
				core = cores[0].core
			}
			now.core = core
			if now == last {
				return nil
			}
			others = append(bufferBlocks(r, chip, aggregator.L1Small, smallBlock, ascii), circularBlocks(r, chip, core, ascii)...)
			if ring.Capacity > 0 {
				others = append(others, block{from: ring.Base, to: ring.Base + ring.Capacity, kind: ringBlock, ring: &ring})
			}
		} else if now == last {
			return nil
		}
		s := newSpace(buffers, others, banks.Bytes, banks.Known && banks.Count > 0, memory == aggregator.L1)
		rows := arrange(s.blocks)
		return func() {
			if v.memory != memory || v.state.current() == nil || v.state.current().Chip != chip {
				return // the user went on
			}
			v.done, v.space, v.cores, v.core = now, s, cores, core
			v.set(rows, len(s.blocks))
		}
	}
}

// touch reads what a view of a chip shows, where it has changed.
func touch(r *reader, chip aggregator.Chip, programs bool) {
	for i := range r.snapshot.Processes {
		if p := &r.snapshot.Processes[i]; onChip(p, chip) {
			r.buffers(p)
			if programs {
				r.programs(p)
			}
		}
	}
}

func (v *mapView) compose(w, h int) picture {
	c := v.current()
	if c == nil {
		return picture{lines: []line{nil, text(faint, "  no chip has been opened yet")}, selected: -1}
	}
	if v.done.any && (v.done.chip != c.Chip || v.done.memory != v.memory) {
		v.done, v.space, v.cores = mapQuery{}, space{}, nil
		v.forget()
	}
	p := picture{lines: v.heads(c, w), selected: -1}
	rows := max(min(h/4, 8), 1)
	v.strip = region{len(p.lines), rows}
	p.lines = append(p.lines, v.strips(w, rows)...)
	p.lines = append(p.lines, v.legend(w))
	at := len(p.lines)
	body := v.grid.compose(w, h-at)
	if body.selected >= 0 {
		p.selected = body.selected + at
	}
	p.lines = append(p.lines, body.lines...)
	return p
}

// heads say what is shown, and how it stands with what is free.
func (v *mapView) heads(c *aggregator.ChipSnapshot, w int) []line {
	o := v.settings
	what := "a bank of " + v.memory.String()
	if v.memory == aggregator.L1 {
		what = "L1 of any core: no circular buffers"
		if len(v.cores) > 0 {
			what = fmt.Sprintf("L1 of core (%d,%d)", v.core.X, v.core.Y)
			for _, u := range v.cores {
				if u.core == v.core {
					what += ", circular buffers " + bytesCell(u.bytes, o).String()
				}
			}
		}
	}
	left := line{{" chip " + chipName(c.Chip) + "  ", strong}, {what, plain}}
	if b := c.Memory[v.memory].Banks; b.Known && b.Count > 0 {
		of := fmt.Sprintf(", 1 of %d banks of %s", b.Count, capacity(b.Bytes, o.exact, false))
		if left.width()+width(of) <= w {
			left = append(left, span{of, faint})
		}
	}
	out := []line{left.shortened(w, glyphSet(o.ascii).dots)}
	words, clash := v.freeWords()
	for i, l := range packed(words, w-2-width(clash)) {
		next := text(plain, " ")
		if i == 0 && clash != "" {
			next = append(next, span{clash, alert}, span{" ", plain})
		}
		out = append(out, append(next, span{l, plain}))
	}
	return out
}

// freeWords say what is free, how much of it is in one piece, and what is in the way; and
// what lies on each other, if anything does.
func (v *mapView) freeWords() (words []string, clash string) {
	o, g := v.settings, glyphSet(v.settings.ascii)
	s := &v.space
	if s.clashes > 0 {
		clash = " " + g.clash + " " + plural(s.clashes, "overlap", "overlaps") + " "
	}
	switch {
	case !v.ready:
		return []string{g.dots}, clash
	case !s.known:
		return []string{"the capacity is not known"}, clash
	}
	words = []string{
		"free " + bytesCell(s.free, o).String(), "largest block " + largest(s, o), "in " + plural(s.holes, "piece", "pieces"),
	}
	if s.hasGap {
		words = append(words, bytesCell(s.gap, o).String()+" between circular buffers and buffers")
	}
	if c := v.current(); c != nil && anyOf(c.PIDs, lateProcesses(v.data.snapshot)) {
		words = append(words, "less what is not known from before the attach")
	}
	return words, clash
}

// largest writes the largest free block, as well as it is known.
func largest(s *space, o settings) string {
	out := bytesCell(s.largestLeast, o).String()
	// What rounds to the same need not be told apart.
	if o.exact && s.largestMost > s.largestLeast || bytesCell(s.largestMost, o).String() != out {
		return glyphSet(o.ascii).atLeast + out
	}
	return out
}

// strips draws all of the space in lines of cells, each of them the same number of bytes.
func (v *mapView) strips(w, rows int) []line {
	g := glyphSet(v.settings.ascii)
	v.label = max(10, width(hex(v.space.to)))
	inner := max(w-v.label-4, 1)
	n := inner * rows
	cells := make([]stripCell, n)
	scale := float64(n) / float64(max(v.space.to-v.space.from, 1))
	place := func(address uint64) float64 { return float64(address-v.space.from) * scale }
	sel := v.grid.chosen()
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
	if sel != nil {
		picked = [2]int{int(place(sel.from)), max(int(place(sel.to)), int(place(sel.from))+1)}
	}
	var out []line
	for y := range rows {
		address := v.space.from + uint64(float64(y*inner)/scale)
		l := line{{" " + fmt.Sprintf("%*s", v.label, hex(address)) + " " + g.wall, faint}}
		for x := range inner {
			i := y*inner + x
			look, s := cells[i].draw(g)
			if i >= picked[0] && i < picked[1] {
				if look = tab; s == " " {
					s = g.between
				}
			}
			if k := len(l) - 1; k > 0 && l[k].role == look {
				l[k].text += s
				continue
			}
			l = append(l, span{s, look})
		}
		out = append(out, append(l, span{g.wall, faint}))
	}
	return out
}

// stripCell is what lies in one cell of the strip.
type stripCell struct {
	share, most float64
	kind        blockKind
	odd, clash  bool
}

func (c *stripCell) draw(g glyphs) (role, string) {
	// partly is the share below which a cell is shown as mostly free.
	const partly = 0.6
	switch {
	case c.share == 0:
		return plain, " "
	case c.clash:
		return alert, g.clash
	case c.share < partly && c.kind != belowBlock:
		return first, g.some
	case c.kind == bufferBlock && c.odd:
		return first, g.fills[fillNext]
	}
	return fillOf(&block{kind: c.kind}, g)
}

func (v *mapView) legend(w int) line {
	g := glyphSet(v.settings.ascii)
	out := text(plain, spaces(v.label+2))
	add := func(fill string, look role, name string) {
		if next := (line{{" " + fill, look}, {" " + name, plain}}); out.width()+next.width() <= w {
			out = append(out, next...)
		}
	}
	add(g.fills[fillBuffer]+g.fills[fillNext], first, "buffers")
	add(g.some, first, "partly free")
	if v.memory == aggregator.L1 {
		add(g.fills[fillCircular], third, "circular")
		add(g.fills[fillSmall], second, "L1_SMALL")
		add(g.fills[fillRing], fourth, ringBlock.String())
	}
	add(g.clash, alert, "overlap")
	if v.memory == aggregator.L1 {
		add(g.fills[fillBelow], faint, belowBlock.String())
	}
	return out
}

// memories are those that have a map.
var mapMemories = []aggregator.Memory{aggregator.L1, aggregator.DRAM, aggregator.Trace}

func (v *mapView) move(m motion) {
	if (m == left || m == right) && !v.choosing {
		by := 1
		if m == left {
			by = -1
		}
		v.nextCore(by)
		return
	}
	v.grid.move(m)
}

// nextCore goes to another core, in the order of their use.
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

func (v *mapView) bindings() []binding {
	list := v.grid.bindings()
	if v.choosing {
		return list
	}
	return append(append(list,
		binding{key: "tab", does: "the next memory: L1 of a core, a bank of DRAM, of TRACE", brief: "memory", keys: []tcell.Key{tcell.KeyTab}, do: func(rune) {
			for i, m := range mapMemories {
				if m == v.memory {
					v.memory = mapMemories[(i+1)%len(mapMemories)]
					return
				}
			}
		}},
		binding{key: "left, right", does: "the core before, the next one, by how much of it is used"},
	), v.chipBindings()...)
}

func (v *mapView) mouse(a tview.MouseAction, x, y int) bool {
	if v.strip.has(y) && a == tview.MouseLeftDown {
		return v.pick(x, y-v.strip.top)
	}
	return v.grid.mouse(a, x, y-v.strip.top-v.strip.height-1)
}

// pick selects the block at a cell of the strip.
func (v *mapView) pick(x, row int) bool {
	x -= v.label + 3
	inner := v.seenW + 2 - v.label - 4
	if x < 0 || x >= inner || v.space.to == v.space.from {
		return false
	}
	at := v.space.from + uint64((float64(row*inner+x)+0.5)/float64(inner*v.strip.height)*float64(v.space.to-v.space.from))
	for i := range v.rows {
		if v.rows[i].from <= at && at < v.rows[i].to {
			v.list.move(i-v.list.index, len(v.rows), v.at)
			return true
		}
	}
	return false
}
