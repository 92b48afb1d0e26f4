package sampler

import (
	"github.com/prometheus/procfs"

	"tt-memtrace/internal/proc"
)

// family finds the descendants of a process, including those whose parents have ended.
type family struct {
	root  uint32
	known map[uint32]relative // all processes of the host, by PID
	round uint                // counts the calls of members
}

// recheck is how many rounds a known PID counts as the same process. Then its start time is compared.
const recheck = 8

// relative is a process that was seen, and whether it descends from the root.
type relative struct {
	started uint64 // clock ticks after boot
	member  bool
}

func newFamily(root uint32) *family { return &family{root: root, known: map[uint32]relative{}} }

// members lists the live descendants of the root.
func (f *family) members() (list []uint32) {
	pids, err := proc.PIDs()
	if err != nil {
		return nil
	}
	f.round++
	now := make(map[uint32]relative, len(pids))
	parents := map[uint32]uint32{}
	for _, pid := range pids {
		was, ok := f.known[pid]
		if ok && (f.round+uint(pid))%recheck != 0 {
			now[pid] = was
			continue
		}
		p, err := procfs.NewProc(int(pid))
		if err != nil {
			continue
		}
		st, err := p.Stat()
		if err != nil {
			continue
		}
		now[pid] = relative{st.Starttime, ok && was.started == st.Starttime && was.member}
		parents[pid] = uint32(st.PPID)
	}
	// A child can have a lower PID than its parent.
	for changed := true; changed; {
		changed = false
		for pid, parent := range parents {
			if r := now[pid]; !r.member && (parent == f.root || now[parent].member) && pid != f.root {
				r.member = true
				now[pid], changed = r, true
			}
		}
	}
	f.known = now
	for _, pid := range pids {
		if now[pid].member {
			list = append(list, pid)
		}
	}
	return list
}
