// Package export converts snapshots and changes into JSON and log lines for other programs. An unknown value is null in JSON,
// never 0 or empty, and text of a process cannot control a terminal.
//
// docs/*.schema.json are generated from the comments of exported structs' fields.
package export

import (
	"slices"
	"strings"
	"time"

	"tt-memtrace/aggregator"
	"tt-memtrace/aggregator/exact"
)

//go:generate go test -run TestSchemasAreUpToDate -update

// StatusSchema is the version of Status. It grows by one with every change
// that is not an addition.
const StatusSchema = 1

// Status is one snapshot as `status --json` prints it. All sizes are in bytes.
type Status struct {
	// Version of this format. It grows with every change that is not an addition.
	Schema int `json:"schema" jsonschema:"enum=1"`
	// When the snapshot was taken.
	Time time.Time `json:"time"`
	// Name of the host.
	Host string `json:"host"`
	// Version of tt-memtrace.
	Version string `json:"version"`
	// True if the numbers of all chips and processes are exact. False while there are
	// reasons: then the true numbers may be higher or lower.
	Exact bool `json:"exact"`
	// Why exact is false: the reasons of the host and of all processes; empty where it is true.
	Reasons []StatusReason `json:"reasons"`
	// Number of events since tracing began.
	Events uint64 `json:"events"`
	// Number of events that were lost since tracing began.
	Lost uint64 `json:"events_lost"`
	// Set if the numbers are the runtime's own totals, from its shared memory;
	// absent otherwise.
	SharedMemory *StatusSharedMemory `json:"shared_memory,omitempty"`
	// Every physical chip seen since tracing began, over all processes.
	Chips []StatusChip `json:"chips"`
	// Every live process that is traced.
	Processes []StatusProcess `json:"processes"`
	// The newest processes that exited, at most 32, oldest first, as they were
	// at their end. Chips no longer count what they held.
	Ended []StatusProcess `json:"ended"`
	// The newest failed allocations and programs, at most 32, oldest first; null where they cannot be seen, which is
	// without probes.
	Failures []FailureLine `json:"failures" jsonschema:"nullable"`
	// Number of failures before these; absent where there are none. Failures whose events were lost are not counted.
	FailuresBefore uint64 `json:"failures_before,omitempty"`
}

// StatusReason is why numbers are not exact.
type StatusReason struct {
	// Name of the reason. docs/json.md explains those of this version; other ones can be added.
	Code exact.ReasonCode `json:"code"`
	// The reason as a sentence.
	Text Text `json:"text"`
	// When it began; null where unknown.
	Since *time.Time `json:"since" jsonschema:"nullable"`
	// PID of the process that it affects; null where it affects the host's chips.
	PID *uint32 `json:"pid" jsonschema:"nullable"`
	// Numbers of the chips that it affects; absent where it affects all chips of the
	// process or, without a process, of the host.
	Chips []uint32 `json:"chips,omitempty"`
	// PID of the process that numbers these chips in its own way (TT_VISIBLE_DEVICES);
	// absent where the numbers are the host's. A reason with chips of both kinds is listed twice.
	Private *uint32 `json:"private_to,omitempty"`
}

// StatusSharedMemory says how complete the runtime's own totals are.
type StatusSharedMemory struct {
	// What these totals do not include.
	Lacks []string `json:"lacks"`
	// What the runtime still counts for killed processes. No other number includes it.
	StaleEntries []StatusStaleEntry `json:"stale_entries"`
}

// StatusStaleEntry has the totals that the runtime still counts for an exited process.
type StatusStaleEntry struct {
	// Number of the chip, as in chips.
	Chip uint32 `json:"chip"`
	// PID that the process had.
	PID uint32 `json:"pid"`
	// Its name; null where unknown.
	Command *Text `json:"command" jsonschema:"nullable"`
	// Sum of its buffers' requested sizes by memory, bytes: dram, l1, l1_small, trace.
	Requested map[string]uint64 `json:"requested_bytes"`
	// L1 that its circular buffers used, bytes.
	CB uint64 `json:"circular_buffer_bytes"`
}

