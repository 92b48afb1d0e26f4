package ui

import (
	"fmt"
	"slices"
	"time"

	"tt-memtrace/aggregator"
	"tt-memtrace/telemetry"
	"tt-memtrace/ui/text"
)

// maxEnded processes that exited are listed in text: a long list would hide
// what is live.
const maxEnded = 10

// endedNote says what the numbers of processes that exited are.
const endedNote = "memory is the sum of each chip's peak"

// over is true when there is nothing left but processes that exited.
func (d *data) over() bool {
	return d.ended && len(d.snapshot.Processes) == 0 && len(d.snapshot.Ended) > 0
}

// processes are those of the process table: the live ones or, once all is
// over, those that exited.
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

// dropped says that a process is not listed: the filter leaves it out, or it is gone and holds
// nothing.
func (d *data) dropped(p *aggregator.ProcessSnapshot) bool {
	return d.keep != nil && !d.keep(p) || d.gone[idOf(p)] && !holdsAnything(p)
}

// holdsAnything says whether a process is counted with any memory.
func holdsAnything(p *aggregator.ProcessSnapshot) bool {
	used := p.Buffers > 0 || p.CB.Physical > 0 || buffers(&p.Unplaced) > 0
	for _, u := range p.Memory {
		used = used || u.Reserved > 0 || u.Requested > 0
	}
	return used
}

// exited looks for processes that do not exist any more. Their end is an event, but one that
// exits before anything could be read of it is only noticed later; it should not stay on the
// screen until then.
type exited struct {
	at   time.Time
	gone map[processID]bool
	// past are the notices about processes that do not exist any more.
	past map[string]bool
}

// exitedEvery is the time between two looks.
const exitedEvery = time.Second

// look finds the processes of a snapshot that are gone, and the notices about such; nil for none. What it
// returns is not changed later.
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
		// What a client reported can be of another PID namespace.
		if p := &s.Processes[i]; p.Info.Source.Observed() && !system.Exists(p.PID) {
			if x.gone == nil {
				x.gone = map[processID]bool{}
			}
			x.gone[idOf(p)] = true
		}
	}
	return x.gone, x.past
}

// current are the notices that the tables leave room for: none about processes that exited, while others run.
func (d *data) current() []string {
	if d.ended || len(d.past) == 0 {
		return d.notes
	}
	return slices.DeleteFunc(slices.Clone(d.notes), func(n string) bool { return d.past[n] })
}

// atPeak are copies of processes that hold their peaks: at its end a process
// holds nothing, or what it forgot, which says little of its life.
func atPeak(list []aggregator.ProcessSnapshot) []*aggregator.ProcessSnapshot {
	out := make([]*aggregator.ProcessSnapshot, 0, len(list))
	for _, p := range list {
		p.Chips = slices.Clone(p.Chips)
		for i := range p.Chips {
			raise(&p.Chips[i].Memory)
			raisePrograms(&p.Chips[i].CB)
		}
		raise(&p.Memory)
		raisePrograms(&p.CB)
		raise(&p.Unplaced)
		out = append(out, &p)
	}
	return out
}

// raisePrograms is raise for what programs take.
func raisePrograms(u *aggregator.CBUsage) {
	u.Physical = u.PeakPhysical
	if u.PeaksAtLeast {
		u.Reported = max(u.Reported, 1)
	}
}

// raise makes use as high as its peak. What makes that a lower bound makes the use one.
func raise(memory *[aggregator.NumMemories]aggregator.Usage) {
	for m := range memory {
		u := &memory[m]
		u.Requested, u.Reserved, u.Unreserved = u.PeakRequested, u.PeakReserved, 0
		if u.PeakUnsure || u.PeaksAtLeast {
			u.Unreserved = 1
		}
	}
}

// endedSection lists processes that exited in their order, the newest last.
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

// newest are the last n of a list.
func newest[T any](list []T, n int) []T { return list[max(len(list)-n, 0):] }
