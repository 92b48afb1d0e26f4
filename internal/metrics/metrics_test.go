package metrics

import (
	"flag"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"tt-memtrace/aggregator"
	"tt-memtrace/aggregator/exact"
	"tt-memtrace/internal/telemetry"
	"tt-memtrace/test/pinned"
)

// host is accounts that a test fills, as a tracer does.
type host struct {
	mu        sync.Mutex
	accounts  *aggregator.Aggregator
	probes    *Probes
	recording *Recording
	devices   []telemetry.Device
	time      uint64
}

func newHost() *host { return &host{accounts: aggregator.New()} }

func (h *host) apply(e aggregator.Event) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.time++
	e.Time = h.time
	h.accounts.Apply(&e)
}

func (h *host) read() Reading {
	h.mu.Lock()
	defer h.mu.Unlock()
	rooms, _ := h.accounts.FreeSpaces(20_000)
	return Reading{Snapshot: h.accounts.Snapshot(), Rooms: rooms, Probes: h.probes, Recording: h.recording, Devices: h.devices}
}

// banks of a Wormhole, rounded.
var banks = aggregator.Capacity{
	aggregator.DRAM: {Known: true, Count: 12, Bytes: 1 << 30}, aggregator.L1: {Known: true, Count: 64, Bytes: 1 << 20},
	aggregator.L1Small: {Known: true, Count: 64, Bytes: 32 << 10}, aggregator.Trace: {Known: true, Count: 12, Bytes: 1 << 20},
}

// start lets a process open chips.
func (h *host) start(pid uint32, chips ...uint32) {
	o := &aggregator.Opened{Arch: "wormhole_b0", Mesh: true}
	for _, n := range chips {
		o.Chips = append(o.Chips, aggregator.Chip{Number: n})
		o.Boards = append(o.Boards, "n300")
		o.UniqueIDs = append(o.UniqueIDs, 1000+uint64(n))
	}
	h.apply(aggregator.Event{Kind: aggregator.ProcessStart, PID: pid, Process: &aggregator.Process{
		Started: uint64(pid) * 10, Command: fmt.Sprintf("model-%d --secret", pid), BuildID: "ab12", Release: "0.81.1"}})
	h.apply(aggregator.Event{Kind: aggregator.DeviceOpen, PID: pid, Device: 1, Opened: o})
	h.apply(aggregator.Event{Kind: aggregator.AllocatorSeen, PID: pid, Device: 1, Allocator: 2, Capacity: &banks})
}

// program lets it place a circular buffer on four cores of each chip.
func (h *host) program(pid uint32) {
	h.apply(aggregator.Event{Kind: aggregator.CBPlaced, PID: pid, Device: 1, Program: 3, CB: &aggregator.CircularBuffer{
		Call: 1, Address: 1024, Size: 2048, Ranges: []aggregator.CoreRange{{X1: 1, Y1: 1}}}})
}

// hold lets it allocate a buffer; per is what each bank loses.
func (h *host) hold(pid uint32, id uint64, m aggregator.Memory, address, per uint64) {
	h.apply(aggregator.Event{Kind: aggregator.Alloc, PID: pid, Memory: m, Device: 1, Allocator: 2, Buffer: id,
		Address: address, Size: per * 3, PerBank: per})
}

func (h *host) exit(pid uint32) { h.apply(aggregator.Event{Kind: aggregator.ProcessExit, PID: pid}) }

// gatherer is a collector whose samples are checked: none is there twice, names and values
// of labels are valid, and each has the labels that the table says, in their order.
func gatherer(t testing.TB, h *host, o Options) prometheus.Gatherer {
	t.Helper()
	c, err := NewCollector(h.read, o)
	if err != nil {
		t.Fatal(err)
	}
	labels := map[string][]string{}
	for _, m := range all {
		labels[m.name] = slices.Sorted(slices.Values(m.labels))
	}
	return prometheus.GathererFunc(func() ([]*dto.MetricFamily, error) {
		list, err := c.Gather()
		if err != nil {
			return nil, err
		}
		for _, f := range list {
			for _, m := range f.Metric {
				var has []string
				for _, p := range m.Label {
					has = append(has, p.GetName())
				}
				if !slices.Equal(has, labels[f.GetName()]) {
					return nil, fmt.Errorf("%s has the labels %v", f.GetName(), has)
				}
			}
		}
		return prometheus.Gatherers{prometheus.GathererFunc(func() ([]*dto.MetricFamily, error) { return list, nil })}.Gather()
	})
}

