package ui

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gdamore/tcell/v2"
	"github.com/rivo/tview"

	"tt-memtrace/aggregator"
	"tt-memtrace/internal/plural"
	"tt-memtrace/internal/telemetry"
	"tt-memtrace/ui/text"
	"tt-memtrace/ui/widget"
)

// charts shows the histories of a chip or process, one above the other, over one time axis.
type charts struct {
	*state
	// selected is the metric of the selected chart. alone means that this chart fills the view.
	selected metric
	alone    bool
	// window is an index of windows. zoomed means that the user chose it; otherwise see windowIndex. back is how far
	// the end of the window is before now.
	window int
	zoomed bool
	back   time.Duration
	// cursor is the column at which values are read, counted back from the last one.
	cursor int
	// previous is the process that was shown when the user last switched to a chip with t.
	previous processID
	// high scales to the highest value, not to the capacity.
	high bool

	columns int
	panels  []chartPanel
}

type chartPanel struct {
	metric metric
	region widget.Region
}

// windows are the time spans that + and - choose from. The last one is as long as the history can be.
var windows = []time.Duration{time.Minute, 5 * time.Minute, 15 * time.Minute, time.Hour, 2 * time.Hour, 6 * time.Hour, 24 * time.Hour, 7 * 24 * time.Hour}

func newCharts(s *state) *charts { return &charts{state: s, window: 1} }

// windowIndex returns the index of the window: the user's choice; otherwise one minute for a history that is no older,
// or five.
func (c *charts) windowIndex() int {
	if young, _ := c.history.recent(c.data.now); !c.zoomed && young <= windows[0] {
		return 0
	}
	return c.window
}

// axisWidth is the width of the axis at the left: numbers and a line.
const axisWidth = 11

// of returns the subject whose history of a metric is shown.
func (c *charts) of(m metric) subject {
	switch chip := c.current(); {
	case c.process != processID{}:
		return subject{process: c.process, metric: m}
	case m == metricRate || chip == nil:
		return subject{metric: m}
	default:
		return subject{chip: chip.Chip, metric: m}
	}
}

// shown returns the metrics that have a chart: of a chip, all up to metricCB; of a process, DRAM and L1; and others
// that have values.
func (c *charts) shown() []metric {
	always := metricCB
	if c.process != (processID{}) {
		always = metricL1
	}
	var out []metric
	for m := range numMetrics {
		if m <= always || c.history.has(c.of(m)) {
			out = append(out, m)
		}
	}
	return out
}

// name returns the name of the chip or process that is shown.
func (c *charts) name() string {
	if c.process == (processID{}) {
		return "chip " + chipName(c.current().Chip)
	}
	g := text.GlyphSet(c.settings.ASCII)
	return fmt.Sprintf("process %d %s", c.process.pid, text.Clip(text.Command(c.command(), c.settings.ASCII), 28, g.Dots))
}

// command returns the command of the process that is shown.
func (c *charts) command() string {
	if p := c.known(); p != nil {
		return p.Info.Command
	}
	return ""
}

// known returns the process that is shown, even if it has ended; nil if a chip is shown, or the process is forgotten.
func (c *charts) known() *aggregator.ProcessSnapshot {
	for _, list := range [][]aggregator.ProcessSnapshot{c.data.snapshot.Processes, c.data.snapshot.Ended} {
		if i := slices.IndexFunc(list, func(p aggregator.ProcessSnapshot) bool { return idOf(&p) == c.process }); i >= 0 {
			return &list[i]
		}
	}
	return nil
}

// amount returns the current amount of a memory, with what is uncertain about it. Other metrics have no uncertainty.
func (c *charts) amount(m metric) amount {
	if m > metricCB {
		return amount{}
	}
	if p := c.known(); p != nil {
		return c.settings.processAmounts(p)[m]
	}
	if chip := c.current(); chip != nil && c.process == (processID{}) {
		return c.settings.amountIn(chip, m)
	}
	return amount{}
}

// live returns the process that is shown; nil if a chip is shown, or the process has ended.
func (c *charts) live() *aggregator.ProcessSnapshot {
	list := c.data.snapshot.Processes
	if i := slices.IndexFunc(list, func(p aggregator.ProcessSnapshot) bool { return idOf(&p) == c.process }); i >= 0 {
		return &list[i]
	}
	return nil
}

