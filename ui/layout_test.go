package ui

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"tt-memtrace/aggregator"
	"tt-memtrace/aggregator/exact"
	"tt-memtrace/ui/text"
	"tt-memtrace/ui/widget"
)

func TestAmountNeverCallsTheUnknownZero(t *testing.T) {
	none := aggregator.Usage{Banks: aggregator.Banks{Known: true}}
	for name, c := range map[string]struct {
		usage     aggregator.Usage
		late      bool
		requested bool
		want      string
	}{
		"not looked at":             {usage: aggregator.Usage{}, want: "·"},
		"nothing":                   {usage: aggregator.EmptyUsage(), want: "0"},
		"nothing since late":        {usage: aggregator.EmptyUsage(), late: true, want: "·"},
		"no such memory":            {usage: none, late: true, want: "-"},
		"all sizes known":           {usage: aggregator.Usage{Reserved: exact.Of(gib), Buffers: exact.Of(1)}, want: "1.00 GiB"},
		"some sizes not known":      {usage: aggregator.Usage{Reserved: exact.Bounded(gib, exact.AtLeast), Buffers: exact.Of(2), Unreserved: exact.Of(1)}, want: "≥1.00 GiB"},
		"no size known":             {usage: aggregator.Usage{Requested: exact.Of(gib), Buffers: exact.Of(1), Unreserved: exact.Of(1)}, want: "·"},
		"requested is always known": {usage: aggregator.Usage{Requested: exact.Of(gib), Buffers: exact.Of(1), Unreserved: exact.Of(1)}, requested: true, want: "1.00 GiB"},
	} {
		o := settings{requested: c.requested}
		a := o.amountOf(shownAs(c.usage, c.late))
		if got := a.number(o.scaleOf([]amount{a}, false), text.GlyphSet(false)).String(); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

func TestPrivateChipNumbersCarryTheirProcess(t *testing.T) {
	chip := func(space, n uint32) aggregator.ChipSnapshot {
		return aggregator.ChipSnapshot{Chip: aggregator.Chip{Space: space, Number: n}}
	}
	if got := chipName(chip(77, 3).Chip); got != "77:3" {
		t.Error(got)
	}
	if got := chipRanges([]aggregator.ChipSnapshot{chip(0, 0), chip(0, 1), chip(77, 0), chip(77, 1), chip(77, 5)}); got != "0-1 77:0-1,5" {
		t.Error(got)
	}
}

func TestUnplacedMemoryIsShown(t *testing.T) {
	d := fixtureData(1)
	p := &d.snapshot.Processes[2]
	p.Unplaced[aggregator.DRAM] = usage(3*gib, 3*gib, 7, aggregator.Banks{})
	v := newFrame(settings{}, d, 0)
	v.overview().expanded[idOf(p)] = true
	got := plainText(v.compose(120, 30))
	for _, want := range []string{"+?", "chip not known", "3.0"} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
}

func TestRatesComeFromTwoSamplesAtLeast(t *testing.T) {
	var m meter
	at := time.Unix(100, 0)
	s := fixture(1)
	m.add(at, s)
	if r := m.rates(); r.known || len(r.calls) != 0 {
		t.Errorf("from one sample: %+v", r)
	}
	for range 20 {
		at = at.Add(250 * time.Millisecond)
		s.Counters.Events += 250
		s.Processes[0].Counters.Allocs = s.Processes[0].Counters.Allocs.Add(exact.Of(25))
		m.add(at, s)
	}
	r := m.rates()
	if !r.known || r.events != 1000 || r.calls[processID{41822, 1}] != 100 || r.calls[processID{50231, 2}] != 0 {
		t.Errorf("%+v", r)
	}
	if len(m.samples) > 10 {
		t.Errorf("%d samples kept", len(m.samples))
	}
	s.Processes[1].Info.Started = 99
	m.add(at.Add(time.Second), s)
	if _, known := m.rates().calls[processID{50231, 99}]; known {
		t.Error("a PID that was used again got a rate immediately")
	}
	s.Counters.Events = 0
	m.add(at.Add(2*time.Second), s)
	if m.rates().known {
		t.Error("a counter that began again made a rate")
	}
}

func TestElapsedGoesOnBetweenEvents(t *testing.T) {
	var e elapsed
	at := time.Unix(100, 0)
	if got := e.now(at, 5000); got != 5000 {
		t.Error(got)
	}
	if got := e.now(at.Add(time.Second), 5000); got != 5000+1e9 {
		t.Error(got)
	}
	if got := e.now(at.Add(-time.Hour), 5000); got != 5000 {
		t.Error("a clock that is set back", got)
	}
	e = elapsed{}
	e.now(at, 5000)
	if got := e.now(at.Add(time.Second), 5000+1e9+70_000); got != 5000+1e9 {
		t.Error("a clock that is read a little later than the other", got)
	}
	if got := e.now(at.Add(2*time.Second), 5000+3e9); got != 5000+3e9 {
		t.Error("events of another time", got)
	}
	// The source ends: its time is that of its last event again.
	if got := e.now(at.Add(62*time.Second), 5000+2e9); got != 5000+63e9 {
		t.Error("a source that has ended", got)
	}
	// A replay at half the speed goes on after a quiet minute, until it has caught up.
	e = elapsed{}
	e.now(at, 5000)
	e.now(at.Add(time.Minute), 5000)
	for _, c := range []struct{ seconds, want uint64 }{{61, 60e9}, {119, 60e9}, {121, 60.5e9}} {
		if got := e.now(at.Add(time.Duration(c.seconds)*time.Second), 5000+c.seconds*5e8); got != 5000+c.want {
			t.Error("a slow replay", c.seconds, got)
		}
	}
}

func TestShareOfLines(t *testing.T) {
	for _, c := range []struct{ lines, chips, processes, wantChips, wantProcesses int }{
		{18, 8, 3, 8, 10}, {18, 32, 3, 15, 3}, {18, 32, 40, 11, 7}, {18, 0, 0, 1, 17}, {10, 8, 8, 6, 4}, {-3, 8, 8, 1, 1},
	} {
		if a, b := share(c.lines, c.chips, c.processes); a != c.wantChips || b != c.wantProcesses {
			t.Errorf("share(%d, %d, %d) = %d, %d, want %d, %d", c.lines, c.chips, c.processes, a, b, c.wantChips, c.wantProcesses)
		}
	}
}

func TestSorting(t *testing.T) {
	d := fixtureData(2)
	for id, want := range map[columnID][]uint32{
		byDRAM: {41822, 50231, 50990}, byPID: {41822, 50231, 50990}, bySince: {41822, 50231, 50990},
		byCommand: {50990, 50231, 41822}, byChips: {50990, 50231, 41822}, byRate: {41822, 50231, 50990},
	} {
		var got []uint32
		for _, p := range sorted(&d, settings{sort: id}) {
			got = append(got, p.PID)
		}
		if !slices.Equal(got, want) {
			t.Errorf("column %d: %v, want %v", id, got, want)
		}
	}
}

func TestSortGoesRoundTheVisibleColumns(t *testing.T) {
	f := newFrame(settings{}, fixtureData(2), 0)
	v := f.overview()
	f.compose(80, 24)
	if slices.Contains(v.columns, byFrees) {
		t.Fatal("80 columns should have no room for FREES")
	}
	seen := map[columnID]bool{}
	for range v.columns {
		v.sortBy(1)
		seen[v.settings.sort] = true
		if got := plainText(f.compose(80, 24)); strings.Count(got, "▼") != 1 {
			t.Errorf("column %d is not marked", v.settings.sort)
		}
	}
	if len(seen) != len(v.columns) || v.settings.sort != byDRAM {
		t.Errorf("saw %v of %v", seen, v.columns)
	}
	v.settings.sort = byFrees
	v.sortBy(1)
	if v.settings.sort == byFrees {
		t.Error("stuck at a column that is not visible")
	}
}

func TestEveryLineFillsTheScreenExactly(t *testing.T) {
	for _, n := range []int{0, 1, 8, 32} {
		for _, exact := range []bool{false, true} {
			d := fixtureData(n)
			d.notes = []string{"a note " + hostile, "two", "three", "four"}
			v := newFrame(settings{Settings: widget.Settings{Exact: exact}}, d, 0)
			v.overview().expanded[processID{41822, 1}] = true
			for w := 1; w <= 210; w += 1 + w/12 {
				for _, h := range []int{1, 5, 8, 24, 60} {
					p := v.compose(w, h)
					if len(p.Lines) != h {
						t.Fatalf("%d chips, %dx%d: %d lines", n, w, h, len(p.Lines))
					}
					for _, l := range p.Lines {
						if l.Width() != w {
							t.Fatalf("%d chips, %dx%d: a line is %d wide: %q", n, w, h, l.Width(), l.String())
						}
					}
				}
			}
		}
	}
}

func TestTablesFitWithoutCuttingNumbers(t *testing.T) {
	for _, n := range []int{1, 8, 32} {
		for _, w := range []int{80, 100, 120, 160, 200} {
			d := fixtureData(n)
			chips := chipTable(&d, settings{}, w-2, chipTiers())
			if got := chips.Head().Width(); got > w-2 {
				t.Errorf("%d chips: device table is %d wide in %d", n, got, w-2)
			}
			list := entries(&d, settings{}, func(processID) bool { return true })
			processes := processTable(&d, settings{}, list, w-2)
			if got := processes.Head().Width(); got > w-2 {
				t.Errorf("%d chips: process table is %d wide in %d", n, got, w-2)
			}
		}
	}
}

func TestHeaderShowsLossAndState(t *testing.T) {
	d := fixtureData(8)
	d.snapshot.Counters.Lost = 1312
	d.ended, d.paused = true, true
	l := header(&d, settings{requested: true}, 120)
	for _, want := range []string{"tt-memtrace", "tt-host-01", "8 chips", "3 procs", " 12,480 ev/s", "LOST 1,312", "not exact", "ended", "PAUSED", "requested", "12:03:11"} {
		if !strings.Contains(l.String(), want) {
			t.Errorf("no %q in %q", want, l.String())
		}
	}
	for _, s := range l {
		if strings.Contains(s.Text, "LOST") && s.Role != text.Alert {
			t.Error("a loss is not highlighted")
		}
	}
	d.ended, d.paused, d.snapshot.Counters.Lost = false, false, 0
	fewer := d
	fewer.rates.events = 3
	if a, b := header(&d, settings{}, 80), header(&fewer, settings{}, 80); a[:3].String() != b[:3].String() {
		t.Errorf("the header moves with the rate: %q %q", a.String(), b.String())
	}
	d.snapshot.Processes[1].Reasons = nil
	l = header(&d, settings{}, 80)
	for _, want := range []string{"tt-host-01", "8 chips", "3 procs", "12,480 ev/s", "exact", "reserved", "12:03:11"} {
		if !strings.Contains(l.String(), want) {
			t.Errorf("no %q in 80 columns: %q", want, l.String())
		}
	}
}

func TestVerifiedIsTheOldestComparison(t *testing.T) {
	for name, c := range map[string]struct {
		agreements []aggregator.Agreement
		want       string
	}{
		"nobody":               {nil, "verified ·"},
		"one was compared":     {[]aggregator.Agreement{{At: 98e9, Compared: 7}}, "verified 2s ago"},
		"the oldest counts":    {[]aggregator.Agreement{{At: 98e9, Compared: 7}, {At: 40e9, Compared: 1}}, "verified 1m00s ago"},
		"one never was":        {[]aggregator.Agreement{{At: 98e9, Compared: 7}, {}}, "verified ·"},
		"one had nothing then": {[]aggregator.Agreement{{At: 98e9, Compared: 7}, {At: 98e9, Comparisons: 1}}, "verified ·"},
		"one is in doubt":      {[]aggregator.Agreement{{At: 98e9, Compared: 7}, {At: 99e9, Compared: 7, Suspect: true}}, "in doubt, verified 2s ago"},
		"from the future, 0":   {[]aggregator.Agreement{{At: 200e9, Compared: 7}}, "verified 0s ago"},
	} {
		d := data{snapshot: &aggregator.Snapshot{}, now: 100e9}
		for _, a := range c.agreements {
			d.snapshot.Processes = append(d.snapshot.Processes, aggregator.ProcessSnapshot{Agreement: a, Buffers: exact.Of(7), Chips: make([]aggregator.ChipSnapshot, 1)})
		}
		if got := verification(&d, settings{}, anyProcess).Text; got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

func TestScreens(t *testing.T) {
	for _, c := range []struct {
		chips, w, h int
		ascii       bool
	}{
		{1, 80, 24, false}, {8, 80, 24, false}, {32, 80, 24, false}, {8, 80, 24, true},
		{8, 120, 40, false}, {1, 200, 60, false}, {32, 200, 60, false},
	} {
		v := newFrame(settings{Settings: widget.Settings{ASCII: c.ascii}}, fixtureData(c.chips), 0)
		name := fmt.Sprintf("screen-%dchips-%dx%d", c.chips, c.w, c.h)
		if c.ascii {
			name += "-ascii"
		}
		got := plainText(v.compose(c.w, c.h))
		if c.ascii && !text.IsPlain(strings.ReplaceAll(got, "\n", "")) {
			t.Errorf("%s is not ASCII", name)
		}
		golden(t, name+".txt", got)
	}
	v := newFrame(settings{requested: true, Settings: widget.Settings{Exact: true}}, fixtureData(8), 0)
	v.compose(120, 40)
	v.overview().toggle()
	golden(t, "screen-8chips-120x40-exact-expanded.txt", plainText(v.compose(120, 40)))
	over := fixtureData(8)
	over.ended, over.snapshot.Processes = true, nil
	withEnded(over.snapshot, 3)
	golden(t, "screen-8chips-120x40-over.txt", plainText(newFrame(settings{}, over, 0).compose(120, 40)))
	golden(t, "screen-8chips-80x24-over.txt", plainText(newFrame(settings{}, over, 0).compose(80, 24)))
	golden(t, "screen-empty-80x24.txt", plainText(newFrame(settings{}, data{snapshot: &aggregator.Snapshot{}}, 0).compose(80, 24)))
}

func TestText(t *testing.T) {
	for _, w := range []int{80, 120} {
		var b bytes.Buffer
		o := TextOptions{Width: w, Host: "tt-host-01", Notes: []string{"a warning\x1b[0m"}, Chips: w == 120}
		if err := Text(&b, fixture(8), o); err != nil {
			t.Fatal(err)
		}
		golden(t, fmt.Sprintf("text-%d.txt", w), b.String())
	}
	for _, c := range []struct {
		name     string
		w, ended int
		ascii    bool
	}{{"text-110-ended", 110, 13, false}, {"text-80-ended-ascii", 80, 2, true}, {"text-120-ended-only", 120, 10, false}} {
		s := fixture(2)
		if c.ended == 10 {
			s.Processes = nil
		}
		var b bytes.Buffer
		if err := Text(&b, withEnded(s, c.ended), TextOptions{Width: c.w, ASCII: c.ascii}); err != nil {
			t.Fatal(err)
		}
		for l := range strings.Lines(b.String()) {
			if n := text.Width(strings.TrimSuffix(l, "\n")); n > c.w || c.ascii && !text.IsPlain(strings.TrimSuffix(l, "\n")) {
				t.Errorf("%s: %d cells: %q", c.name, n, l)
			}
		}
		golden(t, c.name+".txt", b.String())
	}
	var b bytes.Buffer
	if err := Text(&b, nil, TextOptions{}); err != nil || !strings.Contains(b.String(), "no chip") {
		t.Errorf("%v %q", err, b.String())
	}
	if err := Text(failingWriter{}, nil, TextOptions{}); err == nil {
		t.Error("a failed write is not reported")
	}
}

type failingWriter struct{}

func (failingWriter) Write([]byte) (int, error) { return 0, fmt.Errorf("disk full") }

func TestEnvironment(t *testing.T) {
	for _, c := range []struct {
		env  map[string]string
		want bool
	}{
		{map[string]string{"TERM": "xterm", "LANG": "en_US.UTF-8"}, false},
		{map[string]string{"TERM": "xterm", "LANG": "C.utf8"}, false},
		{map[string]string{"TERM": "xterm", "LANG": "en_US.UTF-8", "LC_ALL": "C"}, true},
		{map[string]string{"TERM": "xterm", "LC_CTYPE": "de_DE.ISO-8859-1", "LANG": "en_US.UTF-8"}, true},
		{map[string]string{"TERM": "xterm"}, true},
		{map[string]string{"TERM": "linux", "LANG": "en_US.UTF-8"}, true},
		{map[string]string{"TERM": "dumb", "LANG": "en_US.UTF-8"}, true},
	} {
		if got := NeedsASCII(func(k string) string { return c.env[k] }); got != c.want {
			t.Errorf("NeedsASCII(%v) = %v", c.env, got)
		}
	}
}

func BenchmarkCompose(b *testing.B) {
	v := newFrame(settings{}, fixtureData(32), 0)
	for b.Loop() {
		v.compose(200, 60)
	}
}

// A process without buffers does not affect the age of the verification.
func TestAProcessWithoutBuffersVerifiesNothing(t *testing.T) {
	empty := aggregator.ProcessSnapshot{Agreement: aggregator.Agreement{At: 98e9, Comparisons: 1}, Chips: make([]aggregator.ChipSnapshot, 1)}
	d := data{snapshot: &aggregator.Snapshot{Processes: []aggregator.ProcessSnapshot{empty}}, now: 100e9}
	if got := verification(&d, settings{}, anyProcess).Text; got != "verified ·" {
		t.Error(got)
	}
	full := empty
	full.Buffers, full.Agreement = exact.Of(7), aggregator.Agreement{At: 97e9, Compared: 7}
	d.snapshot.Processes = append(d.snapshot.Processes, full)
	if got := verification(&d, settings{}, anyProcess).Text; got != "verified 3s ago" {
		t.Error(got)
	}
}

// Before processes that run already were read it is not known whether they have chips open.
func TestNoChip(t *testing.T) {
	late, known := aggregator.ProcessSnapshot{Late: true}, aggregator.ProcessSnapshot{}
	for want, processes := range map[string][]aggregator.ProcessSnapshot{
		"no chip has been opened yet":              {known},
		"what a process has open is being read":    {known, late},
		"what 2 processes have open is being read": {late, known, late},
	} {
		s := &aggregator.Snapshot{Processes: processes}
		if got := plainText(newFrame(settings{}, data{snapshot: s}, 0).compose(80, 24)); !strings.Contains(got, want) {
			t.Errorf("%d processes: no %q in\n%s", len(processes), want, got)
		}
		var b strings.Builder
		if err := Text(&b, s, TextOptions{}); err != nil || !strings.Contains(b.String(), want) {
			t.Errorf("%d processes: no %q in\n%s%v", len(processes), want, b.String(), err)
		}
	}
}

// If processes of other users are not seen, the screen does not say that there are none.
func TestNothingThatThisUserCanSee(t *testing.T) {
	var b strings.Builder
	s := &aggregator.Snapshot{}
	if err := Text(&b, s, TextOptions{OwnOnly: true}); err != nil {
		t.Fatal(err)
	}
	screen := plainText(newFrame(settings{}, data{snapshot: s, ownOnly: true}, 0).compose(80, 24))
	for _, got := range []string{b.String(), screen} {
		for _, want := range []string{"no process that this user can see has opened a chip yet", "no process that this user can see uses the runtime", " nothing seen"} {
			if !strings.Contains(got, want) {
				t.Errorf("no %q in\n%s", want, got)
			}
		}
		if strings.Contains(got, "exact") {
			t.Errorf("there is nothing that is exact:\n%s", got)
		}
	}
}

// Chips share a row only where all that it says of them is the same: also what each held at its peak, and what is in doubt.
func TestChipsThatShareARowAreAlike(t *testing.T) {
	for name, change := range map[string]func(*aggregator.ChipSnapshot){
		"nothing":   func(*aggregator.ChipSnapshot) {},
		"its peak":  func(c *aggregator.ChipSnapshot) { c.Memory[aggregator.DRAM].PeakReserved = exact.Of(3 * gib) },
		"a mark":    func(c *aggregator.ChipSnapshot) { c.Reasons = reasons(41822, exact.ReasonEventsLost) },
		"a kernel":  func(c *aggregator.ChipSnapshot) { c.Kernel.Bytes = exact.Of(mib) },
		"uncertain": func(c *aggregator.ChipSnapshot) { c.CB.PeakPhysical = c.CB.PeakPhysical.Doubted(exact.Uncertain) },
	} {
		var s aggregator.Snapshot
		for i := range uint32(2) {
			c := aggregator.ChipSnapshot{Chip: aggregator.Chip{Number: i}, Board: "n300", CB: aggregator.CBUsage{Physical: exact.Of(mib), PeakPhysical: exact.Of(2 * mib)}}
			c.Memory[aggregator.DRAM] = usage(gib, 2*gib, 1, banks(12, gib))
			s.Chips = append(s.Chips, c)
		}
		change(&s.Chips[1])
		want := 2
		if name == "nothing" {
			want = 1
		}
		if d, names := folded(data{snapshot: &s}, settings{}); len(d.snapshot.Chips) != want {
			t.Errorf("%s: rows %v", name, names)
		}
	}
}

// A line without room for a whole number says so: half of it would be another number.
func TestNumbersAreCutVisibly(t *testing.T) {
	w := busy(32)
	o := settings{Settings: widget.Settings{Exact: true}}
	for _, keys := range []string{"1", "2", "3", "3t"} {
		w.again(o, [2]int{200, 40})
		w.press(keys)
		whole := strings.Split(plainText(w.frame.compose(200, 40)), "\n")
		for width := 40; width < 120; width++ {
			for _, l := range strings.Split(plainText(w.frame.compose(width, 40)), "\n") {
				for _, all := range whole {
					if rest, cut := strings.CutPrefix(all, l); cut && text.Width(l) == width && isDigit(l[len(l)-1]) && rest != "" && (isDigit(rest[0]) || rest[0] == ',' || rest[0] == '.') {
						t.Fatalf("%s, %d cells: %q of %q", keys, width, l, all)
					}
				}
			}
		}
	}
}

func isDigit(b byte) bool { return '0' <= b && b <= '9' }

// If the size of a kernel is unknown, the sum on the overview is a lower bound, too.
func TestKernelsOfUnknownSizeMakeALowerBound(t *testing.T) {
	d := fixtureData(1)
	d.snapshot.Chips[0].Kernel.Bytes = exact.Bounded(7*mib, exact.AtLeast)
	if got := plainText(newFrame(settings{}, d, 0).compose(240, 40)); !strings.Contains(got, "≥7.00 MiB") {
		t.Error(got)
	}
}
