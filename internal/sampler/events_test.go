package sampler

import (
	"slices"
	"testing"

	"tt-memtrace/aggregator"
	"tt-memtrace/internal/inspect"
)

// A mesh that closed, and another one that opened at its address, is seen to have closed, also if a look in between came
// too early to read the new one's sub-device manager: what programs had on the chips is gone.
func TestMeshThatOpenedAgain(t *testing.T) {
	const device, allocator = 0x1000, 0x2000
	p := &process{devices: map[uint64]uint64{}, managers: map[uint64]uint64{}, chips: inspect.NewChips(&inspect.Inspector{}, 1)}
	closes := func(managers map[uint64]uint64) bool {
		l := &look{scan: &inspect.ProcessScan{Devices: map[uint64]uint64{device: allocator}, Managers: managers}}
		var scan aggregator.Scan
		p.devicesFound(l, inspect.ChipNames{}, func(uint64) bool { return false }, &scan)
		return slices.Contains(scan.Closed, device)
	}
	for i, look := range []struct {
		managers map[uint64]uint64
		closes   bool
	}{
		{map[uint64]uint64{device: 5}, false},
		{map[uint64]uint64{device: 5}, false},
		{nil, false},
		{map[uint64]uint64{device: 9}, true},
		{map[uint64]uint64{device: 9}, false},
	} {
		if got := closes(look.managers); got != look.closes {
			t.Errorf("look %d: it has closed: %t", i, got)
		}
	}
}

// At the first look, the buffers that hold copies of kernels come before these.
func TestCopiesOfTheFirstLook(t *testing.T) {
	const device, allocator, buffer, id, address = 0x1000, 0x2000, 0x3000, 0x4000, 64
	p := &process{
		pid: 1, devices: map[uint64]uint64{}, managers: map[uint64]uint64{}, buffers: map[uint64]*held{}, programs: map[uint64]program{},
		used: map[uint64]bool{}, chips: inspect.NewChips(&inspect.Inspector{}, 1),
	}
	l := &look{search: true, scan: &inspect.ProcessScan{Devices: map[uint64]uint64{device: allocator}}}
	l.scan.Scan.Allocators = []uint64{allocator}
	l.scan.Scan.Buffers = []aggregator.LiveBuffer{{Buffer: buffer, Device: device, Allocator: allocator, Address: address, Memory: aggregator.DRAM, Size: 4096}}
	l.scan.Scan.Programs, l.scan.Scan.ProgramsRead = []uint64{id}, true
	l.scan.Programs = []inspect.Program{{ID: id, Devices: []uint64{device}, Copies: []inspect.KernelCopy{{Device: device, Address: address, Buffer: buffer}}}}
	l.opened = map[uint64]inspect.Device{}
	var kinds []aggregator.Kind
	accounts := aggregator.New()
	for _, e := range p.events(l, inspect.ChipNames{}, func(uint64) bool { return false }) {
		if e.Kind != aggregator.Scanned {
			accounts.Apply(&e)
			continue
		}
		accounts.Merge(&e, func(list []aggregator.Event) {
			if k := list[0].Kind; k == aggregator.Alloc || k == aggregator.KernelsCopied {
				kinds = append(kinds, k)
			}
			accounts.Apply(&list[0])
		})
	}
	if want := []aggregator.Kind{aggregator.Alloc, aggregator.KernelsCopied}; !slices.Equal(kinds, want) {
		t.Errorf("%v, not %v", kinds, want)
	}
}
