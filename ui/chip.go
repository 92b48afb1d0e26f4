package ui

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"

	"github.com/gdamore/tcell/v2"
	"github.com/rivo/tview"

	"tt-memtrace/aggregator"
	"tt-memtrace/telemetry"
)

// chipView is one chip in full.
type chipView struct {
	*state
	*grid[chipShare, processID]
	cores  []coreUse
	spaces map[aggregator.Memory]space
	done   mapQuery
	top    int
}

// chipShare is what a process has of a chip.
type chipShare struct {
	owner
	*aggregator.ChipSnapshot
}

func newChipView(s *state) *chipView {
	v := &chipView{state: s}
	late := func(r *chipShare) bool { return r.process.Late }
	v.grid = &grid[chipShare, processID]{
		state: s, name: "chip", what: "processes", none: "no process has this chip open",
		key:   func(r *chipShare) processID { return idOf(r.process) },
		words: func(b []byte, r *chipShare) []byte { return r.words(b) },
		fields: append(ownerFields(10, 2, func(r *chipShare) owner { return r.owner }),
			amountField(s, "DRAM", 0, late, aggregator.DRAM), amountField(s, "L1", 0, late, aggregator.L1),
			amountField(s, "L1_SMALL", 3, late, aggregator.L1Small), amountField(s, "TRACE", 4, late, aggregator.Trace),
			field[chipShare]{name: programsTitle, right: true, least: 9, rank: 1, order: bigFirst(func(r *chipShare) uint64 { return r.CB.Physical }),
				cell: func(r *chipShare) line { return s.amountCell(programsOf(r.CB, r.process.Late)) }},
			field[chipShare]{name: "KERNELS", right: true, least: 9, rank: 5, order: bigFirst(func(r *chipShare) uint64 { return kernelBytes(&r.Kernel) }),
				cell: func(r *chipShare) line { return s.atLeast(kernelBytes(&r.Kernel), r.Kernel.Unsized > 0) }},
			countField(s, "BUFFERS", 2, func(r *chipShare) uint64 { return buffers(&r.Memory) }),
			countField(s, "PROGRAMS", 6, func(r *chipShare) uint64 { return max(r.CB.Programs, r.Kernel.Programs) }),
		),
		detail: func(r *chipShare) []line {
			return []line{
				pair("process", text(strong, fmt.Sprintf("%d  %s", r.process.PID, r.name))),
				pair("runtime", text(plain, runtimeOf(r.process, s.settings))),
				pair("since", append(s.ageCell(r.process.Since), span{" ago, " + s.when(r.process.Since), plain})),
				pair("peaks", text(plain, peaksOf(&r.Memory, s.settings))),
			}
		},
	}
	return v
}

// runtimeOf names the release and the library of a process.
func runtimeOf(p *aggregator.ProcessSnapshot, o settings) string {
	out := glyphSet(o.ascii).unknown
	if p.Info.Release != "" {
		out = clean(p.Info.Release, o.ascii)
	}
	if p.Info.Library != "" {
		out += "  " + clean(p.Info.Library, o.ascii)
	}
	if p.Info.NotCovered != "" {
		out += "  not covered: " + clean(p.Info.NotCovered, o.ascii)
	}
	return out
}

func peaksOf(memory *[aggregator.NumMemories]aggregator.Usage, o settings) string {
	var out []string
	for _, m := range shownMemories() {
		a := o.amountOf(memory[m], false).highest()
		out = append(out, m.String()+" "+a.number(o.scaleOf([]amount{a}, false), glyphSet(o.ascii)).String())
	}
	return strings.Join(out, "  ")
}

func kernelBytes(u *aggregator.KernelUsage) uint64 {
	var n uint64
	for _, b := range u.Bytes {
		n += b
	}
	return n
}

// amountCell writes an amount in its own unit.
func (s *state) amountCell(a amount) line {
	return a.number(s.settings.scaleOf([]amount{a}, false), glyphSet(s.settings.ascii))
}

