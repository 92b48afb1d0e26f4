package tracer

import (
	"errors"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"tt-memtrace/aggregator"
	"tt-memtrace/aggregator/exact"
	"tt-memtrace/bpf"
	"tt-memtrace/internal/inspect"
	"tt-memtrace/internal/memory"
	"tt-memtrace/internal/proc"
	"tt-memtrace/internal/watch"
)

// lives follows processes from when they are found until they have ended.
type lives struct {
	*core
	comparisons *comparisons
	forks       *forks
	launches    *launches
	losses      *losses
	stacks      *stacks

	// later are announcements of processes that are already known: their exec may still be in the ring.
	later []announcement
	// ended are processes that ended before they were examined, with the ask that the end of their records answers.
	ended []endedEarly
	// unknownEnds are ends of a command's processes that were never announced.
	unknownEnds []unknownEnd
	// ends are ends of processes whose remaining state is still to be dropped (see leave).
	ends []end
}

func (lv *lives) records() []recordKind {
	exec := takes(bpf.MemtraceTtKindTT_EXEC, lv.execed)
	exit := takes(bpf.MemtraceTtKindTT_EXIT, func(rec record, e *bpf.MemtraceTtObject) { lv.exits(rec.origin, exitOf(e.Object)) })
	for _, k := range []*recordKind{&exec, &exit} {
		k.from, k.missed = noProcess, lv.missedEnds
	}
	return []recordKind{exec, exit}
}

// execed handles an exec: everything that the process held is gone. If the new program was found before this record
// was read, the process starts over if any earlier record was attributed to it. Otherwise the old program is in no
// account, or its account has already ended.
func (lv *lives) execed(rec record, _ *bpf.MemtraceTtObject) {
	from := rec.origin
	lv.ends = append(lv.ends, end{from.pid, from.time, false})
	if lives, _, err := lv.watchExit(from.pid); err != nil {
		lv.opts.Notice(err.Error())
	} else if lives {
		lv.processes.of(from.pid).execed = from.time
	}
	p, known := lv.processes.traced(from.pid)
	if known && p.found >= from.time && (p.first == 0 || p.first >= from.time) {
		lv.copiesAreOwn(from)
		return
	}
	lv.gone(from)
	if known && p.at >= from.time {
		lv.add(announcement{mapping: p.mapping, of: p.of, late: p.late, at: p.at, seen: p.seen}, proc.Now())
	}
}

// exits handles the end of a process. It first takes in announcements, because no later record reports the end of an
// announced process. A process that was found after this time has reused the PID. How the process ended is nil where
// unknown.
func (lv *lives) exits(from origin, how *aggregator.Exit) {
	lv.announcements()
	lv.later = slices.DeleteFunc(lv.later, func(a announcement) bool { return a.mapping.PID == from.pid && a.at <= from.time })
	p, known := lv.processes.traced(from.pid)
	if known {
		lv.unexamined.take(from.pid)
	} else {
		lv.endedUnknown(from, how)
	}
	if !known || p.found <= from.time {
		lv.end(from, how)
	}
	if lv.targets.ended(from.pid) {
		lv.over.Store(true)
		lv.wakeDrain()
	}
	if p := lv.processes[from.pid]; p != nil {
		p.execed = 0
		lv.processes.drop(from.pid)
	}
	lv.ends = append(lv.ends, end{from.pid, from.time, true})
}

// end is the end of a process, or (not whole) of the program that it ran before an exec.
type end struct {
	pid   uint32
	at    uint64
	whole bool
}

// leave drops what else is kept of ended processes, beside their accounts. It does nothing while a library is being
// read, and is called again later.
func (lv *lives) leave() {
	if len(lv.ends) == 0 || !lv.attacher.mu.TryLock() {
		return
	}
	defer lv.attacher.mu.Unlock()
	for _, e := range lv.ends {
		lv.attacher.refusals.unmapped(e.pid, e.at)
		if lv.processes.get(e.pid).untraced {
			lv.attacher.refusals.judge(e.pid)
		}
		if e.whole {
			lv.attacher.detach(e.pid)
		}
	}
	lv.ends = lv.ends[:0]
	lv.attacher.retryLater()
	lv.judged()
}

