package prometheus

import (
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"tt-memtrace/aggregator"
	"tt-memtrace/internal/metrics"
)

// host is accounts that a test fills, with the real collector and server before them.
type host struct {
	mu       sync.Mutex
	accounts *aggregator.Aggregator
	unread   uint64
	server   *metrics.Server
	done     chan error
}

func (h *host) apply(list ...aggregator.Event) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for i := range list {
		h.accounts.Apply(&list[i])
	}
}

func (h *host) read() metrics.Reading {
	h.mu.Lock()
	defer h.mu.Unlock()
	rooms, _ := h.accounts.FreeSpaces(1000)
	h.unread++
	return metrics.Reading{Snapshot: h.accounts.Snapshot(), Rooms: rooms, Probes: &metrics.Probes{
		Kinds: []metrics.KindCounts{{Kind: "alloc", Seen: h.unread + 1, Unread: h.unread}}}}
}

// newHost has chips, each held by a process of its own, with so many bytes in all
// banks of each memory, and a circular buffer.
func newHost(t *testing.T, chips int, bytes uint64) *host {
	t.Helper()
	h := &host{accounts: aggregator.New(), done: make(chan error, 1)}
	banks := aggregator.Banks{Known: true, Count: 8, Bytes: 1 << 30}
	for chip := range uint32(chips) {
		pid := 100 + chip
		h.apply(
			aggregator.Event{Kind: aggregator.ProcessStart, PID: pid, Process: &aggregator.Process{Started: 1, Command: "model",
				BuildID: "ab", Release: "0.81.1", NotCovered: "dataflow buffers"}},
			aggregator.Event{Kind: aggregator.DeviceOpen, PID: pid, Device: 1, Opened: &aggregator.Opened{Chips: []aggregator.Chip{{Number: chip}}}},
			aggregator.Event{Kind: aggregator.AllocatorSeen, PID: pid, Device: 1, Allocator: 2, Capacity: &aggregator.Capacity{
				aggregator.DRAM: banks, aggregator.L1: banks, aggregator.L1Small: banks, aggregator.Trace: banks}},
			aggregator.Event{Kind: aggregator.CBPlaced, PID: pid, Device: 1, Program: 9, CB: &aggregator.CircularBuffer{
				Call: 1, Address: 1024, Size: 2048, Ranges: []aggregator.CoreRange{{X1: 1, Y1: 1}}}},
		)
		for _, m := range []aggregator.Memory{aggregator.DRAM, aggregator.L1, aggregator.L1Small, aggregator.Trace} {
			h.apply(aggregator.Event{Kind: aggregator.Alloc, PID: pid, Device: 1, Allocator: 2, Memory: m, Buffer: 3 + uint64(m),
				Size: bytes, PerBank: bytes / 8})
		}
	}
	c, err := metrics.NewCollector(h.read, metrics.Options{Version: "test", Processes: metrics.DefaultProcesses})
	if err != nil {
		t.Fatal(err)
	}
	r, err := metrics.WithOwn(c)
	if err != nil {
		t.Fatal(err)
	}
	if h.server, err = metrics.Listen("127.0.0.1:0", "", r, well{}, slog.New(slog.DiscardHandler)); err != nil {
		t.Fatal(err)
	}
	go func() { h.done <- h.server.Serve() }()
	t.Cleanup(h.end)
	return h
}

func (h *host) end() {
	h.server.Close()
	h.done <- <-h.done
}

// well is a Health that has nothing to report.
type well struct{}

func (well) Ready() error { return nil }
func (well) Alive() error { return nil }

func (h *host) address() string { return h.server.Addr().String() }

