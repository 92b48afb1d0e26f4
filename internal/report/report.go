// Package report says which call sites held memory at its peak, which never
// freed it, which allocate most, why allocations failed, and what changed
// between two runs.
//
// A Builder receives events and changes as they happen, live or from a
// recording, and keeps sums, not events: its memory grows with the live buffers
// and the number of call sites, not with time.
package report

import (
	"strings"
	"time"

	"tt-memtrace/aggregator"
	"tt-memtrace/internal/export"
)

//go:generate go test -run TestSchemaIsUpToDate -update

// Schema is the version of Report. Every change that is not an addition
// increments it.
const Schema = 1

// Report is what `report --json` prints. All sizes are in bytes, all times but
// began_at in seconds from it. Sizes are reserved bytes (taken from the free pool of
// all banks, padding included) and, where these are unknown, the buffer's own size.
type Report struct {
	// Version of this format.
	Schema int `json:"schema"`
	// Host name, and what was traced.
	Host   string      `json:"host"`
	Source export.Text `json:"source"`
	// When the reported time began, of a recording with the recording, and its length.
	Began   time.Time `json:"began_at"`
	Seconds float64   `json:"duration_seconds"`
	// Number of events, and of lost ones; exact is false if something is or may be missing.
	Events uint64 `json:"events"`
	Lost   uint64 `json:"events_lost"`
	Exact  bool   `json:"exact"`
	// Processes were sampled: peaks, and numbers of allocations, are lower bounds, and what
	// failed is not known; absent where none was.
	Sampled bool `json:"sampled,omitempty"`
	// Number of allocations with a stack, of those with an incomplete one and,
	// where any has a stack, of those whose stack was lost.
	Stacks     uint64 `json:"stacks"`
	StacksCut  uint64 `json:"stacks_incomplete"`
	StacksLost uint64 `json:"stacks_lost"`

	Processes []Process `json:"processes"`
	// Each chip's memories that were used, with their peaks.
	Memories []Memory `json:"memories"`
	// L1 used by programs' circular and dataflow buffers on each chip, at its peak.
	Programs []Programs `json:"programs"`
	// Sites with buffers that no call freed, most bytes first: live at the end, or released by process exit or device close.
	Left []Site `json:"not_freed"`
	// Sites by bytes allocated over the whole time, most first.
	Churn []Site `json:"churn"`
	// Failed allocations.
	Failures []Failure `json:"failures"`
	// Number of failed allocations after these; absent where there are none.
	FailuresOmitted *OmittedFailures `json:"failures_omitted,omitempty"`
	// Buffers that were allocated after a trace was captured, and were alive when it was
	// replayed, by site: the replay may have overwritten them. Null if none was seen and there may be some: captures or
	// replays were not seen, for example before tracing began or between samples.
	Unsafe []Unsafe `json:"unsafe" jsonschema:"nullable"`
	// Sizes to set and what was left, from the whole time; no_advice says why there is none, and is null otherwise.
	Advice   []Advice     `json:"advice"`
	NoAdvice *export.Text `json:"no_advice" jsonschema:"nullable"`

	sites []*site
	lives []life
	first uint64
	// lacking: something was lost.
	lacking bool
	// buffersUnseen: events were lost, or a reason says that buffers may be missing.
	buffersUnseen bool
	// unseen: no process was sampled; one may have come and gone between two samples.
	unseen bool
	// unsurePeaks: peaks may differ.
	unsurePeaks bool
	// tracesBefore: a process captured traces before tracing began.
	tracesBefore bool
	// failuresUnseen: allocations of some processes can have failed without being seen.
	failuresUnseen bool
	// missed is what numbers of processes lack, as text.
	missed []string
}

// offset is the time of an event from the beginning, seconds.
func (r *Report) offset(at uint64) float64 { return float64(max(at, r.first)-r.first) / 1e9 }

// Process is a traced process.
type Process struct {
	PID     uint32       `json:"pid"`
	Command *export.Text `json:"command" jsonschema:"nullable"`
	Release *export.Text `json:"release" jsonschema:"nullable"`
	// First and last seen, seconds; ended_seconds is null while it runs.
	From float64  `json:"started_seconds"`
	To   *float64 `json:"ended_seconds" jsonschema:"nullable"`
	// Status that it gave exit(2), 0 to 255; null where it runs, where a signal killed it, and where that is unknown.
	ExitStatus *uint8 `json:"exit_status" jsonschema:"nullable"`
	// The signal that killed it, such as SIGKILL; null where it runs, where none did, and where that is unknown.
	ExitSignal *string `json:"exit_signal" jsonschema:"nullable"`
	// It can have allocated before tracing began, so that earlier peaks, and what it freed before, are unknown; absent where it
	// did not run then.
	RanBefore bool `json:"ran_before,omitempty"`
	// When it launched a program, or replayed a trace, last; null where that was not seen.
	LastLaunch *float64 `json:"last_launch_seconds" jsonschema:"nullable"`
	// Bytes that it had resident in the host's memory: when first read, at the peak and
	// last; null where unknown.
	HostFirst *uint64 `json:"first_host_memory_bytes" jsonschema:"nullable"`
	HostPeak  *uint64 `json:"peak_host_memory_bytes" jsonschema:"nullable"`
	HostLast  *uint64 `json:"last_host_memory_bytes" jsonschema:"nullable"`
	// Buffers that its exit released, and their bytes on all chips.
	HeldAtExit      uint64 `json:"buffers_at_exit"`
	HeldBytesAtExit uint64 `json:"bytes_at_exit"`

	exit *aggregator.Exit
}

