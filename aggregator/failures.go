package aggregator

// FailureKind is what kept an allocation or a program from getting memory. Recordings have its number.
type FailureKind uint8

const (
	// OutOfMemory: no free block of a memory was large enough.
	OutOfMemory FailureKind = iota
	// Clash: a program's circular or dataflow buffers would overlap L1 buffers.
	Clash
	// BeyondL1: a program's circular or dataflow buffers alone are larger than L1.
	BeyondL1
	// ProgramTooLarge: a program is too large for the kernel-config ring.
	ProgramTooLarge
	// OtherFailure: something else failed where memory is handed out; only the message says what.
	OtherFailure
	numFailureKinds
)

var failureKindNames = [numFailureKinds]string{"out_of_memory", "clash", "beyond_l1", "program_too_large", "other"}

// String is the kind's name in JSON and in tables.
func (k FailureKind) String() string { return failureKindNames[min(k, OtherFailure)] }

// Describe says in a few words what happened in a memory.
func (k FailureKind) Describe(m Memory) string {
	switch k {
	case OutOfMemory:
		if m >= NumMemories {
			return "out of memory"
		}
		return "out of memory in " + m.String()
	case Clash:
		return "circular buffers clash with L1 buffers"
	case BeyondL1:
		return "circular buffers are larger than L1"
	case ProgramTooLarge:
		return "program is too large for the kernel-config ring"
	}
	return "no memory was handed out"
}

// OfProgram reports whether a program failed to be placed, rather than a buffer to be allocated.
func (k FailureKind) OfProgram() bool { return k == Clash || k == BeyondL1 || k == ProgramTooLarge }

// FailedAllocation is an allocation that failed, or a program that could not be placed, in the runtime's own numbers.
type FailedAllocation struct {
	// Kind is what got no memory.
	Kind FailureKind `rec:"Kind"`
	// Message is the runtime's, untrusted text.
	Message string `rec:"Message"`
	// In bytes, 0 if unknown: Asked is requested on each chip, spread over Banks banks, PerBank in each. BankBytes,
	// Allocated, Free and Largest (the largest free block) are of one bank; unknown if BankBytes is 0. If a program
	// is too large, Asked is what each of its cores needs in the kernel-config ring.
	Asked     uint64 `rec:"Asked"`
	Banks     uint64 `rec:"Banks"`
	PerBank   uint64 `rec:"PerBank"`
	BankBytes uint64 `rec:"BankBytes"`
	Allocated uint64 `rec:"Allocated"`
	Free      uint64 `rec:"Free"`
	Largest   uint64 `rec:"Largest"`
	// For a clash, or buffers beyond L1: the End of the circular buffers in L1. For a clash, the Lowest address of the
	// L1 buffers above their beginning.
	End    uint64 `rec:"End"`
	Lowest uint64 `rec:"Lowest"`
	// Limit is the room that there is: the bytes of L1, or of the kernel-config ring. 0 if unknown.
	Limit uint64 `rec:"Limit"`
}

// BankKnown reports whether it is known how full a bank was.
func (f *FailedAllocation) BankKnown() bool {
	return f.BankBytes > 0
}
