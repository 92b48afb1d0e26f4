package metrics

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"

	"github.com/prometheus/procfs"

	"tt-memtrace/aggregator"
	"tt-memtrace/internal/cgroup"
)

// names caches the labels of the processes that have series.
type names struct {
	proc string
	boot float64

	mu    sync.Mutex
	known map[identity]named
}

// identity identifies a process although PIDs are reused, and the program in it: since tells those apart that a process
// runs one after the other.
type identity struct {
	pid            uint32
	started, since uint64
}

// named holds a process's labels and its start time in seconds since the epoch; 0 if unknown.
type named struct {
	labels  labels
	started float64
}

// ticksPerSecond is USER_HZ, which is 100 on all of Linux.
const ticksPerSecond = 100

func newNames(proc string) (*names, error) {
	fs, err := procfs.NewFS(proc)
	if err != nil {
		return nil, fmt.Errorf("reading the time of boot: %w", err)
	}
	st, err := fs.Stat()
	if err != nil {
		return nil, fmt.Errorf("reading the time of boot: %w", err)
	}
	return &names{proc: proc, boot: float64(st.BootTime), known: map[identity]named{}}, nil
}

// of returns the processes' labels and drops cached ones of all others. Labels are
// read once a program: a process that renames itself keeps its series, and one that runs another program does not.
func (n *names) of(list []*aggregator.ProcessSnapshot) []named {
	n.mu.Lock()
	defer n.mu.Unlock()
	kept := make(map[identity]named, len(list))
	out := make([]named, len(list))
	for i, p := range list {
		id := identity{p.PID, p.Info.Started, p.Since}
		one, ok := n.known[id]
		if !ok {
			one = n.read(p)
		}
		kept[id], out[i] = one, one
	}
	n.known = kept
	return out
}

func (n *names) read(p *aggregator.ProcessSnapshot) named {
	comm, container, pod := "", "", ""
	if p.Info.Started == startOf(n.proc, p.PID) {
		comm = strings.TrimSuffix(string(n.file(p.PID, "comm")), "\n")
		c := cgroup.Parse(string(n.file(p.PID, "cgroup")))
		container, pod = c.ID, c.Pod
	}
	if comm == "" {
		comm, _, _ = strings.Cut(p.Info.Command, " ")
	}
	started := 0.0
	if p.Info.Started > 0 {
		started = n.boot + float64(p.Info.Started)/ticksPerSecond
	}
	return named{labels(nil).with("pid", number(p.PID), "comm", clean(comm), "container", container, "pod", pod), started}
}

// maxFile bounds how much is read of a file whose content a process controls.
const maxFile = 16 << 10

func (n *names) file(pid uint32, name string) []byte {
	f, err := os.Open(filepath.Join(n.proc, number(pid), name))
	if err != nil {
		return nil
	}
	defer f.Close()
	b, _ := io.ReadAll(io.LimitReader(f, maxFile))
	return b
}

// startOf returns when the process that now has the PID started, in ticks since boot; 0 if there is none.
func startOf(proc string, pid uint32) uint64 {
	b, err := os.ReadFile(filepath.Join(proc, number(pid), "stat"))
	if err != nil {
		return 0
	}
	// The name in parentheses can contain any character. Field 22 is the start time.
	fields := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
	if len(fields) < 20 {
		return 0
	}
	t, _ := strconv.ParseUint(fields[19], 10, 64)
	return t
}

// maxLabel bounds a label value, bytes.
const maxLabel = 128

// clean makes a valid, printable and bounded label value of untrusted text.
func clean(s string) string {
	if len(s) > maxLabel {
		s = strings.ToValidUTF8(s[:maxLabel], "")
	}
	return strings.Map(func(r rune) rune {
		if r == utf8.RuneError || !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, s)
}