func amountField(s *state, name string, rank int, late func(*chipShare) bool, m aggregator.Memory) field[chipShare] {
	requested := func(r *chipShare) uint64 { return max(r.Memory[m].Reserved, r.Memory[m].Requested) }
	return field[chipShare]{name: name, right: true, least: 9, rank: rank, order: bigFirst(requested),
		cell: func(r *chipShare) line { return s.amountCell(s.settings.amountOf(r.Memory[m], late(r))) }}
}

func (v *chipView) work() func(*reader) func() {
	c := v.current()
	if c == nil {
		return nil
	}
	chip, ascii := c.Chip, v.settings.ascii
	var banks [aggregator.NumMemories]aggregator.Banks
	for m := range banks {
		banks[m] = c.Memory[m].Banks
	}
	arrange, last := v.arranger(), v.done
	want := mapQuery{query: v.query(), chip: chip, any: true}
	return func(r *reader) func() {
		touch(r, chip, true)
		now := want
		now.round, now.snapshot = r.round, r.snapshot
		if now == last {
			return nil
		}
		var all []chipShare
		for _, o := range owners(r.snapshot, ascii) {
			for i := range o.process.Chips {
				if o.process.Chips[i].Chip == chip {
					all = append(all, chipShare{o, &o.process.Chips[i]})
				}
			}
		}
		rows := arrange(all)
		if last.snapshot = now.snapshot; now == last {
			return func() {
				v.set(rows, len(all))
				v.done = now
			}
		}
		cores := coresOf(r, chip, ascii)
		spaces := map[aggregator.Memory]space{}
		for _, m := range shownMemories() {
			var others []block
			if m == aggregator.L1 && len(cores) > 0 {
				others = circularBlocks(r, chip, cores[0].core, ascii)
			}
			s := newSpace(bufferBlocks(r, chip, m, bufferBlock, ascii), others, banks[m].Bytes, banks[m].Known && banks[m].Count > 0, m == aggregator.L1)
			s.blocks = nil
			spaces[m] = s
		}
		return func() {
			v.set(rows, len(all))
			v.cores, v.spaces, v.done = cores, spaces, now
		}
	}
}

func (v *chipView) compose(w, h int) picture {
	c := v.state.current()
	if c == nil {
		return picture{lines: []line{nil, text(faint, "  no chip has been opened yet")}, selected: -1}
	}
	if v.done.any && v.done.chip != c.Chip {
		v.done, v.cores, v.spaces = mapQuery{}, nil, nil
		v.forget()
	}
	p := picture{selected: -1}
	p.lines = append(p.lines, v.identity(c, w)...)
	p.lines = append(p.lines, v.memories(c, w)...)
	p.lines = append(p.lines, v.programs(c, w)...)
	// The map of cores needs some room beside what it stands next to, or below.
	least := 5 // of the table of processes
	if heat := v.heat(); len(heat) > 0 && len(p.lines)+len(heat)+1+least <= h {
		p.lines = append(p.lines, rule(w, "cores, by what circular buffers take", "", glyphSet(v.settings.ascii)))
		p.lines = append(p.lines, heat...)
	}
	p.lines = append(p.lines, rule(w, "", "", glyphSet(v.settings.ascii)))
	v.top = len(p.lines)
	body := v.grid.compose(w, max(h-v.top, 3))
	if body.selected >= 0 {
		p.selected = body.selected + v.top
	}
	p.lines = append(p.lines, body.lines...)
	return p
}

