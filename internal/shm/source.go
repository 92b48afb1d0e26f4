package shm

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"tt-memtrace/aggregator"
	"tt-memtrace/aggregator/exact"
	"tt-memtrace/internal/plural"
)

// Dir is the directory of the runtime's segments.
const Dir = "/dev/shm"

// Lacks lists what the runtime's totals do not include.
func Lacks() []string {
	return []string{
		"buffers", "reserved sizes", "peaks", "sizes of the memories", "programs", "dataflow buffers", "kernels",
		"allocations by threads other than the one that opened the device (0.72 to 0.81.1)",
		"processes with TT_METAL_SHM_TRACKING_DISABLED, a runtime before 0.70, or their own /dev/shm",
	}
}

// Options of a Source.
type Options struct {
	// Dir defaults to the constant Dir.
	Dir string
	// PIDs limits the source to these processes; empty for all.
	PIDs []uint32
	// Beyond means that there are processes outside of this PID namespace, which this program does not see. Then the process of
	// an entry may live although it is not found and, without PIDs, all numbers get ReasonPIDNamespace.
	Beyond bool
	// Describe returns the description of a process.
	Describe func(pid uint32) (aggregator.Process, error)
	// Now returns the present: CLOCK_MONOTONIC in ns.
	Now func() uint64
	// Notice receives each notice for the user once.
	Notice func(string)
	// Every is the polling interval; 250 ms by default.
	Every time.Duration
}

// Source polls the segments. It is a session.Source.
type Source struct {
	o      Options
	owners *owners
	// chips are the chips by unique ID.
	chips map[uint64]aggregator.Chip
	// processes and stale are what the events so far have published.
	processes map[uint32]*process
	stale     map[uint64][]aggregator.StaleEntry
	noticed   map[string]bool
	// closed are the users whose segments may not be read and who were named in a notice.
	closed map[string]bool
}

// process is a published process.
type process struct {
	started uint64
	totals  map[uint64]aggregator.RuntimeTotals
}

// New returns a source. It reads nothing before Run.
func New(o Options) *Source {
	o.Dir = cmp.Or(o.Dir, Dir)
	o.Every = cmp.Or(o.Every, 250*time.Millisecond)
	return &Source{
		o: o, owners: newOwners(), chips: map[uint64]aggregator.Chip{}, processes: map[uint32]*process{},
		stale: map[uint64][]aggregator.StaleEntry{}, noticed: map[string]bool{}, closed: map[string]bool{},
	}
}

// Run passes changes to sink until the context ends or the last of Options.PIDs has exited. It calls ready after the first poll.
func (s *Source) Run(ctx context.Context, ready func(), sink func([]aggregator.Event)) error {
	tick := time.NewTicker(s.o.Every)
	defer tick.Stop()
	if s.o.Beyond && len(s.o.PIDs) == 0 {
		sink([]aggregator.Event{{Kind: aggregator.ReasonRaised, Time: s.o.Now(), Reason: &aggregator.Reason{Code: exact.ReasonPIDNamespace}}})
	}
	for {
		if events := s.poll(); len(events) > 0 {
			sink(events)
		}
		if ready != nil {
			ready()
			ready = nil
		}
		if s.over() {
			return nil
		}
		select {
		case <-ctx.Done():
			if events := s.poll(); len(events) > 0 {
				sink(events)
			}
			return nil
		case <-tick.C:
		}
	}
}

// Close does nothing.
func (s *Source) Close() error { return nil }

// over reports whether all requested processes have exited.
func (s *Source) over() bool {
	for _, pid := range s.o.PIDs {
		if _, err := os.Stat(fmt.Sprintf("/proc/%d", pid)); err == nil {
			return false
		}
	}
	return len(s.o.PIDs) > 0
}

// Waiting lists the requested PIDs that are in no segment yet.
func (s *Source) Waiting() []uint32 {
	return slices.DeleteFunc(slices.Clone(s.o.PIDs), func(pid uint32) bool { return s.processes[pid] != nil })
}

// notice gives the user each notice once, and no more than 1000 different ones.
func (s *Source) notice(text string) {
	const most = 1000
	if !s.noticed[text] && len(s.noticed) < most {
		s.noticed[text] = true
		s.o.Notice(text)
	}
}

// maxSegments bounds the number of segments; no host has as many chips.
const maxSegments = 1024

