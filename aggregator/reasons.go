package aggregator

import (
	"iter"
	"maps"
	"slices"
	"strings"
)

// Reason is why numbers are not exact. It affects one process and the totals of its open chips. With PID 0 it affects
// the host: the totals of its chips, but not the processes' own numbers. Numbers without a reason are exact.
//
// The aggregator raises the reasons that events show, and lifts them when a comparison with the process's own
// allocators has corrected the numbers. Sources raise and lift the other ones with ReasonRaised and ReasonLifted
// events.
type Reason struct {
	// Code names the reason.
	Code ReasonCode `rec:"Code"`
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
	// Unsure, of ReasonNotTraced: whether the process uses the runtime is not known.
	Unsure bool `rec:"Unsure"`
}

// ReasonCode names a reason. Recordings and JSON hold codes: they never change.
type ReasonCode string

// The reasons. Those up to ReasonUnknownChips are raised by the aggregator itself,
// the others by sources.
const (
	ReasonLate             ReasonCode = "late"
	ReasonEventsLost       ReasonCode = "events_lost"
	ReasonRecordingGap     ReasonCode = "recording_gap"
	ReasonUnmatchedFree    ReasonCode = "unmatched_free"
	ReasonMissedFree       ReasonCode = "missed_free"
	ReasonOddEvents        ReasonCode = "inconsistent_events"
	ReasonOddProgramEvents ReasonCode = "inconsistent_program_events"
	ReasonPartlyRead       ReasonCode = "scan_incomplete"
	ReasonBuffersUnread    ReasonCode = "buffers_unread"
	ReasonTotalsOnly       ReasonCode = "totals_only"
	ReasonUnknownChips     ReasonCode = "chips_unknown"

	ReasonReadFailed     ReasonCode = "events_unread"
	ReasonBlocksDisagree ReasonCode = "blocks_disagree"
	ReasonTotalsDisagree ReasonCode = "totals_disagree"

	ReasonReservedUnread ReasonCode = "reserved_unknown"
	ReasonRingUnread     ReasonCode = "config_ring_unread"
	ReasonPersistentL1   ReasonCode = "persistent_l1"
	ReasonUnknownMemory  ReasonCode = "unknown_allocation_functions"
	ReasonUncounted      ReasonCode = "launches_uncounted"
	ReasonProgramChips   ReasonCode = "program_chips_unknown"
	ReasonTracesMissed   ReasonCode = "traces_missed"
	ReasonTracesBefore   ReasonCode = "traces_before_attach"
	ReasonNotRead        ReasonCode = "scan_failed"
	ReasonTimeBudget     ReasonCode = "scan_timeout"
	ReasonForked         ReasonCode = "forked"
	ReasonTruncated      ReasonCode = "events_truncated"
	ReasonLimitReached   ReasonCode = "limit_reached"
	ReasonNotTraced      ReasonCode = "not_traced"
	ReasonPIDNamespace   ReasonCode = "pid_namespace"
	ReasonOtherUsers     ReasonCode = "other_users"
	ReasonSampled        ReasonCode = "sampled"
	ReasonBehind         ReasonCode = "behind"
)

// liftedBy is what lifts a process's reason, in addition to its exit and ReasonLifted.
type liftedBy uint8

const (
	nothingElse liftedBy = iota
	// anyComparison of the process's buffers, which read all of them.
	anyComparison
	// fullComparison: one that also searched for devices, allocators and programs.
	fullComparison
	// firstComparison: the one that finds objects from before tracing began.
	firstComparison
)

// hidden is what a reason may leave out of the accounts. If buffers or programs are, a count of 0 is unknown.
type hidden uint8

const (
	hidesBuffers hidden = 1 << iota
	hidesPrograms
	// hidesPlaces: it is counted, but not on a chip.
	hidesPlaces
	// hidesFrees: buffers may be counted that are free.
	hidesFrees
	// hidesUnsafe: buffers may be unsafe under traces that do not count as unsafe.
	hidesUnsafe
	hidesAll = hidesBuffers | hidesPrograms | hidesUnsafe
)