// StatusChip is one chip, over all processes or for one.
type StatusChip struct {
	// Number of the chip.
	Chip uint32 `json:"chip"`
	// PID of the process that numbers this chip in its own way (TT_VISIBLE_DEVICES);
	// absent where the number is the host's. Equal numbers of two numberings may be
	// different chips.
	Private *uint32 `json:"private_to,omitempty"`
	// Architecture as the runtime names it: wormhole_b0, blackhole; null where unknown.
	Arch *string `json:"arch" jsonschema:"nullable"`
	// Type of its card, such as n150, n300, p150, galaxy; null where unknown.
	Card *string `json:"card" jsonschema:"nullable"`
	// True if its numbers are exact; in a process's chips, if that process's numbers are.
	Exact bool `json:"exact"`
	// Why exact is false, at most 16 reasons; empty where it is true.
	Reasons []StatusReason `json:"reasons"`
	// PIDs of the processes that have it open, ascending.
	PIDs []uint32 `json:"pids"`
	// The use of each memory: dram, l1, l1_small, trace.
	Memory map[string]StatusUse `json:"memory"`
	// L1 used by programs for circular and dataflow buffers and scratchpads, in addition
	// to memory.l1; null where only the runtime's own total is known.
	Programs *StatusPrograms `json:"programs" jsonschema:"nullable"`
	// L1 used by circular buffers, by the runtime's own total, bytes; absent if programs is set.
	CBSum *uint64 `json:"circular_buffer_bytes,omitempty"`
	// The kernels of the programs on it; null where they are unknown.
	Kernels *StatusKernels `json:"kernels" jsonschema:"nullable"`
}

// StatusKernels is the kernels of a chip's programs. A kernel has a binary for
// each processor that it runs on. Each binary is counted once, on however many cores.
type StatusKernels struct {
	// Number of programs that have kernels; null where none was seen and some may be missing.
	Programs *uint64 `json:"programs" jsonschema:"nullable"`
	// Number of binaries of operations and programs; null where none was seen and some may be missing.
	Application *uint64 `json:"application_binaries" jsonschema:"nullable"`
	// Number of binaries that move data between chips; null where none was seen and some may be missing.
	Fabric *uint64 `json:"fabric_binaries" jsonschema:"nullable"`
	// Number of the runtime's own binaries, which launch the others; null where none was seen and some may be missing.
	Dispatch *uint64 `json:"dispatch_binaries" jsonschema:"nullable"`
	// Sum of the loadable parts of all binaries, bytes; null where a file could not be read, or nothing was seen
	// and some may be missing.
	Bytes *uint64 `json:"bytes" jsonschema:"nullable"`
	// The same sum, with each binary times the cores that it runs on, bytes; null where the size or the cores of
	// one are unknown, or nothing was seen and some may be missing.
	BytesOnCores *uint64 `json:"bytes_on_cores" jsonschema:"nullable"`
	// Number of buffers in DRAM that contain a copy of kernels; null where none was seen and some may be missing.
	DRAMCopies *uint64 `json:"dram_copies" jsonschema:"nullable"`
	// Sum of their sizes, bytes: part of memory.dram; null where nothing was seen and some may be missing.
	DRAMBytes *uint64 `json:"dram_bytes" jsonschema:"nullable"`
	// The kernel-config ring of the worker cores; if sub-devices have rings of their own, the fullest; null where
	// none is known or has been read yet.
	Ring *StatusConfigRing `json:"config_ring" jsonschema:"nullable"`
}

// StatusConfigRing is a kernel-config ring: a range of L1, the same in each worker core,
// in which each launch of a program gets a place for the program's arguments,
// semaphores, configuration and kernels. A place is released when newer ones need
// the room.
type StatusConfigRing struct {
	// Its first address in L1, bytes.
	Address uint64 `json:"address"`
	// Its size in each core, bytes.
	Capacity uint64 `json:"capacity_bytes"`
	// Its use by places that were not released, bytes in each core; null where unknown: after a replay of a trace,
	// or if it could not be read.
	Used *uint64 `json:"used_bytes" jsonschema:"nullable"`
	// Number of these places, one for each launch; null where used_bytes is.
	Places *uint64 `json:"places" jsonschema:"nullable"`
}

