package ui

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"tt-memtrace/aggregator"
	"tt-memtrace/ui/text"
	"tt-memtrace/ui/widget"
)

// circularRow is a circular or dataflow buffer or a scratchpad of a program, with all chips on which it is the same.
type circularRow struct {
	owner
	program *aggregator.ProgramSnapshot
	cb      *aggregator.CircularBuffer
	chips   []aggregator.Chip
}

func newCircularTable(s *state) *widget.Table[circularRow, objectKey] {
	unplaced := func(r *circularRow) bool { return r.cb.Kind == aggregator.ReportedCircular }
	return &widget.Table[circularRow, objectKey]{
		Settings: &s.settings.Settings, Name: "circular", What: "circular buffers", None: "no circular or dataflow buffers, no scratchpads",
		Key: func(r *circularRow) objectKey {
			return objectKey{idOf(r.process), r.program.ID, r.cb.Address<<16 ^ uint64(r.cb.Kind) ^ r.cb.Size<<2, fmt.Sprint(r.cb.Ranges, r.chips)}
		},
		Words: func(b []byte, r *circularRow) []byte {
			b = addressWords(append(append(r.words(b), r.program.Operation...), ' '), r.cb.Address)
			return chipWords(append(b, r.cb.Kind.String()...), r.chips)
		},
		Fields: append(ownerFields(16, 4, func(r *circularRow) owner { return r.owner }),
			operationField(s, 20, 1, func(r *circularRow) string { return r.program.Operation }),
			widget.Field[circularRow]{Name: "KIND", Least: 8, Rank: 5, Cell: func(r *circularRow) text.Line { return text.Plain.Line(r.cb.Kind.String()) },
				Order: func(a, b *circularRow) int { return cmp.Compare(a.cb.Kind, b.cb.Kind) }},
			chipsField(s, 2, func(r *circularRow) []aggregator.Chip { return r.chips }),
			unless(s, unplaced, widget.Field[circularRow]{Name: "ADDRESS", Right: true, Least: 8, Cell: func(r *circularRow) text.Line { return text.Plain.Line(text.Hex(r.cb.Address)) },
				Order: func(a, b *circularRow) int { return cmp.Compare(a.cb.Address, b.cb.Address) }}),
			unless(s, unplaced, bytesField(s, "PER CORE", 0, func(r *circularRow) uint64 { return r.cb.Size })),
			unless(s, unplaced, countField(s, "CORES", 4, func(r *circularRow) uint64 { return r.cb.Cores() })),
			bytesField(s, "SUM", 3, func(r *circularRow) uint64 { return r.cb.Bytes() }),
			ageField(s, "AGE", func(r *circularRow) uint64 { return r.program.Since }),
		),
		Detail: func(r *circularRow) []text.Line {
			if unplaced(r) {
				return append([]text.Line{
					widget.Pair("what", text.Strong.Line("circular buffer that its process reported")),
					widget.Pair("size", text.Plain.Line(text.Digits(r.cb.Size)+" bytes on all its cores of each chip")),
					widget.Pair("chips", s.chipsCell(r.chips)),
				}, programDetail(s, r.owner, r.program)...)
			}
			where := make([]string, 0, len(r.cb.Ranges))
			for _, c := range r.cb.Ranges[:min(len(r.cb.Ranges), 24)] {
				where = append(where, rangeName(c))
			}
			return append([]text.Line{
				widget.Pair("what", text.Strong.Line(cbName(r.cb.Kind)+" at "+text.Hex(r.cb.Address)+" to "+text.Hex(r.cb.Address+r.cb.Size)+" of each core")),
				widget.Pair("size", text.Plain.Line(text.Digits(r.cb.Size)+" bytes a core, "+text.Digits(r.cb.Size*r.cb.Cores())+" on "+text.Plural(int(r.cb.Cores()), "core", "cores")+" of each chip")),
				widget.Pair("cores", text.Plain.Line(strings.Join(where, " "))),
				widget.Pair("chips", s.chipsCell(r.chips)),
			}, programDetail(s, r.owner, r.program)...)
		},
	}
}

// cbName returns the name of a buffer of a kind.
func cbName(k aggregator.CBKind) string {
	switch k {
	case aggregator.Scratchpad:
		return "scratchpad"
	case aggregator.GlobalCircular:
		return "circular buffer in an L1 buffer"
	}
	return k.String() + " buffer"
}

func rangeName(c aggregator.CoreRange) string {
	if c.X0 == c.X1 && c.Y0 == c.Y1 {
		return fmt.Sprintf("(%d,%d)", c.X0, c.Y0)
	}
	return fmt.Sprintf("(%d,%d)-(%d,%d)", c.X0, c.Y0, c.X1, c.Y1)
}

func circularRows(r *reader, ascii bool) []circularRow {
	var out []circularRow
	for _, o := range owners(r.snapshot, ascii) {
		programs := r.programs(o.process)
		for i := range programs {
			p := &programs[i]
			// The same buffer on several chips is one row.
			first := len(out)
			for j := range p.Placed {
				cb := &p.Placed[j].CircularBuffer
				k := slices.IndexFunc(out[first:], func(r circularRow) bool {
					return r.cb.Address == cb.Address && r.cb.Size == cb.Size && r.cb.Kind == cb.Kind &&
						!slices.Contains(r.chips, p.Placed[j].Chip) && slices.Equal(r.cb.Ranges, cb.Ranges)
				})
				if k < 0 {
					k = len(out) - first
					out = append(out, circularRow{owner: o, program: p, cb: cb})
				}
				out[first+k].chips = append(out[first+k].chips, p.Placed[j].Chip)
			}
		}
	}
	return out
}
