package tracer

import (
	"math"
	"time"

	"github.com/cilium/ebpf"

	"tt-memtrace/aggregator"
	"tt-memtrace/aggregator/exact"
	"tt-memtrace/bpf"
	"tt-memtrace/internal/metal"
	"tt-memtrace/internal/proc"
)

// launches counts launches, which send no records, and names the operations that make them.
type launches struct {
	*core
	rings *rings
	// launchedAt is when launches were last read, into launchKeys and launchValues.
	launchedAt   time.Time
	launchKeys   []bpf.MemtraceTtLaunchKey
	launchValues []bpf.MemtraceTtLaunch
	// exited are the processes that ended since then, with their times.
	exited map[uint32]uint64

	// unnamed are workloads whose first launch is awaited, sought is when nameLaunched last looked.
	unnamed []unnamed
	sought  interval
	// callers holds, by file, the functions that launch ttnn operations.
	callers map[proc.FileVersion]*metal.Launchers
}

func (ls *launches) due(now bool) {
	ls.readCounts(now)
	ls.nameLaunched(math.MaxUint64)
}

// readCounts emits launches, rings and host memory, at most every launchEvery unless now is set.
func (ls *launches) readCounts(now bool) {
	if !now && time.Since(ls.launchedAt) < launchEvery {
		return
	}
	ls.launchedAt = time.Now()
	ls.rings.round = ls.launchedAt
	ls.read()
	ls.rings.read()
	ls.hostMemory()
	clear(ls.exited)
}

// hostMemory reads the processes' resident memory, and emits it if it changed by more than a hundredth.
func (ls *launches) hostMemory() {
	for pid, p := range ls.processes.each() {
		bytes, ok := proc.ResidentMemory(pid)
		if !ok || max(bytes, p.resident)-min(bytes, p.resident) <= p.resident/100 {
			continue
		}
		p.resident = bytes
		ls.emit(nowOf(pid), aggregator.Event{Kind: aggregator.HostMemoryRead, Size: bytes})
	}
}

// read turns the BPF programs' counts of launches into events.
func (ls *launches) read() {
	if ls.launchKeys == nil {
		ls.launchKeys = make([]bpf.MemtraceTtLaunchKey, 4096)
		ls.launchValues = make([]bpf.MemtraceTtLaunch, 4096)
	}
	var cursor ebpf.MapBatchCursor
	total := 0
	for {
		n, err := ls.objects.Launches.BatchLookup(&cursor, ls.launchKeys, ls.launchValues, nil)
		total += n
		for i := range n {
			key := ls.launchKeys[i]
			pid := uint32(key.Pid)
			if !ls.mine(pid) {
				continue // another run reads it
			}
			if ls.endedBefore(pid, ls.launchValues[i].Last) || !ls.isTraced(pid) && CheckPID(pid) != nil {
				ls.objects.Launches.Delete(key) // the process ended, perhaps before it was watched
				continue
			}
			ls.launch(pid, key.Object, &ls.launchValues[i], false)
		}
		if err != nil {
			ls.filled.launches.Store(uint64(total))
			return // ErrKeyNotExist means that all were read
		}
	}
}

// launch emits the launches of a workload or a program that were not emitted yet. gone: it ends, or has ended.
func (ls *launches) launch(pid uint32, object uint64, l *bpf.MemtraceTtLaunch, gone bool) {
	rel := ls.relations(pid)
	before := rel.published[object]
	if l.Count <= before {
		// A lower count: another object is at this address, and the record of the old one's end is still to come.
		return
	}
	p, known := ls.processes.traced(pid)
	if known && !gone && !rel.ringsRead.Equal(ls.launchedAt) {
		ls.rings.configRings(p)
	}
	w, c := rel.workloads[object], rel.programs[object]
	if w == nil && c == nil && !rel.unknown[object] {
		var late bool
		if w, late = ls.findWorkload(pid, rel, object); late && !gone {
			return // the next round asks again
		}
	}
	if w == nil && c == nil && !rel.unknown[object] {
		rel.unknown[object] = true // its record may have arrived after the last drain
		return
	}
	rel.published[object] = l.Count
	emit := func(program uint64) {
		e := aggregator.Event{Kind: aggregator.Launched, Count: l.Count - before, Program: program}
		if c := rel.programs[program]; c != nil {
			if c.config == 0 && known && !gone && len(rel.rings) > 0 {
				c.config = p.ConfigSize(program)
			}
			e.Size = c.config
		}
		ls.emit(origin{pid: pid, time: l.Last}, e)
	}
	switch {
	case w != nil && !w.asked && rel.ended:
		for range w.programs {
			emit(0) // without a program: who launched it is not known any more, so none may be shown as launched by no operation
		}
	case w != nil:
		ls.nameWorkload(pid, rel, w, l)
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
func (ls *launches) lastLaunches(pid uint32, object uint64, l *bpf.MemtraceTtLaunch) {
	ls.relations(pid).unknown[object] = true
	ls.launch(pid, object, l, true)
}

// launchesAtEnd emits, for a process that ended, the launches since the last read of objects that it did not destroy.
func (ls *launches) launchesAtEnd(from origin) {
	rel := ls.processes.get(from.pid).relations
	if rel == nil {
		return
	}
	rel.ended = true
	last := func(object uint64) {
		var l bpf.MemtraceTtLaunch
		err := ls.objects.Launches.Lookup(bpf.MemtraceTtLaunchKey{Object: object, Pid: uint64(from.pid)}, &l)
		if err == nil && l.Last <= from.time { // otherwise the count is of a later process with this PID
			ls.launch(from.pid, object, &l, true)
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
func (ls *launches) missedWorkloads(span) {
	for _, rel := range ls.processes.related() {
		for _, w := range rel.workloads {
			w.name, w.asked = "", false
		}
	}
	ls.raiseOnAll(exact.ReasonLaunchesUncounted)
}

// findWorkload finds the programs of a workload that was created before tracing began. late: the answer did not come
// in time; ask again.
func (ls *launches) findWorkload(pid uint32, rel *relations, object uint64) (w *workload, late bool) {
	p, known := ls.processes.traced(pid)
	if !known || !p.reconciliation.read {
		return nil, false
	}
	before := p.Unanswered()
	programs := p.ProgramsOfWorkload(object, func(id uint64) bool { return rel.programs[id] != nil })
	if p.Unanswered() != before || len(programs) == 0 {
		return nil, p.Unanswered() != before
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
func (ls *launches) endedBefore(pid uint32, last uint64) bool {
	at, ok := ls.exited[pid]
	return ok && last <= at
}

func (ls *launches) named(pid uint32, at uint64, programs []uint64, name string) {
	if name == "" {
		return
	}
	for _, p := range programs {
		ls.emit(origin{pid: pid, time: at}, aggregator.Event{Kind: aggregator.ProgramNamed, Program: p, Operation: name})
	}
}
