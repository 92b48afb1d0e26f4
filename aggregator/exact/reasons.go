package exact

import (
	"slices"
	"strings"
)

//go:generate go test -run TestReasonsAreDocumented -update

// ReasonCode names a reason why numbers are not exact. Recordings and JSON hold codes: they never change.
type ReasonCode string

// The reasons; Reasons has a row for each.
const (
	ReasonLate                       ReasonCode = "late"
	ReasonUnmatchedFree              ReasonCode = "unmatched_free"
	ReasonMissedFree                 ReasonCode = "missed_free"
	ReasonInconsistentEvents         ReasonCode = "inconsistent_events"
	ReasonInconsistentProgramEvents  ReasonCode = "inconsistent_program_events"
	ReasonSampled                    ReasonCode = "sampled"
	ReasonTotalsOnly                 ReasonCode = "totals_only"
	ReasonEventsLost                 ReasonCode = "events_lost"
	ReasonRecordingGap               ReasonCode = "recording_gap"
	ReasonEventsUnread               ReasonCode = "events_unread"
	ReasonScanIncomplete             ReasonCode = "scan_incomplete"
	ReasonBuffersUnread              ReasonCode = "buffers_unread"
	ReasonChipsUnknown               ReasonCode = "chips_unknown"
	ReasonBlocksDisagree             ReasonCode = "blocks_disagree"
	ReasonTotalsDisagree             ReasonCode = "totals_disagree"
	ReasonUnknownAllocationFunctions ReasonCode = "unknown_allocation_functions"
	ReasonPersistentL1               ReasonCode = "persistent_l1"
	ReasonReservedUnknown            ReasonCode = "reserved_unknown"
	ReasonConfigRingUnread           ReasonCode = "config_ring_unread"
	ReasonProgramChipsUnknown        ReasonCode = "program_chips_unknown"
	ReasonTracesMissed               ReasonCode = "traces_missed"
	ReasonTracesBeforeAttach         ReasonCode = "traces_before_attach"
	ReasonLaunchesUncounted          ReasonCode = "launches_uncounted"
	ReasonScanFailed                 ReasonCode = "scan_failed"
	ReasonScanTimeout                ReasonCode = "scan_timeout"
	ReasonForked                     ReasonCode = "forked"
	ReasonLimitReached               ReasonCode = "limit_reached"
	ReasonNotTraced                  ReasonCode = "not_traced"
	ReasonPIDNamespace               ReasonCode = "pid_namespace"
	ReasonOtherUsers                 ReasonCode = "other_users"
	ReasonBehind                     ReasonCode = "behind"
)

// Affects is a set of the numbers that a reason may make wrong.
type Affects uint16

const (
	// AffectsBuffers: buffers may be held that are not counted, so a count of 0 is unknown.
	AffectsBuffers Affects = 1 << iota
	// AffectsFrees: buffers may be counted that were freed.
	AffectsFrees
	// AffectsPrograms: programs may be loaded that are not counted, so a count of 0 is unknown.
	AffectsPrograms
	// AffectsPlaces: what a process holds is counted, but may be on a chip that does not count it.
	AffectsPlaces
	// AffectsProgramPlaces: programs may count on chips that do not have them.
	AffectsProgramPlaces
	// AffectsOutside: L1 is taken that neither buffers nor programs have, and that no number includes.
	AffectsOutside
	// AffectsPeaks: peaks may be too low or too high, also after the reason is lifted.
	AffectsPeaks
	// AffectsCalls: the numbers of allocations and frees are lower bounds.
	AffectsCalls
	// AffectsLaunches: the numbers of launches are lower bounds.
	AffectsLaunches
	// AffectsUnsafe: buffers may be unsafe under traces without being counted as unsafe.
	AffectsUnsafe
	// AffectsReserved: reserved sizes are unknown. Each buffer of which this is true is counted.
	AffectsReserved
	// AffectsRings: the contents of kernel-config rings are unknown. Each such ring is marked.
	AffectsRings

	affectsHeld = AffectsBuffers | AffectsPrograms | AffectsUnsafe
	affectsAll  = AffectsRings<<1 - 1
)

