package tracer

import (
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"tt-memtrace/bpf"
	"tt-memtrace/tracer/memory"
	"tt-memtrace/tracer/metal"
	"tt-memtrace/tracer/proc"
)

// callerRange is where a process has mapped such a file.
type callerRange struct {
	start, end, offset uint64
	callers            *metal.Launchers
}

// unnamed is a workload that got a program, at a time, and whose operation is not known yet.
type unnamed struct {
	pid    uint32
	object uint64
	since  time.Time
}

const (
	// maxUnnamed bounds the workloads whose first launch is looked for. Another one is named when launches are read.
	maxUnnamed = 64
	// lookEvery is how often that is done.
	lookEvery = time.Millisecond
)

// operationState is what names operations.
type operationState struct {
	// unnamed are workloads whose first launch is looked for, since the look before.
	unnamed         []unnamed
	unnamedSoughtAt time.Time
	// callers are the functions that launch ttnn operations, by file.
	callers map[proc.FileVersion]*metal.Launchers
}

// nameLaunched names the workloads that were made a moment ago and launched until a time, to which all records were read:
// a later launch can be of another workload at the address. When launches are read next, their process can have ended, and
// nothing else says who launched them. One that is not launched soon is named then.
func (r *run) nameLaunched(until uint64) {
	if len(r.unnamed) == 0 || time.Since(r.unnamedSoughtAt) < lookEvery {
		return
	}
	r.unnamedSoughtAt = time.Now()
	r.unnamed = slices.DeleteFunc(r.unnamed, func(u unnamed) bool {
		rel := r.related[u.pid]
		if rel == nil {
			return true
		}
		w := rel.workloads[u.object]
		if w == nil || w.asked {
			return true
		}
		var l bpf.MemtraceTtLaunch
		err := r.t.objects.Launches.Lookup(bpf.MemtraceTtLaunchKey{Object: u.object, Pid: uint64(u.pid)}, &l)
		if err == nil && l.Last <= until {
			r.nameWorkload(u.pid, rel, w, &l)
		}
		return w.asked || time.Since(u.since) > launchEvery
	})
}

// nameWorkload names a workload's programs by who launched it, once.
func (r *run) nameWorkload(pid uint32, rel *relations, w *workload, l *bpf.MemtraceTtLaunch) {
	if w.asked {
		return
	}
	before := rel.mem.Late()
	w.name = r.operation(pid, l.Caller)
	w.asked = rel.mem.Late() == before
	r.named(pid, l.Last, w.programs, w.name)
}

// operation is the name of the ttnn operation whose launching function holds
// the code address, or "".
func (r *run) operation(pid uint32, address uint64) string {
	rel := r.relations(pid)
	for _, m := range rel.callers {
		if address >= m.start && address < m.end {
			return m.callers.At(address - m.start + m.offset)
		}
	}
	m, offset, found := proc.FileAt(pid, address)
	if !found {
		return ""
	}
	f, err := rel.mem.Open(m)
	if err != nil {
		return ""
	}
	defer f.Close()
	var st unix.Stat_t
	if unix.Fstat(int(f.Fd()), &st) != nil {
		return ""
	}
	// A file that was built again can have the number of the old one.
	id := proc.FileVersion{FileID: m.ID, Changed: st.Ctim}
	c, ok := r.callers[id]
	if !ok {
		var err error
		if c, err = metal.ReadLaunchers(memory.ProcName(f)); err != nil {
			c = &metal.Launchers{}
		}
		if len(r.callers) >= maxCallers {
			clear(r.callers)
		}
		r.callers[id] = c
		r.t.scheduleFreeOSMemory()
	}
	rel.callers = append(rel.callers, callerRange{m.Region.Start, m.Region.End, m.Region.Start - m.Base, c})
	return c.At(offset)
}

// maxCallers bounds the files whose launching functions are remembered.
const maxCallers = 64
