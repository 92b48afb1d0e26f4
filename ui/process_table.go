package ui

import (
	"cmp"
	"slices"
	"strconv"
	"time"

	"tt-memtrace/aggregator"
	"tt-memtrace/aggregator/exact"
	"tt-memtrace/ui/text"
	"tt-memtrace/ui/widget"
)

// columnID identifies a column of the process table, to sort by it or to drop it.
type columnID int

const (
	byDRAM columnID = iota
	byL1
	byL1Small
	byTrace
	byCB
	byBuffers
	byAllocs
	byFrees
	byRate
	bySince
	byPID
	byCommand
	byChips
	byGrowth
	byGrowthRate
	unsorted
)

// rowKey identifies a row permanently, so that the selection stays on its row when rows come, go or move.
type rowKey struct {
	process processID
	chip    aggregator.Chip
	kind    rowKind
	// since distinguishes exited processes: one that called exec is listed more than once.
	since uint64
}

type rowKind uint8

const (
	chipRow rowKind = iota
	processRow
	// shareRow is a process's use of one chip, placelessRow that of unknown chips.
	shareRow
	placelessRow
)

// entry is a row of the process table before its layout.
type entry struct {
	key     rowKey
	process *aggregator.ProcessSnapshot
	chip    *aggregator.ChipSnapshot
	amounts []amount
	buffers exact.Quantity
	// ended means that the process has exited, and the amounts are its peaks.
	ended bool
	// last means that this is the last row of its process.
	last bool
	// gone means that the process has ended, but the source has not noticed it yet.
	gone bool
}

// entries returns the rows of the process table in their order.
func entries(d *data, o settings, expanded func(processID) bool) []entry {
	var out []entry
	for _, p := range sorted(d, o) {
		row := o.processEntry(p, d.over())
		row.gone = d.gone[row.key.process]
		out = append(out, row)
		if !expanded(row.key.process) {
			continue
		}
		part := func(kind rowKind, c *aggregator.ChipSnapshot, memory *[aggregator.NumMemories]aggregator.Usage) {
			e := entry{key: row.key, process: p, chip: c, ended: row.ended, buffers: buffers(memory)}
			e.key.kind = kind
			if c != nil {
				e.key.chip = c.Chip
			}
			for _, m := range shownMemories() {
				e.amounts = append(e.amounts, o.amountOf(memory[m]))
			}
			if c != nil {
				e.amounts = append(e.amounts, programsOf(c.CB))
			} else {
				e.amounts = append(e.amounts, amount{capacity: exact.Of(0)})
			}
			out = append(out, e)
		}
		for i := range p.Chips {
			part(shareRow, &p.Chips[i], &p.Chips[i].Memory)
		}
		if placeless(p, row.ended) {
			part(placelessRow, nil, &p.Unplaced)
		}
		out[len(out)-1].last = true
	}
	return out
}

// branch returns the line to the left of a row with a part of a process.
func (e *entry) branch(g text.Glyphs) string {
	if e.last {
		return g.Branch
	}
	return g.Tee
}

func (o settings) processEntry(p *aggregator.ProcessSnapshot, ended bool) entry {
	e := entry{key: rowKey{process: idOf(p), kind: processRow}, process: p, amounts: o.processAmounts(p), buffers: p.Buffers, ended: ended}
	if ended {
		e.key.since = p.Since
	}
	return e
}

// placeless reports whether a process holds something on unknown chips or, with ever, has held something.
func placeless(p *aggregator.ProcessSnapshot, ever bool) bool {
	if buffers(&p.Unplaced).Some() {
		return true
	}
	for _, u := range p.Unplaced {
		if ever && u.PeakRequested.Some() {
			return true
		}
	}
	return false
}

// buffers returns the number of buffers in all memories. It is unknown if no buffer was seen and the count of a memory
// is unknown.
func buffers(memory *[aggregator.NumMemories]aggregator.Usage) exact.Quantity {
	var n uint64
	unknown := false
	for m := range memory {
		n += memory[m].Buffers.WithoutBound()
		unknown = unknown || !memory[m].Buffers.Known()
	}
	return exact.Of(n).Unseen(unknown)
}

