package prometheus

import (
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"tt-memtrace/aggregator"
	"tt-memtrace/internal/metrics"
	"tt-memtrace/internal/telemetry"
)

// The queries of docs/metrics.md join with series that others export, in a real Prometheus.
func TestJoinsOfTheDocs(t *testing.T) {
	const uid = "01234567-89ab-cdef-0123-456789abcdef"
	proc := t.TempDir()
	for name, text := range map[string]string{
		"stat":       "cpu 1 2 3 4 5 6 7 8 9 10\nbtime 1700000000\n",
		"100/stat":   "100 (model) S" + strings.Repeat(" 1", 18) + " 7 0 0\n",
		"100/comm":   "model\n",
		"100/cgroup": "0::/kubepods/burstable/pod" + uid + "/" + strings.Repeat("0123456789abcdef", 4) + "\n",
	} {
		path := filepath.Join(proc, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	a := aggregator.New()
	banks := aggregator.Banks{Known: true, Count: 8, Bytes: 1 << 20}
	for _, e := range []aggregator.Event{
		{Kind: aggregator.ProcessStart, PID: 100, Process: &aggregator.Process{Started: 7, Command: "model"}},
		{Kind: aggregator.DeviceOpen, PID: 100, Device: 1, Opened: &aggregator.Opened{Chips: []aggregator.Chip{{}}, Boards: []string{"n300"}, UniqueIDs: []uint64{0xabc}}},
		{Kind: aggregator.AllocatorSeen, PID: 100, Device: 1, Allocator: 2, Capacity: &aggregator.Capacity{aggregator.DRAM: banks, aggregator.L1: banks}},
		{Kind: aggregator.CBPlaced, PID: 100, Device: 1, Program: 9, CB: &aggregator.CircularBuffer{Call: 1, Address: 1024, Size: 2048, Ranges: []aggregator.CoreRange{{}}}},
		{Kind: aggregator.Alloc, PID: 100, Device: 1, Allocator: 2, Memory: aggregator.DRAM, Buffer: 3, Size: 8000, PerBank: 1024},
		{Kind: aggregator.Alloc, PID: 100, Device: 1, Allocator: 2, Memory: aggregator.L1, Buffer: 4, Address: 500_000, Size: 8000, PerBank: 1024},
	} {
		a.Apply(&e)
	}
	spaces, _ := a.FreeSpaces(100)
	reading := metrics.Reading{Snapshot: a.Snapshot(), Rooms: spaces, Devices: []telemetry.Device{
		{Card: "n300", ASIC: "0000000000000ABC", Bus: "0000:03:00.0"}, {Node: 1, Card: "n300", ASIC: "0000000000000ABD", Bus: "0000:04:00.0"},
	}}
	c, err := metrics.NewCollector(func() metrics.Reading { return reading }, metrics.Options{Processes: 10, Proc: proc})
	if err != nil {
		t.Fatal(err)
	}
	s, err := metrics.Listen("127.0.0.1:0", "", c, well{}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	go s.Serve()
	t.Cleanup(func() { s.Close() })
	others := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, "kube_pod_info{uid=%q,namespace=\"ml\",pod=\"serve-0\"} 1\ntt_chip_temperature{pci_bdf=\"0000:03:00.0\"} 45.5\n"+
			"kube_customresource_resourceslice_device{pool=\"node-1\",device=\"tt-0\",unique_id=\"2748\"} 1\n"+
			"kube_customresource_resourceslice_device{pool=\"node-1\",device=\"tt-1\",unique_id=\"2749\"} 1\n"+
			"kube_customresource_resourceclaim_device{namespace=\"ml\",resourceclaim=\"serve-0-chip\",pool=\"node-1\",device=\"tt-0\"} 1\n"+
			"kube_customresource_resourceclaim_device{namespace=\"ml\",resourceclaim=\"idle-chip\",pool=\"node-1\",device=\"tt-1\"} 1\n", uid)
	}))
	t.Cleanup(others.Close)
	p := start(t, s.Addr().String(), strings.TrimPrefix(others.URL, "http://"))

	docs, err := os.ReadFile("../../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	blocks := regexp.MustCompile("(?s)```promql\n(.*?)```").FindAllStringSubmatch(string(docs), -1)
	want := []struct {
		labels map[string]string
		value  float64
	}{
		{map[string]string{"unique_id": "2748", "pci_address": "0000:03:00.0", "memory": "dram"}, 8192},
		{map[string]string{"namespace": "ml", "resourceclaim": "serve-0-chip", "memory": "dram", "chip": "0"}, 8192},
		{map[string]string{"namespace": "ml", "resourceclaim": "idle-chip"}, 0},
		{map[string]string{"namespace": "ml", "pod": "serve-0", "chip": "0", "memory": "l1"}, 8192},
		{map[string]string{"namespace": "ml", "memory": "dram"}, 8192},
		{map[string]string{"card": "n300", "chip": "0", "instance": s.Addr().String()}, 45.5},
		{map[string]string{"chip": "0"}, 500_000 - 3072},
	}
	if len(blocks) != len(want) {
		t.Fatalf("%d queries in the docs, %d are tried", len(blocks), len(want))
	}
	for i, w := range want {
		var got []series
		eventually(t, "there is an answer to "+blocks[i][1], func() bool {
			got = p.query(t, blocks[i][1])
			for _, one := range got {
				same := one.value == w.value
				for k, v := range w.labels {
					same = same && one.labels[k] == v
				}
				if same {
					return true
				}
			}
			return false
		})
	}
}
