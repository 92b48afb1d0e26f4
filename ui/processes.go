package ui

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"time"

	"tt-memtrace/aggregator"
)

// lateMark and unmatchedMark stand next to numbers that are not the whole story.
const (
	lateMark      = "L"
	unmatchedMark = "U"
)

// rowKey names a row for good, so that a selection stays on what was selected
// while rows come, go and change places.
type rowKey struct {
	process processID
	chip    aggregator.Chip
	kind    rowKind
}

type rowKind uint8

const (
	chipRow rowKind = iota
	processRow
	// shareRow is a process's use of one chip, placelessRow of chips that are not known.
	shareRow
	placelessRow
)

// entry is a row of the process table before its layout.
type entry struct {
	key     rowKey
	process *aggregator.ProcessSnapshot
	chip    *aggregator.ChipSnapshot
	amounts []amount
	buffers uint64
}

// entries lists the rows of the process table in their order.
func entries(d *data, o settings, expanded func(processID) bool) []entry {
	var out []entry
	for _, p := range sorted(d, o) {
		id := idOf(p)
		out = append(out, entry{key: rowKey{process: id, kind: processRow}, process: p, amounts: o.processAmounts(p), buffers: p.Buffers})
		if !expanded(id) {
			continue
		}
		for i := range p.Chips {
			c := &p.Chips[i]
			e := entry{key: rowKey{process: id, kind: shareRow, chip: c.Chip}, process: p, chip: c}
			for _, m := range shownMemories() {
				e.amounts = append(e.amounts, o.amountOf(c.Memory[m], p.Late))
			}
			e.buffers = buffers(&c.Memory)
			out = append(out, e)
		}
		if n := buffers(&p.Unplaced); n > 0 {
			e := entry{key: rowKey{process: id, kind: placelessRow}, process: p, buffers: n}
			for _, m := range shownMemories() {
				e.amounts = append(e.amounts, o.amountOf(p.Unplaced[m], p.Late))
			}
			out = append(out, e)
		}
	}
	return out
}

func buffers(memory *[aggregator.NumMemories]aggregator.Usage) uint64 {
	var n uint64
	for _, u := range memory {
		n += u.Buffers
	}
	return n
}

// processAmounts are the totals of a process, with what it holds on unknown chips.
func (o settings) processAmounts(p *aggregator.ProcessSnapshot) []amount {
	var out []amount
	for _, m := range shownMemories() {
		u, v := p.Memory[m], p.Unplaced[m]
		u.Requested += v.Requested
		u.Reserved += v.Reserved
		u.PeakRequested += v.PeakRequested
		u.PeakReserved += v.PeakReserved
		u.Unreserved += v.Unreserved
		u.Buffers += v.Buffers
		u.Banks = aggregator.Banks{}
		a := o.amountOf(u, p.Late)
		a.absent = u.Buffers == 0 && allAbsent(p.Chips, m)
		out = append(out, a)
	}
	return out
}

// allAbsent is true where a process has chips, and none has the memory.
func allAbsent(chips []aggregator.ChipSnapshot, m aggregator.Memory) bool {
	for i := range chips {
		if n, known := chips[i].Memory[m].Capacity(); !known || n > 0 {
			return false
		}
	}
	return len(chips) > 0
}