// affected are the words for what a reason affects, in the order of the bits.
var affected = []string{"buffers", "frees", "programs", "places", "program places", "outside", "peaks", "calls", "launches", "unsafe", "reserved", "rings"}

// String lists what is affected.
func (a Affects) String() string {
	var list []string
	for i, word := range affected {
		if a&(1<<i) != 0 {
			list = append(list, word)
		}
	}
	return strings.Join(list, ", ")
}

// Lift is what lifts a process's reason, in addition to the process's exit and to the source that raised it.
type Lift uint8

const (
	// ByItsSource alone.
	ByItsSource Lift = iota
	// ByComparison of the process's buffers that reads all of them.
	ByComparison
	// ByFullComparison: one that also searches for devices, allocators and programs.
	ByFullComparison
	// ByFirstComparison: the one that finds what the process held before tracing began.
	ByFirstComparison
	// ByState: the next whole state in a recording.
	ByState
)

// Row is one reason, and all that follows from it.
type Row struct {
	Code ReasonCode
	// Sentence says what is wrong, without its subject if that is the process.
	Sentence string
	// OfHost is the sentence if the host is affected and a detail follows, and Unsure the one if it is not known whether
	// the process uses the runtime; both are empty if they are Sentence.
	OfHost, Unsure string
	Affects        Affects
	Lifted         Lift
	// Missed means that something was missed that happened while tracing: then a run ends with exit code 5.
	Missed bool
	// Contradiction means that the runtime's own records contradict each other: then doctor --verify fails.
	Contradiction bool
	// Letter marks the reason on the screen, and Brief explains the letter; both are empty if the letter is X.
	Letter, Brief string
	// Meaning and Ends are for docs/json.md: what can cause it, and what lifts it if that is not what Lifted says.
	Meaning, Ends string
}

