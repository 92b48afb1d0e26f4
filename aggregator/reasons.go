package aggregator

import (
	"iter"
	"slices"

	"tt-memtrace/aggregator/exact"
)

// Reason is why numbers are not exact. It affects one process and the totals of its open chips. With PID 0 it affects
// the host: the totals of its chips, but not the processes' own numbers. Numbers without a reason are exact.
//
// The aggregator raises the reasons that events show, and lifts them when a comparison with the process's own
// allocators has corrected the numbers. Sources raise and lift the other ones with ReasonRaised and ReasonLifted
// events.
type Reason struct {
	// Code names the reason.
	Code exact.ReasonCode `rec:"Code"`
	// Detail completes the code's sentence, such as an error, or is empty: untrusted text.
	Detail string `rec:"Detail"`
	// PID of the affected process, 0 for the host. A PID that is not in the accounts is a process whose memory the
	// chips' totals lack.
	PID uint32 `rec:"PID"`
	// Chips are the affected chips; empty means all of the process or of the host. Do not change it.
	Chips []Chip `rec:"Chips"`
	// Since is when it was raised, and Last when it was last raised again, CLOCK_MONOTONIC ns.
	Since uint64 `rec:"Since"`
	Last  uint64 `rec:"Last"`
	// Unsure, of exact.ReasonNotTraced: whether the process uses the runtime is not known.
	Unsure bool `rec:"Unsure"`
}

// Affected reports whether one of the reasons may make any of these numbers wrong.
func Affected(list []Reason, what exact.Affects) bool {
	return slices.ContainsFunc(list, func(r Reason) bool { return r.Code.Affects(what) })
}

// String is the reason as a sentence, without the process that it affects.
func (r *Reason) String() string {
	row := r.Code.Row()
	text := row.Sentence
	switch {
	case r.Unsure && row.Unsure != "":
		text = row.Unsure
	case r.PID == 0 && r.Detail != "" && row.OfHost != "":
		text = row.OfHost
	}
	if r.Detail != "" {
		text += ": " + r.Detail
	}
	return text
}

// Bounds on what a source can raise.
const (
	maxHostReasons    = 256
	maxProcessReasons = 32
	maxDetail         = 512 // bytes
	// maxChipReasons of a chip are listed in a snapshot.
	maxChipReasons = 16
)

// reasons are those raised for one process or the host. Snapshots share the
// array, so an element is never changed in place while it is shared.
type reasons struct {
	list []Reason
	// shared: a snapshot has the array.
	shared bool
}

// own copies the array if a snapshot shares it.
func (rs *reasons) own() {
	if rs.shared {
		rs.list, rs.shared = slices.Clone(rs.list), false
	}
}

func (rs *reasons) find(code exact.ReasonCode, pid uint32) int {
	return slices.IndexFunc(rs.list, func(r Reason) bool { return r.Code == code && r.PID == pid })
}

// raise adds a reason, or updates it where it is raised already.
func (rs *reasons) raise(r Reason, limit int) {
	if len(r.Detail) > maxDetail {
		r.Detail = r.Detail[:maxDetail]
	}
	i := rs.find(r.Code, r.PID)
	if i < 0 {
		if len(rs.list) < limit {
			rs.own()
			r.Last = r.Since
			rs.list = append(rs.list, r)
		}
		return
	}
	rs.own()
	old := &rs.list[i]
	old.Last = max(old.Last, r.Since)
	old.Detail, old.Chips, old.Unsure = r.Detail, r.Chips, r.Unsure
}

// lift removes the reasons that match.
func (rs *reasons) lift(match func(*Reason) bool) {
	if slices.ContainsFunc(rs.list, func(r Reason) bool { return match(&r) }) {
		rs.own()
		rs.list = slices.DeleteFunc(rs.list, func(r Reason) bool { return match(&r) })
	}
}

