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
	"tt-memtrace/internal/export"
	"tt-memtrace/internal/plural"
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

// shown is the number of a list's entries in the text; few is that of a list that appears for each memory.
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
	p.line("on %s, %s, for %s: %s, %d lost", printable(export.Text(r.Host)), r.Began.Format(time.DateTime),
		seconds(r.Seconds), plural.Of(r.Events, "event"), r.Lost)
	if r.Stacks == 0 && len(r.Churn) > 0 {
		p.line("no call sites: --stacks records them")
	} else if r.StacksCut+r.StacksLost > 0 {
		p.line("%d of %s incomplete (…); %s lost", r.StacksCut, plural.Of(r.Stacks, "call stack is", "call stacks are"),
			plural.Of(r.StacksLost, "more was", "more were"))
	}
	p.verdict(r)
	if r.Empty() {
		return p.end()
	}
	p.processes(r)
	p.failures(r)
	p.unsafe(r)
	p.left(r)
	p.peaks(r)
	p.programs(r)
	p.churn(r)
	p.advice(r)
	return p.end()
}

// AtLeast is added to headings of numbers that are lower bounds.
func (r *Report) AtLeast() string { return atLeast(r.Sampled) }

func atLeast(sampled bool) string {
	if sampled {
		return ": at least"
	}
	return ""
}

// SinceTracing is added to the heading of peaks that may have been higher before tracing began.
func (r *Report) SinceTracing() string {
	if len(r.ranBefore()) > 0 {
		return ", since tracing began"
	}
	return ""
}

// ranBefore lists the processes that may have allocated before tracing began.
func (r *Report) ranBefore() (pids []uint32) {
	for i := range r.Processes {
		if r.Processes[i].RanBefore {
			pids = append(pids, r.Processes[i].PID)
		}
	}
	return pids
}

// LeftHeading is the heading of the buffers that were there at the end.
func (r *Report) LeftHeading() string { return leftHeading(r.Sampled, !r.Sampled) }

// leftHeading is the heading for reports in which some processes were sampled and some traced.
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
		end := pr.Ended()
		if pr.To != nil && pr.HeldAtExit > 0 {
			when := "not freed"
			if r.Sampled {
				when = "at its last sample"
			}
			end += fmt.Sprintf(" with %s (%s) %s", plural.Of(pr.HeldAtExit, "buffer"), Size(pr.HeldBytesAtExit), when)
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

// hostMemory says how much host memory a process had, and how that grew.
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

// peaks shows a memory once for all chips with the same peak.
func (p *printer) peaks(r *Report) {
	p.heading("Peak use and its holders, per chip%s%s", r.SinceTracing(), r.AtLeast())
	for _, group := range sameMemories(r.Memories) {
		m := group[0]
		of := ""
		if m.Capacity != nil && *m.Capacity > 0 {
			of = fmt.Sprintf(" of %s (%s)", Size(*m.Capacity), percent(float64(m.Peak)/float64(*m.Capacity)))
		}
		p.line("  %s of %s: %s%s at %s, %s; %s at the end", m.Memory, chipNames(group), Size(m.Peak), of, seconds(m.PeakAt), plural.Of(m.PeakBuffers, "buffer"), Size(m.End))
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
	order := map[MemoryName]int{}
	for m := range aggregator.NumMemories {
		order[MemoryName(m.String())] = int(m)
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

// chipNames lists chips by number: first the host's, then those of processes with their own numbering.
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
			name += ofProcess(&space)
		}
		names = append(names, name)
	}
	return strings.Join(names, ", ")
}

// ofProcess is the suffix of a chip's number that names the process whose own numbering it is in; "" for the host's.
func ofProcess(private *uint32) string {
	if private == nil {
		return ""
	}
	return fmt.Sprintf(" of process %d", *private)
}

// placed is something on a chip, whose number may be a process's own.
type placed interface {
	place() (chip uint32, private *uint32)
}

func (m *Memory) place() (uint32, *uint32) { return m.Chip, m.Private }

func (p *printer) left(r *Report) {
	p.heading("%s (bytes on all chips)", r.LeftHeading())
	p.sites(r.Left, shown, leftColumns(p.many))
}

func (p *printer) churn(r *Report) {
	p.heading("Most allocated over time (bytes on all chips)%s", r.AtLeast())
	p.sites(r.Churn, shown, churnColumns(p.many))
}