func (c *charts) Compose(w, h int) widget.Picture {
	p := widget.Picture{Selected: -1}
	if c.current() == nil && c.process == (processID{}) {
		return widget.Picture{Lines: []text.Line{nil, text.Faint.Line("  " + noChip(&c.data))}, Selected: -1}
	}
	g := text.GlyphSet(c.settings.ASCII)
	c.columns = max(w-axisWidth-1, 1)
	c.cursor = max(min(c.cursor, c.columns-1), 0)
	end := c.data.now - min(c.data.now, uint64(c.back))
	begin := end - min(end, uint64(windows[c.windowIndex()]))
	at := begin + uint64(float64(end-begin)*float64(c.columns-c.cursor)/float64(c.columns))

	head := text.Line{text.Strong.Span(" " + c.name()), text.Plain.Span("  " + windowName(windows[c.windowIndex()]) + " to "), text.Plain.Span(c.moment(end, c.back == 0))}
	list := c.shown()
	sel := 0
	for i, m := range list {
		if m == c.selected {
			sel = i
		}
	}
	c.selected = list[sel]
	room := max(h-3, 1)
	// least is the fewest lines of a readable chart.
	const least = 4
	fit := min(max(room/least, 1), len(list))
	if c.alone {
		fit = 1
	}
	first := max(min(sel-fit/2, len(list)-fit), 0)
	if fit == 1 {
		first = sel
	}
	if fit < len(list) && !c.alone {
		head = append(head, text.Faint.Span(fmt.Sprintf("  %d-%d of %d charts", first+1, first+fit, len(list))))
		if first+fit < len(list) {
			head = append(head, text.Faint.Span(" "+g.Down))
		}
	}
	if c.cursor > 0 {
		head = append(head, text.Plain.Span("   cursor at "), text.Notice.Span(c.moment(at, false)))
	}
	if s := c.marksAt(begin, end); s != "" {
		head = append(head, text.Notice.Span("   "+s))
	}
	p.Lines = append(p.Lines, head.Shortened(w, g.Dots))
	c.panels = c.panels[:0]
	for i := range fit {
		lines := room / fit
		if i < room%fit {
			lines++
		}
		m := list[first+i]
		c.panels = append(c.panels, chartPanel{m, widget.Region{Top: len(p.Lines), Height: lines}})
		p.Lines = append(p.Lines, c.panel(m, begin, end, lines, w)...)
	}
	p.Lines = append(p.Lines, c.marksLine(begin, end, g), c.axis(begin, end))
	return p
}

func windowName(d time.Duration) string {
	switch {
	case d >= 48*time.Hour:
		return fmt.Sprintf("%d days", d/(24*time.Hour))
	case d >= 2*time.Hour:
		return fmt.Sprintf("%d hours", d/time.Hour)
	case d >= time.Hour:
		return "1 hour"
	case d == time.Minute:
		return "1 minute"
	}
	return fmt.Sprintf("%d minutes", d/time.Minute)
}

// moment returns a time on the axis as text: "now" if now is set; otherwise the time of day, with the date but without
// seconds if it is more than 20 hours ago.
func (c *charts) moment(t uint64, now bool) string {
	at := c.wall(t)
	switch {
	case at.IsZero():
		return text.GlyphSet(c.settings.ASCII).Unknown
	case now:
		return "now"
	case c.data.clock.Sub(at) > 20*time.Hour:
		return at.Format("Jan 2 15:04")
	}
	return at.Format("15:04:05")
}

// ceiling returns the upper limit of a metric: a memory's capacity, or the driver's maximum of temperature or power; 0
// if it is unknown or there is none.
func (c *charts) ceiling(m metric) uint64 {
	var chips []aggregator.ChipSnapshot
	switch chip, p := c.current(), c.live(); {
	case p != nil:
		chips = p.Chips
	case chip != nil && c.process == processID{}:
		chips = []aggregator.ChipSnapshot{*chip}
	}
	var sum uint64
	for i := range chips {
		switch m {
		case metricDRAM, metricL1, metricL1Small, metricTrace, metricCB:
			memory := aggregator.L1
			if m < metricCB {
				memory = shownMemories()[m]
			}
			n, known := chips[i].Memory[memory].Capacity()
			if !known {
				return 0
			}
			sum += n
		case metricTemperature, metricPower:
			if t := telemetryOf(&c.data, &chips[i]); t != nil {
				most := map[metric]telemetry.Value{metricTemperature: t.TemperatureMax, metricPower: t.PowerMax}[m]
				sum = uint64(max(most.N, 0))
			}
		}
	}
	return sum
}