// values are all series, as NAME{LABELS}, of metrics with a prefix.
func values(t testing.TB, g prometheus.Gatherer, prefix string) map[string]float64 {
	t.Helper()
	list, err := g.Gather()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]float64{}
	for _, f := range list {
		for _, m := range f.Metric {
			var l []string
			for _, p := range m.Label {
				if p.GetValue() != "" {
					l = append(l, p.GetName()+"="+p.GetValue())
				}
			}
			if name := strings.TrimPrefix(f.GetName(), "tt_memtrace_"); strings.HasPrefix(name, prefix) {
				out[name+"{"+strings.Join(l, ",")+"}"] = value(m)
			}
		}
	}
	return out
}

func value(m *dto.Metric) float64 {
	if m.Counter != nil {
		return m.Counter.GetValue()
	}
	return m.Gauge.GetValue()
}

func expect(t *testing.T, got map[string]float64, want map[string]float64) {
	t.Helper()
	for k, v := range want {
		if g, ok := got[k]; !ok || g != v {
			t.Errorf("%s is %v (there: %v), not %v", k, g, ok, v)
		}
	}
}

func none(t *testing.T, got map[string]float64, parts ...string) {
	t.Helper()
	for k := range got {
		for _, p := range parts {
			if strings.Contains(k, p) {
				t.Errorf("%s is there", k)
			}
		}
	}
}

func TestAccountsAreShown(t *testing.T) {
	h := newHost()
	h.start(7, 0, 1)
	h.hold(7, 100, aggregator.DRAM, 0, 1000)
	h.hold(7, 101, aggregator.L1, 4096, 2048)
	h.apply(aggregator.Event{Kind: aggregator.Launched, PID: 7, Count: 5})
	h.probes = &Probes{Kinds: []KindCounts{{"alloc", 2, 1, 0}}, Refused: 3, Failed: 4, RingUsed: 5, RingBytes: 6, Tables: []TableFill{{"launches", 7, 8}}}
	got := values(t, gatherer(t, h, Options{Version: "v1", Processes: 10}), "")
	expect(t, got, map[string]float64{
		"build_info{version=v1}": 1,
		"chip_info{arch=wormhole_b0,card=n300,chip=1,unique_id=1001}":           1,
		"l1_begin_address_bytes{chip=1}":                                        4096,
		"memory_requested_bytes{chip=0,memory=dram}":                            3000,
		"memory_reserved_bytes{chip=1,memory=dram}":                             12000,
		"memory_reserved_bytes{chip=1,memory=l1}":                               2048 * 64,
		"memory_peak_reserved_bytes{chip=1,memory=l1}":                          2048 * 64,
		"memory_capacity_bytes{chip=0,memory=dram}":                             12 << 30,
		"memory_largest_free_block_bytes{chip=0,memory=dram}":                   12 * (1<<30 - 1000),
		"memory_buffers{chip=0,memory=l1_small}":                                0,
		"process_memory_reserved_bytes{chip=1,comm=model-7,memory=dram,pid=7}":  12000,
		"process_allocations_total{comm=model-7,pid=7}":                         2,
		"process_launches_total{comm=model-7,pid=7}":                            5,
		"process_buffers{comm=model-7,pid=7}":                                   2,
		"process_library_info{build_id=ab12,comm=model-7,pid=7,release=0.81.1}": 1,
		"library_processes{build_id=ab12,release=0.81.1}":                       1,
		"launches_total{}": 5, "events_total{}": 6, "events_lost_total{}": 0, "exact{}": 1, "processes{}": 1,
		"chip_exact{chip=0}": 1, "process_exact{comm=model-7,pid=7}": 1, "inexact_reasons{code=events_lost}": 0,
		"probe_events_lost_total{kind=alloc}": 1, "libraries_refused{}": 3, "attach_failures_total{}": 4,
		"ring_buffer_used_bytes{}": 5, "ring_buffer_bytes{}": 6, "bpf_table_entries{table=launches}": 7, "bpf_table_capacity{table=launches}": 8,
		"process_source_info{comm=model-7,pid=7,source=traced}": 1,
	})
	none(t, got, "secret")
	// A process has no series for memories that it never used.
	none(t, got, "process_memory_requested_bytes{chip=0,comm=model-7,memory=trace")
}

