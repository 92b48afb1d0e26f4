package metal

import (
	"errors"
	"slices"
	"strings"

	"tt-memtrace/internal/x86eval"
)

// Need says what a library without the point means for the accounts.
type Need string

const (
	// Required: without it the numbers would be wrong, so nothing is attached.
	Required Need = "required"
	// Degrades: without it the accounts are right but less complete.
	Degrades Need = "degrades"
)

// Phase is the order of attaching a library's points. Points where things end come before those where they begin, so
// that no end is missed: a surplus end is counted as such, but a missing one would leave its object in the accounts.
type Phase uint8

const (
	// Ends: buffers, allocators, devices, programs and workloads end.
	Ends Phase = iota
	// Notes: what the thread's next call is about, and opening devices.
	Notes
	// Places: buffers, circular buffers and others get memory.
	Places
	// Uses: programs and kernels are used: launches, copies, files.
	Uses
	// Makes: programs, kernels and workloads are created.
	Makes
	// Fails: allocations fail.
	Fails
)

// Way is a set of points that together see each allocation and free of a buffer. A library is traced in one way: the
// first for which it has all required points.
type Way uint8

const (
	// ByGraphTracker: the runtime reports buffers to its graph tracker.
	ByGraphTracker Way = 1 << iota
	// ByObserver: it reports them to observers of the whole process.
	ByObserver
	// ByAllocator: an allocator inserts each buffer into its set, and frees it. This way needs no function that
	// reports buffers.
	ByAllocator
)

// Ways in order of preference.
var Ways = []Way{ByGraphTracker, ByObserver, ByAllocator}

func (w Way) String() string {
	switch w {
	case ByGraphTracker:
		return "the graph tracker"
	case ByObserver:
		return "the observers"
	case ByAllocator:
		return "the allocator"
	}
	return "no way"
}

// Point is one probed place in the runtime: a row of the table that attaching, doctor and the documentation use.
type Point struct {
	// Name says what happens there.
	Name string
	Need Need
	// Without says what is lost if the library lacks it.
	Without string
	// Covers names what the accounts lack without it, or is empty.
	Covers string
	// BPFProgram is the name of the BPF program, Phase when it is attached.
	BPFProgram string
	Phase      Phase
	// Symbols are its mangled names, newest first. The first one that the library defines is probed; a name that ends
	// in * is a prefix.
	Symbols []string
	// All: every one of Symbols that is defined is a point of its own.
	All bool
	// Where are symbols of the feature that the point is about. A library with none of them has no such feature, and
	// lacks nothing.
	Where []string
	// Way is the way, or several with |, to which the point belongs; 0 is all.
	Way Way
	// Check, if set, returns why a probe on this symbol, one of Symbols, would send nothing useful in a library, or
	// nil.
	Check func(l *Library, symbol string) error
	// throws, of a point where the runtime throws, reports whether it throws by the instance for these arguments there.
	throws func([]ArgumentType) bool
	// Computed, if set, returns nil if what the point sends can be computed in a library. Then the point is attached
	// only once that fails for a buffer.
	Computed func(*Library) error
}

