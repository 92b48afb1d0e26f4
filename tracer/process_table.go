package tracer

import (
	"fmt"
	"iter"

	"tt-memtrace/aggregator"
	"tt-memtrace/internal/inspect"
	"tt-memtrace/internal/memory"
	"tt-memtrace/internal/proc"
)

// stage is how far its run knows a process.
type stage uint8

const (
	// unknown: something of it was seen, such as an exec or a verdict, but no record that is attributed to it.
	unknown stage = iota
	// sought: it sent records, but was not found to map a traced library. It is not searched for again until it ends or
	// is announced.
	sought
	// joining: it is traced, but some probes may have been missing at its first events. It is examined again.
	joining
	// joined: it is traced, and all probes are attached.
	joined
)

func (s stage) String() string { return [...]string{"unknown", "sought", "joining", "joined"}[s] }

// state is where a traced process is in its life.
type state uint8

const (
	// stateUntracked: it is not traced (yet).
	stateUntracked state = iota
	// stateAttached: probes are attached, perhaps not yet all.
	stateAttached
	// stateScanning: what it held before is being read for the first time.
	stateScanning
	// stateSuspect: its accounts are in doubt; a scan follows soon.
	stateSuspect
	// stateSteady: its events are applied, and nothing is in doubt.
	stateSteady
)

func (s state) String() string {
	return [...]string{"untracked", "attached", "scanning", "suspect", "steady"}[s]
}

// process is all that a run keeps of a PID, from the first sign of it until it ends.
type process struct {
	stage stage
	// traced is what is known of it while it is joining or joined.
	traced *traced
	// untraced: it is marked because it uses a library that is not traced.
	untraced bool
	// execed is when it last called exec, CLOCK_MONOTONIC ns; 0 if it was not seen to. An announcement from before that
	// is of the old program.
	execed uint64
	// unsized: buffers were seen before the process was known, so that their reserved sizes were not computed.
	unsized bool
	// relations of its programs, kernels and workloads, and marks of what the runtime says about buffers under traces;
	// nil while there are none. Both also exist of a process that is not traced yet.
	relations *relations
	marks     *marks
}

// seek notes that an unknown process sent records and is searched for.
func (p *process) seek() {
	p.must(p.stage == unknown, "sought")
	p.stage = sought
}

// join begins to trace the process. whole: all probes were attached in time.
func (p *process) join(t *traced, whole bool) {
	p.must(p.stage < joining, "joined")
	p.traced, p.stage = t, joining
	if whole {
		p.stage = joined
	}
	p.unsized = false
}

// examined notes that all probes of a traced process are attached now.
func (p *process) examined() {
	p.must(p.stage >= joining, "examined")
	p.stage = joined
}

// lose forgets how the process is traced, because it cannot be read whether it still maps the same library. Its
// accounts stay.
func (p *process) lose() {
	p.must(p.stage >= joining, "lost")
	p.traced, p.stage = nil, unknown
}

// end forgets the program that ran in the process.
func (p *process) end() {
	*p = process{untraced: p.untraced, execed: p.execed}
}

// onIllegal receives each illegal transition, which is made all the same. Tests panic here: the run's logic is
// broken then. A tracer that runs for months does not stop for it.
var onIllegal = func(string) {}

// must reports a transition that is illegal.
func (p *process) must(legal bool, becomes string) {
	if !legal {
		onIllegal(fmt.Sprintf("a process that is %v is %s", p.stage, becomes))
	}
}

// state returns where the process is in its life.
func (p *process) state() state {
	switch t := p.traced; {
	case t == nil:
		return stateUntracked
	case p.stage == joining:
		return stateAttached
	case t.reconciliation.now != nil && t.reconciliation.now.first:
		return stateScanning
	case !t.reconciliation.suspect.IsZero():
		return stateSuspect
	}
	return stateSteady
}

// empty reports whether nothing of the process needs to be kept.
func (p *process) empty() bool { return *p == process{} }

// processes is all that a run keeps of processes, by PID.
type processes map[uint32]*process

// of returns what is kept of a PID, from now on if need be.
func (ps processes) of(pid uint32) *process {
	p := ps[pid]
	if p == nil {
		p = &process{}
		ps[pid] = p
	}
	return p
}

// drop forgets a PID of which nothing needs to be kept.
func (ps processes) drop(pid uint32) {
	if p := ps[pid]; p != nil && p.empty() {
		delete(ps, pid)
	}
}

