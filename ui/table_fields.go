package ui

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
	"time"

	"tt-memtrace/aggregator"
	"tt-memtrace/aggregator/exact"
	"tt-memtrace/ui/text"
	"tt-memtrace/ui/widget"
)

// owner is the process of a row, and its name made safe to show.
type owner struct {
	process *aggregator.ProcessSnapshot
	name    string
}

func (o owner) words(b []byte) []byte {
	b = strconv.AppendUint(b, uint64(o.process.PID), 10)
	return append(append(append(b, ' '), o.name...), ' ')
}

// owners returns the processes of a snapshot with their names.
func owners(s *aggregator.Snapshot, ascii bool) []owner {
	out := make([]owner, len(s.Processes))
	for i := range s.Processes {
		out[i] = owner{&s.Processes[i], text.Command(s.Processes[i].Info.Command, ascii)}
	}
	return out
}

// bankCounts returns the number of banks that each memory has on a process's chips, the largest if they differ; 0 if
// unknown.
func bankCounts(p *aggregator.ProcessSnapshot) (n [aggregator.NumMemories]uint64) {
	for i := range p.Chips {
		for m := range n {
			if b := p.Chips[i].Memory[m].Banks; b.Known {
				n[m] = max(n[m], uint64(b.Count))
			}
		}
	}
	return n
}

// ownerFields returns the columns PID and PROCESS. The name is at least this many cells wide; rank is its Rank.
func ownerFields[R any](least, rank int, of func(*R) owner) []widget.Field[R] {
	return []widget.Field[R]{
		{Name: "PID", Right: true, Least: 7,
			Cell:  func(r *R) text.Line { return text.Strong.Line(strconv.FormatUint(uint64(of(r).process.PID), 10)) },
			Order: func(a, b *R) int { return cmp.Compare(of(a).process.PID, of(b).process.PID) }},
		{Name: "PROCESS", Least: least, Flex: true, Rank: rank,
			Cell:  func(r *R) text.Line { return text.Plain.Line(of(r).name) },
			Order: func(a, b *R) int { return cmp.Compare(of(a).name, of(b).name) }},
	}
}

// unless returns a field that is shown as unknown in the rows for which unknown reports true.
func unless[R any](s *state, unknown func(*R) bool, f widget.Field[R]) widget.Field[R] {
	cell := f.Cell
	f.Cell = func(r *R) text.Line {
		if unknown(r) {
			return s.unknown()
		}
		return cell(r)
	}
	return f
}

// unknown returns the cell of an unknown value.
func (s *state) unknown() text.Line { return text.Faint.Line(text.GlyphSet(s.settings.ASCII).Unknown) }

// mostFirst returns an order with large quantities first, and unknown ones last.
func mostFirst[R any](value func(*R) exact.Quantity) func(a, b *R) int {
	return func(a, b *R) int { return value(b).Compare(value(a)) }
}

// bigFirst returns an order with large numbers first.
func bigFirst[R any](value func(*R) uint64) func(a, b *R) int {
	return func(a, b *R) int { return cmp.Compare(value(b), value(a)) }
}

func byText[R any](value func(*R) string) func(a, b *R) int {
	return func(a, b *R) int { return cmp.Compare(value(a), value(b)) }
}

// ageField returns a field with the time since a moment.
func ageField[R any](s *state, name string, since func(*R) uint64) widget.Field[R] {
	return widget.Field[R]{Name: name, Right: true, Least: 6, Rank: 2,
		Cell:  func(r *R) text.Line { return s.ageCell(since(r)) },
		Order: func(a, b *R) int { return cmp.Compare(since(a), since(b)) }}
}

func (s *state) ageCell(since uint64) text.Line {
	if since == 0 {
		return s.unknown()
	}
	return text.Plain.Line(text.Age(time.Duration(max(s.data.now, since) - since)))
}

func bytesField[R any](s *state, name string, rank int, value func(*R) uint64) widget.Field[R] {
	return widget.Field[R]{Name: name, Right: true, Least: 9, Rank: rank,
		Cell:  func(r *R) text.Line { return bytesCell(value(r), s.settings) },
		Order: bigFirst(value)}
}

// quantityField returns a field of bytes, with large ones first.
func quantityField[R any](s *state, name string, rank int, value func(*R) exact.Quantity) widget.Field[R] {
	return widget.Field[R]{Name: name, Right: true, Least: 9, Rank: rank,
		Cell:  func(r *R) text.Line { return s.settings.bytesOf(value(r)) },
		Order: mostFirst(value)}
}