// What is not exact is marked, and nothing else.
func TestExactness(t *testing.T) {
	h := newHost()
	h.start(7, 0)
	h.start(8, 1)
	raised := aggregator.Event{Kind: aggregator.ReasonRaised, PID: 7, Reason: &aggregator.Reason{Code: exact.ReasonEventsUnread}}
	newer := aggregator.Event{Kind: aggregator.ReasonRaised, PID: 7, Reason: &aggregator.Reason{Code: "newer"}}
	h.apply(raised)
	h.apply(newer)
	expect(t, values(t, gatherer(t, h, Options{Processes: 10}), ""), map[string]float64{
		"exact{}": 0, "chip_exact{chip=0}": 0, "chip_exact{chip=1}": 1, "inexact_reasons{code=events_unread}": 1, "inexact_reasons{code=other}": 1,
		"inexact_reasons{code=events_lost}": 0, "process_exact{comm=model-7,pid=7}": 0, "process_exact{comm=model-8,pid=8}": 1,
	})
	expect(t, values(t, gatherer(t, h, Options{}), ""), map[string]float64{"process_exact{pid=other}": 0})
	raised.Kind, newer.Kind = aggregator.ReasonLifted, aggregator.ReasonLifted
	h.apply(raised)
	h.apply(newer)
	expect(t, values(t, gatherer(t, h, Options{}), ""), map[string]float64{
		"exact{}": 1, "chip_exact{chip=0}": 1, "process_exact{pid=other}": 1, "inexact_reasons{code=events_unread}": 0,
	})
}

// What is not known has no series: it is not 0.
func TestUnknownHasNoSeries(t *testing.T) {
	h := newHost()
	h.start(7, 0)
	h.apply(aggregator.Event{Kind: aggregator.Alloc, PID: 7, Memory: aggregator.DRAM, Device: 1, Allocator: 9, Buffer: 5, Size: 100})
	got := values(t, gatherer(t, h, Options{Processes: 10}), "")
	none(t, got, "memory_reserved_bytes{chip=0,memory=dram}", "memory_peak_reserved_bytes{chip=0,memory=dram}",
		"process_memory_reserved_bytes", "largest_free_block_bytes{chip=0,memory=dram}", "probe_", "refused")
	expect(t, got, map[string]float64{"memory_requested_bytes{chip=0,memory=dram}": 100,
		"memory_reserved_unknown_buffers{chip=0,memory=dram}": 1})
	h.exit(7)
	got = values(t, gatherer(t, h, Options{Processes: 10}), "memory_")
	expect(t, got, map[string]float64{"memory_reserved_bytes{chip=0,memory=dram}": 0})
	none(t, got, "peak_reserved_bytes{chip=0,memory=dram}")
}