// snapshot returns the reasons for a snapshot, which must not change them.
func (rs *reasons) snapshot() []Reason {
	if len(rs.list) == 0 {
		return nil
	}
	rs.shared = true
	return rs.list[:len(rs.list):len(rs.list)]
}

func (rs *reasons) set(list []Reason, limit int) {
	rs.list, rs.shared = slices.Clone(list[:min(len(list), limit)]), false
}

// raise marks a process as not exact.
func (p *process) raise(code exact.ReasonCode, at uint64) { p.raiseFor(code, "", at) }

// raiseFor raises a reason with a detail.
func (p *process) raiseFor(code exact.ReasonCode, detail string, at uint64) {
	p.raiseReason(Reason{Code: code, Detail: detail, PID: p.pid, Since: at})
}

// raiseReason raises a reason, and marks what stays uncertain once it is lifted: a comparison finds what is live, but
// not what came and went before. The first comparison finds all that the process held when tracing began.
func (p *process) raiseReason(r Reason) {
	p.reasons.raise(r, maxProcessReasons)
	if r.Code.Affects(exact.AffectsBuffers|exact.AffectsFrees) && r.Code.Row().Lifted != exact.ByFirstComparison {
		p.sites.bound = exact.AtLeast
	}
	if r.Code.Affects(exact.AffectsPeaks) {
		p.doubtPeaks()
	}
	p.counters.miss(r.Code)
}

// miss notes which counts lack something for good because of a reason.
func (c *ProcessTally) miss(code exact.ReasonCode) {
	c.MissedCalls = c.MissedCalls || code.Affects(exact.AffectsCalls)
	c.MissedLaunches = c.MissedLaunches || code.Affects(exact.AffectsLaunches)
}

func (p *process) lift(code exact.ReasonCode) {
	p.reasons.lift(func(r *Reason) bool { return r.Code == code })
}

// raiseIf raises a reason or lifts it.
func (p *process) raiseIf(yes bool, code exact.ReasonCode, at uint64) {
	switch {
	case !yes:
		p.lift(code)
	case p.reasons.find(code, p.pid) < 0:
		p.raise(code, at)
	}
}

func (p *process) has(code exact.ReasonCode) bool { return p.reasons.find(code, p.pid) >= 0 }

// missed reports whether one of the reasons is that something was missed.
func missed(list []Reason) bool {
	return slices.ContainsFunc(list, func(r Reason) bool { return r.Code.Missed() })
}

// odd counts an event that was ignored.
func (p *process) odd(e *Event) {
	p.counters.Odd++
	switch e.Kind {
	case CBPlaced, KernelLoaded, KernelsCopied, ConfigRingUsed:
		p.raise(exact.ReasonInconsistentProgramEvents, e.Time)
	default:
		p.raise(exact.ReasonInconsistentEvents, e.Time)
	}
}

// raiseOrLift applies a ReasonRaised or ReasonLifted event.
func (a *Aggregator) raiseOrLift(e *Event) {
	if e.Reason == nil || e.Reason.Code == "" {
		return
	}
	p := a.processes[e.PID]
	if e.Kind == ReasonLifted {
		match := func(r *Reason) bool { return r.Code == e.Reason.Code && r.PID == e.PID }
		if p != nil {
			p.reasons.lift(match)
		}
		a.reasons.lift(match) // raised before the process was known
		return
	}
	r := *e.Reason
	r.PID, r.Since, r.Last, r.Chips = e.PID, e.Time, e.Time, slices.Clone(r.Chips)
	if p != nil {
		p.raiseReason(r)
		return
	}
	a.reasons.raise(r, maxHostReasons)
}

// lossNoticed bounds the delay of the event after a loss, ns: the source counts losses only now and then.
const lossNoticed = 1_000_000_000

