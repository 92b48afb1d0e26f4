package ui

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/gdamore/tcell/v2"
	"github.com/rivo/tview"

	"tt-memtrace/aggregator"
	"tt-memtrace/aggregator/exact"
	"tt-memtrace/internal/plural"
	"tt-memtrace/internal/telemetry"
	"tt-memtrace/ui/text"
	"tt-memtrace/ui/widget"
)

// chipView shows one chip: its card and sensors, its memories, its programs, a map of its cores, and a table of the
// processes that have it open.
type chipView struct {
	*state
	*widget.Table[chipShare, processID]
	cores  []coreUse
	spaces map[aggregator.Memory]space
	done   mapQuery
	top    int
}

// chipShare is a process's use of a chip.
type chipShare struct {
	owner
	*aggregator.ChipSnapshot
	ranks [aggregator.NumMemories]uint64
}

func newChipView(s *state) *chipView {
	v := &chipView{state: s}
	v.Table = &widget.Table[chipShare, processID]{
		Settings: &s.settings.Settings, Name: "chip", What: "processes", None: "no process has this chip open",
		Key:   func(r *chipShare) processID { return idOf(r.process) },
		Words: func(b []byte, r *chipShare) []byte { return r.words(b) },
		Fields: append(ownerFields(10, 2, func(r *chipShare) owner { return r.owner }),
			amountField(s, "DRAM", 0, aggregator.DRAM), amountField(s, "L1", 0, aggregator.L1),
			amountField(s, "L1_SMALL", 3, aggregator.L1Small), amountField(s, "TRACE", 4, aggregator.Trace),
			widget.Field[chipShare]{Name: programsTitle, Right: true, Least: 9, Rank: 1, Order: mostFirst(func(r *chipShare) exact.Quantity { return r.CB.Physical }),
				Cell: func(r *chipShare) text.Line { return s.amountCell(programsOf(r.CB)) }},
			quantityField(s, "KERNELS", 5, func(r *chipShare) exact.Quantity { return r.Kernel.Bytes }),
			countedField(s, "BUFFERS", 2, func(r *chipShare) exact.Quantity { return buffers(&r.Memory) }),
			countedField(s, "PROGRAMS", 6, programsIn),
		),
		Detail: func(r *chipShare) []text.Line {
			return append(append([]text.Line{
				widget.Pair("process", text.Strong.Line(fmt.Sprintf("%d  %s", r.process.PID, r.name)))}, s.reasonLines(r.process.Reasons)...),
				widget.Pair("runtime", text.Plain.Line(runtimeOf(r.process, s.settings))),
				widget.Pair("since", append(s.ageCell(r.process.Since), text.Plain.Span(" ago, "+s.when(r.process.Since)))),
				widget.Pair("peaks", text.Plain.Line(peaksOf(&r.Memory, s.settings))),
			)
		},
	}
	return v
}

// runtimeOf returns the release and the library of a process, and what of it is not covered.
func runtimeOf(p *aggregator.ProcessSnapshot, o settings) string {
	out := text.GlyphSet(o.ASCII).Unknown
	if p.Info.Release != "" {
		out = text.Sanitize(p.Info.Release, o.ASCII)
	}
	if p.Info.Library != "" {
		out += "  " + text.Sanitize(p.Info.Library, o.ASCII)
	}
	if p.Info.NotCovered != "" {
		out += "  not covered: " + text.Sanitize(p.Info.NotCovered, o.ASCII)
	}
	return out
}

func peaksOf(memory *[aggregator.NumMemories]aggregator.Usage, o settings) string {
	var out []string
	for _, m := range shownMemories() {
		a := o.amountOf(memory[m]).highest()
		out = append(out, m.String()+" "+a.number(o.scaleOf([]amount{a}, false), text.GlyphSet(o.ASCII)).String())
	}
	return strings.Join(out, "  ")
}

