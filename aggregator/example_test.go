package aggregator_test

import (
	"fmt"

	"tt-memtrace/aggregator"
)

// A process opens chip 0 and allocates a buffer of 1000 bytes in DRAM, for which
// the allocator takes 128 bytes in each of the 12 banks.
func Example() {
	const pid, device, allocator, buffer = 4711, 0x1000, 0x2000, 0x3000
	accounts := aggregator.New()
	for _, e := range []aggregator.Event{
		{Kind: aggregator.ProcessStart, PID: pid, Process: &aggregator.Process{Started: 1, Command: "python model.py"}},
		{Kind: aggregator.DeviceOpen, PID: pid, Device: device, Opened: &aggregator.Opened{Chips: []aggregator.Chip{{Number: 0}}}},
		{Kind: aggregator.AllocatorSeen, PID: pid, Device: device, Allocator: allocator, Capacity: &aggregator.Capacity{
			aggregator.DRAM: {Known: true, Count: 12, Bytes: 1 << 30},
		}},
		{Kind: aggregator.Alloc, PID: pid, Device: device, Allocator: allocator, Buffer: buffer,
			Memory: aggregator.DRAM, Size: 1000, PerBank: 128},
	} {
		accounts.Apply(&e)
	}
	print := func() {
		s := accounts.Snapshot()
		dram := s.Chips[0].Memory[aggregator.DRAM]
		fmt.Printf("%d buffers: %d bytes requested, %d reserved, at most %d\n", dram.Buffers, dram.Requested, dram.Reserved, dram.PeakReserved)
	}
	print()
	accounts.Apply(&aggregator.Event{Kind: aggregator.Free, PID: pid, Device: device, Buffer: buffer})
	print()
	// Output:
	// 1 buffers: 1000 bytes requested, 1536 reserved, at most 1536
	// 0 buffers: 0 bytes requested, 0 reserved, at most 1536
}
