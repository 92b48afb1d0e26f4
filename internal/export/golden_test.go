package export

import (
	"flag"
	"os"
	"path/filepath"
	"testing"
	"time"

	"tt-memtrace/aggregator"
)

var update = flag.Bool("update", false, "write golden files and schemas")

// golden compares a text with a file.
func golden(t *testing.T, path, got string) {
	t.Helper()
	path = filepath.FromSlash(path)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s is not up to date (go generate ./internal/export writes schemas, go test ./internal/export -update all)\ngot:\n%s\nwant:\n%s", path, got, want)
	}
}

// wall is the time of day of a CLOCK_MONOTONIC time.
func wall(monotonic uint64) time.Time {
	return time.Date(2025, 1, 2, 12, 3, 11, 0, time.UTC).Add(time.Duration(monotonic))
}

// hostile is text that attacks terminals and parsers: sequences that clear the
// screen in 7 and 8 bits, a line break, a quote, text direction, a character
// beyond 16 bits that does not print, and bytes that are no UTF-8.
const hostile = "/opt/e\x1b[2Jvil \u009b2J\n\"],{ \u202e\u2028\U000e0041\x7f\xff\xfe <b>日本"

// stream is a run of everything that a log or a status can show.
func stream(onChange func(aggregator.Change)) *aggregator.Aggregator {
	a := aggregator.New()
	a.OnChange = onChange
	time := uint64(0)
	apply := func(e aggregator.Event) {
		time += 1_500_000
		e.Time = time
		a.Apply(&e)
	}
	open := func(pid uint32, late bool, device uint64, arch string, chips ...aggregator.Chip) {
		apply(aggregator.Event{Kind: aggregator.DeviceOpen, PID: pid, Device: device, Opened: &aggregator.Opened{Chips: chips, Arch: arch, Late: late}})
	}
	start := func(pid uint32, info aggregator.Process) {
		apply(aggregator.Event{Kind: aggregator.ProcessStart, PID: pid, Process: &info})
	}
	seen := func(pid uint32, device uint64, trace aggregator.Banks) {
		apply(aggregator.Event{Kind: aggregator.AllocatorSeen, PID: pid, Device: device, Allocator: device + 1, Capacity: &aggregator.Capacity{
			aggregator.DRAM: {Known: true, Count: 12, Bytes: 1 << 30}, aggregator.L1: {Known: true, Count: 64, Bytes: 1331200},
			aggregator.L1Small: {Known: true}, aggregator.Trace: trace,
		}})
	}
	alloc := func(pid uint32, device, buffer uint64, m aggregator.Memory, size, perBank uint64) {
		apply(aggregator.Event{Kind: aggregator.Alloc, PID: pid, TID: pid + 1, Device: device, Allocator: device + 1, Buffer: buffer,
			Address: 0x20 * buffer, Memory: m, Size: size, PerBank: perBank})
	}
	free := func(pid uint32, device, buffer uint64) {
		apply(aggregator.Event{Kind: aggregator.Free, PID: pid, TID: pid + 2, Device: device, Buffer: buffer, Size: 64, Memory: aggregator.L1})
	}
	chip := func(n uint32) aggregator.Chip { return aggregator.Chip{Number: n} }

	// One that exits, with a buffer still there.
	start(90, aggregator.Process{Started: 1, Command: "pytest -x"})
	open(90, false, 0x100, "wormhole_b0", chip(1))
	seen(90, 0x100, aggregator.Banks{})
	alloc(90, 0x100, 0x10, aggregator.DRAM, 9000, 1024)
	alloc(90, 0x100, 0x20, aggregator.L1, 640, 32)
	free(90, 0x100, 0x20)
	apply(aggregator.Event{Kind: aggregator.ProcessExit, PID: 90})
	// A mesh, all of which is known.
	start(100, aggregator.Process{Started: 2, Command: "python3 serve.py", Library: "/opt/libtt_metal.so", BuildID: "c0ffee", Release: "0.81.1"})
	open(100, false, 0x100, "wormhole_b0", chip(0), chip(1))
	seen(100, 0x100, aggregator.Banks{Known: true, Count: 12, Bytes: 8 << 20})
	alloc(100, 0x100, 0x7f0000001000, aggregator.DRAM, 1<<20, 1<<17)
	alloc(100, 0x100, 0x7f0000002000, aggregator.L1, 640, 32)
	alloc(100, 0x100, 0x7f0000003000, aggregator.Trace, 64, 32)
	free(100, 0x100, 0x7f0000002000)
	// One in its own numbering, attached late, of which little is known.
	start(200, aggregator.Process{Started: 3, Command: hostile, Library: hostile})
	open(200, true, 0x100, "", aggregator.Chip{Space: 200, Number: 0})
	free(200, 0x100, 0xdead)
	alloc(200, 0x100, 0x30, aggregator.L1Small, 512, 0)
	alloc(200, 0x100, 0x40, aggregator.SystemMemory, 4096, 0)
	alloc(200, 0x100, 0x30, aggregator.L1Small, 256, 0)
	// And one of which nothing is.
	alloc(300, 0x900, 0x50, aggregator.DRAM, 2048, 0)
	free(300, 0x999, 0x60)
	apply(aggregator.Event{Kind: aggregator.Alloc, PID: 300, Memory: 77})
	apply(aggregator.Event{Kind: aggregator.Lost, Count: 3})
	return a
}
