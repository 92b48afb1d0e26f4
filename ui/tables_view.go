package ui

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gdamore/tcell/v2"
	"github.com/rivo/tview"

	"tt-memtrace/aggregator"
	"tt-memtrace/ui/text"
	"tt-memtrace/ui/widget"
)

// tables are buffers, circular buffers, programs and kernels of all processes.
type tables struct {
	*state
	which    int
	buffers  *widget.Table[bufferRow, objectKey]
	circular *widget.Table[circularRow, objectKey]
	programs *widget.Table[programRow, objectKey]
	kernels  *widget.Table[kernelRow, objectKey]
	done     [numTables]doneWork
	tabs     []widget.TitleAt
}

// doneWork identifies the data that the rows of a table were last made of.
type doneWork struct {
	query widget.Query
	round int
	any   bool
}

const (
	bufferTable = iota
	circularTable
	programTable
	kernelTable
	numTables
)

var tableNames = [numTables]string{"buffers", "circular buffers", "programs", "kernels"}

// anyTable is a table of whatever rows.
type anyTable interface {
	widget.Pane
	widget.Listed
	CloseDetail() bool
}

func (t *tables) table() anyTable {
	return [numTables]anyTable{t.buffers, t.circular, t.programs, t.kernels}[t.which]
}

// objectKey names a buffer, program, circular buffer or kernel for good.
type objectKey struct {
	process processID
	id      uint64
	more    uint64
	text    string
}

// owner is the process of a row, and its name fit to show.
type owner struct {
	process *aggregator.ProcessSnapshot
	name    string
}

func (o owner) words(b []byte) []byte {
	b = strconv.AppendUint(b, uint64(o.process.PID), 10)
	return append(append(append(b, ' '), o.name...), ' ')
}

type bufferRow struct {
	owner
	*aggregator.BufferSnapshot
	// banks that each lost PerBank, 0 where that is not known.
	banks uint64
}

func (r *bufferRow) reserved() uint64 { return r.PerBank * r.banks }

// circularRow is a circular or dataflow buffer on all chips where it is the same.
type circularRow struct {
	owner
	program *aggregator.ProgramSnapshot
	cb      *aggregator.CircularBuffer
	chips   []aggregator.Chip
}

type programRow struct {
	owner
	*aggregator.ProgramSnapshot
	chips []aggregator.Chip
	// circular buffers on one chip, and what they add up to on its cores.
	circular    int
	circularSum uint64
	kernelSum   uint64
	unsized     bool
}

type kernelRow struct {
	owner
	program *aggregator.ProgramSnapshot
	*aggregator.Kernel
}

// chipList writes chips the short way, in any order.
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

// ownerFields are those that all tables have; the name is least cells wide, and rank says how soon it goes.
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

// bigFirst sorts large numbers to the top.
func bigFirst[R any](value func(*R) uint64) func(a, b *R) int {
	return func(a, b *R) int { return cmp.Compare(value(b), value(a)) }
}

func byText[R any](value func(*R) string) func(a, b *R) int {
	return func(a, b *R) int { return cmp.Compare(value(a), value(b)) }
}

// ageField is how long ago something was.
func ageField[R any](s *state, name string, since func(*R) uint64) widget.Field[R] {
	return widget.Field[R]{Name: name, Right: true, Least: 6, Rank: 2,
		Cell:  func(r *R) text.Line { return s.ageCell(since(r)) },
		Order: func(a, b *R) int { return cmp.Compare(since(a), since(b)) }}
}

func (s *state) ageCell(since uint64) text.Line {
	if since == 0 {
		return text.Faint.Line(text.GlyphSet(s.settings.ASCII).Unknown)
	}
	return text.Plain.Line(text.Age(time.Duration(max(s.data.now, since) - since)))
}

func bytesField[R any](s *state, name string, rank int, value func(*R) uint64) widget.Field[R] {
	return widget.Field[R]{Name: name, Right: true, Least: 9, Rank: rank,
		Cell:  func(r *R) text.Line { return bytesCell(value(r), s.settings) },
		Order: bigFirst(value)}
}

