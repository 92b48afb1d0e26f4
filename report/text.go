package report

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"tt-memtrace/aggregator"
	"tt-memtrace/export"
)

// Size is a number of bytes in a unit that fits it.
func Size(n uint64) string {
	units := []string{"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"}
	v, u := float64(n), 0
	for v >= 1024 && u < len(units)-1 {
		v, u = v/1024, u+1
	}
	if u == 0 {
		return strconv.FormatUint(n, 10) + " B"
	}
	return strconv.FormatFloat(v, 'f', 2, 64) + " " + units[u]
}

func seconds(s float64) string {
	d := time.Duration(s * 1e9)
	if d < 10*time.Millisecond {
		return d.Round(time.Microsecond).String()
	}
	return d.Round(time.Millisecond).String()
}

// unquoted undoes what only JSON needs, in one pass.
var unquoted = strings.NewReplacer(`\\`, `\\`, `\"`, `"`, `\u003c`, "<", `\u003e`, ">", `\u0026`, "&")

// printable is untrusted text as it may stand on a terminal, in one line.
func printable(t export.Text) string {
	quoted, err := json.Marshal(t)
	if err != nil {
		return "?"
	}
	return unquoted.Replace(string(quoted[1 : len(quoted)-1]))
}

func shortened(s string, n int) string {
	if r := []rune(s); len(r) > n {
		return string(r[:n-1]) + "…"
	}
	return s
}

// Label says in a line what a site is.
func (s *Site) Label() string {
	label := ""
	switch {
	case s.Where != nil:
		label = printable(*s.Where)
	case s.Size != nil:
		label = "buffers of " + Size(*s.Size)
	default:
		label = "unknown"
	}
	if s.Operation != nil {
		label += " · " + printable(*s.Operation)
	}
	return label
}

// printer writes lines until one fails.
type printer struct {
	w   io.Writer
	err error
	// many processes: each line says whose it is.
	many bool
}

func (p *printer) line(format string, args ...any) {
	if p.err == nil {
		_, p.err = fmt.Fprintf(p.w, format+"\n", args...)
	}
}

// shown is how many entries of a list the text has, and few of one among several.
const (
	shown = 10
	few   = 5
)

// Text writes the report for people.
func (r *Report) Text(w io.Writer) error {
	p := &printer{w: w, many: len(r.Processes) > 1}
	p.line("%s", shortened(cmp.Or(printable(r.Source), "report"), wide))
	p.line("on %s, %s, for %s: %d events, %d lost", printable(export.Text(r.Host)), r.Began.Format(time.DateTime), seconds(r.Seconds), r.Events, r.Lost)
	if !r.Exact {
		p.line("not exact: events were lost, or what was there before is not known")
	}
	if r.Stacks == 0 && len(r.Churn) > 0 {
		p.line("no call sites: record with --stacks to have them")
	} else if r.StacksCut+r.StacksLost > 0 {
		p.line("of %d stacks %d are cut short; %d more were lost", r.Stacks, r.StacksCut, r.StacksLost)
	}
	p.processes(r)
	p.refusals(r)
	p.peaks(r)
	p.programs(r)
	p.left(r)
	p.churn(r)
	return p.err
}

func (p *printer) processes(r *Report) {
	p.line("\nProcesses")
	for i := range r.Processes {
		pr := &r.Processes[i]
		command := "?"
		if pr.Command != nil {
			command = shortened(printable(*pr.Command), 70)
		}
		end := "still there"
		if pr.To != nil {
			end = "ended at " + seconds(*pr.To)
			if pr.HeldAtExit > 0 {
				end += fmt.Sprintf(" holding %s, %s", plural(pr.HeldAtExit, "buffer"), Size(pr.HeldBytesAtExit))
			}
		}
		p.line("  %7d  %s; from %s, %s", pr.PID, command, seconds(pr.From), end)
	}
}

// plural is a number of things.
func plural(n uint64, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}

// column is one of a table of sites.
type column struct {
	title string
	of    func(*Site) string
}

var (
	bytesColumn   = column{"BYTES", func(s *Site) string { return Size(s.Bytes) }}
	buffersColumn = column{"BUFFERS", func(s *Site) string { return strconv.FormatUint(s.Buffers, 10) }}
	memoryColumn  = column{"MEMORY", func(s *Site) string { return s.Memory }}
	pidColumn     = column{"PID", func(s *Site) string { return strconv.FormatUint(uint64(s.PID), 10) }}

	// Of what was never freed.
	ageColumn  = column{"AGE", (*Site).age}
	goneColumn = column{"WENT WITH", (*Site).gone}

	// Of what came and went.
	mostColumn  = column{"AT A TIME", func(s *Site) string { return strconv.FormatUint(s.Most, 10) }}
	livedColumn = column{"LIVED", func(s *Site) string {
		if s.MeanLife == nil {
			return "·"
		}
		return seconds(*s.MeanLife)
	}}
)

