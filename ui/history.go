package ui

import (
	"maps"
	"slices"
	"time"

	"tt-memtrace/aggregator"
	"tt-memtrace/aggregator/exact"
	"tt-memtrace/internal/telemetry"
	"tt-memtrace/ui/text"
	"tt-memtrace/ui/widget"
)

// metric is something that has a history.
type metric uint8

const (
	metricDRAM metric = iota
	metricL1
	metricL1Small
	metricTrace
	metricCB
	metricHost // of a process
	metricRate
	metricTemperature
	metricPower
	metricClock
	numMetrics
)

var metricNames = [numMetrics]string{"DRAM", "L1", "L1_SMALL", "TRACE", programsTitle, "host memory", "events/s", "temperature", "power", "clock"}

// subject is what a series of values belongs to: a chip, or a process with all its chips. The rate of all events
// belongs to neither.
type subject struct {
	chip    aggregator.Chip
	metric  metric
	process processID
}

// history keeps the values of all chips and processes: the highest of each second for 15 minutes, of 10 seconds for two
// hours, of each minute for a day, and of 10 minutes for a week. A series has at most 65 kB of values, and there are at
// most maxSeries.
type history struct {
	series map[subject]*series
	// seen is the snapshot that was added last.
	seen *aggregator.Snapshot
	// begun is when a process was first added.
	begun map[processID]uint64
	// first and last are the times of the first and last values, CLOCK_MONOTONIC ns.
	first, last uint64
}

// Chips get new series up to maxSeries in total, processes only up to maxProcessSeries in total.
const (
	maxSeries        = 1280
	maxProcessSeries = 800
)

// tiers are the resolutions, from fine to coarse.
var tiers = [...]struct {
	step uint64
	keep int
}{{1e9, 900}, {10e9, 720}, {60e9, 1440}, {600e9, 1008}}

type series struct {
	tiers [len(tiers)]ring
	// peaks are the highest values ever, in the last snapshot.
	peaks value
	// A process had nothing from none up to first.
	none, first uint64
}

// value has both sizes of a memory. They are equal if there is only one.
type value struct{ reserved, requested uint64 }

func (v value) pick(requested bool) uint64 {
	if requested {
		return v.requested
	}
	return v.reserved
}

// highest returns the higher of two numbers, either of which may be unknown.
func highest(a, b uint64) uint64 {
	switch {
	case a == widget.Unknown:
		return b
	case b == widget.Unknown:
		return a
	}
	return max(a, b)
}

// ring has the newest values of equal intervals, and overwrites the oldest.
type ring struct {
	values []value
	// next is the place of the oldest value, which a full ring overwrites next. last is the number of the newest
	// interval.
	next int
	last uint64
}

// rewind drops the values after an interval.
func (r *ring) rewind(to uint64) {
	n := uint64(len(r.values))
	if n == 0 || r.last <= to {
		return
	}
	r.values = slices.Concat(r.values[r.next:], r.values[:r.next])[:n-min(r.last-to, n)]
	r.next, r.last = 0, to
}

// put adds a value to an interval, which is the newest one or a later one. Of several values it keeps the highest.
func (r *ring) put(interval uint64, v value, keep int) {
	n := len(r.values)
	if n > 0 && interval == r.last {
		newest := &r.values[(r.next+n-1)%n]
		newest.reserved, newest.requested = highest(newest.reserved, v.reserved), highest(newest.requested, v.requested)
		return
	}
	if n > 0 {
		// The intervals in between are unknown.
		for gap := min(interval-r.last-1, uint64(keep)); gap > 0; gap-- {
			r.push(value{widget.Unknown, widget.Unknown}, keep)
		}
	}
	r.push(v, keep)
	r.last = interval
}

func (r *ring) push(v value, keep int) {
	if len(r.values) < keep {
		r.values = append(r.values, v)
		return
	}
	r.values[r.next] = v
	r.next = (r.next + 1) % keep
}

// at returns the value of an interval; unknown if it is later than the newest one. It is false if the ring does not
// reach back to the interval, or is empty.
func (r *ring) at(interval uint64) (value, bool) {
	n := uint64(len(r.values))
	if interval > r.last || n == 0 {
		return value{widget.Unknown, widget.Unknown}, n > 0
	}
	back := r.last - interval
	if back >= n {
		return value{widget.Unknown, widget.Unknown}, false
	}
	return r.values[(uint64(r.next)+n-1-back)%n], true
}

func newHistory() *history {
	return &history{series: map[subject]*series{}, begun: map[processID]uint64{}}
}

