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

// A segment is one chip's file. Its entries contain PIDs as in the process's own PID namespace, and entries of killed
// processes stay. An entry belongs to a live process if that maps the segment and has the entry's PID in its own PID namespace.

// owner is a live process and the segments that it maps.
type owner struct {
	started uint64 // clock ticks after boot
	command string // the kernel's name of it
	// inner is its PID in its own namespace.
	inner uint32
	files map[fileID]bool
	// closed means that its mappings may not be read. An entry then belongs to it if it has the same name.
	closed bool
	at     time.Time // when it was read
}

// mapsEvery is how often unchanged mappings of a process are read again.
const mapsEvery = time.Second

// key is an entry of a segment.
type key struct {
	file fileID
	pid  uint32
}

// owners finds the processes that entries belong to. From one poll to the next it keeps only results for entries that still
// exist, because entries are untrusted and unbounded.
type owners struct {
	previous, now *poll
	// pids lists the host's PIDs.
	pids func() []uint32
}

// poll is what one poll of the segments found.
type poll struct {
	at time.Time
	// known maps PIDs to processes, or to nil if there is no such process.
	known map[uint32]*owner
	// found maps entries from another PID namespace to the PID in this one. missing maps entries whose process was not found
	// to their write time.
	found   map[key]uint32
	missing map[key]uint64
	// inner maps PIDs in processes' own namespaces to PIDs here; nil until needed.
	inner map[uint32][]uint32
}

func newOwners() *owners { return &owners{now: &poll{}, pids: hostPIDs} }

// begin starts a poll. Call it after reading the segments: a process maps a segment before it writes an entry, so it is found.
func (o *owners) begin() {
	o.previous, o.now = o.now, &poll{at: time.Now(), known: map[uint32]*owner{}, found: map[key]uint32{}, missing: map[key]uint64{}}
}

// of returns the process that an entry belongs to, and its start time in clock ticks; false if it has ended or was not found.
func (o *owners) of(file fileID, e *Process) (pid uint32, started uint64, alive bool) {
	k := key{file, e.PID}
	if other, ok := o.previous.found[k]; ok {
		if p := o.owning(other, file, e); p != nil {
			o.now.found[k] = other
			return other, p.started, true
		}
	}
	if p := o.owning(e.PID, file, e); p != nil {
		return e.PID, p.started, true
	}
	if at, ok := o.previous.missing[k]; !ok || at != e.Updated { // the last poll did not search for it, or it was written since
		for _, other := range o.withInnerPID(e.PID) {
			if p := o.owning(other, file, e); p != nil {
				o.now.found[k] = other
				return other, p.started, true
			}
		}
	}
	o.now.missing[k] = e.Updated
	return 0, 0, false
}

// withInnerPID returns the processes with this PID in their own namespace. It reads the
// host's processes at most once a poll.
func (o *owners) withInnerPID(inner uint32) []uint32 {
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

// hostPIDs lists all PIDs in /proc.
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

// owning returns the process with this PID if the entry belongs to it, or nil.
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

// process returns a process, as the previous poll read it if it mapped the file then and was read lately; otherwise it reads it.
// It returns nil if there is no such process.
func (o *owners) process(pid uint32, file fileID) *owner {
	proc, err := procfs.NewProc(int(pid))
	if err != nil {
		return nil
	}
	st, err := proc.Stat()
	if err != nil {
		return nil
	}
	p := o.previous.known[pid]
	if p == nil || p.started != st.Starttime || o.now.at.Sub(p.at) > mapsEvery || !p.files[file] {
		p = &owner{started: st.Starttime, command: st.Comm, inner: innerPID(int(pid)), at: time.Now()}
		p.files, err = mapped(pid)
		p.closed = errors.Is(err, os.ErrPermission)
	}
	return p
}

// innerPID returns a process's PID in its own namespace; 0 if it has ended.
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

// maxMaps bounds how much of /proc/PID/maps is read, bytes.
const maxMaps = 64 << 20

// mapped returns the segments that a process maps.
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

// parseMapping returns the file of a line of /proc/PID/maps: range, permissions,
// offset, device, inode, name.
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