// What is 0 because it may have been missed has no series either; the reason has one. What was seen keeps its own.
func TestNothingSeenHasNoSeriesWhereSomethingMayBeMissing(t *testing.T) {
	h := newHost()
	h.start(7, 0)
	h.start(8, 1)
	h.hold(7, 100, aggregator.DRAM, 0, 1000)
	h.hold(7, 101, aggregator.L1, 0, 1000)
	h.apply(aggregator.Event{Kind: aggregator.Free, PID: 7, Buffer: 101})
	refused := aggregator.Event{Kind: aggregator.ReasonRaised, PID: 7, Reason: &aggregator.Reason{Code: exact.ReasonNotTraced}}
	h.apply(refused)
	alone, summed := values(t, gatherer(t, h, Options{Processes: 10}), ""), values(t, gatherer(t, h, Options{}), "")
	for _, got := range []map[string]float64{alone, summed} {
		none(t, got, "memory_requested_bytes{chip=0,memory=l1}", "memory_reserved_bytes{chip=0,memory=l1}", "memory_buffers{chip=0,memory=l1}", "memory_reserved_unknown_buffers{chip=0,memory=l1}",
			"memory_largest_free_block_bytes{chip=0,memory=l1}", "memory_peak_requested_bytes{chip=0,memory=trace}", "memory_peak_reserved_bytes{chip=0,memory=trace}",
			"program_physical_bytes{chip=0}", "program_logical_bytes{chip=0}", "program_peak_physical_bytes{chip=0}", "program_peak_logical_bytes{chip=0}", "program_busiest_core_bytes{chip=0}", "program_end_address_bytes{chip=0}",
			"programs{chip=0}", "program_buffers{chip=0,", "kernel_programs{chip=0}", "kernel_binaries{chip=0,", "kernel_bytes{chip=0}", "kernel_dram_copies{chip=0}", "kernel_dram_bytes{chip=0}")
		expect(t, got, map[string]float64{"inexact_reasons{code=not_traced}": 1, "chip_exact{chip=0}": 0, "memory_buffers{chip=0,memory=dram}": 1, "memory_peak_requested_bytes{chip=0,memory=l1}": 3000,
			"memory_capacity_bytes{chip=0,memory=l1}": 64 << 20, "memory_buffers{chip=1,memory=dram}": 0, "program_physical_bytes{chip=1}": 0, "kernel_bytes{chip=1}": 0, "memory_peak_reserved_bytes{chip=1,memory=l1}": 0})
	}
	none(t, alone, "process_memory_requested_bytes{chip=0,comm=model-7,memory=l1", "process_memory_reserved_bytes{chip=0,comm=model-7,memory=l1", "process_kernel_bytes{comm=model-7")
	none(t, summed, "process_memory_requested_bytes{chip=0,memory=l1", "process_memory_reserved_bytes{chip=0,memory=l1", "process_kernel_bytes{")
	expect(t, alone, map[string]float64{"process_inexact_reasons{code=not_traced,comm=model-7,pid=7}": 1, "process_buffers{comm=model-7,pid=7}": 1, "process_buffers{comm=model-8,pid=8}": 0, "process_kernel_bytes{comm=model-8,pid=8}": 0})
	refused.Kind = aggregator.ReasonLifted
	h.apply(refused)
	expect(t, values(t, gatherer(t, h, Options{Processes: 10}), ""), map[string]float64{"memory_requested_bytes{chip=0,memory=l1}": 0, "program_physical_bytes{chip=0}": 0, "process_kernel_bytes{comm=model-7,pid=7}": 0})
}

// What sampling does not see has no series: peaks, also of the chip, and counts of what happened.
func TestSampledIsNotCounted(t *testing.T) {
	h := newHost()
	h.start(7, 1)
	h.apply(aggregator.Event{Kind: aggregator.ProcessStart, PID: 8, Process: &aggregator.Process{Command: "sampled", Source: aggregator.Sampled}})
	h.apply(aggregator.Event{Kind: aggregator.DeviceOpen, PID: 8, Device: 1, Opened: &aggregator.Opened{Chips: []aggregator.Chip{{Number: 0}}}})
	h.hold(8, 100, aggregator.DRAM, 0, 1000)
	got := values(t, gatherer(t, h, Options{Processes: 10}), "")
	expect(t, got, map[string]float64{"memory_requested_bytes{chip=0,memory=dram}": 3000, "process_buffers{comm=sampled,pid=8}": 1,
		"memory_peak_requested_bytes{chip=1,memory=dram}": 0, "process_allocations_total{comm=model-7,pid=7}": 0, "process_launches_total{comm=model-7,pid=7}": 0})
	none(t, got, "peak_requested_bytes{chip=0", "peak_reserved_bytes{chip=0", "program_peak_physical_bytes{chip=0", "program_peak_logical_bytes{chip=0",
		"process_allocations_total{comm=sampled", "process_frees_total{comm=sampled", "process_launches_total{comm=sampled")
}

