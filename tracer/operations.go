package tracer

import (
	"golang.org/x/sys/unix"

	"tt-memtrace/tracer/memory"
	"tt-memtrace/tracer/metal"
	"tt-memtrace/tracer/proc"
)

// callerRange is where a process has mapped such a file.
type callerRange struct {
	start, end, offset uint64
	callers            *metal.Launchers
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
