package metrics

import (
	"cmp"
	"math"
	"slices"

	"tt-memtrace/aggregator"
	"tt-memtrace/aggregator/exact"
	"tt-memtrace/internal/export"
)

// other is the label value of everything without series of its own.
const other = "other"

// processes sends each of the processes with the highest peaks, and the sum of the
// others.
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

// rank orders processes by their peak. A peak never falls, so no process comes and
// goes at the limit.
func rank(list []aggregator.ProcessSnapshot) []*aggregator.ProcessSnapshot {
	ranked := make([]*aggregator.ProcessSnapshot, len(list))
	for i := range list {
		ranked[i] = &list[i]
	}
	slices.SortFunc(ranked, func(x, y *aggregator.ProcessSnapshot) int {
		return cmp.Or(cmp.Compare(peak(y), peak(x)), cmp.Compare(x.PID, y.PID))
	})
	return ranked
}

func peak(p *aggregator.ProcessSnapshot) (bytes uint64) {
	for m := range p.Memory {
		u := &p.Memory[m]
		bytes += max(u.PeakReserved.WithoutBound(), u.PeakRequested.WithoutBound())
	}
	return bytes + p.CB.PeakPhysical.WithoutBound()
}

func (s *scrape) process(p *aggregator.ProcessSnapshot, n named) {
	l := n.labels
	if n.started > 0 {
		s.send(processStart, l, n.started)
	}
	s.send(processLibrary, l.with("build_id", clean(p.Info.BuildID), "release", clean(p.Info.Release)), 1)
	s.send(processSource, l.with("source", p.Info.Source.String()), 1)
	s.count(processExact, l, one(p.Exact()))
	s.count(processLate, l, one(p.Late))
	if p.Info.Source != aggregator.Sampled {
		// What comes and goes between two looks is not counted, nor are launches.
		s.count(processAllocs, l, p.Counters.Allocs.WithoutBound())
		s.count(processFrees, l, p.Counters.Frees.WithoutBound())
		s.count(processLaunches, l, p.Counters.Launches.WithoutBound())
	}
	s.count(processImplicit, l, p.Counters.ImplicitFrees.WithoutBound())
	s.count(processUnmatched, l, p.Counters.UnmatchedFrees)
	s.count(processReplaced, l, p.Counters.Replaced)
	s.count(processOdd, l, p.Counters.Odd)
	s.count(processSuspect, l, one(p.Agreement.Suspect))
	s.count(processFound, l, p.Agreement.Found)
	s.count(processCompared, l, p.Agreement.Comparisons)
	s.count(processRepaired, l, p.Agreement.Repaired)
	s.processReasons(l, p.Reasons)
	s.offChip(l, p, p.HostMemory.Bytes())
	for i := range p.Chips {
		s.onChip(l, &p.Chips[i])
	}
}

// processReasons counts why a process's numbers are inexact, by those codes that hold.
func (s *scrape) processReasons(l labels, list []aggregator.Reason) {
	known := exact.ReasonCodes()
	n := map[exact.ReasonCode]uint64{}
	for _, r := range list {
		if _, ok := slices.BinarySearch(known, r.Code); !ok {
			r.Code = other
		}
		n[r.Code]++
	}
	for code, count := range n {
		s.count(processInexact, l.with("code", string(code)), count)
	}
}

// others sends the sum over the processes. It omits their counters: as processes
// come and go among them, the sums would fall.
func (s *scrape) others(list []*aggregator.ProcessSnapshot) {
	host := exact.Of(0)
	total := aggregator.ProcessSnapshot{
		Unplaced: aggregator.EmptyUsages(), Buffers: exact.Of(0), Kernel: aggregator.EmptyKernelUsage(),
	}
	isExact := true
	chips := map[aggregator.Chip]*aggregator.ChipSnapshot{}
	for _, p := range list {
		total.Hidden = total.Hidden.And(p.Hidden)
		// What is hidden makes a sum unknown if nothing was seen. Another sum is marked by the process's reason.
		if p.Buffers.Known() || !p.Hidden.Buffers {
			total.Buffers = total.Buffers.Add(p.Buffers)
		}
		if p.Kernel.Bytes.Known() || !p.Hidden.Programs {
			total.Kernel.Bytes = total.Kernel.Bytes.Add(p.Kernel.Bytes)
		}
		host = host.Add(p.HostMemory.Bytes())
		isExact = isExact && p.Exact()
		for m := range p.Unplaced {
			total.Unplaced[m].Add(&p.Unplaced[m])
		}
		for i := range p.Chips {
			c := &p.Chips[i]
			id := c.Chip
			if id.Space != 0 {
				// Each process has its own numbering, so their number has no bound.
				id = aggregator.Chip{Space: manySpaces}
			}
			sum := chips[id]
			if sum == nil {
				sum = &aggregator.ChipSnapshot{Chip: id, Memory: aggregator.EmptyUsages(), CB: aggregator.EmptyCBUsage()}
				chips[id] = sum
			}
			sum.Hidden = sum.Hidden.And(c.Hidden)
			for m := range c.Memory {
				if u := &c.Memory[m]; u.Buffers.Known() || !c.Hidden.Buffers {
					sum.Memory[m].Add(u)
				}
			}
			if c.CB.Programs.Known() || !c.Hidden.Programs {
				sum.CB.Add(&c.CB)
			}
		}
	}
	l := labels(nil).with("pid", other, "comm", "", "container", "", "pod", "")
	s.count(processExact, l, one(isExact))
	s.offChip(l, &total, host)
	for _, c := range chips {
		s.onChip(l, c)
	}
}

// manySpaces is the value for all private numberings together.
const manySpaces = math.MaxUint32

// offChip sends what belongs to a process, or to the sum of some, and to no single chip.
func (s *scrape) offChip(l labels, p *aggregator.ProcessSnapshot, host exact.Quantity) {
	s.exactly(processBuffers, l, p.Buffers.Unseen(p.Hidden.Buffers))
	s.exactly(processHost, l, host)
	s.exactly(processKernels, l, p.Kernel.Bytes.Unseen(p.Hidden.Programs))
	for m := range p.Unplaced {
		if u := &p.Unplaced[m]; u.Buffers.Some() {
			s.exactly(processUnplaced, l.with("memory", name(aggregator.Memory(m))), u.Requested)
		}
	}
}

// onChip sends a process's use of a chip, without memories that it never used.
func (s *scrape) onChip(l labels, c *aggregator.ChipSnapshot) {
	at := s.places.of(c.Chip)
	for _, m := range export.Shown {
		u := &c.Memory[m]
		if !u.PeakRequested.Some() {
			continue
		}
		l := l.and(at.memory[m])
		s.exactly(processRequested, l, u.Requested.Unseen(c.Hidden.Buffers))
		s.exactly(processReserved, l, u.Reserved.Unseen(c.Hidden.Buffers))
	}
	if c.CB.PeakLogical.Some() {
		l, cb := l.and(at.chip), &c.CB
		s.exactly(processCBPhysical, l, cb.Physical.Unseen(c.Hidden.Programs))
		s.exactly(processCBLogical, l, cb.Logical.Unseen(c.Hidden.Programs))
	}
}
