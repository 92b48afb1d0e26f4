package tracer

import (
	"maps"

	"tt-memtrace/aggregator"
	"tt-memtrace/aggregator/exact"
	"tt-memtrace/bpf"
	"tt-memtrace/internal/memory"
	"tt-memtrace/internal/proc"
)

// losses counts lost and unread records. It keeps the values of the counters from when they were last read.
type losses struct {
	*core
	forks *forks
	// counted and countedAt are when they were last read.
	counted   interval
	countedAt uint64
	// lossCounted is when a loss was last found, in proc.Ticks.
	lossCounted uint64
	// lost counts lost events, without those that the accounts do not need. Among these, lostParts make up programs.
	lost, lostParts uint64
	// missed counts, by kind, the records that were lost or could not be sent.
	missed [bpf.MemtraceTtKindTT_KINDS]uint64
	// lostUncounted is how many lost records may have said that a launch was not counted.
	lostUncounted uint64
}

func (lo *losses) records() []recordKind {
	return []recordKind{takes(bpf.MemtraceTtKindTT_UNREAD, lo.unread)}
}

// due emits how many records found the BPF ring buffer full since the last call.
func (lo *losses) due(now bool) {
	if !lo.counted.due(lossEvery, now) {
		return
	}
	since, to := lo.countedAt, proc.Now()
	c, err := lo.Counters()
	if err != nil {
		return
	}
	lo.countedAt = to
	var lost, parts, unreadParts uint64
	for kind := range lo.kinds {
		if lo.kinds[kind].parts {
			parts += c.Lost[kind]
			unreadParts += c.Unread[kind]
		}
		if !lo.kinds[kind].spare {
			lost += c.Lost[kind]
		}
	}
	// Unread records are counted by their kind even if the TT_UNREAD record was lost.
	unreadLost := c.Lost[bpf.MemtraceTtKindTT_UNREAD]
	parts += min(unreadLost, unreadParts)
	if lost > lo.lost {
		lo.emit(nowOf(0), aggregator.Event{Kind: aggregator.Lost, Count: lost - lo.lost})
		lo.lost, lo.lostParts = lost, parts
		for _, p := range lo.processes.each() { // it is unknown whose events were lost
			p.doubt()
			p.allocators.forgetBanks() // the end of an allocator may be lost
		}
		lo.forks.search.lost, lo.lossCounted = true, proc.Ticks()
	}
	lo.forks.findLostForks(now)
	if uncounted := min(unreadLost, c.Uncounted); uncounted > lo.lostUncounted {
		lo.lostUncounted = uncounted
		lo.raiseOnAll(exact.ReasonLaunchesUncounted)
	}
	for kind := range lo.kinds {
		if n := c.Lost[kind] + min(unreadLost, c.Unread[kind]); n > lo.missed[kind] {
			lo.missed[kind] = n
			if missed := lo.kinds[kind].missed; missed != nil {
				missed(span{since, proc.Now()})
			}
		}
	}
}

// unread handles that a probe could not read, or only in part, what it was to send.
func (lo *losses) unread(rec record, e *bpf.MemtraceTtObject) {
	switch {
	case rec.p == nil:
	case e.Object == uint64(bpf.MemtraceTtKindTT_KINDS):
		lo.raise(rec.origin, exact.ReasonLaunchesUncounted)
	case e.Object < uint64(len(lo.kinds)):
		k := &lo.kinds[e.Object]
		if k.parts {
			rec.p.unreadParts++
		}
		if k.unread != nil {
			k.unread(rec)
		} else {
			lo.unreadEvent(rec)
		}
	}
}

// markUnread marks processes of which a read came too late or whose memory does not answer, so that they are read
// again in the background.
func (lo *losses) markUnread() {
	for pid, p := range lo.processes.each() {
		late, hung := lo.lateReads(p), p.Hung()
		if late == p.lateReads && hung == p.hung {
			continue
		}
		why := memory.ErrLater
		if hung {
			why = memory.ErrHung
			p.noticeOnce(lo.core, why)
		}
		p.lateReads, p.hung = late, hung
		lo.unreadOf(p)
		p.doubtOnce()
		lo.raiseWhy(nowOf(pid), aggregator.Reason{Code: exact.ReasonEventsUnread, Detail: why.Error()})
	}
}

// lateReads returns how many reads of a process and its files came too late so far.
func (lo *losses) lateReads(p *traced) uint64 {
	n := p.Late()
	for _, o := range p.others {
		n += o.Late()
	}
	if rel := lo.processes.get(p.mapping.PID).relations; rel != nil {
		n += rel.mem.Late()
	}
	return n
}

// missing returns how many events of a process may be missing, and how many of those make up programs.
func (lo *losses) missing(p *traced) (events, parts uint64) {
	parts = lo.lostParts + p.unreadParts
	if rel := lo.processes.get(p.mapping.PID).relations; rel != nil && len(rel.programs) > 0 {
		parts += lo.missed[bpf.MemtraceTtKindTT_DEVICE_CLOSE] // programs hold nothing on closed chips, even if the chips opened again
	}
	return lo.lost + p.unread, parts
}

// missedEnds finds processes that ended or called exec. Their records are lost, and nothing reports them again.
func (lv *lives) missedEnds(span) {
	pids := maps.Clone(lv.targets)
	for pid := range lv.processes {
		pids[pid] = true
	}
	for pid := range pids {
		from := nowOf(pid)
		p, known := lv.processes.traced(pid)
		if _, started, err := proc.Name(pid); !proc.Alive(pid) || err == nil && known && started != p.start.Started {
			lv.exits(from, nil)
			lv.found.Add(pid) // a new process with its PID may have been treated as this one
			continue
		}
		if !known {
			continue
		}
		if there, err := proc.MapsAlike(pid, p.mapping); err == nil && !there {
			lv.gone(from)
		}
	}
}
