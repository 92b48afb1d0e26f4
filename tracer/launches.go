package tracer

import (
	"time"

	"github.com/cilium/ebpf"

	"tt-memtrace/aggregator"
	"tt-memtrace/aggregator/exact"
	"tt-memtrace/bpf"
	"tt-memtrace/internal/proc"
)

// launchEvery is how often counts without records (launches), rings and host memory are read.
const launchEvery = 500 * time.Millisecond

// launchState is kept from one read of launches to the next.
type launchState struct {
	// launchedAt is when launches were last read, into launchKeys and launchValues.
	launchedAt   time.Time
	launchKeys   []bpf.MemtraceTtLaunchKey
	launchValues []bpf.MemtraceTtLaunch
	// exited are the processes that ended since then, with their times.
	exited map[uint32]uint64
}

// readCounts emits launches, rings and host memory, at most every launchEvery unless now is set.
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

// hostMemory reads the processes' resident memory, and emits it if it changed by more than a hundredth.
func (r *run) hostMemory() {
	for pid, p := range r.processes.each() {
		bytes, ok := proc.ResidentMemory(pid)
		if !ok || max(bytes, p.resident)-min(bytes, p.resident) <= p.resident/100 {
			continue
		}
		p.resident = bytes
		r.emit(aggregator.Event{Kind: aggregator.HostMemoryRead, PID: pid, Time: uint64(proc.Monotonic()), Size: bytes})
	}
}

// launches turns the BPF programs' counts of launches into events.
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
			if r.endedBefore(pid, r.launchValues[i].Last) || !r.isTraced(pid) && CheckPID(pid) != nil {
				r.t.objects.Launches.Delete(key) // the process ended, perhaps before it was watched
				continue
			}
			r.launch(pid, key.Object, &r.launchValues[i], false)
		}
		if err != nil {
			r.t.filled.launches.Store(uint64(total))
			return // ErrKeyNotExist means that all were read
		}
	}
}

// launch emits the launches of a workload or a program that were not emitted yet. gone: it ends, or has ended.
func (r *run) launch(pid uint32, object uint64, l *bpf.MemtraceTtLaunch, gone bool) {
	rel := r.relations(pid)
	before := rel.published[object]
	if l.Count <= before {
		// A lower count: another object is at this address, and the record of the old one's end is still to come.
		return
	}
	p, known := r.processes.traced(pid)
	if known && !gone && !rel.ringsRead.Equal(r.launchedAt) {
		r.configRings(p)
	}
	w, c := rel.workloads[object], rel.programs[object]
	if w == nil && c == nil && !rel.unknown[object] {
		var late bool
		if w, late = r.findWorkload(pid, rel, object); late && !gone {
			return // the next round asks again
		}
	}
	if w == nil && c == nil && !rel.unknown[object] {
		rel.unknown[object] = true // its record may have arrived after the last drain
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
			emit(0) // without a program: who launched it is not known any more, so none may be shown as launched by no operation
		}
	case w != nil:
		r.nameWorkload(pid, rel, w, l)
		for _, p := range w.programs {
			emit(p)
		}
	case c != nil && c.workload != 0:
		// This is the workload's launch on one chip; the workload's own count covers it.
	case c != nil:
		emit(object)
	default:
		emit(0)
	}
}

// lastLaunches emits the launches of an object that ends. No record about it is still to come.
func (r *run) lastLaunches(pid uint32, object uint64, l *bpf.MemtraceTtLaunch) {
	r.relations(pid).unknown[object] = true
	r.launch(pid, object, l, true)
}

// launchesAtEnd emits, for a process that ended, the launches since the last read of objects that it did not destroy.
func (r *run) launchesAtEnd(from origin) {
	rel := r.processes.get(from.pid).relations
	if rel == nil {
		return
	}
	rel.ended = true
	last := func(object uint64) {
		var l bpf.MemtraceTtLaunch
		err := r.t.objects.Launches.Lookup(bpf.MemtraceTtLaunchKey{Object: object, Pid: uint64(from.pid)}, &l)
		if err == nil && l.Last <= from.time { // otherwise the count is of a later process with this PID
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

// missedWorkloads handles lost ends of workloads. Their last launches are lost with them. Launches of a new workload
// at the same address cannot be distinguished, and it may have another name.
func (r *run) missedWorkloads(span) {
	for _, rel := range r.processes.related() {
		for _, w := range rel.workloads {
			w.name, w.asked = "", false
		}
	}
	r.raiseOnAll(exact.ReasonLaunchesUncounted)
}

// findWorkload finds the programs of a workload that was created before tracing began. late: the answer did not come
// in time; ask again.
func (r *run) findWorkload(pid uint32, rel *relations, object uint64) (w *workload, late bool) {
	p, known := r.processes.traced(pid)
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

// endedBefore reports whether a count is of a process that ended since the last read of counts, and not of a later
// one with its PID.
func (r *run) endedBefore(pid uint32, last uint64) bool {
	at, ok := r.exited[pid]
	return ok && last <= at
}
