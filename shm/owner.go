package shm

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"
)

// A segment names processes by their own PIDs, and keeps those that were killed. A
// process is the one that is meant if it has the segment mapped, and is called so
// in its own PID namespace.

// owner is a process that lives, and the segments that it has mapped.
type owner struct {
	started uint64
	command string
	// inner is its PID in its own namespace.
	inner uint32
	files map[fileID]bool
	// closed: it may not be looked at, and goes by its name.
	closed bool
	at     time.Time
}

// mapsEvery is how often the mappings of a process are read anew, where nothing
// speaks for a change.
const mapsEvery = time.Second

// key is an entry of a segment.
type key struct {
	file fileID
	pid  uint32
}

// owners finds processes by their entries. What it knows from one look at the segments to the
// next is of entries that were asked for; those can be anybody's.
type owners struct {
	before, now *look
	// pids are those of the host.
	pids func() []uint32
}

// look is what was found out in one look at the segments.
type look struct {
	at time.Time
	// known are the processes that were looked at, nil for one that is gone.
	known map[uint32]*owner
	// found is the PID, as it is here, of entries whose PID is of another namespace,
	// and missing when an entry whose process was not found was written.
	found   map[key]uint32
	missing map[key]uint64
	// inner are the host's processes by what they call themselves, nil where nobody asked.
	inner map[uint32][]uint32
}

func newOwners() *owners { return &owners{now: &look{}, pids: hostPIDs} }

// begin begins a look, when all segments have been read: who has an entry there had mapped it before.
func (o *owners) begin() {
	o.before, o.now = o.now, &look{at: time.Now(), known: map[uint32]*owner{}, found: map[key]uint32{}, missing: map[key]uint64{}}
}

// of is the process that an entry is of, and its start time; false if it is gone.
func (o *owners) of(file fileID, e *Process) (pid uint32, started uint64, alive bool) {
	k := key{file, e.PID}
	if other, ok := o.before.found[k]; ok {
		if p := o.owning(other, file, e); p != nil {
			o.now.found[k] = other
			return other, p.started, true
		}
	}
	if p := o.owning(e.PID, file, e); p != nil {
		return e.PID, p.started, true
	}
	if at, ok := o.before.missing[k]; !ok || at != e.Updated { // not looked for everywhere already
		for _, other := range o.called(e.PID) {
			if p := o.owning(other, file, e); p != nil {
				o.now.found[k] = other
				return other, p.started, true
			}
		}
	}
	o.now.missing[k] = e.Updated
	return 0, 0, false
}

// called are the processes that call themselves so. The host's are read once in a look at most.
func (o *owners) called(inner uint32) []uint32 {
	if o.now.inner == nil {
		o.now.inner = map[uint32][]uint32{}
		for _, pid := range o.pids() {
			if n := innerPID(int(pid)); n != 0 {
				o.now.inner[n] = append(o.now.inner[n], pid)
			}
		}
	}
	return o.now.inner[inner]
}

// hostPIDs are those of all processes.
func hostPIDs() []uint32 {
	names, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	var list []uint32
	for _, n := range names {
		if pid, err := strconv.ParseUint(n.Name(), 10, 32); err == nil {
			list = append(list, uint32(pid))
		}
	}
	return list
}

// owning is a process if it is the one that an entry is of.
func (o *owners) owning(pid uint32, file fileID, e *Process) *owner {
	p, ok := o.now.known[pid]
	if !ok || p != nil && !p.files[file] && p.at.Before(o.now.at) {
		p = o.process(pid, file)
		o.now.known[pid] = p
	}
	switch {
	case p == nil || p.inner != e.PID:
		return nil
	case p.closed && p.command == e.Command, p.files[file]:
		return p
	}
	return nil
}

// process is as it was before if it has the file mapped, as far as that is known, and looked at
// anew otherwise; nil if it is gone.
func (o *owners) process(pid uint32, file fileID) *owner {
	proc, err := procfs.NewProc(int(pid))
	if err != nil {
		return nil
	}
	st, err := proc.Stat()
	if err != nil {
		return nil
	}
	p := o.before.known[pid]
	if p == nil || p.started != st.Starttime || o.now.at.Sub(p.at) > mapsEvery || !p.files[file] {
		p = &owner{started: st.Starttime, command: st.Comm, inner: innerPID(int(pid)), at: time.Now()}
		p.files, err = mapped(pid)
		p.closed = errors.Is(err, os.ErrPermission)
	}
	return p
}

// innerPID is what a process calls itself, 0 if it is gone.
func innerPID(pid int) uint32 {
	p, err := procfs.NewProc(pid)
	if err != nil {
		return 0
	}
	st, err := p.NewStatus()
	if err != nil || len(st.NSpids) == 0 {
		return 0
	}
	return uint32(st.NSpids[len(st.NSpids)-1])
}

// maxMaps bounds how much of a process's list of mappings is read, bytes.
const maxMaps = 64 << 20

// mapped are the segments that a process has mapped.
func mapped(pid uint32) (map[fileID]bool, error) {
	f, err := os.Open(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	files := map[fileID]bool{}
	lines := bufio.NewScanner(io.LimitReader(f, maxMaps))
	for lines.Scan() {
		if !strings.Contains(lines.Text(), "/"+prefix) {
			continue
		}
		if id, ok := parseMapping(lines.Text()); ok {
			files[id] = true
		}
	}
	return files, lines.Err()
}

// parseMapping reads the file of a line of /proc/PID/maps: range, rights, offset,
// device, inode, name.
func parseMapping(line string) (fileID, bool) {
	fields := strings.Fields(line)
	if len(fields) < 6 {
		return fileID{}, false
	}
	major, minor, ok := strings.Cut(fields[3], ":")
	if !ok {
		return fileID{}, false
	}
	high, err := strconv.ParseUint(major, 16, 32)
	low, err2 := strconv.ParseUint(minor, 16, 32)
	inode, err3 := strconv.ParseUint(fields[4], 10, 64)
	if errors.Join(err, err2, err3) != nil {
		return fileID{}, false
	}
	return fileID{unix.Mkdev(uint32(high), uint32(low)), inode}, true
}