// add adds the values of now.
func (h *history) add(d *data) {
	switch {
	case d.now < h.first:
		*h = *newHistory() // now is before all values
	case d.now < h.last:
		h.rewind(d.now)
	}
	if h.first == 0 {
		h.first = d.now
	}
	if h.seen == d.snapshot && h.last/tiers[0].step == d.now/tiers[0].step {
		return // nothing has happened, and little time has passed
	}
	previous := h.last
	h.last, h.seen = d.now, d.snapshot
	for i := range d.snapshot.Chips {
		c := &d.snapshot.Chips[i]
		h.opened(c.Chip, previous, d.snapshot)
		for j, m := range shownMemories() {
			u := &c.Memory[m]
			if u.Banks.Known && u.Banks.Count == 0 && !u.Buffers.Some() {
				continue
			}
			reserved, requested := settings{}.amountOf(*u), settings{requested: true}.amountOf(*u)
			h.put(subject{chip: c.Chip, metric: metric(j)}, value{reserved.known(), requested.known()}, value{u.PeakReserved.WithoutBound(), u.PeakRequested.WithoutBound()}, d.now)
		}
		cb := programsOf(c.CB).known()
		h.put(subject{chip: c.Chip, metric: metricCB}, value{cb, cb}, value{c.CB.PeakPhysical.WithoutBound(), c.CB.PeakPhysical.WithoutBound()}, d.now)
		if t := telemetryOf(d, c); t != nil {
			for m, v := range map[metric]telemetry.Value{metricTemperature: t.Temperature, metricPower: t.Power, metricClock: t.AI} {
				if v.Known && v.N >= 0 {
					h.put(subject{chip: c.Chip, metric: m}, value{uint64(v.N), uint64(v.N)}, value{}, d.now)
				}
			}
		}
	}
	if d.rates.known && d.rates.events >= 0 {
		n := uint64(d.rates.events)
		h.put(subject{metric: metricRate}, value{n, n}, value{}, d.now)
	}
	if max(len(h.series), len(h.begun)) >= maxProcessSeries {
		h.forget(d.snapshot)
	}
	for i := range d.snapshot.Processes {
		h.addProcess(&d.snapshot.Processes[i], d)
	}
}

// opened begins the history of a chip that was opened only by processes which came after the last snapshot. Before that
// it had nothing, so its peaks are from the time since then.
func (h *history) opened(c aggregator.Chip, previous uint64, s *aggregator.Snapshot) {
	if previous == 0 || h.has(subject{chip: c, metric: metricCB}) || len(h.series) > maxSeries-int(metricCB)-1 {
		return
	}
	for _, list := range [][]aggregator.ProcessSnapshot{s.Processes, s.Ended} {
		for i := range list {
			p := &list[i]
			on := func(x aggregator.ChipSnapshot) bool { return x.Chip == c }
			if (p.Since <= previous || p.Late) && slices.ContainsFunc(p.Chips, on) {
				return
			}
		}
	}
	for m := range metricCB + 1 {
		h.series[subject{chip: c, metric: m}] = &series{}
	}
}

// rewind drops the values after a time, because the user moved a replay back.
func (h *history) rewind(to uint64) {
	for _, s := range h.series {
		for i := range tiers {
			s.tiers[i].rewind(to / tiers[i].step)
		}
	}
	h.last, h.seen = to, nil
}

// addProcess adds the values of a process. Metrics that it has never used get no series; most processes use few.
func (h *history) addProcess(p *aggregator.ProcessSnapshot, d *data) {
	if _, ok := h.begun[idOf(p)]; !ok {
		h.begun[idOf(p)] = d.now
	}
	put := func(m metric, v value) {
		of := subject{process: idOf(p), metric: m}
		switch {
		case h.series[of] != nil:
		case v == value{}:
			return
		case len(h.series) >= maxProcessSeries:
			delete(h.begun, of.process) // without a series its values are unknown
			return
		}
		// The sum of peaks over chips is no peak.
		h.put(of, v, value{}, d.now)
		if s := h.series[of]; s != nil && s.first == 0 {
			s.none, s.first = h.begun[of.process], d.now
		}
	}
	reserved, requested := settings{}.processAmounts(p), settings{requested: true}.processAmounts(p)
	for i := range reserved {
		put(metric(i), value{reserved[i].known(), requested[i].known()})
	}
	// If it was not read, it is unknown, not 0.
	of := subject{process: idOf(p), metric: metricHost}
	if host, known := p.HostMemory.Bytes().Exact(); known && (h.series[of] != nil || len(h.series) < maxProcessSeries) {
		peak := p.HostMemory.Peak().WithoutBound()
		h.put(of, value{host, host}, value{peak, peak}, d.now)
	}
	if r, known := d.rates.calls[idOf(p)]; known {
		put(metricRate, value{uint64(r), uint64(r)})
	}
}

// recentSpans are the time spans of the overview's charts.
var recentSpans = []struct {
	time time.Duration
	name string
}{{30 * time.Second, "30 s"}, {time.Minute, "1 min"}, {2 * time.Minute, "2 min"}, {5 * time.Minute, "5 min"}}

