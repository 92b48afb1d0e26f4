package tracer

import (
	"fmt"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"

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
	p, err := procfs.NewProc(int(pid))
	if err != nil {
		return ""
	}
	maps, err := p.ProcMaps()
	if err != nil {
		return ""
	}
	for _, m := range maps {
		if address < uint64(m.StartAddr) || address >= uint64(m.EndAddr) || m.Inode == 0 {
			continue
		}
		path := fmt.Sprintf("/proc/%d/root%s", pid, m.Pathname)
		var st unix.Stat_t
		if unix.Stat(path, &st) != nil {
			return ""
		}
		// A file that was built again can have the number of the old one.
		id := proc.FileVersion{FileID: proc.FileID{Device: m.Dev, Inode: m.Inode}, Changed: st.Ctim}
		c, ok := r.callers[id]
		if !ok {
			c, err = metal.ReadLaunchers(path, m.Inode)
			if err != nil {
				c = &metal.Launchers{}
			}
			if len(r.callers) >= maxCallers {
				clear(r.callers)
			}
			r.callers[id] = c
			r.t.scheduleFreeOSMemory()
		}
		rel.callers = append(rel.callers, callerRange{uint64(m.StartAddr), uint64(m.EndAddr), uint64(m.Offset), c})
		return c.At(address - uint64(m.StartAddr) + uint64(m.Offset))
	}
	return ""
}

// maxCallers bounds the files whose launching functions are remembered.
const maxCallers = 64
