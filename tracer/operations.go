package tracer

import (
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"tt-memtrace/bpf"
	"tt-memtrace/internal/memory"
	"tt-memtrace/internal/metal"
	"tt-memtrace/internal/proc"
)

// unnamed is a workload that got a program at a time (since) and whose operation is still unknown.
type unnamed struct {
	pid    uint32
	object uint64
	since  time.Time
}

const (
	// maxUnnamed bounds the workloads whose first launch is awaited. The others get their names when launches are
	// read.
	maxUnnamed = 64
)

// nameLaunched names new workloads that were launched at or before until, the time up to which all records were read:
// a later launch may be of another workload at the same address. It does not wait for the next read of launches,
// because the process may have ended before that, and nothing else says who launched a workload. A workload that is not
// launched soon gets its name from that read.
func (ls *launches) nameLaunched(until uint64) {
	if len(ls.unnamed) == 0 || !ls.sought.due(lookEvery, false) {
		return
	}
	ls.unnamed = slices.DeleteFunc(ls.unnamed, func(u unnamed) bool {
		rel := ls.processes.get(u.pid).relations
		if rel == nil {
			return true
		}
		w := rel.workloads[u.object]
		if w == nil || w.asked {
			return true
		}
		var l bpf.MemtraceTtLaunch
		err := ls.objects.Launches.Lookup(bpf.MemtraceTtLaunchKey{Object: u.object, Pid: uint64(u.pid)}, &l)
		if err == nil && l.Last <= until {
			ls.nameWorkload(u.pid, rel, w, &l)
		}
		return w.asked || time.Since(u.since) > launchEvery
	})
}

// nameWorkload names a workload's programs after the caller that launched it, once.
func (ls *launches) nameWorkload(pid uint32, rel *relations, w *workload, l *bpf.MemtraceTtLaunch) {
	if w.asked {
		return
	}
	before := rel.mem.Unanswered()
	w.name = ls.operation(pid, l.Caller)
	w.asked = rel.mem.Unanswered() == before
	ls.named(pid, l.Last, w.programs, w.name)
}

// operation returns the name of the ttnn operation whose launching function contains the code address, or "".
func (ls *launches) operation(pid uint32, address uint64) string {
	rel := ls.relations(pid)
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
	// A rebuilt file can have the inode number of the old one.
	id := proc.FileVersion{FileID: m.ID, Changed: st.Ctim}
	c, ok := ls.callers[id]
	if !ok {
		var err error
		if c, err = metal.ReadLaunchers(memory.ProcName(f)); err != nil {
			c = &metal.Launchers{}
		}
		if len(ls.callers) >= maxCallers {
			clear(ls.callers)
		}
		ls.callers[id] = c
		ls.scheduleFreeOSMemory()
	}
	rel.callers = append(rel.callers, callerRange{m.Region.Start, m.Region.End, m.Region.Start - m.Base, c})
	return c.At(offset)
}

// maxCallers bounds the files whose launching functions are kept.
const maxCallers = 64
