package report

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"tt-memtrace/aggregator"
	"tt-memtrace/export"
)

// Size formats a number of bytes with a binary unit.
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

// unquoted reverts the escapes that only JSON needs, in one pass.
var unquoted = strings.NewReplacer(`\\`, `\\`, `\"`, `"`, `\u003c`, "<", `\u003e`, ">", `\u0026`, "&")

// printable escapes untrusted text for one line of a terminal.
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

// Label names a site in one line.
func (s *Site) Label() string {
	label := ""
	switch {
	case s.Others > 0:
		label = string(othersLabel(s.Others))
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

// printer writes lines until a write fails.
type printer struct {
	w     *bufio.Writer
	style Style
	err   error
	// many: there are several processes, so each line names its own.
	many bool
}

func (p *printer) line(format string, args ...any) {
	if p.err == nil {
		_, p.err = fmt.Fprintf(p.w, format+"\n", args...)
	}
}

// shown is the number of entries of a list in the text; few that of a list that appears per memory.
const (
	shown = 10
	few   = 5
)

// Style of a text. The zero value is plain.
type Style struct {
	Colour bool
	// Width of the terminal in characters, to which lines of tables are cut; 0 if there is none.
	Width int
}

// paint colours a text by an SGR sequence.
func (s Style) paint(sgr, text string) string {
	if !s.Colour || sgr == "" {
		return text
	}
	return "\x1b[" + sgr + "m" + text + "\x1b[m"
}

// SGR sequences.
const (
	bold   = "1"
	faint  = "2"
	red    = "1;31"
	green  = "32"
	yellow = "33"
)

// end flushes the buffer.
func (p *printer) end() error { return cmp.Or(p.err, p.w.Flush()) }

// heading writes the title of a section.
func (p *printer) heading(format string, args ...any) {
	p.line("\n%s", p.style.paint(bold, fmt.Sprintf(format, args...)))
}

// Text writes the report for people.
func (r *Report) Text(w io.Writer, style Style) error {
	p := &printer{w: bufio.NewWriter(w), style: style, many: len(r.Processes) > 1}
	p.line("%s", style.paint(bold, shortened(cmp.Or(oneLine(r.Source), "report"), wide)))
	p.line("on %s, %s, for %s: %d events, %d lost", printable(export.Text(r.Host)), r.Began.Format(time.DateTime), seconds(r.Seconds), r.Events, r.Lost)
	if r.Stacks == 0 && len(r.Churn) > 0 {
		p.line("no call sites: --stacks records them")
	} else if r.StacksCut+r.StacksLost > 0 {
		p.line("of %d call stacks %d are truncated; %d more were lost", r.Stacks, r.StacksCut, r.StacksLost)
	}
	p.verdict(r)
	if r.Empty() {
		return p.end()
	}
	p.processes(r)
	p.refusals(r)
	p.unsafe(r)
	p.left(r)
	p.peaks(r)
	p.programs(r)
	p.churn(r)
	p.advice(r)
	return p.end()
}

// atLeast is added to headings of numbers that are lower bounds.
func (r *Report) atLeast() string { return atLeast(r.Sampled) }

func atLeast(sampled bool) string {
	if sampled {
		return ": at least"
	}
	return ""
}

// sinceTracing is added to the heading of peaks that can have been higher before tracing began.
func (r *Report) sinceTracing() string {
	if len(r.ranBefore()) > 0 {
		return ", since tracing began"
	}
	return ""
}

// ranBefore lists the processes that can have allocated before tracing began.
func (r *Report) ranBefore() (pids []uint32) {
	for i := range r.Processes {
		if r.Processes[i].RanBefore {
			pids = append(pids, r.Processes[i].PID)
		}
	}
	return pids
}

// LeftHeading is what is known of the buffers that were there at the end.
func (r *Report) LeftHeading() string { return leftHeading(r.Sampled, !r.Sampled) }

// leftHeading is that of reports of which some were sampled, and some traced.
func leftHeading(sampled, traced bool) string {
	switch {
	case sampled && traced:
		return "Not freed, or live at the last sample"
	case sampled:
		return "Live at the last sample"
	}
	return "Not freed"
}

func (p *printer) verdict(r *Report) {
	p.heading("Verdict")
	for _, f := range r.Verdict() {
		switch {
		case f.Bad:
			p.line("  %s %s", p.style.paint(red, "✗"), p.style.paint(red, f.Text))
		case f.Warn:
			p.line("  %s %s", p.style.paint(yellow, "!"), f.Text)
		default:
			p.line("  %s %s", p.style.paint(green, "✓"), f.Text)
		}
	}
}

func (p *printer) processes(r *Report) {
	p.heading("Processes")
	for i := range r.Processes {
		pr := &r.Processes[i]
		command := "?"
		if pr.Command != nil {
			command = shortened(oneLine(*pr.Command), 70)
		}
		end := "still running"
		if pr.To != nil {
			end = "exited at " + seconds(*pr.To)
			if pr.HeldAtExit > 0 {
				when := "not freed"
				if r.Sampled {
					when = "at its last sample"
				}
				end += fmt.Sprintf(" with %s (%s) %s", plural(pr.HeldAtExit, "buffer"), Size(pr.HeldBytesAtExit), when)
			}
		}
		if pr.LastLaunch != nil {
			end += ", last launch at " + seconds(*pr.LastLaunch)
		}
		from := seconds(pr.From)
		if pr.RanBefore {
			from = "before tracing began"
		}
		p.line("  %7d  %s; from %s, %s%s", pr.PID, command, from, end, pr.hostMemory())
	}
}

// hostMemory says how much of the host's memory a process had, and how that grew.
func (pr *Process) hostMemory() string {
	if pr.HostPeak == nil {
		return ""
	}
	text := "; host memory " + Size(*pr.HostLast)
	switch first, last := *pr.HostFirst, *pr.HostLast; {
	case last > first:
		text += " (+" + Size(last-first) + ")"
	case last < first:
		text += " (-" + Size(first-last) + ")"
	}
	if *pr.HostPeak > *pr.HostLast {
		text += ", at most " + Size(*pr.HostPeak)
	}
	return text
}

// plural is a count with its noun, which takes an s unless it says otherwise.
func plural(n uint64, one string, many ...string) string {
	switch {
	case n == 1:
		return "1 " + one
	case len(many) > 0:
		return fmt.Sprintf("%d %s", n, many[0])
	}
	return fmt.Sprintf("%d %ss", n, one)
}

// column of a table of sites.
type column struct {
	title string
	of    func(*Site) string
}

var (
	bytesColumn   = column{"BYTES", func(s *Site) string { return Size(s.Bytes) }}
	buffersColumn = column{"BUFFERS", func(s *Site) string { return strconv.FormatUint(s.Buffers, 10) }}
	memoryColumn  = column{"MEMORY", func(s *Site) string { return s.Memory }}
	pidColumn     = column{"PID", func(s *Site) string { return unlessOthers(s, uint64(s.PID)) }}

	// Of sites with buffers that were not freed.
	ageColumn      = column{"AGE", (*Site).age}
	releasedColumn = column{"RELEASED BY", (*Site).releasedBy}

	// Of sites by bytes allocated over time.
	mostColumn  = column{"MAX LIVE", func(s *Site) string { return unlessOthers(s, s.Most) }}
	livedColumn = column{"MEAN LIFE", func(s *Site) string {
		if s.MeanLife == nil {
			return "·"
		}
		return seconds(*s.MeanLife)
	}}
)

// unlessOthers is a number that only a site has.
func unlessOthers(s *Site, n uint64) string {
	if s.Others > 0 {
		return "·"
	}
	return strconv.FormatUint(n, 10)
}

// holderColumns, leftColumns and churnColumns are the columns ahead of a site's label.
func holderColumns(many bool) []column {
	return with(many, bytesColumn, buffersColumn)
}

func leftColumns(many bool) []column {
	return with(many, bytesColumn, buffersColumn, memoryColumn, ageColumn, releasedColumn)
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

// age in seconds, a dot where unknown.
func age(s *float64) string {
	if s == nil {
		return "·"
	}
	return seconds(*s)
}

// age is the range of ages of buffers that were not freed, youngest to oldest.
func (s *Site) age() string {
	youngest, oldest := age(s.Youngest), age(s.Oldest)
	if youngest == oldest {
		return oldest
	}
	return youngest + " – " + oldest
}

// releasedBy says what released buffers that no call freed.
func (s *Site) releasedBy() string {
	var list []string
	for _, x := range []struct {
		n  uint64
		by string
	}{{s.AtExit, "process exit"}, {s.AtClose, "device close"}, {s.Buffers - s.AtExit - s.AtClose, "still allocated"}} {
		if x.n == s.Buffers {
			return x.by
		}
		if x.n > 0 {
			list = append(list, fmt.Sprintf("%d %s", x.n, x.by))
		}
	}
	return strings.Join(list, ", ")
}

// wide is the longest label of a site, characters.
const wide = 130

// sites writes the first n of a list as a table; the call site is the last column.
func (p *printer) sites(list []Site, n int, columns []column) {
	if len(list) == 0 {
		p.line("    nothing")
		return
	}
	rest, others := len(list)-n, list[len(list)-1].Others
	list = list[:min(n, len(list))]
	rows := [][]string{{}}
	for _, c := range columns {
		rows[0] = append(rows[0], c.title)
	}
	rows[0] = append(rows[0], "CALL SITE")
	for i := range list {
		var cells []string
		for _, c := range columns {
			cells = append(cells, c.of(&list[i]))
		}
		rows = append(rows, append(cells, shortened(list[i].Label(), wide)))
	}
	p.table(rows)
	if rest > 0 {
		p.more(rest, others)
	}
}

// more says how many are not shown of a list, the last of which stands for others.
func (p *printer) more(n int, others uint64) {
	if others > 0 {
		p.line("    … %d more, the largest with --json", uint64(n-1)+others)
		return
	}
	p.line("    … %d more with --json", n)
}

// peaks shows a memory once for all chips with the same peak.
func (p *printer) peaks(r *Report) {
	p.heading("Peak use and its holders, per chip%s%s", r.sinceTracing(), r.atLeast())
	for _, group := range sameMemories(r.Memories) {
		m := group[0]
		of := ""
		if m.Capacity != nil && *m.Capacity > 0 {
			of = fmt.Sprintf(" of %s (%s)", Size(*m.Capacity), percent(float64(m.Peak)/float64(*m.Capacity)))
		}
		p.line("  %s of %s: %s%s at %s, %s; %s at the end", m.Memory, chipNames(group), Size(m.Peak), of, seconds(m.PeakAt), plural(m.PeakBuffers, "buffer"), Size(m.End))
		if f := m.Fragmented; f.Notable() {
			p.line("  most fragmented at %s: per bank %s free, largest free block %s", seconds(f.At), Size(f.Free), Size(f.Largest))
		}
		p.sites(m.Holders, few, holderColumns(p.many))
	}
}

// Notable: at least 1 % of the free bytes is outside the largest free block.
func (f *Fragmentation) Notable() bool { return f != nil && f.Free-f.Largest > f.Free/100 }

// sameMemories groups the chips that had the same peak at the same time, memory by memory.
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

// grouped groups elements with equal keys, in order of first appearance.
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

// chipNames lists chips by number: the host's first, then those that a process numbers by itself.
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

// placed is something on a chip, which a process may number by itself.
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
	p.heading("Circular and dataflow buffers of programs at their peak (sum over programs, which share addresses)%s", r.atLeast())
	for _, group := range samePrograms(r.Programs) {
		c := group[0]
		p.line("  %s: %s at %s", chipNames(group), Size(c.Peak), seconds(c.PeakAt))
		p.line("%s", p.style.paint(faint, fmt.Sprintf("    %10s  %8s  %s", "BYTES", "PROGRAMS", "OPERATION")))
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

// samePrograms groups the chips on which programs used the same.
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
	p.heading("%s (bytes on all chips)", r.LeftHeading())
	p.sites(r.Left, shown, leftColumns(p.many))
}

func (p *printer) churn(r *Report) {
	p.heading("Most allocated over time (bytes on all chips)%s", r.atLeast())
	p.sites(r.Churn, shown, churnColumns(p.many))
}

func (p *printer) advice(r *Report) {
	p.heading("Advice")
	if r.NoAdvice != nil {
		p.line("  none: %s", printable(*r.NoAdvice))
	}
	for i := range r.Advice {
		p.line("  %s", r.Advice[i].Text())
	}
}

func (p *printer) refusals(r *Report) {
	if len(r.Refusals) == 0 {
		return
	}
	p.heading("Out of memory and L1 clashes")
	for i := range r.Refusals[:min(shown, len(r.Refusals))] {
		f := &r.Refusals[i]
		p.line("  %s", p.style.paint(red, fmt.Sprintf("at %s, process %d: %s", seconds(f.At), f.PID, f.What())))
		p.refusal(f, shown)
	}
	n := uint64(max(0, len(r.Refusals)-shown))
	if omitted := r.RefusalsOmitted.Number(); omitted > 0 {
		p.line("  … %d more, %d of them with --json", n+omitted, n)
	} else if n > 0 {
		p.line("  … %d more with --json", n)
	}
}

// refusal explains a failed allocation, by so many of its holders.
func (p *printer) refusal(f *Refusal, holders int) {
	if f.Where != nil {
		p.line("    in %s", printable(*f.Where))
	}
	p.line("    runtime message: %s", printable(f.Message))
	if f.Asked != nil {
		p.line("    requested %s per bank", Size(*f.Asked))
	}
	for _, group := range sameRoom(f.Chips) {
		p.line("    %s, per bank: %s", chipNames(group), group[0].room())
	}
	if f.Next != "" {
		p.line("    next: %s", f.Next)
	}
	p.line("    %s", f.Holding())
	p.sites(f.Holders, holders, holderColumns(p.many))
}

// What says what happened.
func (f *Refusal) What() string {
	if f.Kind == "clash" {
		return "circular buffers clash with L1 buffers"
	}
	return "out of memory in " + f.Memory
}

// Holding introduces the list of holders.
func (f *Refusal) Holding() string {
	if f.End != nil && f.Lowest != nil {
		return fmt.Sprintf("the circular buffers end at %#x; L1 buffers below that, from %#x on, per chip:", *f.End, *f.Lowest)
	}
	return "allocated at that moment, per chip:"
}

// room says how full the chip's banks were.
func (c *RefusedChip) room() string {
	text := Size(c.Allocated) + " allocated"
	if c.Free != nil {
		text += fmt.Sprintf(", %s free, largest free block %s", Size(*c.Free), Size(*c.Largest))
	}
	return text
}

// sameRoom groups the chips that were equally full.
func sameRoom(list []RefusedChip) [][]*RefusedChip { return grouped(list, (*RefusedChip).room) }