// exitOf is how a process ended, by the status of wait(2).
func exitOf(status uint64) *aggregator.Exit {
	w := unix.WaitStatus(status)
	if w.Signaled() {
		return &aggregator.Exit{Signal: uint8(w.Signal())}
	}
	return &aggregator.Exit{Status: uint8(w.ExitStatus())}
}

// gone ends a process's accounts, if it has any. How it ended is unknown.
func (lv *lives) gone(from origin) { lv.end(from, nil) }

// end ends a process's accounts, if it has any. How it ended is nil where unknown.
func (lv *lives) end(from origin, how *aggregator.Exit) {
	from.tid = 0 // all threads end
	p, known := lv.processes.traced(from.pid)
	looked := lv.processes.get(from.pid).stage == sought
	if known || looked {
		lv.launches.launchesAtEnd(from)
	}
	if known || looked || lv.processes.get(from.pid).relations != nil {
		lv.launches.exited[from.pid] = from.time // its counts in the BPF map are deleted at the next read of launches
	}
	lv.stacks.drop(lv.env, from.pid)
	if known {
		lv.forks.findForks(p.mapping)
	}
	shown := known || looked || lv.processes.get(from.pid).untraced // all of these have had events emitted
	if p := lv.processes[from.pid]; p != nil {
		p.end()
		lv.processes.drop(from.pid)
	}
	if shown {
		lv.emit(from, aggregator.Event{Kind: aggregator.ProcessExit, Exit: how})
	}
	lv.copiesAreOwn(from)
}

// announcements adds the processes that attaching announced.
func (lv *lives) announcements() {
	lv.judged()
	list := lv.in.Mail.announced.take()
	lv.joinUnexamined()
	for _, a := range list {
		if lv.isTraced(a.mapping.PID) {
			a.asked = lv.in.Ask()
			lv.later = append(lv.later, a)
		} else {
			lv.add(a, proc.Now())
		}
	}
}

// knownAgain adds the announced processes that were known before, now that the records of their old programs are read.
func (lv *lives) knownAgain() {
	lv.later = slices.DeleteFunc(lv.later, func(a announcement) bool {
		if a.asked > lv.passed {
			return false
		}
		lv.add(a, proc.Now())
		return true
	})
}

// endedEarly is a process that had ended when one of its records was read, and whose end is not reported.
type endedEarly struct {
	pid   uint32
	asked uint64
}

// foundEnded ends such processes, once all their records are read.
func (lv *lives) foundEnded() {
	lv.ended = slices.DeleteFunc(lv.ended, func(e endedEarly) bool {
		if e.asked <= lv.passed {
			lv.gone(nowOf(e.pid))
		}
		return e.asked <= lv.passed
	})
}

