package tracer

import (
	"tt-memtrace/aggregator"
	"tt-memtrace/tracer/proc"
)

// refusal is a file that is not traced, as long as a process maps it: then it may
// be another one of the same number.
type refusal struct {
	why error // nil: it is not the runtime
	// pids of those processes, with when they were looked at: CLOCK_MONOTONIC in ns.
	pids map[uint32]uint64
}

// refuse notes that a process maps a file that is not traced, until it ends.
func (t *Tracer) refuse(id proc.FileID, pid uint32, why error) {
	at := uint64(proc.Monotonic())
	if lives, _, _ := t.watchExit(pid); !lives {
		return
	}
	r := t.refused[id]
	if r == nil {
		r = &refusal{pids: map[uint32]uint64{}}
		t.refused[id] = r
	}
	r.why = why // it may be another one than the last time
	r.pids[pid] = at
	if why != nil {
		t.judge(pid)
	}
}

// accept ends the refusals of a library that could not be attached to before, of one
// process or, with pid 0, of all, and returns whose they were.
func (t *Tracer) accept(id proc.FileID, pid uint32) (accepted []uint32) {
	r := t.refused[id]
	if r == nil {
		return nil
	}
	for one := range r.pids {
		if pid == 0 || one == pid {
			accepted = append(accepted, one)
		}
	}
	for _, one := range accepted {
		t.lift(id, one)
	}
	return accepted
}

// acceptUnless ends the refusal of what a process maps, unless it was refused since it was looked at: one that is looked at again, and
// refused again, is marked all the time.
func (t *Tracer) acceptUnless(pid uint32, at uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.liftBefore(unopened(pid), pid, at)
}

// unmapped takes note that a process, or the program that it was, ended then.
func (t *Tracer) unmapped(pid uint32, then uint64) {
	for id := range t.refused {
		t.liftBefore(id, pid, then)
	}
}

// liftBefore ends the refusal of a file for a process where it is of before then.
func (t *Tracer) liftBefore(id proc.FileID, pid uint32, then uint64) {
	if r := t.refused[id]; r != nil {
		if at, ok := r.pids[pid]; ok && at < then {
			t.lift(id, pid)
		}
	}
}

// lift ends the refusal of a file for a process.
func (t *Tracer) lift(id proc.FileID, pid uint32) {
	r := t.refused[id]
	if delete(r.pids, pid); len(r.pids) == 0 {
		delete(t.refused, id)
	}
	if r.why != nil {
		t.judge(pid)
	}
}

// verdict tells the reader whether a process uses a library that is not traced.
type verdict struct {
	pid uint32
	// of, where set: all processes that were traced by this attachment, in place of pid.
	of  *attachment
	why string // empty: it does not, any more
	at  uint64 // CLOCK_MONOTONIC in ns
}

// judge tells the reader whether a process uses a library that is not traced.
func (t *Tracer) judge(pid uint32) {
	v := verdict{pid: pid, at: proc.Now()}
	for _, r := range t.refused {
		if _, ok := r.pids[pid]; ok && r.why != nil {
			v.why = r.why.Error()
		}
	}
	t.tell(v)
}

// tell hands the reader a verdict.
func (t *Tracer) tell(v verdict) {
	t.inboxMu.Lock()
	t.verdicts = append(t.verdicts, v)
	t.inboxMu.Unlock()
	t.reader.Flush()
}

// judged marks the processes that use a library that is not traced.
func (r *run) judged() {
	r.t.inboxMu.Lock()
	list := r.t.verdicts
	r.t.verdicts = nil
	r.t.inboxMu.Unlock()
	for _, v := range list {
		if v.of == nil {
			r.mark(v.pid, v)
		}
		for pid, p := range r.processes {
			if v.of != nil && p.of == v.of {
				r.mark(pid, v)
			}
		}
	}
}

// mark raises or lifts that a process is not traced.
func (r *run) mark(pid uint32, v verdict) {
	e := aggregator.Event{Kind: aggregator.ReasonRaised, PID: pid, Time: v.at,
		Reason: &aggregator.Reason{Code: aggregator.ReasonNotTraced, Detail: v.why}}
	if v.why != "" {
		r.untraced[pid] = true
		r.emit(e)
	} else if p := r.processes[pid]; r.untraced[pid] && (p == nil || p.marked == "") {
		delete(r.untraced, pid)
		e.Kind = aggregator.ReasonLifted
		r.emit(e)
	}
}

// markForGood marks a process until it ends.
func (r *run) markForGood(p *traced, why string) {
	if p.marked == "" {
		p.marked = why
		r.mark(p.mapping.PID, verdict{why: why, at: proc.Now()})
	}
}
