package report

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"tt-memtrace/aggregator"
	"tt-memtrace/aggregator/exact"
	"tt-memtrace/internal/export"
)

// Facts describe the source of a report.
type Facts struct {
	Host, Source string
	// Began is the time of the beginning by the clock of the events; it counts where there are none.
	Began uint64
	// Wall converts a time of the events to the time of day.
	Wall func(uint64) time.Time
}

// Maximum number of entries of a report's lists.
const (
	manyHolders = 20
	manySites   = 100
)

// Report makes the report of everything received so far.
func (b *Builder) Report(f Facts) *Report {
	if b.first == 0 {
		b.first, b.last = f.Began, f.Began
	}
	if b.inState { // the recording ends within it
		b.forget(b.stateAt)
	}
	s := b.accounts.Snapshot()
	lost := max(b.lost, s.Counters.Lost)
	r := &Report{
		Schema: Schema, Host: f.Host, Source: export.Text(f.Source), Began: f.Wall(b.first), Seconds: b.seconds(b.last),
		// Peaks and lifetimes lack lost events, even if the accounts were corrected since.
		Events: s.Counters.Events, Lost: lost, Exact: s.Exact() && lost == 0 && !b.lacking && s.Counters.ExitedInexact == 0, Stacks: b.stacks, StacksCut: b.cut,
		Processes: []Process{}, Memories: []Memory{}, Programs: []Programs{}, Failures: b.failures, Unsafe: b.unsafeSites(), Advice: []Advice{},
	}
	r.first, r.lacking = b.first, b.lacking
	if b.stacks > 0 {
		r.StacksLost = b.bare
	}
	if b.omitted != (OmittedFailures{}) {
		r.FailuresOmitted = &b.omitted
	}
	if r.Failures == nil {
		r.Failures = []Failure{}
	}
	r.unseen = slices.ContainsFunc(s.Reasons, func(why aggregator.Reason) bool { return why.Code == exact.ReasonSampled && why.PID == 0 })
	r.Sampled = r.unseen
	missing := slices.Collect(s.Why())
	for _, p := range s.Ended {
		r.Exact = r.Exact && p.Exact() && p.Counters.Odd == 0
		missing = append(missing, p.Reasons...)
	}
	hidesUnsafe := r.unseen
	for _, p := range slices.Concat(s.Processes, s.Ended) {
		r.Sampled = r.Sampled || p.Info.Source == aggregator.Sampled
		hidesUnsafe = hidesUnsafe || p.HidesUnsafe()
		r.tracesBefore = r.tracesBefore || slices.ContainsFunc(p.Reasons, func(why aggregator.Reason) bool { return why.Code == exact.ReasonTracesBeforeAttach })
	}
	if hidesUnsafe && len(r.Unsafe) == 0 {
		r.Unsafe = nil
	}
	for _, pid := range slices.Sorted(maps.Keys(b.untraced)) {
		if !slices.ContainsFunc(missing, func(why aggregator.Reason) bool { return why.PID == pid && why.Code == exact.ReasonNotTraced }) {
			missing, r.Exact = append(missing, b.untraced[pid]), false // it has ended
		}
	}
	r.buffersUnseen = lost > 0 || b.lacking || aggregator.Affected(missing, exact.AffectsBuffers)
	for _, why := range missing {
		if why.Code.Missed() && why.PID != 0 {
			r.missed = append(r.missed, fmt.Sprintf("process %d: %s", why.PID, printable(export.Text(why.String()))))
		}
	}
	r.unsurePeaks, r.failuresUnseen = unsurePeaks(s), !s.SeesFailures()
	r.Exact = r.Exact && !r.unsurePeaks
	b.reportProcesses(r)
	for _, k := range slices.SortedFunc(maps.Keys(b.spaces), compareSpaces) {
		if sp := b.spaces[k]; sp.peak.buffers > 0 {
			r.Memories = append(r.Memories, b.memory(chipSpace{sp, k.chip}))
		}
	}
	for _, c := range slices.SortedFunc(maps.Keys(b.programs), compareChips) {
		r.Programs = append(r.Programs, b.programsOf(c))
	}
	b.reportSites(r)
	if why := b.noAdvice(r); why != "" {
		r.NoAdvice = known(why)
	} else {
		r.Advice = b.advice()
	}
	return r
}

// unsurePeaks reports whether a peak of any chip may differ, because the use was not known at every moment.
func unsurePeaks(s *aggregator.Snapshot) bool {
	unsure := func(c aggregator.ChipSnapshot) bool {
		// The reasons that hide what was held are reported beside this.
		known := func(q exact.Quantity, hidden bool) bool {
			_, exactly := q.Exact()
			return exactly || hidden && !q.Known()
		}
		for m := range c.Memory {
			u := &c.Memory[m]
			// If no reserved size is known, the peak is of requested ones.
			if !known(u.PeakRequested, c.Hidden.Buffers) || u.PeakReserved.Known() && !known(u.PeakReserved, false) {
				return true
			}
		}
		return !known(c.CB.PeakLogical, c.Hidden.Programs)
	}
	// Chips of a process's own numbering end with it.
	ended := func(p aggregator.ProcessSnapshot) bool { return slices.ContainsFunc(p.Chips, unsure) }
	return slices.ContainsFunc(s.Chips, unsure) || slices.ContainsFunc(s.Ended, ended)
}