// add adds a process that was found. It returns false if the process has ended or called exec since.
func (lv *lives) add(a announcement, now uint64) (p *traced, lives bool) {
	pid := a.mapping.PID
	if a.at < lv.processes.get(pid).execed {
		return nil, false
	}
	mem, process := a.memory, a.process
	if mem == nil {
		mem = memory.Of(pid)
	}
	in := inspect.NewOver(mem, a.of.lib, a.mapping)
	if process.Started == 0 {
		var err error
		if process, err = inspect.DescribeFrom(in.Files()); err != nil {
			return nil, false
		}
	}
	started := process.Started
	p = &traced{
		Inspector: in, mapping: a.mapping, of: a.of, found: a.at, at: a.at, seen: a.seen, late: a.late,
		allocators: allocatorTable{}, resized: map[uint64]*attempt{},
	}
	p.chips = inspect.NewChips(p.Inspector, pid)
	p.reconciliation.forkedFrom = proc.ForkedFrom(a.mapping)
	if old, known := lv.processes.traced(pid); known && started < old.start.Started {
		return nil, false // the announcement is of an earlier process with this PID
	} else if known && started > old.start.Started {
		lv.gone(origin{pid: pid, time: a.at}) // the PID was reused: the record of the old process's end is lost or still to come
	}
	if old, known := lv.processes.traced(pid); known && old.of.lib == p.of.lib && p.of.lib.LoadedAlike(old.mapping, p.mapping) {
		old.at = max(old.at, a.at) // the record of an exec in between may still be in the ring
		lv.lookedAt(old, a)
		return old, true
	} else if known {
		there, err := proc.MapsAlike(pid, old.mapping)
		if err == nil && there {
			old.at = max(old.at, a.at)
			lv.mapsAnother(old, a)
			return old, true
		}
		if err == nil {
			// The process called exec, and that record is lost or still to come.
			lv.gone(origin{pid: pid, time: a.at})
		} else {
			lv.processes.of(pid).lose()
		}
	}
	p.reconciliation.lost, p.reconciliation.lostParts = lv.losses.missing(p)
	if err := lv.forks.watch(pid); err != nil {
		lv.opts.Notice(err.Error())
	}
	one := lv.processes.of(pid)
	lv.processes.relate(pid, in.Files())
	if one.stage == sought {
		p.first = 1 // some of its events were already emitted
	}
	unsized := one.unsized
	// Some probes may be missing. Examining the process attaches the rest; then what it holds is read.
	one.join(p, !a.unseen || started > a.covered)
	lv.stacks.addProcess(lv.env, pid)
	if one.stage == joining {
		lv.found.Add(pid)
	}
	p.start = process
	p.start.Late, p.start.RanBefore = a.late || one.stage == joining, started <= lv.began
	p.describeLibrary()
	lv.begin(p, unsized, now)
	if a.of.overwritten.Load() {
		lv.mark(pid, verdict{why: whyOverwritten, at: now})
	}
	lv.raiseMissed(p)
	switch {
	case one.stage == joining:
	case a.late:
		lv.readLate(p)
	case lv.losses.lost > 0 && started <= lv.losses.lossCounted:
		// Records that were counted as lost before the process was known can be its own.
		lv.mayLack(p)
	}
	return p, true
}

// begin emits the description of a process that was just found. unsized means that it allocated buffers before, whose
// reserved sizes are unknown: the process is marked until a comparison reads them.
func (lv *lives) begin(p *traced, unsized bool, now uint64) {
	lv.describe(p, now)
	if unsized {
		lv.reservedUnread(p, origin{pid: p.mapping.PID, time: now})
	}
}

// lookedAt handles that a known process was examined. It reads what the process held before, unless that was read
// already.
func (lv *lives) lookedAt(p *traced, a announcement) {
	if a.unseen {
		return
	}
	one := lv.processes.of(p.mapping.PID)
	joins := one.stage == joining
	late := a.late && !p.reconciliation.read && (joins || a.seen != watch.NotSeen)
	if late && !p.start.Late || joins && !late {
		p.start.Late = late
		lv.describe(p, a.at)
	}
	one.examined()
	if late {
		lv.readLate(p)
	}
}

// readLate reads what a process held before the probes were attached. It may also have forked before: such a process is
// not known until one of its records arrives, and may never send one.
func (lv *lives) readLate(p *traced) {
	lv.comparisons.read(p, true)
	if len(lv.opts.PIDs) == 0 {
		lv.forks.findForks(p.mapping)
	}
}

// mayLack has a process read again that was not yet known when a loss was counted.
func (lv *lives) mayLack(p *traced) {
	p.reconciliation.lost, p.reconciliation.lostParts = 0, 0
	p.doubt()
	lv.raise(nowOf(p.mapping.PID), exact.ReasonEventsLost)
}

