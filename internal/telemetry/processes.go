package telemetry

import (
	"bytes"
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"tt-memtrace/internal/cgroup"
	"tt-memtrace/internal/plural"
)

// Process is a process that has a device open, or that the caller asked for.
type Process struct {
	PID uint32
	// Devices lists the numbers of the device nodes that it has open, ascending.
	Devices []uint32
	// Name and Command are untrusted text; Command is "" if unreadable.
	Name, Command string
	// User is the owner's name or user ID, "" if unknown.
	User string
	// Container is its container, such as "docker 0123456789ab" or "pod 01234567"; "" if none is known. NoContainer is set if
	// it is in no container of a known kind.
	Container   string
	NoContainer bool
	// InnerPID is its PID in its own PID namespace, 0 if that is the host's.
	InnerPID uint32
	// State is the kernel's name of its first thread's state, such as "sleeping" or "stopped"; "" if unknown.
	State string
	// Threads is the number of its threads, Memory its resident host memory in bytes.
	Threads, Memory Value
	// CPU is its CPU use since the previous reading, in thousandths of a CPU.
	CPU Value
	// Age is the time since its start.
	Age time.Duration
}

// cpuTime is the CPU time of a process at one reading, in clock ticks, and its use since the reading before.
type cpuTime struct {
	ticks, started uint64
	at             time.Duration
	permille       Value
}

// clockTicks is USER_HZ, the ticks a second of /proc, which is 100 on all of Linux.
const clockTicks = 100

// maxHolders bounds the number of processes in one reading, and of known users.
const maxHolders = 4096

// Processes returns the processes that have a device open, and the live ones of also, sorted by PID, without this process. With
// an error it still returns those that it found: without rights, processes of other users can be missing.
func (s *System) Processes(also []uint32) ([]Process, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	held, err := s.holders()
	for _, pid := range also {
		if _, ok := held[pid]; !ok {
			held[pid] = nil
		}
	}
	delete(held, s.self)
	delete(held, 0)
	up := s.uptime()
	cpu := map[uint32]cpuTime{}
	var out []Process
	for pid, devices := range held {
		if len(out) == maxHolders {
			break
		}
		if p, ok := s.process(pid, up, cpu); ok {
			slices.Sort(devices)
			p.Devices = slices.Compact(devices)
			out = append(out, p)
		}
	}
	s.cpu = cpu
	slices.SortFunc(out, byPID)
	return out, err
}

// Exists reports whether there is a process with this PID.
func (s *System) Exists(pid uint32) bool {
	_, err := os.Lstat(filepath.Join(s.root, "proc", strconv.FormatUint(uint64(pid), 10)))
	return err == nil
}

// holders returns the device nodes that processes have open: from the driver's list or,
// with an older driver, from the open files in /proc.
func (s *System) holders() (map[uint32][]uint32, error) {
	out := map[uint32][]uint32{}
	nodes := s.nodes()
	missing := false
	for _, node := range nodes {
		b, err := s.file(fmt.Sprintf("proc/driver/tenstorrent/%d/pids", node))
		if err != nil {
			missing = true
			break
		}
		for _, word := range strings.Fields(string(b)) {
			// 0 is a process outside of this PID namespace.
			if pid, err := strconv.ParseUint(word, 10, 32); err == nil && pid > 0 {
				out[uint32(pid)] = append(out[uint32(pid)], node)
			}
		}
	}
	if len(nodes) > 0 && !missing {
		return out, nil
	}
	if _, err := os.Stat(filepath.Join(s.root, "dev/tenstorrent")); err != nil {
		return out, nil // no device, so no process has one open
	}
	return s.openFiles()
}

// openFiles searches the open files of all processes for device nodes.
func (s *System) openFiles() (map[uint32][]uint32, error) {
	out := map[uint32][]uint32{}
	entries, err := os.ReadDir(filepath.Join(s.root, "proc"))
	if err != nil {
		return out, fmt.Errorf("looking for processes with an open device: %w", err)
	}
	denied := 0
	for _, e := range entries {
		pid, err := strconv.ParseUint(e.Name(), 10, 32)
		if err != nil {
			continue
		}
		folder := filepath.Join(s.root, "proc", e.Name(), "fd")
		files, err := os.ReadDir(folder)
		if os.IsPermission(err) {
			denied++
		}
		for _, f := range files {
			to, err := os.Readlink(filepath.Join(folder, f.Name()))
			if err != nil {
				continue
			}
			if name, ok := strings.CutPrefix(to, "/dev/tenstorrent/"); ok {
				if node, err := strconv.ParseUint(name, 10, 32); err == nil {
					out[uint32(pid)] = append(out[uint32(pid)], uint32(node))
				}
			}
		}
	}
	if denied > 0 {
		return out, fmt.Errorf("not permitted to read the open files of %s", plural.Of(denied, "process", "processes"))
	}
	return out, nil
}

