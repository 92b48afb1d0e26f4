package report

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"

	"tt-memtrace/internal/export"
)

// Diff is the change from one report to another. All sizes are in bytes.
type Diff struct {
	// Version of this format.
	Schema int `json:"schema"`
	// The two sources.
	Before export.Text `json:"before"`
	After  export.Text `json:"after"`
	// In each, whether processes were sampled: peaks and allocated bytes are lower bounds, and what was live at the last sample may have
	// been freed after it; absent where none was.
	BeforeSampled bool `json:"before_sampled,omitempty"`
	AfterSampled  bool `json:"after_sampled,omitempty"`
	// Peaks that differ.
	Peaks []PeakDiff `json:"peaks"`
	// Sites of which the bytes not freed (where sampled: live at the last sample), or allocated, differ, largest difference first. PIDs are ignored.
	Left  []SiteDiff `json:"not_freed"`
	Churn []SiteDiff `json:"churn"`
}

// PeakDiff is a memory with different peaks.
type PeakDiff struct {
	Chip uint32 `json:"chip"`
	// Private: a process numbers its chips by itself, so that this is not the host's chip of that number. The highest of several processes.
	Private bool       `json:"private,omitempty"`
	Memory  MemoryName `json:"memory"`
	Before  uint64     `json:"peak_bytes_before"`
	After   uint64     `json:"peak_bytes_after"`
}

func (x *PeakDiff) place() (uint32, *uint32) { return x.Chip, nil }

// SiteDiff is a site that differs.
type SiteDiff struct {
	Site          export.Text `json:"site"`
	Memory        MemoryName  `json:"memory"`
	BuffersBefore uint64      `json:"buffers_before"`
	BuffersAfter  uint64      `json:"buffers_after"`
	Before        uint64      `json:"bytes_before"`
	After         uint64      `json:"bytes_after"`
	// It is no site but the sum of as many, which the list is too short for: the last of it. memory is empty where they differ.
	Others uint64 `json:"others,omitempty"`
}

// NewDiff compares two reports.
func NewDiff(a, b *Report) *Diff {
	d := &Diff{Schema: Schema, Before: a.Source, After: b.Source, BeforeSampled: a.Sampled, AfterSampled: b.Sampled, Peaks: []PeakDiff{}}
	type memory struct {
		chip    uint32
		private bool
		name    string
	}
	peaks := map[memory]*PeakDiff{}
	for i, r := range []*Report{a, b} {
		for _, m := range r.Memories {
			k := memory{m.Chip, m.Private != nil, string(m.Memory)}
			p := peaks[k]
			if p == nil {
				p = &PeakDiff{Chip: m.Chip, Private: k.private, Memory: m.Memory}
				peaks[k] = p
			}
			if i == 0 {
				p.Before = max(p.Before, m.Peak)
			} else {
				p.After = max(p.After, m.Peak)
			}
		}
	}
	for _, p := range peaks {
		if p.Before != p.After {
			d.Peaks = append(d.Peaks, *p)
		}
	}
	slices.SortFunc(d.Peaks, func(x, y PeakDiff) int {
		if x.Private != y.Private {
			if y.Private {
				return -1
			}
			return 1
		}
		return cmp.Or(cmp.Compare(x.Chip, y.Chip), cmp.Compare(x.Memory, y.Memory))
	})
	d.Left = siteDiffs(a, b, (*site).notFreed)
	d.Churn = siteDiffs(a, b, func(s *site) tally { return tally{s.allocs, s.bytes} })
	return d
}

func siteDiffs(a, b *Report, of func(*site) tally) []SiteDiff {
	all := map[[2]string]*SiteDiff{}
	for i, r := range []*Report{a, b} {
		for _, s := range r.sites {
			t := of(s)
			p := s.public(t)
			k := [2]string{p.Label(), string(p.Memory)}
			x := all[k]
			if x == nil {
				x = &SiteDiff{Site: export.Text(k[0]), Memory: MemoryName(k[1])}
				all[k] = x
			}
			if i == 0 {
				x.BuffersBefore, x.Before = x.BuffersBefore+t.buffers, x.Before+t.bytes
			} else {
				x.BuffersAfter, x.After = x.BuffersAfter+t.buffers, x.After+t.bytes
			}
		}
	}
	maps.DeleteFunc(all, func(_ [2]string, x *SiteDiff) bool { return x.Before == x.After && x.BuffersBefore == x.BuffersAfter })
	grown := func(x *SiteDiff) uint64 { return max(x.Before, x.After) - min(x.Before, x.After) }
	list := slices.SortedFunc(maps.Values(all), func(x, y *SiteDiff) int {
		return cmp.Or(cmp.Compare(grown(y), grown(x)), cmp.Compare(x.Site, y.Site), cmp.Compare(x.Memory, y.Memory))
	})
	return withOthers(list, manySites, func(x *SiteDiff) SiteDiff { return *x }, func(others, x *SiteDiff) {
		others.Memory = memoryOf(others.Others, others.Memory, x.Memory)
		others.Others++
		others.Site = othersLabel(others.Others)
		others.BuffersBefore, others.Before = others.BuffersBefore+x.BuffersBefore, others.Before+x.Before
		others.BuffersAfter, others.After = others.BuffersAfter+x.BuffersAfter, others.After+x.After
	})
}

// JSON writes the difference for machines.
func (d *Diff) JSON(w io.Writer) error { return writeJSON(w, d, "  ") }

// Text writes the difference for people.
func (d *Diff) Text(w io.Writer, style Style) error {
	p := &printer{w: bufio.NewWriter(w), style: style}
	source := func(t export.Text, sampled bool) string {
		text := shortened(oneLine(t), wide)
		if sampled {
			text += " (sampled)"
		}
		return text
	}
	p.line("from %s\n  to %s", source(d.Before, d.BeforeSampled), source(d.After, d.AfterSampled))
	sampled, traced := d.BeforeSampled || d.AfterSampled, !d.BeforeSampled || !d.AfterSampled
	p.heading("Peak use%s", atLeast(sampled))
	if len(d.Peaks) == 0 {
		p.line("    the same")
	}
	for _, group := range grouped(d.Peaks, func(x *PeakDiff) string { return fmt.Sprint(x.Private, x.Memory, x.Before, x.After) }) {
		x, whose := group[0], ""
		if x.Private {
			whose = ", as their process numbers them"
		}
		p.line("  %12s  %10s → %10s  %-8s of %s%s", change(x.Before, x.After), Size(x.Before), Size(x.After), x.Memory, chipNames(group), whose)
	}
	for _, l := range []struct {
		title string
		list  []SiteDiff
	}{{leftHeading(sampled, traced) + " (bytes on all chips)", d.Left}, {"Allocated over time (bytes on all chips)" + atLeast(sampled), d.Churn}} {
		p.heading("%s", l.title)
		if len(l.list) == 0 {
			p.line("    the same")
		}
		for _, x := range l.list[:min(2*shown, len(l.list))] {
			p.line("  %12s  %6d → %6d buffers  %-8s %s", change(x.Before, x.After), x.BuffersBefore, x.BuffersAfter, x.Memory, shortened(string(x.Site), 100))
		}
		if n := len(l.list) - 2*shown; n > 0 {
			p.more(n, l.list[len(l.list)-1].Others)
		}
	}
	return p.end()
}

func change(before, after uint64) string {
	if after >= before {
		return "+" + Size(after-before)
	}
	return fmt.Sprint("-", Size(before-after))
}
