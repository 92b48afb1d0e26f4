package ui

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"tt-memtrace/aggregator"
	"tt-memtrace/aggregator/exact"
	"tt-memtrace/ui/widget"
)

const (
	kib = 1 << 10
	mib = 1 << 20
	gib = 1 << 30
)

// hostile is a command line that attacks the terminal in every way:
// a sequence that clears the screen, tview's tags, a line break, text
// direction, bytes that are no UTF-8, and wide characters.
const hostile = "/opt/e\x1b[2Jvil [red]boo[-] [\"x\"]\n\t\u202eright\x9b31m\xff\xfe日本語 e\u0301"

func banks(count uint32, bytes uint64) aggregator.Banks {
	return aggregator.Banks{Known: true, Count: count, Bytes: bytes}
}

func usage(reserved, highest, buffers uint64, b aggregator.Banks) aggregator.Usage {
	return aggregator.Usage{
		Requested: exact.Of(reserved / 2), Reserved: exact.Of(reserved), PeakRequested: exact.Of(highest / 2), PeakReserved: exact.Of(highest),
		Buffers: exact.Of(buffers), Banks: b,
	}
}

// absentMemory is a memory that a chip does not have.
func absentMemory() aggregator.Usage {
	u := aggregator.EmptyUsage()
	u.Banks.Known = true
	return u
}

// programs is what programs use of a chip: now, and at most.
func programs(physical, peak uint64) aggregator.CBUsage {
	u := aggregator.EmptyCBUsage()
	u.Physical, u.PeakPhysical = exact.Of(physical), exact.Of(peak)
	return u
}

// withoutUse is a process that holds nothing.
func withoutUse(p aggregator.ProcessSnapshot) aggregator.ProcessSnapshot {
	p.Memory, p.Unplaced, p.CB, p.Kernel = aggregator.EmptyUsages(), aggregator.EmptyUsages(), aggregator.EmptyCBUsage(), aggregator.EmptyKernelUsage()
	for _, q := range []*exact.Quantity{&p.Buffers, &p.Counters.Allocs, &p.Counters.Frees} {
		if !q.Known() {
			*q = exact.Of(0)
		}
	}
	return p
}

// shownAs returns the use of a memory as a snapshot has it, of a process that was attached late or not.
func shownAs(u aggregator.Usage, late bool) aggregator.Usage {
	s := &aggregator.Snapshot{Processes: []aggregator.ProcessSnapshot{{Late: late}}}
	s.Processes[0].Memory[0] = u
	s.Hide()
	return s.Processes[0].Memory[0]
}

func sum(to *[aggregator.NumMemories]aggregator.Usage, from [aggregator.NumMemories]aggregator.Usage) {
	for m, u := range from {
		to[m].Add(&u)
	}
}

// reasons are why a process is not exact.
func reasons(pid uint32, codes ...exact.ReasonCode) (out []aggregator.Reason) {
	for _, c := range codes {
		out = append(out, aggregator.Reason{Code: c, PID: pid})
	}
	return out
}

// fixture is a host with n chips and three processes: a server on all of
// them, a hostile one that was attached late on chip 0, and an idle one.
func fixture(n int) *aggregator.Snapshot {
	const start = 1000 * uint64(time.Second)
	s := &aggregator.Snapshot{Time: start, Counters: aggregator.Counters{Events: 3_000_000}}
	server := aggregator.ProcessSnapshot{
		PID: 41822, Info: aggregator.Process{Started: 1, Command: "/usr/bin/python3 serve.py --model llama-70b --port 8000"},
		Since: start - 900*uint64(time.Second), Buffers: exact.Of(18204),
		Counters: aggregator.ProcessCounters{Allocs: exact.Of(1_200_000), Frees: exact.Of(1_181_796)},
	}
	late := aggregator.ProcessSnapshot{
		PID: 50231, Late: true, Info: aggregator.Process{Started: 2, Command: hostile},
		Since: start - 14*uint64(time.Second), Buffers: exact.Of(311),
		Counters: aggregator.ProcessCounters{Allocs: exact.Of(402), Frees: exact.Of(91), UnmatchedFrees: 12},
		Reasons:  reasons(50231, exact.ReasonLate, exact.ReasonUnmatchedFree),
	}
	server, late = withoutUse(server), withoutUse(late)
	idle := aggregator.ProcessSnapshot{PID: 50990, Info: aggregator.Process{Started: 3}, Since: start}
	for i := range n {
		c := aggregator.ChipSnapshot{Chip: aggregator.Chip{Number: uint32(i)}, Arch: "wormhole_b0", PIDs: []uint32{41822}, Memory: aggregator.EmptyUsages(), CB: aggregator.EmptyCBUsage(), Kernel: aggregator.EmptyKernelUsage()}
		if i > 0 {
			c.Board = "n300"
			c.CB = programs(uint64(i)*786432, uint64(i)*1572864)
		}
		share := uint64(i%8 + 1)
		c.Memory[aggregator.DRAM] = usage(share*1400*mib, 11900*mib, 1000, banks(12, gib))
		c.Memory[aggregator.L1] = usage(share*9*mib, 75*mib, 900, banks(64, 1331200))
		c.Memory[aggregator.L1Small] = usage(512*kib, 2*mib, 9, banks(64, 32*kib))
		c.Memory[aggregator.Trace] = usage(share*11*mib, 95*mib, 3, banks(12, 8*mib))
		switch i {
		case 3:
			dram := &c.Memory[aggregator.DRAM]
			dram.Unreserved, dram.Reserved, dram.PeakReserved = exact.Of(3), dram.Reserved.Doubted(exact.AtLeast), dram.PeakReserved.Doubted(exact.AtLeast)
			c.Memory[aggregator.Trace] = absentMemory()
		case 5:
			c.Memory[aggregator.L1].Banks = aggregator.Banks{}
		}
		server.Chips = append(server.Chips, c)
		sum(&server.Memory, c.Memory)
		if i == 0 {
			own := aggregator.ChipSnapshot{Chip: c.Chip, Arch: c.Arch, Board: c.Board, CB: c.CB, Kernel: c.Kernel, PIDs: []uint32{late.PID}, Memory: aggregator.EmptyUsages()}
			own.Memory[aggregator.DRAM] = usage(212*mib, 300*mib, 290, banks(12, gib))
			own.Memory[aggregator.L1] = usage(11*mib, 20*mib, 21, banks(64, 1331200))
			late.Chips = []aggregator.ChipSnapshot{own}
			sum(&late.Memory, own.Memory)
			sum(&c.Memory, own.Memory)
			c.PIDs, c.Reasons = append(c.PIDs, late.PID), late.Reasons
		}
		s.Chips = append(s.Chips, c)
	}
	s.Processes = []aggregator.ProcessSnapshot{server, late, withoutUse(idle)}
	s.Hide()
	return s
}