func compareChips(x, y aggregator.Chip) int {
	return cmp.Or(cmp.Compare(x.Space, y.Space), cmp.Compare(x.Number, y.Number))
}

func compareBuffers(x, y bufferKey) int {
	return cmp.Or(cmp.Compare(x.pid, y.pid), cmp.Compare(x.id, y.id))
}

func compareSpaces(x, y spaceKey) int {
	return cmp.Or(compareChips(x.chip, y.chip), cmp.Compare(x.memory, y.memory))
}

func (b *Builder) seconds(at uint64) float64 { return float64(max(at, b.first)-b.first) / 1e9 }

func (b *Builder) reportProcesses(r *Report) {
	all := append(slices.Clone(b.ended), b.running()...)
	slices.SortStableFunc(all, func(x, y *process) int { return cmp.Or(cmp.Compare(x.from, y.from), cmp.Compare(x.pid, y.pid)) })
	for _, p := range all {
		rp := Process{PID: p.pid, Command: known(p.info.Command), Release: known(p.info.Release), From: b.seconds(p.from),
			RanBefore: p.ranBefore(), HeldAtExit: p.held.buffers, HeldBytesAtExit: p.held.bytes}
		if p.to > 0 {
			to := b.seconds(p.to)
			rp.To, rp.exit = &to, p.exit
		}
		rp.ExitStatus, rp.ExitSignal = export.ExitOf(p.exit)
		if p.launched >= b.first && p.launched > 0 {
			at := b.seconds(p.launched)
			rp.LastLaunch = &at
		}
		host := &p.host
		rp.HostFirst, rp.HostPeak, rp.HostLast = export.Exactly(host.First()), export.Exactly(host.Peak()), export.Exactly(host.Bytes())
		r.Processes = append(r.Processes, rp)
	}
}

func (b *Builder) memory(s chipSpace) Memory {
	s.capture()
	m := Memory{
		Chip: s.chip.Number, Private: privateTo(s.chip), Memory: MemoryName(s.memory.String()), Peak: s.peak.bytes, PeakAt: b.seconds(s.peakAt),
		PeakBuffers: s.peak.buffers, Holders: most(s.holders, manyHolders), End: s.used.bytes, Timeline: []Point{},
	}
	if s.peakBanks.Known {
		n := uint64(s.peakBanks.Count) * s.peakBanks.Bytes
		m.Capacity = &n
	}
	line := s.line
	line.list, line.since = slices.Clone(line.list), maps.Clone(line.since)
	line.advance(b.last+line.step, s.space)
	if f := s.fragmented; f != nil {
		m.Fragmented = &Fragmentation{b.seconds(f.at), f.free, f.largest}
	}
	for _, p := range line.list {
		pt := Point{At: b.seconds(p.at), Used: p.used, sites: p.sites}
		if p.known {
			pt.Free, pt.Largest = &p.free, &p.largest
		}
		m.Timeline = append(m.Timeline, pt)
	}
	return m
}

func deref(t *export.Text) export.Text {
	if t == nil {
		return ""
	}
	return *t
}

// reportSites adds the sites whose buffers were not freed and those that allocated most.
func (b *Builder) reportSites(r *Report) {
	type sum struct {
		tally
		ages
	}
	left := map[*site]*sum{}
	for _, s := range b.sites.all {
		if s.left.buffers > 0 {
			left[s] = &sum{s.left, s.ages}
		}
		r.sites = append(r.sites, s)
	}
	for _, k := range slices.SortedFunc(maps.Keys(b.live), compareBuffers) {
		h := b.live[k]
		l := left[h.site]
		if l == nil {
			l = &sum{}
			left[h.site] = l
		}
		l.tally.add(h.total())
		l.ages.add(h, b.last)
		b.lived(life{h.site.pid, h.site, h.since, b.last, h.total()})
	}
	r.lives = b.lives
	slices.SortFunc(r.sites, compareSites)
	byLeft := slices.SortedFunc(maps.Keys(left), func(x, y *site) int {
		return cmp.Or(cmp.Compare(left[y].bytes, left[x].bytes), compareSites(x, y))
	})
	r.Left = withOthers(byLeft, manySites, func(s *site) Site {
		p := s.public(left[s].tally)
		p.Oldest, p.Youngest = left[s].ages.public()
		p.AtExit, p.AtClose = s.atExit, s.atClose
		return p
	}, func(others *Site, s *site) {
		others.sum(s.memory, left[s].tally)
		others.AtExit, others.AtClose = others.AtExit+s.atExit, others.AtClose+s.atClose
	})
	churn := slices.DeleteFunc(slices.Clone(r.sites), func(s *site) bool { return s.allocs == 0 })
	slices.SortStableFunc(churn, func(x, y *site) int { return cmp.Compare(y.bytes, x.bytes) })
	r.Churn = withOthers(churn, manySites, func(s *site) Site {
		p := s.public(tally{s.allocs, s.bytes})
		p.Freed, p.Most = s.freed, s.most
		if s.timed > 0 {
			life := float64(s.lived) / float64(s.timed) / 1e9
			p.MeanLife = &life
		}
		return p
	}, func(others *Site, s *site) {
		others.sum(s.memory, tally{s.allocs, s.bytes})
		others.Freed += s.freed
	})
}