// StatusPrograms is the L1 of a chip that programs use for their circular and
// dataflow buffers and scratchpads. All sizes are in bytes.
type StatusPrograms struct {
	// L1 that is used: on each core the union of the buffers' addresses, because programs use the same addresses
	// in turn; summed over the cores, bytes; null where nothing was seen and some may be missing, or their cores
	// are unknown.
	Physical *uint64 `json:"physical_bytes" jsonschema:"nullable"`
	// Plain sum of all buffers on all cores, bytes; null where nothing was seen and some may be missing.
	Logical *uint64 `json:"logical_bytes" jsonschema:"nullable"`
	// Highest value of physical_bytes since tracing began, bytes; null where nothing was seen and some may be missing.
	PeakPhysical *uint64 `json:"peak_physical_bytes" jsonschema:"nullable"`
	// Highest value of logical_bytes since tracing began, bytes; null where nothing was seen and some may be missing.
	PeakLogical *uint64 `json:"peak_logical_bytes" jsonschema:"nullable"`
	// True if both peaks are lower bounds, because processes were sampled, or unknown; absent otherwise.
	PeaksAtLeast bool `json:"peaks_at_least,omitempty"`
	// True if both peaks may be too low or too high, because events were lost; absent otherwise.
	PeaksUncertain bool `json:"peaks_uncertain,omitempty"`
	// Number of programs that have such buffers. Cached programs count until they are destroyed; null where none
	// was seen and some may be missing.
	Programs *uint64 `json:"programs" jsonschema:"nullable"`
	// Number of circular buffers, without global ones; null where none was seen and some may be missing.
	Circular *uint64 `json:"circular_buffers" jsonschema:"nullable"`
	// Number of dataflow buffers (Metal 2.0); null where none was seen and some may be missing.
	Dataflow *uint64 `json:"dataflow_buffers" jsonschema:"nullable"`
	// Number of scratchpads of kernels (Metal 2.0); null where none was seen and some may be missing.
	Scratchpads *uint64 `json:"scratchpads" jsonschema:"nullable"`
	// Number of circular buffers inside an L1 buffer, which use no additional L1; null where none was seen and
	// some may be missing.
	Global *uint64 `json:"global_circular_buffers" jsonschema:"nullable"`
	// The core with the largest physical use; null where there is none, or none was seen and some may be missing.
	BusiestCore *StatusCore `json:"busiest_core" jsonschema:"nullable"`
	// Number of circular buffers that a client of the socket reported. Their cores
	// are unknown, so only logical_bytes includes them; absent where there are none.
	Reported uint64 `json:"reported_circular_buffers,omitempty"`
	// Highest end address of a buffer in any core's L1, bytes. L1 buffers must be above it; null where nothing was
	// seen and some may be missing.
	Top *uint64 `json:"end_address" jsonschema:"nullable"`
}

// StatusCore is a core.
type StatusCore struct {
	// Number of its logical column.
	X uint16 `json:"x"`
	// Number of its logical row.
	Y uint16 `json:"y"`
	// Its part of physical_bytes.
	Physical uint64 `json:"physical_bytes"`
}

// StatusUse is the use of one memory of a chip. All sizes are in bytes.
type StatusUse struct {
	// Sum of the live buffers' requested sizes, bytes. While a process is late, its buffers from before tracing
	// began may be missing; null where nothing was seen and some may be missing.
	Requested *uint64 `json:"requested_bytes" jsonschema:"nullable"`
	// Total bytes taken from the free pool of all banks, padding included; null where that is unknown of a buffer,
	// or only the runtime's own total is known, or nothing was seen and some may be missing.
	Reserved *uint64 `json:"reserved_bytes" jsonschema:"nullable"`
	// Highest value of requested_bytes since tracing began, bytes; null where only the runtime's own total is known, or
	// nothing was seen and some may be missing.
	PeakRequested *uint64 `json:"peak_requested_bytes" jsonschema:"nullable"`
	// Highest value of reserved_bytes since tracing began, bytes; null where it was unknown at any time, or nothing was
	// seen and some may be missing.
	PeakReserved *uint64 `json:"peak_reserved_bytes" jsonschema:"nullable"`
	// True if both peaks are lower bounds, because processes were sampled or a buffer's chips were unknown at
	// first, or unknown; absent otherwise.
	PeaksAtLeast bool `json:"peaks_at_least,omitempty"`
	// True if both peaks may be too low or too high, because events were lost; absent otherwise.
	PeaksUncertain bool `json:"peaks_uncertain,omitempty"`
	// Number of live buffers; null where only the runtime's own total is known, or none was seen and some may be missing.
	Buffers *uint64 `json:"buffers" jsonschema:"nullable"`
	// Size of what the allocator manages, bytes; 0 where there is no such memory, null where unknown.
	Capacity *uint64 `json:"capacity_bytes" jsonschema:"nullable"`
	// Number of banks; null where unknown.
	Banks *uint32 `json:"banks" jsonschema:"nullable"`
	// Size of a bank, bytes; null where unknown.
	BankBytes *uint64 `json:"bank_bytes" jsonschema:"nullable"`
}