// holderColumns, leftColumns and churnColumns are what is shown of a site, ahead of who it is.
func holderColumns(many bool) []column {
	return with(many, bytesColumn, buffersColumn)
}

func leftColumns(many bool) []column {
	return with(many, bytesColumn, buffersColumn, memoryColumn, ageColumn, goneColumn)
}

func churnColumns(many bool) []column {
	return with(many, bytesColumn, buffersColumn, memoryColumn, mostColumn, livedColumn)
}

func with(many bool, columns ...column) []column {
	if many {
		columns = append(columns, pidColumn)
	}
	return columns
}

// age is how long what is left was there, from the youngest to the oldest.
func (s *Site) age() string {
	if s.Oldest == nil {
		return "·"
	}
	youngest, oldest := seconds(*s.Youngest), seconds(*s.Oldest)
	if youngest == oldest {
		return oldest
	}
	return youngest + " – " + oldest
}

// gone is with what buffers went that nothing freed.
func (s *Site) gone() string {
	var list []string
	for _, x := range []struct {
		n    uint64
		with string
	}{{s.AtExit, "process"}, {s.AtClose, "device"}, {s.Buffers - s.AtExit - s.AtClose, "still there"}} {
		if x.n == s.Buffers {
			return x.with
		}
		if x.n > 0 {
			list = append(list, fmt.Sprintf("%d %s", x.n, x.with))
		}
	}
	return strings.Join(list, ", ")
}

// wide is how long what names a site is at the most.
const wide = 130

// sites writes the first of a list as a table, with who it is last.
func (p *printer) sites(list []Site, n int, columns []column) {
	if len(list) == 0 {
		p.line("    nothing")
		return
	}
	rest := max(0, len(list)-n)
	list = list[:len(list)-rest]
	widths := make([]int, len(columns))
	for i, c := range columns {
		widths[i] = utf8.RuneCountInString(c.title)
		for j := range list {
			widths[i] = max(widths[i], utf8.RuneCountInString(c.of(&list[j])))
		}
	}
	row := func(who string, cell func(column) string) {
		var b strings.Builder
		for i, c := range columns {
			fmt.Fprintf(&b, "  %*s", widths[i], cell(c))
		}
		p.line("  %s  %s", b.String(), who)
	}
	row("WHO", func(c column) string { return c.title })
	for i := range list {
		row(shortened(list[i].Label(), wide), func(c column) string { return c.of(&list[i]) })
	}
	if rest > 0 {
		p.line("    … %d more with --json", rest)
	}
}

// peaks shows each memory once for all chips whose peak is the same.
func (p *printer) peaks(r *Report) {
	p.line("\nPeaks, and who held what then, on each chip")
	for _, group := range sameMemories(r.Memories) {
		m := group[0]
		of := ""
		if m.Capacity != nil && *m.Capacity > 0 {
			of = fmt.Sprintf(" of %s (%.1f %%)", Size(*m.Capacity), 100*float64(m.Peak)/float64(*m.Capacity))
		}
		p.line("  %s of %s: %s%s at %s, %s; %s at the end", m.Memory, chipNames(group), Size(m.Peak), of, seconds(m.PeakAt), plural(m.PeakBuffers, "buffer"), Size(m.End))
		if f := m.Fragmented; f.Notable() {
			p.line("  most fragmented at %s: of each bank %s free, the largest block %s", seconds(f.At), Size(f.Free), Size(f.Largest))
		}
		p.sites(m.Holders, few, holderColumns(p.many))
	}
}

// Notable: some of what is free is not in the largest block, a hundredth at least.
func (f *Fragmentation) Notable() bool { return f != nil && f.Free-f.Largest > f.Free/100 }

// sameMemories puts chips together that had the same peak at the same time, memory by memory.
func sameMemories(list []Memory) [][]*Memory {
	groups := grouped(list, func(m *Memory) string {
		key := fmt.Sprint(m.Memory, m.Peak, seconds(m.PeakAt), m.PeakBuffers, m.End, m.Private != nil, m.Fragmented == nil || *m.Fragmented == Fragmentation{})
		for _, h := range m.Holders {
			key += fmt.Sprint(h.PID, h.Label(), h.Bytes)
		}
		return key
	})
	order := map[string]int{}
	for m := range aggregator.NumMemories {
		order[m.String()] = int(m)
	}
	slices.SortStableFunc(groups, func(x, y []*Memory) int { return cmp.Compare(order[x[0].Memory], order[y[0].Memory]) })
	return groups
}

// grouped puts together what has the same key, in the order of the first of each.
func grouped[T any](list []T, key func(*T) string) [][]*T {
	var groups [][]*T
	at := map[string]int{}
	for i := range list {
		k := key(&list[i])
		n, ok := at[k]
		if !ok {
			n = len(groups)
			at[k] = n
			groups = append(groups, nil)
		}
		groups[n] = append(groups[n], &list[i])
	}
	return groups
}

