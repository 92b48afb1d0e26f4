package tracer

import (
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
	// counted is when they were last read.
	counted interval
	lossCounts
	// unqueued is how many of the lost ones found no room in the run's inbox.
	unqueued uint64
}

func (lo *losses) records() []recordKind {
	return []recordKind{takes(bpf.MemtraceTtKindTT_UNREAD, lo.unread)}
}

// due emits how many records were lost since the last call: they found the BPF ring buffer full, or the run's inbox.
func (lo *losses) due(now bool) {
	if !lo.counted.due(lossEvery, now) {
		return
	}
	before := lo.lossCounts
	c, err := lo.kernelCounters()
	if err != nil {
		return
	}
	found := lo.history.report(lo.count(&c))
	var own uint64
	for kind, n := range lo.in.Lost() {
		c.Lost[kind] += n
		if !lo.kinds[kind].spare {
			own += n
		}
	}
	found += own - lo.unqueued
	lo.unqueued, lo.lossCounts = own, lo.count(&c)
	if found > 0 {
		lo.emit(nowOf(0), aggregator.Event{Kind: aggregator.Lost, Count: found})
	}
	if lo.lost == before.lost {
		lo.lostParts, lo.lossCounted = before.lostParts, before.lossCounted
	} else {
		for _, p := range lo.processes.each() { // it is unknown whose events were lost
			p.doubt()
			p.allocators.forgetBanks() // the end of an allocator may be lost
		}
		lo.forks.search.lost = true
	}
	lo.forks.findLostForks(now)
	if lo.lostUncounted > before.lostUncounted {
		lo.raiseOnAll(exact.ReasonLaunchesUncounted)
	}
	for kind, n := range lo.lossCounts.missed {
		if missed := lo.kinds[kind].missed; missed != nil && n > before.missed[kind] {
			missed(span{before.countedAt, proc.Now()})
		}
	}
}

// count sums up the counters.
func (lo *losses) count(c *bpf.MemtraceTtCounters) lossCounts {
	sum := lossCounts{countedAt: proc.Now(), lossCounted: proc.Ticks()}
	var unreadParts uint64
	// Unread records are counted by their kind even if the TT_UNREAD record was lost.
	unreadLost := c.Lost[bpf.MemtraceTtKindTT_UNREAD]
	for kind := range lo.kinds {
		if lo.kinds[kind].parts {
			sum.lostParts += c.Lost[kind]
			unreadParts += c.Unread[kind]
		}
		if !lo.kinds[kind].spare {
			sum.lost += c.Lost[kind]
		}
		sum.missed[kind] = c.Lost[kind] + min(unreadLost, c.Unread[kind])
	}
	sum.lostParts += min(unreadLost, unreadParts)
	sum.lostUncounted = min(unreadLost, c.Uncounted)
	return sum
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

// markUnread marks processes of which a read got no answer, so that they are read again in the background.
func (lo *losses) markUnread() {
	for pid, p := range lo.processes.each() {
		unanswered, hung := lo.unansweredReads(p), p.Hung()
		if unanswered == p.unansweredReads && hung == p.hung {
			continue
		}
		why := error(memory.ErrNoAnswer)
		if hung {
			why = memory.ErrHung
			p.noticeOnce(lo.core, why)
		}
		p.unansweredReads, p.hung = unanswered, hung
		lo.unreadOf(p)
		p.doubtOnce()
		lo.raiseWhy(nowOf(pid), aggregator.Reason{Code: exact.ReasonEventsUnread, Detail: why.Error()})
	}
}

// unansweredReads returns how many reads of a process and its files got no answer so far.
func (lo *losses) unansweredReads(p *traced) uint64 {
	n := p.Unanswered()
	for _, o := range p.others {
		n += o.Unanswered()
	}
	if rel := lo.processes.get(p.mapping.PID).relations; rel != nil {
		n += rel.mem.Unanswered()
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
	pids := map[uint32]bool{}
	for _, pid := range lv.targets.list() {
		pids[pid] = lv.mine(pid)
	}
	for pid := range lv.processes {
		pids[pid] = true
	}
	for pid, own := range pids {
		if !own {
			continue
		}
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
