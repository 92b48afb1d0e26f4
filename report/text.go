package report

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

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
}

func (p *printer) line(format string, args ...any) {
	if p.err == nil {
		_, p.err = fmt.Fprintf(p.w, format+"\n", args...)
	}
}

// shown is how many entries of a list the text has.
const shown = 10

// Text writes the report for people.
func (r *Report) Text(w io.Writer) error {
	p := &printer{w: w}
	p.line("%s on %s", cmp.Or(printable(r.Source), "report"), printable(export.Text(r.Host)))
	p.line("%s, for %s: %d events, %d lost", r.Began.Format(time.DateTime), seconds(r.Seconds), r.Events, r.Lost)
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
				end += fmt.Sprintf(" holding %d buffers, %s", pr.HeldAtExit, Size(pr.HeldBytesAtExit))
			}
		}
		p.line("  %7d  %s; from %s, %s", pr.PID, command, seconds(pr.From), end)
	}
}

func (p *printer) sites(list []Site, each func(*Site) string) {
	for i := range list[:min(shown, len(list))] {
		s := &list[i]
		p.line("    %10s  %6d  %-8s %s%s", Size(s.Bytes), s.Buffers, s.Memory, shortened(s.Label(), 130), each(s))
	}
	if n := len(list) - shown; n > 0 {
		p.line("    … %d more with --json", n)
	}
}

func nothing(*Site) string { return "" }

// peaks shows each memory once for all chips whose peak is the same.
func (p *printer) peaks(r *Report) {
	p.line("\nPeaks, and who held what then: bytes, buffers")
	for _, group := range sameMemories(r.Memories) {
		m := group[0]
		of := ""
		if m.Capacity != nil && *m.Capacity > 0 {
			of = fmt.Sprintf(" of %s (%.1f %%)", Size(*m.Capacity), 100*float64(m.Peak)/float64(*m.Capacity))
		}
		p.line("  %s %s: %s%s at %s, %d buffers; %s at the end", chipNames(group), m.Memory, Size(m.Peak), of, seconds(m.PeakAt), m.PeakBuffers, Size(m.End))
		if f := m.Fragmented; f != nil && f.Free > f.Largest {
			p.line("    most fragmented at %s: of each bank %s free, the largest block %s", seconds(f.At), Size(f.Free), Size(f.Largest))
		}
		p.sites(m.Holders, nothing)
	}
}

// sameMemories puts chips together that had the same peak at the same time.
func sameMemories(list []Memory) [][]*Memory {
	var groups [][]*Memory
	at := map[string]int{}
	for i := range list {
		m := &list[i]
		key := fmt.Sprint(m.Memory, m.Peak, m.PeakAt, m.PeakBuffers, m.End, m.Private != nil, m.Fragmented == nil || *m.Fragmented == Fragmentation{})
		for _, h := range m.Holders {
			key += fmt.Sprint(h.PID, h.Label(), h.Bytes)
		}
		n, ok := at[key]
		if !ok {
			n = len(groups)
			at[key] = n
			groups = append(groups, nil)
		}
		groups[n] = append(groups[n], m)
	}
	return groups
}

func chipNames(group []*Memory) string {
	var list []string
	for _, m := range group {
		name := strconv.Itoa(int(m.Chip))
		if m.Private != nil {
			name += fmt.Sprintf(" of %d", *m.Private)
		}
		list = append(list, name)
	}
	if len(list) == 1 {
		return "chip " + list[0]
	}
	return "chips " + strings.Join(list, ", ")
}

func (p *printer) programs(r *Report) {
	if len(r.Programs) == 0 {
		return
	}
	p.line("\nCircular and dataflow buffers of programs at their peak, by plain sum")
	var last string
	for _, c := range r.Programs {
		text := fmt.Sprintf("%s at %s", Size(c.Peak), seconds(c.PeakAt))
		if text == last {
			p.line("  chip %d: the same", c.Chip)
			continue
		}
		last = text
		p.line("  chip %d: %s", c.Chip, text)
		for _, h := range c.Holders[:min(shown, len(c.Holders))] {
			name := "unknown"
			if h.Operation != nil {
				name = printable(*h.Operation)
			}
			p.line("    %10s  %6d  %s", Size(h.Bytes), h.Programs, name)
		}
	}
}

func (p *printer) left(r *Report) {
	p.line("\nNever freed, bytes on all chips, buffers")
	if len(r.Left) == 0 {
		p.line("    nothing")
	}
	p.sites(r.Left, func(s *Site) string {
		how := fmt.Sprintf("; %s to %s old", seconds(*s.Youngest), seconds(*s.Oldest))
		if s.AtExit > 0 {
			how += fmt.Sprintf("; %d went with the process", s.AtExit)
		}
		if s.AtClose > 0 {
			how += fmt.Sprintf("; %d went with the device", s.AtClose)
		}
		return how
	})
}

func (p *printer) churn(r *Report) {
	p.line("\nAllocated most over the time, bytes on all chips, buffers")
	p.sites(r.Churn, func(s *Site) string {
		if s.MeanLife == nil {
			return fmt.Sprintf("; up to %d at a time", s.Most)
		}
		return fmt.Sprintf("; up to %d at a time, %s each", s.Most, seconds(*s.MeanLife))
	})
}

func (p *printer) refusals(r *Report) {
	if len(r.Refusals) == 0 {
		return
	}
	p.line("\nNo room")
	for i := range r.Refusals[:min(shown, len(r.Refusals))] {
		f := &r.Refusals[i]
		what := "out of memory in " + f.Memory
		if f.Kind == "clash" {
			what = "circular buffers clash with L1 buffers"
		}
		p.line("  at %s, process %d: %s", seconds(f.At), f.PID, what)
		if f.Where != nil {
			p.line("    in %s", printable(*f.Where))
		}
		p.line("    the runtime: %s", printable(f.Message))
		if f.Asked != nil {
			p.line("    asked for %s of each bank", Size(*f.Asked))
		}
		p.refusedChips(f.Chips)
		if f.End != nil && f.Lowest != nil {
			p.line("    the circular buffers reach up to %#x; in their way, from %#x on, on each chip:", *f.End, *f.Lowest)
		} else {
			p.line("    held, on each chip, by:")
		}
		if len(f.Holders) == 0 {
			p.line("    nobody")
		}
		p.sites(f.Holders, nothing)
	}
}

// refusedChips has a line for all chips that were equally full.
func (p *printer) refusedChips(list []RefusedChip) {
	var order []string
	chips := map[string][]string{}
	for _, c := range list {
		text := fmt.Sprintf("each bank: %s taken", Size(c.Allocated))
		if c.Free != nil {
			text += fmt.Sprintf(", %s free, the largest block %s", Size(*c.Free), Size(*c.Largest))
		}
		if chips[text] == nil {
			order = append(order, text)
		}
		chips[text] = append(chips[text], strconv.Itoa(int(c.Chip)))
	}
	for _, text := range order {
		p.line("    chips %s, %s", strings.Join(chips[text], ", "), text)
	}
}