// programsIn returns the number of programs that a process has on the chip: unknown if none was seen and one count is.
func programsIn(r *chipShare) exact.Quantity {
	placed, loaded := r.CB.Programs, r.Kernel.Programs
	return exact.Of(max(placed.WithoutBound(), loaded.WithoutBound())).Unseen(!placed.Known() || !loaded.Known())
}

// amountCell returns an amount in its own unit.
func (s *state) amountCell(a amount) text.Line {
	return a.number(s.settings.scaleOf([]amount{a}, false), text.GlyphSet(s.settings.ASCII))
}

func amountField(s *state, name string, rank int, m aggregator.Memory) widget.Field[chipShare] {
	return widget.Field[chipShare]{Name: name, Right: true, Least: 9, Rank: rank,
		Order: bigFirst(func(r *chipShare) uint64 { return r.ranks[m] }),
		Cell:  func(r *chipShare) text.Line { return s.amountCell(s.settings.amountOf(r.Memory[m])) }}
}

func (v *chipView) work() func(*reader) func() {
	c := v.current()
	if c == nil {
		return nil
	}
	chip, ascii := c.Chip, v.settings.ASCII
	var banks [aggregator.NumMemories]aggregator.Banks
	for m := range banks {
		banks[m] = c.Memory[m].Banks
	}
	arrange, last := v.Arranger(), v.done
	o := v.settings
	want := mapQuery{query: v.Query(), chip: chip, any: true, requested: o.requested}
	return func(r *reader) func() {
		readChip(r, chip, true)
		now := want
		now.round, now.snapshot = r.round, r.snapshot
		if now == last {
			return nil
		}
		var all []chipShare
		for _, by := range owners(r.snapshot, ascii) {
			for i := range by.process.Chips {
				if by.process.Chips[i].Chip != chip {
					continue
				}
				row := chipShare{owner: by, ChipSnapshot: &by.process.Chips[i]}
				for m := range row.ranks {
					row.ranks[m] = o.amountOf(row.Memory[m]).rank()
				}
				all = append(all, row)
			}
		}
		rows := arrange(all)
		if last.snapshot = now.snapshot; now == last {
			return func() {
				v.Set(rows, len(all))
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
			s := newSpace(bufferBlocks(r, chip, m, nil, bufferBlock, ascii), others, banks[m], m == aggregator.L1)
			s.blocks = nil
			spaces[m] = s
		}
		return func() {
			v.Set(rows, len(all))
			v.cores, v.spaces, v.done = cores, spaces, now
		}
	}
}

func (v *chipView) Compose(w, h int) widget.Picture {
	c := v.state.current()
	if c == nil {
		return widget.Picture{Lines: []text.Line{nil, text.Faint.Line("  " + noChip(&v.state.data))}, Selected: -1}
	}
	if v.done.any && v.done.chip != c.Chip {
		v.done, v.cores, v.spaces = mapQuery{}, nil, nil
		v.Forget()
	}
	p := widget.Picture{Selected: -1}
	p.Lines = append(p.Lines, v.identity(c, w)...)
	p.Lines = append(p.Lines, v.memories(c, w)...)
	p.Lines = append(p.Lines, v.programs(c, w)...)
	// Show the map of cores if the table of processes below it still has enough lines.
	least := 5 // lines of that table
	if heat := v.heat(); len(heat) > 0 && len(p.Lines)+len(heat)+1+least <= h {
		p.Lines = append(p.Lines, widget.Rule(w, "cores, by what circular buffers take", "", text.GlyphSet(v.settings.ASCII)))
		p.Lines = append(p.Lines, heat...)
	}
	p.Lines = append(p.Lines, widget.Rule(w, "", "", text.GlyphSet(v.settings.ASCII)))
	v.top = len(p.Lines)
	body := v.Table.Compose(w, max(h-v.top, 3))
	if body.Selected >= 0 {
		p.Selected = body.Selected + v.top
	}
	p.Lines = append(p.Lines, body.Lines...)
	return p
}

// identity returns lines about the chip itself: its name and card, why its numbers are not exact, and its sensors.
func (v *chipView) identity(c *aggregator.ChipSnapshot, w int) []text.Line {
	o, g := v.settings, text.GlyphSet(v.settings.ASCII)
	dot := func(s string) string {
		if s == "" {
			return g.Unknown
		}
		return text.Sanitize(s, o.ASCII)
	}
	t := telemetryOf(&v.data, c)
	if t == nil {
		t = &telemetry.Device{}
	}
	parts := []string{"card " + dot(cmp.Or(c.Board, t.Card)), "arch " + dot(c.Arch)}
	if t.Bus != "" || t.Card != "" {
		parts = append(parts, fmt.Sprintf("/dev/tenstorrent/%d", t.Node), strings.TrimSpace("pci "+dot(t.Bus)+" "+text.Sanitize(t.Link, o.ASCII)), "firmware "+dot(t.Firmware), "serial "+dot(t.Serial))
	}
	if !v.data.stale() {
		parts = append(parts, verification(&v.data, o, func(p *aggregator.ProcessSnapshot) bool { return onChip(p, c.Chip) }).Text)
	}
	name := " chip " + chipName(c.Chip) + "  "
	var lines []text.Line
	for i, l := range text.Pack(parts, w-text.Width(name)) {
		if i > 0 {
			name = text.Spaces(text.Width(name))
		}
		lines = append(lines, text.Line{text.Strong.Span(name), text.Plain.Span(l)}.Shortened(w, g.Dots))
	}
	for i, r := range c.Reasons {
		if i == fewNotes {
			more := text.Plural(len(c.Reasons)-i, "more reason", "more reasons")
			lines = append(lines, text.Notice.Line(" and "+more+": :reasons"))
			break
		}
		f := flaw{code: r.Code, sentence: r.String()}
		if r.PID != 0 {
			f.pids = []uint32{r.PID}
		}
		lines = append(lines, text.Notice.Line(clippedReason(" not exact: "+text.Sanitize(f.String(), o.ASCII), w, g)))
	}
	if t.Card == "" && t.Bus == "" && !t.Temperature.Known {
		return append(lines, text.Faint.Line(" temperature, power, clock: "+g.Unknown))
	}
	sensors := text.Plain.Line(" ")
	add := func(name string, x telemetry.Value, unit string, scale float64, decimals int, most telemetry.Value) {
		next := text.Line{text.Faint.Span(name + " ")}
		switch {
		case !x.Known:
			next = append(next, text.Faint.Span(g.Unknown))
		case most.Known:
			next = append(next, text.Plain.Span(strconv.FormatFloat(float64(x.N)/scale, 'f', decimals, 64)+unit), text.Faint.Span(" of "+strconv.FormatFloat(float64(most.N)/scale, 'f', 0, 64)))
		default:
			next = append(next, text.Plain.Span(strconv.FormatFloat(float64(x.N)/scale, 'f', decimals, 64)+unit))
		}
		if sensors.Width()+next.Width() <= w {
			sensors = append(append(sensors, next...), text.Plain.Span("  "))
		}
	}
	none := telemetry.Value{}
	if t.Trips.Known && t.Trips.N > 0 {
		sensors = append(sensors, text.Alert.Span("too hot "+text.Times(uint64(t.Trips.N))), text.Plain.Span("  "))
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

// degrees returns the unit of temperatures.
func (o settings) degrees() string {
	if o.ASCII {
		return " C"
	}
	return " °C"
}

// memories returns a line of titles, and a line for each of the shown memories of the chip.
func (v *chipView) memories(c *aggregator.ChipSnapshot, w int) []text.Line {
	o, g := v.settings, text.GlyphSet(v.settings.ASCII)
	list := shownMemories()
	columns := []widget.Column{{Title: text.Title.Line("MEMORY"), Least: 8}, {Title: text.Title.Line(""), Gap: 2}}
	add := func(name string, cell func(m aggregator.Memory, u aggregator.Usage) text.Line) {
		col := widget.Column{Title: text.Title.Line(name), Right: true, Gap: 2}
		for _, m := range list {
			col.Cells = append(col.Cells, cell(m, c.Memory[m]))
		}
		columns = append(columns, col)
	}
	for _, m := range list {
		columns[0].Cells = append(columns[0].Cells, text.Strong.Line(m.String()))
	}
	add("RESERVED", func(_ aggregator.Memory, u aggregator.Usage) text.Line {
		return v.amountCell(settings{}.amountOf(u))
	})
	add("REQUESTED", func(_ aggregator.Memory, u aggregator.Usage) text.Line {
		return v.amountCell(settings{requested: true}.amountOf(u))
	})
	add("PEAK", func(_ aggregator.Memory, u aggregator.Usage) text.Line {
		return v.amountCell(o.amountOf(u).highest())
	})
	add("CAPACITY", func(_ aggregator.Memory, u aggregator.Usage) text.Line {
		switch n, known := u.Capacity(); {
		case !known:
			return text.Faint.Line(g.Unknown)
		case n == 0:
			return text.Faint.Line("-")
		default:
			return text.Plain.Line(text.Capacity(n, o.Exact, false))
		}
	})
	add("FREE", func(_ aggregator.Memory, u aggregator.Usage) text.Line {
		n, known := u.Capacity()
		switch {
		case known && n == 0 && !c.Hidden.Late:
			return text.Faint.Line("-")
		}
		used, exactly := u.Reserved.Exact()
		if !known || c.Hidden.Late || !exactly {
			return text.Faint.Line(g.Unknown)
		}
		free := n - min(used, n)
		if free == 0 {
			return text.Faint.Line("0")
		}
		return text.Plain.Line(text.Free(free, n, o.Exact, false))
	})
	add("BUFFERS", func(_ aggregator.Memory, u aggregator.Usage) text.Line {
		n, bound := u.Buffers.Value()
		if bound == exact.Unknown {
			return text.Faint.Line(g.Unknown)
		}
		return text.Plain.Line(text.Count(n, o.Exact))
	})
	add("LARGEST FREE", func(m aggregator.Memory, u aggregator.Usage) text.Line {
		s, ok := v.spaces[m]
		n, known := u.Capacity()
		switch {
		case known && n == 0:
			return text.Faint.Line("-")
		case !ok || !s.known || c.Hidden.Late || c.Hidden.Buffers && !u.Reserved.Some():
			return text.Faint.Line(g.Unknown)
		}
		return text.Plain.Line(largest(&s, o))
	})
	add("IN A BANK OF", func(_ aggregator.Memory, u aggregator.Usage) text.Line {
		if !u.Banks.Known || u.Banks.Count == 0 {
			return text.Faint.Line(g.Unknown)
		}
		return text.Faint.Line(fmt.Sprintf("%s x %d", text.Capacity(u.Banks.Bytes, o.Exact, false), u.Banks.Count))
	})
	const leastBar = 5
	// Drop columns that do not fit, and give bars the rest. The largest free block is shown beside the size of a bank,
	// because it is in one bank; beside the size of all banks it would seem small.
	other := "REQUESTED"
	if o.requested {
		other = "RESERVED"
	}
	for _, least := range [][]string{{"BUFFERS"}, {other}, {"FREE"}, {"LARGEST FREE", "IN A BANK OF"}} {
		if widget.TableWidth(columns)+leastBar > w-1 {
			columns = slices.DeleteFunc(columns, func(c widget.Column) bool { return slices.Contains(least, c.Title.String()) })
		}
	}
	rest := min(w-1-widget.TableWidth(columns), maxBar)
	columns[1].Wide = 0 // its width is measured again with the bars
	if rest >= leastBar {
		for _, m := range list {
			columns[1].Cells = append(columns[1].Cells, barCell(o.amountOf(c.Memory[m]), rest, g))
		}
	} else {
		columns = append(columns[:1], columns[2:]...)
	}
	t := widget.Columns{Columns: columns, N: len(list)}
	out := []text.Line{append(text.Plain.Line(" "), t.Head()...)}
	for _, l := range t.Rows(0, t.N) {
		out = append(out, append(text.Plain.Line(" "), l...))
	}
	return out
}

// programs returns lines about the programs on the chip: circular and dataflow buffers, kernels, and the kernel-config
// ring.
func (v *chipView) programs(c *aggregator.ChipSnapshot, w int) []text.Line {
	o, g := v.settings, text.GlyphSet(v.settings.ASCII)
	cb := programsOf(c.CB)
	dot := func(l text.Line) string { return l.String() }
	if v.data.totalsOnly() {
		parts := []string{programsTitle + ": " + dot(v.amountCell(cb)) + ", peak " + dot(v.amountCell(cb.highest())), "programs, kernels, config ring: " + g.Unknown}
		return []text.Line{text.Plain.Line(" " + strings.Join(parts, "  "))}
	}
	use := &c.CB
	logical := amount{used: use.Logical, peak: use.PeakLogical}
	parts := []string{
		programsTitle + ": " + dot(v.amountCell(cb)) + " physical, peak " + dot(v.amountCell(cb.highest())),
		dot(v.amountCell(logical)) + " logical, peak " + dot(v.amountCell(logical.highest())),
	}
	var kinds []string
	for _, k := range []struct {
		n    uint64
		kind aggregator.CBKind
	}{{use.Circular.WithoutBound(), aggregator.Circular}, {use.Dataflow.WithoutBound(), aggregator.Dataflow}, {use.Scratchpads.WithoutBound(), aggregator.Scratchpad},
		{use.Global.WithoutBound(), aggregator.GlobalCircular}, {use.Reported.WithoutBound(), aggregator.ReportedCircular}} {
		if k.n > 0 {
			kinds = append(kinds, text.Count(k.n, o.Exact)+" "+k.kind.String())
		}
	}
	if kinds != nil {
		parts = append(parts, strings.Join(kinds, ", "))
	}
	if n, bound := use.Programs.Value(); bound == exact.Unknown {
		parts = append(parts, "programs "+g.Unknown)
	} else {
		parts = append(parts, text.Plural(int(min(n, 1<<62)), "program", "programs"))
	}
	if use.Physical.Some() {
		parts = append(parts, fmt.Sprintf("highest end %s", text.Hex(use.Top.WithoutBound())))
		busy := []string{fmt.Sprintf("(%d,%d) %s", use.Busiest.X, use.Busiest.Y, bytesCell(use.BusiestBytes.WithoutBound(), o))}
		if len(v.cores) > 0 {
			busy = busy[:0]
			for _, u := range v.cores[:min(len(v.cores), 4)] {
				busy = append(busy, fmt.Sprintf("(%d,%d) %s", u.core.X, u.core.Y, bytesCell(u.bytes, o)))
			}
		}
		parts = append(parts, "busiest cores "+strings.Join(busy, " "))
	}
	var out []text.Line
	for _, l := range text.Pack(parts, w-2) {
		out = append(out, text.Plain.Line(" "+l))
	}
	k := &c.Kernel
	words := []string{"kernels: " + dot(v.settings.bytesOf(k.Bytes))}
	if bytes := k.OnCores; bytes.Some() {
		words = append(words, "times their cores "+dot(v.settings.bytesOf(bytes)))
	}
	for t := range aggregator.NumKernelTypes {
		if k.Binaries[t].Some() {
			words = append(words, fmt.Sprintf("%s %s, %s", dot(counted(k.Binaries[t], o, g)), t, dot(o.bytesOf(k.BytesOf[t]))))
		}
	}
	if k.DRAMCopies.Some() {
		words = append(words, fmt.Sprintf("%s %s in DRAM, %s", dot(counted(k.DRAMCopies, o, g)),
			plural.Word(k.DRAMCopies.WithoutBound(), "copy", "copies"), dot(o.bytesOf(k.DRAMBytes))))
	}
	if k.Unsized.Some() {
		words = append(words, g.AtLeast+" "+dot(counted(k.Unsized, o, g))+" of unknown size")
	}
	if c.ConfigRing.ID != 0 {
		words = append(words, "config ring: "+o.ringWords(&c.ConfigRing))
	}
	for _, l := range text.Pack(words, w-2) {
		out = append(out, text.Plain.Line(" "+l))
	}
	return out
}

// ringWords returns how many bytes of a kernel-config ring are in use in each core, of how many, and in how many
// places.
func (o settings) ringWords(r *aggregator.RingUsage) string {
	capacity, known := r.Capacity.Exact()
	if !known {
		return text.GlyphSet(o.ASCII).Unknown
	}
	words := o.bytesOf(r.Used).String() + " of " + text.Capacity(capacity, o.Exact, false)
	if r.Replayed {
		return words + ", a trace was replayed"
	}
	if n := r.Places.WithoutBound(); n > 0 {
		words += " in " + text.Plural(int(min(n, 1<<62)), "place", "places")
	}
	return words
}

// heat returns a map of the cores: the more bytes circular buffers take on a core, the higher its bar. It is nil if no
// core has any.
func (v *chipView) heat() []text.Line {
	if len(v.cores) == 0 {
		return nil
	}
	g := text.GlyphSet(v.settings.ASCII)
	var mx, my uint16
	use := map[aggregator.Core]uint64{}
	for _, u := range v.cores {
		mx, my = max(mx, u.core.X), max(my, u.core.Y)
		use[u.core] = u.bytes
	}
	if mx > 31 || my > 23 {
		return nil // no chip has so many columns or rows of cores
	}
	top := v.cores[0].bytes
	head := "     "
	for x := range mx + 1 {
		head += fmt.Sprintf("%-3d", x)
	}
	out := []text.Line{text.Faint.Line(head)}
	for y := range my + 1 {
		l := text.Faint.Line(fmt.Sprintf("  %2d ", y))
		for x := range mx + 1 {
			n := use[aggregator.Core{X: x, Y: y}]
			if n == 0 {
				l = append(l, text.Faint.Span(g.Track+"  "))
				continue
			}
			s := g.Sparks[min(int(float64(n)/float64(top)*float64(len(g.Sparks))), len(g.Sparks)-1)]
			l = append(l, text.Third.Span(s+s+" "))
		}
		out = append(out, l)
	}
	return out
}

func (v *chipView) Bindings() []widget.Binding {
	list := v.Table.Bindings()
	if v.Choosing {
		return list
	}
	return append(append(list,
		widget.Binding{Key: "m", Does: "the map of its memory", Brief: "map", Runes: "m", Do: func(rune) { v.state.open(mapPage) }},
		widget.Binding{Key: "t", Does: "the charts of the chip", Brief: "charts", Runes: "t", Do: func(rune) {
			if c := v.state.current(); c != nil {
				v.chartsOf(c.Chip, processID{})
			}
		}},
		widget.Binding{Key: "left, right", Does: "the previous chip, the next chip"},
		widget.Binding{Key: "tab", Does: "the next chip", Keys: []tcell.Key{tcell.KeyTab}, Do: func(rune) { v.nextChip(1) }},
	), v.chipBindings()...)
}

func (v *chipView) Move(m widget.Motion) {
	switch {
	case v.Choosing:
		v.Table.Move(m)
	case m == widget.Left:
		v.nextChip(-1)
	case m == widget.Right:
		v.nextChip(1)
	default:
		v.Table.Move(m)
	}
}

func (v *chipView) Mouse(a tview.MouseAction, x, y int) bool { return v.Table.Mouse(a, x, y-v.top) }