// StatusProcess is one traced process.
type StatusProcess struct {
	// The process's PID.
	PID uint32 `json:"pid"`
	// Where its numbers are from. traced: probes. reported: a client of the allocation
	// server's socket. shared_memory: the runtime's own totals. sampled: its own
	// allocators, read at intervals, so that allocs, frees and peaks are lower bounds.
	Source string `json:"source" jsonschema:"enum=traced,enum=reported,enum=shared_memory,enum=sampled"`
	// Its container, as RUNTIME:ID, where ID has 12 digits, or
	// kubernetes:POD-UID/ID; null where none is known.
	Container *Text `json:"container" jsonschema:"nullable"`
	// PID inside its own PID namespace; null where that namespace is tt-memtrace's.
	InnerPID *uint32 `json:"inner_pid" jsonschema:"nullable"`
	// Name and arguments, separated by spaces; null where unknown.
	Command *Text `json:"command" jsonschema:"nullable"`
	// Path of the runtime's library as the process sees it; null where unknown.
	Library *Text `json:"library" jsonschema:"nullable"`
	// The library's GNU build-id in hex; null where unknown.
	BuildID *Text `json:"build_id" jsonschema:"nullable"`
	// Version of the runtime; null where unknown.
	Release *Text `json:"release" jsonschema:"nullable"`
	// Number of replays of captured traces, whose programs are unknown; null
	// where the process is sampled.
	Replays *uint64 `json:"replays" jsonschema:"nullable"`
	// Buffers that were allocated after a trace was captured and were live when it was
	// replayed, so that the replay may have overwritten them; null where replays are not seen.
	Unsafe *StatusUnsafe `json:"unsafe" jsonschema:"nullable"`
	// When it last launched a program or replayed a trace; null where that was not seen.
	LastLaunch *time.Time `json:"last_launch" jsonschema:"nullable"`
	// Its resident memory on the host, or that at its end, bytes; null where unknown.
	HostMemory *uint64 `json:"host_memory_bytes" jsonschema:"nullable"`
	// Peak of host_memory_bytes; null where unknown.
	HostMemoryPeak *uint64 `json:"peak_host_memory_bytes" jsonschema:"nullable"`
	// First value of host_memory_bytes; null where unknown.
	HostMemoryFirst *uint64 `json:"first_host_memory_bytes" jsonschema:"nullable"`
	// What the accounts lack for this release of the runtime, such as dataflow buffers; empty where they lack nothing.
	NotCovered []string `json:"not_covered"`
	// True if its numbers are exact; of an ended process, if they were at its end.
	Exact bool `json:"exact"`
	// Why exact is false; empty where it is true.
	Reasons []StatusReason `json:"reasons"`
	// True while buffers that predate tracing may be missing: it was attached late, and has not been read
	// completely.
	Late bool `json:"late"`
	// Number of live buffers, a buffer on a mesh of many chips counted once; null where only the runtime's own
	// totals are known, or none was seen and some may be missing.
	Buffers *uint64 `json:"buffers" jsonschema:"nullable"`
	// Number of allocations seen; null where only the runtime's own totals are known.
	Allocs *uint64 `json:"allocations" jsonschema:"nullable"`
	// Number of frees of buffers whose allocation was seen; null where only the runtime's own totals are known.
	Frees *uint64 `json:"frees" jsonschema:"nullable"`
	// Number of buffers that were freed with their allocator or were replaced.
	ImplicitFrees uint64 `json:"implicit_frees"`
	// True if allocations, frees and implicit_frees are lower bounds, because it is sampled or had devices open before
	// tracing began; absent otherwise.
	CountsAtLeast bool `json:"counts_at_least,omitempty"`
	// True if some of its events were missed: allocations and replays are lower bounds, and frees and implicit_frees
	// may be too low or too high; absent otherwise.
	CountsUncertain bool `json:"counts_uncertain,omitempty"`
	// Number of frees of buffers whose allocation was not seen.
	UnmatchedFrees uint64 `json:"unmatched_frees"`
	// Number of buffers whose free was not seen: another buffer was allocated in their place.
	Replaced uint64 `json:"missed_frees"`
	// Number of inconsistent events, which were not counted.
	Odd uint64 `json:"inconsistent_events"`
	// Number of buffers that it held before tracing began.
	Found uint64 `json:"preexisting_buffers"`
	// Number of buffers and programs that were added or removed when the accounts were compared with the process's
	// own allocators.
	Repaired uint64 `json:"corrections"`
	// When they were last compared and corrected; null where they never were.
	Compared *time.Time `json:"last_comparison" jsonschema:"nullable"`
	// Status that it gave exit(2), 0 to 255; null where it is live, where a signal killed it, and where that is unknown.
	ExitStatus *uint8 `json:"exit_status" jsonschema:"nullable"`
	// The signal that killed it, such as SIGKILL; null where it is live, where none did, and where that is unknown.
	ExitSignal *string `json:"exit_signal" jsonschema:"nullable"`
	// Chips that it has open, with its own use of each; of an ended process,
	// all that it ever opened.
	Chips []StatusChip `json:"chips"`
	// Its use of devices whose chips are unknown, by memory; absent where there is none.
	Unplaced map[string]StatusUse `json:"unplaced,omitempty"`
}