// The sum over all processes, "other" among them, is the chips' own, whatever the limit.
func TestLimitOfProcesses(t *testing.T) {
	h := newHost()
	for pid := range uint32(20) {
		h.start(100+pid, 0, pid%4)
		h.hold(100+pid, 1, aggregator.DRAM, 0, uint64(1+pid)*1000)
	}
	for _, limit := range []int{0, 1, 7, 20, 100} {
		r := gatherer(t, h, Options{Processes: limit})
		var sum, chips float64
		pids := map[string]bool{}
		for k, v := range values(t, r, "process_memory_reserved_bytes") {
			sum += v
			_, rest, _ := strings.Cut(k, "pid=")
			pids[rest] = true
		}
		for _, v := range values(t, r, "memory_reserved_bytes") {
			chips += v
		}
		if sum != chips || sum == 0 {
			t.Errorf("limit %d: the processes hold %v, the chips %v", limit, sum, chips)
		}
		want := min(limit, 20)
		if limit < 20 {
			want++
			if !pids["other}"] {
				t.Errorf("limit %d: there is no other in %v", limit, pids)
			}
		}
		if len(pids) != want {
			t.Errorf("limit %d: %d processes are shown", limit, len(pids))
		}
		if limit == 1 && !pids["119}"] {
			t.Errorf("not the largest: %v", pids)
		}
		none(t, values(t, r, "process_allocations_total"), "other")
	}
}

// In the sum of the others, what a reason may hide makes unknown what nobody was seen to hold, and nothing else. A part
// that is simply unknown makes the sum unknown.
func TestOthersWithUnknownParts(t *testing.T) {
	h := newHost()
	h.start(1, 0)
	h.start(2, 0)
	h.hold(1, 1, aggregator.DRAM, 0, 1000)
	h.apply(aggregator.Event{Kind: aggregator.HostMemoryRead, PID: 1, Size: 4096})
	reason := &aggregator.Reason{Code: exact.ReasonScanIncomplete}
	h.apply(aggregator.Event{Kind: aggregator.ReasonRaised, PID: 2, Reason: reason})
	r := gatherer(t, h, Options{})
	expect(t, values(t, r, "process_"), map[string]float64{
		"process_buffers{pid=other}": 1, "process_memory_requested_bytes{chip=0,memory=dram,pid=other}": 3000,
	})
	none(t, values(t, r, "process_"), "process_host", "process_kernel")
	h.apply(aggregator.Event{Kind: aggregator.HostMemoryRead, PID: 2, Size: 8192})
	expect(t, values(t, r, "process_host"), map[string]float64{"process_host_memory_bytes{pid=other}": 12288})
	h.apply(aggregator.Event{Kind: aggregator.Free, PID: 1, Buffer: 1})
	none(t, values(t, r, "process_"), "process_buffers", "process_memory")
	h.apply(aggregator.Event{Kind: aggregator.ReasonLifted, PID: 2, Reason: reason})
	expect(t, values(t, r, "process_buffers"), map[string]float64{"process_buffers{pid=other}": 0})
}

// A process stays where it once was among the shown, though it frees all it has.
func TestShownProcessesDoNotComeAndGo(t *testing.T) {
	h := newHost()
	h.start(1, 0)
	h.start(2, 0)
	h.hold(1, 1, aggregator.DRAM, 0, 5000)
	h.hold(2, 1, aggregator.DRAM, 0, 4000)
	h.apply(aggregator.Event{Kind: aggregator.Free, PID: 1, Buffer: 1})
	expect(t, values(t, gatherer(t, h, Options{Processes: 1}), "process_buffers"),
		map[string]float64{"process_buffers{comm=model-1,pid=1}": 0, "process_buffers{pid=other}": 1})
}