// Reasons has all reasons of this version. Letters are shown in this order.
var Reasons = []Row{
	{
		Code: ReasonLate, Letter: "L", Brief: "attached late",
		Sentence: "buffers and programs that predate tracing may be missing",
		Affects:  affectsHeld, Lifted: ByFirstComparison,
		Meaning: "It was attached late; what it held before that is not read yet, or cannot be.",
	},
	{
		Code: ReasonUnmatchedFree, Letter: "U", Brief: "unmatched free",
		Sentence: "a buffer was freed, but its allocation was not seen",
		Affects:  AffectsBuffers, Lifted: ByComparison,
		Meaning: "It freed a buffer whose allocation was not seen.",
	},
	{
		Code: ReasonMissedFree, Letter: "R", Brief: "missed free",
		Sentence: "a free was missed: the buffer's address was reused",
		Affects:  AffectsFrees, Lifted: ByComparison,
		Meaning: "A new buffer took the place of one whose free was not seen.",
	},
	{
		Code: ReasonInconsistentEvents, Letter: "O", Brief: "inconsistent events",
		Sentence: "inconsistent buffer events were ignored",
		Affects:  AffectsBuffers, Lifted: ByComparison,
		Meaning: "Buffer events were ignored: they name an unknown memory or an impossible size.",
	},
	{
		Code: ReasonInconsistentProgramEvents, Letter: "O", Brief: "inconsistent events",
		Sentence: "inconsistent program events were ignored",
		Affects:  AffectsPrograms,
		Meaning:  "Program events were ignored.",
	},
	{
		Code: ReasonSampled, Letter: "S", Brief: "sampled",
		Sentence: "sampled, not traced: changes show at the next sample", OfHost: "processes are sampled",
		Meaning: "It is sampled, not traced. If the host has this reason: no process of a command was seen to " +
			"use the runtime; a process that ends between two samples is not seen.",
		Ends: "its exit; of the host: -",
	},
	{
		Code: ReasonTotalsOnly, Letter: "T", Brief: "only the runtime's own totals are known",
		Sentence: "only the runtime's own totals are known",
		Meaning:  "Only the runtime's own totals are known (`--shm`).",
	},
	{
		Code:     ReasonEventsLost,
		Sentence: "events were lost",
		Affects:  affectsHeld | AffectsPeaks | AffectsCalls | AffectsLaunches, Lifted: ByFullComparison, Missed: true,
		Meaning: "The BPF ring buffer was full.",
	},
	{
		Code:     ReasonRecordingGap,
		Sentence: "the recording lacks events",
		Affects:  affectsHeld | AffectsPeaks | AffectsCalls | AffectsLaunches, Lifted: ByState, Missed: true,
		Meaning: "The disk was full, too slow or failing during the recording, or a part of the recording is " +
			"missing.",
	},
	{
		Code:     ReasonEventsUnread,
		Sentence: "an event was dropped: the process's memory could not be read",
		Affects:  affectsHeld | AffectsPeaks | AffectsCalls | AffectsLaunches, Lifted: ByFullComparison, Missed: true,
		Meaning: "An event was dropped because the process's memory could not be read: a page was swapped out, " +
			"for example.",
	},
	{
		Code:     ReasonScanIncomplete,
		Sentence: "some of its buffers or programs could not be read",
		Affects:  affectsHeld, Lifted: ByFullComparison,
		Meaning: "A full comparison could not read everything.",
	},
	{
		Code:     ReasonBuffersUnread,
		Sentence: "some of its buffers could not be read",
		Affects:  AffectsBuffers, Lifted: ByComparison,
		Meaning: "A comparison of its buffers could not read all of them.",
	},
	{
		Code:     ReasonChipsUnknown,
		Sentence: "the chips of one of its devices are unknown",
		Affects:  AffectsPrograms | AffectsPlaces,
		Meaning:  "The chips of a device could not be read: everything on it is `unplaced`.",
		Ends:     "the device's chips becoming known, or its close",
	},
	{
		Code:     ReasonBlocksDisagree,
		Sentence: "its allocators' buffers and block lists disagree",
		Affects:  AffectsBuffers, Lifted: ByComparison, Contradiction: true,
		Meaning: "The buffers of an allocator and its block lists do not match one to one; the detail says where.",
		Ends:    "a comparison of its buffers that finds no difference",
	},
	{
		Code:     ReasonTotalsDisagree,
		Sentence: "the runtime's own totals include memory that no buffer explains",
		Affects:  AffectsBuffers, Lifted: ByFullComparison, Contradiction: true,
		Meaning: "The runtime's own account in shared memory has bytes on a chip where the process's allocators " +
			"have no buffer.",
		Ends: "a full comparison that finds no such bytes",
	},
	{
		Code:     ReasonUnknownAllocationFunctions,
		Sentence: "its runtime allocates memory by functions unknown to tt-memtrace",
		Affects:  AffectsBuffers,
		Meaning: "Its build of the runtime has functions that may allocate memory and that this version does not " +
			"know; the detail names them. What they allocate is not counted.",
	},
	{
		Code:     ReasonPersistentL1,
		Affects:  AffectsOutside,
		Sentence: "it holds uncounted L1 outside its allocators, such as prefetcher pipes",
		Meaning: "It holds L1 outside its allocators' buffers, such as the space of prefetcher pipes: `programs` " +
			"and `l1` lack it, and circular buffers lie above it. In 0.79 and 0.80 it is noticed only when it is " +
			"taken or given back during tracing.",
		Ends: "a comparison that finds no such L1",
	},
	{
		Code:     ReasonReservedUnknown,
		Sentence: "the reserved sizes of some buffers could not be read",
		Affects:  AffectsReserved,
		Meaning: "The reserved size of some of its buffers could not be read at a late attach, or not be " +
			"computed at their allocation: their `reserved_bytes` is unknown.",
		Ends: "a comparison of its buffers that can read it",
	},
	{
		Code:     ReasonConfigRingUnread,
		Sentence: "a kernel-config ring could not be read",
		Affects:  AffectsRings,
		Meaning: "One of its kernel-config rings could not be read: `used_bytes` and `places` of " +
			"`kernels.config_ring` are unknown. Nothing else is affected.",
		Ends: "reading it, which is tried twice a second; the device's close",
	},
	{
		Code:     ReasonProgramChipsUnknown,
		Sentence: "the chips of a program are unknown: it counts on all chips of its mesh",
		Affects:  AffectsProgramPlaces,
		Meaning: "The chips of a program of a workload are unknown, so it is counted on all chips of its mesh; " +
			"the detail says why.",
		Ends: "the program's end, its chips becoming known, or the close of the process's last device",
	},
	{
		Code:     ReasonTracesMissed,
		Sentence: "trace captures or replays, or allocations during them, were missed: the buffers that replays overwrite are unknown",
		Affects:  AffectsUnsafe, Missed: true,
		Meaning: "Captures or replays of traces, allocations during them, or marks of buffers as corruptible " +
			"were not seen, or their device is unknown: the buffers that replays may overwrite are unknown.",
	},
	{
		Code:     ReasonTracesBeforeAttach,
		Sentence: "traces were captured before tracing began: the buffers that their replays overwrite are unknown",
		Affects:  AffectsUnsafe,
		Meaning: "It was attached late and had captured traces, and some of its buffers may be younger than one " +
			"of these: the buffers that their replays overwrite are unknown. Or an earlier trace was replayed, " +
			"and whether a younger buffer lies in memory that its capture used is unknown. Only `unsafe` is " +
			"affected: its numbers are `null` or too low.",
	},
	{
		Code:     ReasonLaunchesUncounted,
		Sentence: "some program launches were not counted",
		Affects:  AffectsLaunches, Missed: true,
		Meaning: "Launches could not be read, or the table of launches was full: their counts are too low.",
	},
	{
		Code:     ReasonScanFailed,
		Sentence: "its memory could not be read",
		Affects:  affectsHeld | AffectsCalls | AffectsLaunches, Lifted: ByFullComparison, Missed: true,
		Meaning: "Samples could not read its memory, or one was still reading it when sampling ended.",
		Ends:    "the next sample that can read it",
	},
	{
		Code:     ReasonScanTimeout,
		Sentence: "the scan timed out: some objects are missing",
		Affects:  affectsHeld, Lifted: ByFullComparison,
		Meaning: "The scan took too long; or it is sampled, and was not yet searched for new devices and " +
			"programs.",
	},
	{
		Code:     ReasonForked,
		Sentence: "forked without exec: some objects may be copies inherited from its parent",
		Affects:  affectsHeld,
		Meaning: "It was forked before tracing began, and a device in its memory may be a copy of one that the " +
			"process in the detail has closed since: what is on it is counted as its own. Or it has buffers on a " +
			"copy of a device that the process in the detail has open, and that process does not have these " +
			"buffers: it allocated them itself before tracing began, or they are copies of buffers that were " +
			"freed since. They are not counted; the detail has their number, and their requested size on each " +
			"chip.",
		Ends: "its first allocation on them; the end of that process",
	},
	{
		Code:     ReasonLimitReached,
		Sentence: "a limit was reached: some objects are not counted",
		Affects:  affectsHeld | AffectsPeaks | AffectsCalls | AffectsLaunches, Missed: true,
		Meaning: "It has more buffers or mappings than tt-memtrace counts.",
		Ends:    "its exit, or falling below the limit",
	},
	{
		Code:     ReasonNotTraced,
		Sentence: "it uses the runtime and is not traced", Unsure: "it may use the runtime and is not traced",
		Affects: affectsHeld | AffectsCalls | AffectsLaunches, Missed: true,
		Meaning: "It uses the runtime and is not traced: its library was refused or overwritten, or there was no " +
			"room for it; probes could not be attached; it has devices open by two copies of the runtime or, " +
			"sampled, has loaded two; its code lies on writable pages, or was moved, as to huge pages, before " +
			"tracing began; a debugger, or the process itself, removed probes from its code; it holds a device " +
			"and its code has no symbols; or its main thread ended before it was examined or, with `-p` on " +
			"kernels before 6.6, later. \"May use\" means that its use of the runtime is unknown: its mappings " +
			"could not be listed or read, or it holds a device and its code could not be searched.",
		Ends: "its exit, or tracing it",
	},
	{
		Code:     ReasonPIDNamespace,
		Sentence: "processes outside this PID namespace cannot be traced",
		Meaning:  "tt-memtrace runs in a PID namespace and does not see processes outside it.",
		Ends:     "-",
	},
	{
		Code:     ReasonOtherUsers,
		Sentence: "other users' processes cannot be read and are not sampled",
		Meaning: "tt-memtrace samples and is not permitted to read some processes, such as other users' processes. " +
			"They may use the same chips.",
		Ends: "-",
	},
	{
		Code:     ReasonBehind,
		Sentence: "the tracer is behind: events are queued",
		Missed:   true,
		Meaning:  "More than a second of events is queued.",
		Ends:     "counting them",
	},
}

