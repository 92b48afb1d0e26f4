package aggregator

import (
	"cmp"
	"fmt"

	"golang.org/x/sys/unix"
)

// Memory is one of the memories that the runtime's allocator hands out, in
// the runtime's own order (tt::tt_metal::BufferType).
type Memory uint8

const (
	DRAM Memory = iota
	L1
	SystemMemory
	L1Small
	Trace
	NumMemories
)

var memoryNames = [NumMemories]string{"DRAM", "L1", "SYSTEM_MEMORY", "L1_SMALL", "TRACE"}

// String is the runtime's own name of the memory.
func (m Memory) String() string {
	if m < NumMemories {
		return memoryNames[m]
	}
	return "UNKNOWN"
}

// Kind says what an Event is about.
type Kind uint8

const (
	// ProcessStart: a process that uses the runtime is watched from now on. Process is set.
	ProcessStart Kind = iota + 1
	// ProcessExit: the process exited, and everything that it held was freed. Exit is set where it is known how it ended.
	ProcessExit
	// DeviceOpen: a device, of one chip or a mesh of many, can hold buffers. Device and Opened are set.
	DeviceOpen
	// DeviceClose: the device begins to close; what it still holds is freed with its allocator.
	DeviceClose
	// AllocatorSeen: the capacity of an allocator is known now. Allocator, Device and Capacity are set.
	AllocatorSeen
	// AllocatorGone: the allocator freed everything it had handed out. The objects of these buffers may live on, and
	// be freed one by one later. In a state, Buffer, Address and Memory are one for which this is still to come.
	AllocatorGone
	// Alloc: a buffer was allocated.
	Alloc
	// Free: a buffer is about to be freed.
	Free
	// CBPlaced: a program's circular buffer was placed on a device. Program,
	// Device and CB are set.
	CBPlaced
	// ProgramGone: a program was destroyed, and its circular buffers and kernels
	// with it.
	ProgramGone
	// KernelAdded: a program that is being made got a kernel. Program is set.
	KernelAdded
	// KernelLoaded: a binary of a program's kernel was read, for a device.
	// Program, Device and Kernel are set.
	KernelLoaded
	// KernelsCopied: a program's kernels were copied to a buffer in DRAM, at
	// Address. Program and Buffer are set.
	KernelsCopied
	// ProgramNamed: what a program does became known. Program and Operation are set.
	ProgramNamed
	// Launched: a program was launched Count times more, the last time at Time.
	// Program is 0 where it is not known which. Size is its part of the
	// kernel-config ring in each core, 0 where unknown; Count can be 0.
	Launched
	// Compared: the accounts were made equal to a scan of the process. Comparison is set.
	Compared
	// Replayed: the trace numbered Trace was replayed on a device Count times
	// more, the last time at Time.
	Replayed
	// ConfigRingUsed: what a device's kernel-config ring holds changed. ConfigRing is set.
	ConfigRingUsed
	// AllocationFailed: an allocation failed. Failure is set.
	AllocationFailed
	// ReasonRaised: numbers of the process, or of the host where PID is 0, are not
	// exact from now on. Reason is set; its PID and times are those of the event.
	ReasonRaised
	// ReasonLifted: the Reason of that code does not hold any more.
	ReasonLifted
	// TraceBegun: capture of the trace numbered Trace began on a device. What is known of
	// a capture that began earlier is in Capture.
	TraceBegun
	// TraceCaptured: the capture ended. Capture is set where it was not seen to begin.
	TraceCaptured
	// TraceReleased: the trace is not replayed any more.
	TraceReleased
	// MarkedCorruptible: the program says that a replay of a trace may overwrite Buffer.
	MarkedCorruptible
	// HostMemoryRead: the process has Size bytes resident in the host's memory.
	HostMemoryRead
	// StateBegin: the events up to StateEnd are the state of other accounts, which
	// replaces these. A recording of a running tracer begins so.
	StateBegin
	// StateEnd: the state is complete. Totals is what its events do not have.
	StateEnd
	// RuntimeTotalsChanged: the runtime's own totals for a process on a chip changed. RuntimeTotals is set.
	RuntimeTotalsChanged
	// StaleEntriesChanged: StaleEntries are all entries of exited processes in the runtime's shared memory of a chip.
	// The event has no PID.
	StaleEntriesChanged
	// ProgramNotOn: a program that was counted on a device is not there. Program and Device are set.
	ProgramNotOn
	// SizeRead: the reserved size of a live buffer, which was unknown, was read. Buffer and PerBank are set and, if it
	// has an address on each of its cores, PerCore.
	SizeRead
	// Scanned: the process's memory was scanned. Scan is set. Apply and a session replace it by the events of
	// Aggregator.Merge, so recordings and sinks have these.
	Scanned
	// Lost: Count events never arrived, so the accounts of traced processes, or with
	// Anyone of all, are no longer exact. It stays the last kind.
	Lost
)

