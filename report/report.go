// Package report answers what is asked after "how much": what stood at the peak
// and who put it there, what was never freed, what came and went most, why
// there was no room, and what changed between two runs.
//
// A Builder is told of events and changes as they happen, live or from a
// recording, and keeps sums, not events: its memory grows with what is alive and
// with the number of places that allocate, not with time.
package report

import (
	"time"

	"tt-memtrace/aggregator"
	"tt-memtrace/export"
)

//go:generate go test -run TestSchemaIsUpToDate -update

// Schema is the version of Report. It grows by one with every change that is
// not an addition.
const Schema = 1

// Report is what `report --json` prints. All sizes are in bytes, all times but
// began in seconds from it. Sizes are what the banks lost to a buffer and, where that is
// not known, its own size.
type Report struct {
	// Version of this format.
	Schema int `json:"schema"`
	// Name of the host, and what was traced.
	Host   string      `json:"host"`
	Source export.Text `json:"source"`
	// When what is reported began, and for how long it went on.
	Began   time.Time `json:"began"`
	Seconds float64   `json:"seconds"`
	// Number of events, and of those that were lost; False if something is or may be missing.
	Events uint64 `json:"events"`
	Lost   uint64 `json:"lost"`
	Exact  bool   `json:"exact"`
	// Number of allocations with a stack, of those with one that was cut short and,
	// where there are any, of those whose stack was lost.
	Stacks     uint64 `json:"stacks"`
	StacksCut  uint64 `json:"stacks_cut"`
	StacksLost uint64 `json:"stacks_lost"`

	Processes []Process `json:"processes"`
	// Each chip's memories that were used, with their peaks.
	Memories []Memory `json:"memories"`
	// What programs took of each chip's L1 at the peak.
	Programs []Programs `json:"programs"`
	// What was never freed by a call, the most first: at the end, or with its process or device.
	Left []Site `json:"left"`
	// Who allocated most over the time, the most first.
	Churn []Site `json:"churn"`
	// Allocations that failed.
	Refusals []Refusal `json:"refusals"`

	sites []*site
	lives []life
	first uint64
}

// offset is how far from the beginning a time of the events is, seconds.
func (r *Report) offset(at uint64) float64 { return float64(max(at, r.first)-r.first) / 1e9 }

// Process is one that was seen.
type Process struct {
	PID     uint32       `json:"pid"`
	Command *export.Text `json:"command" jsonschema:"nullable"`
	Release *export.Text `json:"release" jsonschema:"nullable"`
	// From and to when it was seen; null where it still lives.
	From float64  `json:"from"`
	To   *float64 `json:"to" jsonschema:"nullable"`
	// Buffers that went with it, and their bytes on all chips.
	HeldAtExit      uint64 `json:"held_at_exit"`
	HeldBytesAtExit uint64 `json:"held_bytes_at_exit"`
}

// Memory is one memory of one chip.
type Memory struct {
	Chip    uint32  `json:"chip"`
	Private *uint32 `json:"private_to,omitempty"`
	Memory  string  `json:"memory"`
	// What there is to hand out; null where unknown.
	Capacity *uint64 `json:"capacity" jsonschema:"nullable"`
	// The most that was taken, when, of how many buffers, and by whom.
	Peak        uint64  `json:"peak"`
	PeakAt      float64 `json:"peak_at"`
	PeakBuffers uint64  `json:"peak_buffers"`
	Holders     []Site  `json:"holders"`
	// What was taken at the end.
	End uint64 `json:"end"`
	// When the free part was in the most pieces; null where that is unknown.
	Fragmented *Fragmentation `json:"fragmented" jsonschema:"nullable"`
	// How it went.
	Timeline []Point `json:"timeline"`
}

// Fragmentation is how much of a bank was free, and in how large pieces.
type Fragmentation struct {
	At float64 `json:"at"`
	// Free bytes of each bank, and the largest block of them.
	Free    uint64 `json:"free_per_bank"`
	Largest uint64 `json:"largest_per_bank"`
}