// countedField returns a field of a count, with large ones first.
func countedField[R any](s *state, name string, rank int, value func(*R) exact.Quantity) widget.Field[R] {
	return widget.Field[R]{Name: name, Right: true, Least: 5, Rank: rank,
		Cell:  func(r *R) text.Line { return counted(value(r), s.settings, text.GlyphSet(s.settings.ASCII)) },
		Order: mostFirst(value)}
}

// knownBytes returns a field of bytes in which 0 is unknown.
func knownBytes[R any](s *state, name string, rank int, value func(*R) uint64) widget.Field[R] {
	return unless(s, func(r *R) bool { return value(r) == 0 }, bytesField(s, name, rank, value))
}

func countField[R any](s *state, name string, rank int, value func(*R) uint64) widget.Field[R] {
	return widget.Field[R]{Name: name, Right: true, Least: 5, Rank: rank,
		Cell:  func(r *R) text.Line { return text.Plain.Line(text.Count(value(r), s.settings.Exact)) },
		Order: bigFirst(value)}
}

func (s *state) nameCell(name string, w int) text.Line {
	g := text.GlyphSet(s.settings.ASCII)
	if name == "" {
		return text.Faint.Line(g.Unknown)
	}
	return text.Plain.Line(text.Clip(text.Sanitize(name, s.settings.ASCII), w, g.Dots))
}

// operationField returns a field with the operation of a program, at least this many cells wide.
func operationField[R any](s *state, least, rank int, of func(*R) string) widget.Field[R] {
	return widget.Field[R]{Name: "OPERATION", Least: least, Flex: true, Rank: rank,
		Cell:  func(r *R) text.Line { return s.operationCell(of(r), 60) },
		Order: byText(of)}
}

// operationCell returns the name of an operation without its namespaces, which are long and alike.
func (s *state) operationCell(name string, w int) text.Line {
	if i := strings.LastIndex(name, "::"); i >= 0 && i+2 < len(name) {
		name = name[i+2:]
	}
	return s.nameCell(name, w)
}

// bytesOf returns a quantity of bytes as text.
func (o settings) bytesOf(q exact.Quantity) text.Line {
	return quantityLine(q, text.GlyphSet(o.ASCII), func(n uint64) string { return bytesCell(n, o).String() })
}

// roundOf returns a quantity of bytes as text, with as few digits as it has.
func (o settings) roundOf(q exact.Quantity) text.Line {
	return quantityLine(q, text.GlyphSet(o.ASCII), func(n uint64) string { return text.Capacity(n, o.Exact, false) })
}

// chipsField returns a field with chips. Its order has the rows with the most chips first.
func chipsField[R any](s *state, rank int, chips func(*R) []aggregator.Chip) widget.Field[R] {
	return widget.Field[R]{Name: "CHIPS", Least: 5, Rank: rank,
		Cell:  func(r *R) text.Line { return s.chipsCell(chips(r)) },
		Order: func(a, b *R) int { return cmp.Compare(len(chips(b)), len(chips(a))) }}
}

func (s *state) chipsCell(chips []aggregator.Chip) text.Line {
	if len(chips) == 0 {
		return s.unknown()
	}
	return text.Plain.Line(text.Clip(chipList(chips), maxChips, text.GlyphSet(s.settings.ASCII).Dots))
}

// chipList returns chips in short form. They may be in any order.
func chipList(chips []aggregator.Chip) string {
	list := make([]aggregator.ChipSnapshot, len(chips))
	for i, c := range chips {
		list[i].Chip = c
	}
	slices.SortFunc(list, func(a, b aggregator.ChipSnapshot) int {
		return cmp.Or(cmp.Compare(a.Chip.Space, b.Chip.Space), cmp.Compare(a.Chip.Number, b.Chip.Number))
	})
	return chipRanges(list)
}

func chipWords(b []byte, chips []aggregator.Chip) []byte {
	b = append(b, " chips "...)
	for i, c := range chips {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendUint(b, uint64(c.Number), 10)
	}
	return b
}

// addressWords appends an address to what a filter looks at: as the tables show it, and in decimal, as the runtime prints it.
func addressWords(b []byte, address uint64) []byte {
	b = append(strconv.AppendUint(append(b, "0x"...), address, 16), ' ')
	return append(strconv.AppendUint(b, address, 10), ' ')
}