// identity says which chip it is, and how it is.
func (v *chipView) identity(c *aggregator.ChipSnapshot, w int) []line {
	o, g := v.settings, glyphSet(v.settings.ascii)
	dot := func(s string) string {
		if s == "" {
			return g.unknown
		}
		return clean(s, o.ascii)
	}
	t := telemetryOf(&v.data, c)
	if t == nil {
		t = &telemetry.Device{}
	}
	parts := []string{"card " + dot(cmp.Or(c.Board, t.Card)), "arch " + dot(c.Arch)}
	if t.Bus != "" || t.Card != "" {
		parts = append(parts, fmt.Sprintf("/dev/tenstorrent/%d", t.Node), strings.TrimSpace("pci "+dot(t.Bus)+" "+clean(t.Link, o.ascii)), "firmware "+dot(t.Firmware), "serial "+dot(t.Serial))
	}
	agrees := agreement(&v.data, o, func(p *aggregator.ProcessSnapshot) bool { return onChip(p, c.Chip) })
	parts = append(parts, agrees.text+" with the runtime")
	name := " chip " + chipName(c.Chip) + "  "
	var lines []line
	for i, l := range packed(parts, w-width(name)) {
		if i > 0 {
			name = spaces(width(name))
		}
		lines = append(lines, line{{name, strong}, {l, plain}}.clipped(w))
	}
	if t.Card == "" && t.Bus == "" && !t.Temperature.Known {
		return append(lines, text(faint, " temperature, power, clock: "+g.unknown))
	}
	sensors := text(plain, " ")
	add := func(name string, x telemetry.Value, unit string, scale float64, decimals int, most telemetry.Value) {
		next := line{{name + " ", faint}}
		switch {
		case !x.Known:
			next = append(next, span{g.unknown, faint})
		case most.Known:
			next = append(next, span{strconv.FormatFloat(float64(x.N)/scale, 'f', decimals, 64) + unit, plain}, span{" of " + strconv.FormatFloat(float64(most.N)/scale, 'f', 0, 64), faint})
		default:
			next = append(next, span{strconv.FormatFloat(float64(x.N)/scale, 'f', decimals, 64) + unit, plain})
		}
		if sensors.width()+next.width() <= w {
			sensors = append(append(sensors, next...), span{"  ", plain})
		}
	}
	none := telemetry.Value{}
	if t.Trips.Known && t.Trips.N > 0 {
		sensors = append(sensors, span{"too hot " + times(uint64(t.Trips.N)), alert}, span{"  ", plain})
	}
	add("temperature", t.Temperature, o.degrees(), 1000, 1, t.TemperatureMax)
	add("power", t.Power, " W", 1e6, 1, t.PowerMax)
	add("clock", t.AI, " MHz", 1, 0, none)
	if t.Fan.Known {
		add("fan", t.Fan, " rpm", 1, 0, none)
	}
	add("voltage", t.Voltage, " V", 1000, 3, none)
	add("current", t.Current, " A", 1000, 1, none)
	add("axi", t.AXI, " MHz", 1, 0, none)
	add("arc", t.ARC, " MHz", 1, 0, none)
	return append(lines, sensors)
}

// degrees is the unit of temperatures.
func (o settings) degrees() string {
	if o.ascii {
		return " C"
	}
	return " °C"
}

