package ui

import (
	"maps"
	"slices"
	"time"

	"tt-memtrace/aggregator"
	"tt-memtrace/telemetry"
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

// subject is what a series of values is of: of a chip, or of what a process has on all of its
// chips. The rate of all events is of neither.
type subject struct {
	chip    aggregator.Chip
	metric  metric
	process processID
}

// history keeps the values of all chips and processes: the highest of each second for a
// quarter of an hour, of ten seconds for two hours, of a minute for a day, of ten minutes for
// a week. A series takes 65 kB at most, and there are at most maxSeries.
type history struct {
	series map[subject]*series
	// seen is the snapshot that was added last.
	seen *aggregator.Snapshot
	// begun is when a process was added.
	begun map[processID]uint64
	// first and last are the times that were added first and last, CLOCK_MONOTONIC ns.
	first, last uint64
}

// maxSeries of which chips may have all, and processes what chips are unlikely to need.
const (
	maxSeries        = 1280
	maxProcessSeries = 800
)

// tiers are from fine to coarse.
var tiers = [...]struct {
	step uint64
	keep int
}{{1e9, 900}, {10e9, 720}, {60e9, 1440}, {600e9, 1008}}

type series struct {
	tiers [len(tiers)]ring
	// peaks are the highest values ever, as of the last snapshot.
	peaks value
	// Of a process there was nothing yet from none up to first.
	none, first uint64
}

// value has both sizes of a memory; for what has one they are the same.
type value struct{ reserved, requested uint64 }

func (v value) pick(requested bool) uint64 {
	if requested {
		return v.requested
	}
	return v.reserved
}

// highest of two numbers where one may not be known.
func highest(a, b uint64) uint64 {
	switch {
	case a == widget.Unknown:
		return b
	case b == widget.Unknown:
		return a
	}
	return max(a, b)
}

// ring has the newest values of equal intervals.
type ring struct {
	values []value
	// next is where the next one goes, last the number of the newest interval.
	next int
	last uint64
}

// rewind forgets what comes after an interval.
func (r *ring) rewind(to uint64) {
	n := uint64(len(r.values))
	if n == 0 || r.last <= to {
		return
	}
	r.values = slices.Concat(r.values[r.next:], r.values[:r.next])[:n-min(r.last-to, n)]
	r.next, r.last = 0, to
}

// put sets the value of an interval, which is the newest or comes after it.
func (r *ring) put(interval uint64, v value, keep int) {
	n := len(r.values)
	if n > 0 && interval == r.last {
		newest := &r.values[(r.next+n-1)%n]
		newest.reserved, newest.requested = highest(newest.reserved, v.reserved), highest(newest.requested, v.requested)
		return
	}
	if n > 0 {
		// Of what lies between nothing is known.
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

// at is the value of an interval, and whether the ring reaches back to it.
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

// add takes down what is known now.
func (h *history) add(d *data) {
	switch {
	case d.now < h.first:
		*h = *newHistory() // the source began again
	case d.now < h.last:
		h.rewind(d.now)
	}
	if h.first == 0 {
		h.first = d.now
	}
	if h.seen == d.snapshot && h.last/tiers[0].step == d.now/tiers[0].step {
		return // nothing has happened, and not much time passed
	}
	previous := h.last
	h.last, h.seen = d.now, d.snapshot
	hs := hidersOf(d.snapshot)
	for i := range d.snapshot.Chips {
		c := &d.snapshot.Chips[i]
		unsure := hs.on(c)
		h.opened(c.Chip, previous, d.snapshot)
		for j, m := range shownMemories() {
			u := &c.Memory[m]
			if u.Banks.Known && u.Banks.Count == 0 && u.Buffers == 0 {
				continue
			}
			reserved, requested := settings{}.amountOf(*u, unsure), settings{requested: true}.amountOf(*u, unsure)
			h.put(subject{chip: c.Chip, metric: metric(j)}, value{reserved.known(), requested.known()}, value{u.PeakReserved, u.PeakRequested}, d.now)
		}
		cb := programsOf(c.CB, unsure).known()
		h.put(subject{chip: c.Chip, metric: metricCB}, value{cb, cb}, value{c.CB.PeakPhysical, c.CB.PeakPhysical}, d.now)
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

// opened begins the history of a chip that only processes which came after the last look have opened: it
// had nothing then, and its peaks are of the time since.
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

// rewind forgets what comes after a time: a replay went back to it.
func (h *history) rewind(to uint64) {
	for _, s := range h.series {
		for i := range tiers {
			s.tiers[i].rewind(to / tiers[i].step)
		}
	}
	h.last, h.seen = to, nil
}

// addProcess takes down what a process has. What it has never had, and most have not much
// of anything, takes no place.
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
			delete(h.begun, of.process) // what has no place is unknown
			return
		}
		// Of a sum over chips there is no peak that it ever had.
		h.put(of, v, value{}, d.now)
		if s := h.series[of]; s != nil && s.first == 0 {
			s.none, s.first = h.begun[of.process], d.now
		}
	}
	reserved, requested := settings{}.processAmounts(p), settings{requested: true}.processAmounts(p)
	for i := range reserved {
		put(metric(i), value{reserved[i].known(), requested[i].known()})
	}
	// Where it was not read there is nothing, not 0 bytes.
	of := subject{process: idOf(p), metric: metricHost}
	if host := p.HostMemory; host.Bytes > 0 && (h.series[of] != nil || len(h.series) < maxProcessSeries) {
		h.put(of, value{host.Bytes, host.Bytes}, value{host.Peak, host.Peak}, d.now)
	}
	if r, known := d.rates.calls[idOf(p)]; known {
		put(metricRate, value{uint64(r), uint64(r)})
	}
}

// recentSpans are the time spans of the overview's charts: as much as there is, the last one at most.
var recentSpans = []struct {
	time time.Duration
	name string
}{{30 * time.Second, "30 s"}, {time.Minute, "1 min"}, {2 * time.Minute, "2 min"}, {5 * time.Minute, "5 min"}}

// recent is the least of these times that all of a young history fits into, and its name.
func (h *history) recent(now uint64) (time.Duration, string) {
	for _, s := range recentSpans {
		if h.first > 0 && time.Duration(now-min(h.first, now)) <= s.time {
			return s.time, s.name
		}
	}
	last := recentSpans[len(recentSpans)-1]
	return last.time, last.name
}

// forget lets go of processes that are not even among those that ended last.
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

// known is the used bytes, or unknown.
func (a amount) known() uint64 {
	if a.unknown {
		return widget.Unknown
	}
	return a.used
}

// put adds a value to a series. Where the peak has risen since the last one, that was in
// between, and is the highest value of the interval.
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

// has says whether there are values of a subject.
func (h *history) has(of subject) bool { return h.series[of] != nil }

// read is the highest value of each of n equal parts of the time from to, as fine as it is
// still kept.
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

// highest value from begin up to end.
func (s *series) highest(begin, end uint64, requested bool) uint64 {
	for i := range tiers {
		r, step := &s.tiers[i], tiers[i].step
		if _, ok := r.at(begin / step); !ok && len(r.values) == tiers[i].keep && i < len(tiers)-1 {
			continue // it has let go of what was so long ago
		}
		out := uint64(widget.Unknown)
		// A week has many seconds: only those that there is something of.
		for k := max(begin/step, r.last+1-uint64(len(r.values))); k <= min((end-1)/step, r.last); k++ {
			v, _ := r.at(k)
			out = highest(out, v.pick(requested))
		}
		return out
	}
	return widget.Unknown
}

// spark draws the newest values of a subject in w cells.
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

// telemetryOf returns the driver's values of a chip, nil if it has none.
//
// The runtime counts the chips that have PCIe as the driver counts their nodes, before all
// others. What the driver calls another card than the runtime does is not the same chip.
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
