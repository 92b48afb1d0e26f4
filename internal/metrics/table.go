package metrics

import dto "github.com/prometheus/client_model/go"

// metric is one exported metric family.
type metric struct {
	name, help string
	labels     []string
	kind       dto.MetricType
	index      int // position in the list of all metrics
}

//go:generate go test -run TestMetricsAreDocumented -update

// all lists every metric in the order of definition.
var all []metric

func define(kind dto.MetricType, name, help string, labels ...string) metric {
	m := metric{"tt_memtrace_" + name, help, labels, kind, len(all)}
	all = append(all, m)
	return m
}

// Names lists the names of all metrics.
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

// Labels of a chip. private_to is the PID of the process whose own numbering
// (TT_VISIBLE_DEVICES) the chip number belongs to; empty for the host's numbering.
var (
	ofChip    = []string{"chip", "private_to"}
	ofMemory  = append(ofChip[:2:2], "memory")
	ofProcess = []string{"pid", "comm", "container", "pod"}
	onChip    = append(ofProcess[:4:4], ofChip...)
	inMemory  = append(ofProcess[:4:4], ofMemory...)
	ofLibrary = []string{"build_id", "release"}
)

// Sizes are in bytes. An unknown value has no series.
var (
	buildInfo = gauge("build_info", "Version of tt-memtrace; always 1.", "version")

	chipInfo        = gauge("chip_info", "A chip: architecture, card type, unique ID in decimal, and the serial number, PCI address and number in /dev/tenstorrent of its device node, and in a Galaxy its tray, from 1, and position there; always 1. Empty labels are unknown; a chip without PCIe has no node.", append(ofChip[:2:2], "arch", "card", "unique_id", "serial", "pci_address", "node", "tray", "position")...)
	chipTemperature = gauge("chip_temperature_celsius", "Temperature of the chip, as the driver reads it; none without PCIe, as for all of the driver's values.", ofChip...)
	chipPower       = gauge("chip_power_watts", "Power of the chip.", ofChip...)
	chipClock       = gauge("chip_clock_hertz", "Clock of the chip's Tensix cores (AICLK).", ofChip...)
	chipProcesses   = gauge("chip_processes", "Processes that have the chip open.", ofChip...)
	requested       = gauge("memory_requested_bytes", "Requested sizes of live buffers, summed.", ofMemory...)
	reserved        = gauge("memory_reserved_bytes", "Bytes taken from the free pool by live buffers, all banks, padding included.", ofMemory...)
	peakRequested   = gauge("memory_peak_requested_bytes", "Highest sum of requested sizes since tracing began; unknown once events were lost.", ofMemory...)
	peakReserved    = gauge("memory_peak_reserved_bytes", "Highest number of bytes taken from the free pool since tracing began; unknown once events were lost.", ofMemory...)
	capacity        = gauge("memory_capacity_bytes", "Bytes that the allocator can hand out.", ofMemory...)
	buffers         = gauge("memory_buffers", "Live buffers.", ofMemory...)
	unreserved      = gauge("memory_reserved_unknown_buffers", "Live buffers whose reserved size is unknown; while there are any, memory_reserved_bytes has no value.", ofMemory...)
	largestFree     = gauge("memory_largest_free_block_bytes", "Longest free address range common to all banks, times the number of banks: the upper bound for one new buffer.", ofMemory...)
	chipExact       = gauge("chip_exact", "1 while the chip's numbers are exact.", ofChip...)
	cbPhysical      = gauge("program_physical_bytes", "L1 used by circular and dataflow buffers: the union of their address ranges on each core, summed over cores.", ofChip...)
	cbLogical       = gauge("program_logical_bytes", "Sizes of all circular and dataflow buffers on all cores, summed; overlaps count twice.", ofChip...)
	cbPeakPhysical  = gauge("program_peak_physical_bytes", "Highest program_physical_bytes since tracing began; unknown once events were lost.", ofChip...)
	cbPeakLogical   = gauge("program_peak_logical_bytes", "Highest program_logical_bytes since tracing began; unknown once events were lost.", ofChip...)
	cbBusiest       = gauge("program_busiest_core_bytes", "L1 used by circular and dataflow buffers on the core that uses most.", ofChip...)
	cbTop           = gauge("program_end_address_bytes", "Highest end address of a circular or dataflow buffer in the L1 of any core. They grow up from the start of L1, L1 buffers down from its end.", ofChip...)
	l1Lowest        = gauge("l1_begin_address_bytes", "Lowest address of an L1 buffer, from the start of L1. A program whose circular buffers end above it (program_end_address_bytes) cannot run.", ofChip...)
	cbBuffers       = gauge("program_buffers", "Circular, dataflow and global circular buffers. A global circular buffer lies inside an L1 buffer and uses no further L1.", append(ofChip[:2:2], "kind")...)
	cbPrograms      = gauge("programs", "Programs with circular or dataflow buffers, cached programs included.", ofChip...)
	kernelPrograms  = gauge("kernel_programs", "Programs with kernels.", ofChip...)
	kernelBinaries  = gauge("kernel_binaries", "Kernel binaries, one for each processor that a kernel runs on.", append(ofChip[:2:2], "type")...)
	kernelBytes     = gauge("kernel_bytes", "Loadable bytes of all kernel binaries.", ofChip...)
	kernelCopies    = gauge("kernel_dram_copies", "DRAM buffers that hold a copy of kernel binaries.", ofChip...)
	kernelCopied    = gauge("kernel_dram_bytes", "Sizes of these buffers; memory=\"dram\" includes them.", ofChip...)

	processes      = gauge("processes", "Live traced processes.")
	processesShown = gauge("processes_shown", "Live processes with series of their own; pid=\"other\" sums the rest.")

	processStart      = gauge("process_start_time_seconds", "Start time of the process since the Unix epoch; changes when another process gets the same PID.", ofProcess...)
	processLibrary    = gauge("process_library_info", "Build of the TT-Metal runtime that the process uses; always 1.", append(ofProcess[:4:4], ofLibrary...)...)
	processExact      = gauge("process_exact", "1 while the process's numbers are exact.", ofProcess...)
	processSource     = gauge("process_source_info", "How the process's numbers are known: traced (probes), sampled, reported (by a client of the allocation server) or shared_memory; always 1.", append(ofProcess[:4:4], "source")...)
	processLate       = gauge("process_late", "1 if buffers that predate tracing may be missing.", ofProcess...)
	processRequested  = gauge("process_memory_requested_bytes", "Requested sizes of the process's live buffers, summed.", inMemory...)
	processReserved   = gauge("process_memory_reserved_bytes", "Bytes that the process's live buffers take from the free pool, all banks, padding included.", inMemory...)
	processUnplaced   = gauge("process_memory_unplaced_bytes", "Requested sizes of live buffers on devices whose chips are unknown.", append(ofProcess[:4:4], "memory")...)
	processCBPhysical = gauge("process_program_physical_bytes", "L1 used by the process's circular and dataflow buffers.", onChip...)
	processCBLogical  = gauge("process_program_logical_bytes", "Sizes of the process's circular and dataflow buffers on all cores, summed; overlaps count twice.", onChip...)
	processKernels    = gauge("process_kernel_bytes", "Loadable bytes of the process's kernel binaries, summed over its chips.", ofProcess...)
	processHost       = gauge("process_host_memory_bytes", "Bytes that the process has resident in the host's memory.", ofProcess...)
	processBuffers    = gauge("process_buffers", "Live buffers; a buffer on a mesh counts once.", ofProcess...)
	processAllocs     = counter("process_allocations_total", "Allocations.", ofProcess...)
	processFrees      = counter("process_frees_total", "Frees of buffers whose allocation was seen.", ofProcess...)
	processImplicit   = counter("process_implicit_frees_total", "Buffers released by device close or by deallocating a whole allocator, and buffers replaced by a new one.", ofProcess...)
	processUnmatched  = counter("process_unmatched_frees_total", "Frees of buffers whose allocation was not seen.", ofProcess...)
	processReplaced   = counter("process_missed_frees_total", "Missed frees, inferred when a new buffer reused the address.", ofProcess...)
	processOdd        = counter("process_inconsistent_events_total", "Inconsistent events that were ignored; totals may be off.", ofProcess...)
	processLaunches   = counter("process_launches_total", "Program launches.", ofProcess...)
	processSuspect    = gauge("process_suspect", "1 while the process's numbers are suspect: events were lost or did not fit. The next comparison with the process's own allocators ends it.", ofProcess...)
	processInexact    = gauge("process_inexact_reasons", "Reasons why the process's numbers are not exact that hold now, by code.", append(ofProcess[:4:4], "code")...)
	processFound      = gauge("process_preexisting_buffers", "Buffers from before tracing began, read from the process's own allocators.", ofProcess...)
	processCompared   = counter("process_comparisons_total", "Comparisons with the process's own allocators.", ofProcess...)
	processRepaired   = counter("process_corrections_total", "Buffers and programs that a comparison added or removed.", ofProcess...)

	launches      = counter("launches_total", "Program launches of all processes.")
	exited        = counter("exited_processes_total", "Traced processes that exited.")
	events        = counter("events_total", "Events processed.")
	lost          = counter("events_lost_total", "Lost events. tt-memtrace then re-reads the numbers from the processes; until that, process_suspect is 1 and exact 0.")
	behind        = gauge("events_behind_seconds", "Age of the newest event that was read, while others wait to be read; 0 while none does.")
	allExact      = gauge("exact", "1 while the numbers of all chips and processes are exact; inexact_reasons says why not.")
	inexact       = gauge("inexact_reasons", "Reasons why numbers are not exact that hold now, by code; docs/json.md lists the codes.", "code")
	libraryUsers  = gauge("library_processes", "Live processes that use this build of the TT-Metal runtime.", ofLibrary...)
	libraryMisses = gauge("library_not_covered", "A feature of this build of the runtime that cannot be traced; always 1.", append(ofLibrary[:2:2], "feature")...)

	refused         = gauge("libraries_refused", "Runtime libraries in use that cannot be traced, or to which probes could not be attached; their processes are missing from all metrics.")
	failed          = counter("attach_failures_total", "Times that probes could not be attached to a library.")
	ringBytes       = gauge("ring_buffer_bytes", "Size of the BPF ring buffer.")
	ringUsed        = gauge("ring_buffer_used_bytes", "Bytes of events in the BPF ring buffer that wait to be read; when it is full, events are lost.")
	tableEntries    = gauge("bpf_table_entries", "Entries of a table of the BPF programs: launches (workloads and programs that were launched), libraries, interpreters. What finds no room is not traced, or not counted.", "table")
	tableCapacity   = gauge("bpf_table_capacity", "Entries that there is room for.", "table")
	probeSeen       = counter("probe_events_total", "Probe hits that should yield an event.", "kind")
	probeLost       = counter("probe_events_lost_total", "Events dropped because the BPF ring buffer was full.", "kind")
	probeUnread     = counter("probe_events_unread_total", "Events dropped because the process's memory could not be read.", "kind")
	probeHooked     = counter("probe_hooked_allocations_total", "Allocations intercepted by a graph-capture hook; nothing was reserved.")
	probeTruncated  = counter("probe_truncated_cbs_total", "Circular buffers with more core ranges than an event holds.")
	probeUnreserved = counter("probe_reserved_unknown_allocations_total", "Allocations whose reserved size was neither computed nor probed.")
	probeClipped    = counter("probe_clipped_texts_total", "Texts shortened to fit an event; the end is kept.")
	probeUncounted  = counter("probe_uncounted_launches_total", "Launches that were not counted: they could not be read, or the BPF map was full.")

	recordingPaused   = gauge("recording_paused", "1 while recording pauses because a write failed, such as on a full disk; no series without --record.")
	recordingEvents   = counter("recording_events_total", "Events written to the recording.")
	recordingLost     = counter("recording_events_lost_total", "Events missing in the recording because the disk was full, failed or too slow; the recording marks them.")
	recordingBytes    = counter("recording_bytes_total", "Bytes written to the recording.")
	recordingFiles    = counter("recording_files_total", "Files begun by the recording.")
	recordingFailures = counter("recording_failures_total", "Times that recording paused.")
	recordingWritten  = gauge("recording_last_write_timestamp_seconds", "Time of the last write to the recording, since the Unix epoch.")
)
