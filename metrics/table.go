package metrics

import dto "github.com/prometheus/client_model/go"

// metric is one row of the table of all there are.
type metric struct {
	name, help string
	labels     []string
	kind       dto.MetricType
	index      int // in all
}

//go:generate go test -run TestMetricsAreDocumented -update

// all are the metrics, in the order of their definition.
var all []metric

func define(kind dto.MetricType, name, help string, labels ...string) metric {
	m := metric{"tt_memtrace_" + name, help, labels, kind, len(all)}
	all = append(all, m)
	return m
}

// Names of all metrics.
func Names() []string {
	var list []string
	for _, m := range all {
		list = append(list, m.name)
	}
	return list
}

func gauge(name, help string, labels ...string) metric {
	return define(dto.MetricType_GAUGE, name, help, labels...)
}

func counter(name, help string, labels ...string) metric {
	return define(dto.MetricType_COUNTER, name, help, labels...)
}

// Labels that name a chip; private_to is the PID in whose own numbering the
// number is, and empty where that is the host's.
var (
	ofChip    = []string{"chip", "private_to"}
	ofMemory  = append(ofChip[:2:2], "memory")
	ofProcess = []string{"pid", "comm", "container", "pod"}
	onChip    = append(ofProcess[:4:4], ofChip...)
	inMemory  = append(ofProcess[:4:4], ofMemory...)
	ofLibrary = []string{"build_id", "release"}
)

