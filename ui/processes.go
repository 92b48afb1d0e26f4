package ui

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"time"

	"tt-memtrace/aggregator"
)

// These marks stand next to numbers that are not the whole story.
const (
	lateMark      = "L"
	unmatchedMark = "U"
	replacedMark  = "R"
	oddMark       = "O"
)

// rowKey names a row for good, so that a selection stays on what was selected
// while rows come, go and change places.
type rowKey struct {
	process processID
	chip    aggregator.Chip
	kind    rowKind
	// since tells processes that exited apart: one that called exec is there more than once.
	since uint64
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
	// ended: the process exited, and the amounts are its peaks.
	ended bool
}

// entries lists the rows of the process table in their order.
func entries(d *data, o settings, expanded func(processID) bool) []entry {
	var out []entry
	for _, p := range sorted(d, o) {
		row := o.processEntry(p, d.over())
		out = append(out, row)
		if !expanded(row.key.process) {
			continue
		}
		part := func(kind rowKind, c *aggregator.ChipSnapshot, memory *[aggregator.NumMemories]aggregator.Usage) {
			e := entry{key: row.key, process: p, chip: c, buffers: buffers(memory), ended: row.ended}
			e.key.kind = kind
			if c != nil {
				e.key.chip = c.Chip
			}
			for _, m := range shownMemories() {
				e.amounts = append(e.amounts, o.amountOf(memory[m], p.Late))
			}
			if c != nil {
				e.amounts = append(e.amounts, programsOf(c.CB, p.Late))
			} else {
				e.amounts = append(e.amounts, amount{absent: true})
			}
			out = append(out, e)
		}
		for i := range p.Chips {
			part(shareRow, &p.Chips[i], &p.Chips[i].Memory)
		}
		if placeless(p, row.ended) {
			part(placelessRow, nil, &p.Unplaced)
		}
	}
	return out
}

func (o settings) processEntry(p *aggregator.ProcessSnapshot, ended bool) entry {
	e := entry{key: rowKey{process: idOf(p), kind: processRow}, process: p, amounts: o.processAmounts(p), buffers: p.Buffers, ended: ended}
	if ended {
		e.key.since = p.Since
	}
	return e
}

// placeless says whether a process holds, or ever held, something on chips
// that are not known.
func placeless(p *aggregator.ProcessSnapshot, ever bool) bool {
	if buffers(&p.Unplaced) > 0 {
		return true
	}
	for _, u := range p.Unplaced {
		if ever && u.PeakRequested > 0 {
			return true
		}
	}
	return false
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
		u.PeakUnsure = u.PeakUnsure || v.PeakUnsure
		u.SumOnly = u.SumOnly || v.SumOnly
		u.Buffers += v.Buffers
		u.Banks = aggregator.Banks{}
		a := o.amountOf(u, p.Late)
		a.absent = u.Buffers == 0 && allAbsent(p.Chips, m)
		out = append(out, a)
	}
	return append(out, programsOf(p.CB, p.Late))
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
	list := d.processes()
	large := func(value func(p *aggregator.ProcessSnapshot) float64) func(a, b *aggregator.ProcessSnapshot) int {
		return func(a, b *aggregator.ProcessSnapshot) int { return cmp.Compare(value(b), value(a)) }
	}
	memory := func(i int) func(a, b *aggregator.ProcessSnapshot) int {
		used := make(map[*aggregator.ProcessSnapshot]float64, len(list))
		for _, p := range list {
			used[p] = float64(o.processAmounts(p)[i].used)
		}
		return large(func(p *aggregator.ProcessSnapshot) float64 { return used[p] })
	}
	var order func(a, b *aggregator.ProcessSnapshot) int
	switch o.sort {
	case byDRAM, byL1, byL1Small, byTrace, byCB:
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
	return []columnID{byFrees, byAllocs, bySince, byRate, byTrace, byL1Small, byCB, byBuffers, byChips, byL1}
}

// processTable lays the process table out in w cells, one row an entry, with the columns
// that find a place.
func processTable(d *data, o settings, list []entry, w int) table {
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
			c.wide = 0
		}
		if c.id == o.sort && c.id != unsorted {
			c.title = c.title.marked(g.sorted, c.right)
			c.wide = 0
		}
	}
	return table{columns: columns, n: len(list), dim: len(list) > 0 && list[0].ended}
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
	more := ""
	for n := len(l); n > 0 && l.width() > w; n-- {
		if room := w - l[:n-1].width(); room > 0 {
			last := l[n-1]
			last.text = clip(last.text+more, room, dots)
			return append(l[:n-1:n-1], last)
		}
		more = " " // something was left out
	}
	return l
}