// process returns the process of a record. It looks an unknown PID up once: library, which the record names, may have
// been attached to for another process.
func (lv *lives) process(from origin, library uint8) (p *traced, known bool) {
	if p, known := lv.processOf(from); known {
		return p, true
	}
	one := lv.processes.of(from.pid)
	if one.stage == sought {
		return nil, false
	}
	one.seek()
	lives, reported, err := lv.watchExit(from.pid)
	if err != nil {
		lv.opts.Notice(err.Error())
	}
	if !lives {
		// If its end is reported, that record comes after all its others and after its announcement.
		if !reported {
			lv.ended = append(lv.ended, endedEarly{from.pid, lv.in.Ask()})
		}
		return nil, false
	}
	list, err := lv.finder.Known(from.pid)
	if errors.Is(err, proc.ErrMapsBusy) {
		lv.found.Add(from.pid)
	}
	if err != nil {
		return nil, false // its end will be reported, because watchExit came first
	}
	for _, m := range list {
		if a, covered := lv.attacher.libraries.attachedTo(m, uint32(library)); a != nil {
			// Nobody saw it map the library: it inherited the mapping from its parent. If the parent has ended,
			// copied objects are the process's own.
			orphan := proc.Forked(m.PID) && proc.ForkedFrom(m) == 0
			return lv.add(announcement{mapping: m, of: a, at: from.time, late: orphan, unseen: true, covered: covered}, from.time)
		}
	}
	lv.found.Add(from.pid) // opening the files that it maps can take long
	return nil, false
}

// judged marks the processes that use a library that is not traced.
func (lv *lives) judged() {
	for _, v := range lv.in.Mail.verdicts.take() {
		if v.of == nil {
			lv.mark(v.pid, v)
		}
		for pid, p := range lv.processes.each() {
			if v.of != nil && p.of == v.of {
				lv.mark(pid, v)
			}
		}
	}
}

// mapsAnother notes that a process has mapped another build, and reads what that held before.
func (lv *lives) mapsAnother(p *traced, a announcement) {
	if len(p.others) >= maxMapped || slices.ContainsFunc(p.others, func(o another) bool { return o.of == a.of && a.of.lib.LoadedAlike(o.mapping, a.mapping) }) {
		return
	}
	in := inspect.New(a.of.lib, a.mapping)
	p.others = append(p.others, another{in, a.mapping, a.of})
	if !a.late {
		return
	}
	p.start.Late = true
	lv.describe(p, a.at)
	lv.comparisons.read(p, true) // a reading under way starts again
}

// copiesAreOwn handles the end of a process: copies of its objects now belong to its forked children.
func (lv *lives) copiesAreOwn(from origin) {
	for _, p := range lv.processes.each() {
		if p.reconciliation.forkedFrom == from.pid {
			p.reconciliation.forkedFrom = proc.ForkedFrom(p.mapping)
			p.leftover, p.usedBefore = nil, nil
			p.start.Late = true
			lv.describe(p, from.time)
			lv.comparisons.read(p, true)
		}
	}
}

// endedUnknown handles the end of a process that was not announced: if it mapped the runtime, it is reported.
func (lv *lives) endedUnknown(from origin, how *aggregator.Exit) {
	if lv.opts.Follow == 0 {
		return
	}
	if lv.unexamined.take(from.pid) {
		lv.missedWhole(from.pid)
		return
	}
	lv.unknownEnds = append(lv.unknownEnds, unknownEnd{from, how, time.Now()}) // the watcher may be late
}

// joinUnexamined reports the processes that the watcher saw only after the run saw their end.
func (lv *lives) joinUnexamined() {
	kept := lv.unknownEnds[:0]
	for _, e := range lv.unknownEnds {
		switch {
		case lv.unexamined.take(e.from.pid):
			lv.missedWhole(e.from.pid)
			lv.end(e.from, e.how)
		case time.Since(e.seen) < unexaminedFor:
			kept = append(kept, e)
		}
	}
	lv.unknownEnds = kept
}

// missedWhole marks a process of which nothing was traced.
func (lv *lives) missedWhole(pid uint32) {
	lv.mark(pid, verdict{why: "it mapped the runtime, and ended before it could be examined", unsure: true, at: proc.Now()})
}

// A process of a command can map the runtime and end before it is examined, so before it has probes. The watcher knows
// who mapped something, the run who of the command's processes ended: only both together show it.

// unknownEnd is the end of a command's process that no one has announced.
type unknownEnd struct {
	from origin
	how  *aggregator.Exit
	seen time.Time
}
