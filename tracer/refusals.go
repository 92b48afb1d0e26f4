package tracer

import (
	"errors"

	"tt-memtrace/internal/discover"
	"tt-memtrace/internal/proc"
	"tt-memtrace/internal/relay"
)

// refusal is a file that is not traced. It lasts while a process maps the file: afterwards another file may have its
// inode number.
type refusal struct {
	why error // nil: it is not the runtime
	// pids are the processes that map it, and when they were examined (CLOCK_MONOTONIC, ns).
	pids map[uint32]uint64
}

// refusals are the files that are not traced.
type refusals struct {
	*env
	runs    *relay.Users[mail]
	refused map[proc.FileID]*refusal
}

// refuse notes that a process maps an untraced file, until the process ends.
func (rf *refusals) refuse(id proc.FileID, pid uint32, why error) {
	at := proc.Now()
	if lives, _, _ := rf.watchExit(pid); !lives {
		return
	}
	r := rf.refused[id]
	if r == nil {
		r = &refusal{pids: map[uint32]uint64{}}
		rf.refused[id] = r
	}
	r.why = why // the reason may have changed
	r.pids[pid] = at
	if why != nil {
		rf.judge(pid)
	}
}

// accept ends the refusal of a library that can be attached to now, for one process or (pid 0) for all. It returns
// their PIDs.
func (rf *refusals) accept(id proc.FileID, pid uint32) (accepted []uint32) {
	r := rf.refused[id]
	if r == nil {
		return nil
	}
	for one := range r.pids {
		if pid == 0 || one == pid {
			accepted = append(accepted, one)
		}
	}
	for _, one := range accepted {
		rf.lift(id, one)
	}
	return accepted
}

// acceptUnless ends the refusal of what a process maps, unless it was refused after the process was examined at this
// time. So a process that is examined and refused again stays marked in between.
func (ar *attacher) acceptUnless(pid uint32, at uint64) {
	ar.mu.Lock()
	defer ar.mu.Unlock()
	ar.refusals.liftBefore(unopened(pid), pid, at)
}

// unmapped ends refusals for a process that ended, or called exec, at this time.
func (rf *refusals) unmapped(pid uint32, then uint64) {
	for id := range rf.refused {
		rf.liftBefore(id, pid, then)
	}
}

// liftBefore ends the refusal of a file for a process if it is older than this time.
func (rf *refusals) liftBefore(id proc.FileID, pid uint32, then uint64) {
	if r := rf.refused[id]; r != nil {
		if at, ok := r.pids[pid]; ok && at < then {
			rf.lift(id, pid)
		}
	}
}

// lift ends the refusal of a file for a process.
func (rf *refusals) lift(id proc.FileID, pid uint32) {
	r := rf.refused[id]
	if delete(r.pids, pid); len(r.pids) == 0 {
		delete(rf.refused, id)
	}
	if r.why != nil {
		rf.judge(pid)
	}
}

// verdict reports whether a process uses a library that is not traced.
type verdict struct {
	pid uint32
	// of, if set, means all processes that were traced by this attachment, in place of pid.
	of  *attachment
	why string // empty if it does not any more
	// unsure: whether it uses the runtime is not known.
	unsure bool
	at     uint64 // CLOCK_MONOTONIC in ns
}

// judge tells the run whether a process uses a library that is not traced.
func (rf *refusals) judge(pid uint32) {
	v := verdict{pid: pid, at: proc.Now()}
	for _, r := range rf.refused {
		if _, ok := r.pids[pid]; ok && r.why != nil {
			unsure := errors.As(r.why, new(discover.Unsure))
			if v.why == "" || v.unsure && !unsure { // what is known says more
				v.why, v.unsure = r.why.Error(), unsure
			}
		}
	}
	rf.tell(v)
}

// tell hands a verdict to the run of its process, or to all.
func (rf *refusals) tell(v verdict) {
	list := []*relay.Inbox[mail]{rf.runs.Of(v.pid)}
	if v.of != nil {
		list = rf.runs.All()
	}
	for _, in := range list {
		in.Mail.verdicts.put(v)
		in.Rouse()
	}
}