func processColumns(d *data, o settings, list []entry, short bool, g glyphs) []column {
	gap := 2
	if short {
		gap = 1
	}
	ended, since := len(list) > 0 && list[0].ended, "SINCE"
	if ended {
		since = "RAN"
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
	for i, name := range append(memoryNames(), programsTitle) {
		var amounts []amount
		for j := range list {
			amounts = append(amounts, list[j].amounts[i])
		}
		s := o.scaleOf(amounts, short)
		columns = append(columns, add(byDRAM+columnID(i), name, true, o.leastNumber(short), func(e *entry) line {
			return e.amounts[i].number(s, g)
		}))
	}
	columns = append(columns,
		add(byBuffers, "BUFFERS", true, 0, func(e *entry) line { return counted(e.process, e.buffers, o, g) }),
		whole(byAllocs, "ALLOCS", 7, func(p *aggregator.ProcessSnapshot) line {
			return counted(p, p.Counters.Allocs, o, g)
		}),
		whole(byFrees, "FREES", 7, func(p *aggregator.ProcessSnapshot) line {
			return counted(p, p.Counters.Frees, o, g)
		}),
		whole(byRate, "RATE/s", 6, func(p *aggregator.ProcessSnapshot) line {
			r, known := d.rates.calls[idOf(p)]
			switch {
			case ended:
				return text(faint, "ended")
			case !known:
				return text(faint, g.unknown)
			case r == 0:
				return text(faint, "0")
			}
			return text(plain, perSecond(r))
		}),
		whole(bySince, since, 6, func(p *aggregator.ProcessSnapshot) line {
			if ended {
				return text(plain, age(time.Duration(max(p.Last, p.Since)-p.Since)))
			}
			return text(plain, age(time.Duration(max(d.now, p.Since)-p.Since)))
		}),
	)
	if ended {
		columns = slices.DeleteFunc(columns, func(c column) bool {
			// They have no buffers any more, and a rate only to say so.
			return c.id == byBuffers || c.id == byRate && d.rates.calls == nil
		})
	}
	return columns
}

// counted is a number of buffers or calls, which the runtime's own sums do not tell.
func counted(p *aggregator.ProcessSnapshot, n uint64, o settings, g glyphs) line {
	if p.Info.Source == aggregator.Summed {
		return text(faint, g.unknown)
	}
	return text(plain, count(n, o.exact))
}

// marks warn of numbers that are not the whole story.
func marks(e *entry) line {
	if e.key.kind != processRow {
		return nil
	}
	out := text(plain, " ")
	c := &e.process.Counters
	for _, m := range []struct {
		mark string
		set  bool
	}{
		{lateMark, e.process.Late}, {unmatchedMark, c.UnmatchedFrees > 0}, {replacedMark, c.Replaced > 0}, {oddMark, c.Odd > 0},
	} {
		if m.set {
			out = append(out, span{m.mark, notice})
		}
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
		if e.process.Info.Source == aggregator.Reported {
			return line{{"[socket] ", faint}, {name, plain}}
		}
		return text(plain, name)
	}
	return text(faint, g.unknown)
}

func chipsCell(e *entry, g glyphs) line {
	if e.key.kind != processRow {
		return nil
	}
	chips := chipRanges(e.process.Chips)
	if placeless(e.process, e.ended) {
		// Some of it lies on chips that are not known.
		chips += "+?"
	}
	if chips == "" {
		return text(faint, g.unknown)
	}
	return text(plain, clip(chips, maxChips, g.dots))
}

// legend explains the marks that stand next to the processes, and no others.
func legend(list []*aggregator.ProcessSnapshot, o settings) []string {
	var late, atLeast bool
	var unmatched, replaced, odd uint64
	for _, p := range list {
		late = late || p.Late
		unmatched += p.Counters.UnmatchedFrees
		replaced += p.Counters.Replaced
		odd += p.Counters.Odd
		for _, a := range o.processAmounts(p) {
			atLeast = atLeast || a.atLeast
		}
	}
	var out []string
	if late {
		out = append(out, lateMark+" earlier buffers could not be read")
	}
	for _, c := range []struct {
		mark string
		n    uint64
		what string
	}{
		{unmatchedMark, unmatched, "unmatched frees"}, {replacedMark, replaced, "frees not seen"}, {oddMark, odd, "odd events not counted"},
	} {
		if c.n > 0 {
			out = append(out, fmt.Sprintf("%s %s %s", c.mark, count(c.n, o.exact), c.what))
		}
	}
	if atLeast {
		out = append(out, glyphSet(o.ascii).atLeast+" at least")
	}
	return out
}
