package ui

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gdamore/tcell/v2"

	"tt-memtrace/aggregator"
	"tt-memtrace/aggregator/exact"
	"tt-memtrace/ui/widget"
)

var sizes = [][2]int{{80, 24}, {120, 40}, {200, 60}}

// overviewSizes are those at which the first look has to answer.
var overviewSizes = [][2]int{{80, 24}, {120, 40}, {200, 60}, {300, 80}}

// hosts are what the screens are drawn of: how many chips there are, nothing at all, no room
// left, and everything as bad as can be.
var hosts = []struct {
	name string
	make func(*testing.T) *world
}{
	{"empty", func(*testing.T) *world { return newWorld(0) }},
	{"1-chip", func(t *testing.T) *world { return busyWithCards(t, 1) }},
	{"8-chips", func(t *testing.T) *world { return busyWithCards(t, 8) }},
	{"32-chips", func(t *testing.T) *world { return busyWithCards(t, 32) }},
	{"exhausted", func(*testing.T) *world { return exhausted() }},
	{"hostile", func(*testing.T) *world { return extreme() }},
}

func busyWithCards(t *testing.T, chips int) *world {
	w := busy(chips)
	w.system = cards(t, (chips+1)/2)
	return w
}

// again makes a new frame that knows what the previous frame has seen.
func (w *world) again(o settings, size [2]int) {
	before := w.frame
	w.view(o)
	if before != nil {
		w.frame.history = before.history
	}
	w.frame.SetRect(0, 0, size[0], size[1])
	w.look()
}

// screens are all views, with each of the tables, and the keys that lead to them.
var screens = [][2]string{
	{"overview", "1"}, {"chip", "2"}, {"charts", "3"}, {"map", "4"}, {"buffers", "5"}, {"circular buffers", "5<Tab>"}, {"programs", "5<Tab><Tab>"},
	{"kernels", "5<Tab><Tab><Tab>"}, {"events", "6"}, {"processes", "7"}, {"sites", "8"},
}

// Every view of every host at every size, a file for each host and size.
func TestEveryView(t *testing.T) {
	for _, host := range hosts {
		w := host.make(t)
		for _, size := range sizes {
			var all strings.Builder
			for _, screen := range screens {
				w.again(settings{}, size)
				w.press(screen[1])
				fmt.Fprintf(&all, "=== %s ===\n%s", screen[0], w.text(t, size[0], size[1]))
				w.press("u<Enter>")
				w.text(t, size[0], size[1])
			}
			golden(t, fmt.Sprintf("views-%s-%dx%d.txt", host.name, size[0], size[1]), all.String())
		}
	}
}

// What lies below the first look at a view: other tables, details, filters, a cursor.
func TestViewsFurtherIn(t *testing.T) {
	w := busy(8)
	w.system = cards(t, 4)
	for _, c := range []struct{ name, keys string }{
		{"tables-filter", "5sssf0x1.*inter<Enter>"}, {"tables-detail", "5jj<Enter>"}, {"tables-columns", "5cjjj "}, {"tables-exact", "5u"},
		{"programs-detail", "5<Tab><Tab><Enter>"}, {"kernels-detail", "5<Tab><Tab><Tab><Enter>"}, {"circular-detail", "5<Tab><Enter>"},
		{"map-dram", "4<Tab>"}, {"map-trace", "4<Tab><Tab>"}, {"map-detail", "4jjj<Enter>"}, {"map-free", "4/free<Enter>"}, {"map-core", "4<Left>"},
		{"charts-hour", "3--"}, {"charts-alone", "3<Enter>"}, {"charts-cursor", "3-hhhhhhhhhhhhhhh"}, {"charts-highest", "3y"}, {"charts-process", "3t"},
		{"events-filter", "6ffree<Enter>"}, {"events-detail", "6kkk<Enter>"}, {"events-search", "6/START<Enter>"},
		{"processes-detail", "7<Enter>"}, {"chip-2", "2]]"}, {"help", "4?"}, {"prompt", "5f(["}, {"overview-filter", "fpython<Enter>"},
	} {
		w.again(settings{}, sizes[1])
		w.text(t, 120, 40)
		w.press(c.keys)
		golden(t, "further-"+c.name+".txt", w.text(t, 120, 40))
	}
}