// write returns a value of a metric in its unit.
func (o settings) write(m metric, v uint64) string {
	switch m {
	case metricRate:
		return text.Count(v, o.Exact) + "/s"
	case metricTemperature:
		return fmt.Sprintf("%.1f%s", float64(v)/1000, o.degrees())
	case metricPower:
		return fmt.Sprintf("%.1f W", float64(v)/1e6)
	case metricClock:
		return fmt.Sprintf("%d MHz", v)
	}
	return text.FitScale([]uint64{v}, nil, o.Exact, false).Bytes(v)
}

// panel returns the chart of one metric: a line of words, then the picture.
func (c *charts) panel(m metric, begin, end uint64, h, w int) []text.Line {
	g, o := text.GlyphSet(c.settings.ASCII), c.settings
	values := c.history.read(c.of(m), begin, end, c.columns, o.requested)
	var top uint64
	for _, v := range values {
		if v != widget.Unknown {
			top = max(top, v)
		}
	}
	highest, ceiling := top, c.ceiling(m)
	if !c.high && ceiling > 0 {
		top = ceiling
	}
	cursor, name := " ", text.Title
	if m == c.selected {
		cursor, name = g.Cursor, text.Strong
	}
	called := metricNames[m]
	if m == metricRate && c.process != (processID{}) {
		called = "allocations and frees/s"
	}
	words := text.Line{text.Notice.Span(cursor), name.Span(called), text.Plain.Span("  ")}
	now := c.amount(m)
	was := signOf(now.peak, g) // whether earlier values were certain is not kept
	if v := values[c.columns-1-c.cursor]; v == widget.Unknown {
		words = append(words, text.Faint.Span(g.Unknown))
	} else {
		look, sign := widget.Fullness(v, ceiling)
		if sign == "" {
			look = text.Plain
		}
		before := was
		if c.cursor == 0 && c.back == 0 {
			before = signOf(now.used, g)
		}
		words = append(words, look.Span(before+o.write(m, v)+sign))
	}
	switch {
	case ceiling > 0 && m < metricCB:
		words = append(words, text.Faint.Span(" of "+text.Capacity(ceiling, o.Exact, false)))
	case ceiling > 0 && m > metricCB:
		words = append(words, text.Faint.Span(" of "+o.write(m, ceiling)))
	}
	if highest > 0 {
		words = append(words, text.Faint.Span("  highest "+was+o.write(m, highest)))
	}
	out := []text.Line{words.Shortened(w, g.Dots)}
	if h < 2 {
		return out
	}
	for i, l := range widget.Plot(values, top, ceiling, h-1, c.columns-1-c.cursor, c.cursor > 0, g) {
		label := ""
		switch {
		case i == 0 && top > 0:
			label = o.write(m, top)
			if o.Exact && m <= metricHost {
				label = text.FitScale([]uint64{top}, nil, false, false).Bytes(top)
			}
		case i == h-2 && i > 0:
			label = "0"
		}
		out = append(out, append(text.Line{text.Faint.Span(text.Spaces(axisWidth-1-text.Width(label)) + label + g.Wall)}, l...))
	}
	return out
}

// markKinds are the events that are marked on the time axis, each with its letter and name. If several are in one
// column, the last of these kinds is shown.
var markKinds = []struct {
	kind         logKind
	letter, name string
}{{logStart, "S", "start"}, {logExit, "E", "exit"}, {logLost, "!", "loss"}, {logFailed, "F", "failure"}, {logClash, "C", "clash"}, {logOutOfMemory, "O", "out of memory"}}

func (k logKind) letter() string {
	for _, m := range markKinds {
		if m.kind == k {
			return m.letter
		}
	}
	return ""
}

func (c *charts) column(t, begin, end uint64) int {
	if t < begin || t > end || end == begin {
		return -1
	}
	return min(int(float64(t-begin)/float64(end-begin)*float64(c.columns)), c.columns-1)
}