// OtherLetter marks reasons that have no letter of their own.
const OtherLetter = "X"

// rows finds a reason's row.
var rows = func() map[ReasonCode]*Row {
	m := make(map[ReasonCode]*Row, len(Reasons))
	for i := range Reasons {
		m[Reasons[i].Code] = &Reasons[i]
	}
	return m
}()

// ReasonCodes returns all codes of this version, sorted.
func ReasonCodes() []ReasonCode {
	list := make([]ReasonCode, 0, len(Reasons))
	for i := range Reasons {
		list = append(list, Reasons[i].Code)
	}
	slices.Sort(list)
	return list
}

// EndsWith is what lifts the reason, in the words of docs/json.md.
func (r Row) EndsWith() string {
	if r.Ends != "" {
		return r.Ends
	}
	return liftedBy[r.Lifted]
}

// liftedBy are the words for what lifts a reason.
var liftedBy = [...]string{
	ByItsSource: "its exit", ByComparison: "a comparison of its buffers", ByFullComparison: "a full comparison",
	ByFirstComparison: "the first complete scan of the process", ByState: "the next state in the recording",
}

// Row returns the reason's row. An unknown code is one of a newer version: it may affect everything, and only the source
// that raised it lifts it.
func (c ReasonCode) Row() Row {
	if row := rows[c]; row != nil {
		return *row
	}
	return Row{Code: c, Sentence: strings.ReplaceAll(string(c), "_", " "), Affects: affectsAll}
}