// processAmounts returns the totals of a process, including its use of unknown chips.
func (o settings) processAmounts(p *aggregator.ProcessSnapshot) []amount {
	var out []amount
	for _, m := range shownMemories() {
		u := p.Memory[m]
		a := o.amountOf(u)
		if !u.Buffers.Some() && allAbsent(p.Chips, m) {
			a.capacity = exact.Of(0)
		}
		out = append(out, a)
	}
	return append(out, programsOf(p.CB))
}

// allAbsent reports whether a process has chips, and none has the memory.
func allAbsent(chips []aggregator.ChipSnapshot, m aggregator.Memory) bool {
	for i := range chips {
		if n, known := chips[i].Memory[m].Capacity(); !known || n > 0 {
			return false
		}
	}
	return len(chips) > 0
}

// sorted returns the processes in the chosen order: large numbers first; the time since which they are seen, names,
// chips and PIDs ascending. Equal ones keep the order of the snapshot.
func sorted(d *data, o settings) []*aggregator.ProcessSnapshot {
	list := d.processes()
	large := func(value func(p *aggregator.ProcessSnapshot) float64) func(a, b *aggregator.ProcessSnapshot) int {
		return func(a, b *aggregator.ProcessSnapshot) int { return cmp.Compare(value(b), value(a)) }
	}
	memory := func(i int) func(a, b *aggregator.ProcessSnapshot) int {
		used := make(map[*aggregator.ProcessSnapshot]float64, len(list))
		for _, p := range list {
			used[p] = float64(o.processAmounts(p)[i].used.WithoutBound())
		}
		return large(func(p *aggregator.ProcessSnapshot) float64 { return used[p] })
	}
	var order func(a, b *aggregator.ProcessSnapshot) int
	switch o.sort {
	case byDRAM, byL1, byL1Small, byTrace, byCB:
		order = memory(int(o.sort - byDRAM))
	case byBuffers:
		order = large(func(p *aggregator.ProcessSnapshot) float64 { return float64(p.Buffers.WithoutBound()) })
	case byAllocs:
		order = large(func(p *aggregator.ProcessSnapshot) float64 { return float64(p.Counters.Allocs.WithoutBound()) })
	case byFrees:
		order = large(func(p *aggregator.ProcessSnapshot) float64 { return float64(p.Counters.Frees.WithoutBound()) })
	case byRate:
		order = large(func(p *aggregator.ProcessSnapshot) float64 { return d.rates.calls[idOf(p)] })
	case bySince:
		order = func(a, b *aggregator.ProcessSnapshot) int { return cmp.Compare(a.Since, b.Since) }
	case byCommand:
		order = func(a, b *aggregator.ProcessSnapshot) int {
			return cmp.Compare(text.Command(a.Info.Command, o.ASCII), text.Command(b.Info.Command, o.ASCII))
		}
	case byGrowth, byGrowthRate:
		if d.base == nil {
			return list
		}
		order = d.growthOrder(o)
	case byChips:
		order = func(a, b *aggregator.ProcessSnapshot) int { return slices.Compare(numbers(a), numbers(b)) }
	default:
		return list
	}
	slices.SortStableFunc(list, order)
	return list
}

func numbers(p *aggregator.ProcessSnapshot) []uint64 {
	var out []uint64
	for i := range p.Chips {
		out = append(out, uint64(p.Chips[i].Chip.Space)<<32|uint64(p.Chips[i].Chip.Number))
	}
	return out
}

// Widths of the column with the command. It gets the cells that are left. Other columns are dropped before it is
// narrower than wanted (or than it needs).
const (
	leastCommand  = 10
	wantedCommand = 18
)

// maxChips is the most cells for the chips of a row.
const maxChips = 20

// dropOrder returns the columns in the order in which they are dropped on a narrow terminal.
func dropOrder() []columnID {
	return []columnID{byFrees, byAllocs, bySince, byRate, byTrace, byL1Small, byCB, byBuffers, byChips, byL1, byGrowth, byGrowthRate}
}

