package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/prometheus/procfs"

	"tt-memtrace/aggregator"
	"tt-memtrace/aggregator/exact"
	"tt-memtrace/internal/export"
	"tt-memtrace/internal/shm"
)

// comparison compares a process's use of one memory of a chip: as traced, and by the runtime's own account in shared memory.
type comparison struct {
	PID  uint32 `json:"pid"`
	Chip uint32 `json:"chip"`
	// Memory is dram, l1, l1_small, trace, or circular_buffers: the L1 that these use, summed over the cores.
	Memory string `json:"memory"`
	// Traced and Runtime are in bytes. Traced is null if nothing was seen and some may be missing. Runtime is null if the
	// runtime keeps no account, or the process is not in it.
	Traced  *uint64 `json:"traced_bytes"`
	Runtime *uint64 `json:"runtime_bytes"`
}

// equal reports whether the two numbers are equal, or one is unknown.
func (c *comparison) equal() bool {
	return c.Runtime == nil || c.Traced == nil || *c.Runtime == *c.Traced
}

const (
	// If numbers differ, they are read up to compareTries times, compareEvery apart: processes continue to run, and
	// the runtime updates its number for circular buffers at most ten times a second.
	compareTries = 6
	compareEvery = 150 * time.Millisecond
)

// compare traces the processes for a moment, reads what they held before, and sets Compared.
func (d *diagnosis) compare(ctx context.Context, t *targets) error {
	return t.briefly(ctx, func(l *live) {
		for try := range compareTries {
			if d.Compared = compareAll(l); !slices.ContainsFunc(d.Compared, func(c comparison) bool { return c.Traced == nil || !c.equal() }) {
				break
			}
			if try < compareTries-1 {
				select {
				case <-ctx.Done():
				case <-time.After(compareEvery):
				}
			}
		}
	})
}

// compareAll compares all memories of all chips of the traced processes.
func compareAll(l *live) []comparison {
	list := []comparison{}
	s := l.Snapshot()
	uniques := map[aggregator.Chip]uint64{}
	for _, c := range s.Chips {
		uniques[c.Chip] = c.UniqueID
	}
	for _, p := range s.Processes {
		uses := sharedUses(p.PID)
		programs := l.Programs(p.PID)
		for _, c := range p.Chips {
			// Find it by the unique ID; the chip's number in the file is that of the process that opened the file last.
			theirs := uses[uniques[c.Chip]] // nil if unknown
			asked := func(m aggregator.Memory) exact.Quantity { return c.Memory[m].Requested }
			add := func(memory string, traced exact.Quantity, of func(*shm.Use) uint64) {
				one := comparison{PID: p.PID, Chip: c.Chip.Number, Memory: memory, Traced: export.Exactly(traced)}
				if theirs != nil {
					n := of(theirs)
					one.Runtime = &n
				}
				list = append(list, one)
			}
			add("dram", asked(aggregator.DRAM), func(u *shm.Use) uint64 { return u.DRAM })
			add("l1", asked(aggregator.L1), func(u *shm.Use) uint64 { return u.L1 })
			add("l1_small", asked(aggregator.L1Small), func(u *shm.Use) uint64 { return u.L1Small })
			add("trace", asked(aggregator.Trace), func(u *shm.Use) uint64 { return u.Trace })
			add("circular_buffers", circularOn(c.Chip, programs).Unseen(c.Hidden.Programs), func(u *shm.Use) uint64 { return u.CB })
		}
	}
	return list
}

// circularOn returns the L1 of a chip used by the circular buffers of programs, in bytes, without dataflow buffers and
// scratchpads, which the runtime's account lacks.
func circularOn(chip aggregator.Chip, programs []aggregator.ProgramSnapshot) exact.Quantity {
	a := aggregator.New()
	const device = 1
	a.Apply(&aggregator.Event{Kind: aggregator.DeviceOpen, PID: 1, Device: device, Opened: &aggregator.Opened{Chips: []aggregator.Chip{chip}}})
	for _, p := range programs {
		for _, cb := range p.Placed {
			if cb.Kind == aggregator.Circular && cb.Chip == chip {
				one := cb.CircularBuffer
				one.Call = 1
				a.Apply(&aggregator.Event{Kind: aggregator.CBPlaced, PID: 1, Device: device, Program: p.ID, CB: &one})
			}
		}
	}
	return a.Snapshot().Chips[0].CB.Physical
}