// Chip names one physical chip of the host.
//
// The runtime numbers chips per process, and TT_VISIBLE_DEVICES renumbers
// them: Space is 0 for the host's own numbering and otherwise the PID whose
// private numbering Number belongs to. Chips of different spaces are never
// added up.
type Chip struct {
	Space  uint32 `rec:"Space"`
	Number uint32 `rec:"Number"`
}

// Process describes a traced process.
type Process struct {
	// Started is the start time in clock ticks since boot (field 22 of
	// /proc/PID/stat): with the PID it identifies a process.
	Started uint64 `rec:"Started"`
	// Command is the name and arguments, untrusted text.
	Command string `rec:"Command"`
	// Library is the path of the runtime's library as the process sees it.
	Library string `rec:"Library"`
	// BuildID is the library's GNU build-id in hex, or empty.
	BuildID string `rec:"BuildID"`
	// Release is the runtime's version, or empty where unknown.
	Release string `rec:"Release"`
	// Late: it had chips open when tracing began, so buffers from before may be
	// missing.
	Late bool `rec:"Late"`
	// RanBefore: it was started before tracing began.
	RanBefore bool `rec:"RanBefore"`
	// NotCovered lists what cannot be traced in this build, separated by commas, such as FailuresNotCovered.
	NotCovered string `rec:"NotCovered"`
	// UnknownMemory lists functions of this build that may hand out memory and are not known, separated by commas.
	UnknownMemory string `rec:"UnknownMemory"`
	// Source is how its allocations become known.
	Source Source `rec:"Source"`
	// Container that the process is in, such as docker:0123456789ab, or empty: untrusted text.
	Container string `rec:"Container"`
	// InnerPID is its PID inside its own PID namespace, 0 in ours.
	InnerPID uint32 `rec:"InnerPID"`
}

// Exit is how a process ended: by exit(2) with a status or, where Signal is not 0, killed by that signal.
type Exit struct {
	Status uint8 `rec:"Status"`
	Signal uint8 `rec:"Signal"`
}

// String is what the process did; of nil, how it ended is unknown.
func (e *Exit) String() string {
	switch {
	case e == nil:
		return "exited"
	case e.Signal == 0:
		return fmt.Sprintf("exited with status %d", e.Status)
	}
	return "killed by " + e.SignalName()
}

// SignalName is such as SIGKILL. A real-time signal has only a number.
func (e *Exit) SignalName() string {
	return cmp.Or(unix.SignalName(unix.Signal(e.Signal)), fmt.Sprintf("signal %d", e.Signal))
}

// FailuresNotCovered: some failed allocations are not seen in a build.
const FailuresNotCovered = "failed allocations"

// Source is how the allocations of a process become known.
type Source uint8

const (
	// Traced: seen in the process itself.
	Traced Source = iota
	// Reported: by a client of the allocation server's socket. Addresses, banks and cores are unknown.
	Reported
	// FromSharedMemory: the runtime's own totals, from its shared memory. Buffers, reserved sizes, peaks, kernels and
	// dataflow buffers are unknown.
	FromSharedMemory
	// Sampled: read from the process's own allocators now and then. Buffers that are allocated and freed in between
	// are missed, so counts and peaks are lower bounds.
	Sampled
)

// Observed reports whether the process itself is read, with probes or without, rather than reported by others.
func (s Source) Observed() bool { return s == Traced || s == Sampled }

// String is the source in a word.
func (s Source) String() string {
	switch s {
	case Reported:
		return "reported"
	case FromSharedMemory:
		return "shared_memory"
	case Sampled:
		return "sampled"
	}
	return "traced"
}

// Opened describes a device when it opens.
type Opened struct {
	// Chips that the device spans; empty where that could not be read.
	Chips []Chip `rec:"Chips"`
	// Boards are the cards that the chips are on, such as n300, one for each of
	// Chips; empty where unknown.
	Boards []string `rec:"Boards"`
	// UniqueIDs are the chips' unique IDs, one for each of Chips, 0 where unknown; empty
	// where all are.
	UniqueIDs []uint64 `rec:"UniqueIDs"`
	// Mesh is true for a mesh device, which can span any number of chips.
	Mesh bool `rec:"Mesh"`
	// Arch is the chips' architecture as the runtime names it, or empty.
	Arch string `rec:"Arch"`
	// Late: it may have held buffers before tracing began, which are missing.
	Late bool `rec:"Late"`
}

// Capacity is the memory that an allocator manages.
type Capacity [NumMemories]Banks

