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
	"tt-memtrace/cgroup"
)

// names remembers what processes are called, for as long as they are shown.
type names struct {
	proc string
	boot float64

	mu    sync.Mutex
	known map[identity]named
}

// identity names a process for good.
type identity struct {
	pid     uint32
	started uint64
}

// named is a process's labels, and when it started in seconds since the epoch; 0 where unknown.
type named struct {
	labels  labels
	started float64
}

// ticksPerSecond of the kernel's clock as user space sees it, always.
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

// of names the processes, and forgets those that are not among them. What a
// process is called is read once: it would change in the midst of its series.
func (n *names) of(list []*aggregator.ProcessSnapshot) []named {
	n.mu.Lock()
	defer n.mu.Unlock()
	kept := make(map[identity]named, len(list))
	out := make([]named, len(list))
	for i, p := range list {
		id := identity{p.PID, p.Info.Started}
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

// maxFile bounds what is read of a file that a process can have its way with.
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

// startOf is when the process that has the PID now started, in ticks since boot; 0 where there is none.
func startOf(proc string, pid uint32) uint64 {
	b, err := os.ReadFile(filepath.Join(proc, number(pid), "stat"))
	if err != nil {
		return 0
	}
	// The name, in parentheses, can have any characters. Field 22 is the start time.
	fields := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
	if len(fields) < 20 {
		return 0
	}
	t, _ := strconv.ParseUint(fields[19], 10, 64)
	return t
}

// maxLabel bounds a label's value, bytes.
const maxLabel = 128

// clean makes a label of untrusted text: valid, printable, bounded.
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