// lose marks the processes to which the lost events may belong.
func (a *Aggregator) lose(e *Event) {
	a.counters.Lost += e.Count
	code := exact.ReasonEventsLost
	if e.Anyone {
		// Comparisons under way may be about objects that the recording lacks.
		code = exact.ReasonRecordingGap
		a.reasons.raise(Reason{Code: code, Since: e.Time}, maxHostReasons)
	}
	// What clients report does not pass through the BPF ring buffer.
	can := func(s Source) bool { return s == Traced || e.Anyone }
	for _, p := range a.processes {
		if can(p.info.Source) {
			p.raise(code, e.Time)
			p.released.clear() // another buffer may be at an address, and its allocation lost
		}
	}
	for i := range a.ended {
		if p := &a.ended[i]; can(p.Info.Source) && p.Last+lossNoticed >= e.Time {
			rs := reasons{list: p.Reasons, shared: true}
			if !missed(p.Reasons) {
				a.counters.ExitedInexact++
			}
			rs.raise(Reason{Code: code, PID: p.PID, Since: e.Time}, maxProcessReasons)
			p.Reasons = rs.snapshot()
			p.counters.miss(code)
			a.doubtPeaksOfEnded(p)
			a.shown = nil
		}
	}
}

// countFound counts an object that a comparison added or removed.
func countFound(p *process, e *Event) {
	p.sites.bound = exact.AtLeast
	if e.Found == FoundFirst {
		p.agreement.Found++
		return
	}
	p.agreement.Repaired++
	p.counters.MissedCalls = true
	p.doubtPeaks()
	captures := func(t *trace) bool { return t.seen }
	if e.Kind == Alloc && (len(p.capturing) > 0 || slices.ContainsFunc(p.traces, captures)) {
		// Whether a replay overwrites it depends on whether it was allocated after the capture.
		p.raise(exact.ReasonTracesMissed, e.Time)
	}
}

// compared applies that the accounts were made equal to a scan: it raises what the scan contradicts, and lifts what it
// has corrected.
func (p *process) compared(e *Event) {
	c := e.Comparison
	if c == nil {
		p.odd(e)
		return
	}
	g := &p.agreement
	g.At, g.Compared = e.Time, c.Buffers
	g.Comparisons++
	var contradictions []exact.ReasonCode
	for _, r := range []Reason{
		{Code: exact.ReasonBlocksDisagree, Detail: c.BlocksDisagree},
		{Code: exact.ReasonTotalsDisagree, Detail: c.TotalsDisagree},
	} {
		if r.Detail != "" {
			p.raiseFor(r.Code, r.Detail, e.Time)
			contradictions = append(contradictions, r.Code)
		}
	}
	if c.Partial {
		partial := exact.ReasonScanIncomplete
		if c.BuffersOnly {
			partial = exact.ReasonBuffersUnread
		}
		p.raise(partial, e.Time)
	} else {
		p.liftCorrected(c, contradictions)
	}
	p.persists(c, e.Time)
	if !c.Partial { // unless one of the buffers just found no room, all are in the accounts
		p.reasons.lift(func(r *Reason) bool { return r.Code == exact.ReasonLimitReached && r.Last < e.Time })
	}
}

// liftCorrected lifts what a complete comparison has corrected, but not what it has raised itself.
func (p *process) liftCorrected(c *Comparison, raised []exact.ReasonCode) {
	p.reasons.lift(func(r *Reason) bool {
		if slices.Contains(raised, r.Code) || c.Began > 0 && r.Last >= c.Began { // or again during the scan
			return false
		}
		switch r.Code.Row().Lifted {
		case exact.ByComparison:
			return true
		case exact.ByFullComparison:
			return !c.BuffersOnly
		case exact.ByFirstComparison:
			return c.First
		}
		return false
	})
}

