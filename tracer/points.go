package tracer

import (
	"slices"
	"strings"

	"tt-memtrace/bpf"
)

// Need says what the accounts lose without a probe point.
type Need string

const (
	// Required: without it there are no right numbers, so nothing is attached.
	Required Need = "required"
	// Degrades: without it the accounts are right but less complete.
	Degrades Need = "degrades"
)

// Point is one place in the runtime that is probed: one row of the table from
// which attaching, doctor and the documentation are made.
type Point struct {
	// Name says what happens there.
	Name string
	Need Need
	// Without is what is lost where the library lacks it.
	Without string
	// Covers names what is in no account without it, or is empty.
	Covers string
	// Program is the BPF program's name.
	Program string
	// Symbols are the mangled names that it has had, newest first. The first
	// that a library defines is probed; a name that ends in * is a prefix.
	Symbols []string
	// All: every one of Symbols that is defined is a point of its own.
	All bool
	// Where are symbols of what the point is about: a library with none of them has
	// no such thing, and lacks nothing.
	Where []string
	// Check, where set, says why the point would tell nothing in a library.
	Check func(*Library) error
}

// Points is the probe table.
//
// There is no point on ~Buffer, which a mesh allocation runs through once for
// each chip. A free that goes past track_deallocate happens only after the
// buffer's device closed, and then its allocator is gone too.
var Points = []Point{
	{
		Name: "bank space taken", Need: Degrades, Program: bpf.MemtraceProgReserveInBank,
		Covers: "reserved sizes", Without: "reserved sizes are unknown; requested sizes are not affected",
		Symbols: []string{"_ZN2tt8tt_metal9allocator11FreeListOpt17allocate_in_blockEmmm"},
	},
	{
		Name: "buffer allocated", Need: Required, Program: bpf.MemtraceProgBufferAllocated,
		Without: "no accounts at all",
		Symbols: []string{"_ZN2tt8tt_metal12GraphTracker14track_allocateEPKNS0_6BufferE"},
	},
	{
		Name: "buffer freed", Need: Required, Program: bpf.MemtraceProgBufferFreed,
		Without: "no accounts at all",
		Symbols: []string{"_ZN2tt8tt_metal12GraphTracker16track_deallocateEPNS0_6BufferE"},
	},
	{
		Name: "all buffers freed", Need: Required, Program: bpf.MemtraceProgAllocatorGone,
		Without: "memory freed by a device's allocator as a whole would stay in the accounts",
		Symbols: []string{
			"_ZN2tt8tt_metal13AllocatorImpl18deallocate_buffersEv",
			"_ZN2tt8tt_metal9Allocator18deallocate_buffersEv",
		},
	},
	{
		Name: "allocator destroyed", Need: Required, Program: bpf.MemtraceProgAllocatorGone,
		Without: "memory of a closed device would stay in the accounts",
		Symbols: []string{"_ZN2tt8tt_metal13AllocatorImplD2Ev", "_ZN2tt8tt_metal9AllocatorD2Ev"},
	},
	{
		Name: "device opened", Need: Degrades, Program: bpf.MemtraceProgDeviceOpened, All: true,
		Without: "a device is shown from its first buffer on, not from its opening",
		Symbols: []string{
			"_ZN2tt8tt_metal6Device10initializeE*",
			"_ZN2tt8tt_metal11distributed10MeshDevice10initializeE*",
		},
	},
	{
		Name: "device closed", Need: Degrades, Program: bpf.MemtraceProgDeviceClosed, All: true,
		Without: "a closed device is shown until its process ends",
		Symbols: []string{
			"_ZN2tt8tt_metal6Device5closeEv",
			"_ZN2tt8tt_metal11distributed10MeshDevice5closeEv",
		},
	},
	{
		Name: "program laid out", Need: Degrades, Program: bpf.MemtraceProgProgramLaidOut,
		Covers: "circular buffers", Without: "circular buffers are not covered",
		Symbols: []string{"_ZN2tt8tt_metal6detail11ProgramImpl25allocate_circular_buffersEPKNS0_7IDeviceE"},
	},
	{
		Name: "circular buffer placed", Need: Degrades, Program: bpf.MemtraceProgCbPlaced,
		Covers: "circular buffers", Without: "circular buffers are not covered",
		Symbols: []string{
			"_ZN2tt8tt_metal12GraphTracker17track_allocate_cbERKNS0_12CoreRangeSetEmmbPKNS0_7IDeviceE",
			"_ZN2tt8tt_metal12GraphTracker17track_allocate_cbERK12CoreRangeSetmmbPKNS0_7IDeviceE",
		},
	},
	{
		// Not in 0.67 to 0.71.1, where it begins with a comparison; there the
		// circular buffers of the same program were laid out just before.
		Name: "dataflow buffers laid out", Need: Degrades, Program: bpf.MemtraceProgProgramLaidOut,
		Without: "programs that have dataflow buffers are told by their circular buffers being laid out",
		Where:   ofDataflow,
		Symbols: []string{placeDataflow},
	},
	{
		Name: "dataflow buffer's cores", Need: Degrades, Program: bpf.MemtraceProgL1Reserved,
		Without: "the cores of a dataflow buffer are taken from the allocators that it is marked in, and one on several core ranges counts as several",
		Where:   ofDataflow,
		Symbols: []string{reserveLocal},
	},
	{
		Name: "dataflow buffer placed", Need: Degrades, Program: bpf.MemtraceProgDfbPlaced,
		Covers: "dataflow buffers", Without: withoutDataflow,
		Where:   ofDataflow,
		Symbols: []string{markAddress},
		Check:   (*Library).knowsCores,
	},
	{
		Name: "scratchpads laid out", Need: Degrades, Program: bpf.MemtraceProgScratchpadsLaidOut,
		Covers: "scratchpads", Without: "scratchpads are not covered: programs take more L1 than is shown",
		Where:   append([]string{scratchpads}, scratchpadHandles...),
		Symbols: []string{scratchpads},
		Check:   (*Library).knowsScratchpads,
	},
	{
		Name: "program destroyed", Need: Degrades, Program: bpf.MemtraceProgProgramGone,
		Covers: "circular buffers", Without: "circular buffers are not covered",
		Symbols: []string{"_ZN2tt8tt_metal6detail11ProgramImplD1Ev"},
	},
	{
		Name: "kernel added", Need: Degrades, Program: bpf.MemtraceProgKernelAdded,
		Without: withoutKernels,
		Symbols: []string{"_ZN2tt8tt_metal6detail11ProgramImpl10add_kernelERKSt10shared_ptrINS0_6KernelEERKNS0_23HalProgrammableCoreTypeE"},
	},
	{
		Name: "kernel read", Need: Degrades, Program: bpf.MemtraceProgKernelRead, All: true,
		Without: withoutKernels,
		Symbols: []string{
			"_ZN2tt8tt_metal18DataMovementKernel13read_binariesE*",
			"_ZN2tt8tt_metal13ComputeKernel13read_binariesE*",
			"_ZN2tt8tt_metal14EthernetKernel13read_binariesE*",
			"_ZN2tt8tt_metal10DramKernel13read_binariesE*",
			"_ZN2tt8tt_metal12experimental6quasar24QuasarDataMovementKernel13read_binariesE*",
			"_ZN2tt8tt_metal12experimental6quasar19QuasarComputeKernel13read_binariesE*",
			"_ZN2tt8tt_metal12experimental6quasar20DispatchEngineKernel13read_binariesE*",
		},
	},
	{
		Name: "kernel's file read", Need: Degrades, Program: bpf.MemtraceProgBinaryRead,
		Without: withoutKernels,
		Symbols: []string{getRiscBinary + "*"},
	},
	{
		Name: "kernels copied to DRAM", Need: Degrades, Program: bpf.MemtraceProgKernelsCopied,
		Without: "the copy of kernels in DRAM is counted, but not told from other buffers",
		Symbols: []string{
			"_ZN2tt8tt_metal6detail11ProgramImpl22set_kernels_bin_bufferERKSt10shared_ptrINS0_6BufferEE",
			"_ZN2tt8tt_metal7Program22set_kernels_bin_bufferERKSt10shared_ptrINS0_6BufferEE",
		},
	},
	{
		Name: "program added to a workload", Need: Degrades, Program: bpf.MemtraceProgProgramAdded,
		Without: "launches of workloads and the names of operations are not covered",
		Symbols: []string{"_ZN2tt8tt_metal11distributed16MeshWorkloadImpl11add_programERKNS1_19MeshCoordinateRangeEONS0_7ProgramE"},
	},
	{
		Name: "workload destroyed", Need: Degrades, Program: bpf.MemtraceProgWorkloadGone,
		Without: "launches of workloads are not covered",
		Symbols: []string{
			"_ZN2tt8tt_metal11distributed16MeshWorkloadImplD1Ev",
			"_ZN2tt8tt_metal11distributed16MeshWorkloadImplD2Ev",
		},
	},
	{
		Name: "workload named", Need: Degrades, Program: bpf.MemtraceProgWorkloadNamed,
		Without: "operations are named by the function that launches them",
		Symbols: []string{"_ZN2tt8tt_metal9Inspector47mesh_workload_set_operation_name_and_parametersE*"},
	},
	{
		Name: "workload launched", Need: Degrades, Program: bpf.MemtraceProgLaunched,
		Without: "launches of workloads are not covered",
		Symbols: []string{"_ZN2tt8tt_metal11distributed19EnqueueMeshWorkloadERNS1_16MeshCommandQueueERNS1_12MeshWorkloadEb"},
	},
	{
		Name: "program launched", Need: Degrades, Program: bpf.MemtraceProgLaunched,
		Without: "launches of programs without a workload, where this release has any, are not covered",
		Symbols: []string{
			// Where there are both, the second calls the first.
			"_ZN2tt8tt_metal13slow_dispatch18LaunchProgramAsyncERNS0_7IDeviceERNS0_7ProgramEb",
			"_ZN2tt8tt_metal6detail13LaunchProgramEPNS0_7IDeviceERNS0_7ProgramEbb",
		},
	},
	{
		Name: "program enqueued", Need: Degrades, Program: bpf.MemtraceProgLaunched,
		Without: "launches of programs on a queue of one device, which releases after 0.64.0 have not, are not covered",
		Symbols: []string{"_ZN2tt8tt_metal14HWCommandQueue15enqueue_programERNS0_7ProgramEb"},
	},
	{
		Name: "trace replayed", Need: Degrades, Program: bpf.MemtraceProgTraceReplayed,
		Without: "replays of traces are not counted",
		Symbols: []string{"_ZN2tt8tt_metal11distributed18FDMeshCommandQueue13enqueue_traceERKN4ttsl10StrongTypeIjNS1_14MeshTraceIdTagEEEb"},
	},
	{
		Name: "kernel-config ring made", Need: Degrades, Program: bpf.MemtraceProgRingMade,
		Without: withoutRing,
		Symbols: []string{"_ZN2tt8tt_metal21WorkerConfigBufferMgr15init_add_bufferEjj"},
	},
	{
		Name: "place in the kernel-config ring", Need: Degrades, Program: bpf.MemtraceProgRingTaken,
		Without: withoutRing,
		Symbols: []string{
			reserveSpace + "jjjRNS1_23ProgramDispatchMetadataE",
			reserveSpace + "jjRNS1_23ProgramDispatchMetadataE",
		},
	},
}