// knownBytes is bytesField where 0 means that it is not known.
func knownBytes[R any](s *state, name string, rank int, value func(*R) uint64) widget.Field[R] {
	f := bytesField(s, name, rank, value)
	f.Cell = func(r *R) text.Line {
		if value(r) == 0 {
			return text.Faint.Line(text.GlyphSet(s.settings.ASCII).Unknown)
		}
		return bytesCell(value(r), s.settings)
	}
	return f
}

func countField[R any](s *state, name string, rank int, value func(*R) uint64) widget.Field[R] {
	return widget.Field[R]{Name: name, Right: true, Least: 5, Rank: rank,
		Cell:  func(r *R) text.Line { return text.Plain.Line(text.Count(value(r), s.settings.Exact)) },
		Order: bigFirst(value)}
}

// launchesField counts launches, which are not known of sampled processes.
func launchesField(s *state) widget.Field[programRow] {
	f := countField(s, "LAUNCHES", 0, func(r *programRow) uint64 { return r.Launches })
	cell := f.Cell
	f.Cell = func(r *programRow) text.Line {
		if r.process.Info.Source == aggregator.Sampled {
			return text.Faint.Line(text.GlyphSet(s.settings.ASCII).Unknown)
		}
		return cell(r)
	}
	return f
}

func (s *state) nameCell(name string, w int) text.Line {
	g := text.GlyphSet(s.settings.ASCII)
	if name == "" {
		return text.Faint.Line(g.Unknown)
	}
	return text.Plain.Line(text.Clip(text.Sanitize(name, s.settings.ASCII), w, g.Dots))
}

// operationCell names an operation without its namespaces, which are long and alike.
func (s *state) operationCell(name string, w int) text.Line {
	if i := strings.LastIndex(name, "::"); i >= 0 && i+2 < len(name) {
		name = name[i+2:]
	}
	return s.nameCell(name, w)
}

// layouts are the names of TensorMemoryLayout, by its value.
var layouts = []string{"interleaved", "single bank", "height sharded", "width sharded", "block sharded"}

func layoutName(l uint8, g text.Glyphs) string {
	if int(l) < len(layouts) {
		return layouts[l]
	}
	return g.Unknown
}