// Affects reports whether the reason may make any of these numbers wrong.
func (c ReasonCode) Affects(any Affects) bool {
	row := rows[c]
	return row == nil || row.Affects&any != 0
}

// Missed reports whether something was missed that happened while tracing.
func (c ReasonCode) Missed() bool { return rows[c] != nil && rows[c].Missed }

// Contradiction reports whether the runtime's own records contradict each other.
func (c ReasonCode) Contradiction() bool { return rows[c] != nil && rows[c].Contradiction }

// Letter returns the letter that marks the reason on the screen.
func (c ReasonCode) Letter() string {
	if row := rows[c]; row != nil && row.Letter != "" {
		return row.Letter
	}
	return OtherLetter
}

// Suspect reports whether a comparison with the process's allocators may lift the reason, so that one is due.
func (c ReasonCode) Suspect() bool {
	row := rows[c]
	return row != nil && (row.Lifted == ByComparison || row.Lifted == ByFullComparison || row.Lifted == ByState)
}

// Letters are the letters in the order in which the screen shows them, each with its first row.
var Letters = func() (list []Row) {
	for _, row := range append(slices.Clip(Reasons), Row{Letter: OtherLetter, Brief: "another reason; :reasons lists all"}) {
		if row.Letter != "" && !slices.ContainsFunc(list, func(r Row) bool { return r.Letter == row.Letter }) {
			list = append(list, row)
		}
	}
	return list
}()