// marks returns the marks of the process that is shown, and all losses of events; all marks for a chip.
func (c *charts) marks() []mark {
	if c.process == (processID{}) {
		return c.data.marks
	}
	var out []mark
	for _, m := range c.data.marks {
		if m.kind == logLost || m.pid == c.process.pid {
			out = append(out, m)
		}
	}
	return out
}

// marksLine returns the line above the axis with the letters of events.
func (c *charts) marksLine(begin, end uint64, g text.Glyphs) text.Line {
	cells, kinds := make([]string, c.columns), make([]logKind, c.columns)
	for _, m := range c.marks() {
		if x := c.column(m.time, begin, end); x >= 0 && m.kind >= kinds[x] {
			cells[x], kinds[x] = m.kind.letter(), m.kind
		}
	}
	out := text.Line{text.Faint.Span("   events " + g.Wall)}
	for x, s := range cells {
		look := text.Plain
		switch {
		case kinds[x] >= logLost:
			look = text.Alert
		case s == "" && c.cursor > 0 && x == c.columns-1-c.cursor:
			s, look = g.Mark, text.Notice
		case s == "":
			s = " "
		default:
			look = text.Notice
		}
		if n := len(out); out[n-1].Role == look && n > 1 {
			out[n-1].Text += s
			continue
		}
		out = append(out, look.Span(s))
	}
	return out
}

// marksAt returns what happened at the cursor or, if nothing did, the meaning of the visible letters.
func (c *charts) marksAt(begin, end uint64) string {
	g := text.GlyphSet(c.settings.ASCII)
	at, out, seen := c.columns-1-c.cursor, []string{}, map[logKind]bool{}
	for _, m := range c.marks() {
		x := c.column(m.time, begin, end)
		seen[m.kind] = seen[m.kind] || x >= 0
		if x != at || c.cursor == 0 {
			continue
		}
		who, often := fmt.Sprintf("%d %s", m.pid, text.Clip(text.Command(m.command, c.settings.ASCII), 24, g.Dots)), ""
		if m.count > 1 {
			often = ", " + text.Times(m.count)
		}
		switch m.kind {
		case logStart:
			out = append(out, who+" started")
		case logExit:
			out = append(out, who+" "+m.exit)
		case logLost:
			out = append(out, text.Digits(m.count)+" "+plural.Word(m.count, "event was lost", "events were lost"))
		case logFailed, logClash, logOutOfMemory:
			out = append(out, who+": "+m.failure.Describe(m.memory)+often)
		}
	}
	if len(out) == 0 {
		for _, k := range slices.Backward(markKinds) {
			if seen[k.kind] {
				out = append(out, k.letter+" "+k.name)
			}
		}
		return strings.Join(out, "  ")
	}
	return strings.Join(out, "; ")
}

// axis returns the line of times.
func (c *charts) axis(begin, end uint64) text.Line {
	cells := []byte(text.Spaces(c.columns))
	put := func(x int, s string) {
		x = max(min(x, len(cells)-len(s)), 0)
		if len(s) <= len(cells) {
			copy(cells[x:], s)
		}
	}
	if c.data.clock.IsZero() {
		return nil
	}
	label := func(t uint64) string { return c.moment(t, false) }
	parts := 4
	if c.columns < 60 {
		parts = 2
	}
	for i := 1; i < parts; i++ {
		s := label(begin + (end-begin)/uint64(parts)*uint64(i))
		put(c.columns*i/parts-len(s)/2, s)
	}
	put(0, label(begin))
	put(c.columns, c.moment(end, c.back == 0))
	return append(text.Plain.Line(text.Spaces(axisWidth)), text.Faint.Span(string(cells)))
}

func (c *charts) Move(m widget.Motion) {
	half := windows[c.windowIndex()] / 2
	if c.current() == nil && c.process == (processID{}) {
		return
	}
	switch m {
	case widget.Left:
		if c.cursor == c.columns-1 {
			c.pan(half / 4)
		}
		c.cursor = min(c.cursor+1, c.columns-1)
	case widget.Right:
		if c.cursor == 0 {
			c.pan(-half / 4)
		}
		c.cursor = max(c.cursor-1, 0)
	case widget.PageUp:
		c.pan(half)
	case widget.PageDown:
		c.pan(-half)
	case widget.Home:
		c.pan(time.Duration(c.data.now-c.history.first) - windows[c.windowIndex()] - c.back)
	case widget.End:
		c.back, c.cursor = 0, 0
	case widget.Up, widget.Down:
		list := c.shown()
		for i, x := range list {
			if x == c.selected {
				if m == widget.Up {
					i--
				} else {
					i++
				}
				c.selected = list[max(min(i, len(list)-1), 0)]
				return
			}
		}
	}
}

