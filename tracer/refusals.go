package tracer

import (
	"errors"
	"strconv"
	"strings"
	"unsafe"

	"tt-memtrace/aggregator"
	"tt-memtrace/bpf"
	"tt-memtrace/tracer/discover"
	"tt-memtrace/tracer/proc"
)

// refused turns a message that is about to be thrown into an event.
func (r *run) refused(from origin, b []byte) {
	stack := r.stacks.take(from)
	if len(b) < int(unsafe.Sizeof(bpf.MemtraceTtRefusal{})) {
		return
	}
	e := (*bpf.MemtraceTtRefusal)(unsafe.Pointer(&b[0]))
	format := string(e.Format[:min(int(e.Length), len(e.Format))])
	text := string(e.Text[:min(int(e.TextLength), len(e.Text))])
	f := &aggregator.Refusal{Clash: e.Clash != 0, Message: message(format, text, e.Args[:])}
	event := aggregator.Event{Kind: aggregator.Refused, PID: from.pid, TID: from.tid, Time: from.time, Stack: stack, Refusal: f}
	switch {
	case f.Clash && strings.Contains(format, "clash with L1 buffers"):
		event.Memory, event.Program = aggregator.L1, e.Args[0]
		f.Lowest, f.End = e.Args[2], e.Args[3]
	case !f.Clash && strings.HasPrefix(format, "Out of Memory"):
		for m := range aggregator.NumMemories {
			if text == m.String() {
				event.Memory = m
			}
		}
		f.Asked, f.Banks, f.PerBank = e.Args[0], e.Args[2]&0xffffffff, e.Args[3]
		f.BankBytes, f.Allocated, f.Free, f.Largest = e.Args[4], e.Args[5], e.Args[6], e.Args[7]
	default:
		return // another message with the same arguments
	}
	r.emit(event)
}

// message fills a format in as the runtime does: {} for {}. The second argument is
// a text, the third of four bytes where memory is out; a text at the end is left out.
func message(format, text string, args []uint64) string {
	var b strings.Builder
	oom := strings.HasPrefix(format, "Out of Memory")
	for i := 0; ; i++ {
		before, after, found := strings.Cut(format, "{}")
		b.WriteString(before)
		if !found {
			return b.String()
		}
		switch {
		case i == 1:
			b.WriteString(text)
		case after == "" && oom || i >= len(args): // a hint
		case i == 2 && oom:
			b.WriteString(strconv.FormatUint(args[i]&0xffffffff, 10))
		default:
			b.WriteString(strconv.FormatUint(args[i], 10))
		}
		format = after
	}
}

// refusal is a file that is not traced, as long as a process maps it: then it may
// be another one of the same number.
type refusal struct {
	why error // nil: it is not the runtime
	// pids of those processes, with when they were looked at: CLOCK_MONOTONIC in ns.
	pids map[uint32]uint64
}

// verdict tells the reader whether a process uses a library that is not traced.
type verdict struct {
	pid uint32
	// of, where set: all processes that were traced by this attachment, in place of pid.
	of  *attachment
	why string // empty: it does not, any more
	at  uint64 // CLOCK_MONOTONIC in ns
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

// unmapped takes note that a process, or the program that it was, ended then.
func (t *Tracer) unmapped(pid uint32, then uint64) {
	for id, r := range t.refused {
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

// Waiting lists the PIDs that were asked for and do not map the runtime yet.
func (t *Tracer) Waiting() []uint32 {
	var waiting []uint32
	for _, pid := range t.opts.PIDs {
		if list, err := t.finder.Mappings(pid); len(list) == 0 && (err == nil || errors.Is(err, discover.ErrNoRuntime)) {
			waiting = append(waiting, pid)
		}
	}
	return waiting
}
