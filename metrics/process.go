package metrics

import (
	"cmp"
	"math"
	"slices"

	"tt-memtrace/aggregator"
	"tt-memtrace/export"
)

// other stands in a label for everything that has no series of its own.
const other = "other"

// processes sends the processes that ever held most, each by itself, and what
// the rest holds together.
func (s *scrape) processes(list []aggregator.ProcessSnapshot, limit int, n *names) {
	ranked := rank(list)
	shown := min(max(limit, 0), len(ranked))
	s.count(processes, nil, uint64(len(ranked)))
	s.count(processesShown, nil, uint64(shown))
	for i, named := range n.of(ranked[:shown]) {
		s.process(ranked[i], named)
	}
	if shown < len(ranked) {
		s.others(ranked[shown:])
	}
}

// rank orders processes by the most that they ever held. That never falls, so
// that a process does not come and go at the limit.
func rank(list []aggregator.ProcessSnapshot) []*aggregator.ProcessSnapshot {
	ranked := make([]*aggregator.ProcessSnapshot, len(list))
	for i := range list {
		ranked[i] = &list[i]
	}
	slices.SortFunc(ranked, func(x, y *aggregator.ProcessSnapshot) int {
		return cmp.Or(cmp.Compare(most(y), most(x)), cmp.Compare(x.PID, y.PID))
	})
	return ranked
}

func most(p *aggregator.ProcessSnapshot) (bytes uint64) {
	for m := range p.Memory {
		u := &p.Memory[m]
		bytes += max(u.PeakReserved, u.PeakRequested)
	}
	return bytes + p.CB.PeakPhysical
}

func (s *scrape) process(p *aggregator.ProcessSnapshot, n named) {
	l := n.labels
	if n.started > 0 {
		s.send(processStart, l, n.started)
	}
	s.send(processLibrary, l.with("build_id", clean(p.Info.BuildID), "release", clean(p.Info.Release)), 1)
	s.count(processLate, l, one(p.Late))
	s.count(processAllocs, l, p.Counters.Allocs)
	s.count(processFrees, l, p.Counters.Frees)
	s.count(processImplicit, l, p.Counters.ImplicitFrees)
	s.count(processUnmatched, l, p.Counters.UnmatchedFrees)
	s.count(processReplaced, l, p.Counters.Replaced)
	s.count(processOdd, l, p.Counters.Odd)
	s.count(processLaunches, l, p.Counters.Launches)
	s.count(processDoubted, l, one(p.Agreement.Doubted))
	s.count(processFound, l, p.Agreement.Found)
	s.count(processCompared, l, p.Agreement.Comparisons)
	s.count(processRepaired, l, p.Agreement.Repaired)
	s.held(l, p.Buffers, &p.Kernel, &p.Unplaced)
	for i := range p.Chips {
		s.share(l, &p.Chips[i])
	}
}

// others sends what processes hold together. Their counters are left out: as
// processes come and go among them, the sums would fall.
func (s *scrape) others(list []*aggregator.ProcessSnapshot) {
	var buffers uint64
	var kernel aggregator.KernelUsage
	var unplaced [aggregator.NumMemories]aggregator.Usage
	chips := map[aggregator.Chip]*aggregator.ChipSnapshot{}
	for _, p := range list {
		buffers += p.Buffers
		addKernels(&kernel, &p.Kernel)
		addUsage(&unplaced, &p.Unplaced)
		for i := range p.Chips {
			c := &p.Chips[i]
			id := c.Chip
			if id.Space != 0 {
				// Each has a numbering of its own: as series they would be without bounds.
				id = aggregator.Chip{Space: manySpaces}
			}
			sum := chips[id]
			if sum == nil {
				sum = &aggregator.ChipSnapshot{Chip: id}
				chips[id] = sum
			}
			addUsage(&sum.Memory, &c.Memory)
			sum.CB.Physical += c.CB.Physical
			sum.CB.Logical += c.CB.Logical
			sum.CB.PeakLogical += c.CB.PeakLogical
		}
	}
	l := labels(nil).with("pid", other, "comm", "", "container", "", "pod", "")
	s.held(l, buffers, &kernel, &unplaced)
	for _, c := range chips {
		s.share(l, c)
	}
}

// manySpaces stands for all private numberings together.
const manySpaces = math.MaxUint32

func addUsage(sum, of *[aggregator.NumMemories]aggregator.Usage) {
	for m := range of {
		sum[m].Requested += of[m].Requested
		sum[m].Reserved += of[m].Reserved
		sum[m].Buffers += of[m].Buffers
		sum[m].Unreserved += of[m].Unreserved
		sum[m].PeakRequested += of[m].PeakRequested
	}
}

func addKernels(sum, of *aggregator.KernelUsage) {
	for t := range of.Bytes {
		sum.Bytes[t] += of.Bytes[t]
	}
	sum.Unsized += of.Unsized
}

// held sends what a process holds that belongs to no one chip.
func (s *scrape) held(l labels, buffers uint64, kernel *aggregator.KernelUsage, unplaced *[aggregator.NumMemories]aggregator.Usage) {
	s.count(processBuffers, l, buffers)
	if bytes, known := sized(kernel); known {
		s.count(processKernels, l, bytes)
	}
	for m := range unplaced {
		if unplaced[m].Buffers > 0 {
			s.count(processUnplaced, l.with("memory", name(aggregator.Memory(m))), unplaced[m].Requested)
		}
	}
}

// share sends what a process holds of a chip; of memories that it never used, nothing.
func (s *scrape) share(l labels, c *aggregator.ChipSnapshot) {
	at := s.places.of(c.Chip)
	for _, m := range export.Shown {
		u := &c.Memory[m]
		if u.PeakRequested == 0 {
			continue
		}
		l := l.and(at.memory[m])
		s.count(processRequested, l, u.Requested)
		if u.Unreserved == 0 {
			s.count(processReserved, l, u.Reserved)
		}
	}
	if c.CB.PeakLogical > 0 {
		l := l.and(at.chip)
		s.count(processCBPhysical, l, c.CB.Physical)
		s.count(processCBLogical, l, c.CB.Logical)
	}
}