func (s *System) uptime() time.Duration {
	word, _, _ := strings.Cut(s.text("proc/uptime"), " ")
	seconds, err := strconv.ParseFloat(word, 64)
	if err != nil {
		return 0
	}
	return time.Duration(seconds * float64(time.Second))
}

// process reads a process's files; false if it has ended.
func (s *System) process(pid uint32, up time.Duration, cpu map[uint32]cpuTime) (Process, bool) {
	p := Process{PID: pid}
	folder := fmt.Sprintf("proc/%d", pid)
	stat, err := s.file(folder + "/stat")
	if err != nil {
		return p, false
	}
	// The name in parentheses can itself contain parentheses and spaces.
	open, shut := bytes.IndexByte(stat, '('), bytes.LastIndexByte(stat, ')')
	if open < 0 || shut < open {
		return p, false
	}
	p.Name = string(stat[open+1 : shut])
	words := strings.Fields(string(stat[shut+1:]))
	number := func(i int) uint64 { // field numbers of proc(5), from 3 on
		if i-3 >= len(words) {
			return 0
		}
		n, _ := strconv.ParseUint(words[i-3], 10, 64)
		return n
	}
	if len(words) > 21 {
		p.Threads = Value{int64(number(20)), true}
		p.Memory = Value{int64(number(24)) * int64(os.Getpagesize()), true}
		started := number(22)
		if begin := time.Duration(started) * (time.Second / clockTicks); up > begin {
			p.Age = up - begin
		}
		p.CPU = s.cpuUse(pid, number(14)+number(15), started, up, cpu)
	}
	if s.arguments != nil {
		args, _ := s.arguments(pid) // without rights they stay empty
		p.Command = strings.TrimSpace(strings.Join(args, " "))
	} else if b, err := s.file(folder + "/cmdline"); err == nil {
		p.Command = strings.TrimSpace(strings.ReplaceAll(strings.TrimRight(string(b), "\x00"), "\x00", " "))
	}
	for l := range strings.Lines(s.text(folder + "/status")) {
		name, value, _ := strings.Cut(l, ":")
		switch list := strings.Fields(value); {
		case name == "Uid" && len(list) > 0:
			p.User = s.user(list[0])
		case name == "State" && len(list) > 0:
			// "T (stopped)"
			p.State = strings.Trim(strings.Join(list[1:], " "), "()")
		case name == "NSpid" && len(list) > 1:
			if n, err := strconv.ParseUint(list[len(list)-1], 10, 32); err == nil {
				p.InnerPID = uint32(n)
			}
		}
	}
	groups, err := s.file(folder + "/cgroup")
	p.Container = container(cgroup.Parse(string(groups)))
	// In a cgroup namespace of its own, this program sees paths without the container that they are in.
	p.NoContainer = err == nil && len(groups) > 0 && p.Container == "" && s.hostGroups()
	return p, true
}

// hostGroups reports whether the paths of control groups begin at the host's root: in its first cgroup namespace.
func (s *System) hostGroups() bool {
	name, err := os.Readlink(filepath.Join(s.root, "proc/self/ns/cgroup"))
	return err == nil && name == "cgroup:[4026531835]" // PROC_CGROUP_INIT_INO
}

// container returns a short name of a container; "" if there is none.
func container(c cgroup.Container) string {
	switch {
	case c.Pod != "" && c.ID != "":
		return "pod " + c.Pod[:8] + "/" + c.ID
	case c.Pod != "":
		return "pod " + c.Pod[:8]
	}
	return strings.TrimSpace(c.Runtime + " " + c.ID + c.Name)
}

// user returns the name of a user, or the user ID if it has none.
func (s *System) user(id string) string {
	name, ok := s.users[id]
	if !ok {
		name = id
		if u, err := user.LookupId(id); err == nil {
			name = u.Username
		}
		if len(s.users) < maxHolders {
			s.users[id] = name
		}
	}
	return name
}

// cpuUse returns a process's CPU use since the previous reading.
func (s *System) cpuUse(pid uint32, ticks, started uint64, up time.Duration, cpu map[uint32]cpuTime) Value {
	now := cpuTime{ticks: ticks, started: started, at: up}
	before, ok := s.cpu[pid]
	if passed := up - before.at; ok && before.started == started && ticks >= before.ticks && passed > 0 {
		now.permille = Value{int64(float64(ticks-before.ticks) / clockTicks / passed.Seconds() * 1000), true}
	}
	cpu[pid] = now
	return now.permille
}