// withEnded adds n processes that exited to a fixture: a hostile one of which
// little is known, and ordinary ones that forgot a buffer.
func withEnded(s *aggregator.Snapshot, n int) *aggregator.Snapshot {
	for i := range n {
		p := aggregator.ProcessSnapshot{
			PID: 60000 + uint32(i), Info: aggregator.Process{Started: uint64(10 + i), Command: "/usr/bin/pytest -x tests/"},
			Since: uint64(i) * uint64(time.Second), Last: uint64(i+75) * uint64(time.Second), Buffers: exact.Of(1),
			Counters: aggregator.ProcessCounters{Allocs: exact.Of(1000 + uint64(i)), Frees: exact.Of(999)},
			Exit:     []*aggregator.Exit{{}, {Signal: 9}, {Status: 1}}[i%3],
		}
		p = withoutUse(p)
		for chip := range min(i+1, 8) {
			c := aggregator.ChipSnapshot{Chip: aggregator.Chip{Number: uint32(chip)}, Memory: aggregator.EmptyUsages(), CB: aggregator.EmptyCBUsage(), Kernel: aggregator.EmptyKernelUsage()}
			c.Memory[aggregator.DRAM] = usage(mib, 3*gib, 1, banks(12, gib))
			c.Memory[aggregator.L1] = usage(0, 20*mib, 0, banks(64, 1331200))
			c.Memory[aggregator.Trace] = absentMemory()
			p.Chips = append(p.Chips, c)
			sum(&p.Memory, c.Memory)
		}
		if i == n-1 {
			p.Info.Command, p.Late, p.Exit = hostile, true, nil
			p.Counters.Replaced, p.Counters.Odd = 3, 2
			p.Reasons = reasons(p.PID, exact.ReasonLate, exact.ReasonMissedFree, exact.ReasonInconsistentEvents)
			p.Memory[aggregator.L1].PeakReserved = p.Memory[aggregator.L1].PeakReserved.Doubted(exact.AtLeast)
			p.Unplaced[aggregator.L1Small].PeakRequested, p.Unplaced[aggregator.L1Small].PeakReserved = exact.Of(kib), exact.Quantity{}
		}
		s.Ended = append(s.Ended, p)
		s.Counters.Exited++
	}
	s.Hide()
	return s
}

// fixtureData is the fixture as the pump would hand it on.
func fixtureData(n int) data {
	s := fixture(n)
	return data{
		snapshot: s, now: s.Time, clock: time.Date(2025, 1, 2, 12, 3, 11, 0, time.UTC), host: "tt-host-01", source: "live",
		rates: rates{known: true, events: 12480, calls: map[processID]float64{{41822, 1}: 3100, {50231, 2}: 0}},
	}
}

func (f *frame) overview() *overview { return f.pages[overviewPage].(*overview) }

func plainText(p widget.Picture) string {
	var b strings.Builder
	for _, l := range p.Lines {
		b.WriteString(strings.TrimRight(l.String(), " "))
		b.WriteByte('\n')
	}
	return b.String()
}

var update = flag.Bool("update", false, "write the golden files")

// golden compares text with testdata/name.
func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got == string(want) {
		return
	}
	t.Errorf("%s differs (go test -update writes it)", name)
	a, b := strings.Split(got, "\n"), strings.Split(string(want), "\n")
	shown := 0
	for i := 0; i < max(len(a), len(b)) && shown < 12; i++ {
		g, w := "", ""
		if i < len(a) {
			g = a[i]
		}
		if i < len(b) {
			w = b[i]
		}
		if g != w {
			t.Logf("line %d\n got: %s\nwant: %s", i+1, g, w)
			shown++
		}
	}
}

// settingsAt makes a file of settings.
func settingsAt(t *testing.T, text string) string {
	path := filepath.Join(t.TempDir(), "ui.json")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func read(t *testing.T, path string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
