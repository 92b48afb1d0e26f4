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

// owners finds processes by their entries.
type owners struct {
	known map[uint32]*owner
	// found is the PID, as it is here, of entries whose PID is of another namespace,
	// and missing when an entry whose process was not found was written.
	found   map[key]uint32
	missing map[key]uint64
}

func newOwners() *owners {
	return &owners{map[uint32]*owner{}, map[key]uint32{}, map[key]uint64{}}
}

// of is the process that an entry is of, and its start time; false if it is gone.
func (o *owners) of(file fileID, e *Process) (pid uint32, started uint64, alive bool) {
	k := key{file, e.PID}
	if other, ok := o.found[k]; ok {
		if p := o.owning(other, file, e); p != nil {
			return other, p.started, true
		}
		delete(o.found, k)
	}
	if p := o.owning(e.PID, file, e); p != nil {
		return e.PID, p.started, true
	}
	if at, ok := o.missing[k]; ok && at == e.Updated {
		return 0, 0, false // looked for everywhere already
	}
	names, err := os.ReadDir("/proc")
	if err != nil {
		return 0, 0, false
	}
	for _, n := range names {
		other, err := strconv.ParseUint(n.Name(), 10, 32)
		if err != nil || innerPID(int(other)) != e.PID {
			continue
		}
		if p := o.owning(uint32(other), file, e); p != nil {
			o.found[k] = uint32(other)
			return uint32(other), p.started, true
		}
	}
	o.missing[k] = e.Updated
	return 0, 0, false
}

// owning is a process if it is the one that an entry is of.
func (o *owners) owning(pid uint32, file fileID, e *Process) *owner {
	proc, err := procfs.NewProc(int(pid))
	if err != nil {
		delete(o.known, pid)
		return nil
	}
	st, err := proc.Stat()
	if err != nil {
		delete(o.known, pid)
		return nil
	}
	p := o.known[pid]
	if p == nil || p.started != st.Starttime || time.Since(p.at) > mapsEvery || !p.files[file] {
		p = &owner{started: st.Starttime, command: st.Comm, inner: innerPID(int(pid)), at: time.Now()}
		p.files, err = mapped(pid)
		p.closed = errors.Is(err, os.ErrPermission)
		o.known[pid] = p
	}
	switch {
	case p.inner != e.PID:
		return nil
	case p.closed && p.command == e.Command, p.files[file]:
		return p
	}
	return nil
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