// There is no point on ~Buffer, which a mesh allocation runs through once for each chip. A free that bypasses
// track_deallocate happens only after the buffer's device closed, and then its allocator is gone too.
var Points = []Point{
	{
		Name: "bank space taken", Need: Degrades, BPFProgram: "reserve_in_bank", Phase: Notes, Way: ByGraphTracker | ByObserver,
		Covers: "reserved sizes", Without: "reserved sizes are unknown; requested sizes are not affected",
		Symbols:  allocateInBlock,
		Computed: func(l *Library) error { _, err := l.ReservedSizes(); return err },
	},
	{
		Name: "buffer allocated", Need: Required, BPFProgram: "buffer_allocated", Phase: Places, Way: ByGraphTracker,
		Without: "no accounts at all",
		Symbols: TrackAllocate,
		Check:   (*Library).reportsAllocations,
	},
	{
		Name: "buffer freed", Need: Required, BPFProgram: "buffer_freed", Phase: Ends, Way: ByGraphTracker,
		Without: "no accounts at all",
		Symbols: trackDeallocate,
		Check:   (*Library).reportsFrees,
	},
	{
		Name: "allocation observed", Need: Required, BPFProgram: "buffer_allocated", Phase: Places, Way: ByObserver,
		Without: "no accounts at all",
		Symbols: notifyAllocated,
		Check:   (*Library).reportsAllocations,
	},
	{
		Name: "free observed", Need: Required, BPFProgram: "buffer_freed_first", Phase: Ends, Way: ByObserver,
		Without: "no accounts at all",
		Symbols: notifyDeallocated,
		Check:   (*Library).reportsFrees,
	},
	{
		Name: "block of a bank taken", Need: Required, BPFProgram: "block_taken", Phase: Notes, Way: ByAllocator,
		Without: "no accounts at all",
		Symbols: allocateInBlock,
		Check:   func(l *Library, _ string) error { _, err := l.Blocks(); return err },
	},
	{
		Name: "buffer kept by its allocator", Need: Required, BPFProgram: "buffer_allocated", Phase: Places, Way: ByAllocator,
		Without: "no accounts at all",
		Symbols: keepBuffer,
	},
	{
		Name: "buffer freed by its allocator", Need: Required, BPFProgram: "buffer_freed", Phase: Ends, Way: ByAllocator,
		Without: "no accounts at all",
		Symbols: deallocateBuffer,
	},
	{
		Name: "all buffers freed", Need: Required, BPFProgram: "allocator_gone", Phase: Ends,
		Without: "memory freed by a device's allocator as a whole would stay in the accounts",
		Symbols: deallocateBuffers,
	},
	{
		Name: "allocator destroyed", Need: Required, BPFProgram: "allocator_gone", Phase: Ends,
		Without: "memory of a closed device would stay in the accounts",
		Symbols: destroyAllocator,
	},
	{
		Name: "device opened", Need: Degrades, BPFProgram: "device_opened", Phase: Notes, All: true,
		Without: "a device is shown from its first buffer on, not from its opening",
		Symbols: initializeDevice,
	},
	{
		Name: "device closed", Need: Degrades, BPFProgram: "device_closed", Phase: Ends, All: true,
		Without: "a closed device is shown until its process ends",
		Symbols: closeDevice,
	},
	{
		Name: "memory resized", Need: Degrades, BPFProgram: "allocator_resized", Phase: Notes, All: true,
		Without: "the capacity of L1 stays as it was when a sub-device manager with its own L1 is loaded",
		Where:   subDeviceManagers,
		Symbols: resizeAllocator,
	},
	{
		Name: "persistent L1 changed", Need: Degrades, BPFProgram: "persistent_changed", Phase: Notes, All: true,
		Without: "a process that has L1 outside of its allocators' buffers is not marked until it is compared",
		Where:   []string{PersistentRanges},
		Symbols: changePersistent,
	},
	{
		Name: "program laid out", Need: Degrades, BPFProgram: "program_laid_out", Phase: Notes,
		Covers: "circular buffers", Without: "circular buffers are not covered",
		Symbols: []string{PlaceCircular},
	},
	{
		Name: "circular buffer placed", Need: Degrades, BPFProgram: "cb_placed", Phase: Places,
		Covers: "circular buffers", Without: "circular buffers are not covered",
		Symbols: trackAllocateCB,
	},
	{
		// Not in 0.67 to 0.71.1, where it begins with a comparison; there the
		// circular buffers of the same program were laid out just before.
		Name: "dataflow buffers laid out", Need: Degrades, BPFProgram: "program_laid_out", Phase: Notes,
		Without: "the program of a dataflow buffer is known from its circular buffers only",
		Where:   dataflowSymbols,
		Symbols: []string{PlaceDataflow},
	},
	{
		Name: "dataflow buffer's cores", Need: Degrades, BPFProgram: "l1_reserved", Phase: Notes,
		Without: "the cores of a dataflow buffer are taken from the allocators that it is marked in, and one on several core ranges counts as several",
		Where:   dataflowSymbols,
		Symbols: []string{ReserveLocal},
	},
	{
		Name: "dataflow buffer placed", Need: Degrades, BPFProgram: "dfb_placed", Phase: Places,
		Covers: "dataflow buffers", Without: withoutDataflow,
		Where:   dataflowSymbols,
		Symbols: []string{MarkAddress},
		Check:   (*Library).knowsCores,
	},
	{
		Name: "scratchpads laid out", Need: Degrades, BPFProgram: "scratchpads_laid_out", Phase: Places,
		Covers: "scratchpads", Without: "scratchpads are not covered: programs take more L1 than is shown",
		Where:   append([]string{scratchpads}, ScratchpadHandles...),
		Symbols: []string{scratchpads},
		Check:   (*Library).knowsScratchpads,
	},
	{
		Name: "program destroyed", Need: Degrades, BPFProgram: "program_gone", Phase: Ends,
		Covers: "circular buffers", Without: "circular buffers are not covered",
		Symbols: destroyProgram,
	},
	{
		Name: "kernel added", Need: Degrades, BPFProgram: "kernel_added", Phase: Makes,
		Without: withoutKernels,
		Symbols: addKernel,
	},
	{
		Name: "kernel read", Need: Degrades, BPFProgram: "kernel_read", Phase: Makes, All: true,
		Without: withoutKernels,
		Symbols: readBinaries,
	},
	{
		Name: "kernel's file read", Need: Degrades, BPFProgram: "binary_read", Phase: Uses,
		Without: withoutKernels,
		Symbols: []string{getRiscBinary + "*"},
	},
	{
		Name: "kernels copied to DRAM", Need: Degrades, BPFProgram: "kernels_copied", Phase: Uses,
		Without: "the copy of kernels in DRAM is counted, but not distinguished from other buffers",
		Symbols: setKernelsBinBuffer,
	},
	{
		Name: "program added to a workload", Need: Degrades, BPFProgram: "program_added", Phase: Makes,
		Without: "launches of workloads and the names of operations are not covered",
		Symbols: addProgram,
	},
	{
		Name: "workload destroyed", Need: Degrades, BPFProgram: "workload_gone", Phase: Ends,
		Without: "launches of workloads are not covered",
		Symbols: destroyWorkload,
	},
	{
		Name: "workload named", Need: Degrades, BPFProgram: "workload_named", Phase: Makes,
		Without: "operations are named by the function that launches them",
		Symbols: nameWorkload,
	},
	{
		Name: "workload launched", Need: Degrades, BPFProgram: "launched", Phase: Uses,
		Without: "launches of workloads are not covered",
		Symbols: enqueueMeshWorkload,
	},
	{
		Name: "program launched", Need: Degrades, BPFProgram: "launched", Phase: Uses,
		Without: "launches of programs without a workload, where this release has any, are not covered",
		Symbols: launchProgram,
	},
	{
		Name: "program enqueued", Need: Degrades, BPFProgram: "launched", Phase: Uses,
		Without: "launches of programs on a queue of one device, which releases after 0.64.0 have not, are not covered",
		Symbols: enqueueProgram,
	},
	{
		Name: "trace replayed", Need: Degrades, BPFProgram: "trace_replayed", Phase: Uses,
		Without: "replays of traces are not counted",
		Symbols: enqueueTrace,
	},
	{
		Name: "trace capture begins", Need: Degrades, BPFProgram: "trace_begun", Phase: Makes,
		Without: withoutTraces,
		Symbols: recordBegin,
	},
	{
		Name: "trace captured", Need: Degrades, BPFProgram: "trace_captured", Phase: Makes,
		Without: withoutTraces,
		Symbols: recordEnd,
	},
	{
		Name: "trace released", Need: Degrades, BPFProgram: "trace_released", Phase: Ends,
		Without: "a released trace counts as one that can still be replayed",
		Symbols: releaseMeshTrace,
	},
	{
		Name: "allocation tracked", Need: Degrades, BPFProgram: "allocation_tracked", Phase: Notes,
		Without: withoutMarks,
		Where:   popScope,
		Symbols: recordIfUnsafe,
	},
	{
		Name: "corruptible scope begins", Need: Degrades, BPFProgram: "scope_begins", Phase: Notes,
		Without: withoutMarks,
		Where:   popScope,
		Symbols: pushScope,
	},
	{
		Name: "corruptible scope ends", Need: Degrades, BPFProgram: "scope_ends", Phase: Ends,
		Without: withoutMarks,
		Where:   pushScope,
		Symbols: popScope,
	},
	{
		Name: "buffer acknowledged as corruptible", Need: Degrades, BPFProgram: "buffer_acknowledged", Phase: Uses,
		Without: withoutMarks,
		Where:   pushScope,
		Symbols: removeTracked,
		Check:   func(l *Library, _ string) error { _, err := l.UniqueID(); return err },
	},
}