// StatusUnsafe counts buffers that a replay of a trace may have overwritten; bytes on each chip. A number is null if none
// was seen and there may be some, for example under traces from before tracing began.
type StatusUnsafe struct {
	// Number of such buffers that are live; null where unknown.
	Buffers *uint64 `json:"buffers" jsonschema:"nullable"`
	// Sum of their sizes, bytes on each chip; null where unknown.
	Bytes *uint64 `json:"bytes" jsonschema:"nullable"`
	// Number of these at addresses that other buffers had while the trace was captured; null where unknown.
	Overlapping *uint64 `json:"overlapping_buffers" jsonschema:"nullable"`
	// Sum of the sizes of the overlapping ones, bytes on each chip; null where unknown.
	OverlappingBytes *uint64 `json:"overlapping_bytes" jsonschema:"nullable"`
	// Number of all such buffers, freed ones included; null where unknown.
	Found *uint64 `json:"buffers_total" jsonschema:"nullable"`
}

// Shown are the memories of a chip, in the order in which they are shown.
var Shown = []aggregator.Memory{aggregator.DRAM, aggregator.L1, aggregator.L1Small, aggregator.Trace}

// NewStatus returns the JSON form of a snapshot that was taken at this time of day.
func NewStatus(s *aggregator.Snapshot, at time.Time, host, version string) Status {
	wall := func(monotonic uint64) *time.Time {
		if monotonic == 0 {
			return nil
		}
		t := at.Add(-time.Duration(s.Time - min(monotonic, s.Time)))
		return &t
	}
	st := Status{
		Schema: StatusSchema, Time: at, Host: host, Version: version, Exact: s.Exact(),
		Reasons: statusReasons(slices.Collect(s.Why()), wall),
		Events:  s.Counters.Events, Lost: s.Counters.Lost,
		Chips: []StatusChip{}, Processes: []StatusProcess{}, Ended: []StatusProcess{},
	}
	for _, c := range s.Chips {
		st.Chips = append(st.Chips, statusChip(c, wall))
	}
	for _, p := range s.Processes {
		sp := statusProcess(p, wall)
		sp.Compared = wall(p.Agreement.At)
		st.Processes = append(st.Processes, sp)
	}
	for _, p := range s.Ended {
		st.Ended = append(st.Ended, statusProcess(p, wall))
	}
	if len(s.Lacks) > 0 {
		st.SharedMemory = statusSharedMemory(s)
	}
	return st
}

func statusSharedMemory(s *aggregator.Snapshot) *StatusSharedMemory {
	m := &StatusSharedMemory{Lacks: s.Lacks, StaleEntries: []StatusStaleEntry{}}
	for _, c := range s.Chips {
		for _, g := range c.StaleEntries {
			one := StatusStaleEntry{Chip: c.Chip.Number, PID: g.PID, Command: known(g.Command), Requested: map[string]uint64{}, CB: g.CB}
			for _, memory := range Shown {
				one.Requested[key(memory)] = g.Requested[memory]
			}
			m.StaleEntries = append(m.StaleEntries, one)
		}
	}
	return m
}