// poll reads all segments and returns the changes.
func (s *Source) poll() []aggregator.Event {
	now := s.o.Now()
	type segment struct {
		*Account
		name string
		file fileID
	}
	var segments []segment
	var closed []string
	for _, name := range s.names() {
		g, id, err := read(s.o.Dir, name)
		if errors.Is(err, os.ErrPermission) {
			closed = append(closed, s.owner(name))
			continue
		}
		if err != nil {
			s.refused(err)
			continue
		}
		segments = append(segments, segment{g, name, id})
	}
	s.noticeClosed(closed)
	seen := map[uint32]*process{}
	stale := map[uint64][]aggregator.StaleEntry{}
	s.owners.begin()
	for _, g := range segments {
		var gone []uint32
		for i := range g.Processes {
			e := &g.Processes[i]
			pid, started, alive := s.owners.of(g.file, e)
			switch {
			case !alive:
				gone = append(gone, e.PID)
			case len(s.o.PIDs) == 0 || slices.Contains(s.o.PIDs, pid):
				if seen[pid] == nil {
					seen[pid] = &process{started, map[uint64]aggregator.RuntimeTotals{}}
				}
				seen[pid].totals[g.ID] = runtimeTotals(s.chip(g.Account, pid), e.Use)
			}
		}
		if list := s.left(g.name, gone); len(list) > 0 {
			stale[g.ID] = list
		}
	}
	return s.changes(now, seen, stale)
}

// left returns the stale entries of a segment: those of the processes gone. It reads the segment again, because a process that
// exits normally removes its entry, perhaps just after the first read; entries of killed processes stay.
func (s *Source) left(name string, gone []uint32) []aggregator.StaleEntry {
	if len(gone) == 0 {
		return nil
	}
	g, _, err := read(s.o.Dir, name)
	if err != nil {
		return nil
	}
	var list []aggregator.StaleEntry
	for _, e := range g.Processes {
		if slices.Contains(gone, e.PID) && e.Use != (Use{}) {
			if s.o.Beyond {
				s.notice(fmt.Sprintf("%s/%s: the runtime counts bytes of process %d (%s), which exited or is "+
					"outside this PID namespace; no number includes them", s.o.Dir, name, e.PID, e.Command))
				continue
			}
			chip := s.chip(g, e.PID)
			list = append(list, aggregator.StaleEntry{PID: e.PID, Command: e.Command, RuntimeTotals: runtimeTotals(chip, e.Use)})
			s.notice(fmt.Sprintf("chip %d: the runtime still counts bytes of process %d (%s), which exited; they are listed separately until someone removes %s/%s",
				chip.Number, e.PID, e.Command, s.o.Dir, name))
		}
	}
	return list
}

// names lists the names of the segments, at most maxSegments.
func (s *Source) names() []string {
	d, err := os.Open(s.o.Dir)
	if err != nil {
		s.notice(err.Error())
		return nil
	}
	defer d.Close()
	var list []string
	for {
		names, err := d.Readdirnames(1024)
		for _, n := range names {
			if _, ok := UniqueOf(n); ok {
				list = append(list, n)
			}
		}
		if err != nil || len(list) > maxSegments {
			break
		}
	}
	slices.Sort(list)
	if len(list) > maxSegments {
		s.notice(fmt.Sprintf("%s has more than %d segments of the runtime; the others are ignored", s.o.Dir, maxSegments))
		list = list[:maxSegments]
	}
	return list
}

// refused tells the user why a segment cannot be read, unless it was just removed or is being created.
func (s *Source) refused(err error) {
	if !errors.Is(err, errBlank) && !errors.Is(err, os.ErrNotExist) {
		s.notice(err.Error())
	}
}

// owner names the user who owns a segment.
func (s *Source) owner(name string) string {
	if st, err := os.Lstat(s.o.Dir + "/" + name); err == nil {
		if u, ok := st.Sys().(*syscall.Stat_t); ok {
			return fmt.Sprintf("user %d", u.Uid)
		}
	}
	return "another user"
}