// Ended says how it ended, and when.
func (p *Process) Ended() string {
	if p.To == nil {
		return "still running"
	}
	return p.exit.String() + " at " + seconds(*p.To)
}

// MemoryName is the runtime's own name of a memory, such as L1_SMALL. JSON has it in lower case, as everywhere; empty is none.
type MemoryName string

// MarshalText implements encoding.TextMarshaler.
func (m MemoryName) MarshalText() ([]byte, error) { return []byte(strings.ToLower(string(m))), nil }

// Memory is one memory of one chip.
type Memory struct {
	Chip    uint32     `json:"chip"`
	Private *uint32    `json:"private_to,omitempty"`
	Memory  MemoryName `json:"memory"`
	// Bytes that can be allocated; null where unknown.
	Capacity *uint64 `json:"capacity_bytes" jsonschema:"nullable"`
	// Highest use, when, in how many buffers, and by which sites.
	Peak        uint64  `json:"peak_bytes"`
	PeakAt      float64 `json:"peak_at_seconds"`
	PeakBuffers uint64  `json:"peak_buffers"`
	Holders     []Site  `json:"holders"`
	// Use at the end.
	End uint64 `json:"end_bytes"`
	// When most free bytes were outside the largest free block; null where unknown.
	Fragmented *Fragmentation `json:"fragmentation" jsonschema:"nullable"`
	// Use over time.
	Timeline []Point `json:"timeline"`
}

// Fragmentation is the free bytes of a bank and its largest free block.
type Fragmentation struct {
	At float64 `json:"at_seconds"`
	// Free bytes of each bank, and its largest free block.
	Free    uint64 `json:"free_per_bank_bytes"`
	Largest uint64 `json:"largest_free_per_bank_bytes"`
}

// Point is an interval of a timeline.
type Point struct {
	At float64 `json:"at_seconds"`
	// Highest use from here to the next point.
	Used uint64 `json:"used_bytes"`
	// Free bytes of each bank, and the largest free block, at its end; null where unknown.
	Free    *uint64 `json:"free_per_bank_bytes" jsonschema:"nullable"`
	Largest *uint64 `json:"largest_free_per_bank_bytes" jsonschema:"nullable"`

	sites []siteBytes
}

// Programs is the L1 of a chip in programs' circular and dataflow buffers, as a plain sum.
type Programs struct {
	Chip    uint32  `json:"chip"`
	Private *uint32 `json:"private_to,omitempty"`
	// Highest plain sum, when, and by operation.
	Peak    uint64             `json:"peak_logical_bytes"`
	PeakAt  float64            `json:"peak_at_seconds"`
	Holders []ProgramOperation `json:"holders"`
}

// ProgramOperation is the programs of one operation.
type ProgramOperation struct {
	// Class of the operation; null where unknown.
	Operation *export.Text `json:"operation" jsonschema:"nullable"`
	// Why it is unknown: not_launched since tracing began, process_ended before the launch was read, launcher (no ttnn
	// operation, or it could not be read), or not_traced; absent where it is known.
	Unnamed  Unnamed `json:"unnamed,omitempty"`
	Programs uint64  `json:"programs"`
	Bytes    uint64  `json:"bytes"`
}

// Site is a call site of a process: a stack or, without stacks, a buffer size.
type Site struct {
	PID uint32 `json:"pid"`
	// ttnn operation on the stack; null if there is none.
	Operation *export.Text `json:"operation" jsonschema:"nullable"`
	// Innermost calls outside of installed packages or, without Python, outside of the runtime; null without a stack.
	Where *export.Text `json:"site" jsonschema:"nullable"`
	// All calls, innermost first.
	Stack []export.Text `json:"stack,omitempty"`
	// Memory, and without a stack the size of each buffer, bytes on each chip.
	Memory MemoryName `json:"memory"`
	Size   *uint64    `json:"size_bytes" jsonschema:"nullable"`
	// Buffers and their bytes: on the chip, or on all chips if the list is not of one chip.
	Buffers uint64 `json:"buffers"`
	Bytes   uint64 `json:"bytes"`
	// Age of the oldest and of the youngest, seconds; absent where it was allocated before tracing began.
	Oldest   *float64 `json:"oldest_seconds,omitempty"`
	Youngest *float64 `json:"youngest_seconds,omitempty"`
	// For buffers left at the end: how many process exit released, and how many device close did.
	AtExit  uint64 `json:"at_exit,omitempty"`
	AtClose uint64 `json:"at_close,omitempty"`
	// For churn: how many were freed, their mean lifetime, and the most that were live at the same time.
	Freed    uint64   `json:"freed,omitempty"`
	MeanLife *float64 `json:"mean_lifetime_seconds,omitempty"`
	Most     uint64   `json:"peak_buffers,omitempty"`
	// It is no site but the sum of as many, which the list is too short for: the last of it. memory is empty where they differ.
	Others uint64 `json:"others,omitempty"`
}

