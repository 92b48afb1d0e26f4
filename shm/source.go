package shm

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"syscall"
	"time"

	"tt-memtrace/aggregator"
)

// Dir is where the runtime has its segments.
const Dir = "/dev/shm"

// Lacks is what the runtime's sums do not tell.
func Lacks() []string {
	return []string{
		"buffers", "reserved sizes", "peaks", "sizes of the memories", "programs", "dataflow buffers", "kernels",
		"what other threads than a device's first allocate (0.72 to 0.81.1)",
		"processes whose tracking is off (TT_METAL_SHM_TRACKING_DISABLED) or older than 0.70, or with a /dev/shm of their own",
	}
}

// Options of a Source.
type Options struct {
	// Dir is Dir where not set.
	Dir string
	// PIDs limit it to these processes; none for all.
	PIDs []uint32
	// Describe says who a process is, Now what events' clock says, ns.
	Describe func(pid uint32) (aggregator.Process, error)
	Now      func() uint64
	// Notice is told what a user should know, of each file and process once.
	Notice func(string)
	// Every is how often the segments are read; 250 ms where not set.
	Every time.Duration
}

// Source reads the segments a few times a second.
type Source struct {
	o      Options
	owners *owners
	// chips by their unique ids, and what was told of them and of processes.
	chips     map[uint64]aggregator.Chip
	processes map[uint32]*process
	ghosts    map[uint64][]aggregator.Ghost
	noticed   map[string]bool
}

// process is one that was told of.
type process struct {
	started uint64
	sums    map[uint64]aggregator.Sums
}

// New returns a source; nothing is read before Run.
func New(o Options) *Source {
	o.Dir = cmp.Or(o.Dir, Dir)
	o.Every = cmp.Or(o.Every, 250*time.Millisecond)
	return &Source{
		o: o, owners: newOwners(), chips: map[uint64]aggregator.Chip{}, processes: map[uint32]*process{},
		ghosts: map[uint64][]aggregator.Ghost{}, noticed: map[string]bool{},
	}
}

// Run tells of what changed until the context ends or the last of the PIDs has
// ended. Ready is called after the first look.
func (s *Source) Run(ctx context.Context, ready func(), sink func([]aggregator.Event)) error {
	tick := time.NewTicker(s.o.Every)
	defer tick.Stop()
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

// Close has nothing to do.
func (s *Source) Close() error { return nil }

// over says whether all processes that were asked for have ended.
func (s *Source) over() bool {
	for _, pid := range s.o.PIDs {
		if _, err := os.Stat(fmt.Sprintf("/proc/%d", pid)); err == nil {
			return false
		}
	}
	return len(s.o.PIDs) > 0
}

// Waiting lists the PIDs that were asked for and are in no segment yet.
func (s *Source) Waiting() []uint32 {
	return slices.DeleteFunc(slices.Clone(s.o.PIDs), func(pid uint32) bool { return s.processes[pid] != nil })
}

func (s *Source) notice(text string) {
	const most = 1000
	if !s.noticed[text] && len(s.noticed) < most {
		s.noticed[text] = true
		s.o.Notice(text)
	}
}

// maxSegments bounds how many segments are read: no host has as many chips.
const maxSegments = 1024

// poll looks at all segments, and says what changed.
func (s *Source) poll() []aggregator.Event {
	now := s.o.Now()
	type segment struct {
		*Account
		name string
		file fileID
	}
	var segments []segment
	for _, name := range s.names() {
		g, id, err := read(s.o.Dir, name)
		if err != nil {
			s.refused(name, err)
			continue
		}
		segments = append(segments, segment{g, name, id})
	}
	seen := map[uint32]*process{}
	ghosts := map[uint64][]aggregator.Ghost{}
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
					seen[pid] = &process{started, map[uint64]aggregator.Sums{}}
				}
				seen[pid].sums[g.ID] = sums(s.chip(g.Account, pid), e.Use)
			}
		}
		if list := s.left(g.name, gone); len(list) > 0 {
			ghosts[g.ID] = list
		}
	}
	return s.changes(now, seen, ghosts)
}

// left are the entries of processes that are gone. One that ended in order has
// taken its entry out before, so it is not there any more when read again.
func (s *Source) left(name string, gone []uint32) []aggregator.Ghost {
	if len(gone) == 0 {
		return nil
	}
	g, _, err := read(s.o.Dir, name)
	if err != nil {
		return nil
	}
	var list []aggregator.Ghost
	for _, e := range g.Processes {
		if slices.Contains(gone, e.PID) && e.Use != (Use{}) {
			chip := s.chip(g, e.PID)
			list = append(list, aggregator.Ghost{PID: e.PID, Command: e.Command, Sums: sums(chip, e.Use)})
			s.notice(fmt.Sprintf("chip %d: the runtime still counts for process %d (%s), which is gone: not shown. It stays until %s/%s is removed",
				chip.Number, e.PID, e.Command, s.o.Dir, name))
		}
	}
	return list
}