// recent returns the shortest of these spans that contains the whole history, or the longest, and its name.
func (h *history) recent(now uint64) (time.Duration, string) {
	for _, s := range recentSpans {
		if h.first > 0 && time.Duration(now-min(h.first, now)) <= s.time {
			return s.time, s.name
		}
	}
	last := recentSpans[len(recentSpans)-1]
	return last.time, last.name
}

// forget drops processes that are not even among the last that ended.
func (h *history) forget(s *aggregator.Snapshot) {
	known := map[processID]bool{{}: true}
	for _, list := range [][]aggregator.ProcessSnapshot{s.Processes, s.Ended} {
		for i := range list {
			known[idOf(&list[i])] = true
		}
	}
	maps.DeleteFunc(h.series, func(of subject, _ *series) bool { return !known[of.process] })
	maps.DeleteFunc(h.begun, func(id processID, _ uint64) bool { return !known[id] })
}

// known returns the used bytes, or widget.Unknown.
func (a amount) known() uint64 {
	n, bound := a.used.Value()
	if bound == exact.Unknown && !a.absent() {
		return widget.Unknown
	}
	return n
}

// put adds a value to a series. If the peak has risen since the last value, the peak was reached in between, so it is
// the highest value of this interval.
func (h *history) put(of subject, v, peaks value, now uint64) {
	s := h.series[of]
	if s == nil {
		if len(h.series) >= maxSeries {
			return
		}
		s = &series{peaks: peaks}
		h.series[of] = s
	}
	if peaks.reserved > s.peaks.reserved {
		v.reserved = highest(v.reserved, peaks.reserved)
	}
	if peaks.requested > s.peaks.requested {
		v.requested = highest(v.requested, peaks.requested)
	}
	s.peaks = peaks
	for i := range tiers {
		s.tiers[i].put(now/tiers[i].step, v, tiers[i].keep)
	}
}

// has reports whether a subject has values.
func (h *history) has(of subject) bool { return h.series[of] != nil }

// read returns the highest value in each of n equal parts of a time, in the finest resolution that is still kept.
func (h *history) read(of subject, from, to uint64, n int, requested bool) []uint64 {
	out := make([]uint64, n)
	s := h.series[of]
	if begun, ok := h.begun[of.process]; s == nil && ok {
		s = &series{none: begun, first: h.last + 1}
	}
	for i := range out {
		out[i] = widget.Unknown
		if s == nil {
			continue
		}
		begin := from + uint64(float64(to-from)*float64(i)/float64(n))
		end := max(from+uint64(float64(to-from)*float64(i+1)/float64(n)), begin+1)
		if out[i] = s.highest(begin, end, requested); out[i] == widget.Unknown && begin >= s.none && begin < s.first {
			out[i] = 0
		}
	}
	return out
}

// highest returns the highest value from begin up to end.
func (s *series) highest(begin, end uint64, requested bool) uint64 {
	for i := range tiers {
		r, step := &s.tiers[i], tiers[i].step
		if _, ok := r.at(begin / step); !ok && len(r.values) == tiers[i].keep && i < len(tiers)-1 {
			continue // this tier no longer has values of that time
		}
		out := uint64(widget.Unknown)
		// A week has many intervals: look only at those with values.
		for k := max(begin/step, r.last+1-uint64(len(r.values))); k <= min((end-1)/step, r.last); k++ {
			v, _ := r.at(k)
			out = highest(out, v.pick(requested))
		}
		return out
	}
	return widget.Unknown
}

// spark returns a small plot of the newest values of a subject, in w cells.
func (h *history) spark(of subject, now uint64, window time.Duration, w int, requested bool, g text.Glyphs) text.Line {
	values := h.read(of, now-min(now, uint64(window)), now, w, requested)
	var top uint64
	for _, v := range values {
		if v != widget.Unknown {
			top = max(top, v)
		}
	}
	out := ""
	for _, v := range values {
		switch {
		case v == widget.Unknown:
			out += " "
		case top == 0:
			out += g.Sparks[0]
		default:
			out += g.Sparks[min(int(float64(v)/float64(top)*float64(len(g.Sparks))), len(g.Sparks)-1)]
		}
	}
	return text.Second.Line(out)
}

// telemetryOf returns the driver's values of a chip; nil if it has none.
//
// The runtime numbers chips with PCIe as the driver numbers their nodes, and before all others. If the driver and the
// runtime report different cards, it is not the same chip.
func telemetryOf(d *data, c *aggregator.ChipSnapshot) *telemetry.Device {
	if c.Chip.Space != 0 {
		return nil
	}
	for i := range d.devices {
		t := &d.devices[i]
		if t.Node == c.Chip.Number && (t.Card == "" || c.Board == "" || t.Card == c.Board) {
			return t
		}
	}
	return nil
}