// memories is a row for each memory of the chip.
func (v *chipView) memories(c *aggregator.ChipSnapshot, w int) []line {
	o, g := v.settings, glyphSet(v.settings.ascii)
	late := anyOf(c.PIDs, lateProcesses(v.data.snapshot))
	list := shownMemories()
	columns := []column{{title: text(title, "MEMORY"), least: 8}, {title: text(title, ""), gap: 2}}
	add := func(name string, cell func(m aggregator.Memory, u aggregator.Usage) line) {
		col := column{title: text(title, name), right: true, gap: 2}
		for _, m := range list {
			col.cells = append(col.cells, cell(m, c.Memory[m]))
		}
		columns = append(columns, col)
	}
	for _, m := range list {
		columns[0].cells = append(columns[0].cells, text(strong, m.String()))
	}
	own := func(n uint64) line { return bytesCell(n, o) }
	add("RESERVED", func(_ aggregator.Memory, u aggregator.Usage) line { return v.amountCell(settings{}.amountOf(u, late)) })
	add("REQUESTED", func(_ aggregator.Memory, u aggregator.Usage) line {
		return v.amountCell(settings{requested: true}.amountOf(u, late))
	})
	add("PEAK", func(_ aggregator.Memory, u aggregator.Usage) line { return v.amountCell(o.amountOf(u, late).highest()) })
	add("CAPACITY", func(_ aggregator.Memory, u aggregator.Usage) line {
		switch n, known := u.Capacity(); {
		case !known:
			return text(faint, g.unknown)
		case n == 0:
			return text(faint, "-")
		default:
			return text(plain, capacity(n, o.exact, false))
		}
	})
	add("FREE", func(_ aggregator.Memory, u aggregator.Usage) line {
		n, known := u.Capacity()
		switch {
		case !known || late || u.Unreserved > 0:
			return text(faint, g.unknown)
		case n == 0:
			return text(faint, "-")
		}
		return own(n - min(u.Reserved, n))
	})
	add("BUFFERS", func(_ aggregator.Memory, u aggregator.Usage) line { return text(plain, count(u.Buffers, o.exact)) })
	add("LARGEST FREE", func(m aggregator.Memory, u aggregator.Usage) line {
		s, ok := v.spaces[m]
		n, known := u.Capacity()
		switch {
		case known && n == 0:
			return text(faint, "-")
		case !ok || !s.known || late:
			return text(faint, g.unknown)
		}
		return text(plain, largest(&s, o))
	})
	add("IN A BANK OF", func(_ aggregator.Memory, u aggregator.Usage) line {
		if !u.Banks.Known || u.Banks.Count == 0 {
			return text(faint, g.unknown)
		}
		return text(faint, fmt.Sprintf("%s x %d", capacity(u.Banks.Bytes, o.exact, false), u.Banks.Count))
	})
	// What there is no room for goes, the last first; what is left is the bars'.
	for len(columns) > 6 && tableWidth(columns) > w-1 {
		columns = columns[:len(columns)-1]
	}
	rest := min(w-1-tableWidth(columns), maxBar)
	columns[1].wide = 0 // there is nothing in it yet
	if rest >= 5 {
		for _, m := range list {
			columns[1].cells = append(columns[1].cells, barCell(o.amountOf(c.Memory[m], late), rest, g))
		}
	} else {
		columns = append(columns[:1], columns[2:]...)
	}
	t := table{columns: columns, n: len(list)}
	out := []line{append(text(plain, " "), t.head()...)}
	for _, l := range t.rows(0, t.n) {
		out = append(out, append(text(plain, " "), l...))
	}
	return out
}

// programs say what the chip's programs take.
func (v *chipView) programs(c *aggregator.ChipSnapshot, w int) []line {
	o, g := v.settings, glyphSet(v.settings.ascii)
	late := anyOf(c.PIDs, lateProcesses(v.data.snapshot))
	cb := programsOf(c.CB, late)
	dot := func(l line) string { return l.String() }
	logical := amount{used: c.CB.Logical, peak: c.CB.PeakLogical, unknown: c.CB.Logical == 0 && late}
	parts := []string{
		programsTitle + ": " + dot(v.amountCell(cb)) + " physical, peak " + dot(v.amountCell(cb.highest())),
		dot(v.amountCell(logical)) + " logical, peak " + dot(v.amountCell(logical.highest())),
	}
	var kinds []string
	for _, k := range []struct {
		n    uint64
		kind aggregator.CBKind
	}{{c.CB.Circular, aggregator.Circular}, {c.CB.Dataflow, aggregator.Dataflow}, {c.CB.Scratchpads, aggregator.Scratchpad},
		{c.CB.Global, aggregator.GlobalCircular}, {c.CB.Reported, aggregator.ReportedCircular}} {
		if k.n > 0 {
			kinds = append(kinds, count(k.n, o.exact)+" "+kindName(k.kind))
		}
	}
	if kinds != nil {
		parts = append(parts, strings.Join(kinds, ", "))
	}
	parts = append(parts, plural(int(min(c.CB.Programs, 1<<62)), "program", "programs"))
	if c.CB.Physical > 0 {
		parts = append(parts, fmt.Sprintf("highest end %s", hex(c.CB.Top)))
		busy := []string{fmt.Sprintf("(%d,%d) %s", c.CB.Busiest.X, c.CB.Busiest.Y, bytesCell(c.CB.BusiestBytes, o))}
		if len(v.cores) > 0 {
			busy = busy[:0]
			for _, u := range v.cores[:min(len(v.cores), 4)] {
				busy = append(busy, fmt.Sprintf("(%d,%d) %s", u.core.X, u.core.Y, bytesCell(u.bytes, o)))
			}
		}
		parts = append(parts, "busiest cores "+strings.Join(busy, " "))
	}
	var out []line
	for _, l := range packed(parts, w-2) {
		out = append(out, text(plain, " "+l))
	}
	k := &c.Kernel
	words := []string{"kernels: " + dot(v.atLeast(kernelBytes(k), k.Unsized > 0))}
	for t := range aggregator.NumKernelTypes {
		if k.Binaries[t] > 0 {
			words = append(words, fmt.Sprintf("%s %s, %s", count(k.Binaries[t], o.exact), t, bytesCell(k.Bytes[t], o)))
		}
	}
	if k.DRAMCopies > 0 {
		words = append(words, fmt.Sprintf("%s copies in DRAM, %s", count(k.DRAMCopies, o.exact), bytesCell(k.DRAMBytes, o)))
	}
	if k.Unsized > 0 {
		words = append(words, g.atLeast+" "+count(k.Unsized, o.exact)+" of unknown size")
	}
	if c.Ring.ID != 0 {
		words = append(words, "config ring: "+o.ringWords(&c.Ring))
	}
	for _, l := range packed(words, w-2) {
		out = append(out, text(plain, " "+l))
	}
	return out
}

