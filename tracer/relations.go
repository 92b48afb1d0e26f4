package tracer

import (
	"cmp"
	"slices"
	"time"
	"unsafe"

	"tt-memtrace/aggregator"
	"tt-memtrace/bpf"
	"tt-memtrace/internal/inspect"
	"tt-memtrace/internal/memory"
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
	// placing are programs whose scratchpads are to be read. calls numbers the placements that the reader itself
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

// relations returns a process's relations, new ones if it has none.
func (r *run) relations(pid uint32) *relations {
	if rel := r.processes.get(pid).relations; rel != nil {
		return rel
	}
	return r.processes.relate(pid, memory.FilesOf(pid).Hurried())
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

func (r *run) recordsOfPrograms() []recordKind {
	parts := []recordKind{
		{kind: bpf.MemtraceTtKindTT_CB, least: unsafe.Sizeof(bpf.MemtraceTtCb{}), take: r.circularBuffer},
		takes(bpf.MemtraceTtKindTT_KERNEL_ADDED, r.kernelAdds),
		takes(bpf.MemtraceTtKindTT_KERNEL_FILE, r.kernelReads),
		takes(bpf.MemtraceTtKindTT_PROGRAM_ADDED, r.programAdded),
		takes(bpf.MemtraceTtKindTT_SCRATCHPADS, r.placesScratchpads),
		takes(bpf.MemtraceTtKindTT_PROGRAM_GONE, r.programGone),
	}
	for i := range parts {
		parts[i].parts = true
	}
	gone := takes(bpf.MemtraceTtKindTT_WORKLOAD_GONE, r.workloadGone)
	gone.missed = r.missedWorkloads
	named := takes(bpf.MemtraceTtKindTT_WORKLOAD_NAMED, r.workloadNamed)
	named.unread = func(record) {} // the caller of the launch gives the name instead
	return append(parts, gone, named, takes(bpf.MemtraceTtKindTT_KERNEL_COPY, r.kernelsCopied))
}

func (r *run) kernelAdds(rec record, e *bpf.MemtraceTtPair) {
	if rec.p != nil {
		rec.p.touch(e.Owner)
	}
	r.kernelAdded(rec.origin, r.relations(rec.pid), e.Owner, e.Member)
}

// programAdded handles that a program is added to a workload.
func (r *run) programAdded(rec record, e *bpf.MemtraceTtProgramAdded) {
	rel := r.relations(rec.pid)
	w := rel.workload(e.Workload)
	w.programs = append(w.programs, e.Program)
	c := rel.program(e.Program)
	c.workload = e.Workload
	c.part = &part{MeshRange: inspect.MeshRange{At: e.Range, Bytes: slices.Clone(e.Bytes[:min(e.Length, uint64(len(e.Bytes)))])}}
	if p := rec.p; p != nil {
		p.touch(e.Program)
		for _, mesh := range c.placed {
			if list, err := r.cover(p, c.part, mesh); err != nil || len(list) != len(p.devices[mesh]) {
				r.chipsUnknown(p, rec.time, e.Program, cmp.Or(err, errPlacedBefore))
			}
		}
	}
	if w.name != "" {
		r.named(rec.pid, rec.time, []uint64{e.Program}, w.name)
	}
	if !w.asked && len(r.unnamed) < maxUnnamed {
		r.unnamed = append(r.unnamed, unnamed{rec.pid, e.Workload, time.Now()})
	}
}

// placesScratchpads handles the beginning of placing a program's scratchpads on a device.
func (r *run) placesScratchpads(rec record, e *bpf.MemtraceTtPair) {
	rel := r.relations(rec.pid)
	if c := rel.programs[e.Owner]; c != nil {
		delete(c.scratchpads, e.Member) // emit a new placement even if it is the same
	}
	rel.placing = append(rel.placing, placing{e.Owner, e.Member, rec.time, firstAsked})
}

func (r *run) kernelReads(rec record, e *bpf.MemtraceTtText) {
	r.kernelFile(rec.origin, e.Object, e.Device, textOf(e), e.Left == 0)
}

func (r *run) workloadNamed(rec record, e *bpf.MemtraceTtText) {
	w := r.relations(rec.pid).workload(e.Object)
	w.name, w.asked = textOf(e), true
	r.named(rec.pid, rec.time, w.programs, w.name)
}

func (r *run) kernelsCopied(rec record, e *bpf.MemtraceTtCopy) {
	r.emit(aggregator.Event{Kind: aggregator.KernelsCopied, PID: rec.pid, TID: rec.tid, Time: rec.time,
		Program: e.Program, Buffer: e.Buffer, Address: e.Address})
}

func (r *run) programGone(rec record, e *bpf.MemtraceTtGone) {
	program := e.Object.Object
	if rec.p != nil {
		if e.Launches.Count > 0 {
			r.lastLaunches(rec.pid, program, &e.Launches)
		}
		rec.p.make(program)
	}
	r.emit(aggregator.Event{Kind: aggregator.ProgramGone, PID: rec.pid, TID: rec.tid, Time: rec.time, Program: program})
	r.dropProgram(rec.origin, program)
}

func (r *run) workloadGone(rec record, e *bpf.MemtraceTtGone) {
	workload := e.Object.Object
	if rec.p != nil && e.Launches.Count > 0 {
		r.lastLaunches(rec.pid, workload, &e.Launches)
	}
	r.relations(rec.pid).dropWorkload(workload)
}

// dropProgram forgets a program that ended.
func (r *run) dropProgram(from origin, program uint64) {
	if p, known := r.processes.traced(from.pid); known {
		p.noProgram(program)
	}
	r.relations(from.pid).dropProgram(program)
	r.chipsKnown(from.pid, from.time, program)
}

func (r *run) kernelAdded(from origin, rel *relations, program, kernel uint64) {
	rel.addKernel(program, kernel)
	r.emit(aggregator.Event{Kind: aggregator.KernelAdded, PID: from.pid, TID: from.tid, Time: from.time, Program: program})
}

// addKernel relates a kernel to its program.
func (rel *relations) addKernel(program, kernel uint64) {
	rel.kernels[kernel] = program
	delete(rel.cores, kernel)
	c := rel.program(program)
	c.kernels = append(c.kernels, kernel)
}

func textOf(e *bpf.MemtraceTtText) string {
	return string(e.Text[:min(int(e.Length), len(e.Text))])
}

func (r *run) named(pid uint32, at uint64, programs []uint64, name string) {
	if name == "" {
		return
	}
	for _, p := range programs {
		r.emit(aggregator.Event{Kind: aggregator.ProgramNamed, PID: pid, Time: at, Program: p, Operation: name})
	}
}

// kernelFile handles that a kernel's binary is read from a file for a device. If the name is not whole, it is the
// name's end.
func (r *run) kernelFile(from origin, kernel, device uint64, file string, whole bool) {
	rel := r.relations(from.pid)
	k, ok := rel.files.Kernel(kernel, file, whole)
	if !ok {
		return // firmware, which belongs to no program
	}
	program := rel.kernels[kernel]
	load := func(device uint64) {
		r.emit(aggregator.Event{Kind: aggregator.KernelLoaded, PID: from.pid, TID: from.tid, Time: from.time,
			Program: program, Device: device, Kernel: &k})
	}
	p, known := r.processes.traced(from.pid)
	if !known {
		load(device)
		return
	}
	// The kernel's cores are read a few milliseconds after its binary. If its program is destroyed in between, a record
	// of that is already in the BPF ring buffer and removes what is counted here.
	cores, asked := rel.cores[kernel]
	if before := p.Late(); !asked {
		if cores = p.Cores(kernel); p.Late() == before {
			rel.cores[kernel] = cores
		}
	}
	k.Cores = cores
	if _, ok := p.devices[device]; !ok {
		if _, _, _, err := p.Device(device); err == nil {
			r.device(p, from, device)
		}
	}
	r.onChips(p, from, device, program, func() {
		for _, d := range r.spread(p, from, program, device, 0) {
			load(d)
		}
	})
}
