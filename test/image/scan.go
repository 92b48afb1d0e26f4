package image

import (
	"tt-memtrace/aggregator"
	"tt-memtrace/internal/inspect"
	"tt-memtrace/internal/metal"
)

// Held is all that a late attach reads of a process.
type Held struct {
	*inspect.ProcessScan
	Err error
	// Described and Capacities are of the open devices and their allocators, with what failed.
	Described  map[uint64]inspect.Device
	Capacities map[uint64]aggregator.Capacity
	Rings      map[uint64][]aggregator.ConfigRing
	Failed     []error
	Traces     error
}

// Scan reads a process.
func Scan(in *inspect.Inspector, layout *metal.Layout, pid uint32, fork *inspect.Fork) *Held {
	h := &Held{
		Described: map[uint64]inspect.Device{}, Capacities: map[uint64]aggregator.Capacity{},
		Rings: map[uint64][]aggregator.ConfigRing{},
	}
	if h.ProcessScan, h.Err = in.Scan(layout, nil, fork, nil); h.Err != nil {
		return h
	}
	h.Traces = in.OlderThanTraces(h.ProcessScan)
	chips := inspect.NewChips(in, pid)
	failed := func(err error) bool {
		if err != nil {
			h.Failed = append(h.Failed, err)
		}
		return err != nil
	}
	for device, allocator := range h.Devices {
		if d, err := chips.Device(device); !failed(err) {
			h.Described[device] = d
		}
		if rings, err := in.ConfigRings(device); !failed(err) {
			h.Rings[device] = rings
		}
		if c, err := in.Capacity(allocator); !failed(err) {
			h.Capacities[allocator] = c
		}
	}
	return h
}
