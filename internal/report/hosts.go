package report

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"tt-memtrace/internal/export"
	"tt-memtrace/internal/plural"
)

// Hosts is the reports of several hosts, or of several runs of a host, merged: what `report --json` prints of their
// recordings. All sizes are in bytes.
type Hosts struct {
	// Version of this format.
	Schema int `json:"schema"`
	// The hosts, once for each run, those with failures first, then by bytes that were not freed.
	Hosts []Host `json:"hosts"`
	// Call sites over all hosts, most bytes first. PIDs are ignored.
	Left  []HostsSite `json:"not_freed"`
	Churn []HostsSite `json:"churn"`
	// Failed allocations in order of time, the first of each host.
	Failures []HostFailure `json:"failures"`
	// Each memory's highest peak of each host, the fullest first.
	Peaks []HostPeak `json:"peaks"`
}

// Host is one of the hosts, in one run.
type Host struct {
	Host string `json:"host"`
	// Its recordings, in order of time.
	Recordings []export.Text `json:"recordings"`
	Began      time.Time     `json:"began_at"`
	Seconds    float64       `json:"duration_seconds"`
	// Number of events, and of lost ones; exact is false if something is or may be missing.
	Events uint64 `json:"events"`
	Lost   uint64 `json:"events_lost"`
	Exact  bool   `json:"exact"`
	// Processes were sampled: peaks, and numbers of allocations, are lower bounds, what failed is not known, and what was live at the
	// last sample may have been freed after it; absent where none was.
	Sampled   bool   `json:"sampled,omitempty"`
	Processes uint64 `json:"processes"`
	// Buffers that no call freed, their bytes on all chips, and failed allocations.
	LeftBuffers uint64 `json:"not_freed_buffers"`
	LeftBytes   uint64 `json:"not_freed_bytes"`
	Failed      uint64 `json:"failed_allocations"`
}

// HostPeak is the fullest chip of a host.
type HostPeak struct {
	Host     string     `json:"host"`
	Memory   MemoryName `json:"memory"`
	Chip     uint32     `json:"chip"`
	Private  *uint32    `json:"private_to,omitempty"`
	Capacity *uint64    `json:"capacity_bytes" jsonschema:"nullable"`
	Peak     uint64     `json:"peak_bytes"`
	// When, by the host's clock, and the call site that held most.
	At     time.Time `json:"peak_at"`
	Holder *Site     `json:"holder" jsonschema:"nullable"`
}

// HostsSite is a call site of any hosts.
type HostsSite struct {
	Site    export.Text `json:"site"`
	Memory  MemoryName  `json:"memory"`
	Buffers uint64      `json:"buffers"`
	Bytes   uint64      `json:"bytes"`
	// Number of hosts, and the one with the most bytes.
	Hosts uint64 `json:"hosts"`
	Most  string `json:"most_on_host"`
	// It is no site but the sum of as many, which the list is too short for: the last of it. memory is empty where they differ.
	Others uint64 `json:"others,omitempty"`

	most uint64
	last string // the host counted last
}

// HostFailure is a failed allocation of a host.
type HostFailure struct {
	Host string    `json:"host"`
	Time time.Time `json:"time"`
	Failure
}

// maxHostFailures bounds the failed allocations of a host in the merged report.
const maxHostFailures = 20