// On any host every view does without colours, and with ASCII characters alone.
func TestEveryViewInASCIIWithoutColours(t *testing.T) {
	for _, host := range hosts {
		w := host.make(t)
		var all strings.Builder
		for _, screen := range screens {
			w.again(settings{Settings: widget.Settings{ASCII: true}}, sizes[0])
			w.press(screen[1])
			s := w.screen(t, 80, 24)
			for y := range 24 {
				for x := range 80 {
					text, style, _ := s.Get(x, y)
					if text > "~" {
						t.Errorf("%s, %s: %q is not ASCII", host.name, screen[0], text)
					}
					if fg, bg, _ := style.Decompose(); fg != tcell.ColorDefault || bg != tcell.ColorDefault {
						t.Errorf("%s, %s: a colour at %d,%d", host.name, screen[0], x, y)
					}
				}
			}
			fmt.Fprintf(&all, "=== %s ===\n%s\n", screen[0], s.text())
			s.Fini()
		}
		if host.name == "exhausted" {
			golden(t, "ascii.txt", trimmed(all.String()))
		}
	}
}

// exhausted is a host whose chips have no room left in any memory.
func exhausted() *world {
	w := newWorld(2)
	w.view(settings{})
	pid := uint32(41822)
	device := w.begins(pid, "/usr/bin/python3 serve.py --model llama-70b", w.chips, false)
	w.pass(20 * time.Second)
	for i := range uint64(8) {
		w.alloc(pid, device, aggregator.DRAM, 32+i*128*mib, 128*mib-i/7*32)
		w.pass(5 * time.Second)
	}
	const first, bank = 105984, 1331200
	for i := range uint64(8) {
		w.alloc(pid, device, aggregator.L1, first+(i+2)*bank/10, bank/10)
	}
	w.alloc(pid, device, aggregator.L1Small, first+bank, 32*kib)
	w.alloc(pid, device, aggregator.Trace, gib, 4*mib)
	w.program(pid, device, "ttnn::operations::matmul::MatmulMultiCoreReuseProgramFactory", 12, circular(first, bank/5, 7, 7))
	w.launches(pid, device, 17)
	w.pass(10 * time.Second)
	for range 3 {
		w.refused(pid, aggregator.FailedAllocation{Asked: 12 * 64 * mib, PerBank: 64 * mib, Banks: 12,
			Message: "Out of Memory: Not enough space to allocate 805306368 B DRAM buffer across 12 banks, where each bank needs to store 67108864 B, but bank size is 1073741792 B (allocated: 1073741792 B, free: 0 B, largest free block: 0 B)"}, aggregator.DRAM)
	}
	w.pass(20 * time.Second)
	w.refused(pid, aggregator.FailedAllocation{Kind: aggregator.Clash, End: first + bank/4, Lowest: first + bank/5,
		Message: "Statically allocated circular buffers in program 7 clash with L1 buffers on core range [(x=0,y=0) - (x=7,y=7)]. L1 buffer allocated at 372224 and static circular buffer region ends at 438784"}, aggregator.L1)
	w.pass(10 * time.Second)
	return w
}

