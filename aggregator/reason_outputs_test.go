package aggregator_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"

	"tt-memtrace/aggregator"
	"tt-memtrace/aggregator/exact"
	"tt-memtrace/internal/export"
	"tt-memtrace/internal/metrics"
	"tt-memtrace/ui"
)

// Each reason affects what its row says, and nothing else, in every output: a process has a buffer in DRAM, none in L1, no
// program, and a launch. Reasons that affect places of programs, L1 outside, reserved sizes or rings come with numbers
// that are marked themselves.
func TestReasonsAffectWhatTheirRowSays(t *testing.T) {
	const none = exact.ReasonCode("")
	for _, code := range slices.Concat([]exact.ReasonCode{none, "of_a_newer_version"}, exact.ReasonCodes()) {
		t.Run(string(code), func(t *testing.T) {
			a := aggregator.New()
			a.FollowSites(func(*aggregator.Stack) string { return "model.py:1 main" })
			a.Apply(&aggregator.Event{Kind: aggregator.ProcessStart, PID: 1, Process: &aggregator.Process{Started: 1, Command: "model"}})
			a.Apply(&aggregator.Event{Kind: aggregator.DeviceOpen, PID: 1, Device: 1, Opened: &aggregator.Opened{Chips: []aggregator.Chip{{}}}})
			a.Apply(&aggregator.Event{Kind: aggregator.AllocatorSeen, PID: 1, Device: 1, Allocator: 2, Capacity: &aggregator.Capacity{
				aggregator.DRAM: {Known: true, Count: 4, Bytes: 1 << 20}, aggregator.L1: {Known: true, Count: 4, Bytes: 1 << 20}, aggregator.L1Small: {Known: true}, aggregator.Trace: {Known: true}}})
			a.Apply(&aggregator.Event{Kind: aggregator.Alloc, PID: 1, Device: 1, Allocator: 2, Buffer: 3, Memory: aggregator.DRAM, Size: 4096, PerBank: 1024,
				Stack: &aggregator.Stack{Frames: []aggregator.Frame{{Function: "main"}}}})
			a.Apply(&aggregator.Event{Kind: aggregator.Launched, PID: 1, Time: 4, Count: 1})
			want := exact.Affects(0)
			if code != none {
				a.Apply(&aggregator.Event{Kind: aggregator.ReasonRaised, PID: 1, Time: 5, Reason: &aggregator.Reason{Code: code}})
				want = code.Row().Affects
			}
			s := a.Snapshot()
			check := func(what string, got, want bool) {
				t.Helper()
				if got != want {
					t.Errorf("%s: %v, not %v", what, got, want)
				}
			}
			has := func(any exact.Affects) bool { return want&any != 0 }
			onChip := has(aggregator.HidesOnChip)
			p, c := &s.Processes[0], &s.Chips[0]
			check("exact", s.Exact() && p.Exact() && c.Exact(), code == none)
			check("buffers of the process hidden", p.Hidden.Buffers, has(exact.AffectsBuffers))
			check("buffers of the process on the chip hidden", p.Chips[0].Hidden.Buffers, onChip)
			check("programs of the process hidden", p.Hidden.Programs, has(exact.AffectsPrograms))
			on := c.Hidden
			check("buffers of the chip hidden", on.Buffers, onChip)
			check("programs of the chip hidden", on.Programs, has(exact.AffectsPrograms))
			check("calls are lower bounds", p.Counters.Allocs.Bound() == exact.AtLeast, has(exact.AffectsCalls))
			check("launches are lower bounds", p.Counters.Launches.Bound() == exact.AtLeast, has(exact.AffectsLaunches))
			check("unsafe buffers unknown", !p.Unsafe.Found.Known(), has(exact.AffectsUnsafe))
			spaces, _ := a.FreeSpaces(10)
			check("free space known", len(spaces) == 1, !has(exact.AffectsBuffers|exact.AffectsFrees))
			check("peak of the site is a lower bound", a.Sites(1)[0].Peak.Bound() == exact.AtLeast, has(exact.AffectsBuffers|exact.AffectsFrees|exact.AffectsPlaces))

			status := export.NewStatus(s, time.Unix(9, 0), "host", "version")
			for _, of := range []export.StatusChip{status.Chips[0], status.Processes[0].Chips[0]} {
				check("JSON: L1 is null", of.Memory["l1"].Requested == nil && of.Memory["l1"].Buffers == nil, onChip)
				check("JSON: DRAM is there", *of.Memory["dram"].Requested == 4096 && *of.Memory["dram"].Buffers == 1, true)
				check("JSON: no L1_SMALL is 0", of.Memory["l1_small"].Capacity != nil && *of.Memory["l1_small"].Capacity == 0 && of.Memory["l1_small"].Buffers != nil, true)
				check("JSON: programs are null", of.Kernels.Programs == nil, has(exact.AffectsPrograms))
			}

			for _, of := range []export.StatusUse{status.Chips[0].Memory["dram"], status.Processes[0].Chips[0].Memory["dram"]} {
				check("JSON: peaks are uncertain", of.PeaksUncertain, has(exact.AffectsPeaks))
			}
			u := status.Processes[0].Unsafe
			check("JSON: unsafe buffers are null", u.Buffers == nil && u.Bytes == nil && u.Overlapping == nil && u.OverlappingBytes == nil && u.Found == nil, has(exact.AffectsUnsafe))

			collector, err := metrics.NewCollector(func() metrics.Reading { return metrics.Reading{Snapshot: s, Rooms: spaces} }, metrics.Options{Processes: 1})
			if err != nil {
				t.Fatal(err)
			}
			families, err := collector.Gather()
			if err != nil {
				t.Fatal(err)
			}
			series := func(name string, labels ...string) bool {
				return slices.ContainsFunc(families, func(f *dto.MetricFamily) bool {
					return f.GetName() == "tt_memtrace_"+name && slices.ContainsFunc(f.Metric, func(m *dto.Metric) bool {
						for _, l := range labels {
							if !slices.ContainsFunc(m.Label, func(pair *dto.LabelPair) bool { return pair.GetValue() == l }) {
								return false
							}
						}
						return true
					})
				})
			}
			check("metrics: L1", series("memory_buffers", "l1"), !onChip)
			check("metrics: DRAM", series("memory_buffers", "dram"), true)
			check("metrics: largest free block", series("memory_largest_free_block_bytes", "dram"), !has(exact.AffectsBuffers|exact.AffectsFrees))
			check("metrics: programs", series("programs"), !has(exact.AffectsPrograms))

			var screen strings.Builder
			if err := ui.Text(&screen, s, ui.TextOptions{Width: 120, Exact: true}); err != nil {
				t.Fatal(err)
			}
			lines := strings.Split(screen.String(), "\n")
			chip := strings.Fields(lines[3]) // CHIP CARD DRAM-BAR DRAM PEAK L1-BAR or ·
			check("screen: L1 of the chip unknown", chip[5] == "·", onChip)
			i := slices.IndexFunc(lines, func(l string) bool { return strings.Contains(l, " model ") })
			if i < 0 {
				t.Fatalf("no process:\n%s", screen.String())
			}
			_, row, _ := strings.Cut(lines[i], " model ")
			cells := strings.Fields(row) // CHIPS DRAM L1 L1_SMALL TRACE CB+DFB BUFFERS ALLOCS ...
			if len(cells) < 8 {
				t.Fatalf("%q", row)
			}
			cell := func(what string, got string, unknown bool, known string) {
				t.Helper()
				if unknown {
					known = "·"
				}
				if got != known {
					t.Errorf("screen: %s is %q, not %q:\n%s", what, got, known, screen.String())
				}
			}
			letter := ""
			if code != none {
				letter = code.Letter()
			}
			marked := strings.Fields(lines[i])
			check("screen: letter of the process", marked[1] == letter, code != none)
			check("screen: letter of the chip", chip[0] == "0"+letter, true)
			cell("DRAM", cells[1], false, "4,096")
			cell("L1", cells[2], has(exact.AffectsBuffers), "0")
			cell("CB+DFB", cells[5], has(exact.AffectsPrograms), "0")
			cell("BUFFERS", cells[6], false, "1")
			least := ""
			if has(exact.AffectsCalls) {
				least = "≥"
			}
			cell("ALLOCS", cells[7], false, least+"1")
		})
	}
}