// Merge merges the reports of hosts, each with the names of its recordings.
func Merge(reports []*Report, recordings [][]string) *Hosts {
	h := &Hosts{Schema: Schema, Hosts: []Host{}, Failures: []HostFailure{}, Peaks: []HostPeak{}}
	for i, r := range reports {
		one := Host{Host: r.Host, Recordings: []export.Text{}, Began: r.Began, Seconds: r.Seconds, Events: r.Events, Lost: r.Lost, Exact: r.Exact, Sampled: r.Sampled,
			Processes: uint64(len(r.Processes))}
		failed := r.failed()
		one.Failed = failed.Number()
		for _, name := range recordings[i] {
			one.Recordings = append(one.Recordings, export.Text(name))
		}
		for _, s := range r.sites {
			left := s.notFreed()
			one.LeftBuffers, one.LeftBytes = one.LeftBuffers+left.buffers, one.LeftBytes+left.bytes
		}
		h.Hosts = append(h.Hosts, one)
		at := func(s float64) time.Time { return r.Began.Add(time.Duration(s * 1e9)) }
		for _, m := range fullest(r.Memories) {
			p := HostPeak{Host: r.Host, Memory: m.Memory, Chip: m.Chip, Private: m.Private, Capacity: m.Capacity, Peak: m.Peak, At: at(m.PeakAt)}
			if len(m.Holders) > 0 {
				p.Holder = &m.Holders[0]
			}
			h.Peaks = append(h.Peaks, p)
		}
		for _, f := range r.Failures[:min(maxHostFailures, len(r.Failures))] {
			h.Failures = append(h.Failures, HostFailure{r.Host, at(f.At), f})
		}
	}
	slices.SortStableFunc(h.Hosts, func(x, y Host) int {
		return cmp.Or(cmp.Compare(y.Failed, x.Failed), cmp.Compare(y.LeftBytes, x.LeftBytes), cmp.Compare(x.Host, y.Host))
	})
	slices.SortStableFunc(h.Peaks, func(x, y HostPeak) int {
		return cmp.Or(cmp.Compare(y.share(), x.share()), cmp.Compare(y.Peak, x.Peak), cmp.Compare(x.Host, y.Host))
	})
	slices.SortStableFunc(h.Failures, func(x, y HostFailure) int { return x.Time.Compare(y.Time) })
	h.Left = mergeSites(reports, (*site).notFreed)
	h.Churn = mergeSites(reports, func(s *site) tally { return tally{s.allocs, s.bytes} })
	return h
}

// share of the capacity; 0 where that is unknown.
func (p *HostPeak) share() float64 {
	if p.Capacity == nil || *p.Capacity == 0 {
		return 0
	}
	return float64(p.Peak) / float64(*p.Capacity)
}

func mergeSites(reports []*Report, of func(*site) tally) []HostsSite {
	reports = slices.Clone(reports)
	slices.SortStableFunc(reports, func(x, y *Report) int { return cmp.Compare(x.Host, y.Host) }) // all of a host in a row
	all := map[[2]string]*HostsSite{}
	for _, r := range reports {
		here := map[[2]string]tally{}
		for _, s := range r.sites {
			if t := of(s); t.buffers > 0 {
				p := s.public(t)
				k := [2]string{p.Label(), string(p.Memory)}
				sum := here[k]
				here[k] = tally{sum.buffers + t.buffers, sum.bytes + t.bytes}
			}
		}
		for k, t := range here {
			x := all[k]
			if x == nil {
				x = &HostsSite{Site: export.Text(k[0]), Memory: MemoryName(k[1])}
				all[k] = x
			}
			x.Buffers, x.Bytes = x.Buffers+t.buffers, x.Bytes+t.bytes
			if x.Hosts == 0 || x.last != r.Host {
				x.Hosts, x.last = x.Hosts+1, r.Host
			}
			if t.bytes > x.most || t.bytes == x.most && (x.Most == "" || r.Host < x.Most) {
				x.most, x.Most = t.bytes, r.Host
			}
		}
	}
	list := slices.SortedFunc(maps.Values(all), func(x, y *HostsSite) int {
		return cmp.Or(cmp.Compare(y.Bytes, x.Bytes), cmp.Compare(x.Site, y.Site), cmp.Compare(x.Memory, y.Memory))
	})
	return withOthers(list, manySites, func(x *HostsSite) HostsSite { return *x }, func(others, x *HostsSite) {
		others.Memory = memoryOf(others.Others, others.Memory, x.Memory)
		others.Others++
		others.Site = othersLabel(others.Others)
		others.Buffers, others.Bytes = others.Buffers+x.Buffers, others.Bytes+x.Bytes
	})
}

// JSON writes the merged report for machines.
func (h *Hosts) JSON(w io.Writer) error { return writeJSON(w, h, "  ") }