func statusReasons(list []aggregator.Reason, wall func(uint64) *time.Time) []StatusReason {
	reasons := []StatusReason{}
	for i := range list {
		r := &list[i]
		one := StatusReason{Code: r.Code, Text: Text(r.String()), Since: wall(r.Since)}
		if r.PID != 0 {
			one.PID = &r.PID
		}
		if len(r.Chips) == 0 {
			reasons = append(reasons, one)
		}
		first := len(reasons)
		for k := range r.Chips {
			c := &r.Chips[k]
			at := first + slices.IndexFunc(reasons[first:], func(s StatusReason) bool {
				return c.Space == 0 && s.Private == nil || s.Private != nil && *s.Private == c.Space
			})
			if at < first {
				at = len(reasons)
				reasons = append(reasons, one)
				if c.Space != 0 {
					reasons[at].Private = &c.Space
				}
			}
			reasons[at].Chips = append(reasons[at].Chips, c.Number)
		}
	}
	return reasons
}

// ExitOf returns how a process ended: its exit status, or the name of the signal that killed it. Both are nil if that is unknown.
func ExitOf(e *aggregator.Exit) (status *uint8, signal *string) {
	switch {
	case e == nil:
		return nil, nil
	case e.Signal == 0:
		return &e.Status, nil
	}
	name := e.SignalName()
	return nil, &name
}

func statusProcess(p aggregator.ProcessSnapshot, wall func(uint64) *time.Time) StatusProcess {
	sp := StatusProcess{
		PID: p.PID, Source: p.Info.Source.String(), Command: known(p.Info.Command), Library: known(p.Info.Library),
		BuildID: known(p.Info.BuildID), Release: known(p.Info.Release),
		Container: known(p.Info.Container), Exact: p.Exact(), Reasons: statusReasons(p.Reasons, wall), Late: p.Late,
		ImplicitFrees: p.Counters.ImplicitFrees.WithoutBound(), UnmatchedFrees: p.Counters.UnmatchedFrees,
		Replaced: p.Counters.Replaced, Odd: p.Counters.Odd,
		Found: p.Agreement.Found, Repaired: p.Agreement.Repaired, Chips: []StatusChip{}, NotCovered: []string{},
	}
	if p.Info.Source == aggregator.Traced {
		u := &p.Unsafe
		sp.Unsafe = &StatusUnsafe{
			Exactly(u.Buffers), Exactly(u.Bytes), Exactly(u.Overlapping), Exactly(u.OverlappingBytes), Exactly(u.Found),
		}
	}
	sp.ExitStatus, sp.ExitSignal = ExitOf(p.Exit)
	sp.LastLaunch = wall(p.LastLaunch)
	h := &p.HostMemory
	sp.HostMemory, sp.HostMemoryPeak, sp.HostMemoryFirst = Exactly(h.Bytes()), Exactly(h.Peak()), Exactly(h.First())
	if p.Info.InnerPID != 0 {
		sp.InnerPID = &p.Info.InnerPID
	}
	if p.Info.Source != aggregator.Sampled {
		sp.Replays = seen(p.Counters.Replays)
	}
	if p.Info.Source != aggregator.FromSharedMemory {
		sp.Buffers = Exactly(p.Buffers)
		sp.Allocs, sp.Frees = seen(p.Counters.Allocs), seen(p.Counters.Frees)
		sp.CountsAtLeast, sp.CountsUncertain = counts(p.Counters.Allocs, p.Counters.Frees, p.Counters.ImplicitFrees)
	}
	if p.Info.NotCovered != "" {
		sp.NotCovered = strings.Split(p.Info.NotCovered, ", ")
	}
	for _, c := range p.Chips {
		sp.Chips = append(sp.Chips, statusChip(c, wall))
	}
	for _, m := range Shown {
		if u := p.Unplaced[m]; u.Buffers.Some() {
			if sp.Unplaced == nil {
				sp.Unplaced = map[string]StatusUse{}
			}
			sp.Unplaced[key(m)] = statusUse(u, false)
		}
	}
	return sp
}

func key(m aggregator.Memory) string { return strings.ToLower(m.String()) }

// Exactly is a number as JSON has it: nil, which is null, unless it is exact.
func Exactly(q exact.Quantity) *uint64 {
	if n, ok := q.Exact(); ok {
		return &n
	}
	return nil
}

// seen is a number of what was seen since tracing began, as JSON has it: what was missed is not in it.
func seen(q exact.Quantity) *uint64 {
	n := q.WithoutBound()
	return &n
}

// counts says how far counts of what was seen can be trusted: a lower bound of 0 is unknown.
func counts(list ...exact.Quantity) (atLeast, uncertain bool) {
	for _, q := range list {
		atLeast = atLeast || q.Bound() != exact.Exact
		uncertain = uncertain || q.Bound() == exact.Uncertain
	}
	return atLeast && !uncertain, uncertain
}