// noticeClosed tells the user whose segments may not be read: in one notice, and again only if further users have such segments.
func (s *Source) noticeClosed(owners []string) {
	n, known := len(owners), len(s.closed)
	slices.Sort(owners)
	owners = slices.Compact(owners)
	for _, o := range owners {
		s.closed[o] = true
	}
	if len(s.closed) == known {
		return
	}
	const most = 3
	if more := len(owners) - most; more > 0 {
		owners = append(owners[:most], fmt.Sprintf("%d more", more))
	}
	s.notice(fmt.Sprintf("the runtime's own account of %s belongs to %s: not shown",
		plural.Of(n, "chip"), strings.Join(owners, ", ")))
}

// chip returns the chip of a segment, with the number that the segment had when it was first read. If another chip has that
// number, its space is this process or another one that has the chip open, so that the two chips differ.
func (s *Source) chip(g *Account, pid uint32) aggregator.Chip {
	if c, ok := s.chips[g.ID]; ok {
		return c
	}
	taken := map[aggregator.Chip]bool{}
	for _, other := range s.chips {
		taken[other] = true
	}
	c := aggregator.Chip{Number: g.Chip}
	for i := 0; taken[c]; i++ {
		switch {
		case i == 0:
			c.Space = pid
		case i <= len(g.Processes):
			c.Space = g.Processes[i-1].PID
		default:
			c.Space++
		}
	}
	s.chips[g.ID] = c
	return c
}

// runtimeTotals converts the use of a chip for the aggregator.
func runtimeTotals(chip aggregator.Chip, u Use) aggregator.RuntimeTotals {
	s := aggregator.RuntimeTotals{Chip: chip, CB: u.CB}
	s.Requested[aggregator.DRAM], s.Requested[aggregator.L1] = u.DRAM, u.L1
	s.Requested[aggregator.L1Small], s.Requested[aggregator.Trace] = u.L1Small, u.Trace
	return s
}

// changes returns the difference between the published and the observed state.
func (s *Source) changes(now uint64, seen map[uint32]*process, stale map[uint64][]aggregator.StaleEntry) []aggregator.Event {
	var list []aggregator.Event
	emit := func(e aggregator.Event) {
		e.Time = now
		list = append(list, e)
	}
	for pid, p := range s.processes {
		n := seen[pid]
		if n == nil && s.lives(pid, p.started) {
			// It has closed its chips and may open them again.
			n = &process{p.started, map[uint64]aggregator.RuntimeTotals{}}
			seen[pid] = n
		}
		if n == nil || n.started != p.started {
			emit(aggregator.Event{Kind: aggregator.ProcessExit, PID: pid})
			delete(s.processes, pid)
		}
	}
	for pid, n := range seen {
		p := s.processes[pid]
		if p == nil {
			info, err := s.o.Describe(pid)
			if err != nil || info.Started != n.started {
				continue // it has exited
			}
			info.Source = aggregator.FromSharedMemory
			emit(aggregator.Event{Kind: aggregator.ProcessStart, PID: pid, Process: &info})
			p = &process{n.started, map[uint64]aggregator.RuntimeTotals{}}
			s.processes[pid] = p
		}
		for unique, sums := range n.totals {
			if old, ok := p.totals[unique]; !ok || old != sums {
				emit(aggregator.Event{Kind: aggregator.RuntimeTotalsChanged, PID: pid, RuntimeTotals: &sums})
			}
		}
		for unique, old := range p.totals {
			if _, ok := n.totals[unique]; !ok {
				emit(aggregator.Event{Kind: aggregator.RuntimeTotalsChanged, PID: pid, RuntimeTotals: &aggregator.RuntimeTotals{Chip: old.Chip, Closed: true}})
			}
		}
		p.totals = n.totals
	}
	for unique, g := range stale {
		if !slices.Equal(g, s.stale[unique]) {
			emit(aggregator.Event{Kind: aggregator.StaleEntriesChanged, StaleEntries: &aggregator.StaleEntries{Chip: s.chips[unique], List: g}})
		}
	}
	for unique := range s.stale {
		if _, ok := stale[unique]; !ok {
			emit(aggregator.Event{Kind: aggregator.StaleEntriesChanged, StaleEntries: &aggregator.StaleEntries{Chip: s.chips[unique]}})
		}
	}
	s.stale = stale
	return list
}

// lives reports whether the PID still belongs to the same process.
func (s *Source) lives(pid uint32, started uint64) bool {
	info, err := s.o.Describe(pid)
	return err == nil && info.Started == started
}