// chipNames are chips by their numbers, which are in order: the host's, and those in the numbering of a process.
func chipNames[T placed](group []T) string {
	spaces := map[uint32][]uint32{}
	for _, x := range group {
		chip, private := x.place()
		space := uint32(0)
		if private != nil {
			space = *private
		}
		spaces[space] = append(spaces[space], chip)
	}
	var names []string
	for _, space := range slices.Sorted(maps.Keys(spaces)) {
		name := "chips " + aggregator.Ranges(spaces[space])
		if len(spaces[space]) == 1 {
			name = fmt.Sprintf("chip %d", spaces[space][0])
		}
		if space != 0 {
			name += fmt.Sprintf(" of process %d", space)
		}
		names = append(names, name)
	}
	return strings.Join(names, ", ")
}

// placed is something on a chip, which can be in the numbering of a process.
type placed interface {
	place() (chip uint32, private *uint32)
}

func (m *Memory) place() (uint32, *uint32)      { return m.Chip, m.Private }
func (c *Programs) place() (uint32, *uint32)    { return c.Chip, c.Private }
func (c *RefusedChip) place() (uint32, *uint32) { return c.Chip, nil }

func (p *printer) programs(r *Report) {
	if len(r.Programs) == 0 {
		return
	}
	p.line("\nCircular and dataflow buffers of programs at their peak, by plain sum")
	for _, group := range samePrograms(r.Programs) {
		c := group[0]
		p.line("  %s: %s at %s", chipNames(group), Size(c.Peak), seconds(c.PeakAt))
		p.line("    %10s  %8s  %s", "BYTES", "PROGRAMS", "OPERATION")
		for _, h := range c.Holders[:min(shown, len(c.Holders))] {
			p.line("    %10s  %8d  %s", Size(h.Bytes), h.Programs, h.Name())
		}
	}
}

func (o *ProgramOperation) Name() string {
	if o.Operation == nil {
		return "unknown"
	}
	return printable(*o.Operation)
}

// samePrograms puts chips together on which programs took the same.
func samePrograms(list []Programs) [][]*Programs {
	return grouped(list, func(c *Programs) string {
		key := fmt.Sprint(c.Private == nil, c.Peak, seconds(c.PeakAt))
		for _, h := range c.Holders {
			key += fmt.Sprint(h.Name(), h.Bytes, h.Programs)
		}
		return key
	})
}

func (p *printer) left(r *Report) {
	p.line("\nNever freed, bytes on all chips")
	p.sites(r.Left, shown, leftColumns(p.many))
}

func (p *printer) churn(r *Report) {
	p.line("\nAllocated most over the time, bytes on all chips")
	p.sites(r.Churn, shown, churnColumns(p.many))
}

func (p *printer) refusals(r *Report) {
	if len(r.Refusals) == 0 {
		return
	}
	p.line("\nNo room")
	for i := range r.Refusals[:min(shown, len(r.Refusals))] {
		f := &r.Refusals[i]
		p.line("  at %s, process %d: %s", seconds(f.At), f.PID, f.What())
		if f.Where != nil {
			p.line("    in %s", printable(*f.Where))
		}
		p.line("    the runtime: %s", printable(f.Message))
		if f.Asked != nil {
			p.line("    asked for %s of each bank", Size(*f.Asked))
		}
		for _, group := range sameRoom(f.Chips) {
			p.line("    %s, each bank: %s", chipNames(group), group[0].room())
		}
		p.line("    %s", f.Holding())
		p.sites(f.Holders, shown, holderColumns(p.many))
	}
	if n := len(r.Refusals) - shown; n > 0 {
		p.line("  … %d more with --json", n)
	}
}

// What happened, in words.
func (f *Refusal) What() string {
	if f.Kind == "clash" {
		return "circular buffers clash with L1 buffers"
	}
	return "out of memory in " + f.Memory
}

// Holding is what the holders are.
func (f *Refusal) Holding() string {
	if f.End != nil && f.Lowest != nil {
		return fmt.Sprintf("the circular buffers reach up to %#x; in their way, from %#x on, on each chip:", *f.End, *f.Lowest)
	}
	return "held, on each chip:"
}

// room is how full the chip's banks were.
func (c *RefusedChip) room() string {
	text := Size(c.Allocated) + " taken"
	if c.Free != nil {
		text += fmt.Sprintf(", %s free, the largest block %s", Size(*c.Free), Size(*c.Largest))
	}
	return text
}

// sameRoom puts chips together that were equally full.
func sameRoom(list []RefusedChip) [][]*RefusedChip { return grouped(list, (*RefusedChip).room) }