// sorted is the processes in the order asked for: large numbers first, names
// and PIDs ascending; what is equal stays in the order of the PIDs.
func sorted(d *data, o settings) []*aggregator.ProcessSnapshot {
	list := make([]*aggregator.ProcessSnapshot, 0, len(d.snapshot.Processes))
	for i := range d.snapshot.Processes {
		list = append(list, &d.snapshot.Processes[i])
	}
	large := func(value func(p *aggregator.ProcessSnapshot) float64) func(a, b *aggregator.ProcessSnapshot) int {
		return func(a, b *aggregator.ProcessSnapshot) int { return cmp.Compare(value(b), value(a)) }
	}
	memory := func(i int) func(a, b *aggregator.ProcessSnapshot) int {
		return large(func(p *aggregator.ProcessSnapshot) float64 { return float64(o.processAmounts(p)[i].used) })
	}
	var order func(a, b *aggregator.ProcessSnapshot) int
	switch o.sort {
	case byDRAM, byL1, byL1Small, byTrace:
		order = memory(int(o.sort - byDRAM))
	case byBuffers:
		order = large(func(p *aggregator.ProcessSnapshot) float64 { return float64(p.Buffers) })
	case byAllocs:
		order = large(func(p *aggregator.ProcessSnapshot) float64 { return float64(p.Counters.Allocs) })
	case byFrees:
		order = large(func(p *aggregator.ProcessSnapshot) float64 { return float64(p.Counters.Frees) })
	case byRate:
		order = large(func(p *aggregator.ProcessSnapshot) float64 { return d.rates.calls[idOf(p)] })
	case bySince:
		order = func(a, b *aggregator.ProcessSnapshot) int { return cmp.Compare(a.Since, b.Since) }
	case byCommand:
		order = func(a, b *aggregator.ProcessSnapshot) int {
			return cmp.Compare(command(a.Info.Command, o.ascii), command(b.Info.Command, o.ascii))
		}
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

// Widths of the column with the command: it gets what is left over, but other
// columns go before it has less than wanted (or what it needs).
const (
	leastCommand  = 10
	wantedCommand = 18
)

// maxChips cells hold the chips of a process; more is cut off.
const maxChips = 20

// dropOrder is what goes first when the terminal is narrow.
func dropOrder() []columnID {
	return []columnID{byFrees, byAllocs, bySince, byRate, byTrace, byL1Small, byBuffers, byChips, byL1}
}

// processTable lays the process table out in w cells, one row an entry, and
// tells which columns found a place.
func processTable(d *data, o settings, list []entry, w int) (head line, body []line, shown []columnID) {
	g := glyphSet(o.ascii)
	columns := processColumns(d, o, list, false, g)
	if commandRoom(columns, w) < 0 {
		columns = processColumns(d, o, list, true, g)
	}
	for _, id := range dropOrder() {
		if commandRoom(columns, w) >= 0 {
			break
		}
		columns = slices.DeleteFunc(columns, func(c column) bool { return c.id == id })
	}
	for i := range columns {
		c := &columns[i]
		if c.id == byCommand {
			room := max(w-tableWidth(columns)+c.width(), leastCommand)
			for r := range c.cells {
				c.cells[r] = c.cells[r].shortened(room, g.dots)
			}
		}
		if c.id == o.sort {
			c.title = c.title.marked(g.sorted, c.right)
		}
		if c.id != unsorted {
			shown = append(shown, c.id)
		}
	}
	head, body = rows(columns, len(list))
	return head, body, shown
}

// commandRoom is what is left of w when the command has the room it wants.
func commandRoom(columns []column, w int) int {
	for i := range columns {
		if columns[i].id == byCommand {
			n := columns[i].width()
			return w - tableWidth(columns) + n - min(n, wantedCommand)
		}
	}
	return w - tableWidth(columns)
}

// marked puts the sign of the sorted column next to its title.
func (l line) marked(sign string, before bool) line {
	if before {
		return append(text(notice, sign), l...)
	}
	return append(l[:len(l):len(l)], span{sign, notice})
}

// shortened clips the last part of l so that all of it takes at most w cells.
func (l line) shortened(w int, dots string) line {
	if n := len(l); n > 0 && l.width() > w {
		last := l[n-1]
		last.text = clip(last.text, w-l[:n-1].width(), dots)
		return append(l[:n-1:n-1], last)
	}
	return l
}

func processColumns(d *data, o settings, list []entry, short bool, g glyphs) []column {
	gap := 2
	if short {
		gap = 1
	}
	add := func(id columnID, name string, right bool, least int, cell func(e *entry) line) column {
		c := column{id: id, title: text(title, name), right: right, gap: gap, least: least}
		for i := range list {
			c.cells = append(c.cells, cell(&list[i]))
		}
		return c
	}
	// whole is a column that says something about processes only, not about their part of a chip.
	whole := func(id columnID, name string, least int, cell func(p *aggregator.ProcessSnapshot) line) column {
		return add(id, name, true, least, func(e *entry) line {
			if e.key.kind != processRow {
				return nil
			}
			return cell(e.process)
		})
	}
	columns := []column{
		whole(byPID, "PID", 7, func(p *aggregator.ProcessSnapshot) line {
			return text(strong, strconv.FormatUint(uint64(p.PID), 10))
		}),
		add(unsorted, "", false, 0, func(e *entry) line { return marks(e) }),
		add(byCommand, "PROCESS", false, leastCommand, func(e *entry) line { return nameCell(e, o, g) }),
		add(byChips, "CHIPS", false, 0, func(e *entry) line { return chipsCell(e, g) }),
	}
	columns[0].gap, columns[1].gap = 0, 0
	for i, m := range shownMemories() {
		var amounts []amount
		for j := range list {
			amounts = append(amounts, list[j].amounts[i])
		}
		s := o.scaleOf(amounts, short)
		columns = append(columns, add(byDRAM+columnID(i), m.String(), true, o.leastNumber(short), func(e *entry) line {
			return e.amounts[i].number(s, g)
		}))
	}
	columns = append(columns,
		add(byBuffers, "BUFFERS", true, 0, func(e *entry) line { return text(plain, count(e.buffers, o.exact)) }),
		whole(byAllocs, "ALLOCS", 7, func(p *aggregator.ProcessSnapshot) line {
			return text(plain, count(p.Counters.Allocs, o.exact))
		}),
		whole(byFrees, "FREES", 7, func(p *aggregator.ProcessSnapshot) line {
			return text(plain, count(p.Counters.Frees, o.exact))
		}),
		whole(byRate, "RATE/s", 6, func(p *aggregator.ProcessSnapshot) line {
			r, known := d.rates.calls[idOf(p)]
			switch {
			case !known:
				return text(faint, g.unknown)
			case r == 0:
				return text(faint, "0")
			}
			return text(plain, perSecond(r))
		}),
		whole(bySince, "SINCE", 6, func(p *aggregator.ProcessSnapshot) line {
			return text(plain, age(time.Duration(max(d.now, p.Since)-p.Since)))
		}),
	)
	return columns
}

// marks warn of numbers that are not the whole story.
func marks(e *entry) line {
	if e.key.kind != processRow {
		return nil
	}
	out := text(plain, " ")
	if e.process.Late {
		out = append(out, span{lateMark, notice})
	}
	if e.process.Counters.UnmatchedFrees > 0 {
		out = append(out, span{unmatchedMark, notice})
	}
	if len(out) == 1 {
		return nil
	}
	return out
}

func nameCell(e *entry, o settings, g glyphs) line {
	switch e.key.kind {
	case shareRow:
		return line{{"  " + g.branch + " ", faint}, {"chip " + chipName(e.chip.Chip), plain}}
	case placelessRow:
		return line{{"  " + g.branch + " ", faint}, {"chip not known", faint}}
	}
	if name := command(e.process.Info.Command, o.ascii); name != "" {
		return text(plain, name)
	}
	return text(faint, g.unknown)
}

func chipsCell(e *entry, g glyphs) line {
	if e.key.kind != processRow {
		return nil
	}
	chips := chipRanges(e.process.Chips)
	if buffers(&e.process.Unplaced) > 0 {
		// Some of it lies on chips that are not known.
		chips += "+?"
	}
	if chips == "" {
		return text(faint, g.unknown)
	}
	return text(plain, clip(chips, maxChips, g.dots))
}

// legend explains the marks that are on the screen, and no others.
func legend(d *data, o settings) []string {
	var late, atLeast bool
	var unmatched uint64
	for i := range d.snapshot.Processes {
		p := &d.snapshot.Processes[i]
		late = late || p.Late
		unmatched += p.Counters.UnmatchedFrees
		for _, a := range o.processAmounts(p) {
			atLeast = atLeast || a.atLeast
		}
	}
	var out []string
	if late {
		out = append(out, lateMark+" attached late: earlier buffers not counted")
	}
	if unmatched > 0 {
		out = append(out, fmt.Sprintf("%s %s unmatched frees", unmatchedMark, count(unmatched, o.exact)))
	}
	if atLeast {
		out = append(out, glyphSet(o.ascii).atLeast+" at least")
	}
	return out
}
