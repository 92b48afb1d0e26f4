package tracer

import (
	"errors"

	"tt-memtrace/aggregator"
	"tt-memtrace/aggregator/exact"
	"tt-memtrace/internal/discover"
	"tt-memtrace/internal/proc"
)

// refusal is a file that is not traced. It lasts while a process maps the file: afterwards another file may have its
// inode number.
type refusal struct {
	why error // nil: it is not the runtime
	// pids are the processes that map it, and when they were examined (CLOCK_MONOTONIC, ns).
	pids map[uint32]uint64
}

// refuse notes that a process maps an untraced file, until the process ends.
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
	r.why = why // the reason may have changed
	r.pids[pid] = at
	if why != nil {
		t.judge(pid)
	}
}

// accept ends the refusal of a library that can be attached to now, for one process or (pid 0) for all. It returns
// their PIDs.
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

// acceptUnless ends the refusal of what a process maps, unless it was refused after the process was examined at this
// time. So a process that is examined and refused again stays marked in between.
func (t *Tracer) acceptUnless(pid uint32, at uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.liftBefore(unopened(pid), pid, at)
}

// unmapped ends refusals for a process that ended, or called exec, at this time.
func (t *Tracer) unmapped(pid uint32, then uint64) {
	for id := range t.refused {
		t.liftBefore(id, pid, then)
	}
}

// liftBefore ends the refusal of a file for a process if it is older than this time.
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
	// of, if set, means all processes that were traced by this attachment, in place of pid.
	of  *attachment
	why string // empty if it does not any more
	// unsure: whether it uses the runtime is not known.
	unsure bool
	at     uint64 // CLOCK_MONOTONIC in ns
}

// judge tells the reader whether a process uses a library that is not traced.
func (t *Tracer) judge(pid uint32) {
	v := verdict{pid: pid, at: proc.Now()}
	for _, r := range t.refused {
		if _, ok := r.pids[pid]; ok && r.why != nil {
			unsure := errors.As(r.why, new(discover.Unsure))
			if v.why == "" || v.unsure && !unsure { // what is known says more
				v.why, v.unsure = r.why.Error(), unsure
			}
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
		for pid, p := range r.processes.each() {
			if v.of != nil && p.of == v.of {
				r.mark(pid, v)
			}
		}
	}
}

// mark raises or lifts the reason that a process is not traced.
func (r *run) mark(pid uint32, v verdict) {
	e := aggregator.Event{Kind: aggregator.ReasonRaised, PID: pid, Time: v.at,
		Reason: &aggregator.Reason{Code: exact.ReasonNotTraced, Detail: v.why, Unsure: v.unsure && !r.isTraced(pid)}}
	if v.why != "" {
		r.processes.of(pid).untraced = true
		r.emit(e)
	} else if p, known := r.processes.traced(pid); r.processes.get(pid).untraced && (!known || p.marked == "") {
		r.processes[pid].untraced = false
		r.processes.drop(pid)
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
