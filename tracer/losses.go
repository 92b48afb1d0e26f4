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
	// lost counts lost events, without those that the accounts do not need. Of these, lostParts make up programs.
	lost, lostParts uint64
	// missed counts, by kind, the records that were lost or could not be sent.
	missed [bpf.MemtraceTtKindTT_KINDS]uint64
	// lostUncounted is how many lost records may have said that a launch was not counted.
	lostUncounted uint64
	// raised are the reasons that were raised on all processes, and when.
	raised map[exact.ReasonCode]moment
}

func (r *run) recordsOfLosses() []recordKind {
	return []recordKind{takes(bpf.MemtraceTtKindTT_UNREAD, r.unread)}
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
	for kind := range r.kinds {
		if r.kinds[kind].parts {
			parts += c.Lost[kind]
			unreadParts += c.Unread[kind]
		}
		if !r.kinds[kind].spare {
			lost += c.Lost[kind]
		}
	}
	// Unread records are counted by their kind even if the TT_UNREAD record was lost.
	unreadLost := c.Lost[bpf.MemtraceTtKindTT_UNREAD]
	parts += min(unreadLost, unreadParts)
	if lost > r.lost {
		r.emit(aggregator.Event{Kind: aggregator.Lost, Time: uint64(proc.Monotonic()), Count: lost - r.lost})
		r.lost, r.lostParts = lost, parts
		r.suspectAll()
		for _, p := range r.processes.each() {
			clear(p.banks) // the end of an allocator may be lost
		}
		r.forks.lost, r.lossCounted = true, proc.Ticks()
	}
	r.findLostForks()
	if uncounted := min(unreadLost, c.Uncounted); uncounted > r.lostUncounted {
		r.lostUncounted = uncounted
		r.raiseOnAll(exact.ReasonLaunchesUncounted)
	}
	for kind := range r.kinds {
		if n := c.Lost[kind] + min(unreadLost, c.Unread[kind]); n > r.missed[kind] {
			r.missed[kind] = n
			if missed := r.kinds[kind].missed; missed != nil {
				missed(span{since, proc.Now()})
			}
		}
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

// raiseFor raises a reason on the process of a record.
func (r *run) raiseFor(rec record, code exact.ReasonCode) {
	r.emit(aggregator.Event{Kind: aggregator.ReasonRaised, PID: rec.pid, TID: rec.tid, Time: rec.time,
		Reason: &aggregator.Reason{Code: code}})
}

// unread handles that a probe could not read, or only in part, what it was to send.
func (r *run) unread(rec record, e *bpf.MemtraceTtObject) {
	switch {
	case rec.p == nil:
	case e.Object == uint64(bpf.MemtraceTtKindTT_KINDS):
		r.raiseFor(rec, exact.ReasonLaunchesUncounted)
	case e.Object < uint64(len(r.kinds)):
		k := &r.kinds[e.Object]
		if k.parts {
			rec.p.unreadParts++
		}
		if k.unread != nil {
			k.unread(rec)
		} else {
			r.unreadEvent(rec)
		}
	}
}

// unreadEvent has a process compared soon, of which an event is missing or incomplete.
func (r *run) unreadEvent(rec record) {
	rec.p.unread++
	rec.p.reconciliation.suspect = time.Now()
	r.raiseFor(rec, exact.ReasonEventsUnread)
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
		parts += r.missed[bpf.MemtraceTtKindTT_DEVICE_CLOSE] // programs hold nothing on closed chips, even if the chips opened again
	}
	return r.lost + p.unread, parts
}

// missedEnds finds processes that ended or called exec. Their records are lost, and nothing reports them again.
func (r *run) missedEnds(span) {
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