// Failure is a failed allocation, or a program that could not be placed.
type Failure struct {
	At  float64 `json:"at_seconds"`
	PID uint32  `json:"pid"`
	// Kind: out_of_memory; clash of a program's circular buffers with L1 buffers; beyond_l1, if they alone are larger than L1;
	// program_too_large for the kernel-config ring; or other, which only the message describes.
	Kind string `json:"kind" jsonschema:"enum=out_of_memory,enum=clash,enum=beyond_l1,enum=program_too_large,enum=other"`
	// Memory is unknown if the message does not name it.
	Memory MemoryName `json:"memory"`
	// The runtime's message.
	Message export.Text   `json:"message"`
	Where   *export.Text  `json:"site" jsonschema:"nullable"`
	Stack   []export.Text `json:"stack,omitempty"`
	// Requested bytes of each bank, and its allocated and free bytes and largest free block, as the runtime's
	// message has them; null where it does not.
	Asked     *uint64 `json:"requested_per_bank_bytes" jsonschema:"nullable"`
	Allocated *uint64 `json:"allocated_per_bank_bytes" jsonschema:"nullable"`
	Free      *uint64 `json:"free_per_bank_bytes" jsonschema:"nullable"`
	Largest   *uint64 `json:"largest_free_per_bank_bytes" jsonschema:"nullable"`
	// What is allocated on each chip that the process has open, by the traced accounts. Its free bytes and
	// largest free block are those of the message where that has as much allocated, else by the accounts.
	Chips []FailureChip `json:"chips"`
	// Address where the circular buffers of a clash, or beyond L1, end, and where the L1 buffers of a clash begin.
	End    *uint64 `json:"circular_buffers_end_address" jsonschema:"nullable"`
	Lowest *uint64 `json:"l1_begin_address" jsonschema:"nullable"`
	// Bytes that a program too large needs in the kernel-config ring of a core; null for others.
	Program *uint64 `json:"program_bytes" jsonschema:"nullable"`
	// Bytes that there are: of L1 or of the kernel-config ring; null for others.
	Limit *uint64 `json:"limit_bytes" jsonschema:"nullable"`
	// The buffers of a program that could not be placed, the largest first.
	CircularBuffers []PlacedBuffer `json:"circular_buffers,omitempty"`
	// Next is what helps, "" where that is unknown.
	Next string `json:"-"`
	// Sites that hold the memory or, in a clash, the colliding addresses, most bytes first.
	Holders []Site `json:"holders"`
	// True if the holders are all that there were; false if some are unknown, and for kinds that have no holders.
	Complete bool `json:"holders_complete"`

	kind   aggregator.FailureKind
	memory aggregator.Memory
}

// PlacedBuffer is a circular or dataflow buffer or scratchpad of a program.
type PlacedBuffer struct {
	Kind    string `json:"kind"`
	Address uint64 `json:"address"`
	// Size on each of so many cores, bytes.
	Bytes uint64 `json:"size_bytes"`
	Cores uint64 `json:"cores"`
}

// OmittedFailures counts failures that are not listed.
type OmittedFailures struct {
	OutOfMemory uint64 `json:"out_of_memory"`
	Clashes     uint64 `json:"clashes"`
	// Of all other kinds.
	Others uint64 `json:"others"`
}

func (o *OmittedFailures) add(k aggregator.FailureKind, n uint64) {
	switch k {
	case aggregator.OutOfMemory:
		o.OutOfMemory += n
	case aggregator.Clash:
		o.Clashes += n
	default:
		o.Others += n
	}
}

// Number of them.
func (o *OmittedFailures) Number() uint64 {
	if o == nil {
		return 0
	}
	return o.OutOfMemory + o.Clashes + o.Others
}

// failed counts all failures.
func (r *Report) failed() (all OmittedFailures) {
	if r.FailuresOmitted != nil {
		all = *r.FailuresOmitted
	}
	for i := range r.Failures {
		all.add(r.Failures[i].kind, 1)
	}
	return all
}

// FailureChip is how full a chip was when an allocation failed.
type FailureChip struct {
	Chip    uint32  `json:"chip"`
	Private *uint32 `json:"private_to,omitempty"`
	// Bytes of each bank; null where unknown.
	Allocated *uint64 `json:"allocated_per_bank_bytes" jsonschema:"nullable"`
	Free      *uint64 `json:"free_per_bank_bytes" jsonschema:"nullable"`
	Largest   *uint64 `json:"largest_free_per_bank_bytes" jsonschema:"nullable"`
}

func known(s string) *export.Text {
	if s == "" {
		return nil
	}
	t := export.Text(s)
	return &t
}

func privateTo(c aggregator.Chip) *uint32 {
	if c.Space == 0 {
		return nil
	}
	return &c.Space
}