// names are the segments that there are.
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
			if _, ok := uniqueOf(n); ok {
				list = append(list, n)
			}
		}
		if err != nil || len(list) > maxSegments {
			break
		}
	}
	slices.Sort(list)
	if len(list) > maxSegments {
		s.notice(fmt.Sprintf("%s has more than %d segments of the runtime: the others are not read", s.o.Dir, maxSegments))
		list = list[:maxSegments]
	}
	return list
}

// refused says why a segment is not read.
func (s *Source) refused(name string, err error) {
	switch {
	case errors.Is(err, errBlank), errors.Is(err, os.ErrNotExist):
	case errors.Is(err, os.ErrPermission):
		owner := "another user"
		if st, err := os.Lstat(s.o.Dir + "/" + name); err == nil {
			if u, ok := st.Sys().(*syscall.Stat_t); ok {
				owner = fmt.Sprintf("user %d", u.Uid)
			}
		}
		s.notice(fmt.Sprintf("%s/%s belongs to %s: what it counts is not shown", s.o.Dir, name, owner))
	default:
		s.notice(err.Error())
	}
}

// chip is what the chip of a segment is called: as the process that opened it first
// does or, where another chip is called so, as that process alone or another that has it open does.
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

// sums are the use of a chip as the accounts have it.
func sums(chip aggregator.Chip, u Use) aggregator.Sums {
	s := aggregator.Sums{Chip: chip, CB: u.CB}
	s.Requested[aggregator.DRAM], s.Requested[aggregator.L1] = u.DRAM, u.L1
	s.Requested[aggregator.L1Small], s.Requested[aggregator.Trace] = u.L1Small, u.Trace
	return s
}

// changes are the events that make what was told what is.
func (s *Source) changes(now uint64, seen map[uint32]*process, ghosts map[uint64][]aggregator.Ghost) []aggregator.Event {
	var list []aggregator.Event
	tell := func(e aggregator.Event) {
		e.Time = now
		list = append(list, e)
	}
	for pid, p := range s.processes {
		n := seen[pid]
		if n == nil && s.lives(pid, p.started) {
			// It has closed its chips, and may open them again.
			n = &process{p.started, map[uint64]aggregator.Sums{}}
			seen[pid] = n
		}
		if n == nil || n.started != p.started {
			tell(aggregator.Event{Kind: aggregator.ProcessExit, PID: pid})
			delete(s.processes, pid)
		}
	}
	for pid, n := range seen {
		p := s.processes[pid]
		if p == nil {
			info, err := s.o.Describe(pid)
			if err != nil || info.Started != n.started {
				continue // gone meanwhile
			}
			info.Source = aggregator.Summed
			tell(aggregator.Event{Kind: aggregator.ProcessStart, PID: pid, Process: &info})
			p = &process{n.started, map[uint64]aggregator.Sums{}}
			s.processes[pid] = p
		}
		for unique, sums := range n.sums {
			if old, ok := p.sums[unique]; !ok || old != sums {
				tell(aggregator.Event{Kind: aggregator.Counted, PID: pid, Sums: &sums})
			}
		}
		for unique, old := range p.sums {
			if _, ok := n.sums[unique]; !ok {
				tell(aggregator.Event{Kind: aggregator.Counted, PID: pid, Sums: &aggregator.Sums{Chip: old.Chip, Closed: true}})
			}
		}
		p.sums = n.sums
	}
	for unique, g := range ghosts {
		if !slices.Equal(g, s.ghosts[unique]) {
			tell(aggregator.Event{Kind: aggregator.Haunted, Ghosts: &aggregator.Ghosts{Chip: s.chips[unique], List: g}})
		}
	}
	for unique := range s.ghosts {
		if _, ok := ghosts[unique]; !ok {
			tell(aggregator.Event{Kind: aggregator.Haunted, Ghosts: &aggregator.Ghosts{Chip: s.chips[unique]}})
		}
	}
	s.ghosts = ghosts
	return list
}

// lives says whether a process is still the one that was told of.
func (s *Source) lives(pid uint32, started uint64) bool {
	info, err := s.o.Describe(pid)
	return err == nil && info.Started == started
}