// extreme is a host where every number is as large as can be and every word hostile.
func extreme() *world {
	w := newWorld(2)
	w.view(settings{})
	const huge = 1 << 47
	device := w.id()
	for pid := range uint32(3) {
		pid += math.MaxInt32 - 3
		w.publish(aggregator.Event{Kind: aggregator.ProcessStart, PID: pid, Process: &aggregator.Process{Started: math.MaxUint64, Command: hostile + hostile + hostile, Release: hostile, Library: hostile, NotCovered: hostile}})
		chips := []aggregator.Chip{{Space: pid, Number: math.MaxUint32}, {Number: math.MaxUint32}}
		w.publish(aggregator.Event{Kind: aggregator.DeviceOpen, PID: pid, Device: device, Opened: &aggregator.Opened{Chips: chips, Boards: []string{hostile, hostile}, Arch: hostile}})
		w.publish(aggregator.Event{Kind: aggregator.AllocatorSeen, PID: pid, Device: device, Allocator: device + 1, Capacity: &aggregator.Capacity{
			banks(math.MaxUint16, huge), banks(math.MaxUint16, huge), banks(0, 0), banks(1, 1), banks(math.MaxUint16, huge)}})
		for m := range aggregator.NumMemories {
			w.publish(aggregator.Event{Kind: aggregator.Alloc, PID: pid, TID: math.MaxUint32, Device: device, Allocator: device + 1, Buffer: math.MaxUint64 - uint64(m), Memory: m,
				Address: math.MaxUint64 - huge, PerBank: huge, Size: huge, PageSize: math.MaxUint64, MemoryLayout: 255})
		}
		program := w.program(pid, device, hostile, math.MaxUint64, circular(1<<30, 1<<30, 255, 3))
		w.publish(aggregator.Event{Kind: aggregator.KernelLoaded, PID: pid, Program: program, Device: device, Kernel: &aggregator.Kernel{ID: 1, Name: hostile, Hash: hostile, Processor: hostile, Path: hostile, Bytes: huge, Sized: true}})
	}
	w.refused(math.MaxInt32-3, aggregator.FailedAllocation{Asked: math.MaxUint64, Message: hostile + hostile}, aggregator.Trace)
	w.publish(aggregator.Event{Kind: aggregator.Lost, Count: math.MaxUint64})
	w.pass(3 * time.Second)
	return w
}

// peopled is a host with so many chips and processes, each with something on some of them.
func peopled(chips, processes int) *world {
	w := newWorld(chips)
	w.view(settings{})
	for i := range uint32(processes) {
		on := w.chips
		if processes > 1 {
			on = w.chips[int(i)%chips : int(i)%chips+1]
		}
		device := w.begins(1000+i, fmt.Sprintf("python worker.py --rank %d", i), on, false)
		for n := range uint64(3) {
			w.alloc(1000+i, device, aggregator.DRAM, (uint64(i/uint32(chips))*16+n*4)*mib, (1+uint64(i%5))*mib)
		}
		w.alloc(1000+i, device, aggregator.L1, 105984+uint64(i/uint32(chips))*8*kib, 8*kib)
	}
	w.pass(10 * time.Second)
	return w
}

// The overview at all sizes that matter, with few and many chips and processes: nothing is
// blank, and no chip is out of sight.
func TestOverviewOfManyHosts(t *testing.T) {
	for _, chips := range []int{1, 8, 32} {
		for _, processes := range []int{1, 200} {
			w := peopled(chips, processes)
			var all strings.Builder
			for _, size := range overviewSizes {
				w.again(settings{}, size)
				got := w.text(t, size[0], size[1])
				fmt.Fprintf(&all, "=== %dx%d ===\n%s", size[0], size[1], got)
				if chips > 1 && (!strings.Contains(got, fmt.Sprintf("all %d chips", chips)) || !strings.Contains(got, "fullest")) {
					t.Errorf("%d chips, %v: no totals", chips, size)
				}
				blank := 0
				for l := range strings.Lines(got) {
					if strings.TrimSpace(l) == "" {
						blank++
					}
				}
				if blank > size[1]/4 {
					t.Errorf("%d chips, %d processes, %v: %d blank lines", chips, processes, size, blank)
				}
			}
			golden(t, fmt.Sprintf("overview-%d-chips-%d-processes.txt", chips, processes), all.String())
		}
	}
}

// replay is where the replays of these tests are.
var replay = Playback{Position: 95 * time.Second, Length: 200 * time.Second, Speed: 1}