// Chips that processes number by themselves are not added to the host's, and
// their number is bounded with that of the processes.
func TestPrivateNumbers(t *testing.T) {
	h := newHost()
	for pid := uint32(1); pid <= 5; pid++ {
		h.apply(aggregator.Event{Kind: aggregator.DeviceOpen, PID: pid, Device: 1,
			Opened: &aggregator.Opened{Chips: []aggregator.Chip{{Space: pid, Number: 0}}}})
		h.apply(aggregator.Event{Kind: aggregator.Alloc, PID: pid, Device: 1, Buffer: 1, Size: 10})
	}
	got := values(t, gatherer(t, h, Options{Processes: 1}), "process_memory_requested")
	expect(t, got, map[string]float64{
		"process_memory_requested_bytes{chip=0,memory=dram,pid=1,private_to=1}":             10,
		"process_memory_requested_bytes{chip=other,memory=dram,pid=other,private_to=other}": 40,
	})
	if len(got) != 2 {
		t.Error(got)
	}
}

// Text from processes can be anything.
func TestHostileText(t *testing.T) {
	h := newHost()
	for i, s := range []string{"a\"b\nc\\d", "\xff\xfe\x00", strings.Repeat("é", 500), "\u202egnp.exe", ""} {
		pid := uint32(i + 1)
		h.apply(aggregator.Event{Kind: aggregator.ProcessStart, PID: pid, Process: &aggregator.Process{
			Started: 1, Command: s, BuildID: s, Release: s, NotCovered: s + ", " + s + "2"}})
		h.apply(aggregator.Event{Kind: aggregator.DeviceOpen, PID: pid, Device: 1,
			Opened: &aggregator.Opened{Chips: []aggregator.Chip{{Number: uint32(i)}}, Boards: []string{s}, Arch: s}})
	}
	list, err := gatherer(t, h, Options{Version: "\xff", Processes: 10}).Gather()
	if err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	for _, f := range list {
		if _, err := expfmt.MetricFamilyToText(&text, f); err != nil {
			t.Fatal(err)
		}
		for _, m := range f.Metric {
			for _, l := range m.Label {
				if len(l.GetValue()) > 2*maxLabel || strings.ContainsAny(l.GetValue(), "\n\x00\u202e") {
					t.Errorf("%s: %q", l.GetName(), l.GetValue())
				}
			}
		}
	}
	p := expfmt.NewTextParser(model.UTF8Validation)
	if _, err := p.TextToMetricFamilies(strings.NewReader(text.String())); err != nil {
		t.Error(err)
	}
}

func TestBuildsAreBounded(t *testing.T) {
	h := newHost()
	for pid := range uint32(200) {
		h.apply(aggregator.Event{Kind: aggregator.ProcessStart, PID: pid + 1, Process: &aggregator.Process{
			Started: 1, BuildID: fmt.Sprint(pid), NotCovered: fmt.Sprintf("a%d, b%d", pid, pid)}})
	}
	r := gatherer(t, h, Options{})
	users := values(t, r, "library_processes")
	var sum float64
	for _, v := range users {
		sum += v
	}
	if len(users) != maxLibraries+1 || sum != 200 {
		t.Errorf("%d builds of %v processes", len(users), sum)
	}
	if n := len(values(t, r, "library_not_covered")); n > maxLibraries*3 {
		t.Errorf("%d series", n)
	}
}

// promtool has nothing to say of names, types, units and help.
func TestNamesAreAsPrometheusWantsThem(t *testing.T) {
	problems, err := testutil.GatherAndLint(gatherer(t, everything(), Options{Version: "v1", Processes: 10}))
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
}