// pan moves the window back in time, or forward if by is negative. It moves forward up to now, and back until the first
// value is in the middle of the window.
func (c *charts) pan(by time.Duration) {
	most := time.Duration(c.data.now-min(c.history.first, c.data.now)) - windows[c.windowIndex()]/2
	c.back = max(min(c.back+by, most), 0)
}

// turn shows the charts of the process that is this many further in the list, in a circle.
func (c *charts) turn(by int) {
	list := c.data.snapshot.Processes
	if len(list) == 0 {
		return
	}
	i := slices.IndexFunc(list, func(p aggregator.ProcessSnapshot) bool { return idOf(&p) == c.process })
	c.process = idOf(&list[(max(i, 0)+by+len(list))%len(list)])
}

// toProcess shows a process: the one that was shown before the chip, if it has the chip open; otherwise the first that
// has; otherwise the one that was shown before, if it still runs; otherwise the first.
func (c *charts) toProcess() {
	chip, list := c.current(), c.data.snapshot.Processes
	on := func(p *aggregator.ProcessSnapshot) bool {
		return chip != nil && slices.ContainsFunc(p.Chips, func(x aggregator.ChipSnapshot) bool { return x.Chip == chip.Chip })
	}
	c.process = c.previous
	if p := c.live(); p != nil && on(p) {
		return
	}
	for i := range list {
		if on(&list[i]) {
			c.process = idOf(&list[i])
			return
		}
	}
	if c.live() == nil {
		c.turn(0)
	}
}

func (c *charts) Bindings() []widget.Binding {
	return []widget.Binding{
		{Key: "+  -", Does: "a shorter time, a longer one: a minute to a week", Brief: "zoom", Runes: "+-=", Do: func(r rune) {
			c.window, c.zoomed = c.windowIndex(), true
			if r == '-' {
				c.window = min(c.window+1, len(windows)-1)
			} else {
				c.window = max(c.window-1, 0)
			}
			c.pan(0)
		}},
		{Key: "left, right", Does: "the cursor, to read values; End: back to now"},
		{Key: "PgUp, PgDn", Does: "earlier, later; Home: the beginning"},
		{Key: "enter", Does: "the selected chart alone, all again", Brief: "alone", Keys: []tcell.Key{tcell.KeyEnter}, Do: func(rune) { c.alone = !c.alone }},
		{Key: "y", Does: "up to the capacity or to the highest value", Brief: "scale", Runes: "y", Do: func(rune) { c.high = !c.high }},
		{Key: "t", Does: "of a process, of a chip", Brief: "process/chip", Runes: "t", Do: func(rune) {
			if c.process == (processID{}) {
				c.toProcess()
			} else {
				c.previous, c.process = c.process, processID{}
			}
		}},
		{Key: "[  ]", Does: "the previous or next chip or process", Brief: "other", Runes: "[]", Do: func(r rune) {
			by := 1
			if r == '[' {
				by = -1
			}
			if c.process == (processID{}) {
				c.nextChip(by)
			} else {
				c.turn(by)
			}
		}},
	}
}

func (c *charts) Mouse(a tview.MouseAction, x, y int) bool {
	switch a {
	case tview.MouseScrollUp, tview.MouseScrollDown:
		r := '+'
		if a == tview.MouseScrollDown {
			r = '-'
		}
		c.Bindings()[0].Do(r)
	case tview.MouseLeftDown:
		for _, p := range c.panels {
			if p.region.Has(y) {
				c.selected = p.metric
			}
		}
		c.cursor = max(min(c.columns-1-(x-axisWidth), c.columns-1), 0)
	case tview.MouseLeftDoubleClick:
		c.alone = !c.alone
	default:
		return false
	}
	return true
}

func (c *charts) work() func(*reader) func() { return nil }
