package parquet

// Schema is the version of all tables. docs/versions.md says which changes increase it. Each file has it in its metadata, by schemaKey.
const (
	Schema    = 1
	schemaKey = "tt-memtrace.schema"
)

// Buffer is a row of the table buffers: a buffer's lifetime. Sizes are in bytes on each chip.
type Buffer struct {
	Recording string  `parquet:"recording,dict"`
	PID       int32   `parquet:"pid"`
	TID       int32   `parquet:"tid"`
	Memory    string  `parquet:"memory,dict"`
	Chips     []int32 `parquet:"chips,list"`
	// PrivateTo is the PID in whose own numbering the chips are; null in the host's.
	PrivateTo *int32 `parquet:"private_to,optional"`
	// Bytes as a report counts them: reserved or, where that is unknown, requested.
	Bytes     int64  `parquet:"bytes"`
	Requested int64  `parquet:"requested_bytes"`
	Reserved  *int64 `parquet:"reserved_bytes,optional"`
	Address   int64  `parquet:"address"`
	PerBank   *int64 `parquet:"per_bank_bytes,optional"`
	// Null: before tracing began, or when events were lost.
	AllocatedAt *int64 `parquet:"allocated_at,optional,timestamp(microsecond)"`
	// Null: still allocated at the end.
	FreedAt    *int64  `parquet:"freed_at,optional,timestamp(microsecond)"`
	ReleasedBy *string `parquet:"released_by,optional,dict"`
	// AllocatedSeq and FreedSeq number all allocations and frees of a recording in their order.
	AllocatedSeq int64  `parquet:"allocated_seq"`
	FreedSeq     *int64 `parquet:"freed_seq,optional"`
	// Counted is false for a buffer that the recording began with: a report does not count it as allocated over its time.
	Counted bool `parquet:"counted"`
	// Site labels the call site, SiteID distinguishes sites of a process and memory.
	Site      string  `parquet:"site,dict"`
	SiteID    int64   `parquet:"site_id"`
	Operation *string `parquet:"operation,optional,dict"`
	// Stack is all calls, innermost first, a line each; a list would cost ten times the time. Null without one.
	Stack *string `parquet:"stack,optional,dict"`
}

// What releases a buffer.
const (
	byFree    = "free"         // a call
	byMissed  = "missed_free"  // a call that was not seen
	byExit    = "process_exit" // its process ended
	byClose   = "device_close" // its device or allocator went
	byUnknown = "unknown"      // within a gap of the recording
)

// ProgramBuffer is a row of the table programs: a circular or dataflow buffer or a
// scratchpad of a program on one chip, from its placing to its release.
type ProgramBuffer struct {
	Recording string  `parquet:"recording,dict"`
	PID       int32   `parquet:"pid"`
	Program   int64   `parquet:"program"`
	Operation *string `parquet:"operation,optional,dict"`
	Kind      string  `parquet:"kind,dict"`
	Chip      int32   `parquet:"chip"`
	PrivateTo *int32  `parquet:"private_to,optional"`
	Address   int64   `parquet:"address"`
	// Size on each of its cores, and Bytes on all of them.
	Size         int64  `parquet:"size_bytes"`
	Cores        int64  `parquet:"cores"`
	Bytes        int64  `parquet:"bytes"`
	PlacedAt     int64  `parquet:"placed_at,timestamp(microsecond)"`
	ReleasedAt   *int64 `parquet:"released_at,optional,timestamp(microsecond)"`
	AllocatedSeq int64  `parquet:"placed_seq"`
	FreedSeq     *int64 `parquet:"released_seq,optional"`
}

// Failure is a row of the table failures: an allocation that failed, or a program that could not be placed.
type Failure struct {
	Recording string  `parquet:"recording,dict"`
	At        int64   `parquet:"failed_at,timestamp(microsecond)"`
	PID       int32   `parquet:"pid"`
	Kind      string  `parquet:"kind,dict"`
	Memory    string  `parquet:"memory,dict"`
	Requested *int64  `parquet:"requested_per_bank_bytes,optional"`
	Free      *int64  `parquet:"free_per_bank_bytes,optional"`
	Largest   *int64  `parquet:"largest_free_per_bank_bytes,optional"`
	End       *int64  `parquet:"circular_buffers_end_address,optional"`
	Lowest    *int64  `parquet:"l1_begin_address,optional"`
	Program   *int64  `parquet:"program_bytes,optional"`
	Limit     *int64  `parquet:"limit_bytes,optional"`
	Message   string  `parquet:"message"`
	Site      *string `parquet:"site,optional,dict"`
}

// Sample is a row of the table samples: the use of one memory of one chip, from At to the next sample.
type Sample struct {
	Recording string `parquet:"recording,dict"`
	At        int64  `parquet:"began_at,timestamp(microsecond)"`
	Chip      int32  `parquet:"chip"`
	PrivateTo *int32 `parquet:"private_to,optional"`
	Memory    string `parquet:"memory,dict"`
	Capacity  *int64 `parquet:"capacity_bytes,optional"`
	// Used is the highest use up to the next sample, Free and Largest are of each bank at its end.
	Used    int64  `parquet:"used_bytes"`
	Free    *int64 `parquet:"free_per_bank_bytes,optional"`
	Largest *int64 `parquet:"largest_free_per_bank_bytes,optional"`
}

// Process is a row of the table processes.
type Process struct {
	Recording string  `parquet:"recording,dict"`
	PID       int32   `parquet:"pid"`
	Command   *string `parquet:"command,optional"`
	Release   *string `parquet:"release,optional,dict"`
	StartedAt int64   `parquet:"started_at,timestamp(microsecond)"`
	// Null: it still ran at the end.
	EndedAt *int64 `parquet:"ended_at,optional,timestamp(microsecond)"`
}

// Recording is a row of the table recordings: one a recording.
type Recording struct {
	Recording string `parquet:"recording"`
	Source    string `parquet:"source"`
	BeganAt   int64  `parquet:"began_at,timestamp(microsecond)"`
	EndedAt   int64  `parquet:"ended_at,timestamp(microsecond)"`
	Events    int64  `parquet:"events"`
	Lost      int64  `parquet:"events_lost"`
	Exact     bool   `parquet:"exact"`
}