// everything is a host on which every metric has a value.
func everything() *host {
	h := newHost()
	h.start(2, 1)
	h.start(1, 0)
	h.hold(1, 1, aggregator.DRAM, 0, 5000)
	h.apply(aggregator.Event{Kind: aggregator.ProcessStart, PID: 1, Process: &aggregator.Process{
		Started: 10, BuildID: "ab", NotCovered: "dataflow buffers"}})
	h.apply(aggregator.Event{Kind: aggregator.HostMemoryRead, PID: 1, Size: 1 << 20})
	h.apply(aggregator.Event{Kind: aggregator.Alloc, PID: 1, Device: 99, Buffer: 2, Size: 10})
	h.program(1)
	// The device with unknown chips may be any chip's, so what is 0 has no series.
	h.apply(aggregator.Event{Kind: aggregator.KernelLoaded, PID: 1, Device: 1, Program: 3, Kernel: &aggregator.Kernel{ID: 4, Name: "k", Processor: "brisc", Bytes: 100, Sized: true}})
	h.apply(aggregator.Event{Kind: aggregator.KernelsCopied, PID: 1, Program: 3, Buffer: 1})
	h.hold(2, 1, aggregator.L1, 8192, 64)
	h.devices = []telemetry.Device{n300(0)}
	h.probes = &Probes{Kinds: []KindCounts{{"alloc", 2, 1, 0}}, RingBytes: 1, Tables: []TableFill{{"launches", 1, 2}}}
	h.recording = &Recording{Events: 5, Lost: 3, Bytes: 700, Files: 2, Failures: 1, Paused: true, Written: time.Unix(1700000000, 5e8)}
	return h
}

func TestEveryMetricHasAValue(t *testing.T) {
	got := values(t, gatherer(t, everything(), Options{Version: "v1", Processes: 10}), "")
	for _, m := range all {
		found := false
		for k := range got {
			found = found || strings.HasPrefix("tt_memtrace_"+k, m.name+"{")
		}
		if !found {
			t.Errorf("%s has no value", m.name)
		}
	}
}

var update = flag.Bool("update", false, "write docs/metrics.md's table")

func TestTheRecordersOwnMetrics(t *testing.T) {
	h := everything()
	expect(t, values(t, gatherer(t, h, Options{}), "recording_"), map[string]float64{
		"recording_paused{}": 1, "recording_events_total{}": 5, "recording_events_lost_total{}": 3, "recording_bytes_total{}": 700,
		"recording_files_total{}": 2, "recording_failures_total{}": 1, "recording_last_write_timestamp_seconds{}": 1700000000.5,
	})
	h.recording = nil
	none(t, values(t, gatherer(t, h, Options{}), ""), "recording_paused", "recording_events", "recording_bytes", "recording_files", "recording_failures", "recording_last")
}

func TestMetricsAreDocumented(t *testing.T) {
	const path, head = "../../docs/metrics.md", "| metric | labels | |\n|---|---|---|\n"
	var want strings.Builder
	for _, m := range all {
		fmt.Fprintf(&want, "| `%s` | %s | %s |\n", m.name, strings.Join(m.labels, ", "), m.help)
	}
	pinned.Table(t, *update, path, head, want.String(), "go generate ./internal/metrics")
}

