package aggregator

import "testing"

func TestFreeSpace(t *testing.T) {
	type held struct{ address, per uint64 }
	const count, bank = 4, 1000
	for name, test := range map[string]struct {
		held          []held
		free, largest uint64
		unknown       bool
	}{
		"none":                    {unknown: true},
		"from the bottom":         {[]held{{0, 100}, {100, 200}}, 700, 700, false},
		"from the top":            {[]held{{900, 100}}, 900, 900, false},
		"a hole":                  {[]held{{0, 100}, {600, 400}}, 500, 500, false},
		"the largest of holes":    {[]held{{800, 200}, {0, 100}, {200, 100}, {600, 100}}, 500, 300, false},
		"one over the other":      {[]held{{0, 500}, {100, 100}, {900, 100}}, 400, 400, false},
		"full":                    {[]held{{0, 1000}}, 0, 0, false},
		"a base that is not 0":    {[]held{{5000, 100}, {5900, 100}}, 800, 800, false},
		"more than there is":      {[]held{{0, 100}, {5000, 100}}, 0, 0, true},
		"of unknown size":         {[]held{{0, 0}}, 0, 0, true},
		"an address without ends": {[]held{{1 << 63, 100}}, 0, 0, true},
	} {
		t.Run(name, func(t *testing.T) {
			a := New()
			a.Apply(&Event{Kind: DeviceOpen, PID: 1, Device: 1, Opened: &Opened{Chips: []Chip{{Number: 3}, {Number: 4}}}})
			a.Apply(&Event{Kind: AllocatorSeen, PID: 1, Device: 1, Allocator: 2, Capacity: &Capacity{L1: {Known: true, Count: count, Bytes: bank}}})
			for i, h := range test.held {
				a.Apply(&Event{Kind: Alloc, PID: 1, Memory: L1, Device: 1, Allocator: 2, Buffer: uint64(i + 1), Size: 50, Address: h.address, PerBank: h.per})
			}
			spaces, known := a.FreeSpaces(10)
			if !known {
				t.Fatal("it is not worked out")
			}
			if test.unknown {
				if len(spaces) != 0 {
					t.Errorf("%+v", spaces)
				}
				return
			}
			if len(spaces) != 1 || spaces[0].Memory != L1 || len(spaces[0].Chips) != 2 ||
				spaces[0].Free != test.free*count || spaces[0].Largest != test.largest*count {
				t.Errorf("%+v", spaces)
			}
			if _, known := a.FreeSpaces(len(test.held) - 1); known {
				t.Error("more buffers than the limit were sorted")
			}
		})
	}
}

func TestFreeSpaceOfLateProcessesIsUnknown(t *testing.T) {
	a := New()
	a.Apply(&Event{Kind: DeviceOpen, PID: 1, Device: 1, Opened: &Opened{Chips: []Chip{{}}, Late: true}})
	a.Apply(&Event{Kind: AllocatorSeen, PID: 1, Device: 1, Allocator: 2, Capacity: &Capacity{DRAM: {Known: true, Count: 1, Bytes: 100}}})
	a.Apply(&Event{Kind: Alloc, PID: 1, Device: 1, Allocator: 2, Buffer: 1, Size: 50, PerBank: 50})
	if spaces, _ := a.FreeSpaces(10); len(spaces) != 0 {
		t.Errorf("%+v", spaces)
	}
}

// Launches are counted for good, of programs and processes that are gone too.
func TestLaunchesAreCounted(t *testing.T) {
	a := New()
	a.Apply(&Event{Kind: Launched, PID: 1, Count: 5})
	a.Apply(&Event{Kind: KernelAdded, PID: 1, Program: 9})
	a.Apply(&Event{Kind: Launched, PID: 1, Program: 9, Count: 7})
	if c := a.Snapshot().Processes[0].counters; c.Launches != 12 || c.UnknownLaunches != 5 {
		t.Errorf("%+v", c)
	}
	a.Apply(&Event{Kind: ProcessExit, PID: 1})
	if n := a.Snapshot().Counters.Launches; n != 12 {
		t.Errorf("%d launches", n)
	}
}