// Point is a piece of a timeline.
type Point struct {
	At float64 `json:"at"`
	// The most that was taken from here to the next point.
	Used uint64 `json:"used"`
	// Free bytes of each bank, and the largest free block, at the end of it; null where unknown.
	Free    *uint64 `json:"free_per_bank" jsonschema:"nullable"`
	Largest *uint64 `json:"largest_per_bank" jsonschema:"nullable"`
}

// Programs is what programs' circular and dataflow buffers took of a chip's L1 by plain sum.
type Programs struct {
	Chip    uint32  `json:"chip"`
	Private *uint32 `json:"private_to,omitempty"`
	// The highest plain sum, when, and by operation.
	Peak    uint64             `json:"peak_logical"`
	PeakAt  float64            `json:"peak_at"`
	Holders []ProgramOperation `json:"holders"`
}

// ProgramOperation is the programs of one operation.
type ProgramOperation struct {
	// Class of the operation; null where unknown.
	Operation *export.Text `json:"operation" jsonschema:"nullable"`
	Programs  uint64       `json:"programs"`
	Bytes     uint64       `json:"bytes"`
}

// Site is a place that allocates: a stack of a process or, where there is none, a size.
type Site struct {
	PID uint32 `json:"pid"`
	// The ttnn operation, where one is on the stack; null otherwise.
	Operation *export.Text `json:"operation" jsonschema:"nullable"`
	// The user's own line or, without Python, the function outside of the runtime; null without a stack.
	Where *export.Text `json:"where" jsonschema:"nullable"`
	// All calls, the innermost first.
	Stack []export.Text `json:"stack,omitempty"`
	// Memory, and the size of each buffer where there is no stack, bytes on each chip.
	Memory string  `json:"memory"`
	Size   *uint64 `json:"size" jsonschema:"nullable"`
	// Buffers and their bytes: on the chip, or on all chips where none is named.
	Buffers uint64 `json:"buffers"`
	Bytes   uint64 `json:"bytes"`
	// Age of the oldest and of the youngest, seconds.
	Oldest   *float64 `json:"oldest,omitempty"`
	Youngest *float64 `json:"youngest,omitempty"`
	// Of Left: how many went with their process, or with their device or allocator.
	AtExit  uint64 `json:"at_exit,omitempty"`
	AtClose uint64 `json:"at_close,omitempty"`
	// Of Churn: how many were freed, how long these lived on average, and how many lived at a time.
	Freed    uint64   `json:"freed,omitempty"`
	MeanLife *float64 `json:"mean_life,omitempty"`
	Most     uint64   `json:"most_at_a_time,omitempty"`
}

// Refusal is an allocation that failed.
type Refusal struct {
	At  float64 `json:"at"`
	PID uint32  `json:"pid"`
	// What it was: out_of_memory or clash.
	Kind   string `json:"kind"`
	Memory string `json:"memory"`
	// What the runtime said.
	Message export.Text   `json:"message"`
	Where   *export.Text  `json:"where" jsonschema:"nullable"`
	Stack   []export.Text `json:"stack,omitempty"`
	// What was asked for of each bank, and what a bank had free, by the runtime's own
	// numbers; null where it does not say.
	Asked   *uint64 `json:"asked_per_bank" jsonschema:"nullable"`
	Free    *uint64 `json:"free_per_bank" jsonschema:"nullable"`
	Largest *uint64 `json:"largest_per_bank" jsonschema:"nullable"`
	// The same by the accounts, on each chip that the process has open.
	Chips []RefusedChip `json:"chips"`
	// Of a clash: where the circular buffers end and the L1 buffers begin.
	End    *uint64 `json:"circular_buffers_end" jsonschema:"nullable"`
	Lowest *uint64 `json:"l1_buffers_begin"`
	// Who holds the memory or, in a clash, the addresses in the way, the most first.
	Holders []Site `json:"holders"`
}

// RefusedChip is how full a chip was when an allocation failed.
type RefusedChip struct {
	Chip uint32 `json:"chip"`
	// Bytes of a bank.
	Allocated uint64  `json:"allocated_per_bank"`
	Free      *uint64 `json:"free_per_bank" jsonschema:"nullable"`
	Largest   *uint64 `json:"largest_per_bank" jsonschema:"nullable"`
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