// The names of a process are those of this very process, read once.
func TestNamesOfProcesses(t *testing.T) {
	proc := t.TempDir()
	id := strings.Repeat("0123456789abcdef", 4)
	file := func(name, text string) {
		t.Helper()
		path := filepath.Join(proc, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	stat := func(start string) string { return "7 (a) b) S" + strings.Repeat(" 1", 18) + " " + start + " 0 0\n" }
	file("stat", "cpu 1 2 3 4 5 6 7 8 9 10\nbtime 1700000000\n")
	file("7/stat", stat("70"))
	file("7/comm", "a) b\n")
	file("7/cgroup", "0::/kubepods.slice/kubepods-pod01234567_89ab_cdef_0123_456789abcdef.slice/cri-containerd-"+id+".scope\n")
	file("8/stat", stat("81")) // another one than is traced has the PID now
	file("8/comm", "wrong\n")
	h := newHost()
	h.start(7, 0)
	h.start(8, 0)
	r := gatherer(t, h, Options{Processes: 5, Proc: proc})
	want := map[string]float64{
		"process_start_time_seconds{comm=a) b,container=0123456789ab,pid=7,pod=01234567-89ab-cdef-0123-456789abcdef}": 1700000000.7,
		"process_start_time_seconds{comm=model-8,pid=8}":                                                              1700000000.8,
	}
	expect(t, values(t, r, "process_start"), want)
	file("7/comm", "renamed\n")
	expect(t, values(t, r, "process_start"), want)
	h.exit(7) // it runs another program
	h.start(7, 0)
	for series, value := range want {
		if renamed := strings.Replace(series, "comm=a) b", "comm=renamed", 1); renamed != series {
			delete(want, series)
			want[renamed] = value
		}
	}
	expect(t, values(t, r, "process_start"), want)
}

func FuzzClean(f *testing.F) {
	f.Add("é\xff\n")
	f.Fuzz(func(t *testing.T, s string) {
		c := clean(s)
		if !model.LabelValue(c).IsValid() || len(c) > 3*maxLabel {
			t.Errorf("%q: %q", s, c)
		}
	})
}

// crowd is a host with 32 chips and so many processes, each of which has all chips open,
// a buffer in each memory, and a circular buffer.
func crowd(processes int) *host {
	h := newHost()
	chips := make([]uint32, 32)
	for i := range chips {
		chips[i] = uint32(i)
	}
	for pid := range uint32(processes) {
		h.start(1000+pid, chips...)
		for m := range aggregator.NumMemories {
			if m != aggregator.SystemMemory {
				h.hold(1000+pid, uint64(m)+1, m, 0, 32)
			}
		}
		h.program(1000 + pid)
	}
	return h
}

// With 32 chips and 500 processes the series are as many as the limit allows, and no more.
func TestSeriesAreBounded(t *testing.T) {
	count := func(processes, limit int) int {
		return len(values(t, gatherer(t, crowd(processes), Options{Processes: limit}), ""))
	}
	few, many := count(60, DefaultProcesses), count(500, DefaultProcesses)
	if few != many {
		t.Errorf("60 processes have %d series, 500 have %d", few, many)
	}
	if many > 20_000 {
		t.Errorf("%d series", many)
	}
	t.Logf("%d series", many)
}

// Lives and deaths of 10,000 processes leave neither series nor memory behind.
func TestMemoryIsFlat(t *testing.T) {
	h := newHost()
	r := gatherer(t, h, Options{Processes: DefaultProcesses})
	h.start(1, 0, 1)
	life := func(pid uint32) {
		h.start(pid, 0, 1)
		h.hold(pid, 1, aggregator.DRAM, 0, 4096)
		h.program(pid)
		if pid%10 == 0 {
			values(t, r, "")
		}
		h.exit(pid)
	}
	heap := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	for pid := uint32(2); pid < 1000; pid++ {
		life(pid)
	}
	before, series := heap(), len(values(t, r, ""))
	for pid := uint32(1000); pid < 11_000; pid++ {
		life(pid)
	}
	if n := len(values(t, r, "")); n != series {
		t.Errorf("%d series, %d before", n, series)
	}
	if after := heap(); float64(after) > float64(before)+256<<10 {
		t.Errorf("%d bytes, %d before", after, before)
	}
	expect(t, values(t, r, "exited"), map[string]float64{"exited_processes_total{}": math.Trunc(10_998)})
}

// Dashboards and alerts find metrics by name, type and labels.
func TestNamesOfMetricsAreFixed(t *testing.T) {
	var names []string
	for _, m := range all {
		names = append(names, strings.Join(append([]string{m.name, strings.ToLower(m.kind.String())}, m.labels...), " "))
	}
	pinned.Names(t, *update, "testdata/metrics.txt", names,
		"Dashboards and alerts use it: a metric keeps its old name beside the new one for two minor releases",
		"An addition is free")
}