// Banks describes one memory of one chip: Count banks of Bytes each. A Count
// of 0 with Known means that there is no such memory.
type Banks struct {
	Known bool   `rec:"Known"`
	Count uint32 `rec:"Count"`
	Bytes uint64 `rec:"Bytes"`
	// Base is the address at which each bank begins, if Based. Below it are firmware, the kernel-config ring and other
	// memory that is not the allocator's.
	Base  uint64 `rec:"Base"`
	Based bool   `rec:"Based"`
}

func (b Banks) size() uint64 { return uint64(b.Count) * b.Bytes }

// Event is one thing that happened in a traced process. Device, Allocator and Buffer are addresses in that process.
// They identify objects while these live, and are never dereferenced here.
//
// Recordings contain events. The tag rec is a field's name in them, here and in everything that an event points to:
// it stays when the field is renamed. A field with the tag "-" is in no recording.
type Event struct {
	Kind   Kind   `rec:"Kind"`
	Memory Memory `rec:"Memory"`
	// MemoryLayout is the runtime's TensorMemoryLayout of the buffer.
	MemoryLayout uint8 `rec:"MemoryLayout"`
	// Found is set if a comparison found what happened to a buffer or a program, rather than an event of it.
	Found Found `rec:"Found"`
	// Anyone: the lost events can be of any process.
	Anyone bool   `rec:"Anyone"`
	PID    uint32 `rec:"PID"`
	TID    uint32 `rec:"TID"`
	// Time is CLOCK_MONOTONIC, ns.
	Time      uint64 `rec:"Time"`
	Device    uint64 `rec:"Device"`
	Allocator uint64 `rec:"Allocator"`
	Buffer    uint64 `rec:"Buffer"`
	// Address is where the buffer starts in each bank, bytes.
	Address uint64 `rec:"Address"`
	// Size is the requested size, bytes on each chip of the device.
	Size uint64 `rec:"Size"`
	// PerBank is the bytes that the buffer takes from every bank of each chip; 0 if unknown.
	PerBank  uint64 `rec:"PerBank"`
	PageSize uint64 `rec:"PageSize"`
	// PerCore is set if the buffer has an address on each of its cores: then it takes PerBank on these alone, and
	// Address is the lowest.
	PerCore PerCore `rec:"PerCore"`
	// Program is the address of a program.
	Program uint64 `rec:"Program"`
	// Count is the number of events lost, of launches or of replays.
	Count uint64 `rec:"Count"`
	// Trace is the number of a recorded trace.
	Trace uint32 `rec:"Trace"`
	// Operation is the class of a program's ttnn operation, untrusted text.
	Operation string `rec:"Operation"`

	Process       *Process        `rec:"Process"`
	Exit          *Exit           `rec:"Exit"`
	Opened        *Opened         `rec:"Opened"`
	Capacity      *Capacity       `rec:"Capacity"`
	CB            *CircularBuffer `rec:"CB"`
	Kernel        *Kernel         `rec:"Kernel"`
	Scan          *Scan           `rec:"-"`
	Comparison    *Comparison     `rec:"Comparison"`
	RuntimeTotals *RuntimeTotals  `rec:"RuntimeTotals"`
	StaleEntries  *StaleEntries   `rec:"StaleEntries"`
	ConfigRing    *ConfigRing     `rec:"ConfigRing"`
	Capture       *Capture        `rec:"Capture"`
	// Unsafe is set for an unsafe buffer of a state.
	Unsafe *Unsafe   `rec:"Unsafe"`
	Totals *Snapshot `rec:"Totals"`
	// Stack is the calls that allocated or freed a buffer, if stacks are traced, or that failed to allocate or to place a program.
	Stack   *Stack            `rec:"Stack"`
	Failure *FailedAllocation `rec:"Failure"`
	// Reason that is raised or lifted.
	Reason *Reason `rec:"Reason"`
}

// Found says how a change became known that no event reported.
type Found uint8

const (
	// NotFound: an event reported it.
	NotFound Found = iota
	// FoundFirst: the first comparison of a process found it, so it is from before tracing began.
	FoundFirst
	// FoundLater: a later comparison found it, so its event is missing.
	FoundLater
)

// Stack is a thread's calls, the innermost first. Its words are the process's
// own and untrusted. Events share stacks, which are immutable.
type Stack struct {
	Frames []Frame `rec:"Frames"`
	// Cut means that outer frames are missing.
	Cut bool `rec:"Cut"`
}

// Frame is one call. Unknown fields are empty or 0. A call that could not be named has no Function.
type Frame struct {
	// Function, of a C++ function with its namespaces.
	Function string `rec:"Function"`
	// File of the source, and the Line in it.
	File string `rec:"File"`
	Line uint32 `rec:"Line"`
	// Module is the file of the code; empty for Python's.
	Module string `rec:"Module"`
	// Python: it is a function of the interpreter's.
	Python bool `rec:"Python"`
	// Address of the code in the process, or 0.
	Address uint64 `rec:"Address"`
}