const withoutMarks = "buffers that a program marks as corruptible are called unsafe all the same"

const withoutTraces = "which buffers a replay may overwrite is not known"

const withoutKernels = "kernels and their sizes are not covered"

const withoutDataflow = "dataflow buffers, where this release has any, are not covered: programs take more L1 than is shown"

// pointPrefixes returns the names of the table that end in *, without the *, and how those begin that failures are
// looked up by.
func pointPrefixes() []string {
	list := append([]string{throwImplementation}, roomless...)
	for _, p := range Points {
		for _, name := range p.Symbols {
			if prefix, ok := strings.CutSuffix(name, "*"); ok {
				list = append(list, prefix)
			}
		}
	}
	return list
}

// knowsScratchpads returns why scratchpads cannot be read in a library, or nil.
func (l *Library) knowsScratchpads(string) error {
	if !slices.ContainsFunc(ScratchpadHandles, l.Defines) || !l.Defines(CommonArguments) || !l.Defines(KernelRanges) {
		return errors.New("its kernels have no functions that return their scratchpads, arguments and cores")
	}
	return nil
}

// knowsCores returns why the cores of dataflow buffers would be unknown, or nil. They are known either before a
// buffer is placed, or because each allocator that the buffer is marked in begins with its CoreRange. The latter
// holds if what mark_address reads, the list of taken places, follows the CoreRange.
func (l *Library) knowsCores(string) error {
	if l.Defines(ReserveLocal) {
		return nil
	}
	image, err := l.Image()
	if err != nil {
		return err
	}
	const steps = 1000
	const rangeSize = 32 // four words: two corners
	probe := x86eval.NewSymbolicMemory(image)
	m := x86eval.New(probe, x86eval.WithSlots(image.SlotFunc(x86eval.Libc)), x86eval.WithStepLimit(steps))
	// It need not run to its end.
	_, _ = m.Call(l.symbols[MarkAddress].Value, probe.Root(), 0x1000, 0x100, 0x1000)
	for _, at := range []int64{rangeSize, rangeSize + 8} {
		if !slices.ContainsFunc(probe.Loads(), func(load x86eval.Load) bool {
			return len(load.Path.Offsets) == 0 && load.Path.Tail == at && load.Size == 8
		}) {
			return errors.New("its allocators have no list of places behind a range of cores")
		}
	}
	return nil
}
