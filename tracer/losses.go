package tracer

import (
	"maps"
	"time"

	"tt-memtrace/aggregator"
	"tt-memtrace/aggregator/exact"
	"tt-memtrace/bpf"
	"tt-memtrace/internal/memory"
	"tt-memtrace/internal/proc"
)

// lossEvery is how often the BPF programs' counters are read under load.
const lossEvery = 100 * time.Millisecond

// lossState holds what the counters said when they were last read.
type lossState struct {
	// lostAt and countedAt are when they were last read.
	lostAt    time.Time
	countedAt uint64
	// lossCounted is when a loss was last found, in proc.Ticks.
	lossCounted uint64
	// lost counts lost events. Of these, lostParts make up programs, lostTraces are of traces, lostMarks are marks,
	// and lostEnds are ends of processes.
	lost, lostParts, lostTraces, lostMarks, lostEnds uint64
	// Of these, too: ends of programs, ends of workloads, and closings of devices.
	lostPrograms, lostWorkloads, lostClosings uint64
	// lostAllocs are the allocations among them, and allocsLost is the span of time in which the last ones were lost.
	lostAllocs uint64
	allocsLost span
	// lostUncounted is how many lost records may have said that a launch was not counted.
	lostUncounted uint64
	// raised are the reasons that were raised on all processes, and when.
	raised map[exact.ReasonCode]moment
}

// losses emits how many records found the BPF ring buffer full since the last call.
func (r *run) losses(now bool) {
	if !now && time.Since(r.lostAt) < lossEvery {
		return
	}
	r.lostAt = time.Now()
	since, to := r.countedAt, proc.Now()
	c, err := r.t.Counters()
	if err != nil {
		return
	}
	r.countedAt = to
	var lost, parts, unreadParts uint64
	for kind, n := range c.Lost {
		if ofPrograms(bpf.MemtraceTtKind(kind)) {
			parts += n
			unreadParts += c.Unread[kind]
		}
		switch bpf.MemtraceTtKind(kind) {
		case bpf.MemtraceTtKindTT_STACK, bpf.MemtraceTtKindTT_CODE: // the accounts do not need them
		default:
			lost += n
		}
	}
	// Unread records are counted by their kind even if the TT_UNREAD record was lost.
	unreadLost := c.Lost[bpf.MemtraceTtKindTT_UNREAD]
	parts += min(unreadLost, unreadParts)
	if lost > r.lost {
		r.emit(aggregator.Event{Kind: aggregator.Lost, Time: uint64(proc.Monotonic()), Count: lost - r.lost})
		r.lost, r.lostParts = lost, parts
		r.lostPrograms, r.lostClosings = c.Lost[bpf.MemtraceTtKindTT_PROGRAM_GONE], c.Lost[bpf.MemtraceTtKindTT_DEVICE_CLOSE]
		r.suspectAll()
		for _, p := range r.processes.each() {
			clear(p.banks) // the end of an allocator may be lost
		}
		r.forks.lost, r.lossCounted = true, proc.Ticks()
	}
	r.findLostForks()
	if traces := c.Lost[bpf.MemtraceTtKindTT_TRACE] + min(unreadLost, c.Unread[bpf.MemtraceTtKindTT_TRACE]); traces > r.lostTraces {
		r.lostTraces = traces
		r.raiseOnAll(exact.ReasonTracesMissed)
	}
	if marks := c.Lost[bpf.MemtraceTtKindTT_MARK] + min(unreadLost, c.Unread[bpf.MemtraceTtKindTT_MARK]); marks > r.lostMarks {
		r.lostMarks = marks
		r.marksMissed()
	}
	if allocs := c.Lost[bpf.MemtraceTtKindTT_ALLOC] + min(unreadLost, c.Unread[bpf.MemtraceTtKindTT_ALLOC]); allocs > r.lostAllocs {
		r.lostAllocs = allocs
		r.missedAllocs(span{since, proc.Now()})
	}
	if uncounted := min(unreadLost, c.Uncounted); uncounted > r.lostUncounted {
		r.lostUncounted = uncounted
		r.raiseOnAll(exact.ReasonLaunchesUncounted)
	}
	if gone := c.Lost[bpf.MemtraceTtKindTT_WORKLOAD_GONE]; gone > r.lostWorkloads {
		r.lostWorkloads = gone
		r.missedWorkloads()
	}
	if ends := c.Lost[bpf.MemtraceTtKindTT_EXIT] + c.Lost[bpf.MemtraceTtKindTT_EXEC]; ends > r.lostEnds {
		r.lostEnds = ends
		r.missedEnds()
	}
}

// raiseOnAll raises a reason on all processes, because the loss may concern any of them. That includes processes that
// are still unknown: see raiseMissed.
func (r *run) raiseOnAll(code exact.ReasonCode) {
	r.raised[code] = momentNow()
	for pid := range r.processes.each() {
		r.raise(pid, code)
	}
}

// raiseMissed raises those reasons on a process that became known later, but may have had the library mapped then.
func (r *run) raiseMissed(p *traced) {
	for code, when := range r.raised {
		if p.start.Started <= when.ticks && mayPrecede(p.seen, when.at) {
			r.raise(p.mapping.PID, code)
		}
	}
}

