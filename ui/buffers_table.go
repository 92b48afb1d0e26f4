package ui

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"tt-memtrace/aggregator"
	"tt-memtrace/internal/plural"
	"tt-memtrace/ui/text"
	"tt-memtrace/ui/widget"
)

type bufferRow struct {
	owner
	*aggregator.BufferSnapshot
	// banks is the number of banks that PerBank is taken from; 0 if unknown.
	banks uint64
}

func (r *bufferRow) reserved() uint64 { return r.PerBank * r.TakesOf(r.banks) }

func newBufferTable(s *state) *widget.Table[bufferRow, objectKey] {
	return &widget.Table[bufferRow, objectKey]{
		Settings: &s.settings.Settings, Name: "buffers", Order: "SIZE", What: "buffers", None: "no buffers",
		Key: func(r *bufferRow) objectKey { return objectKey{process: idOf(r.process), id: r.ID} },
		Words: func(b []byte, r *bufferRow) []byte {
			b = addressWords(append(append(r.words(b), r.Memory.String()...), ' '), r.Address)
			if int(r.MemoryLayout) < len(layouts) {
				b = append(append(b, layouts[r.MemoryLayout]...), ' ')
			}
			b = strconv.AppendUint(append(b, "tid "...), uint64(r.TID), 10)
			if r.Kernels {
				b = append(b, " kernels"...)
			}
			return chipWords(b, r.Chips)
		},
		Fields: append(ownerFields(10, 2, func(r *bufferRow) owner { return r.owner }),
			widget.Field[bufferRow]{Name: "MEMORY", Least: 8, Cell: func(r *bufferRow) text.Line { return text.Plain.Line(r.Memory.String()) },
				Order: func(a, b *bufferRow) int { return cmp.Compare(a.Memory, b.Memory) }},
			chipsField(s, 1, func(r *bufferRow) []aggregator.Chip { return r.Chips }),
			widget.Field[bufferRow]{Name: "ADDRESS", Right: true, Least: 10, Rank: 3, Cell: func(r *bufferRow) text.Line { return text.Plain.Line(text.Hex(r.Address)) },
				Order: func(a, b *bufferRow) int { return cmp.Compare(a.Address, b.Address) }},
			bytesField(s, "SIZE", 0, func(r *bufferRow) uint64 { return r.Size }),
			knownBytes(s, "RESERVED", 4, (*bufferRow).reserved),
			knownBytes(s, "PAGE", 7, func(r *bufferRow) uint64 { return r.PageSize }),
			widget.Field[bufferRow]{Name: "LAYOUT", Least: 11, Rank: 6, Cell: func(r *bufferRow) text.Line { return text.Plain.Line(r.what(text.GlyphSet(s.settings.ASCII))) },
				Order: func(a, b *bufferRow) int { return cmp.Compare(a.MemoryLayout, b.MemoryLayout) }},
			ageField(s, "AGE", func(r *bufferRow) uint64 { return r.Since }),
			unless(s, func(r *bufferRow) bool { return r.TID == 0 }, widget.Field[bufferRow]{Name: "TID", Right: true, Least: 5, Rank: 8,
				Cell:  func(r *bufferRow) text.Line { return text.Plain.Line(strconv.FormatUint(uint64(r.TID), 10)) },
				Order: bigFirst(func(r *bufferRow) uint64 { return uint64(r.TID) })}),
		),
		Detail: func(r *bufferRow) []text.Line { return bufferDetail(s, r) },
	}
}

// layouts are the names of TensorMemoryLayout, by its value.
var layouts = []string{"interleaved", "single bank", "height sharded", "width sharded", "block sharded"}

func layoutName(l uint8, g text.Glyphs) string {
	if int(l) < len(layouts) {
		return layouts[l]
	}
	return g.Unknown
}

// what returns what a buffer is: unsafe for a trace, a copy of kernels, or otherwise its layout.
func (r *bufferRow) what(g text.Glyphs) string {
	if r.Unsafe.Found {
		return "unsafe: trace " + strconv.FormatUint(uint64(r.Unsafe.Trace), 10)
	}
	if r.Kernels {
		return "copy of kernels"
	}
	return layoutName(r.MemoryLayout, g)
}

func bufferDetail(s *state, r *bufferRow) []text.Line {
	g := text.GlyphSet(s.settings.ASCII)
	reserved := text.Faint.Line(g.Unknown)
	where := "at " + text.Hex(r.Address) + " of each bank"
	if n := r.PerCore.Cores(); n > 0 {
		reserved = text.Plain.Line(fmt.Sprintf("%s bytes on each chip: %s on each of %s", text.Digits(r.reserved()), text.Digits(r.PerBank), text.Plural(n, "core", "cores")))
		where = onCores(r.PerCore)
	} else if r.reserved() > 0 {
		reserved = text.Plain.Line(fmt.Sprintf("%s bytes on each chip: %s in each of %s",
			text.Digits(r.reserved()), text.Digits(r.PerBank), plural.Of(r.banks, "bank")))
	} else if r.PerBank > 0 {
		reserved = text.Plain.Line(text.Digits(r.PerBank) + " bytes in each bank")
	}
	since := append(s.ageCell(r.Since), text.Plain.Span(" ago, "+s.when(r.Since)+", by thread "+strconv.FormatUint(uint64(r.TID), 10)))
	if r.Since == 0 {
		since = text.Plain.Line("before tracing began, or at a time whose events were lost")
	}
	out := []text.Line{
		widget.Pair("what", text.Strong.Line(r.Memory.String()+" buffer, "+r.what(g)+", "+where)),
		widget.Pair("requested", text.Plain.Line(text.Digits(r.Size)+" bytes on each chip, in pages of "+text.Digits(r.PageSize))),
		widget.Pair("reserved", reserved),
		widget.Pair("process", text.Plain.Line(fmt.Sprintf("%d  %s", r.process.PID, r.name))),
		widget.Pair("since", since),
		widget.Pair("chips", s.chipsCell(r.Chips)),
		widget.Pair("object", text.Plain.Line(text.Hex(r.ID)+" in the process")),
	}
	if r.Stack != nil {
		if r.Site != "" {
			out = slices.Insert(out, 1, widget.Pair("site", text.Strong.Line(text.SanitizeSite(r.Site, s.settings.ASCII))))
		}
		out = append(out, s.stackLines(r.Stack)...)
	}
	return out
}

// onCores lists a buffer's address on each core, cut to the width of a line.
func onCores(p aggregator.PerCore) string {
	const most = 8
	var list []string
	for core, address := range p.All() {
		if len(list) == most {
			list = append(list, "and others on "+plural.Of(p.Cores()-most, "core"))
			break
		}
		list = append(list, fmt.Sprintf("%s of core (%d,%d)", text.Hex(address), core.X, core.Y))
	}
	return "at " + strings.Join(list, ", ")
}

func bufferRows(r *reader, ascii bool) []bufferRow {
	var out []bufferRow
	for _, o := range owners(r.snapshot, ascii) {
		banks := bankCounts(o.process)
		list := r.buffers(o.process)
		out = slices.Grow(out, len(list))
		for i := range list {
			out = append(out, bufferRow{o, &list[i], banks[min(list[i].Memory, aggregator.NumMemories-1)]})
		}
	}
	return out
}