// get returns what is kept of a PID: the zero process if nothing is. To change it, use of.
func (ps processes) get(pid uint32) process {
	if p := ps[pid]; p != nil {
		return *p
	}
	return process{}
}

// traced returns a traced process.
func (ps processes) traced(pid uint32) (t *traced, known bool) {
	t = ps.get(pid).traced
	return t, t != nil
}

// active reports whether a process is traced or sent records.
func (ps processes) active() bool {
	for _, p := range ps {
		if p.stage != unknown {
			return true
		}
	}
	return false
}

// each yields the traced processes.
func (ps processes) each() iter.Seq2[uint32, *traced] {
	return parts(ps, func(p *process) *traced { return p.traced })
}

// related yields the relations of all processes that have any.
func (ps processes) related() iter.Seq2[uint32, *relations] {
	return parts(ps, func(p *process) *relations { return p.relations })
}

// parts yields one part of each process that has it.
func parts[T any](ps processes, of func(*process) *T) iter.Seq2[uint32, *T] {
	return func(yield func(uint32, *T) bool) {
		for pid, p := range ps {
			if part := of(p); part != nil && !yield(pid, part) {
				return
			}
		}
	}
}

// relate makes the relations of a process, whose files are read in this way, unless it has some.
func (ps processes) relate(pid uint32, files *memory.Process) *relations {
	p := ps.of(pid)
	if p.relations == nil {
		p.relations = newRelations(files)
	}
	return p.relations
}

// traced is a process that maps the runtime.
type traced struct {
	mapping proc.Mapping
	of      *attachment
	// others are further builds of the runtime that the process maps.
	others []another
	// start is the process's last description (ProcessStart).
	start aggregator.Process
	// marked is why the process stays marked until it ends, or empty.
	marked string

	*inspect.Inspector
	// unansweredReads and hung are the state when the process was last marked: how many reads had got no answer, and
	// whether its memory did not answer.
	unansweredReads uint64
	hung            bool
	// unread counts its events that could not be read completely, and unreadParts those of them that make up
	// programs.
	unread, unreadParts uint64
	reconciliation      reconciliation

	// found is when the process was first examined, and at when it was examined last.
	found, at uint64
	// first and last are the times of the first and the last record that was attributed to the process; 0 if there
	// was none.
	first, last uint64
	seen        uint64 // as in announcement
	late        bool   // it may have used the library before the probes were attached

	chips   *inspect.Chips
	devices deviceTable
	// noticed is set once a notice said what could not be read of it.
	noticed    bool
	allocators allocatorTable
	// resized are allocators of which a memory changes its size.
	resized map[uint64]*attempt
	// hooked are Buffers that graph capture took: the allocator reserves nothing for them.
	hooked map[uint64]struct{}
	// resident is the host memory (RSS) in the last event, in bytes.
	resident uint64

	// For a forked child: used are the devices on which it allocated. unsure is set while some other device may be
	// either a copy of its parent's or its own.
	used   map[uint64]bool
	unsure bool
	// leftover is what it may have allocated on copies of devices before tracing began; nil until known. usedBefore
	// are the copies on which it had allocated before: for these the answer is unknown.
	leftover   *inspect.Leftover
	usedBefore map[uint64]bool
}

// another is a build that a process maps, but by which it is not read.
type another struct {
	*inspect.Inspector
	mapping proc.Mapping
	of      *attachment
}

func (p *traced) hook(buffer uint64) {
	if p.hooked == nil {
		p.hooked = map[uint64]struct{}{}
	}
	p.hooked[buffer] = struct{}{}
}

// unhook reports whether a Buffer was hooked that is now freed, or whose address another Buffer has now.
func (p *traced) unhook(buffer uint64) bool {
	if len(p.hooked) == 0 {
		return false
	}
	_, was := p.hooked[buffer]
	delete(p.hooked, buffer)
	return was
}

// use notes that a forked process allocated on a device. So the device is its own, or a copy of one that another
// process has open.
func (p *traced) use(device uint64) {
	if p.used == nil {
		p.used = map[uint64]bool{}
	}
	if p.used[device] {
		return
	}
	if len(p.used) >= maxClosed {
		clear(p.used)
	}
	p.used[device] = true
	if p.unsure { // fewer devices are unsure now
		p.doubt()
		if p.FindsPrograms() { // the scan left out the programs on this device
			p.unreadParts++
		}
	}
}