// seenBy makes a new frame that shows what a source knows.
func (w *world) seenBy(source string, see func(*data), size [2]int) {
	w.again(settings{requested: source == "shm"}, size)
	d := w.data()
	see(&d)
	w.frame.player = nil
	if d.recorded {
		w.frame.player = &fakePlayer{at: replay}
	}
	w.frame.update(d, w.wall)
}

// Wherever the numbers come from, the first look says who holds the most, what is fullest, what
// failed last and why, whether what is shown is exact, and how old it is.
func TestTheFirstLookAnswers(t *testing.T) {
	for _, c := range []struct {
		name  string
		world func() *world
		// see changes what the feed says.
		see  func(*data)
		want []string
	}{
		{"live", exhausted, func(d *data) { d.source = "live" }, []string{"L1 CLASH", "0x6b200, L1", "! why", " exact ", "serve.py", "12:04:", "!"}},
		{"replayed", func() *world { return peopled(8, 200) }, func(d *data) {
			d.source, d.recorded, d.playback = "replay run.ttm", true, replay
		}, []string{" exact ", "worker.py", "x1 01:35", "03:20", "fullest", "12:03:"}},
		{"sampled", func() *world { return sampledWorld(32, 20) }, func(d *data) { d.source = "sampled 1s" }, []string{" sampled 2s ago ", "S ", "sampled, not traced", "worker.py", "fullest", "12:03:"}},
		{"shm", func() *world { return totalsWorld(2, 2) }, func(d *data) {
			s := *d.snapshot
			s.Lacks = []string{"buffers"}
			d.snapshot, d.source = &s, "runtime's shared memory"
		}, []string{"totals only", "T host: only the runtime's own totals are known", "how full chips are is not known", "totals.py", "requested", "12:03:"}},
	} {
		w := c.world()
		var all strings.Builder
		for _, size := range overviewSizes {
			w.seenBy(c.name, c.see, size)
			s := &testScreen{SimulationScreen: tcell.NewSimulationScreen(""), w: size[0], h: size[1]}
			if err := s.Init(); err != nil {
				t.Fatal(err)
			}
			w.frame.Draw(s)
			got := trimmed(s.text())
			s.Fini()
			for _, want := range c.want {
				if !strings.Contains(got, want) {
					t.Errorf("%s, %v: no %q in:\n%s", c.name, size, want, got)
				}
			}
			fmt.Fprintf(&all, "=== %dx%d ===\n%s", size[0], size[1], got)
		}
		golden(t, "first-look-"+c.name+".txt", all.String())
	}
}

// The same with few and many chips and processes, at every size: the one that holds the most is in the first row.
func TestTheFirstLookAnswersOnEveryHost(t *testing.T) {
	for _, chips := range []int{1, 8, 32} {
		for _, processes := range []int{1, 200} {
			most := "1004"
			if processes == 1 {
				most = "1000"
			}
			for source, c := range map[string]struct {
				world func() *world
				see   func(*data)
				most  string
				want  []string
			}{
				"live": {func() *world {
					w := peopled(chips, processes)
					w.refused(1000, aggregator.FailedAllocation{Asked: 12 * 64 * mib, PerBank: 64 * mib, Banks: 12, Message: "Out of Memory"}, aggregator.DRAM)
					w.pass(time.Second)
					return w
				}, func(*data) {}, most, []string{"OUT OF MEMORY DRAM", "pid 1000", "! why", " exact "}},
				"replayed": {func() *world { return peopled(chips, processes) }, func(d *data) {
					d.source, d.recorded, d.playback = "replay run.ttm", true, replay
				}, most, []string{" replay", " exact ", "x1 01:35"}},
				"sampled": {func() *world { return sampledWorld(chips, processes) }, func(*data) {}, most, []string{"sampled 2s ago", "sampled, not traced"}},
				"sampled in part": {func() *world {
					w := sampledWorld(chips, processes)
					w.begins(2000, "python other.py", nil, false)
					w.publish(raised(aggregator.ReasonRaised, 2000, exact.ReasonEventsUnread, "bad address"))
					return w
				}, func(*data) {}, most, []string{"not exact, sampled 2s ago", "sampled, not traced"}},
				"shm": {func() *world { return totalsWorld(uint32(chips), uint32(processes)) }, func(d *data) {
					s := *d.snapshot
					s.Lacks = []string{"buffers"}
					d.snapshot = &s
				}, fmt.Sprint(processes), []string{"totals only", "only the runtime's own totals"}},
			} {
				w := c.world()
				for _, size := range overviewSizes {
					w.seenBy(source, c.see, size)
					got := plainText(w.frame.compose(size[0], size[1]))
					want := c.want
					if chips > 1 {
						want = append(want, fmt.Sprintf("all %d chips", chips), "fullest")
					}
					for _, s := range want {
						if !strings.Contains(got, s) {
							t.Errorf("%s, %d chips, %d processes, %v: no %q in:\n%s", source, chips, processes, size, s, got)
						}
					}
					if _, row, _ := strings.Cut(got, "▸"); !slices.Equal(strings.Fields(row)[:1], []string{c.most}) {
						t.Errorf("%s, %d chips, %d processes, %v: not %s in the first row of:\n%s", source, chips, processes, size, c.most, got)
					}
				}
			}
		}
	}
}

