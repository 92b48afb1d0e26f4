package ui

import (
	"strings"
	"testing"
	"time"

	"tt-memtrace/aggregator"
	"tt-memtrace/aggregator/exact"
	"tt-memtrace/ui/widget"
)

func at(s uint64) uint64 { return s * oneSecond }

func TestHistoryIsFineWhenNewAndCoarseWhenOld(t *testing.T) {
	h, of := newHistory(), subject{metric: metricDRAM}
	const begin, end = 100_000, 300_000 // two days and more
	for s := uint64(begin); s < end; s++ {
		v := uint64(10)
		if s%1000 == 0 {
			v = 500 // for a second only
		}
		h.put(of, value{v, v / 2}, value{}, at(s))
	}
	// The last minute, second by second.
	got := h.read(of, at(end-60), at(end), 60, false)
	for i, v := range got {
		if v != 10 {
			t.Fatalf("second %d: %d", i, v)
		}
	}
	got = h.read(of, at(end-1010), at(end-990), 20, true)
	if got[10] != 250 { // it is within the hour that has every ten seconds
		t.Errorf("%v", got)
	}
	// A spike of long ago is still there, in a wider column.
	for _, back := range []uint64{5_000, 80_000, 190_000} {
		got = h.read(of, at(end-back), at(end-back+1300), 1, false)
		if got[0] != 500 {
			t.Errorf("%d s ago: %v", back, got)
		}
	}
	if got = h.read(of, at(begin-5000), at(begin-1300), 3, false); got[0] != widget.Unknown || got[2] != widget.Unknown {
		t.Errorf("before it began: %v", got)
	}
	for i, r := range h.series[of].tiers {
		if len(r.values) > tiers[i].keep {
			t.Errorf("tier %d has %d values", i, len(r.values))
		}
	}
}

func TestHistoryHasGapsWhereItIsUnknown(t *testing.T) {
	h, of := newHistory(), subject{metric: metricL1}
	h.put(of, value{7, 7}, value{}, at(1000))
	h.put(of, value{9, 9}, value{}, at(1010)) // nobody looked for nine seconds
	got := h.read(of, at(1000), at(1011), 11, false)
	if got[0] != 7 || got[5] != widget.Unknown || got[10] != 9 {
		t.Errorf("%v", got)
	}
	h.put(of, value{widget.Unknown, widget.Unknown}, value{}, at(1011))
	if got = h.read(of, at(1011), at(1012), 1, false); got[0] != widget.Unknown {
		t.Errorf("%v", got)
	}
	if got = h.read(subject{metric: metricTrace}, at(1), at(2), 2, false); got[0] != widget.Unknown {
		t.Errorf("%v", got)
	}
	// A long sleep of the host costs no more than what is kept.
	h.put(of, value{1, 1}, value{}, at(1_000_000_000))
	if got = h.read(of, at(1_000_000_000), at(1_000_000_001), 1, false); got[0] != 1 {
		t.Errorf("%v", got)
	}
}

// Before the first look nothing is known, in however long a time.
func TestHistoryBeginsWithItsFirstSnapshot(t *testing.T) {
	h, of := newHistory(), subject{metric: metricL1}
	for s := range uint64(70) {
		h.put(of, value{9, 9}, value{}, at(100_000+s))
	}
	for _, before := range []uint64{60, 230, 3600, 100_000} {
		got := h.read(of, at(100_000-before), at(100_070), 10, false)
		if got[0] != widget.Unknown || got[9] != 9 {
			t.Errorf("from %d s before: %v", before, got)
		}
	}
}

// What rose and fell between two looks shows in the peak.
func TestHistorySeesAPeakBetweenTwoLooks(t *testing.T) {
	w := newWorld(1)
	w.view(settings{})
	device := w.begins(7, "x", w.chips, false)
	w.pass(2 * time.Second)
	b := w.alloc(7, device, aggregator.DRAM, 32, 100*mib)
	w.free(7, device, b)
	w.pass(time.Second)
	got := w.frame.history.read(subject{chip: w.chips[0], metric: metricDRAM}, w.time-2*oneSecond, w.time+oneSecond, 3, false)
	if got[2] != 1200*mib || got[1] != 0 {
		t.Errorf("%v", got)
	}
}

