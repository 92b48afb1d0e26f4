package aggregator

import (
	"testing"

	"tt-memtrace/aggregator/exact"
)

// A buffer of which it was unknown what it takes of each bank gets that from the allocator's own
// list; what is known stays.
func TestScanFillsInReservedSizes(t *testing.T) {
	a := New()
	capacity := Capacity{DRAM: {Known: true, Count: 12, Bytes: 1 << 30}}
	for _, e := range []Event{
		{Kind: DeviceOpen, PID: 1, Time: 1, Device: 7, Opened: &Opened{Chips: []Chip{{Number: 0}, {Number: 1}}}},
		{Kind: AllocatorSeen, PID: 1, Time: 2, Device: 7, Allocator: 8, Capacity: &capacity},
		{Kind: Alloc, PID: 1, Time: 3, Device: 7, Allocator: 8, Buffer: 100, Address: 64, Size: 4096, PageSize: 1024},
		{Kind: Alloc, PID: 1, Time: 4, Device: 7, Allocator: 8, Buffer: 101, Address: 640, Size: 4096, PageSize: 1024, PerBank: 1024},
		{Kind: Scanned, PID: 1, Time: 5, Scan: &Scan{Allocators: []uint64{8}, Buffers: []LiveBuffer{
			{Buffer: 100, Device: 7, Allocator: 8, Address: 64, Size: 4096, PageSize: 1024, PerBank: 2048},
			{Buffer: 101, Device: 7, Allocator: 8, Address: 640, Size: 4096, PageSize: 1024, PerBank: 1024},
		}}},
	} {
		a.Apply(&e)
	}
	s := a.Snapshot()
	for _, p := range s.Processes {
		for _, c := range p.Chips {
			if u := c.Memory[DRAM]; !u.Reserved.Is(12*(2048+1024)) || u.unreserved != 0 || !u.Requested.Is(2*4096) || !u.Buffers.Is(2) || u.PeakReserved.Bound() != exact.AtLeast {
				t.Errorf("chip %v: %+v", c.Chip, u)
			}
		}
		if p.Agreement.Repaired != 0 || len(p.Chips) != 2 {
			t.Errorf("%+v on %d chips", p.Agreement, len(p.Chips))
		}
	}
	if u := s.Chips[0].Memory[DRAM]; !u.Reserved.Is(12*(2048+1024)) || u.unreserved != 0 {
		t.Errorf("%+v", u)
	}
	for _, b := range a.Buffers(1) {
		a.Apply(&Event{Kind: Free, PID: 1, Time: 6, Buffer: b.ID})
	}
	if u := a.Snapshot().Chips[0].Memory[DRAM]; !u.Reserved.Is(0) || u.unreserved != 0 || !u.Buffers.Is(0) {
		t.Errorf("after the end of all: %+v", u)
	}
}

// A buffer that was allocated while the banks of its allocator could not be read has its reserved
// size once they can be.
func TestBanksThatBecomeKnown(t *testing.T) {
	a := New()
	capacity := Capacity{DRAM: {Known: true, Count: 12, Bytes: 1 << 30}}
	for _, e := range []Event{
		{Kind: DeviceOpen, PID: 1, Time: 1, Device: 7, Opened: &Opened{Chips: []Chip{{Number: 0}}}},
		{Kind: AllocatorSeen, PID: 1, Time: 2, Device: 7, Allocator: 8, Capacity: &Capacity{}},
		{Kind: Alloc, PID: 1, Time: 3, Device: 7, Allocator: 8, Buffer: 100, Address: 64, Size: 4096, PageSize: 1024, PerBank: 1024},
	} {
		a.Apply(&e)
	}
	if u := a.Snapshot().Chips[0].Memory[DRAM]; u.Reserved.Known() || u.unreserved != 1 {
		t.Errorf("before: %+v", u)
	}
	a.Apply(&Event{Kind: AllocatorSeen, PID: 1, Time: 4, Device: 7, Allocator: 8, Capacity: &capacity})
	if u := a.Snapshot().Chips[0].Memory[DRAM]; !u.Reserved.Is(12*1024) || u.unreserved != 0 || u.Banks.Count != 12 {
		t.Errorf("after: %+v", u)
	}
}
