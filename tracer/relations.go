package tracer

import (
	"slices"
	"time"

	"tt-memtrace/aggregator"
	"tt-memtrace/internal/inspect"
	"tt-memtrace/internal/memory"
	"tt-memtrace/internal/metal"
)

// relations says which objects of a process belong together: kernels to programs, programs to workloads. Events name
// only programs.
type relations struct {
	kernels   map[uint64]uint64 // Kernel to ProgramImpl
	cores     map[uint64]uint64 // Kernel to the number of its cores, 0 where that could not be read
	programs  map[uint64]*compiled
	workloads map[uint64]*workload
	// ended: the process has ended.
	ended bool
	// published is how many launches were emitted, by object.
	published map[uint64]uint64
	// unknown objects were launched before their own record was read.
	unknown map[uint64]bool
	mem     *memory.Process
	files   *inspect.KernelFiles
	callers []callerRange
	// capturing maps a command queue to the trace that it records; captured is when one was last completed.
	capturing map[uint64]capture
	captured  uint64
	// queues are the command queues that recorded or replayed a trace.
	queues map[uint64]tracedQueue
	// rings are the kernel-config rings last emitted. ringsRead is the round of launches in which they were read, and
	// ringsRan the process's CPU time then. ringsAgain: read them again even if the process did not run. ringsUnread:
	// the process is marked.
	rings       inspect.Rings
	ringsRead   time.Time
	ringsRan    time.Duration
	ringsAgain  bool
	ringsUnread bool
	// ringsNoticed: a notice said that they cannot be read.
	ringsNoticed bool
	// marked are the ranges of the dataflow buffer that a thread placed last, one for each allocator.
	marked map[uint32][]*aggregator.CircularBuffer
	// placing are programs whose scratchpads are to be read. calls numbers the placements that the run itself
	// emits.
	placing []placing
	// chipsUnknown are programs whose chips within a mesh are unknown, and how often they were read for that.
	chipsUnknown map[uint64]int
	calls        uint32
}

// compiled is a program with kernels.
type compiled struct {
	workload uint64
	kernels  []uint64
	// part of a mesh that it is for, nil if unknown. placed are meshes on all of which something of it was emitted
	// before that was known.
	part   *part
	placed []uint64
	// scratchpads are those last emitted, by device.
	scratchpads map[uint64][]*aggregator.CircularBuffer
	// config is its size in the kernel-config ring, in bytes; 0 if unknown so far.
	config uint64
}

// workload is a set of programs that are launched together.
type workload struct {
	programs []uint64
	name     string
	// asked: the search for its name is over.
	asked bool
}

// newRelations returns the relations of a process whose files are read in this way.
func newRelations(files *memory.Process) *relations {
	return &relations{
		kernels: map[uint64]uint64{}, cores: map[uint64]uint64{}, programs: map[uint64]*compiled{},
		workloads: map[uint64]*workload{}, published: map[uint64]uint64{}, unknown: map[uint64]bool{},
		mem: files, files: inspect.NewKernelFiles(files), capturing: map[uint64]capture{},
		queues: map[uint64]tracedQueue{}, rings: inspect.Rings{}, marked: map[uint32][]*aggregator.CircularBuffer{},
		chipsUnknown: map[uint64]int{},
	}
}

func (rel *relations) program(id uint64) *compiled {
	c := rel.programs[id]
	if c == nil {
		c = &compiled{}
		rel.programs[id] = c
	}
	return c
}

func (rel *relations) workload(id uint64) *workload {
	w := rel.workloads[id]
	if w == nil {
		w = &workload{}
		rel.workloads[id] = w
	}
	return w
}

// dropProgram forgets a destroyed program and its kernels.
func (rel *relations) dropProgram(id uint64) {
	c := rel.programs[id]
	if c == nil {
		return
	}
	for _, k := range c.kernels {
		if rel.kernels[k] == id {
			delete(rel.kernels, k)
			delete(rel.cores, k)
		}
	}
	if w := rel.workloads[c.workload]; w != nil {
		w.programs = slices.DeleteFunc(w.programs, func(p uint64) bool { return p == id })
	}
	delete(rel.programs, id)
	rel.dropLaunches(id)
}

func (rel *relations) dropWorkload(id uint64) {
	if w := rel.workloads[id]; w != nil {
		for _, p := range w.programs {
			if c := rel.programs[p]; c != nil && c.workload == id {
				c.workload = 0
			}
		}
	}
	delete(rel.workloads, id)
	rel.dropLaunches(id)
}

// dropLaunches forgets an object's launches: the BPF programs did so too, and count from 0 for the next object at this
// address.
func (rel *relations) dropLaunches(id uint64) {
	delete(rel.published, id)
	delete(rel.unknown, id)
}

// addKernel relates a kernel to its program.
func (rel *relations) addKernel(program, kernel uint64) {
	rel.kernels[kernel] = program
	delete(rel.cores, kernel)
	c := rel.program(program)
	c.kernels = append(c.kernels, kernel)
}

// callerRange is where a process maps a file with launching functions.
type callerRange struct {
	start, end, offset uint64
	callers            *metal.Launchers
}

// capture is the number of a trace being captured, and when that began.
type capture struct {
	number uint32
	begun  uint64
}

// tracedQueue is a command queue's device, and when it last recorded or replayed a trace (CLOCK_MONOTONIC, ns).
type tracedQueue struct{ device, traced uint64 }

// placing is a program whose scratchpads are being placed on a device. No probe is hit when they get their places.
type placing struct {
	attempt
	program, device uint64
}

// part is the range of mesh coordinates that a workload's program is for.
type part struct {
	inspect.MeshRange
	// devices are the devices in the range, by mesh.
	devices map[uint64][]uint64
}

// marks is what the runtime's own tracking of allocations under traces says about a process's buffers: which of them
// a replay may overwrite. The runtime reports it only while it tracks (TT_METAL_TRACE_ALLOC_TRACKING).
type marks struct {
	// scopes maps a thread to its scopes, innermost last: the allocators whose buffers are marked.
	scopes map[uint32][][]uint64
	// marking is the buffer that a thread is allocating in such a scope.
	marking map[uint32]uint64
	// ids maps tracked buffers to their unique ids, and buffers the ids to the buffers. If ids has no entry for an
	// id's buffer, that buffer is gone.
	ids, buffers map[uint64]uint64
	// incomplete is set once something was not marked.
	incomplete bool
}

// doubt forgets all scopes.
func (m *marks) doubt() {
	if m != nil {
		clear(m.scopes)
		clear(m.marking)
	}
}

// track notes a buffer's unique id. It reports whether the other buffers' are still known.
func (m *marks) track(buffer, id uint64) bool {
	m.forget(buffer)
	if id == 0 {
		return true
	}
	full := len(m.buffers) >= maxTracked
	if full {
		clear(m.buffers)
		clear(m.ids)
	}
	m.ids[buffer], m.buffers[id] = id, buffer
	return !full
}

// forget drops a freed buffer.
func (m *marks) forget(buffer uint64) {
	if m == nil {
		return
	}
	if id, ok := m.ids[buffer]; ok {
		delete(m.ids, buffer)
		delete(m.buffers, id)
	}
}

// These bound the memory that a process can make the tracer use: maxMarkingThreads, maxScopes per thread, and
// maxTracked buffers. What exceeds them, or the allocators of a record, is not marked, and the process gets a reason.
const (
	maxMarkingThreads = 4096
	maxScopes         = 64
	maxTracked        = 1 << 17
)