// A process has the sum over its chips, of what it ever had any of; when it is long gone and
// there are many, its history makes place.
func TestHistoryOfProcesses(t *testing.T) {
	w := newWorld(4)
	w.view(settings{})
	device := w.begins(7, "x", w.chips, false)
	w.pass(2 * time.Second)
	w.alloc(7, device, aggregator.DRAM, 32, 100*mib)
	w.pass(2 * time.Second)
	h, id := w.frame.history, processID{7, 7}
	of := subject{process: id, metric: metricDRAM}
	if got := h.read(of, w.time, w.time+oneSecond, 1, false); got[0] != 4*1200*mib {
		t.Errorf("%v", got)
	}
	if got := h.read(of, w.time-4*oneSecond, w.time, 4, false); got[0] != widget.Unknown || got[1] != 0 {
		t.Errorf("before it had any: %v", got)
	}
	if h.has(subject{process: id, metric: metricTrace}) {
		t.Error("a memory that it never used has a history")
	}
	if got := h.read(subject{process: id, metric: metricTrace}, w.time-4*oneSecond, w.time, 4, false); got[0] != widget.Unknown || got[3] != 0 {
		t.Errorf("of what it never had: %v", got)
	}
	host := subject{process: id, metric: metricHost}
	if h.has(host) {
		t.Error("host memory that was not read has a history")
	}
	w.publish(aggregator.Event{Kind: aggregator.HostMemoryRead, PID: 7, Size: 300 * mib})
	w.pass(time.Second)
	if got := h.read(host, w.time-3*oneSecond, w.time+oneSecond, 4, false); got[0] != widget.Unknown || got[3] != 300*mib {
		t.Errorf("host memory: %v", got)
	}
	w.pass(time.Second)
	w.frame.process = id
	w.press("3")
	if text := w.text(t, 120, 60); !strings.Contains(text, "host memory  300.0 MiB") {
		t.Errorf("no chart of host memory:\n%s", text)
	}
	w.publish(aggregator.Event{Kind: aggregator.ProcessExit, PID: 7})
	w.pass(time.Second)
	if h.forget(w.data().snapshot); !h.has(of) {
		t.Error("what ended a moment ago is forgotten")
	}
	for pid := range uint32(40) {
		w.begins(100+pid, "y", nil, false)
		w.publish(aggregator.Event{Kind: aggregator.ProcessExit, PID: 100 + pid})
	}
	if h.forget(w.data().snapshot); h.has(of) || !h.has(subject{chip: w.chips[0], metric: metricDRAM}) {
		t.Error("a process that is long gone is not forgotten, or a chip is")
	}
}

func TestHistoryIsBoundedAndBeginsAnew(t *testing.T) {
	h := newHistory()
	d := fixtureData(8)
	for i := range uint32(maxProcessSeries) {
		d.snapshot.Processes = append(d.snapshot.Processes, aggregator.ProcessSnapshot{PID: i, Memory: aggregator.EmptyUsages(), CB: aggregator.CBUsage{Physical: exact.Of(1)}})
	}
	h.add(&d)
	if n := len(h.series); n > maxProcessSeries {
		t.Errorf("%d series with many processes", n)
	}
	for i := range uint32(3 * maxSeries) {
		h.put(subject{chip: aggregator.Chip{Number: i}, metric: metricDRAM}, value{}, value{}, at(1))
	}
	if len(h.series) != maxSeries {
		t.Errorf("%d series", len(h.series))
	}
	d = fixtureData(1)
	h.first, h.last = d.now+1, d.now+1
	h.add(&d)
	if len(h.series) > 20 || h.first != d.now {
		t.Errorf("a source that began again: %d series", len(h.series))
	}
}

// The charts of the overview begin with what there is, and stop growing at five minutes.
func TestChartsBeginWithWhatThereIs(t *testing.T) {
	w := newWorld(1)
	w.view(settings{}).SetRect(0, 0, 120, 30)
	device := w.begins(7, "x", w.chips, false)
	w.alloc(7, device, aggregator.DRAM, 0, mib)
	at := time.Duration(0)
	for _, c := range []struct {
		age         time.Duration
		span, chart string
	}{{10 * time.Second, "30 s", "1 minute"}, {50 * time.Second, "1 min", "1 minute"}, {100 * time.Second, "2 min", "5 minutes"}, {200 * time.Second, "5 min", "5 minutes"}, {400 * time.Second, "5 min", "5 minutes"}} {
		w.pass(c.age - at)
		at = c.age
		if got := w.text(t, 120, 30); !strings.Contains(got, "DRAM by process, "+c.span+",") {
			t.Errorf("after %v no %q in:\n%s", c.age, c.span, got)
		}
		w.press("3")
		if got := w.text(t, 120, 30); !strings.Contains(got, c.chart+" to now") {
			t.Errorf("after %v no %q in:\n%s", c.age, c.chart, got)
		}
		w.press("1")
	}
	w.press("3++")
	if got := w.text(t, 120, 30); !strings.Contains(got, "1 minute to now") {
		t.Errorf("not zoomed:\n%s", got)
	}
}

// A process that came and went between two looks is in the charts of its chips, by their peaks.
func TestHistoryHasWhatCameAndWentBetweenTwoLooks(t *testing.T) {
	run := func(late bool) (w *world, highest uint64) {
		w = newWorld(2)
		w.view(settings{}).SetRect(0, 0, 120, 40)
		w.pass(2 * time.Second)
		w.time += oneSecond / 2
		device := w.begins(7, "python leak.py", w.chips, late)
		w.free(7, device, w.alloc(7, device, aggregator.L1, 0, 1290*kib))
		w.publish(aggregator.Event{Kind: aggregator.ProcessExit, PID: 7})
		w.time -= oneSecond / 2
		w.pass(2 * time.Second)
		return w, w.frame.history.read(subject{chip: w.chips[1], metric: metricL1}, w.time-4*oneSecond, w.time+oneSecond, 1, false)[0]
	}
	w, highest := run(false)
	if highest != 64*1290*kib {
		t.Errorf("the highest is %d", highest)
	}
	got := w.text(t, 120, 40)
	if at := strings.Index(got, "L1 by process"); at < 0 || !strings.Contains(strings.SplitAfter(got[at:], "\n")[0], "peak between samples") {
		t.Errorf("no such title:\n%s", got)
	}
	// A chip that was in use before has peaks of any time.
	if _, highest = run(true); highest != 0 {
		t.Errorf("of a late one: %d", highest)
	}
}