func (r *run) raise(pid uint32, code exact.ReasonCode) {
	r.emit(aggregator.Event{Kind: aggregator.ReasonRaised, PID: pid, Time: uint64(proc.Monotonic()), Reason: &aggregator.Reason{Code: code}})
}

// ofPrograms reports whether a missing record of this kind leaves the accounts of programs incomplete.
func ofPrograms(k bpf.MemtraceTtKind) bool {
	switch k {
	case bpf.MemtraceTtKindTT_CB, bpf.MemtraceTtKindTT_KERNEL_ADDED, bpf.MemtraceTtKindTT_KERNEL_FILE,
		bpf.MemtraceTtKindTT_SCRATCHPADS, bpf.MemtraceTtKindTT_PROGRAM_GONE,
		bpf.MemtraceTtKindTT_PROGRAM_ADDED:
		return true
	}
	return false
}

// unread handles that a probe could not read, or only in part, what it was to send.
func (r *run) unread(p *traced, from origin, kind bpf.MemtraceTtKind) {
	why := aggregator.Reason{Code: exact.ReasonEventsUnread}
	switch kind {
	case bpf.MemtraceTtKindTT_KINDS:
		why.Code = exact.ReasonLaunchesUncounted
	case bpf.MemtraceTtKindTT_TRACE:
		why.Code = exact.ReasonTracesMissed
	case bpf.MemtraceTtKindTT_MARK:
		why.Code = exact.ReasonTracesMissed
		r.processes.get(from.pid).marks.doubt()
	case bpf.MemtraceTtKindTT_WORKLOAD_NAMED:
		return // the caller of the launch gives the name instead
	default:
		if rel := r.processes.get(from.pid).relations; kind == bpf.MemtraceTtKindTT_ALLOC && rel != nil && len(rel.capturing) > 0 {
			r.raise(from.pid, exact.ReasonTracesMissed) // see missedAllocs
		}
		p.unread++
		if ofPrograms(kind) {
			p.unreadParts++
		}
		p.reconciliation.suspect = time.Now()
	}
	r.emit(aggregator.Event{Kind: aggregator.ReasonRaised, PID: from.pid, TID: from.tid, Time: from.time, Reason: &why})
}

// markUnread marks processes of which a read came too late or whose memory does not answer, so that they are read
// again in the background.
func (r *run) markUnread() {
	for pid, p := range r.processes.each() {
		late, hung := r.lateReads(p), p.Hung()
		if late == p.lateReads && hung == p.hung {
			continue
		}
		why := memory.ErrLater
		if hung {
			why = memory.ErrHung
			p.noticeOnce(r, why)
		}
		p.lateReads, p.hung = late, hung
		r.unreadOf(p)
		if p.reconciliation.suspect.IsZero() {
			p.reconciliation.suspect = time.Now()
		}
		r.emit(aggregator.Event{Kind: aggregator.ReasonRaised, PID: pid, Time: uint64(proc.Monotonic()),
			Reason: &aggregator.Reason{Code: exact.ReasonEventsUnread, Detail: why.Error()}})
	}
}

// unreadOf counts that something of a process could not be read. It may have concerned programs, if the process has
// any.
func (r *run) unreadOf(p *traced) {
	p.unread++
	if rel := r.processes.get(p.mapping.PID).relations; rel != nil && len(rel.programs) > 0 {
		p.unreadParts++
	}
}

// lateReads returns how many reads of a process and its files came too late so far.
func (r *run) lateReads(p *traced) uint64 {
	n := p.Late()
	for _, o := range p.others {
		n += o.Late()
	}
	if rel := r.processes.get(p.mapping.PID).relations; rel != nil {
		n += rel.mem.Late()
	}
	return n
}

// missing returns how many events of a process may be missing, and how many of those make up programs.
func (r *run) missing(p *traced) (events, parts uint64) {
	parts = r.lostParts + p.unreadParts
	if rel := r.processes.get(p.mapping.PID).relations; rel != nil && len(rel.programs) > 0 {
		parts += r.lostClosings // programs hold nothing on closed chips, even if the chips opened again
	}
	return r.lost + p.unread, parts
}

// missedEnds finds processes that ended or called exec. Their records are lost, and nothing reports them again.
func (r *run) missedEnds() {
	pids := maps.Clone(r.targets)
	for pid := range r.processes {
		pids[pid] = true
	}
	for pid, p := range r.processes {
		pids[pid] = pids[pid] || p.stage == sought || p.untraced
	}
	for pid := range pids {
		from := origin{pid: pid, time: uint64(proc.Monotonic())}
		p, known := r.processes.traced(pid)
		if _, started, err := proc.Name(pid); !proc.Alive(pid) || err == nil && known && started != p.start.Started {
			r.exits(from, nil)
			r.t.found.Add(pid) // a new process with its PID may have been treated as this one
			continue
		}
		if !known {
			continue
		}
		if there, err := proc.MapsAlike(pid, p.mapping); err == nil && !there {
			r.gone(from)
		}
	}
}
