package tracer

import "tt-memtrace/bpf"

// KindNames are the names of the records' kinds, by number; that of 0 is empty.
var KindNames = [bpf.MemtraceTtKindTT_KINDS]string{
	bpf.MemtraceTtKindTT_ALLOC:          "alloc",
	bpf.MemtraceTtKindTT_FREE:           "free",
	bpf.MemtraceTtKindTT_ALLOCATOR_GONE: "allocator_gone",
	bpf.MemtraceTtKindTT_DEVICE_OPEN:    "device_open",
	bpf.MemtraceTtKindTT_DEVICE_CLOSE:   "device_close",
	bpf.MemtraceTtKindTT_CB:             "cb",
	bpf.MemtraceTtKindTT_PROGRAM_GONE:   "program_gone",
	bpf.MemtraceTtKindTT_EXEC:           "exec",
	bpf.MemtraceTtKindTT_EXIT:           "exit",
	bpf.MemtraceTtKindTT_KERNEL_ADDED:   "kernel_added",
	bpf.MemtraceTtKindTT_KERNEL_FILE:    "kernel_file",
	bpf.MemtraceTtKindTT_KERNEL_COPY:    "kernel_copy",
	bpf.MemtraceTtKindTT_PROGRAM_ADDED:  "program_added",
	bpf.MemtraceTtKindTT_WORKLOAD_NAMED: "workload_named",
	bpf.MemtraceTtKindTT_WORKLOAD_GONE:  "workload_gone",
	bpf.MemtraceTtKindTT_SCRATCHPADS:    "scratchpads",
	bpf.MemtraceTtKindTT_REFUSED:        "refused",
	bpf.MemtraceTtKindTT_STACK:          "stack",
	bpf.MemtraceTtKindTT_HOOKED:         "hooked",
}

// Refused is how many files that hold the runtime are mapped now and could not be
// traced: processes that use them are in no account.
func (t *Tracer) Refused() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := 0
	for _, r := range t.refused {
		if r.why != nil {
			n++
		}
	}
	return n
}