// sharedUses returns the runtime's own account of a process, by the chips' unique IDs.
func sharedUses(pid uint32) map[uint64]*shm.Use {
	p, err := procfs.NewProc(int(pid))
	if err != nil {
		return nil
	}
	maps, err := p.ProcMaps()
	if err != nil {
		return nil
	}
	own := ownPID(pid)
	uses := map[uint64]*shm.Use{}
	seen := map[string]bool{}
	for _, m := range maps {
		name := filepath.Base(m.Pathname)
		unique, ok := shm.UniqueOf(name)
		if !ok || seen[name] {
			continue
		}
		seen[name] = true
		b, err := readFile(fmt.Sprintf("/proc/%d/root%s", pid, m.Pathname), shm.Size)
		if err != nil {
			continue
		}
		a, err := shm.Parse(b)
		if err != nil {
			continue
		}
		if len(a.Processes) == 0 {
			uses[unique] = &a.Total // a process with circular buffers alone has no entry, but the total includes them
		}
		for _, one := range a.Processes {
			if one.PID == own {
				uses[unique] = &one.Use
			}
		}
	}
	return uses
}

// ownPID returns a process's PID in its own PID namespace, which is the one in the runtime's account.
func ownPID(pid uint32) uint32 {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return pid
	}
	for line := range bytes.Lines(b) {
		if words := strings.Fields(string(line)); len(words) > 1 && words[0] == "NSpid:" {
			var n uint32
			if _, err := fmt.Sscan(words[len(words)-1], &n); err == nil {
				return n
			}
		}
	}
	return pid
}

// readFile returns the first n bytes of a regular file, which any user may have made.
func readFile(path string, n int) ([]byte, error) {
	st, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !st.Mode().IsRegular() {
		return nil, fmt.Errorf("reading %s: not a regular file", path)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, int64(n)))
}

func (d *diagnosis) printCompared(w io.Writer) {
	if len(d.Compared) == 0 {
		fmt.Fprintln(w, "\nCompared with the runtime's own account: no process has a chip open")
		return
	}
	fmt.Fprintln(w, "\nCompared with the runtime's own account in shared memory, bytes")
	tw := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintln(tw, "   \tPID\tchip\tmemory\ttraced\truntime\t")
	differ, none, unseen := false, false, false
	for _, c := range d.Compared {
		sign, ours, theirs, by := mark(c.equal()), "?", "-", ""
		if c.Traced == nil {
			sign, unseen = " ", true
		} else {
			ours = fmt.Sprint(*c.Traced)
		}
		if c.Runtime == nil {
			sign, none = " ", true
		} else if theirs = fmt.Sprint(*c.Runtime); !c.equal() {
			differ = true
			by = fmt.Sprintf("%+d", int64(*c.Runtime)-int64(*c.Traced))
		}
		fmt.Fprintf(tw, "  %s\t%d\t%d\t%s\t%s\t%s\t%s\n", sign, c.PID, c.Chip, c.Memory, ours, theirs, by)
	}
	tw.Flush()
	if unseen {
		fmt.Fprintln(w, "  ?: nothing was seen, and some may be missing: 'tt-memtrace status' says why")
	}
	if none {
		fmt.Fprintln(w, "  -: the runtime keeps no account of it: a release before 0.70, or TT_METAL_SHM_TRACKING_DISABLED is set")
	}
	if differ {
		fmt.Fprintln(w, "  why they can differ: docs/processes.md, \"The runtime's own account\"")
	}
}
