package main

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"tt-memtrace/aggregator"
	"tt-memtrace/internal/record"
)

// millionEvents writes a recording of a host with a million events: eight chips, a few
// thousand live buffers, programs.
func millionEvents(b *testing.B, host string, events int) string {
	b.Helper()
	path := filepath.Join(b.TempDir(), host+".ttm")
	f, err := os.Create(path)
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	w, err := record.NewWriter(f, record.Header{Host: host, Source: "s", Began: time.Unix(1.7e9, 0), Monotonic: nsSecond})
	if err != nil {
		b.Fatal(err)
	}
	var chips []aggregator.Chip
	for n := range uint32(8) {
		chips = append(chips, aggregator.Chip{Number: n})
	}
	banks := aggregator.Banks{Known: true, Count: 12, Bytes: 1 << 30}
	list := []aggregator.Event{
		{Kind: aggregator.ProcessStart, PID: 5, Time: nsSecond, Process: &aggregator.Process{Command: "c"}},
		{Kind: aggregator.DeviceOpen, PID: 5, Time: nsSecond, Device: 7, Opened: &aggregator.Opened{Chips: chips}},
		{Kind: aggregator.AllocatorSeen, PID: 5, Time: nsSecond, Device: 7, Allocator: 8, Capacity: &aggregator.Capacity{aggregator.DRAM: banks, aggregator.L1: banks}},
	}
	r := rand.New(rand.NewPCG(1, 2))
	var live []uint64
	for i := range uint64(events) {
		at := nsSecond + i*100_000
		if len(live) > 3000 || len(live) > 100 && r.IntN(2) == 0 {
			n := r.IntN(len(live))
			list = append(list, aggregator.Event{Kind: aggregator.Free, PID: 5, TID: 6, Time: at, Device: 7, Buffer: live[n]})
			live[n] = live[len(live)-1]
			live = live[:len(live)-1]
		} else {
			size := uint64(2048 * (1 + r.IntN(500)))
			live = append(live, 0x7f0000000000+i*0x140)
			list = append(list, aggregator.Event{Kind: aggregator.Alloc, PID: 5, TID: 6, Time: at, Device: 7, Allocator: 8, Memory: aggregator.Memory(r.IntN(2)),
				Buffer: live[len(live)-1], Address: uint64(r.IntN(1<<20)) * 1024, Size: size, PerBank: size / 12 / 32 * 32, PageSize: 2048})
		}
		if len(list) >= 4096 {
			if err := w.Write(list); err != nil {
				b.Fatal(err)
			}
			list = list[:0]
		}
	}
	if err := w.Write(list); err != nil {
		b.Fatal(err)
	}
	if err := w.Close(); err != nil {
		b.Fatal(err)
	}
	return path
}

// BenchmarkReportOfHosts reports on thirty recordings of a million events each, of a host each.
func BenchmarkReportOfHosts(b *testing.B) {
	const hosts, events = 30, 1_000_000
	args := []string{"--format", "json"}
	for i := range hosts {
		args = append(args, millionEvents(b, fmt.Sprintf("host-%02d", i), events))
	}
	cpu := func() time.Duration {
		var u unix.Rusage
		if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
			b.Fatal(err)
		}
		return time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	b.ResetTimer()
	before := cpu()
	for b.Loop() {
		var out bytes.Buffer
		cmd := newReport()
		cmd.SilenceErrors, cmd.SilenceUsage = true, true
		cmd.SetOut(&out)
		cmd.SetArgs(args)
		if err := cmd.Execute(); err != nil || out.Len() == 0 {
			b.Fatal(err, out.Len())
		}
	}
	b.ReportMetric((cpu()-before).Seconds()/float64(b.N)/hosts, "cpu-s/million-events")
}
