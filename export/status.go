// Package export turns snapshots and changes into the forms that other
// programs read. It promises that a number which is not known is absent
// (JSON: null), never 0.
package export

import (
	"strings"
	"time"

	"tt-memtrace/aggregator"
)

// StatusSchema is the version of Status. It grows by one with every change
// that is not an addition.
const StatusSchema = 1

// Status is one snapshot as `status --json` prints it. All sizes are in bytes.
type Status struct {
	Schema  int       `json:"schema" jsonschema:"const=1,description=version of this format"`
	Time    time.Time `json:"time" jsonschema:"description=when the snapshot was taken"`
	Host    string    `json:"host"`
	Version string    `json:"version" jsonschema:"description=version of tt-memtrace"`
	// Exact is false once an event was lost or a process was attached late.
	Exact     bool            `json:"exact" jsonschema:"description=false if an event was lost or if a traced process may hold buffers from before tracing began"`
	Events    uint64          `json:"events" jsonschema:"description=events seen since the start"`
	Lost      uint64          `json:"lost" jsonschema:"description=events that were lost since the start"`
	Chips     []StatusChip    `json:"chips" jsonschema:"description=every physical chip seen since the start"`
	Processes []StatusProcess `json:"processes" jsonschema:"description=every live process that is traced"`
}

// StatusChip is one chip, over all processes or for one.
type StatusChip struct {
	Chip uint32 `json:"chip" jsonschema:"description=number of the chip"`
	// Private is the PID whose own numbering Chip is in.
	Private *uint32              `json:"private_to,omitempty" jsonschema:"description=PID whose private numbering (TT_VISIBLE_DEVICES) the number is in; absent where it is the host's"`
	Arch    *string              `json:"arch" jsonschema:"description=wormhole_b0 or blackhole or the like; null where unknown"`
	PIDs    []uint32             `json:"pids" jsonschema:"description=processes that have it open"`
	Memory  map[string]StatusUse `json:"memory" jsonschema:"description=by memory: dram l1 l1_small trace"`
}

// StatusUse is what one memory of a chip holds.
type StatusUse struct {
	Requested uint64 `json:"requested" jsonschema:"description=sum of the buffers' own sizes in bytes"`
	// Reserved is null where the bank space of a buffer is not known.
	Reserved      *uint64 `json:"reserved" jsonschema:"description=what the banks lost in bytes; null where unknown"`
	PeakRequested uint64  `json:"peak_requested"`
	PeakReserved  *uint64 `json:"peak_reserved"`
	Buffers       uint64  `json:"buffers" jsonschema:"description=live buffers"`
	Capacity      *uint64 `json:"capacity" jsonschema:"description=bytes the allocator hands out; null where unknown"`
	Banks         *uint32 `json:"banks"`
	BankBytes     *uint64 `json:"bank_bytes"`
}

// StatusProcess is one traced process.
type StatusProcess struct {
	PID            uint32       `json:"pid"`
	Command        string       `json:"command"`
	Library        string       `json:"library"`
	BuildID        string       `json:"build_id"`
	Release        string       `json:"release"`
	Late           bool         `json:"late" jsonschema:"description=buffers from before tracing began may be missing"`
	Buffers        uint64       `json:"buffers" jsonschema:"description=live buffers; one on a mesh of many chips is one"`
	Allocs         uint64       `json:"allocs"`
	Frees          uint64       `json:"frees"`
	ImplicitFrees  uint64       `json:"implicit_frees" jsonschema:"description=freed with their allocator"`
	UnmatchedFrees uint64       `json:"unmatched_frees" jsonschema:"description=frees of buffers that were never seen"`
	Chips          []StatusChip `json:"chips"`
	// Unplaced is what it holds on devices whose chips are not known.
	Unplaced map[string]StatusUse `json:"unplaced,omitempty"`
}

// Shown are the memories of a chip, in the order in which they are shown.
var Shown = []aggregator.Memory{aggregator.DRAM, aggregator.L1, aggregator.L1Small, aggregator.Trace}

// NewStatus makes the JSON form of a snapshot.
func NewStatus(s *aggregator.Snapshot, at time.Time, host, version string) Status {
	st := Status{
		Schema: StatusSchema, Time: at, Host: host, Version: version, Exact: s.Counters.Lost == 0,
		Events: s.Counters.Events, Lost: s.Counters.Lost,
		Chips: []StatusChip{}, Processes: []StatusProcess{},
	}
	for _, c := range s.Chips {
		st.Chips = append(st.Chips, statusChip(c))
	}
	for _, p := range s.Processes {
		st.Exact = st.Exact && !p.Late
		sp := StatusProcess{
			PID: p.PID, Command: p.Info.Command, Library: p.Info.Library, BuildID: p.Info.BuildID,
			Release: p.Info.Release, Late: p.Late, Buffers: p.Buffers,
			Allocs: p.Counters.Allocs, Frees: p.Counters.Frees,
			ImplicitFrees: p.Counters.ImplicitFrees, UnmatchedFrees: p.Counters.UnmatchedFrees,
			Chips: []StatusChip{},
		}
		for _, c := range p.Chips {
			sp.Chips = append(sp.Chips, statusChip(c))
		}
		for _, m := range Shown {
			if u := p.Unplaced[m]; u.Buffers > 0 {
				if sp.Unplaced == nil {
					sp.Unplaced = map[string]StatusUse{}
				}
				sp.Unplaced[key(m)] = statusUse(u)
			}
		}
		st.Processes = append(st.Processes, sp)
	}
	return st
}

func key(m aggregator.Memory) string { return strings.ToLower(m.String()) }

func statusChip(c aggregator.ChipSnapshot) StatusChip {
	sc := StatusChip{Chip: c.Chip.Number, PIDs: append([]uint32{}, c.PIDs...), Memory: map[string]StatusUse{}}
	if c.Chip.Space != 0 {
		sc.Private = &c.Chip.Space
	}
	if c.Arch != "" {
		sc.Arch = &c.Arch
	}
	for _, m := range Shown {
		sc.Memory[key(m)] = statusUse(c.Memory[m])
	}
	return sc
}

func statusUse(u aggregator.Usage) StatusUse {
	su := StatusUse{Requested: u.Requested, PeakRequested: u.PeakRequested, Buffers: u.Buffers}
	if u.Unreserved == 0 {
		su.Reserved, su.PeakReserved = &u.Reserved, &u.PeakReserved
	}
	if capacity, known := u.Capacity(); known {
		su.Capacity, su.Banks, su.BankBytes = &capacity, &u.Banks.Count, &u.Banks.Bytes
	}
	return su
}