// ringWords say what a kernel-config ring holds, in each core.
func (o settings) ringWords(r *aggregator.Ring) string {
	if r.Capacity == 0 {
		return glyphSet(o.ascii).unknown + ", made before tracing began"
	}
	out := bytesCell(r.Used, o).String() + " of " + capacity(r.Capacity, o.exact, false) + " by " + plural(int(min(r.Programs, 1<<62)), "program", "programs")
	if r.Replayed {
		out += ", less what a trace left"
	}
	return out
}

// heat is a map of the cores that circular buffers lie on, the busiest the darkest.
func (v *chipView) heat() []line {
	if len(v.cores) == 0 {
		return nil
	}
	g := glyphSet(v.settings.ascii)
	var mx, my uint16
	use := map[aggregator.Core]uint64{}
	for _, u := range v.cores {
		mx, my = max(mx, u.core.X), max(my, u.core.Y)
		use[u.core] = u.bytes
	}
	if mx > 31 || my > 23 {
		return nil // no chip is like that
	}
	top := v.cores[0].bytes
	head := "     "
	for x := range mx + 1 {
		head += fmt.Sprintf("%-3d", x)
	}
	out := []line{text(faint, head)}
	for y := range my + 1 {
		l := text(faint, fmt.Sprintf("  %2d ", y))
		for x := range mx + 1 {
			n := use[aggregator.Core{X: x, Y: y}]
			if n == 0 {
				l = append(l, span{g.unknownCore() + "  ", faint})
				continue
			}
			s := g.sparks[min(int(float64(n)/float64(top)*float64(len(g.sparks))), len(g.sparks)-1)]
			l = append(l, span{s + s + " ", third})
		}
		out = append(out, l)
	}
	return out
}

// unknownCore is a core that nothing lies on.
func (g glyphs) unknownCore() string { return g.track }

func (v *chipView) bindings() []binding {
	list := v.grid.bindings()
	if v.choosing {
		return list
	}
	return append(append(list,
		binding{key: "m", does: "the map of its memory", brief: "map", runes: "m", do: func(rune) { v.state.open(mapPage) }},
		binding{key: "t", does: "the charts of the chip", brief: "charts", runes: "t", do: func(rune) {
			if c := v.state.current(); c != nil {
				v.chartsOf(c.Chip, processID{})
			}
		}},
		binding{key: "left, right", does: "the chip before, the next chip"},
		binding{key: "tab", does: "the next chip", keys: []tcell.Key{tcell.KeyTab}, do: func(rune) { v.nextChip(1) }},
	), v.chipBindings()...)
}

func (v *chipView) move(m motion) {
	switch {
	case v.choosing:
		v.grid.move(m)
	case m == left:
		v.nextChip(-1)
	case m == right:
		v.nextChip(1)
	default:
		v.grid.move(m)
	}
}

func (v *chipView) mouse(a tview.MouseAction, x, y int) bool { return v.grid.mouse(a, x, y-v.top) }