func newTables(s *state) *tables {
	t := &tables{state: s}
	t.buffers = &widget.Table[bufferRow, objectKey]{
		Settings: &s.settings.Settings, Name: "buffers", Order: "SIZE", What: "buffers", None: "no buffers",
		Key: func(r *bufferRow) objectKey { return objectKey{process: idOf(r.process), id: r.ID} },
		Words: func(b []byte, r *bufferRow) []byte {
			b = append(append(r.words(b), r.Memory.String()...), ' ', '0', 'x')
			b = append(strconv.AppendUint(b, r.Address, 16), ' ')
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
			widget.Field[bufferRow]{Name: "CHIPS", Least: 5, Rank: 1, Cell: func(r *bufferRow) text.Line { return s.chipsCell(r.Chips) },
				Order: func(a, b *bufferRow) int { return cmp.Compare(len(b.Chips), len(a.Chips)) }},
			widget.Field[bufferRow]{Name: "ADDRESS", Right: true, Least: 10, Rank: 3, Cell: func(r *bufferRow) text.Line { return text.Plain.Line(text.Hex(r.Address)) },
				Order: func(a, b *bufferRow) int { return cmp.Compare(a.Address, b.Address) }},
			bytesField(s, "SIZE", 0, func(r *bufferRow) uint64 { return r.Size }),
			knownBytes(s, "RESERVED", 4, (*bufferRow).reserved),
			knownBytes(s, "PAGE", 7, func(r *bufferRow) uint64 { return r.PageSize }),
			widget.Field[bufferRow]{Name: "LAYOUT", Least: 11, Rank: 6, Cell: func(r *bufferRow) text.Line { return text.Plain.Line(r.what(text.GlyphSet(s.settings.ASCII))) },
				Order: func(a, b *bufferRow) int { return cmp.Compare(a.MemoryLayout, b.MemoryLayout) }},
			ageField(s, "AGE", func(r *bufferRow) uint64 { return r.Since }),
			countField(s, "TID", 8, func(r *bufferRow) uint64 { return uint64(r.TID) }),
		),
		Detail: func(r *bufferRow) []text.Line { return bufferDetail(s, r) },
	}
	t.buffers.Fields[len(t.buffers.Fields)-1].Cell = func(r *bufferRow) text.Line {
		if r.TID == 0 {
			return text.Faint.Line(text.GlyphSet(s.settings.ASCII).Unknown)
		}
		return text.Plain.Line(strconv.FormatUint(uint64(r.TID), 10))
	}
	t.circular = &widget.Table[circularRow, objectKey]{
		Settings: &s.settings.Settings, Name: "circular", What: "circular buffers", None: "no circular or dataflow buffers, no scratchpads",
		Key: func(r *circularRow) objectKey {
			return objectKey{idOf(r.process), r.program.ID, r.cb.Address<<16 ^ uint64(r.cb.Kind) ^ r.cb.Size<<2, fmt.Sprint(r.cb.Ranges, r.chips)}
		},
		Words: func(b []byte, r *circularRow) []byte {
			b = append(append(r.words(b), r.program.Operation...), ' ', '0', 'x')
			b = append(strconv.AppendUint(b, r.cb.Address, 16), ' ')
			return chipWords(append(b, kindName(r.cb.Kind)...), r.chips)
		},
		Fields: append(ownerFields(16, 4, func(r *circularRow) owner { return r.owner }),
			widget.Field[circularRow]{Name: "OPERATION", Least: 20, Flex: true, Rank: 1, Cell: func(r *circularRow) text.Line { return s.operationCell(r.program.Operation, 60) },
				Order: byText(func(r *circularRow) string { return r.program.Operation })},
			widget.Field[circularRow]{Name: "KIND", Least: 8, Rank: 5, Cell: func(r *circularRow) text.Line { return text.Plain.Line(kindName(r.cb.Kind)) },
				Order: func(a, b *circularRow) int { return cmp.Compare(a.cb.Kind, b.cb.Kind) }},
			widget.Field[circularRow]{Name: "CHIPS", Least: 5, Rank: 2, Cell: func(r *circularRow) text.Line { return s.chipsCell(r.chips) },
				Order: func(a, b *circularRow) int { return cmp.Compare(len(b.chips), len(a.chips)) }},
			placed(s, widget.Field[circularRow]{Name: "ADDRESS", Right: true, Least: 8, Cell: func(r *circularRow) text.Line { return text.Plain.Line(text.Hex(r.cb.Address)) },
				Order: func(a, b *circularRow) int { return cmp.Compare(a.cb.Address, b.cb.Address) }}),
			placed(s, bytesField(s, "PER CORE", 0, func(r *circularRow) uint64 { return r.cb.Size })),
			placed(s, countField(s, "CORES", 4, func(r *circularRow) uint64 { return r.cb.Cores() })),
			bytesField(s, "SUM", 3, func(r *circularRow) uint64 { return r.cb.Bytes() }),
			ageField(s, "AGE", func(r *circularRow) uint64 { return r.program.Since }),
		),
		Detail: func(r *circularRow) []text.Line {
			if r.cb.Kind == aggregator.ReportedCircular {
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
	t.programs = &widget.Table[programRow, objectKey]{
		Settings: &s.settings.Settings, Name: "programs", What: "programs", None: "no programs",
		Key: func(r *programRow) objectKey { return objectKey{process: idOf(r.process), id: r.ID} },
		Words: func(b []byte, r *programRow) []byte {
			return chipWords(append(r.words(b), r.Operation...), r.chips)
		},
		Fields: append(ownerFields(16, 4, func(r *programRow) owner { return r.owner }),
			widget.Field[programRow]{Name: "OPERATION", Least: 24, Flex: true, Cell: func(r *programRow) text.Line { return s.operationCell(r.Operation, 60) },
				Order: byText(func(r *programRow) string { return r.Operation })},
			widget.Field[programRow]{Name: "CHIPS", Least: 5, Rank: 1, Cell: func(r *programRow) text.Line { return s.chipsCell(r.chips) },
				Order: func(a, b *programRow) int { return cmp.Compare(len(b.chips), len(a.chips)) }},
			countField(s, "CBS", 6, func(r *programRow) uint64 { return uint64(r.circular) }),
			bytesField(s, "CB BYTES", 3, func(r *programRow) uint64 { return r.circularSum }),
			countField(s, "KERNELS", 5, func(r *programRow) uint64 { return r.KernelCount }),
			widget.Field[programRow]{Name: "BINARIES", Right: true, Least: 9, Rank: 4, Cell: func(r *programRow) text.Line { return s.atLeast(r.kernelSum, r.unsized) },
				Order: bigFirst(func(r *programRow) uint64 { return r.kernelSum })},
			knownBytes(s, "CONFIG", 7, func(r *programRow) uint64 { return r.Config }),
			launchesField(s),
			ageField(s, "LAST", func(r *programRow) uint64 { return r.LastLaunch }),
			ageField(s, "AGE", func(r *programRow) uint64 { return r.Since }),
		),
		Detail: func(r *programRow) []text.Line { return programDetail(s, r.owner, r.ProgramSnapshot) },
	}
	t.kernels = &widget.Table[kernelRow, objectKey]{
		Settings: &s.settings.Settings, Name: "kernels", What: "kernels", None: "no kernels",
		Key: func(r *kernelRow) objectKey {
			return objectKey{idOf(r.process), r.program.ID, r.ID, r.Processor + r.Hash}
		},
		Words: func(b []byte, r *kernelRow) []byte {
			b = append(append(r.words(b), r.Name...), ' ')
			b = append(append(b, r.Processor...), ' ')
			b = append(append(b, r.Type.String()...), ' ')
			b = append(append(b, r.program.Operation...), ' ')
			return chipWords(append(b, r.Hash...), r.program.Loaded)
		},
		Fields: append(ownerFields(16, 4, func(r *kernelRow) owner { return r.owner }),
			widget.Field[kernelRow]{Name: "KERNEL", Least: 24, Flex: true, Cell: func(r *kernelRow) text.Line { return s.nameCell(r.Name, 60) },
				Order: byText(func(r *kernelRow) string { return r.Name })},
			widget.Field[kernelRow]{Name: "PROCESSOR", Least: 9, Cell: func(r *kernelRow) text.Line { return s.nameCell(r.Processor, 16) },
				Order: byText(func(r *kernelRow) string { return r.Processor })},
			widget.Field[kernelRow]{Name: "TYPE", Least: 11, Rank: 4, Cell: func(r *kernelRow) text.Line { return text.Plain.Line(r.Type.String()) },
				Order: func(a, b *kernelRow) int { return cmp.Compare(a.Type, b.Type) }},
			widget.Field[kernelRow]{Name: "BYTES", Right: true, Least: 9, Cell: func(r *kernelRow) text.Line {
				if !r.Sized {
					return text.Faint.Line(text.GlyphSet(s.settings.ASCII).Unknown)
				}
				return bytesCell(r.Bytes, s.settings)
			}, Order: bigFirst(func(r *kernelRow) uint64 { return r.Bytes })},
			knownBytes(s, "ON CORES", 6, func(r *kernelRow) uint64 { n, _ := r.OnCores(); return n }),
			widget.Field[kernelRow]{Name: "CHIPS", Least: 5, Rank: 2, Cell: func(r *kernelRow) text.Line { return s.chipsCell(r.program.Loaded) },
				Order: func(a, b *kernelRow) int { return cmp.Compare(len(b.program.Loaded), len(a.program.Loaded)) }},
			widget.Field[kernelRow]{Name: "OPERATION", Least: 20, Flex: true, Rank: 3, Cell: func(r *kernelRow) text.Line { return s.operationCell(r.program.Operation, 60) },
				Order: byText(func(r *kernelRow) string { return r.program.Operation })},
			ageField(s, "AGE", func(r *kernelRow) uint64 { return r.program.Since }),
		),
		Detail: func(r *kernelRow) []text.Line {
			size := text.GlyphSet(s.settings.ASCII).Unknown
			if r.Sized {
				size = text.Digits(r.Bytes) + " bytes are loaded of the file"
			}
			if bytes, known := r.OnCores(); known {
				size += fmt.Sprintf(", on each of %s: %s", text.Plural(int(r.Cores), "core", "cores"), text.Digits(bytes))
			}
			return append([]text.Line{
				widget.Pair("kernel", text.Strong.Line(text.Sanitize(r.Name, s.settings.ASCII)+"  "+text.Sanitize(r.Processor, s.settings.ASCII)+"  "+r.Type.String())),
				widget.Pair("size", text.Plain.Line(size)), widget.Pair("hash", s.nameCell(r.Hash, 80)), widget.Pair("file", s.nameCell(r.Path, 300)),
				widget.Pair("chips", s.chipsCell(r.program.Loaded)),
			}, programDetail(s, r.owner, r.program)...)
		},
	}
	return t
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

// atLeast writes bytes of which some are not known.
func (s *state) atLeast(v uint64, more bool) text.Line {
	switch g := text.GlyphSet(s.settings.ASCII); {
	case more && v == 0:
		return text.Faint.Line(g.Unknown)
	case more:
		return append(text.Plain.Line(g.AtLeast), bytesCell(v, s.settings)...)
	}
	return bytesCell(v, s.settings)
}

func (s *state) chipsCell(chips []aggregator.Chip) text.Line {
	g := text.GlyphSet(s.settings.ASCII)
	if len(chips) == 0 {
		return text.Faint.Line(g.Unknown)
	}
	return text.Plain.Line(text.Clip(chipList(chips), maxChips, g.Dots))
}

// what a buffer is, in a word or two.
func (r *bufferRow) what(g text.Glyphs) string {
	if r.Unsafe.Found {
		return "unsafe: trace " + strconv.FormatUint(uint64(r.Unsafe.Trace), 10)
	}
	if r.Kernels {
		return "copy of kernels"
	}
	return layoutName(r.MemoryLayout, g)
}

func kindName(k aggregator.CBKind) string {
	names := [...]string{"circular", "global", "dataflow", "scratchpad", "reported"}
	return names[min(int(k), len(names)-1)]
}

// cbName is what one of a kind is called.
func cbName(k aggregator.CBKind) string {
	switch k {
	case aggregator.Scratchpad:
		return "scratchpad"
	case aggregator.GlobalCircular:
		return "circular buffer in an L1 buffer"
	}
	return kindName(k) + " buffer"
}

// placed makes a field say nothing of buffers whose place is not known.
func placed(s *state, f widget.Field[circularRow]) widget.Field[circularRow] {
	cell := f.Cell
	f.Cell = func(r *circularRow) text.Line {
		if r.cb.Kind == aggregator.ReportedCircular {
			return text.Faint.Line(text.GlyphSet(s.settings.ASCII).Unknown)
		}
		return cell(r)
	}
	return f
}

func rangeName(c aggregator.CoreRange) string {
	if c.X0 == c.X1 && c.Y0 == c.Y1 {
		return fmt.Sprintf("(%d,%d)", c.X0, c.Y0)
	}
	return fmt.Sprintf("(%d,%d)-(%d,%d)", c.X0, c.Y0, c.X1, c.Y1)
}

func bufferDetail(s *state, r *bufferRow) []text.Line {
	g := text.GlyphSet(s.settings.ASCII)
	reserved := text.Faint.Line(g.Unknown)
	if r.reserved() > 0 {
		reserved = text.Plain.Line(fmt.Sprintf("%s bytes on each chip: %s in each of %d banks", text.Digits(r.reserved()), text.Digits(r.PerBank), r.banks))
	} else if r.PerBank > 0 {
		reserved = text.Plain.Line(text.Digits(r.PerBank) + " bytes in each bank")
	}
	since := append(s.ageCell(r.Since), text.Plain.Span(" ago, "+s.when(r.Since)+", by thread "+strconv.FormatUint(uint64(r.TID), 10)))
	if r.Since == 0 {
		since = text.Plain.Line("before tracing began, or at a time whose events were lost")
	}
	out := []text.Line{
		widget.Pair("what", text.Strong.Line(r.Memory.String()+" buffer, "+r.what(g)+", at "+text.Hex(r.Address)+" of each bank")),
		widget.Pair("requested", text.Plain.Line(text.Digits(r.Size)+" bytes on each chip, in pages of "+text.Digits(r.PageSize))),
		widget.Pair("reserved", reserved),
		widget.Pair("process", text.Plain.Line(fmt.Sprintf("%d  %s", r.process.PID, r.name))),
		widget.Pair("since", since),
		widget.Pair("chips", s.chipsCell(r.Chips)),
		widget.Pair("object", text.Plain.Line(text.Hex(r.ID)+" in the process")),
	}
	if r.Stack != nil {
		if r.Site != "" {
			out = slices.Insert(out, 1, widget.Pair("site", text.Strong.Line(text.Sanitize(r.Site, s.settings.ASCII))))
		}
		out = append(out, s.stackLines(r.Stack)...)
	}
	return out
}

func programDetail(s *state, o owner, p *aggregator.ProgramSnapshot) []text.Line {
	launches := text.Plain.Line("no launch was seen")
	if o.process.Info.Source == aggregator.Sampled {
		launches = text.Faint.Line("not known: the process is sampled")
	} else if p.Launches > 0 {
		launches = append(text.Plain.Line(text.Plural(int(min(p.Launches, 1<<62)), "launch", "launches")+", the last "), append(s.ageCell(p.LastLaunch), text.Plain.Span(" ago"))...)
	}
	config := text.Faint.Line(text.GlyphSet(s.settings.ASCII).Unknown)
	if p.Config > 0 {
		config = text.Plain.Line(text.Digits(p.Config) + " bytes of the kernel-config ring in each core")
	}
	operation := text.Faint.Line(text.GlyphSet(s.settings.ASCII).Unknown)
	if p.Operation != "" {
		operation = text.Strong.Line(text.Sanitize(p.Operation, s.settings.ASCII))
	}
	return []text.Line{
		widget.Pair("operation", operation),
		widget.Pair("process", text.Plain.Line(fmt.Sprintf("%d  %s", o.process.PID, o.name))),
		widget.Pair("program", append(text.Plain.Line(text.Hex(p.ID)+" in the process, "), append(s.ageCell(p.Since), text.Plain.Span(" old"))...)),
		widget.Pair("launches", launches),
		widget.Pair("launch", config),
	}
}

// bankCounts is how many banks each memory of a process's chips has, 0 where it is not known.
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

// owners are the processes with their names.
func owners(s *aggregator.Snapshot, ascii bool) []owner {
	out := make([]owner, len(s.Processes))
	for i := range s.Processes {
		out[i] = owner{&s.Processes[i], text.Command(s.Processes[i].Info.Command, ascii)}
	}
	return out
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

func programRows(r *reader, ascii bool) []programRow {
	var out []programRow
	for _, o := range owners(r.snapshot, ascii) {
		programs := r.programs(o.process)
		for i := range programs {
			p := &programs[i]
			row := programRow{owner: o, ProgramSnapshot: p, chips: slices.Clone(p.Loaded)}
			for j := range p.Placed {
				c := &p.Placed[j]
				if !slices.Contains(row.chips, c.Chip) {
					row.chips = append(row.chips, c.Chip)
				}
				if c.Chip == p.Placed[0].Chip {
					row.circular++
					if c.Kind != aggregator.GlobalCircular {
						row.circularSum += c.Bytes()
					}
				}
			}
			for _, k := range p.Kernels {
				row.kernelSum += k.Bytes
				row.unsized = row.unsized || !k.Sized
			}
			out = append(out, row)
		}
	}
	return out
}

func kernelRows(r *reader, ascii bool) []kernelRow {
	var out []kernelRow
	for _, o := range owners(r.snapshot, ascii) {
		programs := r.programs(o.process)
		for i := range programs {
			for _, k := range programs[i].Kernels {
				out = append(out, kernelRow{o, &programs[i], k})
			}
		}
	}
	return out
}

func (t *tables) work() func(*reader) func() {
	ascii := t.settings.ASCII
	switch t.which {
	case bufferTable:
		return job(t.buffers, &t.done[t.which], touchBuffers, func(r *reader) []bufferRow { return bufferRows(r, ascii) })
	case circularTable:
		return job(t.circular, &t.done[t.which], touchPrograms, func(r *reader) []circularRow { return circularRows(r, ascii) })
	case programTable:
		return job(t.programs, &t.done[t.which], touchPrograms, func(r *reader) []programRow { return programRows(r, ascii) })
	}
	return job(t.kernels, &t.done[t.which], touchPrograms, func(r *reader) []kernelRow { return kernelRows(r, ascii) })
}

// touchBuffers and touchPrograms read what changed.
func touchBuffers(r *reader) {
	for i := range r.snapshot.Processes {
		r.buffers(&r.snapshot.Processes[i])
	}
}

func touchPrograms(r *reader) {
	for i := range r.snapshot.Processes {
		r.programs(&r.snapshot.Processes[i])
	}
}

// job reads the rows of a table, filters and sorts them, unless they are the same as before.
func job[R any, K comparable](t *widget.Table[R, K], done *doneWork, touch func(*reader), read func(*reader) []R) func(*reader) func() {
	arrange, q, last := t.Arranger(), t.Query(), *done
	return func(r *reader) func() {
		touch(r)
		now := doneWork{q, r.round, true}
		if now == last {
			return nil
		}
		all := read(r)
		rows := arrange(all)
		return func() {
			*done = now
			t.Set(rows, len(all))
		}
	}
}

func (t *tables) Compose(w, h int) widget.Picture {
	head := text.Plain.Line(" ")
	t.tabs = t.tabs[:0]
	for i, name := range tableNames {
		look := text.Plain
		if i == t.which {
			look = text.Tab
		}
		at := head.Width()
		head = append(head, look.Span(" "+name+" "), text.Plain.Span(" "))
		t.tabs = append(t.tabs, widget.TitleAt{Field: i, From: at, To: head.Width() - 1})
	}
	if p, none := t.noBuffers("no "+tableNames[t.which], w); none {
		p.Lines = append([]text.Line{head}, p.Lines...)
		return p
	}
	p := t.table().Compose(w, h-1)
	p.Lines = append([]text.Line{head}, p.Lines...)
	if p.Selected >= 0 {
		p.Selected++
	}
	return p
}

func (t *tables) Move(m widget.Motion) {
	switch m {
	case widget.Left:
		t.turn(-1)
	case widget.Right:
		t.turn(1)
	default:
		t.table().Move(m)
	}
}

// turn goes to another of the tables.
func (t *tables) turn(by int) {
	t.table().CloseDetail()
	t.which = (t.which + by + numTables) % numTables
}

func (t *tables) Bindings() []widget.Binding {
	return append(t.table().Bindings(),
		widget.Binding{Key: "tab", Does: "the next table; also left and right", Brief: "next table", Keys: []tcell.Key{tcell.KeyTab}, Do: func(rune) { t.turn(1) }},
		widget.Binding{Key: "shift-tab", Does: "the table before", Keys: []tcell.Key{tcell.KeyBacktab}, Do: func(rune) { t.turn(-1) }},
	)
}

func (t *tables) Mouse(a tview.MouseAction, x, y int) bool {
	if y > 0 {
		return t.table().Mouse(a, x, y-1)
	}
	for _, c := range t.tabs {
		if a == tview.MouseLeftDown && x >= c.From && x < c.To {
			t.which = c.Field
			return true
		}
	}
	return false
}

func (t *tables) Filter() widget.Pattern     { return t.table().Filter() }
func (t *tables) SetFilter(p widget.Pattern) { t.table().SetFilter(p) }
func (t *tables) CloseDetail() bool          { return t.table().CloseDetail() }
func (t *tables) Search(p widget.Pattern, forward, here bool) bool {
	return t.table().Search(p, forward, here)
}

func (t *tables) ClearSearch() bool { return t.table().ClearSearch() }
