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
)

// tables are buffers, circular buffers, programs and kernels of all processes.
type tables struct {
	*state
	which    int
	buffers  *grid[bufferRow, objectKey]
	circular *grid[circularRow, objectKey]
	programs *grid[programRow, objectKey]
	kernels  *grid[kernelRow, objectKey]
	done     [numTables]doneWork
	tabs     []titleAt
}

// doneWork is what the rows of a table were last made of.
type doneWork struct {
	query query
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

// anyGrid is a grid of whatever rows.
type anyGrid interface {
	page
	listed
	closeDetail() bool
}

func (t *tables) grid() anyGrid {
	return [numTables]anyGrid{t.buffers, t.circular, t.programs, t.kernels}[t.which]
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
func ownerFields[R any](least, rank int, of func(*R) owner) []field[R] {
	return []field[R]{
		{name: "PID", right: true, least: 7,
			cell:  func(r *R) line { return text(strong, strconv.FormatUint(uint64(of(r).process.PID), 10)) },
			order: func(a, b *R) int { return cmp.Compare(of(a).process.PID, of(b).process.PID) }},
		{name: "PROCESS", least: least, flex: true, rank: rank,
			cell:  func(r *R) line { return text(plain, of(r).name) },
			order: func(a, b *R) int { return cmp.Compare(of(a).name, of(b).name) }},
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
func ageField[R any](s *state, name string, since func(*R) uint64) field[R] {
	return field[R]{name: name, right: true, least: 6, rank: 2,
		cell:  func(r *R) line { return s.ageCell(since(r)) },
		order: func(a, b *R) int { return cmp.Compare(since(a), since(b)) }}
}

func (s *state) ageCell(since uint64) line {
	if since == 0 {
		return text(faint, glyphSet(s.settings.ascii).unknown)
	}
	return text(plain, age(time.Duration(max(s.data.now, since)-since)))
}

func bytesField[R any](s *state, name string, rank int, value func(*R) uint64) field[R] {
	return field[R]{name: name, right: true, least: 9, rank: rank,
		cell:  func(r *R) line { return bytesCell(value(r), s.settings) },
		order: bigFirst(value)}
}

// knownBytes is bytesField where 0 means that it is not known.
func knownBytes[R any](s *state, name string, rank int, value func(*R) uint64) field[R] {
	f := bytesField(s, name, rank, value)
	f.cell = func(r *R) line {
		if value(r) == 0 {
			return text(faint, glyphSet(s.settings.ascii).unknown)
		}
		return bytesCell(value(r), s.settings)
	}
	return f
}

func countField[R any](s *state, name string, rank int, value func(*R) uint64) field[R] {
	return field[R]{name: name, right: true, least: 5, rank: rank,
		cell:  func(r *R) line { return text(plain, count(value(r), s.settings.exact)) },
		order: bigFirst(value)}
}

func (s *state) nameCell(name string, w int) line {
	g := glyphSet(s.settings.ascii)
	if name == "" {
		return text(faint, g.unknown)
	}
	return text(plain, clip(clean(name, s.settings.ascii), w, g.dots))
}

// operationCell names an operation without its namespaces, which are long and alike.
func (s *state) operationCell(name string, w int) line {
	if i := strings.LastIndex(name, "::"); i >= 0 && i+2 < len(name) {
		name = name[i+2:]
	}
	return s.nameCell(name, w)
}

func hex(v uint64) string { return "0x" + strconv.FormatUint(v, 16) }

// layouts are the names of TensorMemoryLayout, by its value.
var layouts = []string{"interleaved", "single bank", "height sharded", "width sharded", "block sharded"}

func layoutName(l uint8, g glyphs) string {
	if int(l) < len(layouts) {
		return layouts[l]
	}
	return g.unknown
}

func newTables(s *state) *tables {
	t := &tables{state: s}
	t.buffers = &grid[bufferRow, objectKey]{
		state: s, name: "buffers", what: "buffers", none: "no buffers",
		key: func(r *bufferRow) objectKey { return objectKey{process: idOf(r.process), id: r.ID} },
		words: func(b []byte, r *bufferRow) []byte {
			b = append(append(r.words(b), r.Memory.String()...), ' ', '0', 'x')
			b = append(strconv.AppendUint(b, r.Address, 16), ' ')
			if int(r.Layout) < len(layouts) {
				b = append(append(b, layouts[r.Layout]...), ' ')
			}
			b = strconv.AppendUint(append(b, "tid "...), uint64(r.TID), 10)
			if r.Kernels {
				b = append(b, " kernels"...)
			}
			return chipWords(b, r.Chips)
		},
		fields: append(ownerFields(10, 2, func(r *bufferRow) owner { return r.owner }),
			field[bufferRow]{name: "MEMORY", least: 8, cell: func(r *bufferRow) line { return text(plain, r.Memory.String()) },
				order: func(a, b *bufferRow) int { return cmp.Compare(a.Memory, b.Memory) }},
			field[bufferRow]{name: "CHIPS", least: 5, rank: 1, cell: func(r *bufferRow) line { return s.chipsCell(r.Chips) },
				order: func(a, b *bufferRow) int { return cmp.Compare(len(b.Chips), len(a.Chips)) }},
			field[bufferRow]{name: "ADDRESS", right: true, least: 10, rank: 3, cell: func(r *bufferRow) line { return text(plain, hex(r.Address)) },
				order: func(a, b *bufferRow) int { return cmp.Compare(a.Address, b.Address) }},
			bytesField(s, "SIZE", 0, func(r *bufferRow) uint64 { return r.Size }),
			knownBytes(s, "RESERVED", 4, (*bufferRow).reserved),
			knownBytes(s, "PAGE", 7, func(r *bufferRow) uint64 { return r.PageSize }),
			field[bufferRow]{name: "LAYOUT", least: 11, rank: 6, cell: func(r *bufferRow) line { return text(plain, r.what(glyphSet(s.settings.ascii))) },
				order: func(a, b *bufferRow) int { return cmp.Compare(a.Layout, b.Layout) }},
			ageField(s, "AGE", func(r *bufferRow) uint64 { return r.Since }),
			countField(s, "TID", 8, func(r *bufferRow) uint64 { return uint64(r.TID) }),
		),
		detail: func(r *bufferRow) []line { return bufferDetail(s, r) },
	}
	t.buffers.fields[len(t.buffers.fields)-1].cell = func(r *bufferRow) line {
		if r.TID == 0 {
			return text(faint, glyphSet(s.settings.ascii).unknown)
		}
		return text(plain, strconv.FormatUint(uint64(r.TID), 10))
	}
	t.circular = &grid[circularRow, objectKey]{
		state: s, name: "circular", what: "circular buffers", none: "no circular or dataflow buffers, no scratchpads",
		key: func(r *circularRow) objectKey {
			return objectKey{idOf(r.process), r.program.ID, r.cb.Address<<16 ^ uint64(r.cb.Kind) ^ uint64(r.cb.Size)<<2, fmt.Sprint(r.cb.Ranges, r.chips)}
		},
		words: func(b []byte, r *circularRow) []byte {
			b = append(append(r.words(b), r.program.Operation...), ' ', '0', 'x')
			b = append(strconv.AppendUint(b, r.cb.Address, 16), ' ')
			return chipWords(append(b, kindName(r.cb.Kind)...), r.chips)
		},
		fields: append(ownerFields(16, 4, func(r *circularRow) owner { return r.owner }),
			field[circularRow]{name: "OPERATION", least: 20, flex: true, rank: 1, cell: func(r *circularRow) line { return s.operationCell(r.program.Operation, 60) },
				order: byText(func(r *circularRow) string { return r.program.Operation })},
			field[circularRow]{name: "KIND", least: 8, rank: 5, cell: func(r *circularRow) line { return text(plain, kindName(r.cb.Kind)) },
				order: func(a, b *circularRow) int { return cmp.Compare(a.cb.Kind, b.cb.Kind) }},
			field[circularRow]{name: "CHIPS", least: 5, rank: 2, cell: func(r *circularRow) line { return s.chipsCell(r.chips) },
				order: func(a, b *circularRow) int { return cmp.Compare(len(b.chips), len(a.chips)) }},
			placed(s, field[circularRow]{name: "ADDRESS", right: true, least: 8, cell: func(r *circularRow) line { return text(plain, hex(r.cb.Address)) },
				order: func(a, b *circularRow) int { return cmp.Compare(a.cb.Address, b.cb.Address) }}),
			placed(s, bytesField(s, "PER CORE", 0, func(r *circularRow) uint64 { return r.cb.Size })),
			placed(s, countField(s, "CORES", 4, func(r *circularRow) uint64 { return r.cb.Cores() })),
			bytesField(s, "SUM", 3, func(r *circularRow) uint64 { return r.cb.Bytes() }),
			ageField(s, "AGE", func(r *circularRow) uint64 { return r.program.Since }),
		),
		detail: func(r *circularRow) []line {
			if r.cb.Kind == aggregator.ReportedCircular {
				return append([]line{
					pair("what", text(strong, "circular buffer that its process reported")),
					pair("size", text(plain, digits(r.cb.Size)+" bytes on all its cores of each chip")),
					pair("chips", s.chipsCell(r.chips)),
				}, programDetail(s, r.owner, r.program)...)
			}
			where := make([]string, 0, len(r.cb.Ranges))
			for _, c := range r.cb.Ranges[:min(len(r.cb.Ranges), 24)] {
				where = append(where, rangeName(c))
			}
			return append([]line{
				pair("what", text(strong, cbName(r.cb.Kind)+" at "+hex(r.cb.Address)+" to "+hex(r.cb.Address+r.cb.Size)+" of each core")),
				pair("size", text(plain, digits(r.cb.Size)+" bytes a core, "+digits(r.cb.Size*r.cb.Cores())+" on "+plural(int(r.cb.Cores()), "core", "cores")+" of each chip")),
				pair("cores", text(plain, strings.Join(where, " "))),
				pair("chips", s.chipsCell(r.chips)),
			}, programDetail(s, r.owner, r.program)...)
		},
	}
	t.programs = &grid[programRow, objectKey]{
		state: s, name: "programs", what: "programs", none: "no programs",
		key: func(r *programRow) objectKey { return objectKey{process: idOf(r.process), id: r.ID} },
		words: func(b []byte, r *programRow) []byte {
			return chipWords(append(r.words(b), r.Operation...), r.chips)
		},
		fields: append(ownerFields(16, 4, func(r *programRow) owner { return r.owner }),
			field[programRow]{name: "OPERATION", least: 24, flex: true, cell: func(r *programRow) line { return s.operationCell(r.Operation, 60) },
				order: byText(func(r *programRow) string { return r.Operation })},
			field[programRow]{name: "CHIPS", least: 5, rank: 1, cell: func(r *programRow) line { return s.chipsCell(r.chips) },
				order: func(a, b *programRow) int { return cmp.Compare(len(b.chips), len(a.chips)) }},
			countField(s, "CBS", 6, func(r *programRow) uint64 { return uint64(r.circular) }),
			bytesField(s, "CB BYTES", 3, func(r *programRow) uint64 { return r.circularSum }),
			countField(s, "KERNELS", 5, func(r *programRow) uint64 { return r.KernelCount }),
			field[programRow]{name: "BINARIES", right: true, least: 9, rank: 4, cell: func(r *programRow) line { return s.atLeast(r.kernelSum, r.unsized) },
				order: bigFirst(func(r *programRow) uint64 { return r.kernelSum })},
			knownBytes(s, "CONFIG", 7, func(r *programRow) uint64 { return r.Config }),
			countField(s, "LAUNCHES", 0, func(r *programRow) uint64 { return r.Launches }),
			ageField(s, "LAST", func(r *programRow) uint64 { return r.LastLaunch }),
			ageField(s, "AGE", func(r *programRow) uint64 { return r.Since }),
		),
		detail: func(r *programRow) []line { return programDetail(s, r.owner, r.ProgramSnapshot) },
	}
	t.kernels = &grid[kernelRow, objectKey]{
		state: s, name: "kernels", what: "kernels", none: "no kernels",
		key: func(r *kernelRow) objectKey {
			return objectKey{idOf(r.process), r.program.ID, r.ID, r.Processor + r.Hash}
		},
		words: func(b []byte, r *kernelRow) []byte {
			b = append(append(r.words(b), r.Name...), ' ')
			b = append(append(b, r.Processor...), ' ')
			b = append(append(b, r.Type.String()...), ' ')
			b = append(append(b, r.program.Operation...), ' ')
			return chipWords(append(b, r.Hash...), r.program.Loaded)
		},
		fields: append(ownerFields(16, 4, func(r *kernelRow) owner { return r.owner }),
			field[kernelRow]{name: "KERNEL", least: 24, flex: true, cell: func(r *kernelRow) line { return s.nameCell(r.Name, 60) },
				order: byText(func(r *kernelRow) string { return r.Name })},
			field[kernelRow]{name: "PROCESSOR", least: 9, cell: func(r *kernelRow) line { return s.nameCell(r.Processor, 16) },
				order: byText(func(r *kernelRow) string { return r.Processor })},
			field[kernelRow]{name: "TYPE", least: 11, rank: 4, cell: func(r *kernelRow) line { return text(plain, r.Type.String()) },
				order: func(a, b *kernelRow) int { return cmp.Compare(a.Type, b.Type) }},
			field[kernelRow]{name: "BYTES", right: true, least: 9, cell: func(r *kernelRow) line {
				if !r.Sized {
					return text(faint, glyphSet(s.settings.ascii).unknown)
				}
				return bytesCell(r.Bytes, s.settings)
			}, order: bigFirst(func(r *kernelRow) uint64 { return r.Bytes })},
			field[kernelRow]{name: "CHIPS", least: 5, rank: 2, cell: func(r *kernelRow) line { return s.chipsCell(r.program.Loaded) },
				order: func(a, b *kernelRow) int { return cmp.Compare(len(b.program.Loaded), len(a.program.Loaded)) }},
			field[kernelRow]{name: "OPERATION", least: 20, flex: true, rank: 3, cell: func(r *kernelRow) line { return s.operationCell(r.program.Operation, 60) },
				order: byText(func(r *kernelRow) string { return r.program.Operation })},
			ageField(s, "AGE", func(r *kernelRow) uint64 { return r.program.Since }),
		),
		detail: func(r *kernelRow) []line {
			size := glyphSet(s.settings.ascii).unknown
			if r.Sized {
				size = digits(r.Bytes) + " bytes are loaded of the file"
			}
			return append([]line{
				pair("kernel", text(strong, clean(r.Name, s.settings.ascii)+"  "+clean(r.Processor, s.settings.ascii)+"  "+r.Type.String())),
				pair("size", text(plain, size)), pair("hash", s.nameCell(r.Hash, 80)), pair("file", s.nameCell(r.Path, 300)),
				pair("chips", s.chipsCell(r.program.Loaded)),
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
func (s *state) atLeast(v uint64, more bool) line {
	switch g := glyphSet(s.settings.ascii); {
	case more && v == 0:
		return text(faint, g.unknown)
	case more:
		return append(text(plain, g.atLeast), bytesCell(v, s.settings)...)
	}
	return bytesCell(v, s.settings)
}

func (s *state) chipsCell(chips []aggregator.Chip) line {
	g := glyphSet(s.settings.ascii)
	if len(chips) == 0 {
		return text(faint, g.unknown)
	}
	return text(plain, clip(chipList(chips), maxChips, g.dots))
}

// what a buffer is, in a word or two.
func (r *bufferRow) what(g glyphs) string {
	if r.Kernels {
		return "copy of kernels"
	}
	return layoutName(r.Layout, g)
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
func placed(s *state, f field[circularRow]) field[circularRow] {
	cell := f.cell
	f.cell = func(r *circularRow) line {
		if r.cb.Kind == aggregator.ReportedCircular {
			return text(faint, glyphSet(s.settings.ascii).unknown)
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

func bufferDetail(s *state, r *bufferRow) []line {
	g := glyphSet(s.settings.ascii)
	reserved := text(faint, g.unknown)
	if r.reserved() > 0 {
		reserved = text(plain, fmt.Sprintf("%s bytes on each chip: %s in each of %d banks", digits(r.reserved()), digits(r.PerBank), r.banks))
	} else if r.PerBank > 0 {
		reserved = text(plain, digits(r.PerBank)+" bytes in each bank")
	}
	since := append(s.ageCell(r.Since), span{" ago, " + s.when(r.Since) + ", by thread " + strconv.FormatUint(uint64(r.TID), 10), plain})
	if r.Since == 0 {
		since = text(plain, "before tracing began, or at a time whose events were lost")
	}
	out := []line{
		pair("what", text(strong, r.Memory.String()+" buffer, "+r.what(g)+", at "+hex(r.Address)+" of each bank")),
		pair("asked for", text(plain, digits(r.Size)+" bytes on each chip, in pages of "+digits(r.PageSize))),
		pair("reserved", reserved),
		pair("process", text(plain, fmt.Sprintf("%d  %s", r.process.PID, r.name))),
		pair("since", since),
		pair("chips", s.chipsCell(r.Chips)),
		pair("object", text(plain, hex(r.ID)+" in the process")),
	}
	return out
}

func programDetail(s *state, o owner, p *aggregator.ProgramSnapshot) []line {
	launches := text(plain, "no launch was seen")
	if p.Launches > 0 {
		launches = append(text(plain, plural(int(min(p.Launches, 1<<62)), "launch", "launches")+", the last "), append(s.ageCell(p.LastLaunch), span{" ago", plain})...)
	}
	config := text(faint, glyphSet(s.settings.ascii).unknown)
	if p.Config > 0 {
		config = text(plain, digits(p.Config)+" bytes of the kernel-config ring in each core")
	}
	operation := text(faint, glyphSet(s.settings.ascii).unknown)
	if p.Operation != "" {
		operation = text(strong, clean(p.Operation, s.settings.ascii))
	}
	return []line{
		pair("operation", operation),
		pair("process", text(plain, fmt.Sprintf("%d  %s", o.process.PID, o.name))),
		pair("program", append(text(plain, hex(p.ID)+" in the process, "), append(s.ageCell(p.Since), span{" old", plain})...)),
		pair("launches", launches),
		pair("launch", config),
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
		out[i] = owner{&s.Processes[i], command(s.Processes[i].Info.Command, ascii)}
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
	ascii := t.settings.ascii
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

// job reads the rows of a grid, filters and sorts them, unless they are the same as before.
func job[R any, K comparable](t *grid[R, K], done *doneWork, touch func(*reader), read func(*reader) []R) func(*reader) func() {
	arrange, q, last := t.arranger(), t.query(), *done
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
			t.set(rows, len(all))
		}
	}
}

func (t *tables) compose(w, h int) picture {
	head := text(plain, " ")
	t.tabs = t.tabs[:0]
	for i, name := range tableNames {
		look := plain
		if i == t.which {
			look = tab
		}
		at := head.width()
		head = append(head, span{" " + name + " ", look}, span{" ", plain})
		t.tabs = append(t.tabs, titleAt{i, at, head.width() - 1})
	}
	p := t.grid().compose(w, h-1)
	p.lines = append([]line{head}, p.lines...)
	if p.selected >= 0 {
		p.selected++
	}
	return p
}

func (t *tables) move(m motion) {
	switch m {
	case left:
		t.turn(-1)
	case right:
		t.turn(1)
	default:
		t.grid().move(m)
	}
}

// turn goes to another of the tables.
func (t *tables) turn(by int) {
	t.grid().closeDetail()
	t.which = (t.which + by + numTables) % numTables
}

func (t *tables) bindings() []binding {
	return append(t.grid().bindings(),
		binding{key: "tab", does: "the next table; also left and right", brief: "next table", keys: []tcell.Key{tcell.KeyTab}, do: func(rune) { t.turn(1) }},
		binding{key: "shift-tab", does: "the table before", keys: []tcell.Key{tcell.KeyBacktab}, do: func(rune) { t.turn(-1) }},
	)
}

func (t *tables) mouse(a tview.MouseAction, x, y int) bool {
	if y > 0 {
		return t.grid().mouse(a, x, y-1)
	}
	for _, c := range t.tabs {
		if a == tview.MouseLeftDown && x >= c.from && x < c.to {
			t.which = c.field
			return true
		}
	}
	return false
}

func (t *tables) filter() pattern     { return t.grid().filter() }
func (t *tables) setFilter(p pattern) { t.grid().setFilter(p) }
func (t *tables) closeDetail() bool   { return t.grid().closeDetail() }
func (t *tables) search(p pattern, forward, here bool) bool {
	return t.grid().search(p, forward, here)
}