// sampledWorld is a host whose processes are read now and then, the last time two seconds ago.
func sampledWorld(chips, processes int) *world {
	w := peopled(chips, processes)
	for i := range uint32(processes) {
		w.publish(raised(aggregator.ReasonRaised, 1000+i, exact.ReasonSampled, ""))
		w.publish(aggregator.Event{Kind: aggregator.Scanned, PID: 1000 + i, Scan: &aggregator.Scan{}})
	}
	w.pass(2 * time.Second)
	return w
}

// totalsWorld is a host of which only the runtime's own totals are known.
func totalsWorld(chips, processes uint32) *world {
	w := newWorld(0)
	w.view(settings{})
	for pid := uint32(1); pid <= processes; pid++ {
		w.publish(aggregator.Event{Kind: aggregator.ProcessStart, PID: pid, Process: &aggregator.Process{Started: 1, Command: "python totals.py", Source: aggregator.FromSharedMemory}})
		for chip := range chips {
			if processes > 1 && chip != (pid-1)%chips {
				continue
			}
			var sums aggregator.RuntimeTotals
			sums.Chip.Number = chip
			sums.Requested[aggregator.DRAM], sums.Requested[aggregator.L1] = uint64(pid)*gib, uint64(pid)*mib
			sums.CB = 64 * kib
			w.publish(aggregator.Event{Kind: aggregator.RuntimeTotalsChanged, PID: pid, RuntimeTotals: &sums})
		}
	}
	w.pass(10 * time.Second)
	return w
}

// A chip of which only totals are known shows these, and no 0 in place of what is unknown.
func TestAChipOfTotals(t *testing.T) {
	w := totalsWorld(2, 2)
	for _, size := range overviewSizes {
		w.again(settings{requested: true}, size)
		w.frame.show(chipPage)
		w.text(t, size[0], size[1])
		d := w.data()
		s := *d.snapshot
		s.Lacks = []string{"buffers"}
		d.snapshot = &s
		w.frame.update(d, w.wall)
		got := plainText(w.frame.compose(size[0], size[1]))
		for _, want := range []string{"REQUESTED", "1.00 GiB", "1.00 MiB", "CB+DFB: 64.0 KiB, peak ≥64.0 KiB  programs, kernels, config ring: ·"} {
			if !strings.Contains(got, want) {
				t.Errorf("%v: no %q in:\n%s", size, want, got)
			}
		}
		for l := range strings.Lines(got) {
			f := strings.Fields(l)
			if len(f) > 5 && f[1] == "1" && slices.Contains(f, "python") && f[len(f)-1] == "0" || strings.Contains(l, "0 programs") || strings.Contains(l, "kernels: 0") {
				t.Errorf("%v: a 0 that is not known: %q", size, l)
			}
		}
	}
}
