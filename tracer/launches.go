package tracer

import (
	"time"

	"github.com/cilium/ebpf"

	"tt-memtrace/aggregator"
	"tt-memtrace/bpf"
	"tt-memtrace/tracer/proc"
)

// launchEvery is how often what the kernel counts without a record is read.
const launchEvery = 500 * time.Millisecond

// launchState is what is kept of one reading of launches for the next.
type launchState struct {
	// launchedAt is when they were read last, into these.
	launchedAt   time.Time
	launchKeys   []bpf.MemtraceTtLaunchKey
	launchValues []bpf.MemtraceTtLaunch
	// exited are the processes that ended since then, and when.
	exited map[uint32]uint64
}

// readCounts publishes launches, rings and memory on the host, at the most every launchEvery
// unless now is set.
func (r *run) readCounts(now bool) {
	if !now && time.Since(r.launchedAt) < launchEvery {
		return
	}
	r.launchedAt = time.Now()
	r.launches()
	r.rings()
	r.hostMemory()
	clear(r.exited)
}

// hostMemory reads the resident memory of processes, and emits it where it changed by a
// hundredth.
func (r *run) hostMemory() {
	for pid, p := range r.processes {
		bytes, ok := proc.ResidentMemory(pid)
		if !ok || max(bytes, p.resident)-min(bytes, p.resident) <= p.resident/100 {
			continue
		}
		p.resident = bytes
		r.emit(aggregator.Event{Kind: aggregator.HostMemoryRead, PID: pid, Time: uint64(proc.Monotonic()), Size: bytes})
	}
}

// launches turns the kernel's counts of launches into events.
func (r *run) launches() {
	if r.launchKeys == nil {
		r.launchKeys = make([]bpf.MemtraceTtLaunchKey, 4096)
		r.launchValues = make([]bpf.MemtraceTtLaunch, 4096)
	}
	var cursor ebpf.MapBatchCursor
	total := 0
	for {
		n, err := r.t.objects.Launches.BatchLookup(&cursor, r.launchKeys, r.launchValues, nil)
		total += n
		for i := range n {
			key := r.launchKeys[i]
			pid := uint32(key.Pid)
			if r.endedBefore(pid, r.launchValues[i].Last) || !r.known(pid) && CheckPID(pid) != nil {
				r.t.objects.Launches.Delete(key) // it ended, perhaps before it was watched
				continue
			}
			r.launch(pid, key.Object, &r.launchValues[i], false)
		}
		if err != nil {
			r.t.filled.launches.Store(uint64(total))
			return // ErrKeyNotExist is the end
		}
	}
}

// launch emits the launches of a workload, or of a program, that were not published yet. It ends, or
// ended, if gone is set.
func (r *run) launch(pid uint32, object uint64, l *bpf.MemtraceTtLaunch, gone bool) {
	rel := r.relations(pid)
	before := rel.published[object]
	if l.Count <= before {
		// Fewer: another object came to this address, and the old one's end is
		// among the records still.
		return
	}
	p, known := r.processes[pid]
	if known && !gone && !rel.ringsRead.Equal(r.launchedAt) {
		r.configRings(p)
	}
	w, c := rel.workloads[object], rel.programs[object]
	if w == nil && c == nil && !rel.unknown[object] {
		var late bool
		if w, late = r.findWorkload(pid, rel, object); late && !gone {
			return // it is asked again
		}
	}
	if w == nil && c == nil && !rel.unknown[object] {
		rel.unknown[object] = true // its record may have come after the last look at the ring
		return
	}
	rel.published[object] = l.Count
	emit := func(program uint64) {
		e := aggregator.Event{Kind: aggregator.Launched, PID: pid, Time: l.Last, Count: l.Count - before, Program: program}
		if c := rel.programs[program]; c != nil {
			if c.config == 0 && known && !gone && len(rel.rings) > 0 {
				c.config = p.ConfigSize(program)
			}
			e.Size = c.config
		}
		r.emit(e)
	}
	switch {
	case w != nil && !w.asked && rel.ended:
		for range w.programs {
			emit(0) // so that none of them is said to be launched by what is no operation: who did is not known any more
		}
	case w != nil:
		r.nameWorkload(pid, rel, w, l)
		for _, p := range w.programs {
			emit(p)
		}
	case c != nil && c.workload != 0:
		// The workload's launch, chip by chip: counted once, as that.
	case c != nil:
		emit(object)
	default:
		emit(0)
	}
}

// lastLaunches emits the launches of what ends: no record of it is under way any more.
func (r *run) lastLaunches(pid uint32, object uint64, l *bpf.MemtraceTtLaunch) {
	r.relations(pid).unknown[object] = true
	r.launch(pid, object, l, true)
}

// launchesAtEnd emits the launches of a process that has ended, since they were read last, of what it did not destroy.
func (r *run) launchesAtEnd(from origin) {
	rel := r.related[from.pid]
	if rel == nil {
		return
	}
	rel.ended = true
	last := func(object uint64) {
		var l bpf.MemtraceTtLaunch
		err := r.t.objects.Launches.Lookup(bpf.MemtraceTtLaunchKey{Object: object, Pid: uint64(from.pid)}, &l)
		if err == nil && l.Last <= from.time { // else it is of another one with its PID
			r.launch(from.pid, object, &l, true)
		}
	}
	for object := range rel.workloads {
		last(object)
	}
	for object, c := range rel.programs {
		if c.workload == 0 {
			last(object)
		}
	}
	for object := range rel.published {
		if rel.workloads[object] == nil && rel.programs[object] == nil {
			last(object)
		}
	}
}

// missedWorkloads handles that ends of workloads were lost: the last launches came with them, those of another workload at
// the address cannot be distinguished, and it can have another name.
func (r *run) missedWorkloads() {
	for _, rel := range r.related {
		for _, w := range rel.workloads {
			w.name, w.asked = "", false
		}
	}
	r.raiseOnAll(aggregator.ReasonUncounted)
}

// findWorkload finds out which programs a workload has that was made before tracing
// began. Late: that is known later.
func (r *run) findWorkload(pid uint32, rel *relations, object uint64) (w *workload, late bool) {
	p, known := r.processes[pid]
	if !known || !p.reconciliation.read {
		return nil, false
	}
	before := p.Late()
	programs := p.ProgramsOfWorkload(object, func(id uint64) bool { return rel.programs[id] != nil })
	if p.Late() != before || len(programs) == 0 {
		return nil, p.Late() != before
	}
	w = rel.workload(object)
	for _, id := range programs {
		if c := rel.programs[id]; c.workload == 0 {
			c.workload = object
			w.programs = append(w.programs, id)
		}
	}
	return w, false
}

// endedBefore reports whether a count is of a process that ended since counts were read
// last, and not of another one with its PID.
func (r *run) endedBefore(pid uint32, last uint64) bool {
	at, ok := r.exited[pid]
	return ok && last <= at
}
