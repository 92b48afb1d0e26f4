package aggregator

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
	// ProcessExit: the process is gone and with it all it held.
	ProcessExit
	// DeviceOpen: a device, of one chip or a mesh of many, can hold buffers. Device and Opened are set.
	DeviceOpen
	// DeviceClose: the device begins to close; what it still holds goes with its allocator.
	DeviceClose
	// AllocatorSeen: the capacity of an allocator became known. Allocator, Device and Capacity are set.
	AllocatorSeen
	// AllocatorGone: the allocator freed everything it had handed out.
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
	// Program is 0 where it is not known which. Size is what it takes of the
	// kernel-config ring in each core, 0 where unknown; Count can be 0.
	Launched
	// BooksRead: the process's own allocators were read. Books is set.
	BooksRead
	// Replayed: the trace numbered Trace was replayed on a device Count times
	// more, the last time at Time.
	Replayed
	// RingUsed: what a device's kernel-config ring holds changed. Ring is set.
	RingUsed
	// Refused: the runtime found no room. Refusal is set.
	Refused
	// StateBegin: what follows, up to StateEnd, is the state of other accounts, which
	// these become: a recording that begins late begins so.
	StateBegin
	// StateEnd: the state is told. Totals is what its events did not tell.
	StateEnd
	// Counted: the runtime's own sums of a process on a chip are these now. Sums is set.
	Counted
	// Haunted: the runtime counts Ghosts, and no others, on a chip. It is of no process.
	Haunted
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
	Space  uint32
	Number uint32
}

// Process is what is known of a traced process.
type Process struct {
	// Started is the start time in clock ticks since boot (field 22 of
	// /proc/PID/stat): with the PID it names a process for good.
	Started uint64
	// Command is the name and arguments, untrusted text.
	Command string
	// Library is the path of the runtime's library as the process sees it.
	Library string
	// BuildID is the library's GNU build-id in hex, or empty.
	BuildID string
	// Release is the runtime's version where it can be told, or empty.
	Release string
	// Late: chips of its were open when tracing began, so that buffers from
	// before are in no account.
	Late bool
	// NotCovered says what of this build is in no account, separated by commas.
	NotCovered string
	// Source is how its allocations are known.
	Source Source
	// Container that the process is in, such as docker:0123456789ab, or empty: untrusted text.
	Container string
	// InnerPID is its PID inside its own PID namespace, 0 where that is not another one than ours.
	InnerPID uint32
}

// Source is how the allocations of a process are known.
type Source uint8

const (
	// Traced: seen in the process itself.
	Traced Source = iota
	// Reported: said by a client of the allocation server's socket. Addresses,
	// banks and cores are not known then.
	Reported
	// Summed: the runtime's own sums, from its shared memory. No buffers, reserved
	// sizes, peaks, kernels or dataflow buffers are known then.
	Summed
)

// String is the source in a word.
func (s Source) String() string {
	switch s {
	case Reported:
		return "reported"
	case Summed:
		return "shared_memory"
	}
	return "traced"
}

// Opened is what is known of a device when it opens.
type Opened struct {
	// Chips that the device spans; empty where that could not be read.
	Chips []Chip
	// Boards are the cards that the chips are on, such as n300, one for each of
	// Chips; empty where unknown.
	Boards []string
	// Mesh is true for a mesh device, which can span any number of chips.
	Mesh bool
	// Arch is the chips' architecture as the runtime names it, or empty.
	Arch string
	// Late: it may have held buffers before tracing began, which are in no account.
	Late bool
}

// Capacity is what an allocator has to hand out.
type Capacity [NumMemories]Banks

// Banks describes one memory of one chip: Count banks of Bytes each. A Count
// of 0 with Known means that there is no such memory.
type Banks struct {
	Known bool
	Count uint32
	Bytes uint64
}

func (b Banks) size() uint64 { return uint64(b.Count) * b.Bytes }

// Event is one thing that happened in a traced process. Device, Allocator
// and Buffer are addresses in that process: identities, valid while the
// object lives, never dereferenced here.
type Event struct {
	Kind   Kind
	Memory Memory
	// Layout is the runtime's TensorMemoryLayout of the buffer.
	Layout uint8
	// Anyone: the events that were lost can be of any process.
	Anyone bool
	PID    uint32
	TID    uint32
	// Time is CLOCK_MONOTONIC, ns.
	Time      uint64
	Device    uint64
	Allocator uint64
	Buffer    uint64
	// Address is where the buffer starts in each bank, bytes.
	Address uint64
	// Size is what was asked for, bytes on each chip of the device.
	Size uint64
	// PerBank is what every bank of each chip lost to the buffer, bytes; 0
	// where that is not known.
	PerBank  uint64
	PageSize uint64
	// Program is the address of a program.
	Program uint64
	// Count is the number of events lost, of launches or of replays.
	Count uint64
	// Trace is the number of a recorded trace.
	Trace uint32
	// Operation is the class of the ttnn operation that a program is of, untrusted text.
	Operation string

	Process  *Process
	Opened   *Opened
	Capacity *Capacity
	CB       *CircularBuffer
	Kernel   *Kernel
	Books    *Books
	Sums     *Sums
	Ghosts   *Ghosts
	Ring     *Ring
	Totals   *Snapshot
	// Stack is the code that allocated a buffer, or was refused one, where that is asked for.
	Stack   *Stack
	Refusal *Refusal
}

// Stack is a thread's calls, the innermost first. Its words are the process's
// own and untrusted. Events share stacks, which nobody changes.
type Stack struct {
	Frames []Frame
	// Cut: there are further frames, which were not sent or could not be found.
	Cut bool
}

// Frame is one call. What is not known of it is empty or 0.
type Frame struct {
	// Function, of a C++ function with its namespaces.
	Function string
	// File of the source, and the Line in it.
	File string
	Line uint32
	// Module is the file of the code; empty for Python's.
	Module string
	// Python: it is a function of the interpreter's.
	Python bool
	// Address of the code in the process, or 0.
	Address uint64
}

// Refusal is an allocation that failed, in the runtime's own numbers.
type Refusal struct {
	// Clash: circular buffers reach into the L1 buffers. Otherwise memory was out.
	Clash bool
	// Message is what the runtime says, untrusted text.
	Message string
	// Asked for, on each chip; Banks that it is spread over, PerBank in each; bytes,
	// as BankBytes, Allocated, Free and Largest, the largest free block, of a bank; 0
	// where unknown.
	Asked, Banks, PerBank, BankBytes, Allocated, Free, Largest uint64
	// End of the circular buffers in L1, and Lowest address of the L1 buffers above
	// their beginning; of a clash.
	End, Lowest uint64
}