// peak is a peak as JSON has it: nil if it is unknown, which is a lower bound too, otherwise with its bound beside it.
func peak(q exact.Quantity) (number *uint64, atLeast, uncertain bool) {
	n, b := q.Value()
	if b == exact.Unknown {
		return nil, true, false
	}
	return &n, b == exact.AtLeast, b == exact.Uncertain
}

func statusChip(c aggregator.ChipSnapshot, wall func(uint64) *time.Time) StatusChip {
	sc := StatusChip{Chip: c.Chip.Number, Exact: c.Exact(), Reasons: statusReasons(c.Reasons, wall), PIDs: append([]uint32{}, c.PIDs...), Memory: map[string]StatusUse{}}
	if c.Chip.Space != 0 {
		sc.Private = &c.Chip.Space
	}
	if c.Arch != "" {
		sc.Arch = &c.Arch
	}
	if c.Board != "" {
		sc.Card = &c.Board
	}
	if c.TotalsOnly {
		sc.CBSum = Exactly(c.CB.Physical)
	} else {
		programs, kernels := statusPrograms(c.CB), statusKernels(c.Kernel)
		kernels.Ring = statusRing(c.ConfigRing)
		sc.Programs, sc.Kernels = &programs, &kernels
	}
	for _, m := range Shown {
		sc.Memory[key(m)] = statusUse(c.Memory[m], c.TotalsOnly)
	}
	return sc
}

func statusPrograms(u aggregator.CBUsage) StatusPrograms {
	sp := StatusPrograms{
		Physical: Exactly(u.Physical), Logical: Exactly(u.Logical), Programs: Exactly(u.Programs), Circular: Exactly(u.Circular), Dataflow: Exactly(u.Dataflow),
		Scratchpads: Exactly(u.Scratchpads), Global: Exactly(u.Global), Reported: u.Reported.WithoutBound(), Top: Exactly(u.Top),
	}
	sp.PeakLogical, sp.PeaksAtLeast, sp.PeaksUncertain = peak(u.PeakLogical)
	// A physical peak that is less certain lacks buffers whose cores are unknown.
	if u.PeakPhysical.Bound() == u.PeakLogical.Bound() {
		sp.PeakPhysical, _, _ = peak(u.PeakPhysical)
	}
	if n, ok := u.BusiestBytes.Exact(); ok && n > 0 {
		sp.BusiestCore = &StatusCore{u.Busiest.X, u.Busiest.Y, n}
	}
	return sp
}

func statusKernels(u aggregator.KernelUsage) StatusKernels {
	return StatusKernels{
		Programs: Exactly(u.Programs), Application: Exactly(u.Binaries[aggregator.ApplicationKernel]),
		Fabric: Exactly(u.Binaries[aggregator.FabricKernel]), Dispatch: Exactly(u.Binaries[aggregator.DispatchKernel]),
		DRAMCopies: Exactly(u.DRAMCopies), DRAMBytes: Exactly(u.DRAMBytes),
		Bytes: Exactly(u.Bytes), BytesOnCores: Exactly(u.OnCores),
	}
}

func statusRing(r aggregator.RingUsage) *StatusConfigRing {
	capacity, known := r.Capacity.Exact()
	if !known {
		return nil
	}
	return &StatusConfigRing{r.Base, capacity, Exactly(r.Used), Exactly(r.Places)}
}

// statusUse is the use of a memory, of which only the runtime's own totals may be known.
func statusUse(u aggregator.Usage, totals bool) StatusUse {
	su := StatusUse{Requested: Exactly(u.Requested), Buffers: Exactly(u.Buffers)}
	if !totals {
		su.Reserved = Exactly(u.Reserved)
		su.PeakRequested, su.PeaksAtLeast, su.PeaksUncertain = peak(u.PeakRequested)
		// A peak that is less certain than that of the requested sizes lacks a buffer whose reserved size was unknown.
		if u.PeakReserved.Bound() == u.PeakRequested.Bound() {
			su.PeakReserved, _, _ = peak(u.PeakReserved)
		}
	}
	if capacity, known := u.Capacity(); known {
		su.Capacity, su.Banks, su.BankBytes = &capacity, &u.Banks.Count, &u.Banks.Bytes
	}
	return su
}