const withoutRing = "what is in the kernel-config ring is not covered"

const (
	scratchpads  = "_ZN2tt8tt_metal6detail11ProgramImpl20allocate_scratchpadsEPKNS0_7IDeviceE"
	reserveSpace = "_ZN2tt8tt_metal16program_dispatch37reserve_space_in_kernel_config_bufferERNS0_21WorkerConfigBufferMgrERKSt6vectorIjSaIjEENS0_19ProgramBinaryStatusE"
)

// ofDataflow are symbols of every release that has dataflow buffers.
var ofDataflow = []string{placeDataflow, "_ZNK2tt8tt_metal6detail11ProgramImpl24dataflow_buffers_on_coreERKNS_7xy_pairE"}

const withoutKernels = "kernels and their sizes are not covered"

// getRiscBinary begins the name of a function that is in no name space of tt_metal.
const getRiscBinary = "_ZN2tt4llrt15get_risc_binaryE"

const withoutDataflow = "dataflow buffers, where this release has any, are not covered: programs take more L1 than is shown"

// definingSymbol is what makes a library the runtime: others only import it.
const definingSymbol = "_ZN2tt8tt_metal12GraphTracker14track_allocateEPKNS0_6BufferE"

// pointPrefixes are the names of the table that end in *, without it.
func pointPrefixes() []string {
	var list []string
	for _, p := range slices.Concat(Points, refusalPoints) {
		for _, name := range p.Symbols {
			if prefix, ok := strings.CutSuffix(name, "*"); ok {
				list = append(list, prefix)
			}
		}
	}
	return list
}