// persists raises or lifts exact.ReasonPersistentL1, unless it was raised again since the scan began.
func (p *process) persists(c *Comparison, at uint64) {
	switch {
	case !c.PersistentRead:
	case c.PersistentL1 != "":
		p.lift(exact.ReasonPersistentL1) // it may have another detail now
		p.raiseFor(exact.ReasonPersistentL1, c.PersistentL1, at)
	case c.Began > 0:
		p.reasons.lift(func(r *Reason) bool { return r.Code == exact.ReasonPersistentL1 && r.Last < c.Began })
	default:
		p.lift(exact.ReasonPersistentL1)
	}
}

// checkPlaced raises or lifts exact.ReasonChipsUnknown.
func (p *process) checkPlaced(at uint64) {
	unknown := false
	for _, d := range p.devices {
		unknown = unknown || len(d.shares) == 0 && (d.live > 0 || d.described && !d.closed)
	}
	p.raiseIf(unknown, exact.ReasonChipsUnknown, at)
}

// isSuspect reports whether a comparison with the process's allocators is due.
func (p *process) isSuspect() bool {
	return slices.ContainsFunc(p.reasons.list, func(r Reason) bool { return r.Code.Suspect() })
}

// reasonsOn returns a process's reasons that affect a chip.
func reasonsOn(c Chip, list []Reason) []Reason {
	elsewhere := func(r Reason) bool { return len(r.Chips) > 0 && !slices.Contains(r.Chips, c) }
	if !slices.ContainsFunc(list, elsewhere) {
		return list
	}
	return slices.DeleteFunc(slices.Clone(list), elsewhere)
}

// markChips gives the chips of a snapshot the reasons that affect them.
func (s *Snapshot) markChips(chips map[Chip]*ChipSnapshot) {
	mark := func(c *ChipSnapshot, r Reason) {
		if c != nil && len(c.Reasons) < maxChipReasons {
			c.Reasons = append(c.Reasons, r)
		}
	}
	markAll := func(r Reason, on []Chip) {
		for _, c := range on {
			mark(chips[c], r)
		}
		if len(on) == 0 {
			for _, c := range chips {
				mark(c, r)
			}
		}
	}
	for _, r := range s.Reasons {
		markAll(r, r.Chips)
	}
	for i := range s.Processes {
		p := &s.Processes[i]
		var open []Chip
		for j := range p.Chips {
			open = append(open, p.Chips[j].Chip)
		}
		for _, r := range p.Reasons {
			switch {
			case len(r.Chips) > 0:
				markAll(r, r.Chips)
			case r.Code == exact.ReasonChipsUnknown:
				markAll(r, nil) // it may concern any chip
			default:
				markAll(r, open) // or any chip, if the process has no known one open
			}
		}
	}
}

// Raise marks the host's numbers, and so those of all chips, as not exact, in this snapshot alone.
func (s *Snapshot) Raise(r Reason) {
	r.PID, r.Chips = 0, nil
	s.Reasons = append(slices.Clip(s.Reasons), r)
	for i := range s.Chips {
		c := &s.Chips[i]
		c.Reasons = append(slices.Clip(c.Reasons), r)
	}
	s.hide()
}

// Why yields the reasons of the host and of its live processes.
func (s *Snapshot) Why() iter.Seq[Reason] {
	return func(yield func(Reason) bool) {
		for _, r := range s.Reasons {
			if !yield(r) {
				return
			}
		}
		if len(s.Lacks) > 0 && !yield(Reason{Code: exact.ReasonTotalsOnly}) {
			return
		}
		for i := range s.Processes {
			for _, r := range s.Processes[i].Reasons {
				if !yield(r) {
					return
				}
			}
		}
	}
}

// Exact reports whether all numbers, of every process and chip, are right, if no reason is known.
func (s *Snapshot) Exact() bool {
	for range s.Why() {
		return false
	}
	return true
}

// Exact reports whether the process's numbers are right.
func (p *ProcessSnapshot) Exact() bool { return len(p.Reasons) == 0 }

// Exact reports whether the chip's numbers are right.
func (c *ChipSnapshot) Exact() bool { return len(c.Reasons) == 0 }