// Thirty hosts under one Prometheus: the sums are right, by host and over all,
// and what is known of a host that dies ends with it.
func TestThirtyHosts(t *testing.T) {
	const hosts, chips = 30, 8
	var list []*host
	var targets []string
	for i := range uint64(hosts) {
		h := newHost(t, chips, (i+1)<<20)
		list, targets = append(list, h), append(targets, h.address())
	}
	p := start(t, targets...)
	const held = `tt_memtrace_memory_reserved_bytes{memory="dram"}`
	eventually(t, "all hosts are scraped", func() bool { n, ok := p.one(t, "sum(up)"); return ok && n == hosts })
	check := func(alive int) error {
		t.Helper()
		byHost := map[string]float64{}
		for _, s := range p.query(t, "sum by (instance) ("+held+")") {
			byHost[s.labels["instance"]] = s.value
		}
		if len(byHost) != alive {
			return fmt.Errorf("%d hosts", len(byHost))
		}
		var all float64
		for i, h := range list[:alive] {
			want := float64(chips * uint64(i+1) << 20)
			if got := byHost[h.address()]; got != want {
				return fmt.Errorf("host %d holds %v, not %v", i, got, want)
			}
			all += want
		}
		for _, query := range []string{"sum(" + held + ")", `sum(tt_memtrace_process_memory_reserved_bytes{memory="dram"})`} {
			if got, ok := p.one(t, query); !ok || got != all {
				return fmt.Errorf("%s is %v, not %v", query, got, all)
			}
		}
		return nil
	}
	// A scrape that takes longer than its second leaves nothing of its host until the next one.
	become := func(alive int) {
		t.Helper()
		settles(t, "the sums are right", func() []string {
			if err := check(alive); err != nil {
				return []string{err.Error()}
			}
			return nil
		})
	}
	become(hosts)

	// The last host dies.
	last := list[hosts-1]
	last.end()
	eventually(t, "the dead host is seen to be down", func() bool {
		n, ok := p.one(t, fmt.Sprintf("up{instance=%q}", last.address()))
		return ok && n == 0
	})
	become(hosts - 1)

	// A process of the first one dies: its series go, and the chip's falls to 0.
	first := list[0]
	first.apply(aggregator.Event{Kind: aggregator.ProcessExit, PID: 100})
	eventually(t, "the chip is free", func() bool {
		n, ok := p.one(t, fmt.Sprintf(`tt_memtrace_memory_reserved_bytes{instance=%q, chip="0", memory="dram"}`, first.address()))
		return ok && n == 0
	})
	if left := p.query(t, fmt.Sprintf(`{__name__=~"tt_memtrace_.*", instance=%q, pid="100"}`, first.address())); len(left) != 0 {
		t.Errorf("of a process that is gone there are %v", left)
	}
	queriesOfTheDashboard(t, p)
}

// queriesOfTheDashboard asks a server what the dashboard asks it. With thirty hosts of eight chips, those panels
// that say so show the 20 highest or lowest.
func queriesOfTheDashboard(t *testing.T, p *server) {
	t.Helper()
	list := expressions(t)
	ranked := regexp.MustCompile(`^(top|bottom)k\(20, (.*)\)$`)
	cut := map[string]bool{}
	for _, e := range list {
		e = strings.NewReplacer("$instance", ".*", "$chip", ".*", "$__rate_interval", "1m").Replace(e)
		eventually(t, "there is an answer to "+e, func() bool { return len(p.query(t, e)) > 0 })
		m := ranked.FindStringSubmatch(e)
		if m == nil {
			if strings.Contains(e, "topk") || strings.Contains(e, "bottomk") {
				t.Errorf("%s is not the 20 highest", e)
			}
			continue
		}
		values := func(expr string, at time.Time) (list []float64) {
			for _, one := range p.queryAt(t, expr, at) {
				list = append(list, one.value)
			}
			slices.Sort(list)
			if m[1] == "top" {
				slices.Reverse(list)
			}
			return list
		}
		settles(t, e, func() []string {
			now := time.Now()
			all, shown := values(m[2], now), values(e, now)
			cut[m[1]] = cut[m[1]] || len(all) > 20
			if want := all[:min(20, len(all))]; !slices.Equal(shown, want) {
				return []string{fmt.Sprintf("%d are shown, %v, of %d, %v", len(shown), shown, len(all), want)}
			}
			return nil
		})
	}
	if len(list) < 30 || !cut["top"] || !cut["bottom"] {
		t.Errorf("%d queries, and some leave something out: %v", len(list), cut)
	}
}

// names are the metrics that the collector has.
func names(t *testing.T) map[string]bool {
	t.Helper()
	list := map[string]bool{}
	for _, name := range metrics.Names() {
		list[name] = true
	}
	return list
}

func scrape(t *testing.T, address string) string {
	t.Helper()
	a, err := http.Get("http://" + address + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer a.Body.Close()
	b, err := io.ReadAll(a.Body)
	if err != nil {
		t.Fatal(err)
	}
	if a.StatusCode != http.StatusOK {
		t.Fatal(a.Status)
	}
	return string(b)
}