// reasonTable has, for each reason, a sentence (without its subject if that is the process), what lifts it, whether
// something that happened while tracing was missed, which makes a run that ends so fail, and what may not be counted.
// An unknown code, of a newer version, makes numbers inexact too; only ReasonLifted lifts it.
var reasonTable = map[ReasonCode]struct {
	sentence string
	lifted   liftedBy
	missed   bool
	hides    hidden
}{
	ReasonLate:             {"buffers and programs from before tracing began may be missing", firstComparison, false, hidesAll},
	ReasonEventsLost:       {"events were lost", fullComparison, true, hidesAll},
	ReasonRecordingGap:     {"the recording lacks events", nothingElse, true, hidesAll},
	ReasonUnmatchedFree:    {"a buffer was freed whose allocation was not seen", anyComparison, false, hidesBuffers},
	ReasonMissedFree:       {"a buffer's free was not seen, another took its place", anyComparison, false, hidesFrees},
	ReasonOddEvents:        {"inconsistent events of buffers were ignored", anyComparison, false, hidesBuffers},
	ReasonOddProgramEvents: {"inconsistent events of programs were ignored", nothingElse, false, hidesPrograms},
	ReasonPartlyRead:       {"some of its buffers or programs could not be read", fullComparison, false, hidesAll},
	ReasonBuffersUnread:    {"some of its buffers could not be read", anyComparison, false, hidesBuffers},
	ReasonTotalsOnly:       {"only the runtime's own totals are known", nothingElse, false, 0},
	ReasonUnknownChips:     {"the chips of one of its devices are unknown", nothingElse, false, hidesPrograms | hidesPlaces},

	ReasonBlocksDisagree: {"its allocators' buffers and lists of blocks disagree", anyComparison, false, hidesBuffers},
	ReasonTotalsDisagree: {"the runtime's own account has memory that no buffer explains", fullComparison, false, hidesBuffers},

	ReasonReadFailed:     {"its memory could not be read at an event, which is missing", fullComparison, true, hidesAll},
	ReasonReservedUnread: {"the reserved size of some of its buffers could not be read, and is unknown", nothingElse, false, 0},
	ReasonUnknownMemory:  {"its build of the runtime hands out memory by functions that are not known", nothingElse, false, hidesBuffers},
	ReasonPersistentL1:   {"it has L1 outside of its allocators' buffers, such as a space for prefetcher pipes, which is not counted", nothingElse, false, 0},
	ReasonRingUnread:     {"the contents of a kernel-config ring could not be read, and are unknown", nothingElse, false, 0},
	ReasonUncounted:      {"launches of its programs were not counted", nothingElse, true, 0},
	ReasonProgramChips:   {"the chips of a program are unknown: it is counted on all chips of its mesh", nothingElse, false, 0},
	ReasonTracesMissed:   {"some captures or replays of traces, or allocations beside them, were not seen: which buffers they overwrite is unknown", nothingElse, true, hidesUnsafe},
	ReasonTracesBefore:   {"traces were captured before tracing began: which buffers their replays overwrite is unknown", nothingElse, false, hidesUnsafe},
	ReasonNotRead:        {"its memory could not be read", fullComparison, true, hidesAll},
	ReasonTimeBudget:     {"reading it took too long, so a part is missing", fullComparison, false, hidesAll},
	ReasonForked:         {"it was forked, and some of what it has may be copies of another process's", nothingElse, false, hidesAll},
	ReasonTruncated:      {"an event was too long, so a part of it is missing", nothingElse, true, hidesAll},
	ReasonLimitReached:   {"a limit was reached, so a part is not counted", nothingElse, true, hidesAll},
	ReasonNotTraced:      {"it uses the runtime and is not traced", nothingElse, true, hidesAll},
	ReasonPIDNamespace:   {"processes outside of this PID namespace cannot be traced", nothingElse, false, 0},
	ReasonOtherUsers:     {"processes that may not be read, as those of other users, are not sampled", nothingElse, false, 0},
	ReasonSampled:        {"it is sampled: changes show at the next sample", nothingElse, false, 0},
	ReasonBehind:         {"events wait to be counted", nothingElse, true, 0},
}