// processTable returns the process table in w cells, with a row for each entry, and the columns that fit.
func processTable(d *data, o settings, list []entry, w int) widget.Columns {
	g := text.GlyphSet(o.ASCII)
	columns := processColumns(d, o, list, false, g)
	if commandRoom(columns, w) < 0 {
		columns = processColumns(d, o, list, true, g)
	}
	for _, id := range dropOrder() {
		if commandRoom(columns, w) >= 0 {
			break
		}
		columns = slices.DeleteFunc(columns, func(c widget.Column) bool { return c.ID == int(id) })
	}
	for i := range columns {
		c := &columns[i]
		if c.ID == int(byCommand) {
			room := max(w-widget.TableWidth(columns)+c.Width(), leastCommand)
			for r := range c.Cells {
				c.Cells[r] = c.Cells[r].Shortened(room, g.Dots)
			}
			c.Wide = 0
		}
		if c.ID == int(o.sort) && o.sort != unsorted {
			c.Title = c.Title.Marked(g.Sorted, c.Right)
			c.Wide = 0
		}
	}
	return widget.Columns{Columns: columns, N: len(list), Dim: len(list) > 0 && list[0].ended}
}

// commandRoom returns the cells that are left of w when the command has the room that it needs, at most wantedCommand.
// It is negative if cells are missing.
func commandRoom(columns []widget.Column, w int) int {
	for i := range columns {
		if columns[i].ID == int(byCommand) {
			n := columns[i].Width()
			return w - widget.TableWidth(columns) + n - min(n, wantedCommand)
		}
	}
	return w - widget.TableWidth(columns)
}

func processColumns(d *data, o settings, list []entry, short bool, g text.Glyphs) []widget.Column {
	gap := 2
	if short {
		gap = 1
	}
	ended, since, rate := len(list) > 0 && list[0].ended, "SEEN", "RATE/s"
	if ended {
		since, rate = "RAN", "EXIT"
	}
	add := func(id columnID, name string, right bool, least int, cell func(e *entry) text.Line) widget.Column {
		c := widget.Column{ID: int(id), Title: text.Title.Line(name), Right: right, Gap: gap, Least: least}
		for i := range list {
			c.Cells = append(c.Cells, cell(&list[i]))
		}
		return c
	}
	// whole returns a column about whole processes, which is empty in rows of a part of a process.
	whole := func(id columnID, name string, least int, cell func(p *aggregator.ProcessSnapshot) text.Line) widget.Column {
		return add(id, name, true, least, func(e *entry) text.Line {
			if e.key.kind != processRow {
				return nil
			}
			return cell(e.process)
		})
	}
	columns := []widget.Column{
		whole(byPID, "PID", 7, func(p *aggregator.ProcessSnapshot) text.Line {
			return text.Strong.Line(strconv.FormatUint(uint64(p.PID), 10))
		}),
		add(unsorted, "", false, 0, func(e *entry) text.Line { return marks(e) }),
		add(byCommand, "PROCESS", false, leastCommand, func(e *entry) text.Line { return nameCell(e, o, g) }),
		add(byChips, "CHIPS", false, 0, func(e *entry) text.Line { return chipsCell(e, g) }),
	}
	columns[0].Gap, columns[1].Gap = 0, 0
	for i, name := range append(memoryNames(), programsTitle) {
		var amounts []amount
		for j := range list {
			amounts = append(amounts, list[j].amounts[i])
		}
		s := o.scaleOf(amounts, short)
		columns = append(columns, add(byDRAM+columnID(i), name, true, o.leastNumber(short), func(e *entry) text.Line {
			return e.amounts[i].number(s, g)
		}))
	}
	columns = append(columns, growthColumns(d, o, whole)...)
	columns = append(columns,
		add(byBuffers, "BUFFERS", true, 0, func(e *entry) text.Line {
			return counted(e.buffers, o, g)
		}),
		whole(byAllocs, "ALLOCS", 7, func(p *aggregator.ProcessSnapshot) text.Line {
			return counted(p.Counters.Allocs, o, g)
		}),
		whole(byFrees, "FREES", 7, func(p *aggregator.ProcessSnapshot) text.Line {
			return counted(p.Counters.Frees, o, g)
		}),
		whole(byRate, rate, 6, func(p *aggregator.ProcessSnapshot) text.Line {
			if ended {
				return exitCell(p.Exit, g)
			}
			r, known := d.rates.calls[idOf(p)]
			switch {
			case !known:
				return text.Faint.Line(g.Unknown)
			case r == 0:
				return text.Faint.Line("0")
			}
			return text.Plain.Line(atLeast(p, g) + text.PerSecond(r))
		}),
		whole(bySince, since, 6, func(p *aggregator.ProcessSnapshot) text.Line {
			if ended {
				return text.Plain.Line(text.Age(time.Duration(max(p.Last, p.Since) - p.Since)))
			}
			return text.Plain.Line(text.Age(time.Duration(max(d.now, p.Since) - p.Since)))
		}),
	)
	if ended {
		columns = slices.DeleteFunc(columns, func(c widget.Column) bool {
			return c.ID == int(byBuffers) // exited processes have no buffers
		})
	}
	return columns
}