// Text writes the merged report for people.
func (h *Hosts) Text(w io.Writer, style Style) error {
	p := &printer{w: bufio.NewWriter(w), style: style}
	names := map[string]bool{}
	for i := range h.Hosts {
		names[h.Hosts[i].Host] = true
	}
	title := plural.Of(uint64(len(names)), "host")
	if len(names) < len(h.Hosts) {
		title = plural.Of(uint64(len(h.Hosts)), "recording") + " of " + title
	}
	p.line("%s", style.paint(bold, title))
	sampled, traced, left := false, false, "NOT FREED"
	for i := range h.Hosts {
		sampled, traced = sampled || h.Hosts[i].Sampled, traced || !h.Hosts[i].Sampled
	}
	if sampled {
		left = "NOT SEEN FREED"
	}
	rows := [][]string{{"BEGAN", "FOR", "EVENTS", "LOST", "EXACT", "PROCESSES", "FAILED", left, "HOST"}}
	for _, x := range h.Hosts {
		exact := "yes"
		switch {
		case x.Sampled:
			exact = "sampled"
		case !x.Exact:
			exact = "no"
		}
		rows = append(rows, []string{x.Began.Format(time.DateTime), seconds(x.Seconds), fmt.Sprint(x.Events), fmt.Sprint(x.Lost), exact, fmt.Sprint(x.Processes), fmt.Sprint(x.Failed),
			Size(x.LeftBytes), printable(export.Text(x.Host))})
	}
	p.heading("Hosts")
	p.table(rows)
	if len(h.Failures) > 0 {
		p.heading("Failed allocations and programs")
		for i := range h.Failures[:min(shown, len(h.Failures))] {
			f := &h.Failures[i]
			p.line("  %s", style.paint(red, fmt.Sprintf("%s %s, process %d: %s", f.Time.Format(time.DateTime), printable(export.Text(f.Host)), f.PID, f.What())))
			if f.Where != nil {
				p.line("    in %s", printable(*f.Where))
			}
			p.line("    runtime message: %s", printable(f.Message))
		}
		if n := len(h.Failures) - shown; n > 0 {
			p.line("  … %d more with --json", n)
		}
	}
	sites := func(list []HostsSite) {
		if len(list) == 0 {
			p.line("    nothing")
			return
		}
		rows := [][]string{{"BYTES", "BUFFERS", "MEMORY", "HOSTS", "MOST ON", "CALL SITE"}}
		for _, s := range list[:min(shown, len(list))] {
			rows = append(rows, []string{Size(s.Bytes), fmt.Sprint(s.Buffers), string(s.Memory), fmt.Sprint(s.Hosts), printable(export.Text(s.Most)), shortened(string(s.Site), wide)})
		}
		p.table(rows)
		if n := len(list) - shown; n > 0 {
			p.more(n, list[len(list)-1].Others)
		}
	}
	p.heading("%s (bytes on all chips of all hosts)", leftHeading(sampled, traced))
	sites(h.Left)
	p.heading("Peak use, the fullest chip of each host%s", atLeast(sampled))
	rows = [][]string{{"PEAK", "OF", "", "MEMORY", "AT", "HOST", "CHIP", "MOST HELD BY"}}
	for i := range h.Peaks[:min(3*shown, len(h.Peaks))] {
		x := &h.Peaks[i]
		of, share, holder := "·", "·", "·"
		if x.Capacity != nil {
			of, share = Size(*x.Capacity), percent(x.share())
		}
		if x.Holder != nil {
			holder = shortened(x.Holder.Label(), wide)
		}
		rows = append(rows, []string{Size(x.Peak), of, share, string(x.Memory), x.At.Format(time.DateTime), printable(export.Text(x.Host)), fmt.Sprint(x.Chip) + ofProcess(x.Private), holder})
	}
	p.table(rows)
	if n := len(h.Peaks) - 3*shown; n > 0 {
		p.line("    … %d more with --json", n)
	}
	p.heading("Most allocated over time (bytes on all chips of all hosts)%s", atLeast(sampled))
	sites(h.Churn)
	return p.end()
}

// leastLast is the width of a table's last column below which it gets a line of its own.
const leastLast = 24

// table writes rows, the first a heading, the last column aligned to the left. In a narrow terminal
// that column, which says what a row is of, is below the others.
func (p *printer) table(rows [][]string) {
	widths := make([]int, len(rows[0]))
	for _, r := range rows {
		for i, cell := range r {
			widths[i] = max(widths[i], len([]rune(cell)))
		}
	}
	last := len(widths) - 1
	before := 4
	for _, w := range widths[:last] {
		before += 2 + w
	}
	below := p.style.Width > 0 && p.style.Width < before+min(leastLast, widths[last])
	for n, r := range rows {
		var b strings.Builder
		b.WriteString("  ")
		for i, cell := range r[:last] {
			fmt.Fprintf(&b, "  %*s", widths[i], cell)
		}
		lines := []string{b.String() + "  " + r[last]}
		if below {
			lines = []string{strings.TrimPrefix(b.String(), "  "), "      " + r[last]}
		}
		for i, line := range lines {
			sgr := ""
			if p.style.Width > 0 && i == len(lines)-1 { // numbers are not cut
				line = shortened(line, p.style.Width)
			}
			if n == 0 {
				sgr = faint
			}
			p.line("%s", p.style.paint(sgr, line))
		}
	}
}
