package ui

import (
	"fmt"
	"slices"
	"time"

	"tt-memtrace/aggregator"
	"tt-memtrace/internal/telemetry"
	"tt-memtrace/ui/text"
)

// maxEnded is how many exited processes the text lists. A longer list would push live processes off the terminal.
const maxEnded = 10

// endedNote explains the numbers of exited processes.
const endedNote = "memory is the sum of each chip's peak"

// over reports whether the source has ended and all its processes have exited.
func (d *data) over() bool {
	return d.ended && len(d.snapshot.Processes) == 0 && len(d.snapshot.Ended) > 0
}

// processes returns the rows of the process table: the live processes or, if all have exited, the exited ones.
func (d *data) processes() []*aggregator.ProcessSnapshot {
	if d.over() {
		return slices.DeleteFunc(atPeak(d.snapshot.Ended), d.dropped)
	}
	out := make([]*aggregator.ProcessSnapshot, 0, len(d.snapshot.Processes))
	for i := range d.snapshot.Processes {
		if p := &d.snapshot.Processes[i]; !d.dropped(p) {
			out = append(out, p)
		}
	}
	return out
}

// dropped reports whether a process is not listed: the filter excludes it, or it has ended and holds nothing.
func (d *data) dropped(p *aggregator.ProcessSnapshot) bool {
	return d.keep != nil && !d.keep(p) || d.gone[idOf(p)] && !holdsAnything(p)
}

// holdsAnything reports whether a process is counted with some memory.
func holdsAnything(p *aggregator.ProcessSnapshot) bool {
	used := p.Buffers.Some() || p.CB.Physical.Some() || buffers(&p.Unplaced).Some()
	for _, u := range p.Memory {
		used = used || u.Reserved.Some() || u.Requested.Some()
	}
	return used
}

// exited finds processes that have ended. The end of a process is an event, but the source notices late that a process
// has ended before anything of it could be read. The screen should not show such a process in the meantime.
type exited struct {
	at   time.Time
	gone map[processID]bool
	// past are the notices about processes that have ended.
	past map[string]bool
}

// exitedEvery is the time between two searches.
const exitedEvery = time.Second

// look returns the processes of a snapshot that have ended, and the notices about such processes; nil for none. It does
// not change what it has returned.
func (x *exited) look(now time.Time, system *telemetry.System, s *aggregator.Snapshot, notes []string) (gone map[processID]bool, past map[string]bool) {
	if system == nil || !x.at.IsZero() && !now.Before(x.at) && now.Sub(x.at) < exitedEvery {
		return x.gone, x.past
	}
	x.at, x.gone, x.past = now, nil, nil
	for _, n := range notes {
		var pid uint32
		if _, err := fmt.Sscanf(n, "process %d:", &pid); err == nil && !system.Exists(pid) {
			if x.past == nil {
				x.past = map[string]bool{}
			}
			x.past[n] = true
		}
	}
	for i := range s.Processes {
		// A client may be in another PID namespace, where its PID means another process.
		if p := &s.Processes[i]; p.Info.Source.Observed() && !system.Exists(p.PID) {
			if x.gone == nil {
				x.gone = map[processID]bool{}
			}
			x.gone[idOf(p)] = true
		}
	}
	return x.gone, x.past
}

// current returns the notices that are worth a line: none about exited processes until the source has ended.
func (d *data) current() []string {
	if d.ended || len(d.past) == 0 {
		return d.notes
	}
	return slices.DeleteFunc(slices.Clone(d.notes), func(n string) bool { return d.past[n] })
}

// atPeak returns copies of processes with their peaks in place of their use: an exited process holds nothing, or only
// what it did not free.
func atPeak(list []aggregator.ProcessSnapshot) []*aggregator.ProcessSnapshot {
	out := make([]*aggregator.ProcessSnapshot, 0, len(list))
	for _, p := range list {
		p.Chips = slices.Clone(p.Chips)
		for i := range p.Chips {
			raise(&p.Chips[i].Memory)
			p.Chips[i].CB.Physical = p.Chips[i].CB.PeakPhysical
		}
		raise(&p.Memory)
		p.CB.Physical = p.CB.PeakPhysical
		raise(&p.Unplaced)
		out = append(out, &p)
	}
	return out
}

// raise sets the use to its peak.
func raise(memory *[aggregator.NumMemories]aggregator.Usage) {
	for m := range memory {
		u := &memory[m]
		u.Requested, u.Reserved = u.PeakRequested, u.PeakReserved
	}
}

// endedSection lists exited processes, the newest last.
func endedSection(d *data, o settings, shown []*aggregator.ProcessSnapshot, w int) []text.Line {
	if len(shown) == 0 {
		return nil
	}
	o.sort = unsorted
	var list []entry
	for _, p := range shown {
		list = append(list, o.processEntry(p, true))
	}
	t := processTable(d, o, list, w)
	out := append([]text.Line{text.Strong.Line(text.Clip("Ended: "+endedNote, w, text.GlyphSet(o.ASCII).Dots)), t.Head()}, t.Rows(0, t.N)...)
	all := max(d.snapshot.Counters.Exited, uint64(len(d.snapshot.Ended)))
	if n := all - uint64(len(shown)); n > 0 {
		out = append(out, text.Faint.Line(fmt.Sprintf("and %s more before", text.Digits(n))))
	}
	return out
}

// newest returns the last n of a list.
func newest[T any](list []T, n int) []T { return list[max(len(list)-n, 0):] }
