package report

import (
	"fmt"
	"strings"

	"tt-memtrace/internal/export"
	"tt-memtrace/internal/plural"
)

// Finding is one line of the verdict.
type Finding struct {
	// Bad findings are failures; Warn marks what may become one.
	Bad, Warn bool
	Text      string
}

// nearlyFull is the share of a memory at its peak from which the verdict warns.
const nearlyFull = 0.9

// Verdict sums the report up: what failed, what leaked, how full each memory was, and
// whether that is exact.
func (r *Report) Verdict() []Finding {
	if r.Empty() {
		if r.unseen {
			return []Finding{{Warn: true, Text: "no process was seen to use the TT-Metal runtime: one that ends between two samples is not seen; use probes or a shorter --sample"}}
		}
		return []Finding{{Warn: true, Text: "no process used the TT-Metal runtime: nothing to report"}}
	}
	var list []Finding
	failed := r.failed()
	if failed.OutOfMemory > 0 {
		list = append(list, Finding{Bad: true, Text: fmt.Sprintf("%d × out of memory", failed.OutOfMemory)})
	}
	if n := failed.Clashes; n > 0 {
		list = append(list, Finding{Bad: true, Text: plural.Of(n, "L1 clash", "L1 clashes")})
	}
	if n := failed.Others; n > 0 {
		list = append(list, Finding{Bad: true, Text: plural.Of(n, "program or allocation", "programs or allocations") + " failed for other reasons"})
	}
	var unsafe, overlapping uint64
	for i := range r.Unsafe {
		unsafe, overlapping = unsafe+r.Unsafe[i].Buffers, overlapping+r.Unsafe[i].Overlapping
	}
	if unsafe > 0 {
		f := Finding{Warn: true, Text: plural.Of(unsafe, "buffer") + " unsafe: allocated after a trace was captured, alive when it was replayed"}
		if overlapping > 0 {
			f.Bad, f.Text = true, f.Text+fmt.Sprintf("; %d in memory that the capture used", overlapping)
		}
		list = append(list, f)
	}
	var left, live tally
	for _, s := range r.sites {
		left.buffers, left.bytes = left.buffers+s.left.buffers, left.bytes+s.left.bytes
		live.buffers, live.bytes = live.buffers+s.buffers, live.bytes+s.tally.bytes
	}
	if r.Sampled {
		left, live = tally{left.buffers + live.buffers, left.bytes + live.bytes}, tally{}
	}
	if left.buffers > 0 && r.Sampled {
		list = append(list, Finding{Warn: true, Text: fmt.Sprintf("%s live at the last sample, %s on all chips: whether they were freed after it is unknown",
			plural.Of(left.buffers, "buffer"), Size(left.bytes))})
	} else if left.buffers > 0 {
		list = append(list, Finding{Warn: true, Text: fmt.Sprintf("%s not freed, %s on all chips: process exit or device close released them", plural.Of(left.buffers, "buffer"), Size(left.bytes))})
	} else if len(r.Processes) == 0 {
		// Nothing was traced, so nothing is known of any buffer. A finding below says why.
	} else if r.Sampled || r.buffersUnseen && live.buffers == 0 {
		list = append(list, Finding{Text: "every buffer that was seen was freed"})
	} else if live.buffers == 0 {
		list = append(list, Finding{Text: "every buffer was freed"})
	}
	if live.buffers > 0 {
		list = append(list, Finding{Text: fmt.Sprintf("%s still allocated at the end, %s on all chips", plural.Of(live.buffers, "buffer"), Size(live.bytes))})
	}
	least := ""
	if r.Sampled {
		least = "≥ "
	}
	for _, m := range fullest(r.Memories) {
		f := Finding{Text: fmt.Sprintf("%s peaked at %s%s", m.Memory, least, Size(m.Peak))}
		if share, ok := m.share(); ok && share >= 0.001 {
			f.Text = fmt.Sprintf("%s peaked at %s%s", m.Memory, least, percent(share))
			f.Warn = share >= nearlyFull
		}
		f.Text += fmt.Sprintf(" (chip %d%s at %s)", m.Chip, ofProcess(m.Private), seconds(m.PeakAt))
		list = append(list, f)
	}
	if pids := r.ranBefore(); len(pids) > 0 {
		which := fmt.Sprintf("process %d", pids[0])
		if len(pids) > 1 {
			which = fmt.Sprintf("%d processes", len(pids))
		}
		list = append(list, Finding{Warn: true, Text: which + " ran before tracing began: earlier peaks and frees are unknown"})
	}
	if r.Sampled {
		list = append(list, Finding{Warn: true, Text: "sampled: buffers that lived only between two samples are missed; peaks and counts are lower bounds; failed allocations are unknown"})
	} else if r.failuresUnseen {
		list = append(list, Finding{Warn: true, Text: "failed allocations of some processes are unknown: only probes see them"})
	}
	for _, why := range r.inexact() {
		list = append(list, Finding{Warn: true, Text: "not exact: " + why})
	}
	return list
}

// inexact says why numbers are not exact, beside being sampled.
func (r *Report) inexact() (why []string) {
	if r.Exact {
		return nil
	}
	if r.Lost > 0 {
		why = append(why, plural.Of(r.Lost, "event is missing", "events are missing"))
	} else if r.lacking {
		why = append(why, "a part of the recording is missing")
	}
	why = append(why, r.missed[:min(shown, len(r.missed))]...)
	if n := len(r.missed) - shown; n > 0 {
		why = append(why, plural.Of(uint64(n), "more reason"))
	}
	if r.tracesBefore {
		why = append(why, "traces were captured before tracing began: the buffers that their replays overwrite are unknown")
	}
	if len(why) == 0 && r.unsurePeaks && !r.Sampled {
		why = append(why, "the chips or sizes of some buffers became known late: peaks may differ")
	}
	if len(why) == 0 && !r.Sampled {
		why = append(why, "what a process held before tracing began could not be read, or its events are inconsistent")
	}
	return why
}

// Empty: nothing happened that could be reported.
func (r *Report) Empty() bool {
	return (r.Events == 0 || r.unseen) && r.Lost == 0 && len(r.Processes) == 0 && len(r.missed) == 0
}

// share is the peak's share of the capacity.
func (m *Memory) share() (float64, bool) {
	if m.Capacity == nil || *m.Capacity == 0 {
		return 0, false
	}
	return float64(m.Peak) / float64(*m.Capacity), true
}

// percent formats a share: 100 only if it is all, and 0 only if it is nothing.
func percent(share float64) string {
	switch {
	case share > 0 && share < 0.001:
		return "< 0.1 %"
	case share < 1 && share > 0.999:
		return "99.9 %"
	}
	return fmt.Sprintf("%.1f %%", 100*share)
}

// fullest returns, for each memory, the chip with the highest share at its peak.
func fullest(list []Memory) []*Memory {
	var out []*Memory
	at := map[MemoryName]int{}
	for _, group := range sameMemories(list) {
		m := group[0]
		i, ok := at[m.Memory]
		if !ok {
			at[m.Memory] = len(out)
			out = append(out, m)
			continue
		}
		most, known := out[i].share()
		if share, ok := m.share(); ok && (!known || share > most) || !known && !ok && m.Peak > out[i].Peak {
			out[i] = m
		}
	}
	return out
}

// oneLine is untrusted text without the line breaks and indentation of its source.
func oneLine(t export.Text) string {
	return printable(export.Text(strings.Join(strings.Fields(string(t)), " ")))
}
