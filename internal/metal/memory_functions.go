package metal

import (
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// A build can have functions that hand out memory of a chip past the probed ones. A function whose name says that it
// does, and that nobody has looked at, makes the numbers of that build's processes doubtful.

// handsOut matches the last name of a function that may hand out a chip's memory.
var handsOut = regexp.MustCompile(`^(allocate($|_)|reserve_.*l1|reserve_space|mark_allocated$|mirror_.*allocation$)`)

// memoryFunctions are the known functions of that kind in 0.59.0rc58 to 0.81.1, by class and function, or by class (or
// name space) alone, each with what becomes of the memory.
var memoryFunctions = map[string]string{
	"Allocator":                            allocatorsOwn,
	"AllocatorImpl":                        allocatorsOwn,
	"BankManager":                          allocatorsOwn,
	"FreeList":                             allocatorsOwn,
	"FreeListOpt":                          allocatorsOwn,
	"Buffer":                               allocatorsOwn,
	"BufferImpl":                           allocatorsOwn,
	"MeshTensor":                           makesBuffers,
	"tensor_impl":                          makesBuffers,
	"tt_metal::allocate_tensor_on_device":  makesBuffers,
	"tt_metal::allocate_tensor_on_mesh":    makesBuffers,
	"CrossNodeDFB::allocate_config_buffer": makesBuffers,
	"CommandListBuilderImpl":               makesBuffers,
	"Program::allocate_kernel_bin_buf_on_device":              makesBuffers,
	"ProgramImpl::allocate_kernel_bin_buf_on_device":          makesBuffers,
	"tt_metal::allocate_mesh_tensor_on_device_with_topology":  makesBuffers,
	"Program::allocate_circular_buffers":                      "L1 of programs: probed, or read by evaluating it",
	"ProgramImpl::allocate_circular_buffers":                  "L1 of programs: probed, or read by evaluating it",
	"ProgramImpl::allocate_dataflow_buffers":                  "L1 of programs: probed, or read by evaluating it",
	"ProgramImpl::allocate_scratchpads":                       "L1 of programs: probed, and read from its kernels",
	"ProgramImpl::reserve_program_local_l1":                   "L1 of programs: the dataflow buffers that follow",
	"PersistentL1Arena":                                       "L1 outside of the allocator: the process is marked",
	"SimpleTraceAllocator":                                    inTheRing,
	"RegionAllocator":                                         inTheRing,
	"HWCommandQueue::allocate_trace_programs":                 inTheRing,
	"program_dispatch::reserve_space_in_kernel_config_buffer": inTheRing,
	"DriscL1Arena":                      otherCores,
	"ServiceCoreManager":                otherCores,
	"ServiceCoreManagerImpl":            otherCores,
	"DramCorePrefetcherManager":         otherCores,
	"TensorPrefetcherManager":           otherCores,
	"HostTensor":                        onTheHost,
	"SystemMemoryManager":               onTheHost,
	"tt_metal::allocate_tensor_on_host": onTheHost,
	"ClientTypeAllocator":               numbersAlone,
	"RemapperIndexAllocator":            numbersAlone,
	"TileCounterAllocator":              numbersAlone,
	"TxnIdAllocator":                    numbersAlone,
}

// What becomes of the memory of a known function.
const (
	allocatorsOwn = "buffers, which are probed"
	makesBuffers  = "makes buffers by the allocator"
	inTheRing     = "places in the kernel-config ring, which is read"
	otherCores    = "L1 of DRAM, Ethernet or service cores, in no bank: not counted"
	onTheHost     = "memory of the host"
	numbersAlone  = "numbers of a resource, no memory"
)

// UnknownMemory returns, sorted, the library's functions that may hand out memory and are not known.
func (l *Library) UnknownMemory() []string { return l.unknownMemory() }

func (l *Library) findUnknownMemory() (list []string) {
	for name := range l.symbols {
		if function := unknownMemoryFunction(name); function != "" && !slices.Contains(list, function) {
			list = append(list, function)
		}
	}
	slices.Sort(list)
	return list
}

// unknownMemoryFunction returns the name of a function, by its mangled one, if it may hand out memory and is not known;
// otherwise it returns an empty string.
func unknownMemoryFunction(mangled string) string {
	if !strings.Contains(mangled, "alloc") && !strings.Contains(mangled, "reserve_") {
		return ""
	}
	names := nestedNames(mangled)
	if len(names) < 3 || names[0] != "tt" || names[1] != "tt_metal" {
		return ""
	}
	in, last := names[len(names)-2], names[len(names)-1]
	if !handsOut.MatchString(last) {
		return ""
	}
	function := in + "::" + last
	if memoryFunctions[in] != "" || memoryFunctions[function] != "" {
		return ""
	}
	return function
}

// nestedNames returns the names of a mangled nested name, up to its first template argument or its parameters.
func nestedNames(mangled string) (names []string) {
	rest, ok := strings.CutPrefix(mangled, "_ZN")
	if !ok {
		return nil
	}
	rest = strings.TrimPrefix(rest, "K")
	for {
		digits := len(rest) - len(strings.TrimLeft(rest, "0123456789"))
		n, err := strconv.Atoi(rest[:digits])
		if err != nil || n > len(rest)-digits {
			return names
		}
		names = append(names, rest[digits:digits+n])
		rest = rest[digits+n:]
	}
}