// exitCell returns how a process ended: its status, or the signal that killed it.
func exitCell(e *aggregator.Exit, g text.Glyphs) text.Line {
	switch {
	case e == nil:
		return text.Faint.Line(g.Unknown)
	case e.Signal != 0:
		return text.Alert.Line(e.SignalName())
	case e.Status != 0:
		return text.Alert.Line(text.Digits(uint64(e.Status)))
	}
	return text.Faint.Line("0")
}

// counted returns a number of buffers or calls.
func counted(q exact.Quantity, o settings, g text.Glyphs) text.Line {
	n, bound := q.Value()
	if bound == exact.Unknown {
		return text.Faint.Line(g.Unknown)
	}
	return text.Plain.Line(signOf(q, g) + text.Count(n, o.Exact))
}

// digitsOf returns a number of calls in full.
func digitsOf(q exact.Quantity, g text.Glyphs) string {
	n, bound := q.Value()
	if bound == exact.Unknown {
		return g.Unknown
	}
	return signOf(q, g) + text.Digits(n)
}

// atLeast returns the sign before rates of a process that are lower bounds; "" for exact rates.
func atLeast(p *aggregator.ProcessSnapshot, g text.Glyphs) string {
	if p.Info.Source == aggregator.Sampled {
		return g.AtLeast
	}
	return ""
}

// marks returns the letters that say why a process's numbers are not exact.
func marks(e *entry) text.Line {
	if e.key.kind != processRow {
		return nil
	}
	return marksCell(e.process.Reasons)
}

func nameCell(e *entry, o settings, g text.Glyphs) text.Line {
	switch e.key.kind {
	case shareRow:
		return text.Line{text.Faint.Span("  " + e.branch(g) + " "), text.Plain.Span("chip " + chipName(e.chip.Chip))}
	case placelessRow:
		return text.Line{text.Faint.Span("  " + e.branch(g) + " "), text.Faint.Span("chip not known")}
	}
	if e.gone {
		return text.Line{text.Notice.Span("exited "), text.Plain.Span(text.Command(e.process.Info.Command, o.ASCII))}
	}
	if name := text.Command(e.process.Info.Command, o.ASCII); name != "" {
		if e.process.Info.Source == aggregator.Reported {
			return text.Line{text.Faint.Span("[socket] "), text.Plain.Span(name)}
		}
		return text.Plain.Line(name)
	}
	return text.Faint.Line(g.Unknown)
}

func chipsCell(e *entry, g text.Glyphs) text.Line {
	if e.key.kind != processRow {
		return nil
	}
	chips := chipRanges(e.process.Chips)
	if placeless(e.process, e.ended) {
		// Some of what it holds is on unknown chips.
		chips += "+?"
	}
	if h := e.process.Hidden; chips == "" && !h.Buffers && !h.Programs && !e.ended && e.process.Info.Source != aggregator.Reported {
		return text.Faint.Line("-") // it has no chip open
	}
	if chips == "" {
		return text.Faint.Line(g.Unknown)
	}
	return text.Plain.Line(text.Clip(chips, maxChips, g.Dots))
}

// legend explains the marks of the host and of the listed processes: which are not exact, and why. It also explains the
// sign of lower bounds or of unknown reserved sizes.
func legend(s *aggregator.Snapshot, list []*aggregator.ProcessSnapshot, o settings) []string {
	var out []string
	for _, f := range flaws(s, list) {
		out = append(out, text.Sanitize(f.String(), o.ASCII))
	}
	g := text.GlyphSet(o.ASCII)
	least, unreserved, sign := false, false, g.Unknown
	for _, p := range list {
		for _, a := range o.processAmounts(p) {
			if a.used.Bound() == exact.AtLeast {
				least, sign = true, g.AtLeast
			}
		}
		unreserved = unreserved || !o.requested && someUnreserved(p)
	}
	switch {
	case unreserved:
		out = append(out, sign+" some reserved sizes are unknown")
	case least:
		out = append(out, sign+" at least")
	}
	return out
}