// Sizes are in bytes. What is not known has no series.
var (
	buildInfo = gauge("build_info", "Version of tt-memtrace; always 1.", "version")

	chipInfo       = gauge("chip_info", "A chip, its architecture and the card that it is on; always 1.", append(ofChip[:2:2], "arch", "card")...)
	chipProcesses  = gauge("chip_processes", "Processes that have the chip open.", ofChip...)
	requested      = gauge("memory_requested_bytes", "Sum of the live buffers' own sizes.", ofMemory...)
	reserved       = gauge("memory_reserved_bytes", "What the memory's banks lost to the live buffers: what runs out.", ofMemory...)
	peakRequested  = gauge("memory_peak_requested_bytes", "Highest sum of the buffers' own sizes since tracing began.", ofMemory...)
	peakReserved   = gauge("memory_peak_reserved_bytes", "Most that the memory's banks lost to buffers since tracing began.", ofMemory...)
	capacity       = gauge("memory_capacity_bytes", "What the allocator has to hand out.", ofMemory...)
	buffers        = gauge("memory_buffers", "Live buffers.", ofMemory...)
	unreserved     = gauge("memory_unreserved_buffers", "Live buffers whose reserved size is not known; while there are any, memory_reserved_bytes has no value.", ofMemory...)
	largestFree    = gauge("memory_largest_free_block_bytes", "Longest run of addresses that can be free in all banks, times the banks: at most that much fits in one buffer.", ofMemory...)
	cbPhysical     = gauge("cb_physical_bytes", "L1 that circular and dataflow buffers take: on each core the union of their addresses, summed over the cores.", ofChip...)
	cbLogical      = gauge("cb_logical_bytes", "Plain sum of all circular and dataflow buffers on all cores.", ofChip...)
	cbPeakPhysical = gauge("cb_peak_physical_bytes", "Most L1 that circular and dataflow buffers took since tracing began.", ofChip...)
	cbPeakLogical  = gauge("cb_peak_logical_bytes", "Highest plain sum of circular and dataflow buffers since tracing began.", ofChip...)
	cbBusiest      = gauge("cb_busiest_core_bytes", "Circular and dataflow buffers of the core that has most of them.", ofChip...)
	cbTop          = gauge("cb_top_bytes", "Highest end of a circular or dataflow buffer in the L1 of any core, from the start of L1: where it meets the L1 buffers.", ofChip...)
	cbBuffers      = gauge("cb_buffers", "Circular buffers, dataflow buffers, and global circular buffers, which lie in L1 buffers and take nothing of their own.", append(ofChip[:2:2], "kind")...)
	cbPrograms     = gauge("cb_programs", "Programs that have circular or dataflow buffers, cached ones too.", ofChip...)
	kernelPrograms = gauge("kernel_programs", "Programs that have kernels.", ofChip...)
	kernelBinaries = gauge("kernel_binaries", "Binaries of kernels, one for each processor that a kernel runs on.", append(ofChip[:2:2], "type")...)
	kernelBytes    = gauge("kernel_bytes", "What is loaded of all binaries' files.", ofChip...)
	kernelCopies   = gauge("kernel_dram_copies", "Buffers in DRAM that hold a copy of kernels.", ofChip...)
	kernelCopied   = gauge("kernel_dram_bytes", "Sizes of those buffers: part of the memory dram.", ofChip...)

	processes      = gauge("processes", "Live processes that are traced.")
	processesShown = gauge("processes_shown", "Live processes with series of their own; the others are in pid=\"other\".")

	processStart      = gauge("process_start_time_seconds", "When the process started, since the epoch: it tells apart processes that have the same PID in turn.", ofProcess...)
	processLibrary    = gauge("process_library_info", "Build of the runtime that the process uses; always 1.", append(ofProcess[:4:4], ofLibrary...)...)
	processLate       = gauge("process_late", "1 where buffers from before tracing began may be missing.", ofProcess...)
	processRequested  = gauge("process_memory_requested_bytes", "Sum of the process's live buffers' own sizes.", inMemory...)
	processReserved   = gauge("process_memory_reserved_bytes", "What the memory's banks lost to the process's live buffers.", inMemory...)
	processUnplaced   = gauge("process_memory_unplaced_bytes", "Own sizes of live buffers on devices whose chips are not known.", append(ofProcess[:4:4], "memory")...)
	processCBPhysical = gauge("process_cb_physical_bytes", "L1 that the process's circular and dataflow buffers take.", onChip...)
	processCBLogical  = gauge("process_cb_logical_bytes", "Plain sum of the process's circular and dataflow buffers on all cores.", onChip...)
	processKernels    = gauge("process_kernel_bytes", "What is loaded of all binaries' files of the process's kernels, summed over its chips.", ofProcess...)
	processBuffers    = gauge("process_buffers", "Live buffers; one on a mesh of many chips is one.", ofProcess...)
	processAllocs     = counter("process_allocations_total", "Allocations seen.", ofProcess...)
	processFrees      = counter("process_frees_total", "Frees of buffers whose allocation was seen.", ofProcess...)
	processImplicit   = counter("process_implicit_frees_total", "Buffers that went with their allocator or were replaced.", ofProcess...)
	processUnmatched  = counter("process_unmatched_frees_total", "Frees of buffers whose allocation was not seen.", ofProcess...)
	processReplaced   = counter("process_replaced_buffers_total", "Buffers that a new one was found in place of: their free was not seen.", ofProcess...)
	processOdd        = counter("process_odd_events_total", "Events that made no sense and were not counted.", ofProcess...)
	processLaunches   = counter("process_launches_total", "Launches of programs.", ofProcess...)
	processDoubted    = gauge("process_doubted", "1 while the accounts cannot be right: events were lost, or told of buffers that the accounts did not have so. Ends with the next comparison.", ofProcess...)
	processFound      = gauge("process_found_buffers", "Buffers that were held before tracing began, read from the process's own allocators.", ofProcess...)
	processCompared   = counter("process_comparisons_total", "Comparisons of the accounts with the process's own allocators.", ofProcess...)
	processRepaired   = counter("process_repaired_total", "Buffers and programs that were missing, or too many, when the accounts were compared.", ofProcess...)

	launches      = counter("launches_total", "Launches of programs by all processes.")
	exited        = counter("exited_processes_total", "Traced processes that ended.")
	events        = counter("events_total", "Events in the accounts.")
	lost          = counter("events_lost_total", "Events that were lost: from then on the numbers are not exact.")
	exact         = gauge("exact", "1 while nothing is odd or missing, as far as can be known; where events were lost, the accounts were compared with the process's own since.")
	libraryUsers  = gauge("library_processes", "Live processes that use this build of the runtime.", ofLibrary...)
	libraryMisses = gauge("library_not_covered", "What of this build of the runtime is in no account; always 1.", append(ofLibrary[:2:2], "feature")...)

	refused         = gauge("libraries_refused", "Files with the runtime that processes use now and that cannot be traced: these processes are in no account.")
	probeSeen       = counter("probe_events_total", "Probe hits that were meant for an event.", "kind")
	probeLost       = counter("probe_events_lost_total", "Events that found the ring buffer full.", "kind")
	probeUnread     = counter("probe_events_unread_total", "Events that were dropped because the process's memory could not be read.", "kind")
	probeHooked     = counter("probe_hooked_allocations_total", "Allocations that a graph-capture hook took: nothing was reserved.")
	probeTruncated  = counter("probe_truncated_cbs_total", "Circular buffers with more core ranges than are sent.")
	probeUnreserved = counter("probe_unreserved_allocations_total", "Allocations without a reservation seen before them.")
	probeClipped    = counter("probe_clipped_texts_total", "Texts of which only the end was sent.")
	probeUncounted  = counter("probe_uncounted_launches_total", "Launches that found no room to be counted in.")
)