// ReasonCodes returns all codes of this version.
func ReasonCodes() []ReasonCode { return slices.Sorted(maps.Keys(reasonTable)) }

// Missed reports whether something is missing that happened while tracing.
func (c ReasonCode) Missed() bool { return reasonTable[c].missed }

// MissedBuffers reports whether allocations or frees are missing that happened while tracing.
func MissedBuffers(list []Reason) bool {
	return slices.ContainsFunc(list, func(r Reason) bool { return r.Code.Missed() && hide([]Reason{r}, hidesBuffers|hidesFrees) })
}

// HidesBuffers reports whether buffers may be held that are not counted, so that 0 is not known to be 0; on one chip
// also where the chips of some are unknown.
func HidesBuffers(list []Reason, onChip bool) bool {
	what := hidesBuffers
	if onChip {
		what |= hidesPlaces
	}
	return hide(list, what)
}

// HidesPrograms is HidesBuffers for programs, and what they have on chips.
func HidesPrograms(list []Reason) bool { return hide(list, hidesPrograms) }

func hide(list []Reason, what hidden) bool {
	return slices.ContainsFunc(list, func(r Reason) bool {
		known, ok := reasonTable[r.Code]
		return !ok || known.hides&what != 0
	})
}

// String is the reason as a sentence, without the process that it affects.
func (r *Reason) String() string {
	text := reasonTable[r.Code].sentence
	switch {
	case r.Unsure && r.Code == ReasonNotTraced:
		text = "it may use the runtime and is not traced"
	case r.Code == ReasonSampled && r.PID == 0 && r.Detail != "":
		text = "processes are sampled"
	}
	if text == "" {
		text = strings.ReplaceAll(string(r.Code), "_", " ")
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

func (rs *reasons) find(code ReasonCode, pid uint32) int {
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
func (p *process) raise(code ReasonCode, at uint64) { p.raiseFor(code, "", at) }

// raiseFor raises a reason with a detail.
func (p *process) raiseFor(code ReasonCode, detail string, at uint64) {
	p.reasons.raise(Reason{Code: code, Detail: detail, PID: p.pid, Since: at}, maxProcessReasons)
	p.sites.doubt(code)
}

func (p *process) lift(code ReasonCode) {
	p.reasons.lift(func(r *Reason) bool { return r.Code == code })
}

// raiseIf raises a reason or lifts it.
func (p *process) raiseIf(yes bool, code ReasonCode, at uint64) {
	switch {
	case !yes:
		p.lift(code)
	case p.reasons.find(code, p.pid) < 0:
		p.raise(code, at)
	}
}

func (p *process) has(code ReasonCode) bool { return p.reasons.find(code, p.pid) >= 0 }

// knowsBuffers reports whether all buffers of known allocators are known: then so is their free space.
func (p *process) knowsBuffers() bool { return !hide(p.reasons.list, hidesBuffers|hidesFrees) }

// missed reports whether one of the reasons is that something was missed.
func missed(list []Reason) bool {
	return slices.ContainsFunc(list, func(r Reason) bool { return r.Code.Missed() })
}

// odd counts an event that was ignored.
func (p *process) odd(e *Event) {
	p.counters.Odd++
	switch e.Kind {
	case CBPlaced, KernelLoaded, KernelsCopied, ConfigRingUsed:
		p.raise(ReasonOddProgramEvents, e.Time)
	default:
		p.raise(ReasonOddEvents, e.Time)
	}
}

// raiseOrLift applies a ReasonRaised or ReasonLifted event.
func (a *Aggregator) raiseOrLift(e *Event) {
	if e.Reason == nil || e.Reason.Code == "" {
		return
	}
	on, limit := &a.reasons, maxHostReasons
	if p := a.processes[e.PID]; p != nil {
		on, limit = &p.reasons, maxProcessReasons
		if e.Kind == ReasonRaised {
			p.sites.doubt(e.Reason.Code)
		}
	}
	if e.Kind == ReasonLifted {
		match := func(r *Reason) bool { return r.Code == e.Reason.Code && r.PID == e.PID }
		on.lift(match)
		a.reasons.lift(match) // raised before the process was known
		return
	}
	r := *e.Reason
	r.PID, r.Since, r.Last, r.Chips = e.PID, e.Time, e.Time, slices.Clone(r.Chips)
	on.raise(r, limit)
}

// lossNoticed bounds the delay of the event after a loss, ns: the source counts losses only now and then.
const lossNoticed = 1_000_000_000

// lose marks the processes to which the lost events may belong.
func (a *Aggregator) lose(e *Event) {
	a.counters.Lost += e.Count
	code := ReasonEventsLost
	if e.Anyone {
		// Comparisons under way may be about objects that the recording lacks.
		code = ReasonRecordingGap
		a.reasons.raise(Reason{Code: code, Since: e.Time}, maxHostReasons)
	}
	// What clients report does not pass through the BPF ring buffer.
	can := func(s Source) bool { return s == Traced || e.Anyone }
	for _, p := range a.processes {
		if can(p.info.Source) {
			p.raise(code, e.Time)
			p.doubtPeaks()
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
			a.doubtPeaksOfEnded(p)
		}
	}
}

// compared lifts what a comparison has corrected.
func (p *process) compared(b *AllocatorScan, implausible bool, at uint64) {
	partial := ReasonPartlyRead
	if b.BuffersOnly {
		partial = ReasonBuffersUnread
	}
	if b.Partial || implausible {
		p.raise(partial, at)
		return
	}
	contradicted := b.contradictions()
	p.reasons.lift(func(r *Reason) bool {
		if _, still := contradicted[r.Code]; still {
			return false
		}
		if b.Began > 0 && r.Last >= b.Began {
			return false // it was raised again while the process was read
		}
		switch reasonTable[r.Code].lifted {
		case anyComparison:
			return true
		case fullComparison:
			return !b.BuffersOnly
		case firstComparison:
			return b.First
		}
		return false
	})
}

// checkPlaced raises or lifts ReasonUnknownChips.
func (p *process) checkPlaced(at uint64) {
	unknown := false
	for _, d := range p.devices {
		unknown = unknown || len(d.shares) == 0 && (d.live > 0 || d.described && !d.closed)
	}
	p.raiseIf(unknown, ReasonUnknownChips, at)
}

// isSuspect reports whether a comparison with the process's allocators is due.
func (p *process) isSuspect() bool {
	return slices.ContainsFunc(p.reasons.list, func(r Reason) bool {
		by := reasonTable[r.Code].lifted
		return by == anyComparison || by == fullComparison || r.Code == ReasonRecordingGap
	})
}

// reasonsOn returns a process's reasons that affect a chip.
func reasonsOn(c Chip, list []Reason) []Reason {
	elsewhere := func(r Reason) bool { return len(r.Chips) > 0 && !slices.Contains(r.Chips, c) }
	if !slices.ContainsFunc(list, elsewhere) {
		return list
	}
	return slices.DeleteFunc(slices.Clone(list), elsewhere)
}

// markChips gives the snapshots of the chips the reasons that affect them.
func (a *Aggregator) markChips(chips map[Chip]*ChipSnapshot) {
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
	for _, r := range a.reasons.list {
		markAll(r, r.Chips)
	}
	for _, pid := range slices.Sorted(maps.Keys(a.processes)) {
		p := a.processes[pid]
		if len(p.reasons.list) == 0 {
			continue
		}
		var open []Chip
		for _, s := range p.shares {
			if s.open {
				open = append(open, s.chip.id)
			}
		}
		for _, r := range p.reasons.list {
			switch {
			case len(r.Chips) > 0:
				markAll(r, r.Chips)
			case r.Code == ReasonUnknownChips:
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
}

// Why yields the reasons of the host and of its live processes.
func (s *Snapshot) Why() iter.Seq[Reason] {
	return func(yield func(Reason) bool) {
		for _, r := range s.Reasons {
			if !yield(r) {
				return
			}
		}
		if len(s.Lacks) > 0 && !yield(Reason{Code: ReasonTotalsOnly}) {
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

// Exact reports whether all numbers, of every process and chip, are right as far as can be known.
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
